"""Merge functions of the user."""

import asyncio
import threading

import pytest
from pipelines import assert_no_threads, identity, refuse, wait_until
from spdl_rs.pipeline import PipelineFailure, build_pipeline, is_eof, is_epoch_end
from spdl_rs.pipeline.defs import (
    Aggregate,
    Merge,
    Pipe,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
)


def config(items, *pipes, continuous=False):
    return PipelineConfig(SourceConfig(items, continuous), pipes, SinkConfig(1))


def merged(op, *configs, pipes=(), **options):
    whole = PipelineConfig(Merge(configs, op), pipes, SinkConfig(2))
    return build_pipeline(whole, num_threads=2, **options)


async def in_turn(info, input_queues, output_queue):
    """Forwards one item of each input in turn, until all inputs have ended."""
    left = list(input_queues)
    while left:
        for queue in list(left):
            item = await queue.get()
            if is_eof(item):
                left.remove(queue)
            else:
                await output_queue.put(item)


def test_m02_a_merge_function_defines_the_order():
    pipeline = merged(in_turn, config("ace"), config("bd"), config("x", Pipe(str.upper)))
    assert list(pipeline) == ["a", "b", "X", "c", "d", "e"]
    pipeline.stop()
    assert_no_threads()


def test_m02_a_merge_function_runs_on_the_event_loop_with_stage_info():
    seen = []

    async def op(info, input_queues, output_queue):
        seen.append((str(info).split(":", 1)[1], threading.current_thread().name))
        await in_turn(info, input_queues, output_queue)

    assert list(merged(op, config([1]), pipes=[Pipe(identity)])) == [1]
    assert seen == [("0:merge", "spdl_event_loop_thread")]


def test_m02_merges_nest_and_stages_may_follow():
    inner = PipelineConfig(Merge([config([1, 3]), config([2])], in_turn), (), SinkConfig(1))
    pipeline = merged(in_turn, inner, config([10]), pipes=[Aggregate(3)])
    assert list(pipeline) == [[1, 10, 2], [3]]


def test_m02_an_early_return_stops_the_other_pipelines():
    closed = []

    def endless(name):
        try:
            while True:
                yield name
        finally:
            closed.append(name)

    async def first_two(info, input_queues, output_queue):
        for _ in range(2):
            await output_queue.put(await input_queues[0].get())

    pipeline = merged(first_two, config(endless("a")), config(endless("b")))
    assert list(pipeline) == ["a", "a"]
    wait_until(lambda: sorted(closed) == ["a", "b"])
    assert_no_threads()


def test_m02_an_early_return_of_a_nested_merge_stops_its_inputs():
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield "a"
        finally:
            closed.set()

    def when_closed():
        assert closed.wait(20)
        yield "z"

    async def first(info, input_queues, output_queue):
        await output_queue.put(await input_queues[0].get())

    inner = PipelineConfig(Merge([config(endless())], first), (), SinkConfig(1))
    assert list(merged(in_turn, inner, config(when_closed()))) == ["a", "z"]
    assert_no_threads()


def test_m02_a_failing_merge_function_fails_the_pipeline(caplog):
    async def broken(info, input_queues, output_queue):
        await output_queue.put(await input_queues[0].get())
        raise LookupError("no more")

    items = []
    with pytest.raises(PipelineFailure) as raised:
        for item in merged(broken, config([1, 2, 3])):
            items.append(item)
    assert items == [1]
    assert [type(error) for error in raised.value.exceptions] == [LookupError]
    assert "no more" in caplog.text
    assert_no_threads()


def test_m02_a_failing_input_fails_the_pipeline_after_the_others():
    def broken():
        yield 1
        raise LookupError("no more")

    items = []
    with pytest.raises(PipelineFailure) as raised:
        for item in merged(in_turn, config(broken()), config([2, 3])):
            items.append(item)
    assert items == [1, 2, 3]
    assert [type(error) for error in raised.value.exceptions] == [LookupError]


def test_m02_failures_of_all_inputs_share_one_budget():
    def pipeline(most):
        parts = [config([1, 2], Pipe(refuse)), config([3, 4], Pipe(refuse))]
        return merged(in_turn, *parts, max_failures=most)

    assert list(pipeline(4)) == []
    with pytest.raises(PipelineFailure):
        list(pipeline(3))


def test_m02_a_merge_applies_backpressure():
    made = []

    def count():
        for number in range(1000):
            made.append(number)
            yield number

    pipeline = merged(in_turn, config(count()))
    assert pipeline.get_item(timeout=20) == 0
    most = 0
    for _ in range(20):
        most = max(most, len(made))
        threading.Event().wait(0.01)
    assert most < 300
    pipeline.stop()
    assert_no_threads()


def test_m02_stopping_or_dropping_cancels_the_merge_function():
    for stop in (True, False):
        ended = threading.Event()

        async def for_ever(info, input_queues, output_queue, ended=ended):
            try:
                await output_queue.put(1)
                await asyncio.Event().wait()
            finally:
                ended.set()

        pipeline = merged(for_ever, config([1]))
        assert pipeline.get_item(timeout=20) == 1
        if stop:
            pipeline.stop()
        del pipeline
        assert ended.wait(20)
        assert_no_threads()


def test_m02_stop_ends_an_endless_input_without_items():
    def endless():
        while True:
            yield 1

    def nothing(item):
        return None

    pipeline = merged(in_turn, config("ab"), config(endless(), Pipe(nothing)))
    assert pipeline.get_item(timeout=20) == "a"
    pipeline.stop(timeout=20)
    assert_no_threads()


def test_m02_a_merge_op_must_be_callable():
    with pytest.raises(TypeError, match="merge op"):
        Merge([config([1])], op=3)


def test_m03_a_merge_function_receives_and_sends_epoch_ends():
    async def by_epoch(info, input_queues, output_queue):
        while True:
            for queue in input_queues:
                while not is_epoch_end(item := await queue.get()):
                    if is_eof(item):
                        return
                    await output_queue.put(item)
            await output_queue.put(item)

    parts = [config([1, 2], continuous=True), config([3], continuous=True)]
    pipeline = merged(by_epoch, *parts, pipes=[Aggregate(2)])
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[[1, 2], [3]]] * 3
    assert_no_threads()


@pytest.mark.parametrize("error", [SystemExit("x"), asyncio.CancelledError("x")])
def test_m02_a_base_exception_of_a_merge_function_fails_the_pipeline(error):
    async def op(info, input_queues, output_queue):
        await output_queue.put(await input_queues[0].get())
        raise error

    pipeline = merged(op, config(range(100)), config(range(100)))
    assert pipeline.get_item(timeout=30) == 0
    with pytest.raises(PipelineFailure, match="merge") as raised:
        pipeline.get_item(timeout=30)
    assert raised.value.exceptions[0].__cause__ is error
    pipeline.stop(timeout=30)
    assert_no_threads()
