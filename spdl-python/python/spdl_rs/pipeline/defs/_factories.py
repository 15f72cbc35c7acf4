"""Functions that make configurations, with the arguments of the builder's methods."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
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
)


def Pipe(
    op: Any,
    /,
    *,
    concurrency: int | None = None,
    executor: concurrent.futures.Executor | None = None,
    name: str | None = None,
    output_order: Literal["completion", "input"] = "completion",
    max_failures: int | Fraction | None = None,
) -> PipeConfig[Any, Any]:
    """A stage that calls `op` for each item: see `PipelineBuilder.pipe`.

    >>> from spdl_rs.pipeline.defs import Pipe
    >>> Pipe(len, concurrency=2)
    len(concurrency=2)
    """
    name = _ops.name_of(op) if name is None else name
    return PipeConfig(name, op, concurrency, executor, output_order, max_failures)


def Aggregate(
    input: int | Aggregator | BatchImages, /, *, drop_last: bool = False
) -> AggregateConfig[Any]:
    """A stage that makes one item of several: see `PipelineBuilder.aggregate`.

    >>> from spdl_rs.pipeline.defs import Aggregate
    >>> Aggregate(32, drop_last=True)
    aggregate(Collate(32), drop_last=True)
    """
    if isinstance(input, Aggregator):
        op: Aggregator | BatchImages = input
    elif isinstance(input, SupportsIndex):
        op = Collate(whole("the size of aggregates", input))
    else:
        raise TypeError(
            f"aggregate takes an int, an Aggregator or a BatchImages, not {shown(input)}"
        )
    return AggregateConfig("aggregate", op, drop_last)


def Disaggregate() -> DisaggregateConfig[Any]:
    """A stage that takes lists apart: see `PipelineBuilder.disaggregate`."""
    return DisaggregateConfig()


def Merge(
    pipeline_configs: Sequence[PipelineConfig[Any]], op: MergeOp | None = None
) -> MergeConfig:
    """The items of several pipelines as a source, as they come, or as a function merges them.

    Their sinks are ignored. The source ends when all of them have ended. Where they are
    continuous, an epoch ends when that of each has; epochs never mix.

    Args:
        pipeline_configs: The pipelines.
        op: An async function that merges: `op(info, input_queues, output_queue)` is run on the
            pipeline's event loop, with an `AsyncQueue` for each pipeline. It takes items out of
            them (`await queue.get()`) and puts what it makes of them into the last one. From each
            queue comes a marker at the end (`is_eof`), and one at the end of each epoch of
            continuous pipelines (`is_epoch_end`), which ends an epoch where it is put into the
            output. When the function returns, the source ends, and so do the pipelines that have
            not; what it raises ends the whole.

    Raises:
        TypeError: `op` cannot be called.
        ValueError: There are no pipelines, or some are continuous and some are not.

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
    return MergeConfig(tuple(parts), op)


def PathVariants(
    router: Router,
    paths: Sequence[Sequence[StageConfig]],
    name: str | None = None,
    batched: bool = False,
) -> PathVariantsConfig[Any]:
    """Paths, of which `router` chooses one for each item: see `PipelineBuilder.path_variants`."""
    name = "path_variants" if name is None else name
    found = listed("paths", paths, "a list of lists of stages")
    stages = [listed(f"path {at}", path, "a list of stages") for at, path in enumerate(found)]
    return PathVariantsConfig(name, router, tuple(map(tuple, stages)), batched)
