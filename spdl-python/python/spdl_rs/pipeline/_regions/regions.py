"""Regions: stages that run in worker processes.

A pipeline with a region consists of three parts. The stages before the region are a separate pipeline. The
region takes the results of that pipeline, and is the source of the stages after it:

    source ─ stages ─► Region ═► a pipeline of the region's stages, in each process
                       Region ◄═ results, in order of completion
                          └────► stages ─ sink

The parent sends each process up to 2 messages with items before the pipeline of the process needs them, so
that the process rarely waits for the parent. The parent receives results only as fast as the consumer
requests them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .._failures.failure import Cancelled, PipelineFailure, mark_as_reported
from .._failures.stage_names import of_local
from .._run.executors import Cancellable
from .._run.options import BuildOptions
from .._run.pipeline import Pipeline, check_at_end, halt, number_of, show_as
from ..defs import _native
from ..defs._configs import (
    JoinConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
    StageConfig,
    is_continuous,
)
from ..defs._executors import MAIN_PROCESS, PlacementConfig, ProcessPoolExecutorConfig
from . import worker as _region_worker
from .failure_budget import SharedBudget

if TYPE_CHECKING:
    from .._processes.worker_process import WorkerProcess

# How many items may wait in the queue before a region.
_QUEUED_ITEMS = 8
# How many messages with items may wait in a process.
_QUEUED_MESSAGES = 2


def build_with_regions(
    config: PipelineConfig[Any],
    options: BuildOptions,
    max_failures: int | Fraction,
    build_elsewhere: Callable[..., Pipeline[Any]],
) -> Pipeline[Any]:
    """Creates a pipeline some of whose stages run in worker processes.

    Args:
        config: The pipeline.
        options: Build options of its parts in this process. Background tasks run with the last part.
        max_failures: The failure budget of all parts together.
        build_elsewhere: `build_pipeline`, with arguments for the parts in worker processes.

    Raises:
        TypeError: Stages of a region cannot be pickled.
    """
    budget = SharedBudget(max_failures)
    splitter = _Splitter(dataclasses.replace(options, background_tasks=()), budget, build_elsewhere)
    last, stage_id = splitter.split(config, options.stage_id)
    pipeline: Pipeline[Any] = Pipeline(last, dataclasses.replace(options, stage_id=stage_id))
    show_as(pipeline, config)
    budget.count(pipeline, last)
    check_at_end(pipeline, budget.take_failure)
    for region in splitter.regions:
        weakref.finalize(pipeline, region.cancel).atexit = False
    return pipeline


class _Splitter:
    """Splits pipelines at their regions."""

    def __init__(
        self,
        options: BuildOptions,
        budget: SharedBudget,
        build_elsewhere: Callable[..., Pipeline[Any]],
    ) -> None:
        self._options, self._budget = options, budget
        self._build_elsewhere = build_elsewhere
        self.regions: list[Region] = []

    def split(self, config: PipelineConfig[Any], stage_id: int) -> tuple[PipelineConfig[Any], int]:
        """Returns the part after the last region, with that region as its source, and the number of its
        first stage."""
        src = config.src
        if isinstance(src, JoinConfig):
            parts = tuple(self.split(part, 0)[0] for part in src.pipeline_configs)
            src = dataclasses.replace(src, pipeline_configs=parts)
        continuous = is_continuous(config)
        placement = PlacementConfig(MAIN_PROCESS)
        stages: list[StageConfig] = []
        before = config, stage_id
        for stage in [*config.pipes, PlacementConfig(MAIN_PROCESS)]:
            if not isinstance(stage, PlacementConfig):
                stages.append(stage)
                continue
            if isinstance(placement.target, ProcessPoolExecutorConfig):
                region = Region(
                    before,
                    placement.target,
                    placement.buffer_size,
                    stages,
                    stage_id,
                    self._options,
                    self._budget,
                    self._build_elsewhere,
                )
                self.regions.append(region)
                src, stage_id, stages = SourceConfig(region, continuous), region.last_stage_id, []
            if isinstance(stage.target, ProcessPoolExecutorConfig):
                before = PipelineConfig(src, tuple(stages), SinkConfig(_QUEUED_ITEMS)), stage_id
                stage_id, stages = stage_id + len(stages), []
            placement = stage
        return PipelineConfig(src, tuple(stages), config.sink), stage_id


class Region(Cancellable):
    """A source that yields the results of stages in worker processes, of one epoch or of all data."""

    def __init__(
        self,
        before: tuple[PipelineConfig[Any], int],
        target: ProcessPoolExecutorConfig,
        buffer_size: int,
        stages: Sequence[StageConfig],
        stage_id: int,
        options: BuildOptions,
        budget: SharedBudget,
        build_elsewhere: Callable[..., Pipeline[Any]],
    ) -> None:
        self._before, self._first_stage_id = before
        self._target = target
        self._buffer_size = buffer_size
        self._options = options
        self._budget = budget
        self._continuous = is_continuous(self._before)
        # The number of the epoch that is iterated.
        self._epoch_number = (options.epoch or 0) - 1
        self.last_stage_id = stage_id + len(stages)
        self._task = _region_worker.RegionTask(
            tuple(_for_worker(stage) for stage in stages),
            stage_id,
            _threads_of(stages),
            buffer_size,
            (target.initializer, target.initargs),
            build_elsewhere,
            options.epoch or 0,
        )
        if target.mp_context == "fork":
            warnings.warn(
                "stages in forked processes may hang, because this process has threads",
                RuntimeWarning,
                stacklevel=5,
            )
        else:
            _check_picklable(self._task)
        # `with` uses this lock, not the `Condition`: Ctrl-C while entering a `Condition` may leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._workers: list[WorkerProcess] = []
        self._room: dict[WorkerProcess, int] = {}
        self._sent: dict[WorkerProcess, int] = {}
        self._upstream: Pipeline[Any] | None = None
        self._failure: BaseException | None = None
        self._fatal = self._cancelled = self._iterating = False
        self._wakeup_pipe: Any = None
        # Stages by the first component of their positions in worker processes.
        self._stages = {stage_id + 1 + at: stage for at, stage in enumerate(stages)}

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            if self._cancelled:
                return
            self._iterating = True
            self._epoch_number += 1
        try:
            if not self._workers:
                self._start()
            yield from self._epoch()
        except BaseException as error:
            if isinstance(error, PipelineFailure):
                mark_as_reported(error)
                self._budget.take_failure()
            self._end()
            raise
        else:
            if not self._continuous or self._cancelled:
                self._end()
        finally:
            self._iterating = False

    def cancel(self) -> None:
        """Makes all work in progress end. Does not wait for the end."""
        with self._lock:
            self._cancelled = True
            self._changed.notify_all()
            upstream, idle = self._upstream, not self._iterating
        if upstream is not None:
            halt(upstream)
        for worker in self._workers:
            worker.request_end()
        self._wake()
        if idle:
            self._end()

    def fail(self, failure: BaseException, *, fatal: bool) -> None:
        """Makes the pipeline fail: immediately if `fatal`, else after all items in flight."""
        with self._lock:
            if self._failure is None or (fatal and not self._fatal):
                self._failure = failure
            self._fatal = self._fatal or fatal
            self._changed.notify_all()
        self._wake()

    def _start(self) -> None:
        from multiprocessing import Pipe

        from .._processes.random_state import RandomState
        from .._processes.worker_process import WorkerProcess, start_method

        count = self._target.max_workers or os.cpu_count() or 1
        context, random_state = start_method(self._target.mp_context), RandomState()
        self._wakeup_pipe = Pipe(duplex=False)
        workers: list[WorkerProcess] = []
        for number in range(count):
            worker = WorkerProcess(
                _region_worker.run_worker,
                (self._task, random_state, number),
                name=f"process {number} of {count} for {self!r}",
                context=context,
            )
            workers.append(worker)
            self._room[worker], self._sent[worker] = _QUEUED_MESSAGES, 0
        options = dataclasses.replace(self._options, stage_id=self._first_stage_id)
        upstream: Pipeline[Any] = Pipeline(self._before, options)
        if options.epoch is None:
            names = [str(number_of(upstream))] * len(self._task.stages)
            _native.check_random_numbers(self._task.stages, names, 0)
        self._budget.count(upstream, self._before)
        self._budget.watch(self)
        with self._lock:
            self._upstream, self._workers = upstream, workers
            cancelled = self._cancelled
        if cancelled:
            raise Cancelled("the pipeline was stopped")

    def _epoch(self) -> Iterator[Any]:
        from multiprocessing.connection import wait

        feeder = threading.Thread(target=self._send_items, name="spdl_region_feeder", daemon=True)
        feeder.start()
        owners = {id(each): worker for worker in self._workers for each in worker.waitables}
        waitables = [each for worker in self._workers for each in worker.waitables]
        open_workers = set(self._workers)
        while open_workers:
            if self._cancelled:
                raise Cancelled("the pipeline was stopped")
            if self._fatal and self._failure is not None:
                raise self._failure
            ready = wait([self._wakeup_pipe[0], *waitables])
            if self._wakeup_pipe[0] in ready:
                self._wakeup_pipe[0].recv_bytes()
            for worker in {owners[id(each)] for each in ready if id(each) in owners}:
                kind, *rest = worker.receive(0)
                if kind == "items":
                    yield from rest[0]
                elif kind == "taken":
                    with self._lock:
                        self._room[worker] += 1
                        self._changed.notify_all()
                elif kind == "item-failed":
                    self._item_failed(worker, *rest)
                else:
                    open_workers.discard(worker)
        feeder.join()
        if self._failure is not None:
            raise self._failure

    def _send_items(self) -> None:
        """Sends the items of one epoch to the workers."""
        assert self._upstream is not None
        try:
            batch: list[Any] = []
            for item in self._upstream:
                batch.append(item)
                if len(batch) >= self._buffer_size:
                    if not self._send(batch):
                        return
                    batch = []
            if batch and not self._send(batch):
                return
        except BaseException as error:
            # Exceptions of all kinds are caught: otherwise the consumer would wait forever.
            self.fail(error, fatal=False)
        for worker in self._workers:
            worker.send(("end-of-items",))

    def _send(self, items: list[Any]) -> bool:
        """Sends a list of items to the worker that has been sent the fewest lists, among workers whose
        queues are not full.

        Returns whether to continue.
        """
        with self._lock:
            # The wait polls, because Ctrl-C may have interrupted the notifying thread.
            while not self._changed.wait_for(self._can_continue, timeout=1.0):
                pass
            if self._cancelled or self._fatal:
                return False
            free = [worker for worker in self._workers if self._room[worker]]
            worker = min(free, key=self._sent.__getitem__)
            self._room[worker] -= 1
            self._sent[worker] += 1
        worker.send(("items", items))
        return True

    def _can_continue(self) -> bool:
        return self._cancelled or self._fatal or any(self._room.values())

    def _item_failed(
        self, worker: WorkerProcess, place: str, travelling: Any, item: str, tried: dict[str, int]
    ) -> None:
        error = travelling.unwrap()
        outermost, _, inner = of_local(place)[0].partition(".")
        stage = self._stages.get(int(outermost))
        own = stage.max_failures if isinstance(stage, PipeConfig) and not inner else None
        self._budget.failed_elsewhere(worker, place, error, item, tried, own, self._epoch_number)

    def _wake(self) -> None:
        if self._wakeup_pipe is not None:
            with contextlib.suppress(OSError):
                self._wakeup_pipe[1].send_bytes(b"!")

    def _end(self) -> None:
        upstream, workers = self._upstream, self._workers
        if upstream is not None:
            halt(upstream)
        if workers:
            from .._processes.worker_process import close_all

            close_all(workers)
        if upstream is not None:
            with contextlib.suppress(PipelineFailure):
                upstream.stop()

    def __repr__(self) -> str:
        names = ", ".join(stage.name for stage in self._task.stages)
        return f"region({names})"


def _for_worker(stage: StageConfig) -> StageConfig:
    """Adapts a stage for a worker process: without an executor, and without a failure budget, because
    failures are counted in this process."""
    if isinstance(stage, PipeConfig):
        return dataclasses.replace(stage, executor=None, max_failures=-1)
    if isinstance(stage, PathVariantsConfig):
        paths = tuple(tuple(map(_for_worker, path)) for path in stage.paths)
        return dataclasses.replace(stage, paths=paths)
    return stage


def _threads_of(stages: Sequence[StageConfig]) -> int:
    """Returns the number of threads that the stages may use at the same time."""
    count = 0
    for stage in stages:
        if isinstance(stage, PipeConfig):
            # Native stages have separate threads.
            count += stage.concurrency or 0
        elif isinstance(stage, PathVariantsConfig):
            count += sum(map(_threads_of, stage.paths))
    return max(1, count)


def _check_picklable(task: _region_worker.RegionTask) -> None:
    try:
        pickle.dumps(task)
    except Exception as error:
        raise TypeError(
            f"stages that run in other processes must be picklable: {error}; define functions and "
            "classes at the top level of a module, not in a function"
        ) from error
