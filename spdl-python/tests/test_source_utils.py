"""Combined sources: merged, shuffled before each epoch, repeated."""

import itertools
import json
import logging
import pickle
import random
from collections import Counter

import pytest
from spdl_rs.source import (
    DistributedDeterministicSampler,
    DistributedRandomSampler,
    IterableWithShuffle,
    SizedIterable,
    SizedIterableWithShuffle,
)
from spdl_rs.source.local_directory import LocalDirectory
from spdl_rs.source.utils import MergeIterator, embed_shuffle, repeat_source


class Letters:
    def __init__(self):
        self.seeds = []

    def shuffle(self, seed):
        self.seeds.append(seed)

    def __iter__(self):
        return iter("abc")


def sampler(n=10):
    return DistributedRandomSampler(n, rank=0, world_size=1)


def test_q03_protocols_work_with_isinstance():
    shuffled, fixed = sampler(), DistributedDeterministicSampler(4, rank=0, world_size=1)
    protocols = [IterableWithShuffle, SizedIterable, SizedIterableWithShuffle]

    def kinds(value):
        return [isinstance(value, protocol) for protocol in protocols]

    assert kinds(shuffled) == [True, True, True]
    assert kinds(fixed) == [False, True, False]
    assert kinds(LocalDirectory(".", "*.none")) == [True, True, True]
    assert kinds(Letters()) == [True, False, False]
    assert kinds(iter([])) == [False, False, False]
    assert kinds(3) == [False, False, False]


def test_q03_protocols_can_be_base_classes():
    class Numbers(IterableWithShuffle[int]):
        def __iter__(self):
            return iter([1, 2])

    numbers = Numbers()
    numbers.shuffle(seed=3)
    assert list(numbers) == [1, 2] and isinstance(numbers, IterableWithShuffle)
    assert not isinstance(numbers, SizedIterableWithShuffle)


def test_q04_exhausted_iterables_are_no_longer_drawn():
    parts = [range(10), range(100, 140), range(200, 201)]
    for weights in [None, [1, 1, 1], [5, 1, 100]]:
        assert sorted(MergeIterator(parts, weights=weights)) == sorted(itertools.chain(*parts))


def test_q04_an_iterable_of_weight_0_is_never_iterated():
    def broken():
        raise AssertionError("begun")
        yield

    assert list(MergeIterator([broken(), "ab"], weights=[0, 1])) == ["a", "b"]


def test_q04_draws_follow_the_weights():
    parts = [itertools.repeat(at) for at in range(3)]
    counted = Counter(MergeIterator(parts, weights=[6, 3, 1], stop_after=20_000))
    # 0.01 is three standard deviations.
    shares = [counted[at] / 20_000 for at in range(3)]
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.0125)


def test_q04_weights_of_very_different_size_are_exact():
    # With floating-point draws, the second would never be drawn.
    parts = [itertools.repeat(at) for at in range(3)]
    weights = [1e300, 1e300, 1e-300]
    counted = Counter(MergeIterator(parts, weights=weights, stop_after=2000, seed=1))
    assert counted[2] == 0 and 800 < counted[0] < 1200


def test_q04_no_item_is_requested_after_the_last_one():
    for weights in [None, [1, 1]]:
        requested = []

        def letters(name, requested=requested):
            for number in range(10):
                requested.append(name)
                yield number

        list(MergeIterator([letters("a"), letters("b")], weights=weights, stop_after=4))
        assert len(requested) == 4


def test_q04_stop_after_minus_1_ends_at_the_first_exhaustion():
    assert list(MergeIterator(["ab", "ABC"], stop_after=-1)) == ["a", "A", "b", "B"]
    drawn = list(MergeIterator(["ab", range(1000)], weights=[1, 1], stop_after=-1))
    assert len(drawn) < 1000 and {"a", "b"} <= set(drawn)


@pytest.mark.parametrize(
    ("parts", "arguments", "error", "words"),
    [
        ([], {}, ValueError, "iterables must not be empty"),
        (["a"], {"stop_after": -2}, ValueError, "stop_after must be -1 to"),
        (["a"], {"stop_after": 1.5}, TypeError, "stop_after must be a whole number"),
        (["a"], {"weights": [1, 2]}, ValueError, "weights must have 1 values, not 2"),
        (["a", "b"], {"weights": [3, -1]}, ValueError, "not -1.0"),
        (
            ["a"],
            {"weights": [float("inf")]},
            ValueError,
            "weights must be finite and non-negative, not inf",
        ),
        (["a"], {"weights": [float("nan")]}, ValueError, "not nan"),
        (["a"], {"weights": ["x"]}, ValueError, "weights must be finite and non-negative numbers"),
        (["a"], {"weights": [10**400]}, ValueError, "weights must be finite and non-negative numbers"),
        (["a", "b"], {"weights": [0, 0]}, ValueError, "sum of weights"),
        (["a", "b"], {"weights": [1e308, 1e308]}, ValueError, "sum of weights"),
    ],
)
def test_q04_invalid_arguments_raise(parts, arguments, error, words):
    with pytest.raises(error, match=words):
        MergeIterator(parts, **arguments)


def test_q04_a_merged_source_can_be_pickled():
    merged = MergeIterator(["aaa", "bbb"], weights=[1, 2], seed=4)
    assert list(pickle.loads(pickle.dumps(merged))) == list(merged)


def test_q05_the_length_is_that_of_the_source():
    assert len(embed_shuffle(sampler(7))) == 7
    with pytest.raises(TypeError, match="Letters has no length"):
        len(embed_shuffle(Letters()))


def test_q05_a_source_without_shuffle_is_refused():
    with pytest.raises(TypeError, match="list has no method shuffle"):
        embed_shuffle([1, 2])
    with pytest.raises(ValueError, match="epoch must be 0 to"):
        embed_shuffle(Letters(), epoch=-1)
    with pytest.raises(TypeError, match="shuffle_last must be True or False"):
        embed_shuffle(Letters(), shuffle_last=1)


@pytest.mark.parametrize(("seconds", "warned"), [(2.9, False), (3.1, True)])
def test_q05_slow_shuffling_is_logged(seconds, warned, monkeypatch, caplog):
    times = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr("spdl_rs.source._epochs.time.monotonic", lambda: next(times))
    list(embed_shuffle(Letters()))
    messages = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert messages == (["Shuffling for epoch 0 took 3.10 seconds."] if warned else [])
    assert {record.name for record in caplog.records} <= {"spdl_rs.source.utils"}


def test_q05_each_pass_has_the_next_epoch():
    source = embed_shuffle(sampler(), epoch=4)
    for epoch in [4, 5, 6]:
        assert list(source) == list(DistributedRandomSampler(10, rank=0, world_size=1, seed=epoch))
    copy = pickle.loads(pickle.dumps(source))
    assert list(copy) == list(source)


@pytest.mark.parametrize("shuffle_last", [False, True])
def test_q08_a_shuffled_source_resumes_exactly(shuffle_last):
    def make():
        return embed_shuffle(sampler(), shuffle_last=shuffle_last, epoch=3)

    source = make()
    whole = [list(source) for _ in range(3)]
    for epoch, taken in itertools.product(range(3), range(11)):
        source = make()
        for _ in range(epoch):
            list(source)
        iterator = iter(source)
        list(itertools.islice(iterator, taken))
        state = json.loads(json.dumps(source.state_dict()))
        again = make()
        again.load_state_dict(state)
        found = [list(again) for _ in range(3 - epoch)]
        assert found == [whole[epoch][taken:], *whole[epoch + 1 :]]


@pytest.mark.parametrize("make", [embed_shuffle, repeat_source])
def test_q08_a_loaded_state_replaces_the_current_epoch(make):
    whole = list(make(sampler(), epoch=3))[:10] if make is embed_shuffle else None
    source, again = make(sampler(), epoch=3), make(sampler())
    iterator = iter(source)
    head = [next(iterator) for _ in range(4)]
    next(iter(again))
    again.load_state_dict(source.state_dict())
    assert again.state_dict() == source.state_dict()
    rest = list(itertools.islice(again, 6))
    assert sorted(head + rest) == list(range(10)) and whole in (None, head + rest)


def test_q08_only_the_resumed_epoch_may_be_empty():
    class Once(Letters):
        def __iter__(self):
            return iter("abc" if len(self.seeds) == 2 else "")

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    source = repeat_source(Once())
    source.load_state_dict({"version": 1, "epoch": 4, "source": {}})
    assert list(itertools.islice(source, 3)) == ["a", "b", "c"] and source.src.seeds == [4, 5]
    with pytest.raises(RuntimeError, match="epoch 6 of the source has no items"):
        next(source)


def test_q08_a_finished_epoch_is_followed_by_the_next():
    source = embed_shuffle(sampler())
    list(source)
    again = embed_shuffle(sampler())
    again.load_state_dict(source.state_dict())
    assert list(again) == list(source)


def test_q06_the_rate_of_each_epoch_is_logged(monkeypatch, caplog):
    times = itertools.count(step=2.0)
    monkeypatch.setattr("spdl_rs.source._epochs.time.monotonic", lambda: next(times))
    with caplog.at_level(logging.INFO, logger="spdl_rs.source.utils"):
        list(itertools.islice(repeat_source("abc", 7), 4))
    assert [record.getMessage() for record in caplog.records] == [
        "Epoch 7 of the source started.",
        "Epoch 7 of the source ended: 3 items in 2.00 seconds. QPS: 1.50",
        "Epoch 8 of the source started.",
    ]


def test_q06_it_can_be_pickled_before_it_starts():
    source = repeat_source(sampler(4), epoch=2)
    copy = pickle.loads(pickle.dumps(source))
    assert list(itertools.islice(copy, 9)) == list(itertools.islice(source, 9))
    with pytest.raises(ValueError, match="cannot pickle a repeated source"):
        pickle.dumps(source)


def test_q06_an_empty_epoch_raises():
    with pytest.raises(RuntimeError, match="epoch 0 of the source has no items"):
        next(repeat_source([]))
    once = repeat_source(iter("ab"))
    assert [next(once), next(once)] == ["a", "b"]
    with pytest.raises(RuntimeError, match="epoch 1 .* more than once, not an iterator"):
        next(once)
    with pytest.raises(ValueError, match="epoch must be 0 to"):
        repeat_source("ab", -1)


@pytest.mark.parametrize("kind", [DistributedRandomSampler, DistributedDeterministicSampler])
def test_q08_a_repeated_source_resumes_exactly(kind):
    def make():
        return repeat_source(kind(5, rank=0, world_size=1), epoch=1)

    whole = list(itertools.islice(make(), 30))
    for taken in range(12):
        source = make()
        list(itertools.islice(source, taken))
        again = make()
        again.load_state_dict(json.loads(json.dumps(source.state_dict())))
        assert list(itertools.islice(again, 10)) == whole[taken : taken + 10]


@pytest.mark.parametrize("make", [embed_shuffle, repeat_source])
def test_q08_invalid_states_are_refused(make):
    state = make(sampler()).state_dict()
    for source in [make(Letters()).state_dict, lambda: make(Letters()).load_state_dict(state)]:
        with pytest.raises(TypeError, match="Letters cannot resume"):
            source()
    for wrong, error in [
        ([], TypeError),
        ({}, ValueError),
        ({**state, "version": 2}, ValueError),
        ({**state, "epoch": -1}, ValueError),
        ({**state, "source": sampler(11).state_dict()}, ValueError),
        ({**state, "source": 3}, TypeError),
    ]:
        source = make(sampler())
        with pytest.raises(error):
            source.load_state_dict(wrong)
        assert source.state_dict() == state


def test_q04_random_draws_do_not_change_the_global_generator():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    list(MergeIterator(["abc", "def"], weights=[1, 1]))
    assert random.random() == expected
