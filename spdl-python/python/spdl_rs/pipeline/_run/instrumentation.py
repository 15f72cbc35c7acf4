"""Hooks, queues and reports of one pipeline, shared by its check and its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _spdl_rs
from ..defs._stage_info import StageInfo
from .options import BuildOptions
from .reporting import LoggedNames, Reporter, wants_log

if TYPE_CHECKING:
    from .._event_loop.hooked_stage import HookedStage
    from .._event_loop.supervisor import LoopSupervisor
    from .._hooks.queues import AsyncQueue, StatsQueue

# An interval that covers the whole run.
_ALWAYS = -1.0


class Instrumentation:
    """The hooks, Python queues and reports of one pipeline.

    Args:
        options: The build options.
        merges: Whether functions of the user merge sources.
    """

    def __init__(self, options: BuildOptions, merges: bool) -> None:
        self.options = options
        self.merges = merges
        self.supervisor: LoopSupervisor | None = None
        """Runs hooks, queues and background tasks; `None` if there are none."""
        if merges or options.hook_factory or options.queue_factory or options.background_tasks:
            # This module is imported lazily, because importing asyncio is slow.
            from .._event_loop.supervisor import LoopSupervisor

            self.supervisor = LoopSupervisor(options.background_tasks)
        self._stages: dict[StageInfo, HookedStage | None] = {}
        self._queues: dict[StageInfo, AsyncQueue] = {}
        self._logged = LoggedNames(each_interval=options.report_stats_interval > 0)
        self._native_queues: dict[str, StatsQueue] = {}

    def hooks(self, name: str, info: StageInfo) -> HookedStage | None:
        """Returns the hooks of a stage, if any.

        Raises:
            TypeError, ValueError: The hook factory does not return a list of valid hooks.
        """
        if self.options.logs_stages:
            self._logged.stages[name] = info
        if self.options.hook_factory is None or self.supervisor is None:
            return None
        if info not in self._stages:
            from .._event_loop.hooked_stage import HookedStage
            from .._hooks.task_hooks import hooks_of

            hooks = hooks_of(self.options.hook_factory, info)
            self._stages[info] = HookedStage(name, hooks, self.supervisor) if hooks else None
        return self._stages[info]

    def queue(self, info: StageInfo, buffer_size: int) -> AsyncQueue | None:
        """Returns the Python queue after a stage, if any, and adds its lifespan.

        Raises:
            TypeError: `queue_class` does not create an `AsyncQueue`.
        """
        if self.options.queue_factory is None or self.supervisor is None:
            return None
        if info not in self._queues:
            from .._event_loop.supervisor import Lifespan
            from .._hooks.queues import AsyncQueue

            queue: Any = self.options.queue_factory(info, buffer_size=buffer_size)
            if not isinstance(queue, AsyncQueue):
                raise TypeError(
                    f"queue_class must create an AsyncQueue, not {type(queue).__name__!r}"
                )
            self._queues[info] = queue
            self.supervisor.add_lifespan(Lifespan(queue.name, [queue.stage_hook]))
        return self._queues[info]

    def watch(self, name: str, info: StageInfo, buffer_size: int) -> None:
        """Reports statistics of the native queue after a stage, to the log or to a Python queue."""
        queue = self.queue(info, buffer_size)
        if queue is None:
            self._logged.queues[name] = info
            return
        from .._hooks.queues import StatsQueue

        if isinstance(queue, StatsQueue):
            queue._is_native = True
            self._native_queues[name] = queue

    def interval(self) -> float | None:
        """Returns the interval of reports; `None` if no reports are needed."""
        intervals = [queue.interval for queue in self._native_queues.values()]
        if wants_log() and (self._logged.stages or self._logged.queues):
            intervals.append(self.options.report_stats_interval)
        # All reports use the shortest interval.
        positive = [interval for interval in intervals if interval > 0]
        if positive:
            return min(positive)
        return _ALWAYS if intervals else None

    def reporter(self, intervals: _spdl_rs.Intervals, monitor: _spdl_rs.Monitor) -> Reporter:
        """Returns the main function of the reporting thread."""
        logged = self._logged if wants_log() else LoggedNames()
        return Reporter(intervals, monitor, logged, dict(self._native_queues), self.supervisor)
