"""From a configuration to a pipeline."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeVar

from ._failure import add_context
from ._pipeline import Pipeline
from .defs._checks import budget, native_budget, whole
from .defs._configs import MergeConfig, PipelineConfig

U = TypeVar("U")


def build_pipeline(
    pipeline_cfg: PipelineConfig[U],
    /,
    *,
    num_threads: int,
    max_failures: int | Fraction = -1,
    report_stats_interval: float = -1,
    queue_class: type[Any] | None = None,
    task_hook_factory: Any | None = None,
    stage_id: int = 0,
    background_tasks: list[Any] | None = None,
    use_thread_output_queue: bool = False,
) -> Pipeline[U]:
    """Makes the pipeline that a configuration describes. Nothing runs before it is started.

    Args:
        pipeline_cfg: The configuration.
        num_threads: Threads that all stages share which have no `executor`, at least 1. They run
            functions that are not async.
        max_failures: How many items may fail in all stages without a budget of their own, before
            the pipeline ends with a `PipelineFailure`: a number, or a share (a `Fraction`) of those
            tried, judged from the 100th on. Negative: any number; failures are logged only.
        report_stats_interval: Not supported yet; must not be positive.
        queue_class: Not supported yet; must be `None`.
        task_hook_factory: Not supported yet; must be `None`.
        stage_id: The number of the first stage, in names.
        background_tasks: Not supported yet; must be `None` or empty.
        use_thread_output_queue: Changes nothing: items are always handed over quickly, and with
            all statistics.

    Raises:
        TypeError: An argument is of the wrong type: `max_failures` a float, say.
        ValueError: An argument is out of range.
        NotImplementedError: An argument asks for what is not supported yet.

    From Python 3.11 on, exceptions that are raised here have the configuration as a note.

    >>> from spdl_rs.pipeline import build_pipeline
    >>> from spdl_rs.pipeline.defs import PipelineConfig, SinkConfig, SourceConfig
    >>> config = PipelineConfig(SourceConfig("ab"), [], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1))
    ['a', 'b']
    """
    del use_thread_output_queue
    try:
        if not isinstance(pipeline_cfg, PipelineConfig):
            raise TypeError(f"a PipelineConfig is needed, not {pipeline_cfg!r}")
        whole("num_threads", num_threads, TypeError)
        budget(max_failures)
        _refuse(
            {
                "report_stats_interval": report_stats_interval > 0,
                "queue_class": queue_class is not None,
                "task_hook_factory": task_hook_factory is not None,
                "background_tasks": bool(background_tasks),
                "Merge(op=)": _has_merge_op(pipeline_cfg),
            }
        )
        return Pipeline(pipeline_cfg, num_threads, native_budget(max_failures), stage_id)
    except Exception as error:
        add_context(error, f"While building:\n{pipeline_cfg!r}")
        raise


def _refuse(asked: dict[str, bool]) -> None:
    for argument, is_asked in asked.items():
        if is_asked:
            raise NotImplementedError(f"{argument} is not supported yet")


def _has_merge_op(config: PipelineConfig[Any]) -> bool:
    src = config.src
    return isinstance(src, MergeConfig) and (
        src.op is not None or any(_has_merge_op(part) for part in src.pipeline_configs)
    )
