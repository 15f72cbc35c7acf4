"""Queues between stages, as the user sees them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..defs._stage_info import StageInfo
from .durations import Durations, in_words

_LOGGER = logging.getLogger("spdl_rs.pipeline")

# What decides which item comes when. A class that changes one of these is used for real.
_WAYS = (
    *("put", "get", "put_nowait", "get_nowait", "_put", "_get", "_init"),
    *("qsize", "empty", "full", "task_done", "join"),
)


class AsyncQueue(asyncio.Queue[Any]):
    """A queue behind a stage: what `queue_class` of `build_pipeline` makes.

    Items pass through native queues as long as a class changes nothing of how a queue works. Where
    it defines `put` or `get`, say, each item goes through a queue of it, on the pipeline's event
    loop: slower by far, and stages before and behind it take their items from queues of their own.
    Only the queues of the main line are made, not those on paths.

    What comes through beside items, `is_eof` and `is_epoch_end` tell.

    Args:
        info: The stage. The last queue is that of a stage named `sink`.
        buffer_size: How many items it holds.
    """

    def __init__(self, info: StageInfo, *, buffer_size: int = 1) -> None:
        super().__init__(buffer_size)
        self.info = info

    @property
    def name(self) -> str:
        """What it is called in the log: `0:1:decode[4]_queue`."""
        return f"{self.info}_queue"

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Is entered before the first item, and left when the pipeline has ended."""
        yield


@dataclass
class QueuePerfStats:
    """What went through a queue. Times are in seconds."""

    elapsed: float
    """How long this is about."""
    num_items: int
    """How many items were taken out."""
    ave_put_time: float
    """How long the stage before it had to wait for room, for one item, on average."""
    ave_get_time: float
    """How long the stage behind it had to wait for an item, on average."""
    p90_put_time: float = 0.0
    """How long it had to wait for room at most, for 90 % of the items."""
    p99_put_time: float = 0.0
    """The same for 99 %."""
    p90_get_time: float = 0.0
    """How long it had to wait for an item at most, for 90 % of them."""
    p99_get_time: float = 0.0
    """The same for 99 %."""
    occupancy_rate: float = 0.0
    """The share of the time in which it was not empty, in 0..=1. For the last queue: in which an
    item was ready for your loop."""

    @property
    def qps(self) -> float:
        """Items per second."""
        return self.num_items / self.elapsed if self.elapsed > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_items} items in {in_words(self.elapsed)} ({self.qps:.1f}/s); put waits "
            f"{in_words(self.ave_put_time)}, get {in_words(self.ave_get_time)}; not empty "
            f"{100 * self.occupancy_rate:.0f} % of the time"
        )


class StatsQueue(AsyncQueue):
    """A queue that measures, and logs that at the end.

    Where a class changes nothing of how a queue works, the numbers are those of the native queue.

    Args:
        info: The stage. The last queue is that of a stage named `sink`.
        buffer_size: How many items it holds.
        interval: After how many seconds `interval_stats_callback` is called each time, and once
            more at the end with the rest. Where it is not positive, only at the end, with
            everything. Of several intervals of native queues of a pipeline the shortest is that
            of all.

    >>> from spdl_rs.pipeline import PipelineBuilder, StatsQueue
    >>> class Tell(StatsQueue):
    ...     async def interval_stats_callback(self, stats):
    ...         print(self.info.stage_name, stats.num_items)
    >>> list(PipelineBuilder().add_source("ab").add_sink().build(num_threads=1, queue_class=Tell))
    sink 2
    ['a', 'b']
    """

    def __init__(self, info: StageInfo, *, buffer_size: int = 1, interval: float = -1) -> None:
        super().__init__(info, buffer_size=buffer_size)
        self.interval = interval
        # Whether somebody else measures.
        self._is_native = False
        self._began = self._lap_began = time.monotonic()
        self._puts, self._gets = Durations(), Durations()
        self._lap_puts, self._lap_gets = Durations(), Durations()
        self._empty_since: float | None = self._began
        self._empty_s = self._lap_empty_s = 0.0

    async def put(self, item: Any) -> None:
        """Puts an item in, and measures how long that waits."""
        began = time.monotonic()
        await super().put(item)
        self._record(time.monotonic() - began, self._puts, self._lap_puts)

    async def get(self) -> Any:
        """Takes an item out, and measures how long that waits."""
        began = time.monotonic()
        item = await super().get()
        self._record(time.monotonic() - began, self._gets, self._lap_gets)
        return item

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Calls `interval_stats_callback` each interval and at the end."""
        if self._is_native:
            yield
            return
        from .tasks import every

        self._began = self._lap_began = time.monotonic()
        self._empty_since = self._began if self.empty() else None
        async with every(self.interval, self._tell):
            yield
        if self.interval > 0:
            self._log(self._stats(self._began, self._puts, self._gets, self._empty_s))

    async def interval_stats_callback(self, stats: QueuePerfStats) -> None:
        """Is given what was measured in an interval. By default it is logged, at INFO.

        What it raises is logged, but for the last time: there it ends the pipeline with a
        `PipelineFailure`.
        """
        self._log(stats)

    # `asyncio.Queue` calls these two for whatever goes in and out.
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
            self._lap_empty_s += now - self._empty_since
            self._empty_since = now

    def _record(self, seconds: float, *counts: Durations) -> None:
        for count in counts:
            count.record(seconds)

    async def _tell(self) -> None:
        self._count_empty()
        stats = self._stats(self._lap_began, self._lap_puts, self._lap_gets, self._lap_empty_s)
        self._lap_began, self._lap_empty_s = time.monotonic(), 0.0
        self._lap_puts.clear()
        self._lap_gets.clear()
        await self.interval_stats_callback(stats)

    def _stats(
        self, began: float, puts: Durations, gets: Durations, empty_s: float
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


def is_used_for_real(queue: AsyncQueue) -> bool:
    """Whether a class changes how a queue works."""
    base = StatsQueue if isinstance(queue, StatsQueue) else AsyncQueue
    return any(getattr(type(queue), way) is not getattr(base, way) for way in _WAYS)
