"""Counts of dropped items, for one warning at the end of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..._locks import ForkSafeLock
from .log import in_one_line, log_warning
from .stage_names import of_pipeline


@dataclass
class _Dropped:
    """The dropped items of one pipeline."""

    stages: dict[str, int] = field(default_factory=dict)
    """The number of dropped items by stage."""
    first: str = ""
    """A description of the first failure."""


_by_pipeline: dict[str, _Dropped] = {}
# Internal parts of a pipeline with regions, and the pipeline that they belong to.
_whole_of: dict[str, str] = {}
_lock = ForkSafeLock()


def count_dropped(stage: str, error: BaseException, item: str) -> None:
    """Counts an item that a stage dropped. `stage` is the full name."""
    number, _ = of_pipeline(stage)
    with _lock.held():
        dropped = _by_pipeline.setdefault(_whole_of.get(number, number), _Dropped())
        dropped.stages[stage] = dropped.stages.get(stage, 0) + 1
        if not dropped.first:
            dropped.first = f"{stage} failed on {item}: {in_one_line(error)}"


def count_as_part_of(part: int, whole: int) -> None:
    """Counts items that an internal part of a pipeline drops as those of the whole pipeline."""
    with _lock.held():
        _whole_of[str(part)] = str(whole)


def warn_of_dropped(number: int, has_delivered: Callable[[], bool], failed: bool) -> None:
    """Logs one warning if a pipeline has dropped items and has not failed. Called when the pipeline has ended.

    Args:
        number: The number of the pipeline.
        has_delivered: Returns whether the consumer received any item.
        failed: Whether the pipeline ends with a `PipelineFailure`, which reports the reason itself.
    """
    with _lock.held():
        if str(number) in _whole_of:
            return
        for part in [part for part, whole in _whole_of.items() if whole == str(number)]:
            del _whole_of[part]
        dropped = _by_pipeline.pop(str(number), None)
    if dropped is None or failed:
        return
    total = sum(dropped.stages.values())
    counts = ", ".join(f"{stage}: {count}" for stage, count in dropped.stages.items())
    items = "1 item was" if total == 1 else f"{total} items were"
    ended = "ended" if has_delivered() else "ended without any output"
    log_warning(
        f"pipeline {number} {ended}, and {items} dropped ({counts}); the first failure: {dropped.first}; "
        "to end a pipeline after a number of failures, pass max_failures to build(), or on_error to a loader"
    )
