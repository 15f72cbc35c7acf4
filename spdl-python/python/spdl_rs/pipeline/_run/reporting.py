"""Periodic statistics for the log and for `StatsQueue`. The main function of a thread."""

from __future__ import annotations

import concurrent.futures
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ... import _spdl_rs
from ..._statistics import Interval, QueueStatistics, StageStatistics
from .._failures.log import log_failure
from .._failures.stage_names import is_or_is_part_of
from .._hooks.durations import format_duration
from .._hooks.task_hooks import TaskPerfStats
from ..defs._stage_info import StageInfo

if TYPE_CHECKING:
    from .._event_loop.supervisor import LoopSupervisor
    from .._hooks.queues import QueuePerfStats, StatsQueue

_LOGGER = logging.getLogger("spdl_rs.pipeline")


@dataclass
class LoggedNames:
    """Stages and queues to log, by the names of their engine stages."""

    stages: dict[str, StageInfo] = field(default_factory=dict)
    queues: dict[str, StageInfo] = field(default_factory=dict)
    """The queues after these stages."""
    each_interval: bool = False
    """Whether to log at each interval, in addition to the end."""


class Reporter:
    """Reports statistics of a run at each interval and at the end.

    Args:
        intervals: The statistics of each interval.
        monitor: The statistics of the whole run.
        logged: What to log.
        queues: Python queues to report to, by the names of their engine stages.
        supervisor: Runs the callbacks of queues.
    """

    def __init__(
        self,
        intervals: _spdl_rs.Intervals,
        monitor: _spdl_rs.Monitor,
        logged: LoggedNames,
        queues: dict[str, StatsQueue],
        supervisor: LoopSupervisor | None,
    ) -> None:
        self._intervals = intervals
        self._monitor = monitor
        self._logged = logged
        self._periodic = {name: queue for name, queue in queues.items() if queue.interval > 0}
        self._at_the_end = {name: queues[name] for name in queues.keys() - self._periodic.keys()}
        self._supervisor = supervisor
        self._done: concurrent.futures.Future[None] = concurrent.futures.Future()
        if supervisor is not None:
            supervisor.wait_before_end(self._done)

    def __call__(self) -> None:
        logged = 0
        try:
            while (interval := self._intervals.next()) is not None:
                if self._logged.each_interval:
                    logged += 1
                    self._log(interval)
                self._report_to(self._periodic, interval)
            statistics = self._monitor.statistics()
            whole: Interval = {
                "length_s": statistics["elapsed_s"],
                "stages": statistics["stages"],
                "queues": statistics["queues"],
            }
            if logged != 1:
                self._log(whole)
            self._report_to(self._at_the_end, whole)
        finally:
            self._done.set_result(None)

    def _log(self, interval: Interval) -> None:
        for stage in interval["stages"]:
            info = self._logged.stages.get(stage["name"])
            if info is not None:
                _LOGGER.info("[%s] %s", info, task_stats(stage))
        for name, info in self._logged.queues.items():
            queue = queue_after(name, interval)
            if queue is not None:
                _LOGGER.info("[%s_queue] %s", info, _queue_in_words(queue, interval["length_s"]))

    def _report_to(self, queues: dict[str, StatsQueue], interval: Interval) -> None:
        for name, python_queue in queues.items():
            queue = queue_after(name, interval)
            if queue is not None and self._supervisor is not None:
                stats = queue_stats(queue, interval["length_s"])
                try:
                    self._supervisor.call(python_queue.interval_stats_callback(stats))
                except Exception as error:
                    log_failure(f"interval_stats_callback of {python_queue.name}", error)


def queue_after(name: str, interval: Interval) -> QueueStatistics | None:
    """Returns the queue after a stage, which may consist of several engine stages."""
    found = None
    for stage, queue in zip(interval["stages"], interval["queues"], strict=False):
        if is_or_is_part_of(stage["name"], name):
            found = queue
    return found


def task_stats(stage: StageStatistics) -> TaskPerfStats:
    """Converts native statistics of a stage. Times cover all calls, including failed calls."""
    items = stage["items"]
    service = stage["service_ms"]
    mean = stage["busy_s"] / items if items else 0.0
    return TaskPerfStats(items, stage["failures"], mean, service["p90"] / 1e3, service["p99"] / 1e3)


def queue_stats(queue: QueueStatistics, elapsed: float) -> QueuePerfStats:
    """Converts native statistics of a queue."""
    from .._hooks.queues import QueuePerfStats

    items, puts, gets = queue["items"], queue["wait_per_put_ms"], queue["wait_per_get_ms"]
    return QueuePerfStats(
        elapsed=elapsed,
        num_items=items,
        ave_put_time=queue["put_wait_s"] / items if items else 0.0,
        ave_get_time=queue["get_wait_s"] / items if items else 0.0,
        p90_put_time=puts["p90"] / 1e3,
        p99_put_time=puts["p99"] / 1e3,
        p90_get_time=gets["p90"] / 1e3,
        p99_get_time=gets["p99"] / 1e3,
        occupancy_rate=queue["occupancy"],
    )


def _queue_in_words(queue: QueueStatistics, elapsed: float) -> str:
    items = max(1, queue["items"])
    rate = queue["items"] / elapsed if elapsed else 0.0
    return (
        f"{queue['items']} items in {format_duration(elapsed)} ({rate:.1f}/s); mean wait: put "
        f"{format_duration(queue['put_wait_s'] / items)}, get {format_duration(queue['get_wait_s'] / items)}; "
        f"not empty {100 * queue['occupancy']:.0f} % of the time"
    )


def wants_log() -> bool:
    """Returns whether the log level is enabled."""
    return _LOGGER.isEnabledFor(logging.INFO)
