"""`build_pipeline`: from a configuration to a pipeline."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from ..._arguments import Path, shown
from ..._failure_policy import Skip
from .._hooks.background import BackgroundTaskFactory
from .._run.options import defaults
from .._profile.diagnostic import DiagnosticPipeline, is_diagnostic_mode_enabled
from .._failures.failure import add_context
from .._run.options import BuildOptions, QueueFactory, RunSettings, TaskHookFactory, check_options
from .._run.pipeline import Pipeline
from ..defs._checks import native_budget
from ..defs._configs import JoinConfig, PipelineConfig, check_regions, has_regions, is_continuous

U = TypeVar("U")


def build_pipeline(
    pipeline_cfg: PipelineConfig[U],
    /,
    *,
    num_threads: int,
    max_failures: int | Fraction | Skip = -1,
    report_stats_interval: float = -1,
    queue_class: QueueFactory | None = None,
    task_hook_factory: TaskHookFactory | None = None,
    stage_id: int = 0,
    background_tasks: Sequence[BackgroundTaskFactory] | None = None,
    use_thread_output_queue: bool = False,
    epoch: int | None = None,
    memory_budget: int | None = None,
    quarantine: str | os.PathLike[str] | None = None,
    key: Callable[[Any], str] | None = None,
    record_order: bool = False,
    replay: str | None = None,
    tune: bool | Path = False,
    monitor: str | os.PathLike[str] | None = None,
) -> Pipeline[U]:
    """Creates a pipeline from a configuration. Nothing runs before the pipeline is started.

    Args:
        pipeline_cfg: The configuration.
        num_threads: The number of worker threads, at least 1. All stages without an `executor` share
            these threads, except async functions, which run on an event loop, and native operators.
        max_failures: How many items may fail, in all stages without a separate budget, before the pipeline ends with a
            `PipelineFailure`: a number, or a fraction (`fractions.Fraction`) of the processed items, which applies from
            the 100th item on, or a policy made by `spdl_rs.skip`. Negative: unlimited, the default, as in SPDL. Each
            failure is logged. When a pipeline that dropped items ends without a `PipelineFailure`, one warning with
            their number by reason is logged; if the source is continuous, at the end of each epoch.
        report_stats_interval: The interval in seconds at which statistics of stages and queues are logged, at
            level INFO under `spdl_rs.pipeline`. If not positive, statistics are logged at the end only. The
            default hooks and queues of `spdl_rs.pipeline.config` receive the interval too.
        queue_class: Creates the queue after each stage: an `AsyncQueue`, for example a subclass of
            `StatsQueue`. Called with a `StageInfo` and `buffer_size=`. Default: the class set by
            `config.set_default_queue_class`, or else native queues, whose statistics are logged.
        task_hook_factory: Returns a list of `TaskHook`s for a `StageInfo`. Default: the class set by
            `config.set_default_hook_class`, or else no hooks, and native statistics are logged. A native
            operator with hooks is called for each item as a function, with the GIL. To run the operator
            without the GIL, return an empty list.
        stage_id: The number of the source in the names of stages; the stages after it count up.
        background_tasks: Functions that create `BackgroundTask`s, in addition to the functions set by
            `config.set_default_background_tasks`.
        use_thread_output_queue: Ignored, for compatibility.
        epoch: The number of the first epoch, which the random numbers of `DecodeImage` and `AugmentImage`
            depend on. Pass it if each epoch has a separate pipeline. `None`: 0, and a warning is logged if two
            pipelines of this process draw the same random numbers.
        memory_budget: The most bytes of items that are in queues or in stages at the same time, at least 1. Before
            a function without `executor` limits runs, its thread waits until the budget has room for its result,
            which is estimated from recent results. Larger results are delivered too. Default: no limit.
            The `size` of a stage measures its results; by default, arrays are measured by `nbytes`, bytes and text by
            `len`, and lists and dicts by their elements. Native operators, aggregates, items that an aggregator
            holds, the tuples of a `Zip`, and stages on batched paths are not measured.
        quarantine: The path of a JSON Lines file. Failed items that are dropped are appended to the file, with their
            keys. Items whose keys the file contains at the start are left out; `stats()["filtered"]` counts them.
            Default: no file.
        key: Returns the key of an item of the source, a `str`, for `quarantine`. Default: items that are `str`,
            `int` or paths are their own keys; others end the pipeline with a `TypeError`.
        record_order: Whether `Pipeline.order_record` returns the order of the delivered items.
        replay: A text of `Pipeline.order_record`. The pipeline delivers the items in this order, and leaves out all
            others; stages keep the order. The source must be the same.
        tune: `True`: `num_threads`, the concurrency of stages and the lengths of queues are starting values. One of
            them changes at a time while the pipeline runs, and only changes that raise the measured throughput are
            kept. A stage with a concurrency of 1 keeps it, because its function may not support more. Pass `True` only
            if the other functions may run in more threads than given here. `stats()["decisions"]` lists the changes. A
            path: the settings that `Pipeline.freeze` has written, which do not change.
        monitor: The path of a Unix socket that serves statistics while the pipeline runs, for `spdl top PATH`. Only
            the user of this process may connect. Default: no socket.

    Raises:
        TypeError: An argument has the wrong type, for example `max_failures` is a float.
        ValueError: An argument is out of range, or only some of the joined pipelines are continuous. Or one of the
            last six arguments is used for a pipeline with a region, a merge function or a custom queue, or
            `record_order` or `replay` for one with several sources.
        OSError: The quarantine file cannot be read or written.

    Starting the pipeline raises `InvalidArgumentError` if another process or file uses the path `monitor`, or `OSError`
    if the socket cannot be created.

    If the environment variable `SPDL_PIPELINE_DIAGNOSTIC_MODE` is 1, the pipeline is profiled instead of run:
    see `config.is_diagnostic_mode_enabled`.

    From Python 3.11 on, exceptions raised here have a note with the configuration.

    >>> from spdl_rs.pipeline import build_pipeline
    >>> from spdl_rs.pipeline.defs import PipelineConfig, SinkConfig, SourceConfig
    >>> config = PipelineConfig(SourceConfig("ab"), [], SinkConfig(1))
    >>> list(build_pipeline(config, num_threads=1))
    ['a', 'b']
    """
    try:
        if not isinstance(pipeline_cfg, PipelineConfig):
            raise TypeError(f"a PipelineConfig is required, not {shown(pipeline_cfg)}")
        check_options(
            num_threads=num_threads,
            max_failures=max_failures,
            report_stats_interval=report_stats_interval,
            queue_class=queue_class,
            task_hook_factory=task_hook_factory,
            stage_id=stage_id,
            background_tasks=background_tasks,
            use_thread_output_queue=use_thread_output_queue,
            epoch=epoch,
        )
        options = BuildOptions.of(
            num_threads,
            native_budget(max_failures),
            stage_id,
            report_stats_interval,
            queue_class,
            task_hook_factory,
            background_tasks,
            epoch,
            RunSettings.of(memory_budget, quarantine, key, record_order, replay, tune, monitor),
        )
        if isinstance(pipeline_cfg.src, JoinConfig) and (record_order or replay is not None):
            raise ValueError("record_order and replay require a pipeline with one source")
        check_regions(pipeline_cfg)
        is_continuous(pipeline_cfg)
        if defaults.build_callback is not None:
            defaults.build_callback(pipeline_cfg)
        if is_diagnostic_mode_enabled():
            return DiagnosticPipeline(pipeline_cfg)
        if not has_regions(pipeline_cfg):
            return Pipeline(pipeline_cfg, options)
        options.settings.refuse("stages in other processes (to)")
        from .._regions.regions import build_with_regions

        if isinstance(max_failures, Skip):
            raise TypeError("a pipeline with regions requires max_failures as an int or a Fraction")

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
    """Creates a pipeline that is never profiled, not even in the diagnostic mode.

    Pipelines whose source waits for the consumer cannot be profiled.
    """
    if defaults.build_callback is not None:
        defaults.build_callback(pipeline_cfg)
    return Pipeline(pipeline_cfg, BuildOptions.of(num_threads, -1, 0, -1.0, None, None, None))
