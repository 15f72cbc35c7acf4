"""Background tasks of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias


class BackgroundTask:
    """A coroutine that runs on the event loop of a pipeline, from its start to its end.

    Exceptions are logged and do not end the pipeline. The task is cancelled at the end of the pipeline.

    >>> import asyncio
    >>> from spdl_rs.pipeline import BackgroundTask, build_pipeline
    >>> from spdl_rs.pipeline.defs import PipelineConfig, SinkConfig, SourceConfig
    >>> class Watch(BackgroundTask):
    ...     async def run(self):
    ...         try:
    ...             await asyncio.sleep(3600)
    ...         finally:
    ...             print("done")
    >>> config = PipelineConfig(SourceConfig("ab"), [], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1, background_tasks=[Watch]))
    done
    ['a', 'b']
    """

    async def run(self) -> None:
        """Runs the task. Subclasses define this method."""
        raise NotImplementedError(f"{type(self).__name__} does not define run")


BackgroundTaskFactory: TypeAlias = Callable[[], BackgroundTask]
"""Creates a background task. Called once for each pipeline that is started."""
