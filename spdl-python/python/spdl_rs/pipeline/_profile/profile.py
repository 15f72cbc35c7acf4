"""Profiling: the throughput of each stage alone, at several concurrencies.

```text
source ──► items ──► stage, concurrency 32 ─┐
                     …                      ├──► ProfileResult
                     stage, concurrency 1 ──┘──► its items ──► the next stage, …
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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
    JoinConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
    StageConfig,
    ZipConfig,
    check_regions,
)
from ..defs._executors import MAIN_PROCESS, PlacementConfig
from .machine_load import MachineLoad
from .result import ALL_CPUS, Kind, ProfileReport, ProfileResult, ProfileStats, available_cpus

_LOGGER = logging.getLogger("spdl_rs.pipeline")

ProfileCallback: TypeAlias = Callable[[ProfileResult], None]

_CONCURRENCIES = (32, 16, 8, 4, 1)
_ONE = (1,)
# A fixed seed mixes merged items in the same way each time, without the global generator.
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
    """Measures the throughput of each stage alone, at concurrency 32, 16, 8, 4 and 1.

    The items of the source are stored in a list, which the first stage processes at each
    concurrency. The outputs of a stage's last run are the input list of the next stage. So no stage
    waits for another stage. Stages that group or split items have concurrency 1 and run once.

    Each stage runs as in the pipeline: in threads, on the event loop, on its `executor`, or in
    Rust. `DecodeImage` directly followed by `BatchImages` is one stage. Failures are logged
    and counted, and do not end the profile. Two parts of a pipeline are not measured as configured,
    and a warning is logged: `path_variants` runs once, to provide items for later stages, and the
    stages of a region (`to`) run in threads of this process.

    Args:
        cfg: The pipeline.
        num_inputs: The number of items to take from each source, at least 1. The items of merged
            sources are mixed at random; the `op` of the merge is not called. Default: 1000.
        callback: Called with the result of each stage, as soon as it is available. Default: the
            callback set by `config.set_default_profile_callback`, if any.
        hook: Entered around the whole profile and around each run. Default: the hook set by
            `config.set_default_profile_hook`, if any.

    Returns:
        A list with one result for each stage, in order. Its `str` names the slowest stage. The list
        is empty if `LOCAL_RANK` is set and not 0, so that in distributed training one process per
        machine profiles.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.
        RuntimeError: The source or a stage has no output.
        PipelineFailure: The source raised an exception.

    >>> from spdl_rs.pipeline import PipelineBuilder, profile_pipeline
    >>> builder = PipelineBuilder().add_source(range(100)).pipe(str).aggregate(10).add_sink()
    >>> report = profile_pipeline(builder.get_config(), num_inputs=50)
    >>> [(result.name, [stats.concurrency for stats in result.stats]) for result in report]
    [('str', [32, 16, 8, 4, 1]), ('aggregate', [1])]
    >>> print(report[1])  # doctest: +ELLIPSIS
    aggregate (one at a time)
      concurrency ... items/s ... source/s  speed-up  CPUs  occupancy
                1 ...
      the stage processes one item at a time
    """
    if not isinstance(cfg, PipelineConfig):
        raise TypeError(f"cfg must be a PipelineConfig, not {cfg!r}")
    num_inputs = whole("num_inputs", num_inputs, wrong_type=ValueError)
    check_regions(cfg)
    from .._run.options import defaults

    hook = hook or defaults.profile_hook or _NoHook()
    profiler = _Profiler(num_inputs, hook, callback or defaults.profile_callback)
    with hook.pipeline_profile_hook():
        if not _is_first_of_machine():
            _LOGGER.info("LOCAL_RANK is not 0: this process profiles nothing")
            return ProfileReport()
        profiler.line(cfg)
        return profiler.report


def _is_first_of_machine() -> bool:
    rank = os.environ.get("LOCAL_RANK", "").strip()
    return not rank.isdigit() or int(rank) == 0


class _Profiler:
    """Profiles the stages of a pipeline one after the other.

    Args:
        num_inputs: The number of items to take from each source.
        hook: Entered around each run.
        callback: Called with each result.
    """

    def __init__(
        self, num_inputs: int, hook: ProfileHook, callback: ProfileCallback | None
    ) -> None:
        self._num_inputs = num_inputs
        self._hook = hook
        self._callback = callback
        self.report = ProfileReport()

    def line(self, config: PipelineConfig[Any]) -> tuple[list[Any], int]:
        """Profiles the stages after a source.

        Returns the outputs of the last stage, and the number of source items that became these outputs.
        """
        if isinstance(config.src, JoinConfig):
            items, taken = self._joined(config.src)
        else:
            items = self._inputs(config.src)
            taken = len(items)
        before = "the source"
        for stages in _profiled_stages(config.pipes):
            name = " + ".join(stage.name for stage in stages)
            if not items:
                raise RuntimeError(f"cannot profile {name!r}: {before} produced no output")
            items = self._stage(name, stages, items, taken)
            before = repr(name)
        return items, taken

    def _joined(self, config: JoinConfig) -> tuple[list[Any], int]:
        outputs, counts = zip(*map(self.line, config.pipeline_configs))
        if isinstance(config, ZipConfig):
            return list(zip(*outputs)), sum(counts)
        items = list(itertools.chain.from_iterable(outputs))
        random.Random(_SEED).shuffle(items)
        return items, sum(counts)

    def _inputs(self, source: SourceConfig[Any]) -> list[Any]:
        """Returns the first items of a source."""
        items: list[Any] = []
        pipeline = _pipeline(source.source, [], 1)
        with pipeline.auto_stop():
            for item in pipeline:
                items.append(item)
                if len(items) >= self._num_inputs:
                    break
        if not items:
            raise RuntimeError("cannot profile the pipeline: the source has no items")
        return items

    def _stage(
        self, name: str, stages: Sequence[StageConfig], items: list[Any], taken: int
    ) -> list[Any]:
        """Profiles one stage. Returns its outputs."""
        first = stages[0]
        if isinstance(first, PathVariantsConfig):
            _LOGGER.warning("the paths of %s are not profiled", name)
            return _measure(items, stages, len(_CONCURRENCIES), taken, keep=True)[1]
        several = isinstance(first, PipeConfig)
        stats, outputs = [], []
        for concurrency in _CONCURRENCIES if several else _ONE:
            # The next stage gets the outputs of the last run: concurrency 1 keeps their order.
            keep = concurrency == 1
            with self._hook.stage_profile_hook(name, concurrency):
                measured, outputs = _measure(
                    items, _with_concurrency(stages, concurrency), concurrency, taken, keep=keep
                )
            if _has_executor(first):
                # The executor's own processes may cause the load of the machine.
                measured.cpus, measured.crowded = None, False
            stats.append(measured)
        result = ProfileResult(name, stats, _kind(first), getattr(first, "concurrency", 1))
        _LOGGER.info("%s", result)
        self.report.append(result)
        if self._callback is not None:
            self._callback(result)
        return outputs


def _measure(
    items: list[Any], stages: Sequence[StageConfig], num_threads: int, taken: int, *, keep: bool
) -> tuple[ProfileStats, list[Any]]:
    """Runs stages and counts their outputs. Returns the outputs if `keep` is true."""
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
    """Builds a pipeline without the user's hooks, queues and tasks, and without logging."""
    config: PipelineConfig[Any] = PipelineConfig(SourceConfig(source), stages, SinkConfig(2))
    return Pipeline(config, BuildOptions(num_threads, -1, 0, -1.0, None, False, None, ()))


def _profiled_stages(pipes: Sequence[StageConfig | PlacementConfig]) -> list[list[StageConfig]]:
    """Returns the stages, each in its own list, or in one list if Rust fuses them."""
    stages: list[list[StageConfig]] = []
    is_in_region = False
    for config in pipes:
        if isinstance(config, PlacementConfig):
            is_in_region = config.target is not MAIN_PROCESS
            if is_in_region:
                _LOGGER.warning("the stages of %r are profiled in threads of this process", config)
            continue
        if is_in_region and isinstance(config, PipeConfig) and config.executor is not None:
            # A region ignores the executor as well.
            config = dataclasses.replace(config, executor=None)
        if _is_fused(stages[-1][-1] if stages else None, config):
            stages[-1].append(config)
        else:
            stages.append([config])
    return stages


def _is_fused(before: StageConfig | None, config: StageConfig) -> bool:
    """Returns true if the stages decode images directly into batches."""
    return (
        isinstance(before, PipeConfig)
        and isinstance(before.op, DecodeImage)
        and _native.is_native(before)
        and isinstance(getattr(config, "op", None), BatchImages)
        and not isinstance(config, PipeConfig)
    )


def _with_concurrency(stages: Sequence[StageConfig], concurrency: int) -> list[StageConfig]:
    """Returns the stages; the first has another concurrency, and unlimited failures."""
    first, *rest = stages
    if isinstance(first, PipeConfig):
        first = dataclasses.replace(first, concurrency=concurrency, max_failures=-1)
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
