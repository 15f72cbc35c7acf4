"""`PipelineBuilder`: builds a pipeline step by step."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Generic, Literal, TypeVar

from ..._arguments import Path
from ..._failure_policy import Skip
from ...io._operators import BatchImages
from ...usage import log_api_usage_once
from ..defs import _native
from .._hooks.background import BackgroundTaskFactory
from .build import build_pipeline
from .._run.options import QueueFactory, TaskHookFactory
from .._run.pipeline import Pipeline
from ..defs import _configs as configs
from ..defs import _factories as factories
from ..defs._aggregators import Aggregator
from ..defs._retry import Retry
from ..defs._executors import PlacementConfig, Target

T = TypeVar("T")
U = TypeVar("U")


class PipelineBuilder(Generic[T, U]):
    """Builds a pipeline from a source, stages and a sink. Nothing runs before `build`.

    Each method that adds a source, a stage or a sink returns the builder.

    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> builder = PipelineBuilder().add_source(["1", "2", "three"]).pipe(int).add_sink()
    >>> print(builder)
    PipelineBuilder
     - Source: SourceConfig(source=['1', '2', 'three'])
     - Pipes:
       - int(concurrency=1)
     - Sink: SinkConfig(buffer_size=3)
    >>> list(builder.build(num_threads=1))
    [1, 2]
    """

    def __init__(self) -> None:
        log_api_usage_once("spdl_rs.pipeline.PipelineBuilder")
        self._source: configs.SourceConfig[Any] | None = None
        self._pipes: list[configs.StageConfig | PlacementConfig] = []
        self._sink: configs.SinkConfig[U] | None = None

    def add_source(
        self, source: Iterable[T] | AsyncIterable[T], *, continuous: bool = False
    ) -> PipelineBuilder[T, U]:
        """Sets the source of items.

        A dedicated thread iterates an iterable. Do not use the iterable in other code while the pipeline runs.
        The event loop of the pipeline iterates an async iterable. An exception of the source ends the
        pipeline, after earlier items are delivered.

        Args:
            source: The items.
            continuous: Whether to iterate the source repeatedly, until an iteration has no items. Each iteration
                is one epoch, and iterating the pipeline delivers the items of one epoch. Epochs are never
                mixed.

        Raises:
            ValueError: The source is already set, or `source` is not iterable.
            TypeError: `continuous` is not `True` or `False`.
        """
        if self._source is not None:
            raise ValueError("the source is already set")
        self._source = configs.SourceConfig(source, continuous)
        return self

    def pipe(
        self,
        op: Any,
        /,
        *,
        concurrency: int | None = None,
        executor: concurrent.futures.Executor | None = None,
        name: str | None = None,
        output_order: Literal["completion", "input"] = "completion",
        max_failures: int | Fraction | None = None,
        retry: Retry | None = None,
        size: Callable[[Any], int] | None = None,
    ) -> PipelineBuilder[T, U]:
        """Adds a stage that calls a function for each item.

        The function may return its result, yield several results (each is forwarded immediately), or be
        async. An object with `__getitem__` is indexed with the item. A result of `None` drops the item. If
        the function raises, the item is dropped too, within the limit of `max_failures`.

        `Fetch`, `Decode`, `DecodeImage` and `AugmentImage` of `spdl_rs.io` run in Rust, without the GIL, unless an
        `executor`, a custom hook, a custom queue or a merge function is used. Between consecutive native
        operators, items do not pass through Python.

        Args:
            op: The function.
            concurrency: How many items the stage processes at the same time, at least 1. Default: 1; for
                native operators, automatic. A thread may take several items of a fast function together, so
                the function must not wait for the call with another item.
            executor: Runs the function, instead of the worker threads of the pipeline. For process pools,
                items and results are pickled, and generators run to their end before results are
                returned. At exit, Python waits for calls in progress; a warning names their functions.
            name: The name of the stage in statistics and messages. Default: the name of the function, or
                of its class.
            output_order: `"completion"`: results are forwarded as they complete. `"input"`: in the order
                of the input items.
            max_failures: A separate failure budget: a number of items, a fraction of the processed items
                (from the 100th on), or unlimited if negative. Default: the budget of the pipeline.
            retry: Calls the function again after some exceptions: see `Retry`. Only the last exception counts as a
                failure and is logged. The results of a generator are forwarded after the generator has ended.
                Default: no retries. Not supported for native operators: `Fetch` retries reads itself.
            size: Returns the size of a result in bytes, for the `memory_budget` of `build`. If it raises an
                exception, `sys.unraisablehook` receives it, and the size counts as 0.

        Raises:
            ValueError: An argument is out of range, an async function is combined with an `executor`, or
                an async generator with `output_order="input"`.
            TypeError: `op` is neither a function nor a container, or does not accept one argument; or an
                argument has the wrong type.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> def spell(word):
        ...     yield from word
        >>> letters = PipelineBuilder().add_source(["ab", "c"]).pipe(spell)
        >>> codes = letters.pipe({"a": 1, "c": 3}.get).add_sink()
        >>> list(codes.build(num_threads=1))
        [1, 3]
        """
        self._pipes.append(
            factories.Pipe(
                op,
                concurrency=concurrency,
                executor=executor,
                name=name,
                output_order=output_order,
                max_failures=max_failures,
                retry=retry,
                size=size,
            )
        )
        return self

    def aggregate(
        self, input: int | Aggregator | BatchImages, /, *, drop_last: bool = False
    ) -> PipelineBuilder[T, U]:
        """Adds a stage that combines several items into one.

        Args:
            input: The number of items per list, a `Bucket` for lists of items of similar length, a custom
                `Aggregator`, or `spdl_rs.io.BatchImages` for arrays instead of lists.
            drop_last: Whether to leave out an incomplete aggregate at the end of an epoch.

        Raises:
            TypeError: `input` has another type, or `drop_last` is not `True` or `False`.
            ValueError: `input` is less than 1.
        """
        self._pipes.append(factories.Aggregate(input, drop_last=drop_last))
        return self

    def disaggregate(self) -> PipelineBuilder[T, U]:
        """Adds a stage that splits lists: each element becomes an item."""
        self._pipes.append(factories.Disaggregate())
        return self

    def path_variants(
        self,
        router: configs.Router,
        paths: Sequence[Sequence[configs.StageConfig]],
        name: str | None = None,
        batched: bool = False,
    ) -> PipelineBuilder[T, U]:
        """Adds alternative paths. A router selects the path of each item.

        Results of all paths are forwarded as they complete.

        Args:
            router: Returns the index of the path for an item; may be async. An exception or an invalid
                index ends the pipeline.
            paths: The stages of each path: `Pipe`, `Aggregate` and so on. Items pass a path without
                stages unchanged.
            name: The name of the stage in statistics and messages.
            batched: Whether items are lists whose elements are routed separately. If so, `router` receives a
                list and returns an index for each element. Each path receives the list of its elements
                and must return as many elements; the results are merged in the original order.

        Raises:
            ValueError: There are no paths, a path contains something other than a stage, or `batched` is
                set and a path contains a native operator.
            TypeError: `router` is not callable, or an argument has the wrong type.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> from spdl_rs.pipeline.defs import Pipe
        >>> def half(numbers):
        ...     return [number // 2 for number in numbers]
        >>> builder = PipelineBuilder().add_source([[1, 2, 3, 4]])
        >>> parity = lambda numbers: [number % 2 for number in numbers]
        >>> builder = builder.path_variants(parity, [[Pipe(half)], []], batched=True).add_sink()
        >>> list(builder.build(num_threads=1))
        [[1, 1, 3, 2]]
        """
        self._pipes.append(factories.PathVariants(router, paths, name, batched))
        return self

    def to(self, target: Target, /, *, buffer_size: int = 1) -> PipelineBuilder[T, U]:
        """Runs the following stages in other processes, up to the next `to`.

        These stages form a region. Each of several processes runs all these stages as one pipeline: an item is
        sent to a process, and its result is sent back. So with n processes, a stage processes up to
        n × `concurrency` items at the same time. Results arrive in any order. Each process makes separate
        lists and aggregates. The `executor`s of the stages are not used. The functions of the stages and
        all other arguments must be picklable. Scripts must start processes under
        `if __name__ == "__main__":`, as for `iterate_in_subprocess`.

        Failures are handled as in other stages: they are logged in this process, keep their types, and
        count against one failure budget. If a process ends unexpectedly, the pipeline ends immediately
        with a `PipelineFailure` that contains a `WorkerError`. If the failure budget is exceeded, items
        in flight are dropped.

        `stats()` covers the stages after the last region, whose source is the region.

        The processes start and end with the pipeline. The random number generators of each process are
        seeded differently, from the generator states of this process.

        Args:
            target: A `ProcessPoolExecutorConfig`, or `MAIN_PROCESS` for the end of a region.
            buffer_size: How many items, and results, are sent per message, at least 1. Larger messages cost
                less per item, but an item waits until its message is full or the epoch ends.

        Raises:
            TypeError: `target` has another type.
            ValueError: `buffer_size` is not an integer, or less than 1.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> from spdl_rs.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig
        >>> builder = PipelineBuilder().add_source(["1", "2", "3"])
        >>> builder = builder.to(ProcessPoolExecutorConfig(max_workers=2)).pipe(int).pipe(hex)
        >>> builder = builder.to(MAIN_PROCESS).add_sink()
        >>> sorted(builder.build(num_threads=1))
        ['0x1', '0x2', '0x3']
        """
        self._pipes.append(PlacementConfig(target, buffer_size))
        return self

    def add_sink(self, buffer_size: int = 3) -> PipelineBuilder[T, U]:
        """Sets how many finished items may wait for the consumer, at least 1.

        Raises:
            ValueError: The sink is already set, or `buffer_size` is not an integer or less than 1.
        """
        if self._sink is not None:
            raise ValueError("the sink is already set")
        self._sink = configs.SinkConfig(buffer_size)
        return self

    def get_config(self) -> configs.PipelineConfig[U]:
        """Returns the configuration.

        Raises:
            RuntimeError: The source or the sink is missing, or a region requires a newer Python.
            ValueError: A region (see `to`) is not closed, is empty, or contains a stage with
                `output_order="input"`.
        """
        if self._source is None:
            raise RuntimeError("there is no source: call add_source first")
        if self._sink is None:
            raise RuntimeError("there is no sink: call add_sink first")
        config = configs.PipelineConfig(self._source, tuple(self._pipes), self._sink)
        configs.check_regions(config)
        return config

    def build(
        self,
        *,
        num_threads: int,
        max_failures: int | Fraction | Skip = -1,
        report_stats_interval: float = -1,
        queue_class: QueueFactory | None = None,
        task_hook_factory: TaskHookFactory | None = None,
        stage_id: int = 0,
        use_thread_output_queue: bool = False,
        background_tasks: Sequence[BackgroundTaskFactory] | None = None,
        epoch: int | None = None,
        memory_budget: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        key: Callable[[Any], str] | None = None,
        record_order: bool = False,
        replay: str | None = None,
        tune: bool | Path = False,
        monitor: str | os.PathLike[str] | None = None,
    ) -> Pipeline[U]:
        """Creates the pipeline: see `build_pipeline` for the arguments.

        By default, `max_failures` is -1: any number of items may fail. When a pipeline that dropped
        items ends without a `PipelineFailure`, one warning with their number by reason is logged; if the
        source is continuous, at the end of each epoch.

        Raises:
            RuntimeError: The source or the sink is missing.
            TypeError, ValueError, OSError: See `build_pipeline`.
        """
        return build_pipeline(
            self.get_config(),
            num_threads=num_threads,
            max_failures=max_failures,
            report_stats_interval=report_stats_interval,
            queue_class=queue_class,
            task_hook_factory=task_hook_factory,
            stage_id=stage_id,
            background_tasks=background_tasks,
            use_thread_output_queue=use_thread_output_queue,
            epoch=epoch,
            memory_budget=memory_budget,
            quarantine=quarantine,
            key=key,
            record_order=record_order,
            replay=replay,
            tune=tune,
            monitor=monitor,
        )

    def __repr__(self) -> str:
        lines = ["PipelineBuilder"]
        if self._source is not None:
            lines.append(f" - Source: {self._source!r}")
        if self._pipes:
            lines.append(" - Pipes:")
            lines.extend(f"   - {pipe}" for pipe in _native.described(self._pipes))
        if self._sink is not None:
            lines.append(f" - Sink: {self._sink!r}")
        return "\n".join(lines)
