"""Group E of the features: epochs of continuous sources."""

import asyncio
import time

import pytest
from pipelines import build, identity, run, source


def test_e01_each_loop_is_an_epoch_of_a_continuous_source():
    passes = []

    class Numbers:
        def __iter__(self):
            passes.append(len(passes))
            return iter([passes[-1] * 10, passes[-1] * 10 + 1])

    pipeline = build(source(Numbers(), continuous=True).pipe(identity))
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[0, 1], [10, 11], [20, 21]]
        assert pipeline.get_item() == 30


def test_e01_get_item_tells_the_end_of_an_epoch_by_eof_and_goes_on():
    pipeline = build(source("ab", continuous=True))
    with pipeline.auto_stop():
        for _ in range(2):
            assert [pipeline.get_item(), pipeline.get_item()] == ["a", "b"]
            with pytest.raises(EOFError):
                pipeline.get_item()


def test_e01_an_iterator_whose_epoch_has_ended_stays_at_its_end():
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
