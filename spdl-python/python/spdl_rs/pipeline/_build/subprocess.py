"""Pipelines that run in another process."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, Generic, TypeVar

from .._processes.iterate import Stoppable, iterate_with_pools
from .._run.options import check_options
from .._run.pipeline import Pipeline
from ..defs._configs import PipelineConfig, is_continuous
from ..defs._executors import needs_interpreters
from .build import build_pipeline
from .builder import PipelineBuilder

T = TypeVar("T")


def run_pipeline_in_subprocess(
    config_or_builder: PipelineConfig[T],
    /,
    *,
    num_threads: int,
    max_failures: int | Fraction = -1,
    report_stats_interval: float = -1,
    queue_class: type[Any] | None = None,
    task_hook_factory: Any | None = None,
    background_tasks: list[Any] | None = None,
    use_thread_output_queue: bool = False,
    epoch: int | None = None,
    **kwargs: Any,
) -> Iterable[T]:
    """Runs a pipeline in another process. The result can be iterated repeatedly.

    Unless the source is continuous, each iteration builds and runs a new pipeline in that process. A pipeline
    with a continuous source is built once, and each iteration is one epoch.

    The other process logs failures. For each epoch that dropped items and ended without a `PipelineFailure`,
    it logs one warning.

    Executors of stages are created once in the other process. With `daemon=True`, this process creates each
    `ProcessPoolExecutor`, and the other process sends it the calls. A `ThreadPoolExecutor` or
    `ProcessPoolExecutor` must not have been used before. Other executors must be picklable, as
    `PriorityThreadPoolExecutor` is.

    Args:
        config_or_builder: The configuration. A `PipelineBuilder` is accepted, but deprecated.
        num_threads, max_failures, report_stats_interval, queue_class, task_hook_factory, \
background_tasks, use_thread_output_queue: See `build_pipeline`.
        epoch: The number of the first epoch: see `build_pipeline`. Each iteration is one epoch.
        kwargs: See `iterate_in_subprocess`.

    Raises:
        TypeError, ValueError: See `build_pipeline` and `iterate_in_subprocess`.
        ValueError: An executor was used before.

    Iteration raises the exceptions of `iterate_in_subprocess`, and `PipelineFailure`.

    >>> from spdl_rs.pipeline import PipelineBuilder, run_pipeline_in_subprocess
    >>> builder = PipelineBuilder().add_source(range(3)).pipe(str).aggregate(2).add_sink()
    >>> batches = run_pipeline_in_subprocess(builder.get_config(), num_threads=1)
    >>> [list(batches) for epoch in range(2)]
    [[['0', '1'], ['2']], [['0', '1'], ['2']]]
    """
    from .._build.executor_transfer import transferable

    config = _config_of(config_or_builder, "run_pipeline_in_subprocess")
    options: dict[str, Any] = {
        "num_threads": num_threads,
        "max_failures": max_failures,
        "report_stats_interval": report_stats_interval,
        "queue_class": queue_class,
        "task_hook_factory": task_hook_factory,
        "background_tasks": background_tasks,
        "use_thread_output_queue": use_thread_output_queue,
        "epoch": epoch,
    }
    check_options(**options)
    config, pools = transferable(config, processes=not kwargs.get("daemon"))
    return iterate_with_pools(
        functools.partial(PipelinePerIteration, config, options), pools, **kwargs
    )


def run_pipeline_in_subinterpreter(
    config: PipelineConfig[T], /, *, num_threads: int, **kwargs: Any
) -> Iterable[T]:
    """Not supported: raises an exception, see `iterate_in_subinterpreter`.

    Use `run_pipeline_in_subprocess`.

    Raises:
        NotImplementedError: Always, a `RuntimeError`.
    """
    del config, num_threads, kwargs
    needs_interpreters("run_pipeline_in_subinterpreter", "run_pipeline_in_subprocess")


class PipelinePerIteration(Stoppable, Generic[T]):
    """Runs a pipeline for each iteration, or one pipeline for all if its source is continuous."""

    def __init__(self, config: PipelineConfig[T], options: dict[str, Any]) -> None:
        self._config = config
        self._options = dict(options)
        self._continuous = is_continuous(config)
        self._pipeline: Pipeline[T] | None = None
        self._epoch = self._options.pop("epoch", None) or 0

    def __iter__(self) -> Iterator[T]:
        if self._pipeline is None:
            self._pipeline = build_pipeline(self._config, **self._options, epoch=self._epoch)
            self._epoch += 1
        if self._continuous:
            yield from self._pipeline
            return
        try:
            yield from self._pipeline
        finally:
            self.stop()

    def stop(self) -> None:
        """Stops the pipeline. The next iteration builds a new pipeline."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.stop()


def _config_of(config_or_builder: Any, function: str) -> PipelineConfig[Any]:
    if isinstance(config_or_builder, PipelineConfig):
        return config_or_builder
    if not isinstance(config_or_builder, PipelineBuilder):
        raise TypeError(f"{function} requires a PipelineConfig, not {config_or_builder!r}")
    warnings.warn(
        f"passing a builder to {function} is deprecated; pass builder.get_config()",
        DeprecationWarning,
        stacklevel=3,
    )
    return config_or_builder.get_config()
