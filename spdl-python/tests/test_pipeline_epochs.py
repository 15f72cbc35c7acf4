"""Feature group E: epochs of continuous sources."""

import asyncio
import random
import time

import pytest
from pipelines import build, identity, run, source
from spdl_rs.source.utils import embed_shuffle


def test_e01_each_loop_runs_one_epoch_of_a_continuous_source():
    passes = []

    class Numbers:
        def __iter__(self):
            passes.append(len(passes))
            return iter([passes[-1] * 10, passes[-1] * 10 + 1])

    pipeline = build(source(Numbers(), continuous=True).pipe(identity))
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[0, 1], [10, 11], [20, 21]]
        assert pipeline.get_item() == 30


@pytest.mark.parametrize("items", [iter([1, 2]), []])
def test_e01_an_exhausted_continuous_source_causes_a_warning(items):
    pipeline = build(source(items, continuous=True))
    with pipeline.auto_stop():
        list(pipeline)
        with pytest.warns(UserWarning, match="its source is empty or can be iterated only once$"):
            assert [list(pipeline), list(pipeline)] == [[], []]


def test_e01_get_item_raises_eof_error_after_each_epoch():
    pipeline = build(source("ab", continuous=True))
    with pipeline.auto_stop():
        for _ in range(2):
            assert [pipeline.get_item(), pipeline.get_item()] == ["a", "b"]
            with pytest.raises(EOFError):
                pipeline.get_item()


def test_e01_an_iterator_stays_exhausted_after_its_epoch():
    pipeline = build(source("ab", continuous=True))
    with pipeline.auto_stop():
        iterator = iter(pipeline)
        assert list(iterator) == ["a", "b"]
        assert next(iterator, None) is None


def test_e01_a_continuous_source_without_items_ends():
    assert run(source([], continuous=True)) == []


def test_e01_an_async_source_may_be_continuous():
    class Numbers:
        async def __aiter__(self):
            for number in range(2):
                await asyncio.sleep(0)
                yield number

    pipeline = build(source(Numbers(), continuous=True))
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[0, 1]] * 3


@pytest.mark.parametrize("concurrency", [1, 3])
def test_e02_epochs_never_mix(concurrency):
    class Numbers:
        epoch = -1

        def __iter__(self):
            self.epoch += 1
            return iter([(self.epoch, number) for number in range(7)])

    def jitter(item):
        time.sleep(0.002 * (item[1] % 3))
        return item

    async def jitter_async(item):
        await asyncio.sleep(0.002 * (item[1] % 2))
        return item

    builder = source(Numbers(), continuous=True).pipe(jitter, concurrency=concurrency)
    builder = builder.pipe(jitter_async, concurrency=concurrency).aggregate(3)
    pipeline = build(builder)
    with pipeline.auto_stop():
        for epoch in range(4):
            batches = list(pipeline)
            assert [len(batch) for batch in batches] == [3, 3, 1]
            assert sorted(sum(batches, [])) == [(epoch, number) for number in range(7)]


class Cards:
    """A source whose order depends on the last call of `shuffle`."""

    def __init__(self, count=20):
        self.order = list(range(count))
        self.seeds = []

    def __len__(self):
        return len(self.order)

    def shuffle(self, seed):
        self.seeds.append(seed)
        self.order = shuffled(len(self.order), seed)

    def __iter__(self):
        return iter(self.order)


def shuffled(count, seed):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@pytest.mark.parametrize("epoch", [0, 5])
def test_e04_each_epoch_has_the_order_of_its_number(epoch):
    cards = Cards()
    builder = source(embed_shuffle(cards, epoch=epoch), continuous=True)
    pipeline = build(builder.pipe(identity, concurrency=3, output_order="input"))
    with pipeline.auto_stop():
        found = [list(pipeline) for _ in range(4)]
    assert found == [shuffled(20, epoch + number) for number in range(4)]
    assert len({tuple(order) for order in found}) == 4
    assert cards.seeds[:4] == [epoch, epoch + 1, epoch + 2, epoch + 3]


def test_e04_shuffle_last_shuffles_after_each_pass():
    builder = source(embed_shuffle(Cards(), shuffle_last=True), continuous=True)
    pipeline = build(builder.pipe(identity))
    with pipeline.auto_stop():
        found = [list(pipeline) for _ in range(3)]
    assert found == [list(range(20)), shuffled(20, 0), shuffled(20, 1)]


def test_e04_a_source_may_change_its_order_per_pass():
    class Numbers:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(shuffled(20, self.passes))

    pipeline = build(source(Numbers(), continuous=True).aggregate(8))
    with pipeline.auto_stop():
        found = [sum(pipeline, []) for _ in range(3)]
    assert found == [shuffled(20, number) for number in (1, 2, 3)]
