"""What holds for all pipelines of this process that are built from now on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._background import BackgroundTaskFactory
from ._hooks import TaskHook, TaskStatsHook

if TYPE_CHECKING:
    from ._profile import ProfileCallback, ProfileHook
    from ._queues import AsyncQueue
    from .defs._configs import PipelineConfig


@dataclass
class _Defaults:
    hook_class: type[TaskHook] | None = TaskStatsHook
    # `None` is `StatsQueue`: whoever needs no queue of Python's does not import it.
    queue_class: type[AsyncQueue] | None = None
    background_tasks: list[BackgroundTaskFactory] | None = None
    build_callback: Callable[[PipelineConfig[Any]], None] | None = None
    profile_hook: ProfileHook | None = None
    profile_callback: ProfileCallback | None = None


defaults = _Defaults()
