"""Pipelines of Python functions, run by Rust threads.

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

The interface is that of SPDL. The GIL is held only inside functions of Python; every wait can be
interrupted by Ctrl-C.
"""

from typing import TYPE_CHECKING, Any

from .._cache_iterator import cache_iterator
from ._arena import SharedMemoryRingBuffer, SharedMemorySegmentPool
from ._background import BackgroundTask, BackgroundTaskFactory
from ._build import build_pipeline
from ._builder import PipelineBuilder
from ._failure import PipelineFailure
from ._hooks import TaskHook, TaskPerfStats, TaskStatsHook
from ._markers import is_eof, is_epoch_end
from ._pipeline import Pipeline
from ._priority_executor import (
    PriorityExecutorEntrypoint,
    PriorityInterpreterPoolExecutor,
    PriorityProcessPoolExecutor,
    PriorityThreadPoolExecutor,
)
from ._remote_errors import WorkerError, WorkerTimeoutError
from ._stage_info import StageInfo
from ._subprocess import (
    iterate_in_subinterpreter,
    iterate_in_subprocess,
    run_pipeline_in_subinterpreter,
    run_pipeline_in_subprocess,
)

if TYPE_CHECKING:
    from ._process_group import ProcessGroupResourceUsage
    from ._process_group_monitor import ProcessGroupStatsMonitor
    from ._profile import ProfileHook, profile_pipeline
    from ._profile_result import ProfileReport, ProfileResult, ProfileStats
    from ._queues import AsyncQueue, QueuePerfStats, StatsQueue
    from ._tasks import create_task

__all__ = [
    "AsyncQueue",
    "BackgroundTask",
    "BackgroundTaskFactory",
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

# Imported when it is asked for: what needs asyncio takes longer than all else together.
_LATER = {
    "AsyncQueue": "_queues",
    "ProcessGroupResourceUsage": "_process_group",
    "ProcessGroupStatsMonitor": "_process_group_monitor",
    "ProfileHook": "_profile",
    "ProfileReport": "_profile_result",
    "ProfileResult": "_profile_result",
    "ProfileStats": "_profile_result",
    "QueuePerfStats": "_queues",
    "StatsQueue": "_queues",
    "create_task": "_tasks",
    "profile_pipeline": "_profile",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
