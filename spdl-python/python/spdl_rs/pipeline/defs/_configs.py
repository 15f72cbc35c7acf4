"""Configurations of sources, stages, sinks and pipelines: immutable data."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ..._arguments import flag, function, real, shown, text, whole
from ...io._operators import BatchImages
from .._failures.item_text import brief
from . import _native, _ops
from ._aggregators import Aggregator
from ._checks import budget
from ._executors import (
    MAIN_PROCESS,
    ExecutorConfig,
    InterpreterPoolExecutorConfig,
    PlacementConfig,
    needs_interpreters,
)
from ._retry import Retry
from ._stage_info import StageInfo

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class SourceConfig(Generic[T]):
    """The source of a pipeline.

    Args:
        source: An iterable, which a dedicated thread iterates, or an async iterable, which the event loop
            iterates.
        continuous: Whether to iterate the source repeatedly, until an iteration has no items. Each
            iteration is one epoch.

    Raises:
        ValueError: `source` is not iterable.
        TypeError: `continuous` is not `True` or `False`.
    """

    source: Iterable[T] | AsyncIterable[T]
    continuous: bool = False

    def __post_init__(self) -> None:
        if not (hasattr(self.source, "__iter__") or hasattr(self.source, "__aiter__")):
            called = "; pass what the function returns" if callable(self.source) else ""
            raise ValueError(
                "a source must have __iter__ or __aiter__; "
                f"{type(self.source).__name__!r} objects have neither{called}"
            )
        object.__setattr__(self, "continuous", flag("continuous", self.continuous, or_number=True))

    def __repr__(self) -> str:
        continuous = ", continuous=True" if self.continuous else ""
        return f"SourceConfig(source={brief(self.source)}{continuous})"


class PipeArgs(NamedTuple):
    """The function of a stage and how it runs, under the names of SPDL: `PipeConfig._args`."""

    op: Callable[[Any], Any]
    executor: concurrent.futures.Executor | None
    concurrency: int | None


@dataclass(frozen=True)
class PipeConfig(Generic[T, U]):
    """A stage that calls a function for each item, created by `Pipe`.

    The default of `concurrency` is 1; for native operators it is `None`, which means automatic.

    Raises:
        TypeError: `op` can neither be called nor indexed, or an argument has the wrong type.
        ValueError: `concurrency` is less than 1, or `output_order` is unknown. Or `op` is async and an
            `executor` is given, or `op` is an async generator and `output_order` is `"input"`.
    """

    name: str
    op: Any
    concurrency: int | None = None
    executor: concurrent.futures.Executor | None = None
    output_order: Literal["completion", "input"] = "completion"
    max_failures: int | Fraction | None = None
    retry: Retry | None = None
    size: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        text("the name of a stage", self.name)
        of = f"of stage {self.name!r}"
        _native.check_is_instance(self.op)
        _ops.function_of(self.op)
        if self.concurrency is not None:
            concurrency = whole(f"concurrency {of}", self.concurrency, wrong_type=ValueError)
            object.__setattr__(self, "concurrency", concurrency)
        elif not _native.is_native(self):
            object.__setattr__(self, "concurrency", 1)
        if self.output_order not in ("completion", "input"):
            raise ValueError(
                f'output_order {of} must be "completion" or "input", not {shown(self.output_order)}'
            )
        if self.executor is not None:
            _check_executor(f"executor {of}", self.executor)
        kind = _ops.kind_of(self.op)
        if self.executor is not None and kind in ("await", "iterate-async"):
            raise ValueError(
                f"stage {self.name!r} has an async op, which runs on the event loop; remove the "
                "executor"
            )
        if kind == "iterate-async" and self.output_order == "input":
            raise ValueError(
                f"stage {self.name!r} is an async generator, which does not support "
                'output_order="input"'
            )
        if self.max_failures is not None:
            budget(self.max_failures, f"max_failures {of}")
        if self.retry is not None:
            if not isinstance(self.retry, Retry):
                raise TypeError(f"retry {of} must be a Retry, not {shown(self.retry)}")
            if _native.is_native(self):
                raise ValueError(f"stage {self.name!r} runs in Rust, which does not support retry")
        if self.size is not None:
            function(f"size {of}", self.size)

    @property
    def _args(self) -> PipeArgs:
        # Frameworks around SPDL read this attribute, although its name is private.
        return PipeArgs(_ops.function_of(self.op), self.executor, self.concurrency)

    def __repr__(self) -> str:
        parts = [] if self.concurrency is None else [f"concurrency={self.concurrency}"]
        if self.output_order == "input":
            parts.append("output_order='input'")
        if self.executor is not None:
            parts.append(f"executor={type(self.executor).__name__}")
        if self.max_failures is not None:
            parts.append(f"max_failures={self.max_failures}")
        if self.retry is not None:
            parts.append(f"retry={self.retry}")
        where = _ops.where(self.op, full_path=True)
        if _native.is_native(self):
            parts.append(f"op={self.op!r}")
        elif " at " in where:
            parts.append(f"op={where}")
        return f"{self.name}({', '.join(parts)})"


def _check_executor(name: str, executor: Any) -> None:
    if isinstance(executor, ExecutorConfig):
        raise TypeError(
            f"{name} must be a concurrent.futures.Executor, not its configuration; use to() to run "
            f"stages in a {type(executor).__name__}"
        )
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        raise TypeError(f"{name} must be a concurrent.futures.Executor, not {shown(executor)}")


@dataclass(frozen=True)
class AggregateConfig(Generic[T]):
    """A stage that combines several items into one, created by `Aggregate`.

    Raises:
        TypeError: `op` is neither an `Aggregator` nor a `BatchImages`, or `drop_last` is not `True` or `False`.
    """

    name: str
    op: Aggregator | BatchImages
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.op, Aggregator):
            raise TypeError(
                f"the op of stage {self.name!r} must be an Aggregator, not {shown(self.op)}"
            )
        drop_last = flag(f"drop_last of stage {self.name!r}", self.drop_last, or_number=True)
        object.__setattr__(self, "drop_last", drop_last)

    def __repr__(self) -> str:
        op = repr(self.op) if type(self.op).__repr__ is not object.__repr__ else self.op.__class__
        op = op if isinstance(op, str) else op.__name__
        return f"{self.name}({op}{', drop_last=True' if self.drop_last else ''})"


@dataclass(frozen=True)
class DisaggregateConfig(Generic[T]):
    """A stage that splits lists into items, created by `Disaggregate`."""

    name: str = "disaggregate"

    def __repr__(self) -> str:
        return self.name


Router: TypeAlias = (
    Callable[[Any], int]
    | Callable[[Any], Awaitable[int]]
    | Callable[[Sequence[Any]], Sequence[int]]
    | Callable[[Sequence[Any]], Awaitable[Sequence[int]]]
)


@dataclass(frozen=True)
class PathVariantsConfig(Generic[T]):
    """Alternative paths; a router selects one for each item. Created by `PathVariants`.

    Raises:
        TypeError: `router` is not callable.
        ValueError: There are no paths, a path contains something other than a stage, or `batched` is set
            and a path contains a native operator.
    """

    name: str
    router: Router
    paths: tuple[tuple[StageConfig, ...], ...]
    batched: bool = False

    def __post_init__(self) -> None:
        text("the name of a stage", self.name)
        of = f"of stage {self.name!r}"
        function(f"router {of}", self.router)
        batched = flag(f"batched {of}", self.batched, or_number=True)
        object.__setattr__(self, "batched", batched)
        if not self.paths:
            raise ValueError(f"paths {of} must contain at least one path")
        for at, path in enumerate(self.paths):
            for config in path:
                if not isinstance(config, STAGES):
                    raise ValueError(
                        f"path {at} contains a {type(config).__name__}; a path must contain stages only"
                    )
        if self.batched:
            _native.check_not_batched(self.paths)

    def __repr__(self) -> str:
        described = [", ".join(_native.described(path)) for path in self.paths]
        paths = ", ".join(f"path{at}=[{path}]" for at, path in enumerate(described))
        return f"{self.name}({paths}{', batched=True' if self.batched else ''})"


StageConfig: TypeAlias = (
    PipeConfig[Any, Any] | AggregateConfig[Any] | DisaggregateConfig[Any] | PathVariantsConfig[Any]
)
STAGES = (PipeConfig, AggregateConfig, DisaggregateConfig, PathVariantsConfig)


@dataclass(frozen=True)
class SinkConfig(Generic[T]):
    """The output queue of a pipeline: how many finished items may wait for the consumer.

    Raises:
        ValueError: `buffer_size` is not an integer, or less than 1.
    """

    buffer_size: int

    def __post_init__(self) -> None:
        buffer_size = whole("buffer_size", self.buffer_size, wrong_type=ValueError)
        object.__setattr__(self, "buffer_size", buffer_size)


# The queues are of type `spdl_rs.pipeline.AsyncQueue`.
MergeOp: TypeAlias = Callable[[StageInfo, Sequence[Any], Any], Awaitable[None]]


@dataclass(frozen=True)
class JoinConfig:
    """Base class of the sources that consist of several pipelines: `MergeConfig` and `ZipConfig`."""

    pipeline_configs: tuple[PipelineConfig[Any], ...]

    def _repr(self, arguments: Sequence[str]) -> str:
        lines = [f"{type(self).__name__}(", *(f"  {argument}" for argument in arguments)]
        for number, config in enumerate(self.pipeline_configs, start=1):
            lines.append(f"  Pipeline {number}:")
            lines.extend(f"    {line}" for line in repr(config).split("\n"))
        return "\n".join([*lines, ")"])


@dataclass(frozen=True, repr=False)
class MergeConfig(JoinConfig):
    """Several pipelines as a source, created by `Merge`.

    Raises:
        TypeError: `op` is not callable, or `seed` is not an integer.
        ValueError: There are no pipelines. Or `weights` is passed with `op`, has another length, or has a value that is
            not positive and finite.
    """

    op: MergeOp | None = None
    weights: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.op is not None and not callable(self.op):
            raise TypeError(f"a merge op must be an async function, not {shown(self.op)}")
        if not self.pipeline_configs:
            raise ValueError("a merge requires at least one upstream pipeline; the list is empty")
        whole("seed", self.seed, 0, 2**64 - 1)
        if self.weights is not None:
            if self.op is not None:
                raise ValueError("pass either weights or op to a merge, not both")
            if len(self.weights) != len(self.pipeline_configs):
                raise ValueError(
                    f"a merge of {len(self.pipeline_configs)} pipelines requires as many weights, not "
                    f"{len(self.weights)}"
                )
            if not all(0 < real("weights", weight) < math.inf for weight in self.weights):
                raise ValueError(f"weights must be positive and finite, not {self.weights}")

    def __repr__(self) -> str:
        arguments = []
        if self.op is not None:
            arguments.append(f"op={_ops.where(self.op, full_path=True)}")
        if self.weights is not None:
            arguments.append(f"weights={list(self.weights)}, seed={self.seed}")
        return self._repr(arguments)


@dataclass(frozen=True, repr=False)
class ZipConfig(JoinConfig):
    """Several pipelines as a source of tuples, created by `Zip`.

    Raises:
        TypeError: `strict` is not `True` or `False`.
        ValueError: There are no pipelines.
    """

    strict: bool = False

    def __post_init__(self) -> None:
        if not self.pipeline_configs:
            raise ValueError("a zip requires at least one upstream pipeline; the list is empty")
        object.__setattr__(self, "strict", flag("strict", self.strict, or_number=True))

    def __repr__(self) -> str:
        return self._repr(["strict=True"] if self.strict else [])


@dataclass(frozen=True)
class PipelineConfig(Generic[U]):
    """A complete pipeline.

    Args:
        src: One source, or several merged or zipped pipelines.
        pipes: The stages, in order.
        sink: The output queue.

    Raises:
        TypeError: An argument or a stage has the wrong type.
    """

    src: SourceConfig[Any] | MergeConfig | ZipConfig
    pipes: Sequence[StageConfig | PlacementConfig]
    sink: SinkConfig[U]

    def __post_init__(self) -> None:
        if not isinstance(self.src, (SourceConfig, MergeConfig, ZipConfig)):
            raise TypeError(
                f"src must be a SourceConfig, a MergeConfig or a ZipConfig, not {shown(self.src)}"
            )
        for config in self.pipes:
            if not isinstance(config, (*STAGES, PlacementConfig)):
                raise TypeError(f"pipes must contain only stages and PlacementConfigs, not {shown(config)}")
        if not isinstance(self.sink, SinkConfig):
            raise TypeError(f"sink must be a SinkConfig, not {shown(self.sink)}")

    def __repr__(self) -> str:
        lines = ["PipelineConfig", _item(f"Source: {self.src!r}", 1)]
        if self.pipes:
            lines.append(_item("Pipes:", 1))
            lines.extend(_item(pipe, 3) for pipe in _native.described(self.pipes))
        lines.append(_item(f"Sink: {self.sink!r}", 1))
        return "\n".join(lines)


def has_regions(config: PipelineConfig[Any]) -> bool:
    """Returns whether any stage, also of joined pipelines, runs in another process."""
    if any(isinstance(stage, PlacementConfig) for stage in config.pipes):
        return True
    src = config.src
    return isinstance(src, JoinConfig) and any(map(has_regions, src.pipeline_configs))


def check_regions(config: PipelineConfig[Any]) -> None:
    """Checks the regions of a pipeline, that is, stages that run in other processes.

    Raises:
        ValueError: A region is not closed or is empty, or a stage in it requires input order, which
            regions do not support.
        NotImplementedError: A region requires subinterpreters.
    """
    if isinstance(config.src, JoinConfig):
        for part in config.src.pipeline_configs:
            check_regions(part)
    placement, empty = PlacementConfig(MAIN_PROCESS), False
    for stage in config.pipes:
        if isinstance(stage, PlacementConfig):
            if empty:
                raise ValueError(
                    f"the region of {placement!r} has no stages; add a stage, or remove the to(...)"
                )
            if isinstance(stage.target, InterpreterPoolExecutorConfig):
                needs_interpreters("a region in interpreters", "ProcessPoolExecutorConfig")
            placement, empty = stage, stage.target is not MAIN_PROCESS
        elif isinstance(placement.target, ExecutorConfig):
            empty = False
            _refuse_order(stage)
    if placement.target is not MAIN_PROCESS:
        raise ValueError(
            f"the region of {placement!r} must be closed with to(MAIN_PROCESS) before add_sink(): the "
            "sink is in the main process"
        )


def _refuse_order(stage: StageConfig) -> None:
    if isinstance(stage, PipeConfig) and stage.output_order == "input":
        raise ValueError(
            f"stage {stage.name!r} has output_order='input', which is not supported in a region, because "
            "several processes share its items; move the stage out of the region"
        )
    if isinstance(stage, PathVariantsConfig):
        for path in stage.paths:
            for inner in path:
                _refuse_order(inner)


def is_continuous(config: PipelineConfig[Any]) -> bool:
    """Returns whether the pipeline iterates its source repeatedly.

    Raises:
        ValueError: Only some of the joined pipelines are continuous.
    """
    src = config.src
    if not isinstance(src, JoinConfig):
        return src.continuous
    continuous = {is_continuous(part) for part in src.pipeline_configs}
    if len(continuous) > 1:
        joined = "merged" if isinstance(src, MergeConfig) else "zipped"
        raise ValueError(
            f"Mixed continuous mode is not supported: set continuous=True for all {joined} sources, or for "
            "none"
        )
    return continuous.pop()


def has_merge_op(config: PipelineConfig[Any]) -> bool:
    """Returns whether functions of the user merge sources."""
    src = config.src
    if isinstance(src, MergeConfig) and src.op is not None:
        return True
    return isinstance(src, JoinConfig) and any(map(has_merge_op, src.pipeline_configs))


def _item(text: str, by: int) -> str:
    """Formats an indented list entry."""
    return " " * by + "- " + text.replace("\n", "\n" + " " * (by + 2))
