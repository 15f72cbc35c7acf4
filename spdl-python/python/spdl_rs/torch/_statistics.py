"""Combines the statistics of the workers of an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import _spdl_rs
from .._statistics import Quantiles, StageStatistics, Statistics, slowest_of
from ..pipeline._failures.stage_names import renamed
from ..pipeline._hooks.durations import DurationHistogram

ReadStatistics: TypeAlias = Callable[[], Statistics]
"""Returns the current statistics of one or more workers."""

# The starts of the engine's diagnoses if all threads are busy. Busy threads may compute, or only wait.
_BUSY = (
    "The CPU is the bottleneck",
    "Other programs, or other threads, are the bottleneck",
    "The worker threads are the bottleneck",
)
_GIL = "The GIL is the bottleneck"


class Meter:
    """Measures the batches made in the consumer's thread."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ended: float | None = None
        self._first: float | None = None
        self._failures = 0
        self._durations = DurationHistogram()

    def record(self, seconds: float, failed: bool) -> None:
        """Records a batch and its duration."""
        if self._first is None:
            self._first = time.monotonic() - self._began
        self._durations.record(seconds)
        self._failures += failed

    def end(self) -> None:
        """Stops the clock."""
        if self._ended is None:
            self._ended = time.monotonic()

    def statistics(self) -> Statistics:
        """Returns the current statistics."""
        busy = self._durations.total
        elapsed = (self._ended or time.monotonic()) - self._began
        share = min(1.0, busy / elapsed) if elapsed > 0 else 0.0
        service = _quantiles(self._durations)
        result = _spdl_rs.Monitor().statistics()
        result["elapsed_s"] = elapsed
        result["stages"] = [
            _stage("fetch", self._durations.count, self._failures, busy, share, service)
        ]
        result["consumer"] = {
            "items": self._durations.count,
            "first_item_s": self._first,
            "waited_s": busy,
            "wait_ms": service,
        }
        result["data_readiness"] = 1.0 - share
        result["diagnosis"] = (
            f"The loop makes its own batches (num_workers=0) for {100 * share:.0f} % of the time: "
            "workers would make them in the background."
        )
        return result


def combine(readers: Sequence[ReadStatistics]) -> Statistics:
    """Adds the statistics of all workers.

    Of values that cannot be added, `elapsed_s`, the service times of a stage and `first_item_s` are extremes,
    and `busy_share` is a mean. Other values are those of the worker for which the loop waited longest.
    """
    parts = [read() for read in readers]
    if not parts:
        return _spdl_rs.Monitor().statistics()
    # The worker that the loop has waited for longest.
    slowest = max(parts, key=lambda part: part["consumer"]["waited_s"])
    firsts = [part["consumer"]["first_item_s"] for part in parts]
    stages = [
        _combine_stage(of_all) for of_all in zip(*(part["stages"] for part in parts), strict=True)
    ]
    threads = sum(part["threads"] for part in parts)
    result: Statistics = {
        **slowest,
        "elapsed_s": max(part["elapsed_s"] for part in parts),
        "threads": threads,
        "stages": stages,
        "slowest": slowest_of(parts),
        "consumer": {
            **slowest["consumer"],
            "items": sum(part["consumer"]["items"] for part in parts),
            "first_item_s": min((first for first in firsts if first is not None), default=None),
            "waited_s": sum(part["consumer"]["waited_s"] for part in parts),
        },
    }
    renamed(result, {stage["name"]: _name(stage["name"]) for stage in slowest["stages"]})
    _without_settings(result)
    result["diagnosis"] = _diagnosis(result["diagnosis"], stages, threads)
    return result


def _without_settings(result: Statistics) -> None:
    """Removes the arguments of pipelines, which this class does not have."""
    for effect in result["bottleneck"]["helps"] + result["bottleneck"]["does_not_help"]:
        result["diagnosis"] = result["diagnosis"].replace(f" ({effect['setting']})", "")
        effect["setting"] = ""


def _combine_stage(of_all: tuple[StageStatistics, ...]) -> StageStatistics:
    def sum_of(name: str) -> Any:
        return sum(stage[name] for stage in of_all)  # pyright: ignore

    most = max(of_all, key=lambda stage: stage["service_ms"]["max"])
    return {
        **most,
        "name": _name(most["name"]),
        "concurrency": sum_of("concurrency"),
        "items": sum_of("items"),
        "failures": sum_of("failures"),
        "busy_s": sum_of("busy_s"),
        "busy_share": sum_of("busy_share") / len(of_all),
    }


def _name(stage: str) -> str:
    """Returns a stage's name without its index in the pipeline."""
    name = stage.rpartition(":")[2]
    return "source" if name == "src" else name


def _diagnosis(diagnosis: str, stages: Sequence[StageStatistics], threads: int) -> str:
    if diagnosis.startswith(_BUSY):
        share = stages[-1]["busy_share"]
        return (
            f"The workers are the bottleneck: all {threads} are busy {100 * share:.0f} % of the time. "
            "More workers (num_workers) help if samples wait, for example for files, or release the "
            "GIL."
        )
    if diagnosis.startswith(_GIL):
        return (
            f"The GIL is the bottleneck: the {threads} workers are threads, and run Python code one at a time. "
            "Use worker processes (spdl_rs.dataloader.get_pytorch_dataloader with "
            "multiprocessing_context) or a free-threaded Python, or call functions that release the GIL."
        )
    return diagnosis


def _stage(
    name: str, items: int, failures: int, busy: float, share: float, service: Quantiles
) -> StageStatistics:
    return {
        "name": name,
        "kind": "cpu",
        "concurrency": 1,
        "items": items,
        "failures": failures,
        "retries": 0,
        "busy_s": busy,
        "busy_share": share,
        "cpu_share": None,
        "holds_gil": True,
        "fill_rate": None,
        "service_ms": service,
    }


def _quantiles(durations: DurationHistogram) -> Quantiles:
    p50, p90, p99, most = (durations.percentile(percent) * 1e3 for percent in (50, 90, 99, 100))
    return {"p50": p50, "p90": p90, "p99": p99, "max": most}
