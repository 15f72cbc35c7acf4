"""`state_dict` and `load_state_dict` of `spdl_rs.torch.DataLoader`: identical remaining batches."""

# promise of this file: PY2

import functools
import io
import itertools
import pickle
import random
import time

import pytest
from spdl_rs.source import DistributedRandomSampler
from spdl_rs.torch import DataLoader
from torch_datasets import Stream


def loader(dataset=range(23), batch_size=3, collate_fn=list, **arguments):
    return DataLoader(dataset, batch_size, collate_fn=collate_fn, **arguments)


def stored(state):
    return pickle.loads(pickle.dumps(state))


def broken_off(make, at):
    """Returns the first batches of a loader, and its state after them."""
    source = make()
    batches = iter(source)
    first = [next(batches) for _ in range(at)]
    return first, stored(source.state_dict())


def resumed(make, state):
    again = make()
    again.load_state_dict(state)
    return again


class StatefulIterator:
    """Counts the items that were skipped by a new iteration."""

    drawn = 0

    def __init__(self, numbers):
        self.numbers, self.at = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= len(self.numbers):
            raise StopIteration
        type(self).drawn += 1
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class StreamWithState(Stream):
    def __iter__(self):
        return StatefulIterator(list(super().__iter__()))


class StatefulStream(Stream):
    """A data set with its own state."""

    at = 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Shrinking:
    """A custom sampler whose length may differ in each iteration."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))

    def __len__(self):
        return self.length


def stateful_sampler(**arguments):
    sampler = DistributedRandomSampler(23, rank=1, world_size=2, seed=5)
    return loader(sampler=sampler, **arguments)


MAKERS = {
    "in order": loader,
    "single": lambda **arguments: loader(batch_size=None, collate_fn=str, **arguments),
    "drop_last": lambda **arguments: loader(drop_last=True, **arguments),
    "sampler": lambda **arguments: loader(sampler=[5, 1, 7, 7, 2], **arguments),
    "batch_sampler": lambda **arguments: loader(
        batch_size=1, batch_sampler=[[3], [1, 4], [1, 5]], **arguments
    ),
    "stateful sampler": stateful_sampler,
    "iterable": lambda **arguments: loader(Stream(), **arguments),
    "iterable, single": lambda **arguments: loader(Stream(), None, str, **arguments),
    "stateful iterator": lambda **arguments: loader(StreamWithState(), **arguments),
}


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", MAKERS)
def test_an_epoch_resumes_after_any_batch(kind, workers):
    def make():
        return MAKERS[kind](num_workers=workers)

    whole = list(make())
    for at in range(len(whole) + 1):
        first, state = broken_off(make, at)
        again = resumed(make, state)
        assert again.state_dict() == state
        assert first + list(again) == whole
        assert list(again) == whole, "the next epoch is complete"


@pytest.mark.parametrize("kind", MAKERS)
def test_generations_of_states_add_up(kind):
    draw = random.Random(kind)
    for _ in range(10):
        workers = draw.choice([0, 1, 2])

        def make(workers=workers):
            return MAKERS[kind](num_workers=workers)

        whole, got, state = list(make()), [], {}
        while len(got) < len(whole):
            source = resumed(make, state)
            got += itertools.islice(source, draw.randint(0, 3))
            state = stored(source.state_dict())
        assert got == whole
        assert list(resumed(make, state)) == (whole if state["_iterator_finished"] else [])


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if "iter" not in kind])
def test_the_number_of_workers_may_change(kind):
    whole = list(MAKERS[kind]())
    for before, after in [(0, 2), (2, 0), (1, 3)]:
        first, state = broken_off(lambda n=before: MAKERS[kind](num_workers=n), 2)
        again = MAKERS[kind](num_workers=after)
        again.load_state_dict(state)
        assert first + list(again) == whole


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_from_the_end_of_an_epoch_starts_the_next_epoch(kind, workers):
    def make():
        return MAKERS[kind](num_workers=workers)

    source = make()
    whole = list(source)
    state = stored(source.state_dict())
    assert state["_iterator_finished"] and state["_num_yielded"] == len(whole)
    assert list(resumed(make, state)) == whole


def test_a_state_is_available_before_after_and_without_an_epoch():
    whole = list(loader())
    source = loader(num_workers=2)
    assert list(resumed(loader, stored(source.state_dict()))) == whole
    for batch in source:
        if batch == whole[2]:
            break
    # The loop was left, and its iterator deleted.
    assert list(resumed(loader, source.state_dict())) == whole[3:]
    source.load_state_dict(source.state_dict())
    assert list(source) == whole[3:]
    source.load_state_dict({})
    assert source.state_dict()["_num_yielded"] == 0 and list(source) == whole


def test_a_state_is_independent_of_the_loader():
    source = loader(num_workers=1)
    batches = iter(source)
    next(batches)
    state = source.state_dict()
    next(batches)
    assert state["_num_yielded"] == 1
    again = resumed(loader, state)
    state["_num_yielded"] = 0
    assert next(iter(again)) == [3, 4, 5]


def test_unordered_batches_are_delivered_once_each():
    draw = random.Random(1)

    def make(seconds=None):
        def collate(samples):
            time.sleep(0 if seconds is None else seconds[samples[0] % len(seconds)])
            return samples

        return loader(range(60), 2, collate, num_workers=3, in_order=False)

    had_gaps = 0
    for _ in range(12):
        seconds = [draw.choice([0, 0, 0.02]) for _ in range(7)]
        first, state = broken_off(lambda seconds=seconds: make(seconds), draw.randint(1, 25))
        had_gaps += bool(state["_yielded_beyond"])
        rest = list(resumed(make, state))
        assert sorted(first + rest) == [[at, at + 1] for at in range(0, 60, 2)]
    assert had_gaps


def test_a_stateful_iterator_is_not_iterated_again():
    def make():
        return loader(StreamWithState(), num_workers=0)

    _, state = broken_off(make, 5)
    StatefulIterator.drawn = 0
    assert len(list(resumed(make, state))) == 3
    assert StatefulIterator.drawn == 23 - 15


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_data_set_resumes_by_itself(workers):
    def make():
        return loader(StatefulStream(), num_workers=workers)

    whole = list(make())
    for at in range(len(whole)):
        first, state = broken_off(make, at)
        again = resumed(make, state)
        assert first + list(again) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_sampler_resumes_in_the_order_of_its_state(workers):
    def make(seed=5):
        sampler = DistributedRandomSampler(23, rank=1, world_size=2)
        sampler.shuffle(seed)
        return loader(sampler=sampler, num_workers=workers)

    first, state = broken_off(make, 2)
    assert state["_index_sampler_state"]["position"] == 6
    assert first + list(resumed(lambda: make(seed=9), state)) == list(make())
    # After the end, an order that is set decides the next epoch.
    source = make()
    list(source)
    again = make()
    again.load_state_dict(source.state_dict())
    again.sampler.shuffle(9)
    assert list(again) == list(make(9)) != list(make())


def test_failed_batches_count_as_delivered():
    class Fails:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 2:
                raise ValueError("two")
            return index

    for workers in (0, 2):
        source = loader(Fails(), 2, num_workers=workers)
        batches = iter(source)
        next(batches)
        with pytest.raises(ValueError, match="two"):
            next(batches)
        assert list(resumed(lambda: loader(Fails(), 2), source.state_dict())) == [[4, 5]]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: loader(batch_size=4), "batch_size is 3 in the state and 4 here"),
        (lambda: loader(drop_last=True), "drop_last is False in the state and True here"),
        (lambda: loader(range(22)), "dataset_length is 23 in the state and 22 here"),
        (lambda: loader(Stream()), "style is 'map' in the state and 'iterable' here"),
        (
            lambda: loader(sampler=Shrinking(23)),
            "sampler is 'sequential' in the state and 'Shrinking' h",
        ),
        (
            lambda: loader(batch_size=1, batch_sampler=[[1], [2, 3], [4]]),
            "batch_size is 3 in the state and None here; "
            "sampler is 'sequential' in the state and 'list' here; "
            "sampler_length is 23 in the state and 3 here",
        ),
    ],
)
def test_a_state_of_another_loader_is_refused(other, difference):
    _, state = broken_off(loader, 2)
    with pytest.raises(ValueError, match=difference):
        resumed(other, state)
    with pytest.raises(ValueError, match="the state has no key 'version'"):
        loader().load_state_dict({"_snapshot": 1})
    with pytest.raises(ValueError, match="the state has no key '_base_seed'"):
        loader().load_state_dict({k: v for k, v in state.items() if k != "_base_seed"})
    with pytest.raises(TypeError, match="state_dict must be a mapping, not list"):
        loader().load_state_dict([state])
    _, state = broken_off(lambda: loader(Stream(), num_workers=2), 2)
    with pytest.raises(ValueError, match="_num_workers is 2 in the state and 3 here"):
        loader(Stream(), num_workers=3).load_state_dict(state)
    _, state = broken_off(lambda: loader(sampler=Shrinking(20)), 5)
    with pytest.raises(ValueError, match="5 delivered batches, but the sampler has only 2"):
        iter(resumed(lambda: loader(sampler=Shrinking(5)), state))


class OfRank(Shrinking):
    """Has the attributes of `torch.utils.data.DistributedSampler`."""

    def __init__(self, rank, num_replicas):
        super().__init__(6)
        self.rank, self.num_replicas = rank, num_replicas


def test_a_state_of_another_rank_is_refused_and_states_are_not_combined():
    _, state = broken_off(lambda: loader(sampler=OfRank(0, 2)), 1)
    assert list(resumed(lambda: loader(sampler=OfRank(0, 2)), state)) == [[3, 4, 5]]
    for rank, ranks in ((1, 2), (0, 3)):
        with pytest.raises(
            ValueError, match="of rank 0 of 2' in the state and .* cannot be combined"
        ):
            resumed(functools.partial(loader, sampler=OfRank(rank, ranks)), state)
    with pytest.raises(NotImplementedError, match="each rank resumes from its own state"):
        DataLoader.combine_states([state, state])


def test_a_state_of_another_rank_of_a_sampler_of_this_package_is_refused():
    def of_rank(rank):
        return loader(sampler=DistributedRandomSampler(24, rank=rank, world_size=2))

    _, state = broken_off(lambda: of_rank(0), 1)
    with pytest.raises(ValueError, match="of rank 0 of 2' in the state and .* cannot be combined"):
        resumed(lambda: of_rank(1), state)


class OfEpoch(OfRank):
    """Has a different order in each epoch."""

    def __init__(self, seed=0, shuffle=True, drop_last=False):
        super().__init__(0, 2)
        self.epoch, self.seed, self.shuffle, self.drop_last = 0, seed, shuffle, drop_last

    def __iter__(self):
        return iter([(number + self.seed + self.epoch) % 6 for number in range(6)])

    def set_epoch(self, epoch):
        self.epoch = epoch


def of_epoch(epoch, **arguments):
    sampler = OfEpoch(**arguments)
    sampler.set_epoch(epoch)
    return loader(sampler=sampler, batch_size=2)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"seed": 1}, "seed=0.*in the state and .*seed=1"),
        ({"shuffle": False}, "shuffle=True.*in the state and .*shuffle=False"),
        ({"drop_last": True}, "drop_last=False' in the state and .*drop_last=True"),
    ],
)
def test_a_state_of_a_sampler_with_other_settings_is_refused(other, difference):
    _, state = broken_off(lambda: of_epoch(3), 1)
    with pytest.raises(ValueError, match=f"sampler_settings is .*{difference}"):
        resumed(lambda: of_epoch(3, **other), state)


def test_a_state_within_an_epoch_sets_the_samplers_epoch():
    first, state = broken_off(lambda: of_epoch(3), 1)
    whole = list(of_epoch(3))
    assert whole != list(of_epoch(0))
    for epoch in (0, 3, 4):
        again = resumed(lambda epoch=epoch: of_epoch(epoch), state)
        assert again.sampler.epoch == 3
        assert first + list(again) == whole
        again.sampler.set_epoch(4)
        assert list(again) == list(of_epoch(4))


def test_a_state_has_the_started_epoch_even_if_another_is_set():
    source = of_epoch(3)
    first = next(iter(source))
    source.sampler.set_epoch(4)
    again = resumed(lambda: of_epoch(0), stored(source.state_dict()))
    assert [first, *again] == list(of_epoch(3))


def test_another_epoch_than_that_of_the_state_is_refused():
    first, state = broken_off(lambda: of_epoch(3), 1)
    again = resumed(lambda: of_epoch(3), state)
    again.sampler.set_epoch(0)
    with pytest.raises(ValueError, match=r"set to epoch 0: call sampler.set_epoch\(3\)"):
        iter(again)
    again.sampler.set_epoch(3)
    assert first + list(again) == list(of_epoch(3))


def test_after_an_epoch_the_next_one_may_be_set_before_or_after_load_state_dict():
    source = of_epoch(3)
    list(source)
    state = stored(source.state_dict())
    again = resumed(lambda: of_epoch(0), state)
    assert again.sampler.epoch == 3, "without set_epoch the epoch repeats, as without interruption"
    again.sampler.set_epoch(4)
    assert list(again) == list(of_epoch(4))
    assert list(resumed(lambda: of_epoch(4), state)) == list(of_epoch(4))
    # An epoch that is set before the state is taken belongs to the state.
    source.sampler.set_epoch(7)
    assert list(resumed(lambda: of_epoch(0), source.state_dict())) == list(of_epoch(7))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_state_of_other_indices_is_refused_within_the_epoch(kind):
    def make(indices):
        return loader(sampler=kind(indices))

    def of_names(names):
        return DataLoader({"a": 1, "b": 2}, None, sampler=kind(names), collate_fn=str)

    _, state = broken_off(lambda: of_names("ab"), 1)
    assert list(resumed(lambda: of_names("ab"), state)) == ["2"]
    with pytest.raises(ValueError, match="indices or weights differ from those"):
        iter(resumed(lambda: of_names("ba"), state))
    _, state = broken_off(lambda: make(range(20)), 2)
    with pytest.raises(ValueError, match="indices or weights differ from those"):
        iter(resumed(lambda: make(reversed(range(20))), state))
    source = make(range(20))
    list(source)
    again = resumed(lambda: make(reversed(range(20))), source.state_dict())
    assert next(iter(again)) == [19, 18, 17], "the next epoch may have other indices"


def test_a_state_of_another_range_or_of_other_batches_is_refused_within_the_epoch():
    for one, other in [
        ({"sampler": range(9)}, {"sampler": range(8, -1, -1)}),
        ({"batch_sampler": [[1], [2, 3]]}, {"batch_sampler": [[1], [3, 2]]}),
    ]:
        _, state = broken_off(lambda given=one: DataLoader(range(9), collate_fn=list, **given), 1)
        again = DataLoader(range(9), collate_fn=list, **other)
        again.load_state_dict(state)
        with pytest.raises(ValueError, match="indices or weights differ from those"):
            iter(again)


def test_indices_that_json_does_not_support_can_be_resumed():
    class Odd:
        def __init__(self, number):
            self.number = number

    class OddSet:
        def __getitem__(self, odd):
            return odd.number

    def make():
        return loader(OddSet(), 2, sampler=[Odd(number) for number in range(6)])

    first, state = broken_off(make, 1)
    assert first + list(resumed(make, state)) == [[0, 1], [2, 3], [4, 5]]


def test_a_state_of_an_older_version_is_refused():
    _, state = broken_off(loader, 1)
    with pytest.raises(ValueError, match="version is 2 in the state and 3 here$"):
        loader().load_state_dict({**state, "version": 2})


def test_a_custom_sampler_may_change_its_length():
    _, state = broken_off(lambda: loader(sampler=Shrinking(6)), 1)
    again = resumed(lambda: loader(sampler=Shrinking(9)), state)
    assert list(again) == [[3, 4, 5], [6, 7, 8]]


# With PyTorch's random orders.


@pytest.mark.frameworks
def test_a_state_of_another_order_is_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no random orders")
    _, state = broken_off(functools.partial(loader, shuffle=True), 2)
    with pytest.raises(
        ValueError, match="sampler is 'RandomSampler' in the state and 'sequential' here"
    ):
        resumed(loader, state)
    _, state = broken_off(loader, 2)
    with pytest.raises(
        ValueError, match="sampler is 'sequential' in the state and 'RandomSampler' here"
    ):
        resumed(functools.partial(loader, shuffle=True), state)
    data = torch.utils.data

    def of_rank(rank):
        return loader(sampler=data.DistributedSampler(range(23), num_replicas=2, rank=rank))

    _, state = broken_off(functools.partial(of_rank, 0), 2)
    with pytest.raises(ValueError, match="'DistributedSampler of rank 0 of 2' in the state"):
        resumed(functools.partial(of_rank, 1), state)
    more = functools.partial(data.RandomSampler, range(23), replacement=True)
    _, state = broken_off(lambda: loader(sampler=more(num_samples=40)), 2)
    with pytest.raises(ValueError, match="sampler_length is 40 in the state and 50 here"):
        resumed(lambda: loader(sampler=more(num_samples=50)), state)


@pytest.mark.frameworks
def test_the_epoch_of_a_distributed_sampler_is_restored():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no such sampler")

    def make(epoch=0, batched=False, **settings):
        given = {"num_replicas": 2, "rank": 1, **settings}
        sampler = torch.utils.data.DistributedSampler(range(23), **given)
        sampler.set_epoch(epoch)
        if batched:
            batches = torch.utils.data.BatchSampler(sampler, 3, False)
            return loader(batch_size=1, batch_sampler=batches)
        return loader(sampler=sampler)

    for batched in (False, True):
        first, state = broken_off(lambda batched=batched: make(3, batched), 2)
        again = resumed(lambda batched=batched: make(0, batched), state)
        assert first + list(again) == list(make(3, batched))
        for other in ({"seed": 1}, {"shuffle": False}):
            with pytest.raises(ValueError, match="sampler_settings is"):
                resumed(lambda batched=batched, other=other: make(3, batched, **other), state)


@pytest.mark.frameworks
def test_a_state_of_other_weights_or_of_another_subset_is_refused_within_the_epoch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no such samplers")
    data = torch.utils.data

    def weighted(most=5, replacement=True):
        weights = [float(1 + number % most) for number in range(23)]
        return loader(sampler=data.WeightedRandomSampler(weights, 9, replacement))

    def subset(first=0):
        return loader(sampler=data.SubsetRandomSampler(range(first, first + 9)))

    for one, other in [
        (weighted, lambda: weighted(4)),
        (subset, lambda: subset(1)),
    ]:
        _, state = broken_off(one, 1)
        with pytest.raises(ValueError, match="indices or weights differ from those"):
            iter(resumed(other, state))
    _, state = broken_off(weighted, 1)
    with pytest.raises(
        ValueError, match="replacement=True' in the state and 'sampler.replacement=F"
    ):
        resumed(lambda: weighted(replacement=False), state)


def shuffled(torch, kind, **arguments):
    dataset = range(23)
    if kind == "default":
        return loader(dataset, shuffle=True, **arguments)
    generator = torch.Generator().manual_seed(4)
    if kind == "generator":
        return loader(dataset, shuffle=True, generator=generator, **arguments)
    if kind == "weighted":
        weights = [float(1 + number % 5) for number in dataset]
        sampler = torch.utils.data.WeightedRandomSampler(weights, 31)
    elif kind == "subset":
        sampler = torch.utils.data.SubsetRandomSampler(list(range(2, 20)), generator=generator)
    else:
        sampler = torch.utils.data.RandomSampler(
            dataset, replacement=True, num_samples=90, generator=generator
        )
    return loader(dataset, sampler=sampler, **arguments)


@pytest.mark.frameworks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["default", "generator", "weighted", "subset", "replacement"])
def test_random_orders_resume_in_this_epoch_and_the_next(kind, workers):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no random orders")
    draw = random.Random(f"{kind}{workers}")

    def make():
        return shuffled(torch, kind, num_workers=workers)

    for seed in range(6):
        torch.manual_seed(seed)
        source = make()
        epochs = [list(source) for _ in range(3)]
        assert epochs[0] != epochs[1]

        # Interrupted in the second epoch. Resumed in another loader, with the state of PyTorch's
        # default generator that a checkpoint restores.
        torch.manual_seed(seed)
        source = make()
        assert list(source) == epochs[0]
        last = len(epochs[1])
        at = {0: 0, 1: last}.get(seed, draw.randint(0, last))
        batches = iter(source)
        first = [next(batches) for _ in range(at)]
        file = io.BytesIO()
        torch.save({"loader": source.state_dict(), "torch": torch.get_rng_state()}, file)
        torch.manual_seed(1000 + seed)
        file.seek(0)
        checkpoint = torch.load(file, weights_only=False)
        again = resumed(make, checkpoint["loader"])
        torch.set_rng_state(checkpoint["torch"])
        assert first + list(again) == epochs[1]
        assert list(again) == epochs[2]


@pytest.mark.frameworks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["default", "generator"])
def test_random_orders_resume_after_the_end_of_an_epoch(kind, workers):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no random orders")

    def make():
        return shuffled(torch, kind, num_workers=workers, persistent_workers=workers > 0)

    torch.manual_seed(2)
    source = make()
    list(source)
    state, numbers = stored(source.state_dict()), torch.get_rng_state()
    following = [list(source), list(source)]
    again = resumed(make, state)
    torch.set_rng_state(numbers)
    assert [list(again), list(again)] == following


@pytest.mark.frameworks
def test_a_prefetched_random_order_is_kept_without_workers():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no random orders")
    torch.manual_seed(2)
    source = shuffled(torch, "default", num_workers=2)
    batches = iter(source)
    state = stored(source.state_dict())
    assert state["_num_yielded"] == 0 and state["_sampler_iter_yielded"] == 4
    torch.manual_seed(3)
    assert list(resumed(lambda: shuffled(torch, "default"), state)) == list(batches)


@pytest.mark.frameworks
def test_an_order_without_drawn_indices_is_drawn_normally():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no random orders")
    torch.manual_seed(2)
    source = shuffled(torch, "default")
    batches = iter(source)
    state, numbers = stored(source.state_dict()), torch.get_rng_state()
    epochs = [list(batches), list(source)]
    again = resumed(lambda: shuffled(torch, "default", num_workers=2), state)
    torch.set_rng_state(numbers)
    assert [list(again), list(again)] == epochs


@pytest.mark.frameworks
def test_a_resume_does_not_change_pytorchs_default_generator():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no random orders")
    torch.manual_seed(2)
    first, state = broken_off(lambda: loader(shuffle=True), 3)
    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    rest = list(resumed(lambda: loader(shuffle=True), state))
    assert torch.rand(4).tolist() == expected
    assert sorted(itertools.chain(*first, *rest)) == list(range(23))


@pytest.mark.frameworks
def test_states_are_used_like_those_of_torchdata():
    """The same program with both: save after some batches, resume in a new loader."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = pytest.importorskip(
        "torchdata.stateful_dataloader",
        reason="torchdata is not installed: nothing to compare with",
    )

    def program(loader_class, dataset, at, workers):
        make = {"batch_size": 3, "collate_fn": list, "num_workers": workers}
        source = loader_class(dataset, **make)
        got = []
        for number, batch in enumerate(source):
            if number == at:
                break
            got.append(batch)
        state = source.state_dict()
        source = loader_class(dataset, **make)
        source.load_state_dict(state)
        return got, list(source), list(source), state["_iterator_finished"]

    for at, workers in [(0, 0), (3, 0), (3, 2), (100, 0), (100, 2)]:
        expected = program(theirs.StatefulDataLoader, list(range(23)), at, workers)
        assert program(DataLoader, list(range(23)), at, workers) == expected


class ForgetfulSampler:
    """`state_dict` fails once, after the third number."""

    def __init__(self):
        self.at, self.forgets = 0, True

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        if self.at == 3 and self.forgets:
            self.forgets = False
            raise OSError("forgotten")
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_state_dict_of_a_sampler_loses_no_batch(workers):
    source = loader(range(6), None, int, sampler=ForgetfulSampler(), num_workers=workers)
    batches = iter(source)
    assert [next(batches), next(batches)] == [0, 1]
    # Raised in order and repeatedly: the next batch would be left out.
    for _ in range(2):
        with pytest.raises(OSError, match="forgotten"):
            next(batches)
    source.load_state_dict(stored(source.state_dict()))
    assert list(source) == [2, 3, 4, 5]
