"""What runs beside a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias


class BackgroundTask:
    """Runs beside a pipeline, on its event loop, from its start to its end.

    What it raises is logged, and ends nothing. At the end of the pipeline it is cancelled.

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
        """What is to be done."""
        raise NotImplementedError(f"{type(self).__name__} does not define run")


BackgroundTaskFactory: TypeAlias = Callable[[], BackgroundTask]
"""Makes a background task, once for each pipeline that is started."""
