"""The native description of a pipeline, and the threads that it needs."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from ... import _spdl_rs
from ...io._operators import BatchImages
from .._hooks.markers import _EPOCH_END
from ..defs import _native, _ops
from ..defs._aggregators import Aggregator, Collate
from ..defs._checks import native_budget
from ..defs._configs import (
    DisaggregateConfig,
    MergeConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    StageConfig,
    is_continuous,
)
from ..defs._executors import PlacementConfig
from ..defs._stage_info import StageInfo
from .executors import Cancellable, InExecutor, IterateInExecutor
from .instrumentation import Instrumentation
from .results import Results

if TYPE_CHECKING:
    from .._event_loop.hooked_stage import HookedStage
    from .._event_loop.supervisor import Companions
    from .._hooks.queues import AsyncQueue
    from .reporting import Reporter
    from .segments import Relay, SharedLimits

# How many items the queues between stages hold.
_BETWEEN = 2


class Assembly:
    """What one run of a pipeline is made of.

    Args:
        config: The pipeline.
        number: Its number in this process.
        instrumentation: What it has around its stages, and how it is built.
    """

    def __init__(
        self,
        config: PipelineConfig[Any],
        number: int,
        instrumentation: Instrumentation,
    ) -> None:
        options = instrumentation.options
        self._number = number
        self._instrumentation = instrumentation
        self._companions = instrumentation.companions
        self._limits: SharedLimits | None = None
        self._inbox: _spdl_rs.Inbox | None = None
        self._pools: list[_spdl_rs.Workers] = []
        self.threads: list[tuple[str, Callable[[], None]]] = []
        """The names of all threads, and what they run."""
        self.cancellables: list[Cancellable] = []
        """What waits for others: executors of the user's, and processes."""
        self.inner_runs: list[_spdl_rs.PipelineRun] = []
        """Runs that put what they give into queues of Python's."""
        self._reporters: list[Callable[[], Reporter]] = []
        self.errands: list[Callable[[], Any]] = []
        """Coroutines that run on the event loop meanwhile."""
        self.stages_of: dict[CodeType, list[str]] = {}
        """Of which stages a function of the user's is, by its code."""
        self._taken_apart: set[str] = set()
        """The places of stages whose results the next one iterates, or may iterate."""
        self.called: list[str] = []
        """The native operators that are called as functions, for hooks or queues of the user's."""

        last = options.stage_id + 1 + len(_stages_of(config))
        self._sink = StageInfo(number, str(last), "sink")
        if instrumentation.merges or self._is_used_for_real(self._sink, config.sink.buffer_size):
            from .segments import SharedLimits

            self._limits = SharedLimits(options.num_threads, options.max_failures)
        graph = self._line(config, "", options.stage_id)
        if self._companions is not None:
            self._event_loop()
        max_failures = options.max_failures if self._limits is None else -1
        self.run = self._run(graph, self._inbox, config.sink.buffer_size, max_failures)
        if self._inbox is not None:
            # Importing asyncio takes longer than all else together.
            from .._event_loop.loop import EventLoop

            loop = EventLoop(self._inbox, self._companions)
            self.threads.append(("spdl_event_loop_thread", loop))

    def begin(self) -> None:
        """Prepares the companions, where this is what is run."""
        self.threads += [("spdl_report_thread", make()) for make in self._reporters]
        if self._companions is not None:
            for errand in self.errands:
                self._companions.add_errand(errand)

    def _line(self, config: PipelineConfig[Any], outer: str, first: int) -> _spdl_rs.Graph:
        """A source and the stages behind it."""
        graph, name, info = self._source(config, outer, first)
        is_outermost = not outer
        stages = _stages_of(config)
        for at, configs in self._pieces(stages, outer, first + 1):
            if is_outermost and info is not None:
                graph = self._queue(graph, name, info, _BETWEEN, config)
            places = [f"{outer}{first + 1 + at + more}" for more in range(len(configs))]
            graph = graph.then([self._piece(configs, places)])
            name = f"{self._number}:{places[-1]}:{configs[-1].name}"
            info = self._info(configs[-1], places[-1])
        if is_outermost:
            graph = self._queue(graph, name, self._sink, config.sink.buffer_size, config)
        return graph

    def _source(
        self, config: PipelineConfig[Any], outer: str, first: int
    ) -> tuple[_spdl_rs.Graph, str, StageInfo | None]:
        source, place = config.src, f"{outer}{first}"
        if not isinstance(source, MergeConfig):
            name = f"{self._number}:{place}:src"
            inbox = self._event_loop() if isinstance(source.source, AsyncIterable) else None
            if isinstance(source.source, Cancellable):
                self.cancellables.append(source.source)
            feed = _spdl_rs.Feed(name, source.source, source.continuous, inbox)
            if not isinstance(source.source, _spdl_rs.TaskQueue):
                self.threads.append(("spdl_sync_source", feed))
            return _spdl_rs.Graph.source(feed), name, StageInfo(self._number, place, "src")
        name = f"{self._number}:{place}:merge"
        parts = (
            self._line(part, f"{place}.{at}.", 0) for at, part in enumerate(source.pipeline_configs)
        )
        if source.op is None:
            return _spdl_rs.Graph.merge(list(parts)), name, None
        info = StageInfo(self._number, place, "merge")
        return self._merge_by(source.op, parts, name, info, is_continuous(config)), name, info

    def _merge_by(
        self,
        op: Any,
        parts: Iterable[_spdl_rs.Graph],
        name: str,
        info: StageInfo,
        continuous: bool,
    ) -> _spdl_rs.Graph:
        """What a function makes of several runs."""
        from .._hooks.queues import AsyncQueue
        from .segments import Merging, Relay

        companions = self._needed_companions()
        inputs, halts = [], []
        for at, part in enumerate(parts):
            place = StageInfo(self._number, f"{info.stage_id}.{at}", "merge_input")
            queue = AsyncQueue(place, buffer_size=_BETWEEN)
            inputs.append(queue)
            halts.append(self._pump(part, queue).halt)
        output = AsyncQueue(info, buffer_size=_BETWEEN)
        merging = Merging(op, info, inputs, halts, output, companions)
        self.errands.append(merging.run)
        return self._relay(Relay(output, companions), name, continuous)

    def _queue(
        self,
        graph: _spdl_rs.Graph,
        name: str,
        info: StageInfo,
        buffer_size: int,
        config: PipelineConfig[Any],
    ) -> _spdl_rs.Graph:
        """What comes out of the queue behind a stage."""
        queue = self._instrumentation.queue(info, buffer_size)
        if queue is not None and self._is_used_for_real(info, buffer_size):
            from .segments import Relay

            relay = Relay(queue, self._needed_companions())
            self._pump(graph, queue, relay)
            return self._relay(relay, f"{name}_queue", is_continuous(config))
        self._instrumentation.watch(name, info, buffer_size)
        return graph

    def _is_used_for_real(self, info: StageInfo, buffer_size: int) -> bool:
        """Whether items go through a queue of Python's behind a stage."""
        queue = self._instrumentation.queue(info, buffer_size)
        if queue is None:
            return False
        from .._hooks.queues import is_used_for_real

        return is_used_for_real(queue)

    def _pump(
        self, graph: _spdl_rs.Graph, queue: AsyncQueue, relay: Relay | None = None
    ) -> _spdl_rs.PipelineRun:
        """Has a run of its own put what it gives into a queue."""
        from .segments import Pump

        # The inbox is closed by the last run.
        run = self._run(graph, None, 1, -1)
        self.inner_runs.append(run)
        pump = Pump(run, queue, self._needed_companions(), relay)
        self.threads.append(("spdl_queue_thread", pump))
        return run

    def _relay(self, relay: Relay, name: str, continuous: bool) -> _spdl_rs.Graph:
        """A source that gives what comes out of a queue."""
        feed = _spdl_rs.Feed(name, relay, continuous, None, _EPOCH_END)
        self.threads.append(("spdl_queue_thread", feed))
        return _spdl_rs.Graph.source(feed)

    def _needed_companions(self) -> Companions:
        if self._companions is None:
            raise RuntimeError("nothing was said of queues of Python's")
        return self._companions

    def _run(
        self,
        graph: _spdl_rs.Graph,
        inbox: _spdl_rs.Inbox | None,
        prefetch: int,
        max_failures: int | float,
    ) -> _spdl_rs.PipelineRun:
        """What runs the stages that were made since the last run, and who tells of it."""
        interval = self._instrumentation.interval()
        intervals = None if interval is None else _spdl_rs.Intervals(interval)
        threads, self._pools, pools = self._shared_threads(), [], self._pools
        run = _spdl_rs.PipelineRun(graph, threads, pools, inbox, prefetch, max_failures, intervals)
        if intervals is not None:
            reporter = self._instrumentation.reporter
            self._reporters.append(functools.partial(reporter, intervals, run.monitor))
        return run

    def _shared_threads(self) -> _spdl_rs.Workers:
        """The threads of a run for stages without threads of their own."""
        count = self._instrumentation.options.num_threads
        workers = _spdl_rs.Workers(count)
        self.threads += [(f"spdl_worker_thread_{at}", workers) for at in range(count)]
        return workers

    def _info(self, config: StageConfig, place: str) -> StageInfo:
        concurrency = config.concurrency if isinstance(config, PipeConfig) else None
        return StageInfo(self._number, place, config.name, concurrency)

    def _stages(self, pipes: Sequence[StageConfig], outer: str) -> list[_spdl_rs.Stage]:
        # What comes behind the last one stands elsewhere, and may do so.
        self._taken_apart.add(f"{outer}{len(pipes) - 1}")
        return [
            self._piece(configs, [f"{outer}{at + more}" for more in range(len(configs))])
            for at, configs in self._pieces(pipes, outer, 0)
        ]

    def _pieces(
        self, stages: Sequence[StageConfig], outer: str, first: int
    ) -> Iterator[tuple[int, Sequence[StageConfig]]]:
        """The stages, each with its place; together those that are one to the engine."""
        _native.refuse_misfits(stages)
        for at, after in enumerate(stages[1:]):
            if isinstance(after, DisaggregateConfig):
                self._taken_apart.add(f"{outer}{first + at}")
        return _native.pieces(
            stages, lambda at: self._is_called(stages[at], f"{outer}{first + at}")
        )

    def _is_called(self, config: StageConfig, place: str) -> bool:
        """Whether a native operator is called as a function: the user's hooks are run around each
        call, and what counts for several runs is counted in Python."""
        return self._limits is not None or self._hooks(config, place) is not None

    def _hooks(self, config: StageConfig, place: str) -> HookedStage | None:
        name = f"{self._number}:{place}:{config.name}"
        return self._instrumentation.hooks(name, self._info(config, place))

    def _piece(self, configs: Sequence[StageConfig], places: list[str]) -> _spdl_rs.Stage:
        """Stages that are one to the engine: one, or several native ones."""
        names = [
            f"{self._number}:{place}:{config.name}"
            for place, config in zip(places, configs, strict=True)
        ]
        config, place = configs[0], places[0]
        if not _native.is_native(config):
            return self._stage(config, names[0], place, self._info(config, place))
        if self._is_called(config, place):
            self.called.append(config.name)
            return self._stage(config, names[0], place, self._info(config, place))
        return _native.stage(configs, names)

    def _stage(self, config: StageConfig, name: str, place: str, info: StageInfo) -> _spdl_rs.Stage:
        if isinstance(config, PathVariantsConfig):
            return self._paths(config, name, place)
        if isinstance(config, PipeConfig):
            return self._pipe(config, name, info)
        hooks = self._instrumentation.hooks(name, info)
        if isinstance(config, DisaggregateConfig):
            each = iter if hooks is None else hooks.wrap("iterate", iter)
            if self._limits is not None:
                each = self._limits.wrap("iterate", name, each, True)
            return _spdl_rs.Stage.function("iterate", name, each, concurrency=1, ordered=False)
        if hooks is None and type(config.op) is Collate:
            return _spdl_rs.Stage.lists(name, config.op.n, config.drop_last)
        make = functools.partial(copy.deepcopy, _pristine(config.op))
        make = make if hooks is None else hooks.wrap_aggregators(make)
        if self._limits is not None:
            make = self._limits.wrap_aggregators(name, make)
        return _spdl_rs.Stage.aggregate(name, make, config.drop_last)

    def _pipe(self, config: PipeConfig[Any, Any], name: str, info: StageInfo) -> _spdl_rs.Stage:
        kind: str = _ops.kind_of(config.op)
        code = _ops.code_of(config.op)
        if code is not None:
            names = self.stages_of.setdefault(code, [])
            if config.name not in names:
                names.append(config.name)
        function: Callable[..., Any] = _ops.function_of(config.op)
        concurrency = config.concurrency or 1
        workers: _spdl_rs.Workers | None = None
        draws: tuple[int, str] | None = None
        if _native.is_native(config):
            # As they do in Rust, they leave the threads of the pipeline to Python's functions.
            function, draws, concurrency = _native.called(config)
            kind = "call" if draws is None else "draw"
            workers = self._own_threads(concurrency)
        if config.executor is not None:
            in_executor = IterateInExecutor if kind == "iterate" else InExecutor
            function = in_executor(config.executor, function)
            self.cancellables.append(function)
            workers = self._own_threads(concurrency)
        elif kind == "iterate-async":
            # They wait for the event loop, and must not keep others from working meanwhile.
            workers = self._own_threads(concurrency)
        results = Results(config.op, name, info.stage_id in self._taken_apart)
        hooks = self._instrumentation.hooks(name, info)
        # Where nobody else looks at results, that is done natively: it costs each item something.
        natively = kind == "call" and hooks is None and self._limits is None
        if not natively:
            function = results.wrap(kind, function)
        if hooks is not None:
            function = hooks.wrap(kind, function)
        budget = None if config.max_failures is None else native_budget(config.max_failures)
        if self._limits is not None and budget is None:
            function = self._limits.wrap(kind, name, function, workers is None)
        return _spdl_rs.Stage.function(
            kind,
            name,
            function,
            concurrency=concurrency,
            ordered=config.output_order == "input",
            max_failures=budget,
            workers=workers,
            inbox=self._event_loop() if kind in ("await", "iterate-async") else None,
            draws=draws,
            look_at=results.look_at if natively else None,
        )

    def _paths(self, config: PathVariantsConfig[Any], name: str, place: str) -> _spdl_rs.Stage:
        paths = [self._stages(path, f"{place}.{at}.") for at, path in enumerate(config.paths)]
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


def _stages_of(config: PipelineConfig[Any]) -> list[StageConfig]:
    """The stages of a pipeline, of which regions have been cut out by now."""
    return [stage for stage in config.pipes if not isinstance(stage, PlacementConfig)]


def _pristine(aggregator: Aggregator | BatchImages) -> Aggregator | BatchImages:
    """A copy, so that whatever the user does with the original shows nowhere."""
    try:
        return copy.deepcopy(aggregator)
    except Exception as error:
        raise TypeError(
            f"an aggregator of type {type(aggregator).__name__!r} cannot be copied ({error}); each "
            "epoch works on a copy, so define __deepcopy__"
        ) from error
