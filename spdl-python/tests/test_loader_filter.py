"""`Loader(filter=...)`: which samples are loaded."""

import io
import json
import logging
import random

import numpy
import pytest
from conftest import picture, write_png
from dataset_files import write_members
from spdl_rs import InvalidArgumentError, Loader, UnsupportedError, fields
from test_loader import grey_png

SAMPLES = 41


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """Images with boxes, arrays and text; the image of each fifth sample is damaged."""
    folder = tmp_path_factory.mktemp("filter")
    members = []
    for number in range(SAMPLES):
        image = folder / "image.png"
        write_png(image, picture(number))
        data = image.read_bytes() if number % 5 else b"damaged"
        file = io.BytesIO()
        numpy.save(file, numpy.full((2, 3), number, "f4"))
        document = {"number": number, "boxes": [[1, 2, 3, 4]] * (number % 3), "ids": [7] * (number % 3)}
        document["points"] = [[5, 6]] * (number % 3)
        name = f"{number:03}"
        members += [
            (f"{name}.png", data),
            (f"{name}.json", json.dumps(document).encode()),
            (f"{name}.npy", file.getvalue()),
            (f"{name}.txt", f"text {number}".encode()),
            (f"{name}.cls", str(number % 4).encode()),
            (f"{name}.seg.png", grey_png(numpy.full((60, 80), number, "u1"))),
        ]
    path = folder / "shard.tar"
    write_members(path, members)
    return path


def loader_of(shard, *, more=None, **settings):
    settings = {"batch_size": 4, "shuffle": True, "seed": 3, **settings}
    own = {
        "image": fields.Image(8),
        "number": fields.Number("int64", stored_as="json", at="number"),
        "key": fields.Key(),
    }
    return Loader(shard, {**own, **(more or {})}, **settings)


def is_whole(sample):
    return sample["number"] % 5 != 0


WHOLE = SAMPLES - 9


def numbers_of(batches):
    return [batch["number"].tolist() for batch in batches]


def as_bytes(batches):
    return [(batch["number"].tolist(), batch["key"], batch["image"].tobytes()) for batch in batches]


def test_filter_gets_all_values_without_pixels_and_decides_before_images_are_decoded(shard):
    seen = {}

    def function(sample):
        seen[sample["number"]] = sample
        return is_whole(sample)

    json_field = {"stored_as": "json"}
    more = {
        "boxes": fields.Boxes(at="boxes", **json_field),
        "ids": fields.Array(None, "int64", at="ids", rows_of="boxes", **json_field),
        "points": fields.KeyPoints((None, 2), at="points", **json_field, rows_of="boxes"),
        "array": fields.Array((2, 3), stored_as="npy"),
        "text": fields.Text(stored_as="txt"),
        "raw": fields.Bytes(stored_as="txt"),
        "meta": fields.Json(stored_as="json"),
        "label": fields.Label(),
        "index": fields.Index(),
        "other": fields.Number(at="absent", default=2.5, **json_field),
    }
    unseen = {
        "mask": fields.Mask(stored_as="seg.png"),
        "depth": fields.Depth(stored_as="seg.png"),
        "geometry": fields.Geometry(),
        "size": fields.ImageSize(),
    }
    loader = loader_of(shard, more={**more, **unseen}, shuffle=False, filter=function)
    batches = list(loader)
    assert [set(mask.flat) for mask in batches[0]["mask"]] == [{1}, {2}, {3}, {4}]
    assert batches[0]["size"].tolist() == [[60, 80]] * 4
    expected = [number for number in range(SAMPLES) if number % 5]
    assert [number for batch in numbers_of(batches) for number in batch] == expected
    assert [len(batch["number"]) for batch in batches] == [4] * (WHOLE // 4)
    assert sorted(seen) == list(range(SAMPLES))
    for number, sample in seen.items():
        assert set(sample) == {"number", "key", *more}
        assert sample["boxes"].tolist() == [[1, 2, 3, 4]] * (number % 3)
        assert sample["boxes"].dtype == numpy.float32
        assert sample["ids"].tolist() == [7] * (number % 3)
        assert sample["points"].tolist() == [[5, 6]] * (number % 3)
        assert sample["array"].tolist() == [[number] * 3] * 2
        assert (sample["text"], sample["raw"]) == (f"text {number}", f"text {number}".encode())
        assert sample["meta"]["number"] == number and sample["label"] == number % 4
        assert sample["index"] == number and sample["other"] == 2.5
        assert sample["key"].endswith(f"{number:03}")
    statistics = loader.stats()
    assert (statistics["filtered"], statistics["dropped_total"]) == (9, 0)
    stages = [(stage["name"], stage["items"]) for stage in statistics["stages"]]
    assert stages[2:] == [("filter", SAMPLES), ("decode", WHOLE)]
    assert loader_of(shard).stats()["filtered"] is None


def test_the_length_is_an_upper_bound(shard):
    loader = loader_of(shard, filter=is_whole)
    assert (len(loader), len(list(loader))) == (11, 8)
    assert "41 samples, 11 batches" in repr(loader)


def drawing(sample, rng):
    return bool(is_whole(sample) and rng.random() < 0.7)


def test_filtered_epochs_do_not_depend_on_threads_and_resume_exactly(shard):
    chance = random.Random(2)
    loader = loader_of(shard, filter=drawing, threads=1)
    expected = as_bytes(loader), as_bytes(loader)
    assert numbers_of(loader_of(shard, filter=drawing, seed=4)) != [one[0] for one in expected[0]]
    first, second = ({n for batch in epoch for n in batch[0]} for epoch in expected)
    assert first != second and all(n % 5 for n in first | second)
    for _ in range(12):
        epoch, stop = chance.randint(0, 1), chance.randint(0, 4)
        loader = loader_of(shard, filter=drawing, threads=chance.randint(1, 5))
        loader.set_epoch(epoch)
        batches = iter(loader)
        before = as_bytes(next(batches) for _ in range(stop))
        again = loader_of(shard, filter=drawing, threads=chance.randint(1, 5))
        again.load_state_dict(loader.state_dict())
        assert before + as_bytes(again) == expected[epoch]
        # The next epoch follows.
        assert again.epoch == epoch + 1


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_each_rank_filters_its_samples_and_states_of_ranks_are_combined(shard, remainder):
    def ranks(world):
        settings = {"filter": is_whole, "world_size": world, "remainder": remainder}
        return [loader_of(shard, rank=rank, **settings) for rank in range(world)]

    def flat(batches):
        return [number for batch in numbers_of(batches) for number in batch]

    delivered = [flat(loader) for loader in ranks(3)]
    together = [number for rank in delivered for number in rank]
    assert all(number % 5 for number in together)
    whole = {number for number in range(SAMPLES) if number % 5}
    if remainder == "uneven":
        assert sorted(together) == sorted(whole)
    elif remainder == "drop":
        assert len(set(together)) == len(together) and len(whole - set(together)) <= 2
    else:
        assert set(together) == whole and len(together) <= len(whole) + 1
    # Another number of ranks delivers the rest.
    before, states = [], []
    for loader in ranks(3):
        before += next(iter(loader))["number"].tolist()
        states.append(loader.state_dict())
    after = []
    for loader in ranks(2):
        loader.load_state_dict(Loader.combine_states(states))
        after += flat(loader)
    if remainder == "uneven":
        assert sorted(before + after) == sorted(whole)
    assert set(before).isdisjoint(after) or remainder == "pad"


def test_drop_last_counts_only_remaining_samples(shard):
    settings = {"drop_last": True, "batch_size": 5}
    loader = loader_of(shard, filter=is_whole, **settings)
    assert [len(batch["number"]) for batch in loader] == [5] * (WHOLE // 5)
    assert loader.stats()["left_out"] == WHOLE % 5


def test_an_epoch_without_samples_is_empty_and_logs_a_warning(shard, caplog):
    loader = loader_of(shard, filter=lambda sample: False)
    with caplog.at_level(logging.WARNING, "spdl_rs"):
        assert list(loader) == []
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"has no batch: filter left out {SAMPLES} samples" in message
    assert "epoch 0 of Loader(" in message
    with pytest.raises(ValueError, match="epoch 1 has no batch left"):
        loader.peek()
    caplog.clear()
    # Neither does an epoch with some batches.
    with caplog.at_level(logging.WARNING, "spdl_rs"):
        assert len(list(loader_of(shard, filter=is_whole))) == 8
    assert caplog.records == []


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exception_of_filter_ends_the_epoch_and_names_the_sample(shard, on_error):
    def function(sample):
        return is_whole(sample) if sample["number"] != 23 else 1 // 0

    loader = loader_of(shard, shuffle=False, on_error=on_error, filter=function)
    before = []
    with pytest.raises(ZeroDivisionError) as caught:
        for batch in loader:
            before += batch["number"].tolist()
    (note,) = caught.value.__notes__
    assert note.startswith("filter of the sample '") and note.endswith("023'")
    again = loader_of(shard, shuffle=False, on_error=on_error, filter=is_whole)
    again.load_state_dict(loader.state_dict())
    after = [number for batch in numbers_of(again) for number in batch]
    assert before and before + after == [number for number in range(SAMPLES) if number % 5]


@pytest.mark.parametrize("result", [None, 1, "yes", numpy.int64(1), [True]])
def test_filter_must_return_a_bool(shard, result):
    with pytest.raises(TypeError, match="filter must return True or False, not"):
        list(loader_of(shard, filter=lambda sample: result))


def test_a_bool_of_numpy_is_a_bool(shard):
    kept = numbers_of(loader_of(shard, filter=lambda sample: sample["number"] == 7))
    assert kept == [[7]]


def test_values_that_cannot_be_decoded_are_failures_of_samples(shard):
    wrong = {"wrong": fields.Array((9, 9), stored_as="npy")}
    with pytest.raises(InvalidArgumentError, match='field "wrong"') as caught:
        list(loader_of(shard, more=wrong, filter=is_whole))
    assert caught.value.key.endswith("shard.tar:" + caught.value.key[-3:])
    # Samples that are left out are not decoded.
    with pytest.raises(UnsupportedError):
        list(loader_of(shard))
    loader = loader_of(shard, on_error="skip", filter=lambda sample: sample["number"] < 11)
    kept = sorted(number for batch in numbers_of(loader) for number in batch)
    assert kept == [1, 2, 3, 4, 6, 7, 8, 9]
    statistics = loader.stats()
    assert (statistics["filtered"], statistics["dropped_total"]) == (SAMPLES - 11, 3)


def test_filter_works_with_the_other_functions_and_outputs(shard):
    def double(sample):
        return {"number": 2 * sample["number"]}

    for settings in [{"map": double}, {"batch_map": lambda batch: {"number": 2 * batch["number"]}}]:
        plain = numbers_of(loader_of(shard, filter=is_whole))
        found = numbers_of(loader_of(shard, filter=is_whole, **settings))
        assert found == [[2 * number for number in batch] for batch in plain]
    images, numbers, keys = loader_of(shard, filter=is_whole, output="tuple").peek()
    assert len(images) == len(numbers) == len(keys) == 4


def test_a_state_of_a_loader_without_filter_is_refused(shard):
    state = loader_of(shard).state_dict()
    with pytest.raises(InvalidArgumentError, match="filter: was absent"):
        loader_of(shard, filter=is_whole).load_state_dict(state)


def test_arguments_that_are_no_functions_are_refused(shard):
    async def coroutine(sample):
        return True

    with pytest.raises(TypeError, match="filter must be callable, not 3"):
        loader_of(shard, filter=3)
    with pytest.raises(TypeError, match="filter must return its result"):
        loader_of(shard, filter=coroutine)


def test_a_data_set_of_images_alone_is_filtered_by_its_keys(photos):
    loader = Loader(
        photos, batch_size=4, image=fields.Image(8), filter=lambda sample: sample == {}
    )
    assert len(loader.peek()["image"]) == 4
    loader = Loader(
        photos, batch_size=4, key=fields.Key(), filter=lambda sample: "cat" in sample["key"]
    )
    assert all("cat" in key for batch in loader for key in batch["key"])
