"""Profiling: how fast each stage is alone, and with how many items at once.

```text
source ──► items ──► stage, 32 at once ─┐
                     …                  ├──► ProfileResult
                     stage, 1 at once ──┘──► its items ──► the next stage, …
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..._arguments import whole
from ...io._operators import BatchImages, DecodeImage
from .._hooks.profile_hook import ProfileHook
from .._run.options import BuildOptions
from .._run.pipeline import Pipeline
from ..defs import _native, _ops
from ..defs._configs import (
    MergeConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
    StageConfig,
    check_regions,
)
from ..defs._executors import MAIN_PROCESS, PlacementConfig
from .machine_load import MachineLoad
from .result import ALL_CPUS, Kind, ProfileReport, ProfileResult, ProfileStats, available_cpus

_LOGGER = logging.getLogger("spdl_rs.pipeline")

ProfileCallback: TypeAlias = Callable[[ProfileResult], None]

_AT_ONCE = (32, 16, 8, 4, 1)
_ONE = (1,)
# Merged items are mixed, in the same way each time, and no generator of the user's is touched.
_SEED = 0


class _NoHook(ProfileHook):
    def stage_profile_hook(
        self, stage: str, concurrency: int
    ) -> contextlib.AbstractContextManager[None]:
        del stage, concurrency
        return contextlib.nullcontext()

    def pipeline_profile_hook(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def profile_pipeline(
    cfg: PipelineConfig[Any],
    num_inputs: int = 1000,
    *,
    callback: ProfileCallback | None = None,
    hook: ProfileHook | None = None,
) -> ProfileReport:
    """Measures how fast each stage is alone, with 32, 16, 8, 4 and 1 items at once.

    Items of the source are kept in a list; the first stage works on that again and again, and what it
    gives at last is the list for the next one. So no stage waits for another. What puts items
    together or takes them apart runs once, as it works on one at a time.

    Stages run as they would in the pipeline: in threads, on the event loop, on an `executor` of their
    own, in Rust. `DecodeImage` and `BatchImages` right behind it are one stage, as they are in a
    pipeline. Failures are logged and counted, and end nothing. Not measured are paths (`path_variants`
    is run once, for the sake of the stages behind it); and regions (`to`): their stages run in threads
    of this process, as if there were none. A warning in the log says so.

    Args:
        cfg: The pipeline.
        num_inputs: How many items of the source to take, at least 1. Of several sources that are
            merged, so many of each, mixed; `op` is not called.
        callback: Is given the result of each stage as soon as there is one. Default: as
            `config.set_default_profile_callback` says; nothing.
        hook: Is entered around all, and around each run. Default: as
            `config.set_default_profile_hook` says; none.

    Returns:
        A list of results, one for each stage, in their order. Printed, it says which stage holds the
        others back. It is empty where `LOCAL_RANK` is set and not 0: in distributed training, one
        process of each machine does the work.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range.
        RuntimeError: There are no items to work on: the source has none, or a stage gives none.
        PipelineFailure: The source raises.

    >>> from spdl_rs.pipeline import PipelineBuilder, profile_pipeline
    >>> builder = PipelineBuilder().add_source(range(100)).pipe(str).aggregate(10).add_sink()
    >>> report = profile_pipeline(builder.get_config(), num_inputs=50)
    >>> [(result.name, [stats.concurrency for stats in result.stats]) for result in report]
    [('str', [32, 16, 8, 4, 1]), ('aggregate', [1])]
    >>> print(report[1])  # doctest: +ELLIPSIS
    aggregate (one at a time)
      at once ... items/s ... source/s  against 1  CPUs  output waits
            1 ...
      it works on one item at a time
    """
    if not isinstance(cfg, PipelineConfig):
        raise TypeError(f"a PipelineConfig is needed, not {cfg!r}")
    num_inputs = whole("num_inputs", num_inputs, wrong_type=ValueError)
    check_regions(cfg)
    from .._run.options import defaults

    hook = hook or defaults.profile_hook or _NoHook()
    profiler = _Profiler(num_inputs, hook, callback or defaults.profile_callback)
    with hook.pipeline_profile_hook():
        if not _is_first_of_machine():
            _LOGGER.info("LOCAL_RANK is not 0, and so nothing is profiled in this process")
            return ProfileReport()
        profiler.line(cfg)
        return profiler.report


def _is_first_of_machine() -> bool:
    rank = os.environ.get("LOCAL_RANK", "").strip()
    return not rank.isdigit() or int(rank) == 0


class _Profiler:
    """Profiles one stage after the other.

    Args:
        num_inputs: How many items of each source to take.
        hook: Is entered around each run.
        callback: Is given each result.
    """

    def __init__(
        self, num_inputs: int, hook: ProfileHook, callback: ProfileCallback | None
    ) -> None:
        self._num_inputs = num_inputs
        self._hook = hook
        self._callback = callback
        self.report = ProfileReport()

    def line(self, config: PipelineConfig[Any]) -> tuple[list[Any], int]:
        """Profiles the stages behind a source. Gives what comes out of them, and of how many items of
        the source that was made."""
        if isinstance(config.src, MergeConfig):
            items, taken = self._merged(config.src)
        else:
            items = self._inputs(config.src)
            taken = len(items)
        before = "the source"
        for stages in _apart(config.pipes):
            name = " + ".join(stage.name for stage in stages)
            if not items:
                raise RuntimeError(f"{before} gave no items, so {name!r} cannot be profiled")
            items = self._stage(name, stages, items, taken)
            before = repr(name)
        return items, taken

    def _merged(self, config: MergeConfig) -> tuple[list[Any], int]:
        items: list[Any] = []
        taken = 0
        for part in config.pipeline_configs:
            of_part, taken_by_part = self.line(part)
            items.extend(of_part)
            taken += taken_by_part
        random.Random(_SEED).shuffle(items)
        return items, taken

    def _inputs(self, source: SourceConfig[Any]) -> list[Any]:
        """The first items of a source."""
        items: list[Any] = []
        pipeline = _pipeline(source.source, [], 1)
        with pipeline.auto_stop():
            for item in pipeline:
                items.append(item)
                if len(items) >= self._num_inputs:
                    break
        if not items:
            raise RuntimeError("the source gave no items, so nothing can be profiled")
        return items

    def _stage(
        self, name: str, stages: Sequence[StageConfig], items: list[Any], taken: int
    ) -> list[Any]:
        """Profiles one stage. Gives what comes out of it."""
        first = stages[0]
        if isinstance(first, PathVariantsConfig):
            _LOGGER.warning("%s chooses paths, which are not profiled", name)
            return _measured(items, stages, len(_AT_ONCE), taken, keep=True)[1]
        several = isinstance(first, PipeConfig)
        stats, outputs = [], []
        for at_once in _AT_ONCE if several else _ONE:
            # The last run is the one whose items go on: one at a time, they keep their order.
            keep = at_once == 1
            with self._hook.stage_profile_hook(name, at_once):
                measured, outputs = _measured(
                    items, _with(stages, at_once), at_once, taken, keep=keep
                )
            if _has_executor(first):
                # Its processes may be who keeps the CPUs busy.
                measured.cpus, measured.crowded = None, False
            stats.append(measured)
        result = ProfileResult(name, stats, _kind(first), getattr(first, "concurrency", 1))
        _LOGGER.info("%s", result)
        self.report.append(result)
        if self._callback is not None:
            self._callback(result)
        return outputs


def _measured(
    items: list[Any], stages: Sequence[StageConfig], num_threads: int, taken: int, *, keep: bool
) -> tuple[ProfileStats, list[Any]]:
    """Runs stages, and counts what they give; or keeps it, too."""
    pipeline = _pipeline(items, stages, num_threads)
    outputs: list[Any] = []
    given = 0
    load = MachineLoad()
    cpu, began = time.process_time(), time.perf_counter()
    with pipeline.auto_stop():
        for item in pipeline:
            given += 1
            if keep:
                outputs.append(item)
        elapsed = max(time.perf_counter() - began, 1e-9)
        cpus = (time.process_time() - cpu) / elapsed
        busy = load.busy_share()
    statistics = pipeline.stats()
    stats = ProfileStats(
        num_threads,
        qps=given / elapsed,
        occupancy_rate=statistics["queues"][-1]["occupancy"],
        source_qps=taken / elapsed,
        cpus=cpus,
        failures=statistics["dropped_total"],
        crowded=busy is not None and busy >= ALL_CPUS > cpus / available_cpus(),
    )
    return stats, outputs


def _pipeline(source: Any, stages: Sequence[StageConfig], num_threads: int) -> Pipeline[Any]:
    """A pipeline with nothing around it: no hooks, queues or tasks of the user's, no log."""
    config: PipelineConfig[Any] = PipelineConfig(SourceConfig(source), stages, SinkConfig(2))
    return Pipeline(config, BuildOptions(num_threads, -1, 0, -1.0, None, False, None, ()))


def _apart(pipes: Sequence[StageConfig | PlacementConfig]) -> list[list[StageConfig]]:
    """The stages, each on its own, but for those that are one in Rust."""
    stages: list[list[StageConfig]] = []
    is_elsewhere = False
    for config in pipes:
        if isinstance(config, PlacementConfig):
            is_elsewhere = config.target is not MAIN_PROCESS
            if is_elsewhere:
                _LOGGER.warning("the stages of %r are profiled in threads of this process", config)
            continue
        if is_elsewhere and isinstance(config, PipeConfig) and config.executor is not None:
            # There it would not be used either.
            config = dataclasses.replace(config, executor=None)
        if _joins(stages[-1][-1] if stages else None, config):
            stages[-1].append(config)
        else:
            stages.append([config])
    return stages


def _joins(before: StageConfig | None, config: StageConfig) -> bool:
    """Whether images are decoded right into batches."""
    return (
        isinstance(before, PipeConfig)
        and isinstance(before.op, DecodeImage)
        and _native.is_native(before)
        and isinstance(getattr(config, "op", None), BatchImages)
        and not isinstance(config, PipeConfig)
    )


def _with(stages: Sequence[StageConfig], at_once: int) -> list[StageConfig]:
    """The stages, of which the first works on so many items at once, and may fail."""
    first, *rest = stages
    if isinstance(first, PipeConfig):
        first = dataclasses.replace(first, concurrency=at_once, max_failures=-1)
    return [first, *rest]


def _kind(stage: StageConfig) -> Kind:
    if not isinstance(stage, PipeConfig):
        return "one at a time"
    if _native.is_native(stage):
        return "native"
    if stage.executor is not None:
        return "executor"
    return "event loop" if _ops.kind_of(stage.op) in ("await", "iterate-async") else "threads"


def _has_executor(stage: StageConfig) -> bool:
    return isinstance(stage, PipeConfig) and stage.executor is not None
