"""Feature groups C and M: concurrency, executors, merges and paths."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import threading
import time

import pytest
from pipelines import (
    Counter,
    assert_no_threads,
    build,
    identity,
    refuse,
    run,
    source,
    wait_until,
)
from spdl_rs.pipeline import PipelineFailure, build_pipeline, is_eof, is_epoch_end
from spdl_rs.pipeline.defs import (
    Aggregate,
    Disaggregate,
    Merge,
    PathVariants,
    Pipe,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
)


def slow_source(made, seconds=0.001, count=1000):
    """A source that is slower than the time for which sources are read ahead."""
    for number in range(count):
        made.append(number)
        yield number
        time.sleep(seconds)


def test_c01_queues_between_stages_are_bounded():
    made, gate = [], threading.Event()

    def wait(item):
        assert gate.wait(20)
        return item

    pipeline = build(source(slow_source(made, count=40)).pipe(identity).pipe(identity).pipe(wait))
    with pipeline.auto_stop():
        wait_until(lambda: len(made) >= 6)
        time.sleep(0.2)
        # Two items in each of four queues, and one in each of five stages.
        assert len(made) <= 16
        gate.set()
        assert list(pipeline) == list(range(40))


def test_c02_completion_order_delivers_fast_items_first():
    gate = threading.Event()

    def wait_for_first(item):
        if item == 0:
            assert gate.wait(20)
        return item

    async def wait_for_first_async(item):
        while item == 0 and not gate.is_set():
            await asyncio.sleep(0.001)
        return item

    for op in (wait_for_first, wait_for_first_async):
        gate.clear()
        pipeline = build(source(range(20)).pipe(op, concurrency=2), num_threads=3)
        with pipeline.auto_stop():
            assert [pipeline.get_item(timeout=20) for _ in range(19)] == list(range(1, 20))
            gate.set()
            assert pipeline.get_item(timeout=20) == 0


def test_c02_concurrency_is_reached_and_not_exceeded():
    for concurrency in (1, 3):
        counter = Counter(0.01)
        run(source(range(30)).pipe(counter, concurrency=concurrency), num_threads=4)
        assert (counter.most, counter.calls) == (concurrency, 30)


def test_c03_output_order_input_keeps_the_order():
    def jitter(item):
        time.sleep(0.005 if item % 4 == 0 else 0)
        return refuse(item) if item == 7 else None if item == 9 else item

    async def jitter_async(item):
        await asyncio.sleep(0.005 if item % 4 == 0 else 0)
        return refuse(item) if item == 7 else None if item == 9 else item

    expected = [item for item in range(24) if item not in (7, 9)]
    for op in (jitter, jitter_async):
        builder = source(range(24)).pipe(op, concurrency=4, output_order="input")
        assert run(builder, num_threads=4) == expected


def test_c04_functions_run_on_worker_threads():
    def thread(_):
        time.sleep(0.005)
        return threading.current_thread().name

    names = set(run(source(range(20)).pipe(thread, concurrency=4), num_threads=2))
    assert names == {"spdl_worker_thread_0", "spdl_worker_thread_1"}


def pid(_):
    return os.getpid()


def count_down(number):
    yield from range(number, 0, -1)


def refuse_in_process(item):
    raise LookupError(f"no {item}")


def test_c05_a_thread_pool_of_the_user_is_not_shut_down():
    with concurrent.futures.ThreadPoolExecutor(2, "mine") as executor:
        for _ in range(2):
            builder = source(range(8)).pipe(
                lambda _: threading.current_thread().name, executor=executor, concurrency=2
            )
            assert all(name.startswith("mine") for name in run(builder))
        builder = source([3]).pipe(count_down, executor=executor).pipe(identity)
        assert run(builder) == [3, 2, 1]
        assert executor.submit(int, "3").result() == 3
    assert_no_threads()


def test_c05_stages_on_an_executor_use_their_own_concurrency():
    counter = Counter(0.01)
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        builder = source(range(24)).pipe(counter, executor=executor, concurrency=3)
        assert sorted(run(builder, num_threads=1)) == list(range(24))
    assert counter.most == 3


def test_c05_a_process_pool_runs_functions_and_generators():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        assert set(run(source(range(4)).pipe(pid, executor=executor))) != {os.getpid()}
        assert run(source([2, 3]).pipe(count_down, executor=executor)) == [2, 1, 3, 2, 1]
        with pytest.raises(PipelineFailure) as raised:
            run(source([1]).pipe(refuse_in_process, executor=executor), max_failures=0)
        (error,) = raised.value.exceptions
        assert type(error) is LookupError and error.args == ("no 1",)


def test_c05_stop_cancels_queued_executor_calls(caplog):
    entered, gate = threading.Event(), threading.Event()
    calls = []

    def block(item):
        calls.append(item)
        entered.set()
        assert gate.wait(20)

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        builder = source(range(99)).pipe(block, executor=executor, concurrency=4)
        pipeline = build(builder, max_failures=0)
        pipeline.start()
        assert entered.wait(20)
        threading.Timer(0.1, gate.set).start()
        # Cancelled calls are not failures.
        pipeline.stop(timeout=20)
    # The order of the items is not defined.
    assert len(calls) == 1 and caplog.records == []


def test_c05_a_shut_down_executor_fails_the_items():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(PipelineFailure) as raised:
        run(source().pipe(identity, executor=executor), max_failures=0)
    assert type(raised.value.exceptions[0]) is RuntimeError


def test_c08_coroutines_run_concurrently_on_one_event_loop():
    loops, now, most = set(), 0, 0

    async def wait(item):
        nonlocal now, most
        loops.add((asyncio.get_running_loop(), threading.current_thread().name))
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return item

    builder = source(range(40)).pipe(wait, concurrency=20).pipe(wait, concurrency=1)
    assert sorted(run(builder, num_threads=1)) == list(range(40))
    ((_, name),) = loops
    assert name == "spdl_event_loop_thread"
    assert most in (20, 21)


def test_c08_without_async_functions_there_is_no_event_loop():
    pipeline = build(source().pipe(identity))
    with pipeline.auto_stop():
        names = {thread.name for thread in threading.enumerate()}
        assert "spdl_event_loop_thread" not in names


def test_c08_a_cancelled_coroutine_fails_the_item():
    async def cancel(item):
        raise asyncio.CancelledError

    with pytest.raises(PipelineFailure) as raised:
        run(source([1]).pipe(cancel), max_failures=0)
    assert type(raised.value.exceptions[0].__cause__) is asyncio.CancelledError


def test_c09_stop_closes_unfinished_generators():
    closed = []

    def source_numbers():
        try:
            yield from range(1000)
        finally:
            closed.append("source")

    def forever(item):
        try:
            while True:
                yield item
        finally:
            closed.append("op")

    async def forever_async(item):
        try:
            while True:
                yield item
                await asyncio.sleep(0)
        finally:
            closed.append("async op")

    async def async_numbers():
        try:
            while True:
                yield 0
                await asyncio.sleep(0)
        finally:
            closed.append("async source")

    for items, op in [(source_numbers(), forever), (async_numbers(), forever_async)]:
        pipeline = build(source(items).pipe(op))
        pipeline.get_item(timeout=20)
        pipeline.stop()
    assert sorted(closed) == ["async op", "async source", "op", "source"]


def test_c09_disaggregated_generators_are_closed():
    closed = []

    def forever():
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    held = forever()
    pipeline = build(source([held]).disaggregate())
    pipeline.get_item(timeout=20)
    pipeline.stop()
    assert closed == [True]


def config(items, *pipes, continuous=False):
    return PipelineConfig(SourceConfig(items, continuous), pipes, SinkConfig(1))


def merged(configs, *pipes, **options):
    whole = PipelineConfig(Merge(configs), pipes, SinkConfig(3))
    return build_pipeline(whole, num_threads=2, **options)


def test_m01_a_merge_emits_items_in_arrival_order():
    pipeline = merged([config([1, 2], Pipe(str)), config([3])], Pipe(lambda item: (item,)))
    assert sorted(pipeline, key=str) == [("1",), ("2",), (3,)]


def test_m01_branches_do_not_wait_for_each_other():
    gate = threading.Event()

    def late():
        assert gate.wait(20)
        yield "late"

    pipeline = merged([config(late()), config("ab")])
    with pipeline.auto_stop():
        assert [pipeline.get_item(timeout=20) for _ in range(2)] == ["a", "b"]
        gate.set()
        assert pipeline.get_item(timeout=20) == "late"


def test_m01_merges_nest():
    inner = PipelineConfig(Merge([config([1]), config([2])]), [Aggregate(2)], SinkConfig(1))
    assert sorted(merged([inner, config([[3]])], Disaggregate())) == [1, 2, 3]


def test_m01_an_empty_merge_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        Merge([])


def test_m01_a_failing_source_fails_the_merge():
    def broken():
        yield 1
        raise LookupError("no more")

    pipeline = merged([config(broken()), config(range(3))])
    with pytest.raises(PipelineFailure) as raised:
        list(pipeline)
    assert type(raised.value.exceptions[0]) is LookupError


def test_m02_items_are_not_markers():
    assert not any(is_eof(item) or is_epoch_end(item) for item in (None, 0, "", object()))


def test_m03_a_merge_ends_its_epoch_after_all_branches():
    def branch(numbers):
        return config(numbers, continuous=True)

    pipeline = merged([branch([1, 2, 3]), branch([4])], Aggregate(10))
    with pipeline.auto_stop():
        for _ in range(3):
            assert [sorted(batch) for batch in pipeline] == [[1, 2, 3, 4]]


def test_m03_mixing_continuous_and_finite_sources_is_an_error():
    # A configuration may be created and printed; the pipeline is refused when it is built.
    parts = [config([1]), config([1], continuous=True)]
    for source in (Merge(parts), Merge([PipelineConfig(Merge(parts), [], SinkConfig(1))])):
        mixed = PipelineConfig(source, [], SinkConfig(1))
        assert "MergeConfig(" in repr(mixed)
        with pytest.raises(ValueError, match="Mixed continuous mode is not supported: set continuous"):
            build_pipeline(mixed, num_threads=1)
    with pytest.raises(ValueError, match="at least one upstream pipeline"):
        Merge([])


def negate(number):
    return -number


async def parity_async(number):
    await asyncio.sleep(0)
    return number % 2


@pytest.mark.parametrize("router", [lambda number: number % 2, parity_async])
def test_m04_each_item_takes_the_selected_path(router):
    builder = source(range(6)).path_variants(router, [[Pipe(negate), Pipe(str)], []])
    assert sorted(run(builder), key=str) == ["-2", "-4", "0", 1, 3, 5]


def test_m04_paths_may_drop_multiply_and_nest():
    inner = PathVariants(lambda number: number // 2 % 2, [[Pipe(lambda _: None)], []])
    builder = source(range(6)).path_variants(
        lambda number: number % 2, [[inner], [Pipe(count_down), Aggregate(2)]]
    )
    results = run(builder)
    assert [item for item in results if isinstance(item, int)] == [2]
    assert sum(len(item) for item in results if isinstance(item, list)) == 1 + 3 + 5


@pytest.mark.parametrize("wrong, error", [(2, IndexError), (-1, IndexError), ("a", TypeError)])
def test_m04_an_invalid_path_number_fails_the_pipeline(wrong, error):
    with pytest.raises(PipelineFailure) as raised:
        run(source().path_variants(lambda _: wrong, [[], []]))
    assert type(raised.value.exceptions[0]) is error


@pytest.mark.parametrize("batched", [False, True])
def test_m04_a_failing_router_fails_the_pipeline(batched):
    with pytest.raises(PipelineFailure) as raised:
        run(source([[1]]).path_variants(refuse, [[], []], batched=batched))
    assert type(raised.value.exceptions[0]) is ValueError


@pytest.mark.parametrize("wrong", [[], [[SourceConfig([1])]], [[Pipe(str), SinkConfig(1)]]])
def test_m04_paths_must_be_lists_of_stages(wrong):
    with pytest.raises(ValueError):
        source().path_variants(identity, wrong)
    with pytest.raises(TypeError, match="callable"):
        source().path_variants(3, [[]])


def tenfold(numbers):
    return [number * 10 for number in numbers]


async def parities_async(numbers):
    await asyncio.sleep(0)
    return [number % 2 for number in numbers]


@pytest.mark.parametrize("router", [lambda all: [n % 2 for n in all], parities_async])
def test_m05_batched_routing_keeps_the_list_order(router):
    builder = source(range(7)).aggregate(3)
    builder = builder.path_variants(router, [[Pipe(tenfold)], []], batched=True)
    assert run(builder) == [[0, 1, 20], [3, 40, 5], [60]]


def test_m05_every_path_receives_a_part_of_every_list():
    seen = []

    def look(numbers):
        seen.append(list(numbers))
        return numbers

    builder = source([[1, 2], [3]]).path_variants(
        lambda numbers: [1 for _ in numbers], [[Pipe(look)], []], batched=True
    )
    assert run(builder) == [[1, 2], [3]]
    assert seen == [[], []]


def test_m05_empty_lists_are_dropped():
    builder = source([[1, 2], []]).path_variants(
        lambda numbers: [0 for _ in numbers], [[Pipe(lambda _: None)]], batched=True
    )
    assert run(builder) == []


def test_m05_a_router_must_return_a_number_per_element():
    with pytest.raises(PipelineFailure) as raised:
        run(source([[1, 2]]).path_variants(lambda _: [0], [[], []], batched=True))
    assert type(raised.value.exceptions[0]) is ValueError


def test_m07_a_pipeline_is_a_source_of_another():
    inner = build(source(range(5)).pipe(negate))
    assert run(source(inner).pipe(negate)) == [0, 1, 2, 3, 4]
    inner = build(source(range(3), continuous=True))
    outer = build(source(inner, continuous=True).aggregate(2))
    with outer.auto_stop():
        for _ in range(3):
            assert list(outer) == [[0, 1], [2]]


def test_m07_a_failure_of_the_inner_pipeline_fails_the_outer():
    inner = build(source([1]).pipe(refuse), max_failures=0)
    with pytest.raises(PipelineFailure) as raised:
        run(source(inner))
    (error,) = raised.value.exceptions
    assert type(error) is PipelineFailure and type(error.exceptions[0]) is ValueError
