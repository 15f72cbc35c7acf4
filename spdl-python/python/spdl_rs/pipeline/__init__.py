"""Pipelines of Python functions, run by Rust threads, with the interface of SPDL.

| task | use |
|---|---|
| build a pipeline step by step | `PipelineBuilder` |
| build a pipeline from a configuration | `build_pipeline`, `spdl_rs.pipeline.defs` |
| iterate, stop, get statistics | `Pipeline` |
| run code around stages and items, custom queues | `TaskHook`, `AsyncQueue` |
| run a pipeline or an iterable in another process | `run_pipeline_in_subprocess`, `iterate_in_subprocess` |
| resume within an epoch | `Pipeline.state_dict`, `Pipeline.load_state_dict` |
| call functions again after exceptions | `Retry` |
| change threads and concurrency during a run | `Pipeline.control` |
| find the slowest stage | `Pipeline.diagnose`, `profile_pipeline` |
| change defaults of this process | `spdl_rs.pipeline.config` |

>>> from spdl_rs.pipeline import PipelineBuilder
>>> pipeline = (
...     PipelineBuilder()
...     .add_source(range(7))
...     .pipe(lambda number: number * number, output_order="input", concurrency=2)
...     .aggregate(3)
...     .add_sink()
...     .build(num_threads=2)
... )
>>> with pipeline.auto_stop():
...     for batch in pipeline:
...         print(batch)
[0, 1, 4]
[9, 16, 25]
[36]

The GIL is held only while Python functions run. Ctrl-C interrupts every wait.

Failed items are dropped and logged. The number of failures is unlimited by default, and `max_failures` of
`build` limits it. When a pipeline that dropped items ends without a `PipelineFailure`, or an epoch of a continuous
source ends, one warning with counts by reason is logged.
"""

from typing import TYPE_CHECKING, Any

from .._cache_iterator import cache_iterator
from ._build.build import build_pipeline
from ._build.builder import PipelineBuilder
from ._build.subprocess import run_pipeline_in_subinterpreter, run_pipeline_in_subprocess
from ._failures.failure import PipelineFailure
from ._hooks.background import BackgroundTask, BackgroundTaskFactory
from ._hooks.markers import is_eof, is_epoch_end
from ._hooks.task_hooks import TaskHook, TaskPerfStats, TaskStatsHook
from ._processes.arena import SharedMemoryRingBuffer, SharedMemorySegmentPool
from ._processes.iterate import iterate_in_subinterpreter, iterate_in_subprocess
from ._processes.priority_executor import (
    PriorityExecutorEntrypoint,
    PriorityInterpreterPoolExecutor,
    PriorityProcessPoolExecutor,
    PriorityThreadPoolExecutor,
)
from ._processes.remote_errors import WorkerError, WorkerTimeoutError
from ._run.control import Control
from ._run.pipeline import Pipeline
from .defs._retry import Retry
from .defs._stage_info import StageInfo

if TYPE_CHECKING:
    from ._hooks.process_group import ProcessGroupResourceUsage, ProcessGroupStatsMonitor
    from ._hooks.profile_hook import ProfileHook
    from ._hooks.queues import AsyncQueue, QueuePerfStats, StatsQueue
    from ._hooks.tasks import create_task
    from ._profile.profile import profile_pipeline
    from ._profile.result import ProfileReport, ProfileResult, ProfileStats

__all__ = [
    "AsyncQueue",
    "BackgroundTask",
    "BackgroundTaskFactory",
    "Control",
    "Pipeline",
    "PipelineBuilder",
    "PipelineFailure",
    "PriorityExecutorEntrypoint",
    "PriorityInterpreterPoolExecutor",
    "PriorityProcessPoolExecutor",
    "PriorityThreadPoolExecutor",
    "ProcessGroupResourceUsage",
    "ProcessGroupStatsMonitor",
    "ProfileHook",
    "ProfileReport",
    "ProfileResult",
    "ProfileStats",
    "QueuePerfStats",
    "Retry",
    "SharedMemoryRingBuffer",
    "SharedMemorySegmentPool",
    "StageInfo",
    "StatsQueue",
    "TaskHook",
    "TaskPerfStats",
    "TaskStatsHook",
    "WorkerError",
    "WorkerTimeoutError",
    "build_pipeline",
    "cache_iterator",
    "create_task",
    "is_eof",
    "is_epoch_end",
    "iterate_in_subinterpreter",
    "iterate_in_subprocess",
    "profile_pipeline",
    "run_pipeline_in_subinterpreter",
    "run_pipeline_in_subprocess",
]

# Imported on first access: asyncio alone takes longer to import than the rest of the package.
_LAZY = {
    "AsyncQueue": "_hooks.queues",
    "ProcessGroupResourceUsage": "_hooks.process_group",
    "ProcessGroupStatsMonitor": "_hooks.process_group",
    "ProfileHook": "_hooks.profile_hook",
    "ProfileReport": "_profile.result",
    "ProfileResult": "_profile.result",
    "ProfileStats": "_profile.result",
    "QueuePerfStats": "_hooks.queues",
    "StatsQueue": "_hooks.queues",
    "create_task": "_hooks.tasks",
    "profile_pipeline": "_profile.profile",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
