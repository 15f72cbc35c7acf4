"""Hooks around stages and items, and their statistics."""

import asyncio
import contextlib
import logging
import multiprocessing
import queue
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from pipelines import (
    assert_no_threads,
    build,
    identity,
    identity_async,
    refuse,
    refuse_odd,
    run,
    source,
    twice,
    twice_async,
    wait_until,
)
from spdl_rs.pipeline import (
    PipelineBuilder,
    PipelineFailure,
    StageInfo,
    TaskHook,
    TaskStatsHook,
    build_pipeline,
)
from spdl_rs.pipeline._event_loop.supervisor import LoopSupervisor
from spdl_rs.pipeline._hooks.durations import DurationHistogram
from spdl_rs.pipeline._run.supervised_run import SupervisedRun
from spdl_rs.pipeline.defs import Aggregate, Pipe


class Recorder(TaskHook):
    """A hook that records its calls, and fails at the given ones."""

    def __init__(self, events, name="hook", fail_at=()):
        self.events, self.name, self.fail_at = events, name, fail_at

    def note(self, what, *more):
        self.events.append((self.name, what, *more))
        if what in self.fail_at:
            raise OSError(what)

    @asynccontextmanager
    async def stage_hook(self):
        self.note("stage begins")
        yield
        self.note("stage ends")

    @asynccontextmanager
    async def task_hook(self, input_item=None):
        self.note("before", input_item)
        try:
            yield
        except BaseException as error:
            self.note("failed", input_item, type(error))
            raise
        self.note("after", input_item)


def hooked(builder, events, **options):
    return run(builder, task_hook_factory=lambda info: [Recorder(events, **options)])


@pytest.mark.parametrize("op", [identity, identity_async])
def test_s01_hooks_surround_each_item_and_the_stage(op):
    events = []
    assert hooked(source([1, 2]).pipe(op), events) == [1, 2]
    assert [event[1:] for event in events] == [
        ("stage begins",),
        ("before", 1),
        ("after", 1),
        ("before", 2),
        ("after", 2),
        ("stage ends",),
    ]
    assert_no_threads()


@pytest.mark.parametrize("op", [identity, identity_async, twice, twice_async])
def test_s01_stage_hooks_are_entered_before_the_first_item(op):
    events = []

    class Slow(Recorder):
        @asynccontextmanager
        async def stage_hook(self):
            await asyncio.sleep(0.1)
            self.note("stage begins")
            yield

    run(source([1]).pipe(op), task_hook_factory=lambda info: [Slow(events)])
    assert events[0][1] == "stage begins"


@pytest.mark.parametrize("op", [twice, twice_async])
def test_s01_hooks_surround_each_result_and_the_end_of_iteration(op):
    events = []
    assert hooked(source([1]).pipe(op), events) == [1, 1]
    assert [event[1:] for event in events] == [
        ("stage begins",),
        *[("before", 1), ("after", 1)] * 2,
        ("before", 1),
        ("failed", 1, StopAsyncIteration),
        ("stage ends",),
    ]


@pytest.mark.parametrize("op", [twice, twice_async])
def test_s01_a_hook_may_suppress_the_end_of_iteration(op):
    class Swallow(TaskHook):
        @asynccontextmanager
        async def task_hook(self, input_item=None):
            try:
                yield
            except StopAsyncIteration:
                pass

    assert run(source([1, 2]).pipe(op), task_hook_factory=lambda info: [Swallow()]) == [1, 1, 2, 2]


def test_s01_several_hooks_nest_with_the_first_outermost():
    events = []
    hooks = [Recorder(events, "outer"), Recorder(events, "inner")]
    assert run(source([1]).pipe(identity), task_hook_factory=lambda info: hooks) == [1]
    assert [event[:2] for event in events] == [
        ("outer", "stage begins"),
        ("inner", "stage begins"),
        ("outer", "before"),
        ("inner", "before"),
        ("inner", "after"),
        ("outer", "after"),
        ("inner", "stage ends"),
        ("outer", "stage ends"),
    ]


@pytest.mark.parametrize("op", [identity, identity_async])
def test_s01_both_halves_of_a_hook_run_in_one_task_of_the_event_loop(op):
    tasks = []

    class OfTask(TaskHook):
        @asynccontextmanager
        async def task_hook(self, input_item=None):
            tasks.append((asyncio.current_task(), threading.current_thread().name))
            yield
            tasks.append((asyncio.current_task(), threading.current_thread().name))

    run(source([1]).pipe(op), task_hook_factory=lambda info: [OfTask()])
    assert tasks[0] == tasks[1] and tasks[0][0] is not None
    assert tasks[0][1] == "spdl_event_loop_thread"


def test_s01_functions_with_hooks_run_concurrently_on_worker_threads():
    barrier = threading.Barrier(2, timeout=20)
    names = set()

    def meet(item):
        names.add(threading.current_thread().name)
        barrier.wait()
        return item

    events = []
    assert sorted(hooked(source(range(4)).pipe(meet, concurrency=2), events)) == [0, 1, 2, 3]
    assert all(name.startswith("spdl_worker_thread") for name in names)


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor])
@pytest.mark.parametrize("op", [identity, twice])
def test_s01_hooks_surround_calls_on_an_executor(make, op):
    events = []
    options = {"max_workers": 1}
    if make is ProcessPoolExecutor:
        options["mp_context"] = multiprocessing.get_context("spawn")
    with make(**options) as executor:
        items = hooked(source([1, 2]).pipe(op, executor=executor), events)
    assert items == ([1, 2] if op is identity else [1, 1, 2, 2])
    assert [event[2] for event in events if event[1] == "after"] == items


def test_s01_hooks_keep_the_input_order():
    def slow_at_first(item):
        time.sleep(0.02 if item == 0 else 0)
        return item

    builder = source(range(4)).pipe(slow_at_first, concurrency=2, output_order="input")
    assert hooked(builder, []) == [0, 1, 2, 3]


def test_s01_hooks_surround_each_item_of_an_aggregate():
    events = []
    assert hooked(source([1, 2, 3]).aggregate(2), events) == [[1, 2], [3]]
    assert [event[2] for event in events if event[1] == "after"] == [1, 2, 3]


def test_s01_stop_exits_entered_hooks():
    events = []
    begun = threading.Event()

    def slow(item):
        begun.set()
        time.sleep(0.1)
        return item

    pipeline = build(
        source(range(100)).pipe(slow), task_hook_factory=lambda info: [Recorder(events)]
    )
    pipeline.start()
    assert begun.wait(20)
    pipeline.stop()
    names = [event[1] for event in events]
    assert names.count("before") == names.count("after") and names[-1] == "stage ends"
    assert_no_threads()


@pytest.mark.parametrize("op", [identity, identity_async, twice, twice_async])
def test_s01_dropping_a_pipeline_exits_its_hooks(op):
    events = []
    pipeline = build(
        source(range(1000)).pipe(op), task_hook_factory=lambda info: [Recorder(events)]
    )
    pipeline.get_item(timeout=20)
    del pipeline
    assert_no_threads()
    assert events[-1][1] == "stage ends"


def test_s02_the_hook_factory_is_called_once_per_stage():
    infos = []

    def factory(info):
        infos.append(info)
        return []

    builder = source([1, 2]).pipe(identity, concurrency=3, name="first").aggregate(2)
    builder = builder.path_variants(lambda item: 0, [[Pipe(len, name="inner"), Aggregate(1)]])
    pipeline = build(builder, task_hook_factory=factory, stage_id=5)
    assert list(pipeline) == [[2]]
    number = infos[0].pipeline_id
    assert infos == [
        StageInfo(number, "6", "first", 3),
        StageInfo(number, "7", "aggregate"),
        StageInfo(number, "8.0.0", "inner", 1),
        StageInfo(number, "8.0.1", "aggregate"),
    ]
    assert str(infos[0]) == f"{number}:6:first[3]"


def test_s02_a_stage_may_have_no_hooks():
    events = []

    def factory(info):
        return [Recorder(events)] if info.stage_name == "with" else []

    builder = source([1]).pipe(identity, name="without").pipe(identity, name="with")
    assert run(builder, task_hook_factory=factory) == [1]
    assert [event[1] for event in events] == ["stage begins", "before", "after", "stage ends"]


def test_f10_a_failing_task_hook_fails_the_item(caplog):
    events = []
    assert hooked(source([1, 2]).pipe(identity), events, fail_at=["before"]) == []
    # Two failures, and the first of them in the summary.
    assert caplog.text.count("OSError: before") == 3
    assert hooked(source([1, 2]).pipe(identity), events, fail_at=["after"]) == []
    with pytest.raises(PipelineFailure) as raised:
        run(
            source([1, 2]).pipe(identity),
            max_failures=0,
            task_hook_factory=lambda info: [Recorder([], fail_at=["after"])],
        )
    assert [type(error) for error in raised.value.exceptions] == [OSError]


def test_f10_exceptions_of_a_stage_propagate_through_its_hooks():
    events = []
    assert hooked(source([1, 2]).pipe(refuse_odd), events) == [2]
    assert ("hook", "failed", 1, ValueError) in events


def test_f10_cancelled_error_of_a_function_ends_the_pipeline():
    def cancelled(item):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        hooked(source([1, 2]).pipe(cancelled), [])
    with pytest.raises(asyncio.CancelledError):
        run(source([1, 2]).pipe(cancelled))


@pytest.mark.parametrize("make", [lambda info: Recorder([]), TaskStatsHook])
@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_f01_stop_iteration_with_hooks_fails_the_item(error, make, caplog):
    def end(item):
        if item == 1:
            raise error
        return item

    assert run(source([0, 1, 2]).pipe(end), task_hook_factory=lambda info: [make(info)]) == [0, 2]
    assert error.__name__ in caplog.text


def test_f10_a_hook_that_suppresses_a_failure_drops_the_item():
    class Swallow(TaskHook):
        @asynccontextmanager
        async def task_hook(self, input_item=None):
            try:
                yield
            except ValueError:
                pass

    builder = source([1, 2]).pipe(refuse_odd)
    assert run(builder, max_failures=0, task_hook_factory=lambda info: [Swallow()]) == [2]


@pytest.mark.parametrize("items", [[], [1, 2, 3]])
@pytest.mark.parametrize("at", ["stage begins", "stage ends"])
@pytest.mark.parametrize("op", [identity, identity_async, twice, twice_async])
def test_f10_a_failing_stage_hook_fails_the_pipeline(op, at, items):
    pipeline = build(
        source(items).pipe(op, name="op"),
        task_hook_factory=lambda info: [Recorder([], fail_at=[at])],
    )
    with pytest.raises(PipelineFailure) as raised:
        list(pipeline)
    assert [str(error) for error in raised.value.exceptions] == [at]
    assert any("op" in note for note in getattr(raised.value.exceptions[0], "__notes__", ["op"]))
    pipeline.stop()
    assert_no_threads()


def test_f10_stop_raises_the_failure_of_a_stage_hook():
    pipeline = build(
        source([1, 2, 3]).pipe(identity),
        task_hook_factory=lambda info: [Recorder([], fail_at=["stage ends"])],
    )
    pipeline.get_item(timeout=20)
    with pytest.raises(PipelineFailure):
        pipeline.stop()
    pipeline.stop()


@pytest.mark.parametrize("error", [SystemExit("x"), asyncio.CancelledError("x")])
@pytest.mark.parametrize("at", ["enter", "exit"])
@pytest.mark.parametrize("op", [identity, identity_async])
def test_f10_a_base_exception_of_a_stage_hook_fails_the_pipeline(op, at, error):
    class Refuse(Recorder):
        @asynccontextmanager
        async def stage_hook(self):
            if at == "enter":
                raise error
            yield
            raise error

    pipeline = build(source([1, 2]).pipe(op, name="op"), task_hook_factory=lambda _: [Refuse([])])
    got = []
    with pytest.raises(PipelineFailure, match="op") as raised:
        for item in pipeline.get_iterator(timeout=30):
            got.append(item)
    assert got == ([1, 2] if at == "exit" else [])
    assert [each.__cause__ for each in raised.value.exceptions] == [error]
    pipeline.stop(timeout=30)
    assert_no_threads()


@pytest.mark.parametrize("at", ["enter", "exit"])
def test_f10_cancelled_error_of_a_hook_ends_the_pipeline(at):
    class Cancelled(Recorder):
        @asynccontextmanager
        async def task_hook(self, input_item=None):
            if at == "exit":
                yield
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
            if at == "enter":
                yield

    pipeline = build(source([1, 2]).pipe(identity), task_hook_factory=lambda _: [Cancelled([])])
    with pytest.raises(asyncio.CancelledError):
        list(pipeline.get_iterator(timeout=30))
    pipeline.stop(timeout=30)
    assert_no_threads()


@pytest.mark.parametrize("fails", [True, False])
def test_l03_timeouts_apply_while_hooks_exit(fails):
    may_leave = threading.Event()

    class Slow(Recorder):
        @asynccontextmanager
        async def stage_hook(self):
            yield
            # With a time limit, so that a waiting caller fails below.
            until = time.monotonic() + 20
            while not may_leave.is_set() and time.monotonic() < until:
                await asyncio.sleep(0.001)

    pipeline = build(
        source([0, 1] if fails else [0]).pipe(refuse_odd),
        max_failures=0,
        task_hook_factory=lambda info: [Slow([])],
    )
    assert pipeline.get_item(timeout=30) == 0
    wait_until(lambda: _is_at_its_end(pipeline))
    for _ in range(2):
        with pytest.raises(TimeoutError, match="did not end within"):
            pipeline.get_item(timeout=0.05)
        with pytest.raises(queue.Empty):
            pipeline.get_item_nowait()
    may_leave.set()
    with pytest.raises(PipelineFailure if fails else EOFError):
        pipeline.get_item(timeout=30)
    pipeline.stop(timeout=30)
    assert_no_threads()


def test_l04_a_failure_is_kept_after_a_timeout():
    class TellsOnce:
        ended, monitor = True, None
        failures = [PipelineFailure([("0:1:op", ValueError("x"))])]

        def next(self, timeout):
            if self.failures:
                raise self.failures.pop()

    supervisor = LoopSupervisor([])
    supervised = SupervisedRun(TellsOnce(), [], supervisor)
    with pytest.raises(TimeoutError):
        supervised.next(0)
    supervisor.close()
    with pytest.raises(PipelineFailure, match="0:1:op"):
        supervised.next(0)


def _is_at_its_end(pipeline):
    with contextlib.suppress(queue.Empty):
        pipeline.get_item_nowait()
    return pipeline._run.ended


@pytest.mark.parametrize("method", ["stage_hook", "task_hook"])
@pytest.mark.parametrize("is_async", [True, False])
def test_f10_an_undecorated_hook_is_an_error_at_build(method, is_async):
    async def awaiting(self, input_item=None):
        yield

    def waiting(self, input_item=None):
        yield

    hook = type("Undecorated", (TaskHook,), {"task_hook": TaskHook.stage_hook})
    setattr(hook, method, awaiting if is_async else waiting)
    with pytest.raises(ValueError, match="decorate it with contextlib.asynccontextmanager"):
        build(source([1]).pipe(identity), task_hook_factory=lambda info: [hook()])


class Stats(TaskStatsHook):
    def __init__(self, info, interval=-1, reported=None):
        super().__init__(info, interval)
        self.reported = [] if reported is None else reported

    async def interval_stats_callback(self, stats):
        self.reported.append(stats)


def sleepy(item):
    time.sleep(0.02)
    return refuse(item) if item == 3 else item


async def sleepy_async(item):
    await asyncio.sleep(0.02)
    return refuse(item) if item == 3 else item


@pytest.mark.parametrize("op", [sleepy, sleepy_async])
def test_s03_a_stats_hook_measures_successes_and_counts_failures(op):
    reported = []
    run(source(range(5)).pipe(op), task_hook_factory=lambda info: [Stats(info, reported=reported)])
    (stats,) = reported
    assert (stats.num_tasks, stats.num_failures) == (5, 1)
    assert 0.02 * 0.98 <= stats.ave_time < 1
    assert stats.ave_time * 0.5 < stats.p90_time <= stats.p99_time < 1


@pytest.mark.parametrize("op", [twice, twice_async])
def test_s03_a_stats_hook_does_not_count_the_end_of_iteration(op):
    reported = []
    run(source([1, 2]).pipe(op), task_hook_factory=lambda info: [Stats(info, reported=reported)])
    assert [(stats.num_tasks, stats.num_failures) for stats in reported] == [(4, 0)]


def test_s03_interval_counts_add_up_to_the_total():
    reported = []
    builder = source(range(20)).pipe(sleepy)
    run(builder, task_hook_factory=lambda info: [Stats(info, 0.05, reported)])
    assert len(reported) >= 3
    assert sum(stats.num_tasks for stats in reported) == 20
    assert sum(stats.num_failures for stats in reported) == 1
    assert all(stats.num_tasks < 20 for stats in reported)


def test_s03_a_stats_hook_works_with_other_hooks():
    reported, events = [], []

    def factory(info):
        return [Stats(info, reported=reported), Recorder(events)]

    assert run(source(range(3)).pipe(identity), task_hook_factory=factory) == [0, 1, 2]
    assert reported[0].num_tasks == 3 and len(events) == 8


def test_s03_percentiles_are_within_a_percent_in_constant_memory():
    durations = DurationHistogram()
    assert (durations.mean, durations.percentile(99)) == (0.0, 0.0)
    for at in range(10_000):
        durations.record((at * 7919 % 10_000 + 1) * 1e-4)
    assert durations.mean == pytest.approx(0.50005)
    for percent in (1, 50, 90, 99, 100):
        assert durations.percentile(percent) == pytest.approx(percent / 100, rel=0.012)
    assert len(durations._buckets) < 500
    durations.clear()
    durations.record(3.0)
    assert durations.percentile(90) == 3.0 == durations.mean


def test_s03_an_override_of_task_hook_is_called():
    seen = []

    class Own(TaskStatsHook):
        @asynccontextmanager
        async def task_hook(self, input_item=None):
            seen.append(input_item)
            async with super().task_hook(input_item):
                yield

    run(source([1, 2]).pipe(identity), task_hook_factory=lambda info: [Own(info)])
    assert seen == [1, 2]


def test_s03_a_failing_callback_is_logged_only(caplog):
    class Failing(TaskStatsHook):
        calls = 0

        async def interval_stats_callback(self, stats):
            Failing.calls += 1
            if Failing.calls == 1:
                raise OSError("no disk")

    items = run(source(range(10)).pipe(sleepy), task_hook_factory=lambda i: [Failing(i, 0.03)])
    assert len(items) == 9 and Failing.calls > 1
    assert "no disk" in caplog.text


def test_s03_the_summary_is_logged_at_the_end(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    run(source([1, 2]).pipe(identity, name="op"), task_hook_factory=lambda i: [TaskStatsHook(i)])
    (line,) = [message for message in caplog.messages if ":1:op[1]]" in message]
    assert "2 tasks, 0 failed" in line


def test_t05_native_statistics_are_logged_at_info(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    run(source([1, 2, 3]).pipe(refuse_odd, name="op"))
    lines = [record for record in caplog.records if record.levelno == logging.INFO]
    assert {record.name for record in lines} == {"spdl_rs.pipeline"}
    texts = [record.getMessage() for record in lines]
    assert sum(":1:op[1]] 3 tasks, 2 failed" in text for text in texts) == 1
    assert sum(":0:src_queue] 3 items" in text for text in texts) == 1
    assert sum(":2:sink_queue] 1 items" in text for text in texts) == 1


def test_t05_intervals_and_totals_are_logged(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    run(source(range(12)).pipe(sleepy, name="op"), report_stats_interval=0.05)
    counts = [
        int(message.split("]] ")[1].split()[0])
        for message in caplog.messages
        if ":op[" in message and "tasks" in message
    ]
    assert len(counts) >= 3 and counts[-1] == 12 and sum(counts[:-1]) == 12


def test_t05_without_info_logging_no_reports_are_made():
    logger = logging.getLogger("spdl_rs.pipeline")
    assert not logger.isEnabledFor(logging.INFO)
    pipeline = build(source([1]).pipe(identity))
    pipeline.get_item(timeout=20)
    assert "spdl_report_thread" not in {thread.name for thread in threading.enumerate()}
    pipeline.stop()


def test_s06_merged_pipelines_have_distinct_stage_ids():
    from spdl_rs.pipeline.defs import Merge, PipelineConfig, SinkConfig, SourceConfig

    infos = []

    def factory(info):
        infos.append(str(info).split(":", 1)[1])
        return []

    part = PipelineConfig(SourceConfig([1]), [Pipe(identity, name="a")], SinkConfig(1))
    whole = PipelineConfig(Merge([part, part]), [Pipe(identity, name="b")], SinkConfig(1))
    list(build_pipeline(whole, num_threads=1, task_hook_factory=factory))
    assert infos == ["0.0.1:a[1]", "0.1.1:a[1]", "1:b[1]"]


def test_s01_stage_hooks_span_all_epochs():
    events = []
    builder = PipelineBuilder().add_source([1, 2], continuous=True).pipe(identity)
    pipeline = build(builder, task_hook_factory=lambda info: [Recorder(events)])
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[1, 2]] * 3
    names = [event[1] for event in events]
    assert names.count("stage begins") == names.count("stage ends") == 1
