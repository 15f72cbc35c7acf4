"""The hooks, queues and reports of one pipeline, made once: for its check, and for its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _spdl_rs
from ..defs._stage_info import StageInfo
from .options import BuildOptions
from .reporting import Log, Reporter, wants_log

if TYPE_CHECKING:
    from .._event_loop.hooked_stage import HookedStage
    from .._event_loop.supervisor import Companions
    from .._hooks.queues import AsyncQueue, StatsQueue

# From start to end.
_ALWAYS = -1.0


class Instrumentation:
    """What a pipeline has around its stages.

    Args:
        options: What is wanted.
        merges: Whether functions merge its sources.
    """

    def __init__(self, options: BuildOptions, merges: bool) -> None:
        self.options = options
        self.merges = merges
        self.companions: Companions | None = None
        """What runs on the event loop; `None` where nothing does but stages."""
        if merges or options.hook_factory or options.queue_factory or options.background_tasks:
            # Who needs none of it does not import asyncio.
            from .._event_loop.supervisor import Companions

            self.companions = Companions(options.background_tasks)
        self._stages: dict[StageInfo, HookedStage | None] = {}
        self._queues: dict[StageInfo, AsyncQueue] = {}
        self._log = Log(each_interval=options.report_stats_interval > 0)
        self._fed: dict[str, StatsQueue] = {}

    def hooks(self, name: str, info: StageInfo) -> HookedStage | None:
        """The hooks of a stage, where there are any.

        Raises:
            TypeError, ValueError: The factory gives something else.
        """
        if self.options.logs_stages:
            self._log.stages[name] = info
        if self.options.hook_factory is None or self.companions is None:
            return None
        if info not in self._stages:
            from .._event_loop.hooked_stage import HookedStage
            from .._hooks.task_hooks import hooks_of

            hooks = hooks_of(self.options.hook_factory, info)
            self._stages[info] = HookedStage(name, hooks, self.companions) if hooks else None
        return self._stages[info]

    def queue(self, info: StageInfo, buffer_size: int) -> AsyncQueue | None:
        """The queue of the user's behind a stage, where there is one. It lives with the pipeline.

        Raises:
            TypeError: `queue_class` makes something else.
        """
        if self.options.queue_factory is None or self.companions is None:
            return None
        if info not in self._queues:
            from .._event_loop.supervisor import Life
            from .._hooks.queues import AsyncQueue

            queue: Any = self.options.queue_factory(info, buffer_size=buffer_size)
            if not isinstance(queue, AsyncQueue):
                raise TypeError(f"queue_class made a {type(queue).__name__!r}, no AsyncQueue")
            self._queues[info] = queue
            self.companions.add_life(Life(queue.name, [queue.stage_hook]))
        return self._queues[info]

    def watch(self, name: str, info: StageInfo, buffer_size: int) -> None:
        """Has the native queue behind a stage reported, to the user's queue where there is one."""
        queue = self.queue(info, buffer_size)
        if queue is None:
            self._log.queues[name] = info
            return
        from .._hooks.queues import StatsQueue

        if isinstance(queue, StatsQueue):
            queue._is_native = True
            self._fed[name] = queue

    def interval(self) -> float | None:
        """How often there are reports; `None` where nobody wants any."""
        intervals = [queue.interval for queue in self._fed.values()]
        if wants_log() and (self._log.stages or self._log.queues):
            intervals.append(self.options.report_stats_interval)
        # Where there are several, the shortest is that of all.
        positive = [interval for interval in intervals if interval > 0]
        if positive:
            return min(positive)
        return _ALWAYS if intervals else None

    def reporter(self, intervals: _spdl_rs.Intervals, monitor: _spdl_rs.Monitor) -> Reporter:
        """The body of the thread that tells of these intervals."""
        log = self._log if wants_log() else Log()
        return Reporter(intervals, monitor, log, dict(self._fed), self.companions)
