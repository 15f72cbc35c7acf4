"""The native graph of a pipeline, and the threads that it needs."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from ... import _spdl_rs
from ...io import _repeated_draws as repeated_draws
from ...io._operators import BatchImages
from .._hooks.markers import _EPOCH_END
from ..defs import _native, _ops
from ..defs._aggregators import Aggregator, Bucket, Collate
from ..defs._checks import native_budget
from ..defs._configs import (
    DisaggregateConfig,
    JoinConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    StageConfig,
    ZipConfig,
    is_continuous,
)
from ..defs._executors import PlacementConfig
from ..defs._stage_info import StageInfo
from .executors import Cancellable, ExecutorCall, ExecutorIteration
from .instrumentation import Instrumentation
from .options import size_of
from .results import ResultCheck

if TYPE_CHECKING:
    from .._event_loop.hooked_stage import HookedStage
    from .._event_loop.supervisor import LoopSupervisor
    from .._hooks.queues import AsyncQueue
    from .position import Positions
    from .reporting import Reporter
    from .segments import Relay, SharedLimits

# The capacity of queues between stages.
_BETWEEN = 2
# How many worker threads a tuned pipeline may use, unless it begins with more.
_MOST_TUNED_THREADS = 16


class Assembly:
    """The parts of one run of a pipeline.

    Args:
        config: The pipeline.
        number: The number of the pipeline in this process.
        instrumentation: Build options, hooks and queues.
        positions: The positions in the sources.
    """

    def __init__(
        self,
        config: PipelineConfig[Any],
        number: int,
        instrumentation: Instrumentation,
        positions: Positions,
    ) -> None:
        options = instrumentation.options
        self._number = number
        self._positions = positions
        self._sources = iter(positions.sources)
        self._settings = options.settings
        self._is_measured = options.settings.memory_budget is not None
        self._quarantined = options.settings.quarantined()
        self._instrumentation = instrumentation
        self._supervisor = instrumentation.supervisor
        self._limits: SharedLimits | None = None
        self._jobs: _spdl_rs.Inbox | None = None
        self._pools: list[_spdl_rs.Workers] = []
        self.shared: _spdl_rs.Workers
        """The workers of stages without separate threads."""
        self.counts: dict[_spdl_rs.Workers, int] = {}
        """The number of threads of workers that have more threads than at the start."""
        self.workers_of: dict[str, _spdl_rs.Workers] = {}
        """Separate workers by the full names of their stages."""
        self.threads: list[tuple[str, Callable[[], None]]] = []
        """The names and main functions of all threads."""
        self.cancellables: list[Cancellable] = []
        """Work to cancel when the pipeline stops: calls on the user's executors, and regions."""
        self.inner_runs: list[_spdl_rs.PipelineRun] = []
        """Runs that put their items into Python queues."""
        self._reporters: list[Callable[[], Reporter]] = []
        self.coroutines: list[Callable[[], Any]] = []
        """Coroutines that run on the event loop during the run."""
        self.stages_of: dict[CodeType, list[str]] = {}
        """Names of stages by the code of their functions."""
        self._iterated: set[str] = set()
        """Places of stages whose results the next stage iterates, or may iterate."""
        self._operators: list[tuple[Sequence[StageConfig], list[str]]] = []
        """Native operators, with the names of their stages."""
        self.called: list[str] = []
        """Native operators that are called as functions, because of hooks or queues."""

        last = options.stage_id + 1 + len(_stages_of(config))
        self._sink = StageInfo(number, str(last), "sink")
        if instrumentation.merges or self._carries_items(self._sink, config.sink.buffer_size):
            from .segments import SharedLimits

            self._limits = SharedLimits(options.num_threads, options.max_failures)
        graph = self._line(config, "", options.stage_id)
        if self._supervisor is not None:
            self._event_loop()
        max_failures = options.max_failures if self._limits is None else -1
        if self._limits is not None:
            self._settings.refuse("a merge function or a custom queue")
        self.run = self._run(graph, self._jobs, config.sink.buffer_size, max_failures)
        if self._jobs is not None:
            # This module is imported lazily, because importing asyncio is slow.
            from .._event_loop.loop import EventLoop

            loop = EventLoop(self._jobs, self._supervisor)
            self.threads.append(("spdl_event_loop_thread", loop))

    def begin(self) -> None:
        """Adds reporting threads and coroutines, if this assembly is started."""
        if self._instrumentation.options.epoch is not None:
            repeated_draws.choose(self._number)
        for configs, names in self._operators:
            _native.check_random_numbers(configs, names, 0)
        self.threads += [("spdl_report_thread", make()) for make in self._reporters]
        if self._supervisor is not None:
            for make in self.coroutines:
                self._supervisor.add_coroutine(make)

    def _line(self, config: PipelineConfig[Any], outer: str, first: int) -> _spdl_rs.Graph:
        """Adds a source and the stages after it, and returns the graph."""
        graph, name, info = self._source(config, outer, first)
        is_outermost = not outer
        stages = _stages_of(config)
        for at, configs in self._groups(stages, outer, first + 1):
            if is_outermost and info is not None:
                graph = self._queue(graph, name, info, _BETWEEN, config)
            places = [f"{outer}{first + 1 + at + more}" for more in range(len(configs))]
            graph = graph.then([self._group(configs, places)])
            name = f"{self._number}:{places[-1]}:{configs[-1].name}"
            info = self._info(configs[-1], places[-1])
        if is_outermost:
            graph = self._queue(graph, name, self._sink, config.sink.buffer_size, config)
        return graph

    def _source(
        self, config: PipelineConfig[Any], outer: str, first: int
    ) -> tuple[_spdl_rs.Graph, str, StageInfo | None]:
        source, place = config.src, f"{outer}{first}"
        if not isinstance(source, JoinConfig):
            name = f"{self._number}:{place}:src"
            inbox = self._event_loop() if isinstance(source.source, AsyncIterable) else None
            if isinstance(source.source, Cancellable):
                self.cancellables.append(source.source)
            position = next(self._sources)
            feed = _spdl_rs.Feed(
                name,
                position.iterable(),
                source.continuous,
                inbox,
                key=self._settings.key_function(),
                len=position.length,
                resumes=position.resumes,
            )
            if not isinstance(source.source, _spdl_rs.TaskQueue):
                self.threads.append(("spdl_sync_source", feed))
            size = size_of if self._is_measured else None
            graph = _spdl_rs.Graph.source(feed, self._quarantined, size)
            return graph, name, StageInfo(self._number, place, "src")
        parts = (
            self._line(part, f"{place}.{at}.", 0) for at, part in enumerate(source.pipeline_configs)
        )
        if isinstance(source, ZipConfig):
            name = f"{self._number}:{place}:zip"
            graph = _spdl_rs.Graph.zip(name, list(parts), source.strict, self._is_measured)
            return graph, name, None
        name = f"{self._number}:{place}:merge"
        if source.op is None:
            return _spdl_rs.Graph.merge(list(parts), source.weights, source.seed), name, None
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
        """Adds a custom merge of several runs, and returns the graph."""
        from .._hooks.queues import AsyncQueue
        from .segments import MergeTask, Relay

        supervisor = self._needed_supervisor()
        inputs, halts = [], []
        for at, part in enumerate(parts):
            place = StageInfo(self._number, f"{info.stage_id}.{at}", "merge_input")
            queue = AsyncQueue(place, buffer_size=_BETWEEN)
            inputs.append(queue)
            halts.append(self._pump(part, queue).halt)
        output = AsyncQueue(info, buffer_size=_BETWEEN)
        merging = MergeTask(op, info, inputs, halts, output, supervisor)
        self.coroutines.append(merging.run)
        return self._relay(Relay(output, supervisor), name, continuous)

    def _queue(
        self,
        graph: _spdl_rs.Graph,
        name: str,
        info: StageInfo,
        buffer_size: int,
        config: PipelineConfig[Any],
    ) -> _spdl_rs.Graph:
        """Adds the queue after a stage, and returns the graph."""
        queue = self._instrumentation.queue(info, buffer_size)
        if queue is not None and self._carries_items(info, buffer_size):
            from .segments import Relay

            relay = Relay(queue, self._needed_supervisor())
            self._pump(graph, queue, relay)
            return self._relay(relay, f"{name}_queue", is_continuous(config))
        self._instrumentation.watch(name, info, buffer_size)
        return graph

    def _carries_items(self, info: StageInfo, buffer_size: int) -> bool:
        """Returns whether items go through the Python queue after a stage."""
        queue = self._instrumentation.queue(info, buffer_size)
        if queue is None:
            return False
        from .._hooks.queues import carries_items

        return carries_items(queue)

    def _pump(
        self, graph: _spdl_rs.Graph, queue: AsyncQueue, relay: Relay | None = None
    ) -> _spdl_rs.PipelineRun:
        """Adds a separate run that puts its items into a queue."""
        from .segments import Pump

        # The last run closes the job queue.
        run = self._run(graph, None, 1, -1)
        self.inner_runs.append(run)
        pump = Pump(run, queue, self._needed_supervisor(), relay)
        self.threads.append(("spdl_queue_thread", pump))
        return run

    def _relay(self, relay: Relay, name: str, continuous: bool) -> _spdl_rs.Graph:
        """Adds a source that yields the items of a queue, and returns the graph."""
        feed = _spdl_rs.Feed(name, relay, continuous, None, _EPOCH_END)
        self.threads.append(("spdl_queue_thread", feed))
        return _spdl_rs.Graph.source(feed)

    def _needed_supervisor(self) -> LoopSupervisor:
        if self._supervisor is None:
            raise RuntimeError("internal error: no event loop for Python queues")
        return self._supervisor

    def _run(
        self,
        graph: _spdl_rs.Graph,
        inbox: _spdl_rs.Inbox | None,
        prefetch: int,
        max_failures: int | float | tuple[float, int, bool],
    ) -> _spdl_rs.PipelineRun:
        """Creates a run of the stages added since the last run, and its reporter."""
        interval = self._instrumentation.interval()
        intervals = None if interval is None else _spdl_rs.Intervals(interval)
        threads, self._pools, pools = self._shared_threads(), [], self._pools
        epoch = self._instrumentation.options.epoch or 0
        settings = self._settings.native(self._positions.resumed)
        run = _spdl_rs.PipelineRun(
            graph, threads, pools, inbox, prefetch, max_failures, intervals, epoch, settings
        )
        if intervals is not None:
            reporter = self._instrumentation.reporter
            self._reporters.append(functools.partial(reporter, intervals, run.monitor))
        return run

    def _shared_threads(self) -> _spdl_rs.Workers:
        """Creates the worker threads of a run, for stages without separate threads."""
        count = self._instrumentation.options.num_threads
        workers = self.shared = _spdl_rs.Workers(count)
        # Tuning may use more threads. Unused threads sleep.
        most = max(count, _MOST_TUNED_THREADS) if self._settings.tune else count
        self.threads += [(f"spdl_worker_thread_{at}", workers) for at in range(most)]
        self.counts[workers] = most
        return workers

    def _info(self, config: StageConfig, place: str) -> StageInfo:
        concurrency = config.concurrency if isinstance(config, PipeConfig) else None
        return StageInfo(self._number, place, config.name, concurrency)

    def _stages(self, pipes: Sequence[StageConfig], outer: str) -> list[_spdl_rs.Stage]:
        # The stage that follows a path is unknown here, and may iterate the results.
        self._iterated.add(f"{outer}{len(pipes) - 1}")
        return [
            self._group(configs, [f"{outer}{at + more}" for more in range(len(configs))])
            for at, configs in self._groups(pipes, outer, 0)
        ]

    def _groups(
        self, stages: Sequence[StageConfig], outer: str, first: int
    ) -> Iterator[tuple[int, Sequence[StageConfig]]]:
        """Groups stages that form one engine stage. Yields positions and groups."""
        _native.check_compatible(stages)
        for at, after in enumerate(stages[1:]):
            if isinstance(after, DisaggregateConfig):
                self._iterated.add(f"{outer}{first + at}")
        return _native.groups(
            stages, lambda at: self._is_called(stages[at], f"{outer}{first + at}")
        )

    def _is_called(self, config: StageConfig, place: str) -> bool:
        """Returns whether a native operator is called as a function.

        An operator is called as a function if it has hooks, or if several runs share limits that Python counts.
        """
        return self._limits is not None or self._hooks(config, place) is not None

    def _hooks(self, config: StageConfig, place: str) -> HookedStage | None:
        name = f"{self._number}:{place}:{config.name}"
        return self._instrumentation.hooks(name, self._info(config, place))

    def _group(self, configs: Sequence[StageConfig], places: list[str]) -> _spdl_rs.Stage:
        """Returns the engine stage of a group: one stage, or several native stages."""
        names = [
            f"{self._number}:{place}:{config.name}"
            for place, config in zip(places, configs, strict=True)
        ]
        config, place = configs[0], places[0]
        if not _native.is_native(config):
            return self._stage(config, names[0], place, self._info(config, place))
        self._operators.append((configs, names))
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
            return _spdl_rs.Stage.lists(name, config.op.n, config.drop_last, self._is_measured)
        if type(config.op) is Bucket:
            if hooks is not None or self._limits is not None:
                raise ValueError(
                    f"stage {config.name!r}: a Bucket supports no hooks, merge functions and custom queues"
                )
            return config.op._native(name, config.drop_last, self._is_measured)
        make = functools.partial(copy.deepcopy, _pristine(config.op))
        make = make if hooks is None else hooks.wrap_aggregators(make)
        if self._limits is not None:
            make = self._limits.wrap_aggregators(name, make)
        return _spdl_rs.Stage.aggregate(name, make, config.drop_last, self._is_measured)

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
            # As in Rust, operators do not occupy the shared worker threads.
            function, draws, concurrency = _native.called(config)
            kind = "call" if draws is None else "draw"
            workers = self._own_threads(concurrency)
        if config.executor is not None:
            executor_call = ExecutorIteration if kind == "iterate" else ExecutorCall
            function = executor_call(config.executor, function)
            self.cancellables.append(function)
            workers = self._own_threads(concurrency)
        elif kind == "iterate-async":
            # Such stages wait for the event loop, so they must not occupy the shared worker threads.
            workers = self._own_threads(concurrency)
        if workers is not None:
            self.workers_of[name] = workers
        results = ResultCheck(config.op, name, info.stage_id in self._iterated)
        hooks = self._instrumentation.hooks(name, info)
        # Otherwise results are checked natively, which is faster.
        natively = kind == "call" and hooks is None and self._limits is None
        if not natively:
            function = results.wrap(kind, function)
        if hooks is not None:
            function = hooks.wrap(kind, function)
        budget = None if config.max_failures is None else native_budget(config.max_failures)
        if self._limits is not None and config.retry is not None:
            raise ValueError(
                f"retry of stage {config.name!r} is not supported with merge functions and custom queues"
            )
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
            look_at=results.check if natively else None,
            retry=None if config.retry is None else config.retry._native(),
            size=config.size or size_of if self._is_measured else None,
        )

    def _paths(self, config: PathVariantsConfig[Any], name: str, place: str) -> _spdl_rs.Stage:
        measured = self._is_measured
        # The engine does not measure items whose order it restores afterwards.
        self._is_measured = measured and not config.batched
        paths = [self._stages(path, f"{place}.{at}.") for at, path in enumerate(config.paths)]
        self._is_measured = measured
        is_async = _ops.kind_of(config.router) == "await"
        inbox = self._event_loop() if is_async else None
        return _spdl_rs.Stage.route(name, config.router, paths, batched=config.batched, inbox=inbox)

    def _event_loop(self) -> _spdl_rs.Inbox:
        if self._jobs is None:
            self._jobs = _spdl_rs.Inbox()
        return self._jobs

    def _own_threads(self, count: int) -> _spdl_rs.Workers:
        workers = _spdl_rs.Workers(count)
        self._pools.append(workers)
        self.threads += [(f"spdl_stage_thread_{at}", workers) for at in range(count)]
        return workers


def _stages_of(config: PipelineConfig[Any]) -> list[StageConfig]:
    """Returns the stages of a pipeline. Regions are already removed."""
    return [stage for stage in config.pipes if not isinstance(stage, PlacementConfig)]


def _pristine(aggregator: Aggregator | BatchImages) -> Aggregator | BatchImages:
    """Copies an aggregator, so that later changes by the user have no effect."""
    try:
        return copy.deepcopy(aggregator)
    except Exception as error:
        raise TypeError(
            f"an aggregator of type {type(aggregator).__name__!r} cannot be copied ({error}); each "
            "epoch works on a copy, so define __deepcopy__"
        ) from error
