"""What holds for all pipelines of this process that are built from now on.

>>> from spdl_rs.pipeline import config
>>> config.set_default_hook_class(None)
>>> config.get_default_hook_class() is None
True
>>> config.set_default_hook_class()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
]


def set_default_hook_class(hook_class: type[TaskHook] | None = TaskStatsHook) -> None:
    """Sets which hook stages have where `task_hook_factory` is not given.

    Args:
        hook_class: Is called with a `StageInfo` and the interval of reports. For `TaskStatsHook`
            itself the native statistics are logged, which cost nothing. `None` is no hook.
    """
    defaults.hook_class = hook_class


def get_default_hook_class() -> type[TaskHook] | None:
    """Which hook stages have where `task_hook_factory` is not given."""
    return defaults.hook_class


def set_default_queue_class(queue_class: type[AsyncQueue] | None = None) -> None:
    """Sets which queues are between stages where `queue_class` is not given.

    Args:
        queue_class: Is called with a `StageInfo` and `buffer_size=`, and, where it is a
            `StatsQueue`, with `interval=`. `None` is `StatsQueue`. For that itself the native
            statistics are logged, which cost nothing.
    """
    defaults.queue_class = queue_class


def get_default_queue_class() -> type[AsyncQueue]:
    """Which queues are between stages where `queue_class` is not given."""
    if defaults.queue_class is None:
        from ._hooks.queues import StatsQueue

        return StatsQueue
    return defaults.queue_class


def set_default_background_tasks(tasks: list[BackgroundTaskFactory] | None) -> None:
    """Sets what runs beside pipelines for which `background_tasks` is not given."""
    defaults.background_tasks = tasks


def get_default_background_tasks() -> list[BackgroundTaskFactory] | None:
    """What runs beside pipelines for which `background_tasks` is not given."""
    return defaults.background_tasks


def set_default_build_callback(callback: Callable[[PipelineConfig[Any]], None] | None) -> None:
    """Sets what is called with each configuration that is built, before anything is made.

    Args:
        callback: What it raises ends the building. `None` is nothing.
    """
    defaults.build_callback = callback


def get_default_build_callback() -> Callable[[PipelineConfig[Any]], None] | None:
    """What is called with each configuration that is built."""
    return defaults.build_callback


def set_default_profile_hook(hook: ProfileHook | None = None) -> None:
    """Sets what is entered around profiles for which `hook` is not given. `None` is nothing."""
    defaults.profile_hook = hook


def get_default_profile_hook() -> ProfileHook | None:
    """What is entered around profiles for which `hook` is not given."""
    return defaults.profile_hook


def set_default_profile_callback(callback: ProfileCallback | None = None) -> None:
    """Sets what is given the result of each stage in profiles for which `callback` is not given.
    `None` is nothing."""
    defaults.profile_callback = callback


def get_default_profile_callback() -> ProfileCallback | None:
    """What is given the result of each stage where `callback` is not given."""
    return defaults.profile_callback
