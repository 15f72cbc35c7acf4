"""Regions: stages that run in other processes.

A pipeline with a region is cut in three. What lies before the region is a pipeline of its own; the
region takes its items, and is the source of what lies behind it:

    source ─ stages ─► Region ═► a pipeline of the region's stages, in each process
                       Region ◄═ results as they come
                          └────► stages ─ sink

Each process is given a few items more than its pipeline has taken in, so that it never waits for
the parent; and the parent takes results in only as fast as they are wanted.
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
from .._run.pipeline import Pipeline, check_at_end, halt, show_as
from ..defs._configs import (
    MergeConfig,
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

# How many items of the stages before a region may wait for it.
_READY = 8
# How many transfers may wait in a process.
_TRANSFERS_AHEAD = 2


def build_with_regions(
    config: PipelineConfig[Any],
    options: BuildOptions,
    max_failures: int | Fraction,
    build_elsewhere: Callable[..., Pipeline[Any]],
) -> Pipeline[Any]:
    """Makes a pipeline of which stages run elsewhere.

    Args:
        config: The pipeline.
        options: How each of its parts in this process is built; background tasks run beside the
            last one.
        max_failures: The budget of failures, for all of its parts together.
        build_elsewhere: `build_pipeline`, with arguments for what runs elsewhere.

    Raises:
        TypeError: Stages of a region cannot be pickled.
    """
    budget = SharedBudget(max_failures)
    cut = _Cut(dataclasses.replace(options, background_tasks=()), budget, build_elsewhere)
    last, stage_id = cut.apart(config, options.stage_id)
    pipeline: Pipeline[Any] = Pipeline(last, dataclasses.replace(options, stage_id=stage_id))
    show_as(pipeline, config)
    budget.count(pipeline, last)
    check_at_end(pipeline, budget.take_failure)
    for region in cut.regions:
        weakref.finalize(pipeline, region.cancel).atexit = False
    return pipeline


class _Cut:
    """Cuts pipelines apart at their regions."""

    def __init__(
        self,
        options: BuildOptions,
        budget: SharedBudget,
        build_elsewhere: Callable[..., Pipeline[Any]],
    ) -> None:
        self._options, self._budget = options, budget
        self._build_elsewhere = build_elsewhere
        self.regions: list[Region] = []

    def apart(self, config: PipelineConfig[Any], stage_id: int) -> tuple[PipelineConfig[Any], int]:
        """What lies behind the last region of a pipeline, with that region as its source; and the
        number of its first stage."""
        src = config.src
        if isinstance(src, MergeConfig):
            parts = tuple(self.apart(part, 0)[0] for part in src.pipeline_configs)
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
                before = PipelineConfig(src, tuple(stages), SinkConfig(_READY)), stage_id
                stage_id, stages = stage_id + len(stages), []
            placement = stage
        return PipelineConfig(src, tuple(stages), config.sink), stage_id


class Region(Cancellable):
    """The results of stages in other processes: what is iterated is one epoch, or all."""

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
        self.last_stage_id = stage_id + len(stages)
        self._task = _region_worker.Task(
            tuple(_for_worker(stage) for stage in stages),
            stage_id,
            _threads_of(stages),
            buffer_size,
            (target.initializer, target.initargs),
            build_elsewhere,
        )
        if target.mp_context == "fork":
            warnings.warn(
                "stages in processes that are forked may hang, since this process has threads",
                RuntimeWarning,
                stacklevel=5,
            )
        else:
            _check_that_it_can_be_sent(self._task)
        # The lock by itself: Ctrl-C may leave a `Condition` that is entered locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._workers: list[WorkerProcess] = []
        self._room: dict[WorkerProcess, int] = {}
        self._sent: dict[WorkerProcess, int] = {}
        self._inner: Pipeline[Any] | None = None
        self._failure: BaseException | None = None
        self._fatal = self._cancelled = self._iterating = False
        self._bell: Any = None
        # Names of stages in the processes are told apart from their like here by what comes first.
        self._stages = {stage_id + 1 + at: stage for at, stage in enumerate(stages)}

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            if self._cancelled:
                return
            self._iterating = True
        try:
            if not self._workers:
                self._start()
            yield from self._pass()
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
        """Lets all end that is under way, and does not wait for it."""
        with self._lock:
            self._cancelled = True
            self._changed.notify_all()
            inner, idle = self._inner, not self._iterating
        if inner is not None:
            halt(inner)
        for worker in self._workers:
            worker.tell_to_end()
        self._ring()
        if idle:
            self._end()

    def fail(self, failure: BaseException, *, fatal: bool) -> None:
        """Lets the pipeline fail: at once, or when all items that are under way have come."""
        with self._lock:
            if self._failure is None or (fatal and not self._fatal):
                self._failure = failure
            self._fatal = self._fatal or fatal
            self._changed.notify_all()
        self._ring()

    def _start(self) -> None:
        from multiprocessing import Pipe

        from .._processes.random_state import RandomState
        from .._processes.worker_process import WorkerProcess, start_method

        count = self._target.max_workers or os.cpu_count() or 1
        context, random_state = start_method(self._target.mp_context), RandomState()
        self._bell = Pipe(duplex=False)
        workers: list[WorkerProcess] = []
        for number in range(count):
            worker = WorkerProcess(
                _region_worker.work,
                (self._task, random_state, number),
                name=f"process {number} of {count} for {self!r}",
                context=context,
            )
            workers.append(worker)
            self._room[worker], self._sent[worker] = _TRANSFERS_AHEAD, 0
        options = dataclasses.replace(self._options, stage_id=self._first_stage_id)
        inner: Pipeline[Any] = Pipeline(self._before, options)
        self._budget.count(inner, self._before)
        self._budget.watch(self)
        with self._lock:
            self._inner, self._workers = inner, workers
            cancelled = self._cancelled
        if cancelled:
            raise Cancelled("the pipeline was stopped")

    def _pass(self) -> Iterator[Any]:
        from multiprocessing.connection import wait

        feeder = threading.Thread(target=self._feed, name="spdl_region_feeder", daemon=True)
        feeder.start()
        owners = {id(each): worker for worker in self._workers for each in worker.waitables}
        waitables = [each for worker in self._workers for each in worker.waitables]
        open_workers = set(self._workers)
        while open_workers:
            if self._cancelled:
                raise Cancelled("the pipeline was stopped")
            if self._fatal and self._failure is not None:
                raise self._failure
            ready = wait([self._bell[0], *waitables])
            if self._bell[0] in ready:
                self._bell[0].recv_bytes()
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

    def _feed(self) -> None:
        """Gives the items of one epoch to the workers."""
        assert self._inner is not None
        try:
            batch: list[Any] = []
            for item in self._inner:
                batch.append(item)
                if len(batch) >= self._buffer_size:
                    if not self._give(batch):
                        return
                    batch = []
            if batch and not self._give(batch):
                return
        except BaseException as error:
            # Whatever a source raises: who waits for items would not learn of it otherwise.
            self.fail(error, fatal=False)
        for worker in self._workers:
            worker.send(("end-of-items",))

    def _give(self, items: list[Any]) -> bool:
        """Gives items to the worker that was given the fewest, of those that have room."""
        with self._lock:
            # Looked for again and again, as Ctrl-C may have come to whoever was to tell.
            while not self._changed.wait_for(self._is_to_go_on, timeout=1.0):
                pass
            if self._cancelled or self._fatal:
                return False
            free = [worker for worker in self._workers if self._room[worker]]
            worker = min(free, key=self._sent.__getitem__)
            self._room[worker] -= 1
            self._sent[worker] += 1
        worker.send(("items", items))
        return True

    def _is_to_go_on(self) -> bool:
        return self._cancelled or self._fatal or any(self._room.values())

    def _item_failed(
        self, worker: WorkerProcess, place: str, travelling: Any, item: str, tried: dict[str, int]
    ) -> None:
        error = travelling.unwrap()
        outermost, _, inner = of_local(place)[0].partition(".")
        stage = self._stages.get(int(outermost))
        own = stage.max_failures if isinstance(stage, PipeConfig) and not inner else None
        self._budget.failed_elsewhere(worker, place, error, item, tried, own)

    def _ring(self) -> None:
        if self._bell is not None:
            with contextlib.suppress(OSError):
                self._bell[1].send_bytes(b"!")

    def _end(self) -> None:
        inner, workers = self._inner, self._workers
        if inner is not None:
            halt(inner)
        for worker in workers:
            worker.tell_to_end()
        for worker in workers:
            worker.close()
        if inner is not None:
            with contextlib.suppress(PipelineFailure):
                inner.stop()

    def __repr__(self) -> str:
        names = ", ".join(stage.name for stage in self._task.stages)
        return f"region({names})"


def _for_worker(stage: StageConfig) -> StageConfig:
    """A stage as it runs elsewhere: without an executor of this process, and its failures are
    counted here."""
    if isinstance(stage, PipeConfig):
        return dataclasses.replace(stage, executor=None, max_failures=-1)
    if isinstance(stage, PathVariantsConfig):
        paths = tuple(tuple(map(_for_worker, path)) for path in stage.paths)
        return dataclasses.replace(stage, paths=paths)
    return stage


def _threads_of(stages: Sequence[StageConfig]) -> int:
    """As many threads as the stages may use at once."""
    count = 0
    for stage in stages:
        if isinstance(stage, PipeConfig):
            # Native stages have threads of their own.
            count += stage.concurrency or 0
        elif isinstance(stage, PathVariantsConfig):
            count += sum(map(_threads_of, stage.paths))
    return max(1, count)


def _check_that_it_can_be_sent(task: _region_worker.Task) -> None:
    try:
        pickle.dumps(task)
    except Exception as error:
        raise TypeError(
            f"stages that run in other processes must be picklable ({error}); functions and "
            "classes must be defined in a module, not within a function"
        ) from error
