"""Samplers: the indices of each rank, and resume within an epoch."""

import itertools
import json
import operator
import os
import pickle
import random
import signal
import threading
import time
import warnings

import pytest
import spdl_rs
from spdl_rs.source import DistributedDeterministicSampler as Deterministic
from spdl_rs.source import DistributedRandomSampler as Random

ALONE = {"rank": 0, "world_size": 1}
ALL = {"ddp_drop_last_distributed_round": False}


def quiet(make, *arguments, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make(*arguments, **settings)


def many():
    """Samplers of all kinds, as functions that create equal samplers."""
    generator = random.Random(5)
    for n, world_size, drop in itertools.product([1, 6, 25], [1, 2, 5], [True, False]):
        rank = generator.randrange(world_size)
        where = {"rank": rank, "world_size": world_size, "ddp_drop_last_distributed_round": drop}
        if drop and n < world_size:
            continue
        weights = [generator.random() for _ in range(n)]
        yield lambda n=n, where=where: quiet(Deterministic, n, **where)
        yield lambda n=n, where=where: Random(n, seed=n, **where)
        yield lambda n=n, where=where, weights=weights: Random(
            n, weights=weights, num_draws=3 * n + 2, **where
        )


@pytest.mark.parametrize("kind", [Deterministic, Random])
@pytest.mark.parametrize("n", [4, 7, 12, 103])
def test_q01_q02_ranks_divide_the_items(kind, n):
    for drop in [True, False]:
        where = {"world_size": 4, "ddp_drop_last_distributed_round": drop}
        ranks = [list(quiet(kind, n, rank=rank, **where)) for rank in range(4)]
        lengths = [len(items) for items in ranks]
        assert max(lengths) - min(lengths) <= (0 if drop else 1)
        everything = sorted(itertools.chain(*ranks))
        assert len(everything) == len(set(everything)) == (n // 4 * 4 if drop else n)
        if kind is Deterministic:
            assert everything == list(range(len(everything)))


def test_q01_a_warning_reports_items_that_are_never_visited():
    with pytest.warns(UserWarning, match="the indices of the last 3 are never yielded") as caught:
        Deterministic(11, rank=0, world_size=4)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Deterministic(12, rank=0, world_size=4)
        Deterministic(11, rank=0, world_size=4, **ALL)


def test_q02_an_epoch_depends_only_on_the_seed():
    sampler = Random(50, **ALONE)
    first = list(sampler)
    assert sorted(first) == list(range(50)) and list(sampler) == first
    sampler.shuffle(3)
    third = list(sampler)
    assert third != first and third == list(Random(50, seed=3, **ALONE))
    # Also if epochs overlap.
    sampler.shuffle(0)
    begun = iter(sampler)
    head = [next(begun) for _ in range(10)]
    sampler.shuffle(3)
    assert list(sampler) == third
    assert head + list(begun) == first


def test_q02_an_order_that_does_not_fit_in_memory_raises():
    huge = Random(2**62, **ALONE)
    assert len(huge) == 2**62
    with pytest.raises(spdl_rs.LimitExceededError, match="not enough memory"):
        next(iter(huge))
    # The number of draws counts, not the number of items.
    few = list(Random(2**62, num_draws=10, **ALONE))
    assert len(set(few)) == 10 and max(few) < 2**62


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"n": 0}, ValueError, "n must be 1 to"),
        ({"n": 2**63}, ValueError, "n must be 1 to"),
        ({"n": 4.0}, TypeError, "n must be a whole number"),
        ({"rank": 3}, ValueError, "`rank` must be 0 to 2, not 3"),
        ({"world_size": 0}, ValueError, "`world_size` must be 1 to"),
        ({"world_size": "3"}, TypeError, "`world_size` must be a whole number"),
        ({"world_size": 13}, ValueError, "12 items are fewer than 13 ranks"),
        ({"ddp_drop_last_distributed_round": 1}, TypeError, "must be True or False"),
        ({"num_draws": 13}, ValueError, "num_draws must be 1 to 12"),
        ({"seed": -1}, ValueError, "seed must be 0 to"),
        ({"seed": None}, TypeError, "seed must be a whole number"),
        (
            {"weights": [1] * 11},
            ValueError,
            "weights must have 12 values, one for each item, not 11",
        ),
        ({"weights": 3}, TypeError, "weights must be one number"),
        ({"weights": ["a"] * 12}, TypeError, "weights must be one number"),
        ({"weights": [10**400] * 12}, ValueError, "weights must be finite"),
        ({"weights": [-1.0] * 12}, ValueError, "invalid weight -1 of item 0"),
        ({"weights": [1.0] * 11 + [float("nan")]}, ValueError, "invalid weight NaN of item 11"),
        ({"weights": [0.0] * 12}, ValueError, "the sum of the weights is 0"),
        ({"weights": [1e308] * 12}, ValueError, "the sum of the weights is inf"),
    ],
)
def test_q02_invalid_arguments_raise(arguments, error, words):
    arguments = {"n": 12, "rank": 0, "world_size": 3, **arguments}
    n = arguments.pop("n")
    with pytest.raises(error, match=words):
        Random(n, **arguments)
    if set(arguments) <= {"rank", "world_size", *ALL}:
        with pytest.raises(error, match=words):
            Deterministic(n, **arguments)


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.5, "1", None])
def test_q02_wrong_seeds_and_epochs_are_refused_and_change_nothing(wrong):
    error = TypeError if not isinstance(wrong, int) else ValueError
    sampler, fixed = Random(9, **ALONE), Deterministic(9, **ALONE)
    before = list(sampler)
    for call in [sampler.shuffle, sampler.set_epoch, fixed.set_epoch]:
        with pytest.raises(error):
            call(wrong)
    assert list(sampler) == before
    with pytest.raises(ValueError, match="epoch must be 0 to 5, not 6"):
        Random(9, seed=2**64 - 6, **ALONE).set_epoch(6)


def test_q02_numpy_values_are_accepted():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    weights = numpy.array([1, 2, 3], dtype=numpy.float32)
    sampler = Random(
        numpy.int64(3), rank=numpy.int32(0), world_size=numpy.uint8(1), weights=weights
    )
    assert list(sampler) == list(Random(3, weights=[1, 2, 3], **ALONE))


def test_q02_samplers_can_be_pickled():
    for make in many():
        sampler = make()
        whole = list(sampler)
        begun = iter(sampler)
        next(begun, None)
        copy = pickle.loads(pickle.dumps(sampler))
        # The copy starts a separate epoch, and the original continues.
        assert list(copy) == whole and list(begun) == whole[1:]
        assert copy.state_dict()["position"] == len(whole) == len(copy)
        assert repr(copy) == repr(sampler)


def test_q02_an_iterator_has_a_length_hint():
    indices = iter(Random(9, **ALONE))
    left = [operator.length_hint(indices) for _ in indices]
    assert left == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_q02_threads_that_share_an_iterator_get_different_items():
    sampler = Random(20_000, **ALONE)
    shared, taken = iter(sampler), [[] for _ in range(8)]
    threads = [threading.Thread(target=mine.extend, args=(shared,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*taken)) == list(range(20_000))
    assert sampler.state_dict()["position"] == 20_000


MANY = 5_000_000


def last_index():
    """Returns a sampler with one remaining index of an order of 40 MB, and its iterator."""
    sampler = Random(MANY, **ALONE)
    sampler.load_state_dict({**sampler.state_dict(), "position": MANY - 1})
    return sampler, iter(sampler)


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read in /proc")
def test_q02_the_memory_of_an_order_is_freed_after_its_last_index():
    sampler, indices = last_index()
    next(indices)
    held = resident_bytes()
    assert list(indices) == [] and held - resident_bytes() > 6 * MANY
    assert sampler.state_dict()["position"] == MANY


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no signal.setitimer here")
def test_q02_signals_are_handled_while_an_order_is_computed():
    def pressed(*_):
        raise KeyboardInterrupt

    begun = time.monotonic()
    next(last_index()[1])
    whole = time.monotonic() - begun
    before = signal.signal(signal.SIGALRM, pressed)
    try:
        # The machine may be busy with other programs at that moment.
        for _ in range(10):
            _, indices = last_index()
            begun = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, whole / 20)
            with pytest.raises(KeyboardInterrupt):
                next(indices)
                time.sleep(60)
            if time.monotonic() - begun < whole / 2:
                break
        else:
            pytest.fail(f"signals were handled only after {whole / 2} s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # No index is lost.
    assert indices.position == MANY - 1 and len(list(indices)) == 1


# Q08: upstream has no epochs and no state.


def test_q08_an_epoch_adds_to_the_seed():
    sampler = Random(30, seed=5, **ALONE)
    for epoch in [2, 0, 7]:
        sampler.set_epoch(epoch)
        assert list(sampler) == list(Random(30, seed=5 + epoch, **ALONE))


def test_q08_an_epoch_resumes_exactly_at_its_state():
    for make in many():
        whole = list(make())
        for taken in range(len(whole) + 1):
            sampler = make()
            list(itertools.islice(sampler, taken))
            state = json.loads(json.dumps(sampler.state_dict()))
            assert state == sampler.state_dict() and state["position"] == taken
            again = make()
            again.load_state_dict(state)
            assert again.state_dict() == state
            assert list(again) == whole[taken:]
            # Only once.
            assert list(again) == whole


def test_q08_the_state_has_the_seed():
    sampler = Random(20, **ALONE)
    sampler.shuffle(7)
    seventh = list(sampler)
    list(itertools.islice(sampler, 4))
    again = Random(20, **ALONE)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == seventh[4:]


def test_q08_states_of_states_are_exact():
    sampler = Random(20, **ALONE)
    whole, found = list(sampler), []
    for taken in [3, 0, 5, 11, 1]:
        again = Random(20, **ALONE)
        again.load_state_dict(sampler.state_dict() if found else Random(20, **ALONE).state_dict())
        found += itertools.islice(again, taken)
        sampler = again
    assert found == whole


def test_q08_the_state_belongs_to_the_latest_epoch():
    sampler = Random(20, **ALONE)
    first, second = iter(sampler), iter(sampler)
    next(second)
    list(first)
    assert sampler.state_dict()["position"] == 1
    sampler.shuffle(0)
    # No epoch was started since.
    assert sampler.state_dict()["position"] == 0
    next(second)
    assert sampler.state_dict()["position"] == 0


def test_q08_only_the_epoch_of_the_state_is_resumed():
    for make in many():
        sampler = make()
        sampler.set_epoch(2)
        whole = list(sampler)
        list(itertools.islice(sampler, 3))
        state = sampler.state_dict()
        again = make()
        again.load_state_dict(state)
        again.set_epoch(2)
        assert list(again) == whole[3:]
        again.load_state_dict(state)
        again.set_epoch(3)
        other = make()
        other.set_epoch(3)
        assert list(again) == list(other)
    sampler = Random(9, **ALONE)
    list(sampler)
    state = sampler.state_dict()
    sampler.load_state_dict(state)
    sampler.shuffle(1)
    assert len(list(sampler)) == 9


def test_q08_ranks_at_the_same_position_share_a_state():
    for drop in [True, False]:
        where = {"world_size": 3, "ddp_drop_last_distributed_round": drop}
        ranks = [Random(11, rank=rank, **where) for rank in range(3)]
        wholes = [list(sampler) for sampler in ranks]
        for taken in range(len(wholes[0]) + 1):
            list(itertools.islice(ranks[0], taken))
            state = ranks[0].state_dict()
            for sampler, whole in zip(ranks, wholes, strict=True):
                sampler.load_state_dict(state)
                assert sampler.state_dict() == state
                assert list(sampler) == whole[taken:]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n": 21}, ValueError, "n is 21 in the state and 20 here"),
        ({"world_size": 4}, ValueError, "world_size is 4 in the state and 2 here"),
        ({"num_draws": 19}, ValueError, "num_draws is 19 in the state"),
        ({"weights": None}, ValueError, "weights is None in the state"),
        ({"ddp_drop_last_distributed_round": False}, ValueError, "round is False in the state"),
        ({"sampler": "DistributedDeterministicSampler"}, ValueError, "sampler is 'DistributedDet"),
        ({"version": 2}, ValueError, "version is 2 in the state and 1 here"),
        ({"seed": -1}, ValueError, "seed must be 0 to"),
        ({"seed": None}, TypeError, "seed must be a whole number"),
        ({"position": 11}, ValueError, "position must be 0 to 10, not 11"),
        ({"position": -1}, ValueError, "position must be 0 to 10"),
        ({"position": "3"}, TypeError, "position must be a whole number"),
    ],
)
def test_q08_a_state_of_another_sampler_is_refused_and_changes_nothing(change, error, words):
    sampler = Random(20, rank=0, world_size=2, weights=[1] * 20)
    list(itertools.islice(sampler, 4))
    state = sampler.state_dict()
    with pytest.raises(error, match=words):
        sampler.load_state_dict({**state, **change})
    assert sampler.state_dict() == state
    missing = {key: value for key, value in state.items() if key not in change}
    # `None` stands for a missing key, and for a sampler without weights.
    with pytest.raises((TypeError, ValueError)):
        sampler.load_state_dict(missing)
    with pytest.raises(TypeError, match="state_dict must be a mapping, not list"):
        sampler.load_state_dict([1])


def test_q08_a_state_with_other_weights_is_refused():
    state = Random(3, weights=[1, 2, 3], **ALONE).state_dict()
    with pytest.raises(ValueError, match="weights is"):
        Random(3, weights=[1, 2, 4], **ALONE).load_state_dict(state)
    Random(3, weights=[1, 2, 3], **ALONE).load_state_dict(state)


class Batches:
    """Batches of a sampler, saved and resumed as PyTorch's stateful loaders do it."""

    def __init__(self, sampler, size):
        self.sampler, self.size = sampler, size
        self.indices = iter(sampler)

    def __iter__(self):
        while batch := list(itertools.islice(self.indices, self.size)):
            yield batch

    def load_state_dict(self, state):
        self.sampler.load_state_dict(state)
        self.indices = iter(self.sampler)


@pytest.mark.parametrize("n", [10, 11, 12])
def test_q08_batches_resume_also_after_an_incomplete_one(n):
    whole = list(Batches(Random(n, **ALONE), 4))
    for taken in range(len(whole) + 1):
        batches = Batches(Random(n, **ALONE), 4)
        assert list(itertools.islice(batches, taken)) == whole[:taken]
        again = Batches(Random(n, **ALONE), 4)
        again.load_state_dict(batches.sampler.state_dict())
        assert list(again) == whole[taken:]


@pytest.mark.frameworks
def test_q08_samplers_work_with_pytorchs_loader():
    data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
    sampler = Random(10, rank=1, world_size=2)
    loader = data.DataLoader(range(10), batch_size=2, sampler=sampler)
    assert len(loader) == 3
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = [batch.tolist() for batch in loader]
        expected = list(Random(10, rank=1, world_size=2, seed=epoch))
        assert batches == [expected[:2], expected[2:4], expected[4:]]
