"""What a process of a region does: it runs the region's stages as a pipeline of its own."""

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

# How many results may wait to be sent.
_READY = 2


@dataclass(frozen=True)
class Task:
    """What each process of a region is told."""

    stages: tuple[StageConfig, ...]
    stage_id: int
    num_threads: int
    buffer_size: int
    initializer: tuple[Callable[..., object] | None, tuple[Any, ...]]
    build: Callable[..., Pipeline[Any]]


def work(parent: Parent, task: Task, random_state: RandomState, number: int) -> None:
    """Works off one epoch after the other, until the parent lets go.

    Args:
        parent: Who gives items and takes results.
        task: What is done with the items.
        random_state: The state of the parent's random number generators.
        number: Which process of the region this is.
    """
    random_state.restore_for(number)
    initializer, arguments = task.initializer
    if initializer is not None:
        initializer(*arguments)
    worker = _Worker(parent, task)
    parent.at_end = worker.halt
    while worker.work_off_an_epoch():
        pass


class _Worker:
    def __init__(self, parent: Parent, task: Task) -> None:
        self._parent, self._task = parent, task
        self._pipeline: Pipeline[Any] | None = None
        self._ended = False
        self._tried_before: dict[str, int] = {}

    def work_off_an_epoch(self) -> bool:
        """Says whether there may be another one."""
        from .._run.pipeline import number_of

        # A pipeline for each epoch: nothing of one gets into the next, though it has no items here.
        first = self._take()
        if first is not None:
            task = self._task
            config: PipelineConfig[Any] = PipelineConfig(
                SourceConfig(self._items(first)), task.stages, SinkConfig(_READY)
            )
            pipeline = task.build(config, num_threads=task.num_threads, stage_id=task.stage_id)
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
        """Lets the pipeline begin nothing more."""
        self._ended = True
        if self._pipeline is not None:
            with contextlib.suppress(Exception):
                self._pipeline.stop(timeout=0)

    def _items(self, items: list[Any] | None) -> Iterator[Any]:
        while items is not None:
            yield from items
            items = self._take()

    def _take(self) -> list[Any] | None:
        """The next items of this epoch."""
        from .._processes.worker_process import ParentGone

        try:
            kind, *rest = self._parent.receive()
        except ParentGone:
            self._ended = True
            return None
        if kind == "end-of-items":
            return None
        self._parent.send(("taken",))
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
        """Tells the parent, who counts and logs for all processes of the region."""
        message = ("item-failed", place, ExceptionWrapper(error), item, self._tried())
        with contextlib.suppress(Exception):
            self._parent.send(message)

    def _tried(self) -> dict[str, int]:
        """How many items each stage has tried, by its place."""
        assert self._pipeline is not None
        tried = dict(self._tried_before)
        for stage in self._pipeline.stats()["stages"][1:]:
            place = of_pipeline(stage["name"])[1]
            tried[place] = self._tried_before.get(place, 0) + stage["items"]
        return tried
