"""The Python interface of queues: `AsyncQueue` and `StatsQueue`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..defs._stage_info import StageInfo
from .durations import DurationHistogram, format_duration

_LOGGER = logging.getLogger("spdl_rs.pipeline")

# Methods that determine the order and timing of items. If a class overrides one of them, items pass
# through its queues.
_QUEUE_METHODS = (
    *("put", "get", "put_nowait", "get_nowait", "_put", "_get", "_init"),
    *("qsize", "empty", "full", "task_done", "join"),
)


class AsyncQueue(asyncio.Queue[Any]):
    """A queue after a stage, created by the `queue_class` of `build_pipeline`.

    By default items pass through native queues. If a subclass overrides a method such as `put` or `get`, each
    item passes through an instance of the subclass, on the event loop of the pipeline. Such queues are much
    slower, and divide the pipeline into parts with separate native queues. Stages on paths always use native
    queues.

    `is_eof` and `is_epoch_end` recognise markers, which are in the queue in addition to items.

    Args:
        info: The stage before the queue. For the last queue, a stage named `sink`.
        buffer_size: The capacity in items.
    """

    def __init__(self, info: StageInfo, *, buffer_size: int = 1) -> None:
        super().__init__(buffer_size)
        self.info = info

    @property
    def name(self) -> str:
        """The name in log lines, for example `0:1:decode[4]_queue`."""
        return f"{self.info}_queue"

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """A context that is entered before the first item and left after the end of the pipeline."""
        yield


@dataclass
class QueuePerfStats:
    """Statistics of a queue. Times are in seconds."""

    elapsed: float
    """The length of the measured interval."""
    num_items: int
    """Items taken from the queue."""
    ave_put_time: float
    """The mean time that the upstream stage waited for room in the queue, per item."""
    ave_get_time: float
    """The mean time that the downstream stage waited for an item."""
    p90_put_time: float = 0.0
    """The 90th percentile of the wait for room."""
    p99_put_time: float = 0.0
    """The 99th percentile of the wait for room."""
    p90_get_time: float = 0.0
    """The 90th percentile of the wait for an item."""
    p99_get_time: float = 0.0
    """The 99th percentile of the wait for an item."""
    occupancy_rate: float = 0.0
    """The share of time in which the queue was not empty, 0 to 1. For the last queue: in which an item was
    ready for the consumer."""

    @property
    def qps(self) -> float:
        """Items per second."""
        return self.num_items / self.elapsed if self.elapsed > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_items} items in {format_duration(self.elapsed)} ({self.qps:.1f}/s); mean wait: put "
            f"{format_duration(self.ave_put_time)}, get {format_duration(self.ave_get_time)}; not empty "
            f"{100 * self.occupancy_rate:.0f} % of the time"
        )


class StatsQueue(AsyncQueue):
    """A queue that measures waits and throughput, and logs them.

    Unless a subclass overrides methods such as `put` or `get`, the values are those of the native queue.

    Args:
        info: The stage before the queue. For the last queue, a stage named `sink`.
        buffer_size: The capacity in items.
        interval: The interval in seconds between calls of `interval_stats_callback`; the last call is at the
            end. If not positive, there is one call at the end, with the statistics of the whole run. All
            native queues of a pipeline use the shortest interval.

    >>> from spdl_rs.pipeline import PipelineBuilder, StatsQueue
    >>> class Print(StatsQueue):
    ...     async def interval_stats_callback(self, stats):
    ...         print(self.info.stage_name, stats.num_items)
    >>> list(PipelineBuilder().add_source("ab").add_sink().build(num_threads=1, queue_class=Print))
    sink 2
    ['a', 'b']
    """

    def __init__(self, info: StageInfo, *, buffer_size: int = 1, interval: float = -1) -> None:
        super().__init__(info, buffer_size=buffer_size)
        self.interval = interval
        # Whether the statistics are those of the native queue.
        self._is_native = False
        self._began = self._interval_began = time.monotonic()
        self._puts, self._gets = DurationHistogram(), DurationHistogram()
        self._interval_puts, self._interval_gets = DurationHistogram(), DurationHistogram()
        self._empty_since: float | None = self._began
        self._empty_s = self._interval_empty_s = 0.0

    async def put(self, item: Any) -> None:
        """Puts an item, and measures the wait."""
        began = time.monotonic()
        await super().put(item)
        self._record(time.monotonic() - began, self._puts, self._interval_puts)

    async def get(self) -> Any:
        """Takes an item, and measures the wait."""
        began = time.monotonic()
        item = await super().get()
        self._record(time.monotonic() - began, self._gets, self._interval_gets)
        return item

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Calls `interval_stats_callback` at each interval and at the end."""
        if self._is_native:
            yield
            return
        from .tasks import call_periodically

        self._began = self._interval_began = time.monotonic()
        self._empty_since = self._began if self.empty() else None
        async with call_periodically(self.interval, self._report):
            yield
        if self.interval > 0:
            self._log(self._stats(self._began, self._puts, self._gets, self._empty_s))

    async def interval_stats_callback(self, stats: QueuePerfStats) -> None:
        """Called with the statistics of an interval. The default logs the statistics at level INFO.

        Exceptions are logged. If a subclass overrides methods such as `put`, an exception of the last call
        ends the pipeline with a `PipelineFailure`.
        """
        self._log(stats)

    # `asyncio.Queue` calls `_put` and `_get` for all items.
    def _put(self, item: Any) -> None:
        self._count_empty()
        self._empty_since = None
        super()._put(item)  # pyright: ignore[reportAttributeAccessIssue]

    def _get(self) -> Any:
        item = super()._get()  # pyright: ignore[reportAttributeAccessIssue]
        self._empty_since = time.monotonic() if self.empty() else None
        return item

    def _count_empty(self) -> None:
        if self._empty_since is not None:
            now = time.monotonic()
            self._empty_s += now - self._empty_since
            self._interval_empty_s += now - self._empty_since
            self._empty_since = now

    def _record(self, seconds: float, *counts: DurationHistogram) -> None:
        for count in counts:
            count.record(seconds)

    async def _report(self) -> None:
        self._count_empty()
        stats = self._stats(
            self._interval_began, self._interval_puts, self._interval_gets, self._interval_empty_s
        )
        self._interval_began, self._interval_empty_s = time.monotonic(), 0.0
        self._interval_puts.clear()
        self._interval_gets.clear()
        await self.interval_stats_callback(stats)

    def _stats(
        self, began: float, puts: DurationHistogram, gets: DurationHistogram, empty_s: float
    ) -> QueuePerfStats:
        elapsed = time.monotonic() - began
        return QueuePerfStats(
            elapsed=elapsed,
            num_items=gets.count,
            ave_put_time=puts.mean,
            ave_get_time=gets.mean,
            p90_put_time=puts.percentile(90),
            p99_put_time=puts.percentile(99),
            p90_get_time=gets.percentile(90),
            p99_get_time=gets.percentile(99),
            occupancy_rate=max(0.0, 1.0 - empty_s / elapsed) if elapsed > 0 else 0.0,
        )

    def _log(self, stats: QueuePerfStats) -> None:
        _LOGGER.info("[%s] %s", self.name, stats)


def carries_items(queue: AsyncQueue) -> bool:
    """Returns whether items go through this queue, because its class overrides a method."""
    base = StatsQueue if isinstance(queue, StatsQueue) else AsyncQueue
    methods = _QUEUE_METHODS
    return any(getattr(type(queue), name) is not getattr(base, name) for name in methods)
