"""The native description of a pipeline, and the threads that it needs."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any

from .. import _spdl_rs
from . import _ops
from ._executors import InExecutor, IterateInExecutor
from .defs._aggregators import Aggregator, Collate
from .defs._checks import native_budget
from .defs._configs import (
    AggregateConfig,
    DisaggregateConfig,
    MergeConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    StageConfig,
)


class Assembly:
    """What one run of a pipeline is made of.

    Args:
        config: The pipeline.
        number: Its number in this process.
        num_threads: Threads that its stages share.
        max_failures: The budget of failures, as the engine takes it.
        stage_id: The number of the first stage.
    """

    def __init__(
        self,
        config: PipelineConfig[Any],
        number: int,
        num_threads: int,
        max_failures: int | float,
        stage_id: int,
    ) -> None:
        self._prefix = f"{number}:"
        self._inbox: _spdl_rs.Inbox | None = None
        self._pools: list[_spdl_rs.Workers] = []
        self.threads: list[tuple[str, Callable[[], None]]] = []
        """The names of all threads, and what they run."""
        self.in_executors: list[InExecutor] = []
        """What waits for executors of the user's."""

        graph = self._graph(config, "", stage_id)
        workers = _spdl_rs.Workers(num_threads)
        self.threads += [(f"spdl_worker_thread_{at}", workers) for at in range(num_threads)]
        if self._inbox is not None:
            # Importing asyncio takes longer than all else together.
            from ._event_loop import EventLoop

            self.threads.append(("spdl_event_loop_thread", EventLoop(self._inbox)))
        self.run = _spdl_rs.PipelineRun(
            graph, workers, self._pools, self._inbox, config.sink.buffer_size, max_failures
        )

    def _graph(self, config: PipelineConfig[Any], outer: str, first: int) -> _spdl_rs.Graph:
        source, names = config.src, f"{outer}{first}"
        if isinstance(source, MergeConfig):
            parts = enumerate(source.pipeline_configs)
            graph = _spdl_rs.Graph.merge(
                [self._graph(part, f"{names}.{at}.", 0) for at, part in parts]
            )
        else:
            is_async = isinstance(source.source, AsyncIterable)
            feed = _spdl_rs.Feed(
                f"{self._prefix}{names}:src",
                source.source,
                source.continuous,
                self._event_loop() if is_async else None,
            )
            self.threads.append(("spdl_sync_source", feed))
            graph = _spdl_rs.Graph.source(feed)
        return graph.then(self._stages(config.pipes, outer, first + 1))

    def _stages(self, pipes: Sequence[StageConfig], outer: str, first: int) -> list[_spdl_rs.Stage]:
        return [self._stage(pipe, f"{outer}{first + at}") for at, pipe in enumerate(pipes)]

    def _stage(self, config: StageConfig, place: str) -> _spdl_rs.Stage:
        name = f"{self._prefix}{place}:{config.name}"
        if isinstance(config, PipeConfig):
            return self._pipe(config, name)
        if isinstance(config, AggregateConfig):
            if type(config.op) is Collate:
                return _spdl_rs.Stage.lists(name, config.op.n, config.drop_last)
            make = functools.partial(copy.deepcopy, _pristine(config.op))
            return _spdl_rs.Stage.aggregate(name, make, config.drop_last)
        if isinstance(config, DisaggregateConfig):
            return _spdl_rs.Stage.function("iterate", name, iter, concurrency=1, ordered=False)
        return self._paths(config, name, place)

    def _pipe(self, config: PipeConfig[Any, Any], name: str) -> _spdl_rs.Stage:
        kind, function = _ops.kind_of(config.op), _ops.function_of(config.op)
        workers: _spdl_rs.Workers | None = None
        if config.executor is not None:
            in_executor = IterateInExecutor if kind == "iterate" else InExecutor
            function = in_executor(config.executor, function)
            self.in_executors.append(function)
            workers = self._own_threads(config.concurrency)
        elif kind == "iterate-async":
            # They wait for the event loop, and must not keep others from working meanwhile.
            workers = self._own_threads(config.concurrency)
        budget = None if config.max_failures is None else native_budget(config.max_failures)
        return _spdl_rs.Stage.function(
            kind,
            name,
            function,
            concurrency=config.concurrency,
            ordered=config.output_order == "input",
            max_failures=budget,
            workers=workers,
            inbox=self._event_loop() if kind in ("await", "iterate-async") else None,
        )

    def _paths(self, config: PathVariantsConfig[Any], name: str, place: str) -> _spdl_rs.Stage:
        paths = [self._stages(path, f"{place}.{at}.", 0) for at, path in enumerate(config.paths)]
        is_async = _ops.kind_of(config.router) == "await"
        inbox = self._event_loop() if is_async else None
        return _spdl_rs.Stage.route(name, config.router, paths, batched=config.batched, inbox=inbox)

    def _event_loop(self) -> _spdl_rs.Inbox:
        if self._inbox is None:
            self._inbox = _spdl_rs.Inbox()
        return self._inbox

    def _own_threads(self, count: int) -> _spdl_rs.Workers:
        workers = _spdl_rs.Workers(count)
        self._pools.append(workers)
        self.threads += [(f"spdl_stage_thread_{at}", workers) for at in range(count)]
        return workers


def _pristine(aggregator: Aggregator) -> Aggregator:
    """A copy, so that whatever the user does with the original shows nowhere."""
    try:
        return copy.deepcopy(aggregator)
    except Exception as error:
        raise TypeError(
            f"an aggregator of type {type(aggregator).__name__!r} cannot be copied ({error}); each "
            "epoch works on a copy, so define __deepcopy__"
        ) from error
