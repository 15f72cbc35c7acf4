"""What each rank of several takes."""

import collections

import pytest
import spdl_rs


def labels_of(loader):
    return [label for _, labels in loader for label in labels.tolist()]


def ranks(paths, world, **settings):
    settings = {"batch_size": 4, "size": 8, "labels": range(len(paths)), **settings}
    return [
        spdl_rs.ImageLoader(paths, rank=rank, world_size=world, **settings) for rank in range(world)
    ]


@pytest.fixture(scope="module")
def paths(many):
    return sorted(many.glob("*/*.png"))[:17]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 17, 20])
@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("train", [False, True])
def test_ranks_take_turns_and_all_are_equally_long_unless_that_is_waived(
    paths, world, remainder, train
):
    (whole,) = ranks(paths, 1, train=train)
    parts = ranks(paths, world, train=train, remainder=remainder)
    for _ in range(2):
        order = labels_of(whole)
        found = [labels_of(part) for part in parts]
        lens = [len(part) for part in found]
        if remainder == "drop":
            assert set(lens) == {17 // world}
            assert found == [order[: 17 // world * world][rank::world] for rank in range(world)]
        elif remainder == "pad":
            assert set(lens) == {-(-17 // world)}
            again = order * (world // 17 + 2)
            assert found == [again[: -(-17 // world) * world][rank::world] for rank in range(world)]
        else:
            assert found == [order[rank::world] for rank in range(world)]
        for part, count in zip(parts, lens):
            assert len(part) == -(-count // 4)


def test_all_see_every_image_once_in_an_epoch(paths):
    parts = ranks(paths[:16], 4, train=True, seed=3)
    for _ in range(3):
        seen = collections.Counter(label for part in parts for label in labels_of(part))
        assert seen == collections.Counter(range(16))


def test_a_short_last_batch_may_be_left_out_by_each(paths):
    for part in ranks(paths, 3, drop_last=True):
        assert len(part) == 1 and [len(labels) for _, labels in part] == [4]
        assert part.stats()["left_out"] == 1


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_each_rank_goes_on_from_its_own_state(paths, remainder):
    settings = {"train": True, "remainder": remainder, "batch_size": 2}
    for rank in range(3):
        loader = ranks(paths, 3, **settings)[rank]
        whole = labels_of(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        begun = next(batches)[1].tolist()
        again = ranks(paths, 3, **settings)[rank]
        again.load_state_dict(loader.state_dict())
        assert begun + labels_of(again) == whole
        other = ranks(paths, 3, **settings)[(rank + 1) % 3]
        with pytest.raises(ValueError, match=f"rank {rank} of 3.*rank {(rank + 1) % 3} of 3"):
            other.load_state_dict(loader.state_dict())


def test_a_rank_says_which_it_is(paths):
    assert "rank 1 of 3, " in repr(ranks(paths, 3)[1])
    assert "rank" not in repr(ranks(paths, 1)[0])
