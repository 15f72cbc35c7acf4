"""Defaults for all pipelines that this process builds later.

>>> from spdl_rs.pipeline import config
>>> config.set_default_hook_class(None)
>>> config.get_default_hook_class() is None
True
>>> config.set_default_hook_class()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._arguments import seconds
from .._spdl_rs import set_stall_time, set_starvation_time
from ._failures.log import set_compact_log
from ._hooks.background import BackgroundTaskFactory
from ._hooks.task_hooks import TaskHook, TaskStatsHook
from ._profile.diagnostic import diagnostic_mode_num_sources, is_diagnostic_mode_enabled
from ._run.options import defaults

if TYPE_CHECKING:
    from ._hooks.profile_hook import ProfileHook
    from ._hooks.queues import AsyncQueue
    from ._profile.profile import ProfileCallback
    from .defs._configs import PipelineConfig

__all__ = [
    "diagnostic_mode_num_sources",
    "get_default_background_tasks",
    "get_default_build_callback",
    "get_default_hook_class",
    "get_default_profile_callback",
    "get_default_profile_hook",
    "get_default_queue_class",
    "is_diagnostic_mode_enabled",
    "set_compact_log",
    "set_default_background_tasks",
    "set_default_build_callback",
    "set_default_hook_class",
    "set_default_profile_callback",
    "set_default_profile_hook",
    "set_default_queue_class",
    "set_stall_timeout",
    "set_starvation_interval",
]


def set_default_hook_class(hook_class: type[TaskHook] | None = TaskStatsHook) -> None:
    """Sets the default hook of stages, used if `task_hook_factory` is not given.

    Args:
        hook_class: Called with a `StageInfo` and the interval of reports. `TaskStatsHook` selects native
            statistics, which are logged at no cost. `None`: no hook.
    """
    defaults.hook_class = hook_class


def get_default_hook_class() -> type[TaskHook] | None:
    """Returns the default hook of stages."""
    return defaults.hook_class


def set_default_queue_class(queue_class: type[AsyncQueue] | None = None) -> None:
    """Sets the default class of queues, used if `queue_class` is not given.

    Args:
        queue_class: Called with a `StageInfo` and `buffer_size=`, and with `interval=` if it is a
            `StatsQueue`. `None` means `StatsQueue`, which selects native statistics that are logged at
            no cost.
    """
    defaults.queue_class = queue_class


def get_default_queue_class() -> type[AsyncQueue]:
    """Returns the default class of queues."""
    if defaults.queue_class is None:
        from ._hooks.queues import StatsQueue

        return StatsQueue
    return defaults.queue_class


def set_default_background_tasks(tasks: list[BackgroundTaskFactory] | None) -> None:
    """Sets functions that create background tasks for each pipeline, in addition to `background_tasks`."""
    defaults.background_tasks = tasks


def get_default_background_tasks() -> list[BackgroundTaskFactory] | None:
    """Returns the default background tasks."""
    return defaults.background_tasks


def set_default_build_callback(callback: Callable[[PipelineConfig[Any]], None] | None) -> None:
    """Sets a function that is called with each configuration before the pipeline is created.

    Args:
        callback: Called with a `PipelineConfig`. If the callback raises, `build` raises the exception.
            `None` removes the callback.
    """
    defaults.build_callback = callback


def get_default_build_callback() -> Callable[[PipelineConfig[Any]], None] | None:
    """Returns the function that is called with each configuration."""
    return defaults.build_callback


def set_default_profile_hook(hook: ProfileHook | None = None) -> None:
    """Sets the default hook of profiles, used if `hook` is not given. `None` removes it."""
    defaults.profile_hook = hook


def get_default_profile_hook() -> ProfileHook | None:
    """Returns the default hook of profiles."""
    return defaults.profile_hook


def set_default_profile_callback(callback: ProfileCallback | None = None) -> None:
    """Sets the default callback of profiles, used if `callback` is not given. `None` removes it."""
    defaults.profile_callback = callback


def get_default_profile_callback() -> ProfileCallback | None:
    """Returns the default callback of profiles."""
    return defaults.profile_callback


def set_stall_timeout(timeout: float | None = 60.0) -> None:
    """Sets after how many seconds without progress a warning is logged. Default: 60.

    A pipeline or `ImageLoader` that is built later logs one warning to the logger `spdl_rs` if the
    consumer waits and a stage finishes no item for this time. The warning names the stage and what the
    stage waits for: its function, the source, memory, or a worker. A slow consumer causes no warning.

    Args:
        timeout: `None` means no warnings.
    """
    set_stall_time(float("inf") if timeout is None else seconds("timeout", timeout))


def set_starvation_interval(interval: float | None = 60.0) -> None:
    """Sets how often a warning is logged while the consumer starves, in seconds. Default: 60.

    A pipeline or loader that is built later logs a warning to the logger `spdl_rs` if the consumer waited for data
    for more than a quarter of the last `interval` seconds. The start of the pipeline does not count. The warning
    has the diagnosis: what limits the pipeline, and what would help.

    Args:
        interval: `None` means no warnings.
    """
    set_starvation_time(float("inf") if interval is None else seconds("interval", interval))
