"""The worker processes of a region: each runs the region's stages as a pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._failures import failure as _failure
from .._failures.stage_names import of_pipeline
from .._processes.remote_errors import ExceptionWrapper
from ..defs._configs import PipelineConfig, SinkConfig, SourceConfig, StageConfig

if TYPE_CHECKING:
    from .._processes.random_state import RandomState
    from .._processes.worker_process import Parent
    from .._run.pipeline import Pipeline

# Epochs of one process have the same bits above these.
_EPOCH_BITS = 40
# How many results may wait to be sent.
_QUEUED_RESULTS = 2


@dataclass(frozen=True)
class RegionTask:
    """The stages and options that the worker processes of a region receive."""

    stages: tuple[StageConfig, ...]
    stage_id: int
    num_threads: int
    buffer_size: int
    initializer: tuple[Callable[..., object] | None, tuple[Any, ...]]
    build: Callable[..., Pipeline[Any]]
    epoch: int
    """The number of the first epoch."""


def run_worker(parent: Parent, task: RegionTask, random_state: RandomState, number: int) -> None:
    """Processes epochs until the parent requests the end.

    Args:
        parent: Sends items and receives results.
        task: The stages and options.
        random_state: The states of the parent's random number generators.
        number: The number of this process in the region.
    """
    random_state.restore_for(number)
    initializer, arguments = task.initializer
    if initializer is not None:
        initializer(*arguments)
    worker = _Worker(parent, task, number)
    parent.at_end = worker.halt
    while worker.run_epoch():
        pass


class _Worker:
    def __init__(self, parent: Parent, task: RegionTask, number: int) -> None:
        self._parent, self._task = parent, task
        # Random numbers depend on the epoch and the position. Positions are those in this process, so each
        # process has a separate range of epochs.
        self._epoch = task.epoch + (number << _EPOCH_BITS)
        self._pipeline: Pipeline[Any] | None = None
        self._ended = False
        self._tried_before: dict[str, int] = {}

    def run_epoch(self) -> bool:
        """Processes one epoch. Returns whether another one may follow."""
        from .._run.pipeline import number_of

        # A separate pipeline for each epoch, so that no state leaks into the next one.
        first = self._take()
        if first is not None:
            task = self._task
            config: PipelineConfig[Any] = PipelineConfig(
                SourceConfig(self._items(first)), task.stages, SinkConfig(_QUEUED_RESULTS)
            )
            pipeline = task.build(
                config, num_threads=task.num_threads, stage_id=task.stage_id, epoch=self._epoch
            )
            self._epoch += 1
            self._pipeline = pipeline
            with (
                _failure.failures_reported_to(number_of(pipeline), self._item_failed),
                pipeline.auto_stop(),
            ):
                self._send_all(pipeline)
            for place, items in self._tried().items():
                self._tried_before[place] = items
            self._pipeline = None
        if self._ended:
            return False
        self._parent.send(("end-of-items",))
        return True

    def halt(self) -> None:
        """Makes the pipeline start nothing new."""
        self._ended = True
        if self._pipeline is not None:
            with contextlib.suppress(Exception):
                self._pipeline.stop(timeout=0)

    def _items(self, items: list[Any] | None) -> Iterator[Any]:
        while items is not None:
            yield from items
            items = self._take()

    def _take(self) -> list[Any] | None:
        """Returns the next items of this epoch; `None` at its end."""
        from .._processes.worker_process import ParentGone

        try:
            kind, *rest = self._parent.receive()
            if kind == "end-of-items":
                return None
            self._parent.send(("taken",))
        except ParentGone:
            self._ended = True
            return None
        return rest[0]

    def _send_all(self, pipeline: Pipeline[Any]) -> None:
        results: list[Any] = []
        for result in pipeline:
            results.append(result)
            if len(results) >= self._task.buffer_size:
                self._parent.send(("items", results))
                results = []
        if results:
            self._parent.send(("items", results))

    def _item_failed(self, error: BaseException, place: str, item: str) -> None:
        """Reports a failure to the parent, which counts and logs failures of all processes."""
        message = ("item-failed", place, ExceptionWrapper(error), item, self._tried())
        with contextlib.suppress(Exception):
            self._parent.send(message)

    def _tried(self) -> dict[str, int]:
        """Returns how many items each stage has processed, failures included, by position."""
        assert self._pipeline is not None
        tried = dict(self._tried_before)
        for stage in self._pipeline.stats()["stages"][1:]:
            place = of_pipeline(stage["name"])[1]
            tried[place] = self._tried_before.get(place, 0) + stage["items"]
        return tried
