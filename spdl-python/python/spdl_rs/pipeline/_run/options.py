"""Checked build options, and the defaults of this process."""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from ... import _spdl_rs
from ..._arguments import flag, function, seconds, shown, whole
from ..._arguments import tune as checked_tune
from .._hooks.background import BackgroundTaskFactory
from .._hooks.task_hooks import TaskHook, TaskStatsHook
from ..defs._checks import budget, threads
from ..defs._configs import PipelineConfig
from ..defs._stage_info import StageInfo

if TYPE_CHECKING:
    from .._hooks.profile_hook import ProfileHook
    from .._hooks.queues import AsyncQueue

TaskHookFactory: TypeAlias = Callable[[StageInfo], Sequence[TaskHook]]
QueueFactory: TypeAlias = "Callable[..., AsyncQueue]"


def check_options(
    *,
    num_threads: Any,
    max_failures: Any,
    report_stats_interval: Any,
    queue_class: Any,
    task_hook_factory: Any,
    background_tasks: Any,
    use_thread_output_queue: Any,
    stage_id: Any = 0,
    epoch: Any = None,
) -> None:
    """Checks the arguments of `build_pipeline`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
    """
    threads(num_threads)
    budget(max_failures)
    seconds("report_stats_interval", report_stats_interval)
    whole("stage_id", stage_id, -_MAX_STAGE_ID, _MAX_STAGE_ID)
    if epoch is not None:
        whole("epoch", epoch, 0, 2**63)
    if queue_class is not None:
        function("queue_class", queue_class)
    if task_hook_factory is not None:
        function("task_hook_factory", task_hook_factory)
    if background_tasks is not None:
        if isinstance(background_tasks, (str, bytes)) or not isinstance(background_tasks, Iterable):
            raise TypeError(
                "background_tasks must be a list of functions that create BackgroundTasks, not "
                f"{shown(background_tasks)}"
            )
        for at, make in enumerate(background_tasks):
            function(f"background_tasks[{at}]", make)
    flag("use_thread_output_queue", use_thread_output_queue, or_number=True)


_MAX_STAGE_ID = 2**31 - 1


@dataclass(frozen=True)
class RunSettings:
    """Options that few pipelines use."""

    memory_budget: int | None = None
    quarantine: Any = None
    """The path of the quarantine file."""
    key: Callable[[Any], str] | None = None
    record_order: bool = False
    replay: str | None = None
    tune: bool | str = False
    monitor: Any = None
    """The path of the monitor socket."""

    @staticmethod
    def of(
        memory_budget: Any,
        quarantine: Any,
        key: Any,
        record_order: Any,
        replay: Any,
        tune: Any,
        monitor: Any,
    ) -> RunSettings:
        """Checks the options.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option is out of range, or `key` is passed without `quarantine`.
        """
        if memory_budget is not None:
            memory_budget = whole("memory_budget", memory_budget, 1, 2**60)
        if quarantine is not None:
            quarantine = os.fsdecode(quarantine)
        if key is not None:
            function("key", key)
            if quarantine is None:
                raise ValueError("key has no effect without quarantine; pass the path of a file")
        if replay is not None and not isinstance(replay, str):
            raise TypeError(f"replay must be a text of order_record(), not {shown(replay)}")
        record_order, tune = flag("record_order", record_order), checked_tune(tune)
        monitor = None if monitor is None else os.fsdecode(monitor)
        return RunSettings(memory_budget, quarantine, key, record_order, replay, tune, monitor)

    def refuse(self, what: str) -> None:
        """Raises `ValueError` if any of these options is used."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise ValueError(f"{field.name} is not supported for a pipeline with {what}")

    def quarantined(self) -> set[str] | None:
        """Returns the keys of the quarantine file."""
        return None if self.quarantine is None else set(_spdl_rs.PipelineRun.quarantined(self.quarantine))

    def key_function(self) -> Callable[[Any], str] | None:
        return None if self.quarantine is None else self.key or _key_of

    def native(self, resume: str | None) -> dict[str, Any] | None:
        """Returns the options for the native module."""
        if resume is None and self == RunSettings():
            return None
        return {
            "resume": resume,
            "memory": self.memory_budget,
            "quarantine": self.quarantine,
            "record_order": self.record_order,
            "replay": self.replay,
            "tune": self.tune,
            "monitor": self.monitor,
        }


def _key_of(item: Any) -> str:
    if isinstance(item, (str, int)):
        return str(item)
    if isinstance(item, os.PathLike):
        return os.fsdecode(item)
    raise TypeError(
        f"an item of type {type(item).__name__!r} has no key for the quarantine file; pass key=, a function that "
        "returns a str"
    )


def size_of(item: Any) -> int:
    """Returns the size of an item in bytes: of arrays, bytes and text, also in lists and dicts."""
    size = getattr(item, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(item, (bytes, bytearray, str)):
        return len(item)
    if isinstance(item, Mapping):
        return sum(map(size_of, item.values()))
    if isinstance(item, (list, tuple, set, frozenset)):
        return sum(map(size_of, item))
    return sys.getsizeof(item)


@dataclass(frozen=True)
class BuildOptions:
    """Options of a pipeline that are not part of its configuration."""

    num_threads: int
    max_failures: int | float | tuple[float, int, bool]
    """The failure budget, in the engine's form."""
    stage_id: int
    report_stats_interval: float
    hook_factory: TaskHookFactory | None
    """`None`: no hooks."""
    logs_stages: bool
    """Whether native statistics of stages are logged."""
    queue_factory: QueueFactory | None
    """`None`: native queues, whose statistics are logged."""
    background_tasks: Sequence[BackgroundTaskFactory]
    epoch: int | None = 0
    """The number of the first epoch. `None`: 0, and repeated random numbers are reported."""
    settings: RunSettings = RunSettings()

    @staticmethod
    def of(
        num_threads: int,
        max_failures: int | float | tuple[float, int, bool],
        stage_id: int,
        report_stats_interval: float,
        queue_class: QueueFactory | None,
        task_hook_factory: TaskHookFactory | None,
        background_tasks: Sequence[BackgroundTaskFactory] | None,
        epoch: int | None = 0,
        settings: RunSettings = RunSettings(),
    ) -> BuildOptions:
        """Replaces `None` by the defaults of this process."""
        interval = seconds("report_stats_interval", report_stats_interval)
        hook_class = defaults.hook_class
        hooks = task_hook_factory
        if hooks is None and hook_class not in (None, TaskStatsHook):
            hooks = functools.partial(_hooks, hook_class, interval)
        logs_stages = task_hook_factory is None and hook_class is TaskStatsHook
        queues = queue_class
        if queues is None and defaults.queue_class is not None:
            queues = _default_queues(defaults.queue_class, interval)
        return BuildOptions(
            threads(num_threads),
            max_failures,
            operator.index(stage_id),
            interval,
            hooks,
            logs_stages,
            queues,
            (*(defaults.background_tasks or ()), *(background_tasks or ())),
            epoch,
            settings,
        )


def _hooks(hook_class: Callable[..., TaskHook], interval: float, info: StageInfo) -> list[TaskHook]:
    return [hook_class(info, interval)]


def _default_queues(queue_class: type[Any], interval: float) -> QueueFactory | None:
    from .._hooks.queues import StatsQueue

    if queue_class is StatsQueue:
        return None
    if issubclass(queue_class, StatsQueue):
        return functools.partial(queue_class, interval=interval)
    return queue_class


@dataclass
class _Defaults:
    hook_class: type[TaskHook] | None = TaskStatsHook
    # `None` means `StatsQueue`, which is imported only if needed.
    queue_class: type[AsyncQueue] | None = None
    background_tasks: list[BackgroundTaskFactory] | None = None
    build_callback: Callable[[PipelineConfig[Any]], None] | None = None
    profile_hook: ProfileHook | None = None
    profile_callback: Callable[[Any], None] | None = None


defaults = _Defaults()
