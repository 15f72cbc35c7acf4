"""Queue classes of the user: those that receive statistics, and those that replace the queue."""

import asyncio
import functools
import logging
import threading
import time
from contextlib import asynccontextmanager
from fractions import Fraction

import pytest
from pipelines import (
    Counter,
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
    AsyncQueue,
    PipelineFailure,
    QueuePerfStats,
    StageInfo,
    StatsQueue,
    is_eof,
    is_epoch_end,
)
from spdl_rs.pipeline.defs import Aggregator


class RecordingQueue(StatsQueue):
    """Records the statistics that it receives."""

    reported = []

    async def interval_stats_callback(self, stats):
        RecordingQueue.reported.append((self.info.stage_name, stats))


class ReplacingQueue(StatsQueue):
    """Records the items that pass through it; replaces the engine's queue."""

    seen = []
    reported = []

    async def put(self, item):
        ReplacingQueue.seen.append((self.info.stage_name, item))
        await super().put(item)

    async def interval_stats_callback(self, stats):
        ReplacingQueue.reported.append((self.info.stage_name, stats))


@pytest.fixture(autouse=True)
def clear_records():
    for kept in (RecordingQueue.reported, ReplacingQueue.seen, ReplacingQueue.reported):
        kept.clear()


def sleepy(item):
    time.sleep(0.02)
    return item


def test_s04_a_queue_per_stage_lives_as_long_as_the_pipeline():
    events = []

    class Living(AsyncQueue):
        @asynccontextmanager
        async def stage_hook(self):
            events.append(("begins", str(self.info).split(":", 1)[1], self.maxsize))
            yield
            events.append(("ends", str(self.info).split(":", 1)[1], self.maxsize))

    builder = source([1, 2]).pipe(identity, concurrency=4, name="op").aggregate(2)
    assert [sorted(pair) for pair in run(builder, queue_class=Living, buffer_size=7)] == [[1, 2]]
    assert sorted(events) == sorted(
        (what, *which)
        for what in ("begins", "ends")
        for which in [("0:src", 2), ("1:op[4]", 2), ("3:sink", 7)]
    )
    assert_no_threads()


@pytest.mark.parametrize("at", ["enter", "leave"])
def test_s04_a_failing_queue_stage_hook_fails_the_pipeline(at):
    class Failing(AsyncQueue):
        @asynccontextmanager
        async def stage_hook(self):
            if at == "enter":
                raise OSError("no disk")
            yield
            raise OSError("no disk")

    with pytest.raises(PipelineFailure) as raised:
        run(source([1, 2]).pipe(identity), queue_class=Failing)
    assert {type(error) for error in raised.value.exceptions} == {OSError}


def test_s05_a_queue_gets_native_statistics_at_the_end():
    run(source(range(6)).pipe(refuse_odd, name="op"), queue_class=RecordingQueue)
    reported = {name: stats for name, stats in RecordingQueue.reported}
    assert {name: stats.num_items for name, stats in reported.items()} == {
        "src": 6,
        "sink": 3,
    }
    for stats in reported.values():
        assert type(stats) is QueuePerfStats
        assert 0 < stats.elapsed < 60 and 0 <= stats.occupancy_rate <= 1
        assert stats.qps == pytest.approx(stats.num_items / stats.elapsed)


@pytest.mark.parametrize("op", [identity_async, twice, twice_async])
def test_s05_a_queue_counts_the_output_of_its_stage(op):
    run(source([1, 2]).pipe(op, name="op").pipe(identity), queue_class=RecordingQueue)
    expected = 2 if op is identity_async else 4
    assert dict(RecordingQueue.reported)["op"].num_items == expected


def test_s05_a_queue_does_not_count_dropped_items():
    async def even(item):
        return None if item % 2 else item

    run(source(range(6)).pipe(even, name="op").pipe(identity), queue_class=RecordingQueue)
    assert dict(RecordingQueue.reported)["op"].num_items == 3


def test_s05_a_queue_without_interval_reports_once(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    run(source(range(15)).pipe(sleepy), queue_class=RecordingQueue, report_stats_interval=0.05)
    reported = [stats.num_items for name, stats in RecordingQueue.reported if name == "sink"]
    assert reported == [15]
    assert sum("tasks" in message for message in caplog.messages) >= 3


def test_s05_queue_intervals_do_not_affect_stage_logs(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    run(
        source(range(15)).pipe(sleepy), queue_class=functools.partial(RecordingQueue, interval=0.05)
    )
    assert sum("15 tasks" in message for message in caplog.messages) == 1
    assert sum("tasks" in message for message in caplog.messages) == 1


def test_s05_interval_counts_add_up_to_the_total():
    queue_class = functools.partial(RecordingQueue, interval=0.05)
    run(source(range(15)).pipe(sleepy), queue_class=queue_class)
    counts = [stats.num_items for name, stats in RecordingQueue.reported if name == "sink"]
    assert len(counts) >= 3 and sum(counts) == 15 and max(counts) < 15


@pytest.mark.parametrize("queue_class", [RecordingQueue, ReplacingQueue])
def test_s05_waits_and_occupancy_reveal_the_slow_stage(queue_class):
    items = range(20)
    list_of = queue_class.reported
    run(source(items).pipe(sleepy, name="op").pipe(identity, name="next"), queue_class=queue_class)
    reported = dict(list_of)
    # Items wait before the slow stage, and the next stage waits after it.
    assert reported["src"].occupancy_rate > 0.6 > 0.4 > reported["op"].occupancy_rate
    assert reported["op"].ave_get_time > 0.01 > reported["op"].ave_put_time
    assert reported["op"].p99_get_time >= reported["op"].p90_get_time > 0.01


def test_s05_a_replacing_queue_measures_statistics():
    async def measure():
        queue = ReplacingQueue(StageInfo(0, "0", "a"), buffer_size=1, interval=0)
        async with queue.stage_hook():
            await asyncio.sleep(0.1)
            await queue.put(1)
            putting = asyncio.create_task(queue.put(2))
            await asyncio.sleep(0.1)
            await queue.get()
            await putting
            await queue.get()
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0.2)
            queue.put_nowait(3)
            await getting

    asyncio.run(measure())
    ((_, stats),) = ReplacingQueue.reported
    assert stats.num_items == 3 and stats.elapsed >= 0.39
    # Empty for 0.3 of 0.4 s.
    assert 0.1 < stats.occupancy_rate < 0.4
    assert 0.04 < stats.ave_put_time < 0.2 and 0.06 < stats.ave_get_time < 0.3
    assert stats.p99_get_time > 0.19 > stats.p90_put_time > 0.09


def test_s05_occupancy_includes_the_current_empty_time():
    async def measure():
        async with ReplacingQueue(StageInfo(0, "0", "a")).stage_hook():
            await asyncio.sleep(0.05)

    asyncio.run(measure())
    assert ReplacingQueue.reported[0][1].occupancy_rate < 0.05


def test_s04_a_class_that_overrides_put_receives_all_items():
    builder = source([1, 2]).pipe(identity, name="op").pipe(str)
    assert run(builder, queue_class=ReplacingQueue) == ["1", "2"]
    of = {}
    for name, item in ReplacingQueue.seen:
        of.setdefault(name, []).append(item)
    assert set(of) == {"src", "op", "sink"}
    for items, expected in [(of["op"], [1, 2]), (of["sink"], ["1", "2"])]:
        assert items[:2] == expected and len(items) == 3 and is_eof(items[2])
    assert_no_threads()


class Reversing(AsyncQueue):
    """Returns all items in reverse order after the end marker."""

    def _init(self, maxsize):
        self._held, self._ready = [], []
        self._maxsize = 0

    def full(self):
        return False

    def _put(self, item):
        if is_eof(item):
            self._ready = [*reversed(self._held), item]
        else:
            self._held.append(item)

    def _get(self):
        return self._ready.pop(0)

    def qsize(self):
        return len(self._ready)


def test_s04_a_queue_may_change_the_order():
    # `asyncio.Queue` wakes one getter per put, so poll until all items are available.
    class Sink(Reversing):
        async def get(self):
            while not self._ready:
                await asyncio.sleep(0.001)
            return self._get()

    def queue_class(info, buffer_size):
        made = Sink if info.stage_name == "sink" else AsyncQueue
        return made(info, buffer_size=buffer_size)

    assert run(source(range(5)).pipe(identity), queue_class=queue_class) == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("op", [identity, identity_async])
def test_s04_all_stages_share_the_failure_budget(op):
    async def refuse_async(item):
        return refuse_odd(item)

    first = refuse_odd if op is identity else refuse_async
    builder = source(range(10)).pipe(first, name="a").pipe(refuse, name="b")
    with pytest.raises(PipelineFailure) as raised:
        run(builder, queue_class=ReplacingQueue, max_failures=7)
    assert type(raised.value.exceptions[0]) is ValueError
    builder = source(range(4)).pipe(first, name="a").pipe(refuse, name="b")
    assert run(builder, queue_class=ReplacingQueue, max_failures=4) == []


class RefuseOdd(Aggregator):
    def accumulate(self, item):
        return refuse_odd(item)

    def flush(self):
        return None


@pytest.mark.parametrize("add", ["aggregate", "disaggregate"])
def test_s04_failures_of_aggregate_and_disaggregate_count(add):
    for most in (2, 1):
        if add == "aggregate":
            builder, expected = source(range(4)).aggregate(RefuseOdd()), [0, 2]
        else:
            builder, expected = source([[1], 2, [3], 4]).disaggregate(), [1, 3]
        if most == 2:
            assert (
                run(builder.pipe(identity), queue_class=ReplacingQueue, max_failures=most)
                == expected
            )
        else:
            with pytest.raises(PipelineFailure):
                run(builder.pipe(identity), queue_class=ReplacingQueue, max_failures=most)


def test_s04_statistics_and_log_cover_all_stages(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    pipeline = build(
        source(range(4)).pipe(refuse_odd, name="a").pipe(identity, name="b"),
        queue_class=ReplacingQueue,
    )
    assert list(pipeline) == [0, 2]
    pipeline.stop()
    items = {stage["name"].split(":")[-1]: stage["items"] for stage in pipeline.stats()["stages"]}
    assert (items["src"], items["a"], items["b"]) == (4, 4, 2)
    assert pipeline.stats()["dropped_total"] == 2
    for line in (":a[1]] 4 tasks, 2 failed", ":b[1]] 2 tasks, 0 failed"):
        assert sum(line in message for message in caplog.messages) == 1


def test_s04_a_share_of_failures_covers_all_stages():
    builder = source(range(300)).pipe(refuse_odd, name="a").pipe(identity, name="b")
    with pytest.raises(PipelineFailure):
        run(builder, queue_class=ReplacingQueue, max_failures=Fraction(1, 4))
    builder = source(range(300)).pipe(refuse_odd, name="a").pipe(identity, name="b")
    assert len(run(builder, queue_class=ReplacingQueue, max_failures=Fraction(1, 2))) == 150


def test_s04_a_stage_budget_is_enforced():
    builder = source(range(6)).pipe(refuse_odd, name="a", max_failures=1).pipe(identity)
    with pytest.raises(PipelineFailure):
        run(builder, queue_class=ReplacingQueue)


def test_s04_stage_budgets_do_not_count_for_the_pipeline():
    builder = source(range(6)).pipe(refuse_odd, name="a", max_failures=5).pipe(identity)
    assert run(builder, queue_class=ReplacingQueue, max_failures=0) == [0, 2, 4]


def test_s04_num_threads_limits_concurrent_calls():
    first = Counter(0.005)
    both = functools.partial(first), functools.partial(first)
    builder = source(range(12)).pipe(both[0], concurrency=4).pipe(both[1], concurrency=4)
    run(builder, queue_class=ReplacingQueue, num_threads=2)
    assert first.calls == 24 and first.most <= 2


def test_s04_queues_forward_epoch_ends():
    pipeline = build(
        source([1, 2, 3], continuous=True).pipe(refuse_odd, name="op").aggregate(5),
        queue_class=ReplacingQueue,
    )
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[[2]]] * 3
    assert any(is_epoch_end(item) for name, item in ReplacingQueue.seen if name == "op")
    assert_no_threads()


def test_s04_an_empty_epoch_does_not_end_the_pipeline():
    pipeline = build(source([1, 3], continuous=True).pipe(refuse_odd), queue_class=ReplacingQueue)
    with pipeline.auto_stop():
        assert [list(pipeline) for _ in range(3)] == [[]] * 3


@pytest.mark.parametrize("op", [twice, twice_async])
def test_s04_generators_work_with_replacing_queues(op):
    assert run(source([1, 2]).pipe(op), queue_class=ReplacingQueue) == [1, 1, 2, 2]


def test_s04_a_failing_source_ends_the_pipeline_after_its_items():
    def broken():
        yield 1
        raise LookupError("no more")

    pipeline = build(source(broken()).pipe(identity), queue_class=ReplacingQueue)
    items = []
    with pytest.raises(PipelineFailure) as raised:
        for item in pipeline:
            items.append(item)
    assert items == [1]
    assert [type(error) for error in raised.value.exceptions] == [LookupError]


def test_s04_stopping_and_dropping_end_all_threads():
    for end in ("stop", "drop", "break"):
        pipeline = build(
            source(iter(int, 1)).pipe(identity).aggregate(2), queue_class=ReplacingQueue
        )
        assert pipeline.get_item(timeout=20) == [0, 0]
        if end == "stop":
            pipeline.stop()
        elif end == "break":
            for _ in pipeline:
                break
        del pipeline
        assert_no_threads()


def test_s04_an_endless_pipeline_without_items_can_be_stopped():
    called = threading.Event()

    def nothing(item):
        called.set()

    pipeline = build(source(iter(int, 1)).pipe(nothing), queue_class=ReplacingQueue)
    pipeline.start()
    assert called.wait(20)
    pipeline.stop(timeout=20)
    assert_no_threads()


def test_s04_items_are_buffered_in_the_custom_queue():
    taken = threading.Event()

    class Wide(AsyncQueue):
        def __init__(self, info, *, buffer_size=1):
            super().__init__(info, buffer_size=50 if info.stage_name == "src" else 1)

        async def put(self, item):
            await super().put(item)
            Wide.most = max(getattr(Wide, "most", 0), self.qsize())

    def hold(item):
        taken.wait(20)
        return item

    pipeline = build(source(range(100)).pipe(hold), queue_class=Wide, num_threads=1)
    pipeline.start()
    wait_until(lambda: getattr(Wide, "most", 0) == 50)
    taken.set()
    assert list(pipeline) == list(range(100))


def only_after_op(queue_class):
    def make(info, *, buffer_size=1):
        made = queue_class if info.stage_name == "op" else AsyncQueue
        return made(info, buffer_size=buffer_size)

    return make


class Breaking(AsyncQueue):
    """Raises from call number `after` of `put` on."""

    error, after = ValueError("put"), 0

    def __init__(self, info, *, buffer_size=1):
        super().__init__(info, buffer_size=buffer_size)
        self.calls = 0

    async def put(self, item):
        self.calls += 1
        if self.calls > self.after:
            raise self.error
        await super().put(item)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit("x"), asyncio.CancelledError("x")])
@pytest.mark.parametrize("after", [0, 2, 5])
def test_s04_a_failing_put_fails_the_pipeline(error, after):
    queue_class = type("Broken", (Breaking,), {"error": error, "after": after})
    builder = source(range(5)).pipe(identity, name="op").pipe(identity)
    pipeline = build(builder, queue_class=only_after_op(queue_class))
    got = []
    with pytest.raises(PipelineFailure, match=":op") as raised:
        for item in pipeline.get_iterator(timeout=30):
            got.append(item)
    assert got == list(range(after))
    (failure,) = raised.value.exceptions
    assert error in (failure, failure.__cause__)
    pipeline.stop(timeout=30)
    assert_no_threads()


def test_s04_a_stuck_queue_fails_the_pipeline():
    class Stuck(Breaking):
        def empty(self):
            return False

        async def get(self):
            await asyncio.Event().wait()

    builder = source(range(5)).pipe(identity, name="op").pipe(identity)
    pipeline = build(builder, queue_class=only_after_op(Stuck))
    with pytest.raises(PipelineFailure, match=":op") as raised:
        list(pipeline.get_iterator(timeout=30))
    assert raised.value.exceptions == (Breaking.error,)
    pipeline.stop(timeout=30)
    assert_no_threads()


def test_s04_cancelled_error_of_get_ends_the_pipeline():
    class Cancelling(AsyncQueue):
        async def get(self):
            raise asyncio.CancelledError("mine")

    pipeline = build(source(range(5)).pipe(identity), queue_class=Cancelling)
    with pytest.raises(asyncio.CancelledError, match="mine"):
        list(pipeline.get_iterator(timeout=30))
    pipeline.stop(timeout=30)
    assert_no_threads()
