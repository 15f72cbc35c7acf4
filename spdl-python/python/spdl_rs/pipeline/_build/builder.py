"""Pipelines put together step by step."""

from __future__ import annotations

import concurrent.futures
from collections.abc import AsyncIterable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Generic, Literal, TypeVar

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
from ..defs._executors import PlacementConfig, Target

T = TypeVar("T")
U = TypeVar("U")


class PipelineBuilder(Generic[T, U]):
    """Puts a pipeline together: a source, stages, a sink. Nothing runs before `build`.

    Each method returns the builder itself.

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
        """Sets where items come from.

        An iterable is iterated on a thread of its own, which nobody else should do meanwhile; an
        async iterable on the pipeline's event loop. What it raises ends the pipeline, after what
        came before has been delivered.

        Args:
            source: The items.
            continuous: Whether it is iterated again and again, without end. Each pass is an
                epoch: iterating the pipeline gives the items of one. Epochs never mix.

        Raises:
            ValueError: There is a source already, or it can be iterated in neither way.
            TypeError: `continuous` is neither `True` nor `False`.
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
    ) -> PipelineBuilder[T, U]:
        """Adds a stage that calls a function for each item.

        The function may give its result in any way: return it, yield several (each goes on at
        once), or do either as an async function. An object with `__getitem__` is indexed with the
        item. A result of `None` drops the item. What it raises drops the item too, as
        `max_failures` allows.

        `spdl_rs.io.Fetch` and `DecodeImage` run in Rust, without the GIL, unless they are given an
        `executor`; one right behind the other, nothing of an item passes through Python between them.

        Args:
            op: The function.
            concurrency: How many items it works on at once, at least 1. Default: 1; for native
                operators, what suits the machine.
            executor: Runs it there instead of on the pipeline's threads. What a process pool is
                given and gives is pickled, and a generator is run to its end there first.
            name: What the stage is called in statistics and messages. Default: the function's
                name, or that of its class.
            output_order: `"completion"`: results go on as they get ready. `"input"`: in the order
                of their items.
            max_failures: How many items may fail here: a number, a share of those tried (judged
                from the 100th on), or any number if negative. Default: the pipeline's budget.

        Raises:
            ValueError: An argument is out of range, or an async function is given what it
                cannot take: an `executor`, or for an async generator `output_order="input"`.
            TypeError: `op` is neither function nor container, or cannot be called with one argument;
                or an argument is of the wrong type.

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
            )
        )
        return self

    def aggregate(
        self, input: int | Aggregator | BatchImages, /, *, drop_last: bool = False
    ) -> PipelineBuilder[T, U]:
        """Adds a stage that makes one item of several.

        Args:
            input: How many items make a list, or an `Aggregator` of your own, or
                `spdl_rs.io.BatchImages`, for arrays instead of lists.
            drop_last: Whether what is left at the end of an epoch is left out.

        Raises:
            TypeError: `input` is neither, or `drop_last` neither `True` nor `False`.
            ValueError: It is less than 1.
        """
        self._pipes.append(factories.Aggregate(input, drop_last=drop_last))
        return self

    def disaggregate(self) -> PipelineBuilder[T, U]:
        """Adds a stage that takes lists apart: each element goes on as an item of its own."""
        self._pipes.append(factories.Disaggregate())
        return self

    def path_variants(
        self,
        router: configs.Router,
        paths: Sequence[Sequence[configs.StageConfig]],
        name: str | None = None,
        batched: bool = False,
    ) -> PipelineBuilder[T, U]:
        """Sends each item down one of several paths. What they give goes on as it gets ready.

        Args:
            router: Gives the number of an item's path, counted from 0; may be async. What it
                raises, and a number that there is not, ends the pipeline.
            paths: The stages of each path: `Pipe`, `Aggregate` and so on. Items pass through a
                path without stages as they are.
            name: What it is called in statistics and messages.
            batched: Whether items are lists, of which each element takes a path. Then `router` is
                given the list and gives a number for each element; each path is given the list of
                its elements, and must give as many; and the list is put together again.

        Raises:
            ValueError: There are no paths, or one holds something else than stages.
            TypeError: `router` cannot be called, or an argument is of the wrong type.

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
        """Sends the stages that follow to other processes, up to the next `to`.

        These stages, a region, run one after the other in each of several processes, as a pipeline
        of its own: an item travels there and its result back, and nothing travels between. So with
        n processes, n times a stage's `concurrency` run at once. Results come in any order; lists
        and aggregates are made in each process. The stages' `executor`s are not used. All that the
        stages are made of must be picklable; and a script must guard its start by
        `if __name__ == "__main__":`, as for `iterate_in_subprocess`.

        Failures are as those of other stages: they are logged here, have their type, and count
        together, whichever process they come from. A process that ends unexpectedly ends the
        pipeline at once, with a `WorkerError`. Where there are too many failures, what the
        processes have under way is dropped.

        `stats()` tells of the stages behind the last region; to these, the region is the source.

        The processes are started with the pipeline and end with it. The random number generators
        of each are seeded with numbers that follow from those of this process and differ.

        Args:
            target: A `ProcessPoolExecutorConfig`, or `MAIN_PROCESS` for the end of a region.
            buffer_size: How many items, and results, travel at once, at least 1. More cost less
                time each, but wait for each other, at most to the end of the epoch.

        Raises:
            TypeError: `target` is none of these.
            ValueError: `buffer_size` is no int, or less than 1.

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
        """Sets how many finished items may wait for whoever takes them, at least 1.

        Raises:
            ValueError: There is a sink already, or `buffer_size` is no int or less than 1.
        """
        if self._sink is not None:
            raise ValueError("the sink is already set")
        self._sink = configs.SinkConfig(buffer_size)
        return self

    def get_config(self) -> configs.PipelineConfig[U]:
        """What has been put together, as data.

        Raises:
            RuntimeError: There is no source or no sink, or a region needs a newer Python.
            ValueError: A region (see `to`) is not closed, is empty, or holds a stage with
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
        max_failures: int | Fraction = -1,
        report_stats_interval: float = -1,
        queue_class: QueueFactory | None = None,
        task_hook_factory: TaskHookFactory | None = None,
        stage_id: int = 0,
        use_thread_output_queue: bool = False,
        background_tasks: Sequence[BackgroundTaskFactory] | None = None,
    ) -> Pipeline[U]:
        """Makes the pipeline: see `build_pipeline`.

        Raises:
            RuntimeError: There is no source or no sink.
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
