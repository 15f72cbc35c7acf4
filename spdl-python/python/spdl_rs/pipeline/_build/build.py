"""From a configuration to a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

from ..._arguments import shown
from .._hooks.background import BackgroundTaskFactory
from .._run.options import defaults
from .._profile.diagnostic import DiagnosticPipeline, is_diagnostic_mode_enabled
from .._failures.failure import add_context
from .._run.options import BuildOptions, QueueFactory, TaskHookFactory, check_options
from .._run.pipeline import Pipeline
from ..defs._checks import native_budget
from ..defs._configs import PipelineConfig, check_regions, has_regions

U = TypeVar("U")


def build_pipeline(
    pipeline_cfg: PipelineConfig[U],
    /,
    *,
    num_threads: int,
    max_failures: int | Fraction = -1,
    report_stats_interval: float = -1,
    queue_class: QueueFactory | None = None,
    task_hook_factory: TaskHookFactory | None = None,
    stage_id: int = 0,
    background_tasks: Sequence[BackgroundTaskFactory] | None = None,
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
        report_stats_interval: After how many seconds the statistics of stages and queues are
            logged each time, at INFO under `spdl_rs.pipeline`. Where it is not positive, they are
            logged at the end only. Defaults of `spdl_rs.pipeline.config` are told it.
        queue_class: Makes the queue behind each stage: an `AsyncQueue`, say a `StatsQueue` of
            your own. Called with a `StageInfo` and `buffer_size=`. Default: as
            `config.set_default_queue_class` says; native queues, which are logged.
        task_hook_factory: Gives the hooks of each stage, for a `StageInfo`: a list of `TaskHook`s.
            Default: as `config.set_default_hook_class` says; none, and the native statistics are
            logged. A native operator with hooks is called for each item as a function, which takes
            the GIL before and after; give it an empty list, and it runs without Python.
        stage_id: The number of the first stage, in names.
        background_tasks: Make what runs beside the pipeline: `BackgroundTask`s. Default: as
            `config.set_default_background_tasks` says; none.
        use_thread_output_queue: Changes nothing: items are always handed over quickly, and with
            all statistics.

    Raises:
        TypeError: An argument is of the wrong type: `max_failures` a float, say.
        ValueError: An argument is out of range.

    Where the environment variable `SPDL_PIPELINE_DIAGNOSTIC_MODE` is 1, the pipeline is profiled
    instead of run: see `config.is_diagnostic_mode_enabled`.

    From Python 3.11 on, exceptions that are raised here have the configuration as a note.

    >>> from spdl_rs.pipeline import build_pipeline
    >>> from spdl_rs.pipeline.defs import PipelineConfig, SinkConfig, SourceConfig
    >>> config = PipelineConfig(SourceConfig("ab"), [], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1))
    ['a', 'b']
    """
    try:
        if not isinstance(pipeline_cfg, PipelineConfig):
            raise TypeError(f"a PipelineConfig is needed, not {shown(pipeline_cfg)}")
        check_options(
            num_threads=num_threads,
            max_failures=max_failures,
            report_stats_interval=report_stats_interval,
            queue_class=queue_class,
            task_hook_factory=task_hook_factory,
            stage_id=stage_id,
            background_tasks=background_tasks,
            use_thread_output_queue=use_thread_output_queue,
        )
        options = BuildOptions.of(
            num_threads,
            native_budget(max_failures),
            stage_id,
            report_stats_interval,
            queue_class,
            task_hook_factory,
            background_tasks,
        )
        check_regions(pipeline_cfg)
        if defaults.build_callback is not None:
            defaults.build_callback(pipeline_cfg)
        if is_diagnostic_mode_enabled():
            return DiagnosticPipeline(pipeline_cfg)
        if not has_regions(pipeline_cfg):
            return Pipeline(pipeline_cfg, options)
        from .._regions.regions import build_with_regions

        build_elsewhere = functools.partial(
            build_pipeline,
            queue_class=queue_class,
            task_hook_factory=task_hook_factory,
            report_stats_interval=report_stats_interval,
        )
        return build_with_regions(pipeline_cfg, options, max_failures, build_elsewhere)
    except Exception as error:
        add_context(error, f"While building:\n{pipeline_cfg!r}")
        raise


def build_unprofiled(pipeline_cfg: PipelineConfig[U], num_threads: int) -> Pipeline[U]:
    """Makes a pipeline that runs in the diagnostic mode, too: one whose source waits for whoever takes
    the items cannot be profiled."""
    if defaults.build_callback is not None:
        defaults.build_callback(pipeline_cfg)
    return Pipeline(pipeline_cfg, BuildOptions.of(num_threads, -1, 0, -1.0, None, None, None))
