"""`Control`: changes threads and concurrency while a pipeline runs."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import _spdl_rs
from ..._arguments import MAX_THREADS, text, whole
from .._failures.stage_names import plain
from .._processes.exit import PipelineThread, start_all, wait_at_exit

if TYPE_CHECKING:
    from .assembly import Assembly


class Control:
    """Changes threads and concurrency of a running pipeline. Created by `Pipeline.control`. Thread-safe.

    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> builder = PipelineBuilder().add_source(range(4)).pipe(str).add_sink()
    >>> pipeline = builder.build(num_threads=1)
    >>> with pipeline.auto_stop():
    ...     pipeline.control().set_num_threads(2)
    ...     pipeline.control().set_concurrency("str", 2)
    ...     sorted(pipeline), pipeline.stats()["stages"][1]["concurrency"]
    (['0', '1', '2', '3'], 2)
    """

    def __init__(self, assembly: Assembly, threads: list[Any], lock: Any) -> None:
        self._assembly, self._threads, self._lock = assembly, threads, lock

    def set_num_threads(self, num_threads: int) -> None:
        """Sets the number of worker threads that stages without an `executor` share: `num_threads` of `build`.

        Excess threads end their current items first, and then stay idle until the pipeline ends.

        Raises:
            TypeError: `num_threads` is not an integer.
            ValueError: `num_threads` is out of range.
        """
        num_threads = whole("num_threads", num_threads, 1, min(MAX_THREADS, 4096))
        self._start_threads(self._assembly.shared, num_threads, "spdl_worker_thread")
        self._assembly.run.set_threads(num_threads)

    def set_concurrency(self, stage: str, concurrency: int) -> None:
        """Sets how many items a stage processes at the same time. Items in progress are finished.

        Stages without an `executor` share the threads of the pipeline: see `set_num_threads`.

        Args:
            stage: The name of the stage, or its full name in `stats()`.
            concurrency: The number of items, at least 1.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `concurrency` is out of range, no stage with adjustable concurrency has this name, or several
                have it.
        """
        concurrency = whole("concurrency", concurrency, 1, 4096)
        name = self._full_name(text("stage", stage))
        workers = self._assembly.workers_of.get(name)
        if workers is not None:
            self._start_threads(workers, concurrency, "spdl_stage_thread")
        self._assembly.run.set_concurrency(name, concurrency)

    def _full_name(self, stage: str) -> str:
        names = [one["name"] for one in self._assembly.run.monitor.statistics()["stages"]]
        found = [name for name in names if stage in (name, plain(name))]
        if len(found) > 1:
            raise ValueError(f"several stages are named {stage!r}; pass one of the full names {found}")
        return found[0] if found else stage

    def _start_threads(self, workers: _spdl_rs.Workers, count: int, name: str) -> None:
        with self._lock.held():
            known = self._assembly.counts.get(workers, workers.threads)
            threads: Sequence[PipelineThread] = [
                PipelineThread(f"{name}_{at}", workers) for at in range(known, count)
            ]
            if not threads or self._assembly.run.ended:
                return
            wait_at_exit(threads, self._assembly.stages_of)
            context = contextvars.copy_context()
            _spdl_rs.uninterrupted(lambda: context.run(start_all, threads))
            self._assembly.counts[workers] = count
            self._threads += threads
