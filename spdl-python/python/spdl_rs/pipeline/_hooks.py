"""Code of the user's around stages and items."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ._durations import Durations, in_words
from ._stage_info import StageInfo

_LOGGER = logging.getLogger("spdl_rs.pipeline")


class TaskHook(ABC):
    """Is run around a stage and around each of its items, on the pipeline's event loop.

    A hook is made for one stage, by the `task_hook_factory` of `build_pipeline`. Where there are
    several for a stage, the first one is the outermost. An item that a stage turns into several
    has its `task_hook` around each of them, and once more around the end, which is a
    `StopAsyncIteration`: let it pass. What puts items together has it around each that it takes in.

    `asyncio.Task`s are not cancelled between the two halves of a hook: whatever has been entered
    is left.

    >>> from contextlib import asynccontextmanager
    >>> from spdl_rs.pipeline import PipelineBuilder, TaskHook
    >>> class Tell(TaskHook):
    ...     @asynccontextmanager
    ...     async def task_hook(self, input_item=None):
    ...         print("before", input_item)
    ...         yield
    ...         print("after", input_item)
    >>> builder = PipelineBuilder().add_source("ab").pipe(str.upper).add_sink()
    >>> list(builder.build(num_threads=1, task_hook_factory=lambda info: [Tell()]))
    before a
    after a
    before b
    after b
    ['A', 'B']
    """

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Is entered before the stage's first item, and left when the pipeline has ended.

        What it raises ends the pipeline with a `PipelineFailure`.
        """
        yield

    @abstractmethod
    def task_hook(self, input_item: Any = None) -> AbstractAsyncContextManager[None]:
        """Is entered before an item, and left after it.

        What it raises is a failure of the item. So is what the stage raises, which passes through
        here; where it is not raised again, the item is dropped without one.

        Args:
            input_item: What the stage was given.
        """


@dataclass
class TaskPerfStats:
    """What a stage did. Times are in seconds, and those of successful calls only."""

    num_tasks: int
    """How many calls there were."""
    num_failures: int
    """How many of them failed."""
    ave_time: float
    """How long one took on average."""
    p90_time: float
    """How long 90 % of them took at most."""
    p99_time: float
    """How long 99 % of them took at most."""

    def __str__(self) -> str:
        return (
            f"{self.num_tasks} tasks, {self.num_failures} failed; mean {in_words(self.ave_time)}, "
            f"p90 {in_words(self.p90_time)}, p99 {in_words(self.p99_time)}"
        )


class TaskStatsHook(TaskHook):
    """Measures how long a stage takes, and logs that at the end.

    Args:
        info: The stage.
        interval: After how many seconds `interval_stats_callback` is called each time, and once
            more at the end with the rest. Where it is not positive, only at the end, with
            everything.

    >>> from spdl_rs.pipeline import PipelineBuilder, TaskStatsHook
    >>> class Tell(TaskStatsHook):
    ...     async def interval_stats_callback(self, stats):
    ...         print(self.info.stage_name, stats.num_tasks, stats.num_failures)
    >>> builder = PipelineBuilder().add_source([1, 0]).pipe(lambda n: 1 / n, name="invert")
    >>> list(builder.add_sink().build(num_threads=1, task_hook_factory=lambda info: [Tell(info)]))
    invert 2 1
    [1.0]
    """

    def __init__(self, info: StageInfo, interval: float = -1) -> None:
        self.info = info
        self.interval = interval
        self.num_tasks = 0
        self.num_success = 0
        self._lock = threading.Lock()
        self._all = Durations()
        self._lap = Durations()
        self._lap_tasks = 0

    @property
    def ave_time(self) -> float:
        """How long a successful call took on average, in seconds."""
        return self._all.mean

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Calls `interval_stats_callback` each interval and at the end."""
        from ._periodic import every

        async with every(self.interval, self._tell):
            yield
        if self.interval > 0:
            self._log(self._stats(self.num_tasks, self._all))

    @asynccontextmanager
    async def task_hook(self, input_item: Any = None) -> AsyncIterator[None]:
        """Measures a call."""
        del input_item
        began = time.monotonic()
        try:
            yield
        except StopAsyncIteration:
            raise
        except Exception:
            self.record(None)
            raise
        self.record(time.monotonic() - began)

    def record(self, seconds: float | None) -> None:
        """Counts a call, from any thread; `None` for one that failed."""
        with self._lock:
            self.num_tasks += 1
            self._lap_tasks += 1
            if seconds is not None:
                self.num_success += 1
                self._all.record(seconds)
                self._lap.record(seconds)

    async def interval_stats_callback(self, stats: TaskPerfStats) -> None:
        """Is given what was measured in an interval. By default it is logged, at INFO.

        What it raises is logged, but for the last time: there it ends the pipeline with a
        `PipelineFailure`.
        """
        self._log(stats)

    async def _tell(self) -> None:
        with self._lock:
            stats = self._stats(self._lap_tasks, self._lap)
            self._lap_tasks = 0
            self._lap.clear()
        await self.interval_stats_callback(stats)

    def _stats(self, tasks: int, successes: Durations) -> TaskPerfStats:
        return TaskPerfStats(
            tasks,
            tasks - successes.count,
            successes.mean,
            successes.percentile(90),
            successes.percentile(99),
        )

    def _log(self, stats: TaskPerfStats) -> None:
        _LOGGER.info("[%s] %s", self.info, stats)
