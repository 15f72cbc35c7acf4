"""Functions that create configurations, with the arguments of `PipelineBuilder`'s methods."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Literal, SupportsIndex

from ..._arguments import listed, shown, whole
from ...io._operators import BatchImages
from . import _ops
from ._aggregators import Aggregator, Collate
from ._configs import (
    AggregateConfig,
    DisaggregateConfig,
    MergeConfig,
    MergeOp,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    Router,
    StageConfig,
    ZipConfig,
)
from ._retry import Retry


def Pipe(
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
) -> PipeConfig[Any, Any]:
    """Returns a stage that calls `op` for each item: see `PipelineBuilder.pipe`.

    >>> from spdl_rs.pipeline.defs import Pipe
    >>> Pipe(len, concurrency=2)
    len(concurrency=2)
    """
    name = _ops.name_of(op) if name is None else name
    return PipeConfig(name, op, concurrency, executor, output_order, max_failures, retry, size)


def Aggregate(
    input: int | Aggregator | BatchImages, /, *, drop_last: bool = False
) -> AggregateConfig[Any]:
    """Returns a stage that combines several items: see `PipelineBuilder.aggregate`.

    >>> from spdl_rs.pipeline.defs import Aggregate
    >>> Aggregate(32, drop_last=True)
    aggregate(Collate(32), drop_last=True)
    """
    if isinstance(input, Aggregator):
        op: Aggregator | BatchImages = input
    elif isinstance(input, SupportsIndex):
        op = Collate(whole("the size of an aggregate", input))
    else:
        raise TypeError(
            f"aggregate takes an int, an Aggregator or a BatchImages, not {shown(input)}"
        )
    return AggregateConfig("aggregate", op, drop_last)


def Disaggregate() -> DisaggregateConfig[Any]:
    """Returns a stage that splits lists into items: see `PipelineBuilder.disaggregate`.

    >>> from spdl_rs.pipeline import build_pipeline
    >>> from spdl_rs.pipeline.defs import Disaggregate, PipelineConfig, SinkConfig, SourceConfig
    >>> config = PipelineConfig(SourceConfig([[1, 2], [3]]), [Disaggregate()], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1))
    [1, 2, 3]
    """
    return DisaggregateConfig()


def Merge(
    pipeline_configs: Sequence[PipelineConfig[Any]],
    op: MergeOp | None = None,
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
) -> MergeConfig:
    """Returns a source of the items of several pipelines, in order of arrival, by weighted draws, or merged by `op`.

    The sinks of the pipelines are ignored. The source ends when all pipelines have ended. If the
    pipelines are continuous, an epoch ends when it has ended in each pipeline; epochs are never mixed.

    Args:
        pipeline_configs: The pipelines.
        op: An async function `op(info, input_queues, output_queue)` that merges items. `op` runs on the
            event loop of the pipeline, with one `AsyncQueue` per pipeline. `op` takes items from the
            inputs (`await queue.get()`) and puts results into the output. Each input ends with a marker
            (`is_eof`). In continuous pipelines each epoch ends with a marker (`is_epoch_end`); putting
            this marker into the output ends the epoch. When the function returns, the source ends, and
            pipelines that have not ended are stopped. An exception ends the whole pipeline.
        weights: One positive number for each pipeline. For each item, a pipeline is drawn at random, with a
            probability proportional to its weight; pipelines that have ended are not drawn. The draws depend only on
            the weights, the seed and the epoch, so the order is the same in each run if the pipelines keep the order
            of their items. Default: the order of arrival.
        seed: The seed of the draws, at least 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There are no pipelines, or `weights` are invalid or passed with `op`. `build_pipeline`
            raises this exception if only some of the pipelines are continuous.

    >>> from spdl_rs.pipeline import build_pipeline, is_eof
    >>> from spdl_rs.pipeline.defs import Merge, PipelineConfig, SinkConfig, SourceConfig
    >>> async def in_turn(info, input_queues, output_queue):
    ...     while True:
    ...         for queue in input_queues:
    ...             item = await queue.get()
    ...             if is_eof(item):
    ...                 return
    ...             await output_queue.put(item)
    >>> parts = [PipelineConfig(SourceConfig(word), [], SinkConfig(1)) for word in ("ace", "bd")]
    >>> config = PipelineConfig(Merge(parts, in_turn), [], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1))
    ['a', 'b', 'c', 'd', 'e']
    """
    parts = listed("pipeline_configs", pipeline_configs, "a list of PipelineConfigs")
    return MergeConfig(tuple(parts), op, None if weights is None else tuple(weights), seed)


def Zip(pipeline_configs: Sequence[PipelineConfig[Any]], *, strict: bool = False) -> ZipConfig:
    """Returns a source of tuples, with one item of each of several pipelines, like Python's `zip`.

    Item `n` of each pipeline is in tuple `n`. So tuples are the same in each run if the pipelines keep the order of
    their items: stages with a concurrency of more than 1 need `output_order="input"`. Items that are dropped after an
    exception, or because a stage returns `None`, are in no tuple, and the next item takes their place; to keep pairs
    together, return a value for them.

    The source ends with the shortest pipeline. The others are then read to their end, and their items are dropped, so
    an endless source needs a limit, such as `itertools.islice`. If the pipelines are continuous, each epoch ends with
    the shortest one; epochs are never mixed. The sinks of the pipelines are ignored. The pipeline has a
    `state_dict` if each source has a position, as in `Merge`.

    Args:
        pipeline_configs: The pipelines.
        strict: Whether pipelines with different numbers of items are an error, which ends the whole pipeline.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There are no pipelines. `build_pipeline` raises this exception if only some of the pipelines are
            continuous.

    >>> from spdl_rs.pipeline import build_pipeline
    >>> from spdl_rs.pipeline.defs import Pipe, PipelineConfig, SinkConfig, SourceConfig, Zip
    >>> letters = PipelineConfig(SourceConfig("abc"), [Pipe(str.upper)], SinkConfig(1))
    >>> numbers = PipelineConfig(SourceConfig(range(10)), [], SinkConfig(1))
    >>> config = PipelineConfig(Zip([letters, numbers]), [], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1))
    [('A', 0), ('B', 1), ('C', 2)]
    """
    parts = listed("pipeline_configs", pipeline_configs, "a list of PipelineConfigs")
    return ZipConfig(tuple(parts), strict)


def PathVariants(
    router: Router,
    paths: Sequence[Sequence[StageConfig]],
    name: str | None = None,
    batched: bool = False,
) -> PathVariantsConfig[Any]:
    """Returns alternative paths for items: see `PipelineBuilder.path_variants`.

    >>> from spdl_rs.pipeline import build_pipeline
    >>> from spdl_rs.pipeline.defs import PathVariants, Pipe, PipelineConfig, SinkConfig, SourceConfig
    >>> stages = [PathVariants(lambda n: n % 2, [[], [Pipe(lambda n: -n)]])]
    >>> config = PipelineConfig(SourceConfig(range(4)), stages, SinkConfig(1))
    >>> sorted(build_pipeline(config, num_threads=1))
    [-3, -1, 0, 2]
    """
    name = "path_variants" if name is None else name
    found = listed("paths", paths, "a list of lists of stages")
    stages = [listed(f"path {at}", path, "a list of stages") for at, path in enumerate(found)]
    return PathVariantsConfig(name, router, tuple(map(tuple, stages)), batched)
