"""Counts of dropped items by reason, for one warning at the end of each epoch and of each pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..._errors import of_kind as error_of_kind
from ..._locks import ForkSafeLock
from ..._statistics import Dropped, Statistics
from .log import in_one_line, log_warning
from .stage_names import of_pipeline

# Reasons of a pipeline that are counted separately, and those that a warning names.
_MAX_REASONS = 64
_MAX_NAMED = 3
# The length of each message, item and stage name in a warning.
_MAX_CHARACTERS = 200
# The engine lists the dropped items of a run, with their epochs. Reading a longer list would take too long.
_MAX_LISTED = 10_000
# How the engine describes an exception of a Python function.
_RAISED = "raised an exception: "

_Key: TypeAlias = "tuple[str, str]"
_Example: TypeAlias = "tuple[str, str]"


@dataclass
class _Reason:
    """Failures of one stage with exceptions of one type."""

    count: int = 0
    example: _Example | None = None
    """An item and its error; `None` before the first failure since the last report."""


@dataclass
class _Counts:
    """Numbers of dropped items by reason: the stage and the name of the exception's type."""

    reasons: dict[_Key, _Reason] = field(default_factory=dict)
    others: int = 0
    """The number of items with further reasons."""

    @property
    def total(self) -> int:
        return self.others + sum(reason.count for reason in self.reasons.values())

    def reason(self, key: _Key) -> _Reason | None:
        """Returns the reason with this key. Adds the reason unless there are too many."""
        reason = self.reasons.get(key)
        if reason is None and len(self.reasons) < _MAX_REASONS:
            reason = self.reasons[key] = _Reason()
        return reason

    def add(self, key: _Key, count: int, example: _Example | None) -> None:
        reason = self.reason(key)
        if reason is None:
            self.others += count
            return
        reason.count += count
        reason.example = reason.example or example

    def add_all(self, counts: _Counts) -> None:
        for key, reason in counts.reasons.items():
            self.add(key, reason.count, reason.example)
        self.others += counts.others

    def move(self, item: Dropped, to: _Counts) -> None:
        """Subtracts an item that the engine lists, and counts it in `to`."""
        key, error = _of_listed(item)
        if key not in self.reasons and not self.others:
            # The engine may describe an error otherwise than its exception.
            key = next((other for other in self.reasons if other[0] == key[0]), key)
        reason = self.reasons.get(key)
        if reason is None:
            self.others = max(0, self.others - 1)
            to.others += 1
            return
        example = reason.example
        reason.count -= 1
        # The example of a later report is a later failure.
        reason.example = None
        if reason.count <= 0:
            del self.reasons[key]
        moved = to.reason(key)
        if moved is None:
            to.others += 1
            return
        moved.count += 1
        if moved.example is None:
            # The described failure may be one of a later epoch.
            is_same = example is not None and example[1] == error
            moved.example = example if is_same else (_name(item), error)

    def describe(self, item: Dropped) -> None:
        """Makes an item that the engine lists the example of its reason, if the reason has none."""
        key, error = _of_listed(item)
        reason = self.reasons.get(key)
        if reason is not None and reason.example is None:
            reason.example = _name(item), error

    def __str__(self) -> str:
        order = sorted(self.reasons.items(), key=lambda pair: -pair[1].count)
        named, rest = order[:_MAX_NAMED], order[_MAX_NAMED:]
        counts = [f"{_short(stage)}: {reason.count} {kind}" for (stage, kind), reason in named]
        left = self.others + sum(reason.count for _, reason in rest)
        if left:
            counts.append(f"and {left} more for other reasons")
        examples = "; ".join(
            f"{_short(stage)} failed on {reason.example[0]}: {reason.example[1]}"
            for (stage, _), reason in named
            if reason.example is not None
        )
        return f"({', '.join(counts)}){examples and '; for example: '}{examples}"


@dataclass
class _OfPipeline:
    """The dropped items of one pipeline that no warning has reported."""

    here: _Counts = field(default_factory=_Counts)
    """Items whose epoch the engine of this process knows."""
    elsewhere: dict[int, _Counts] = field(default_factory=dict)
    """Items that other processes dropped, by epoch."""
    in_all: int = 0
    """The number of items that this process has dropped, reported ones included."""
    statistics: list[Callable[[], Statistics]] = field(default_factory=list)
    """The statistics of all parts of a continuous pipeline in this process."""
    ended: int | None = None
    """The number of the epoch that ended last."""

    def end(self, epoch: int) -> None:
        # Two threads may report consecutive epochs in another order.
        self.ended = epoch if self.ended is None else max(epoch, self.ended)

    def is_empty(self) -> bool:
        return not self.here.reasons and not self.here.others and not self.elsewhere

    def take_epoch(self, epoch: int, listed: Iterable[Dropped] | None) -> _Counts:
        """Removes the items of all epochs up to this one.

        Args:
            epoch: The number of the epoch.
            listed: The dropped items of the run. `None`: items of later epochs, which were prefetched, are
                not distinguished.
        """
        taken = _Counts()
        for number in [number for number in self.elsewhere if number <= epoch]:
            taken.add_all(self.elsewhere.pop(number))
        if listed is None:
            taken.add_all(self.here)
            self.here = _Counts()
            return taken
        after = -1 if self.ended is None else self.ended
        for item in listed:
            if after < item["epoch"] <= epoch:
                self.here.move(item, taken)
            elif item["epoch"] > epoch:
                self.here.describe(item)
        return taken

    def take_all(self) -> _Counts:
        """Removes all items."""
        taken = _Counts()
        for counts in (self.here, *self.elsewhere.values()):
            taken.add_all(counts)
        self.here, self.elsewhere = _Counts(), {}
        return taken


_by_pipeline: dict[str, _OfPipeline] = {}
# Internal parts of a pipeline with regions, and the pipeline that they belong to.
_whole_of: dict[str, str] = {}
_lock = ForkSafeLock()


def count_dropped(stage: str, error: BaseException, item: str, epoch: int | None = None) -> None:
    """Counts an item that a stage dropped.

    Args:
        stage: The full name of the stage.
        error: The exception.
        item: A description of the item.
        epoch: The epoch of an item that another process dropped.
    """
    number, _ = of_pipeline(stage)
    key = stage, type(error).__name__
    with _lock.held():
        of = _by_pipeline.setdefault(_whole_of.get(number, number), _OfPipeline())
        if epoch is None:
            counts = of.here
            of.in_all += 1
        else:
            counts = of.elsewhere.setdefault(epoch, _Counts())
        reason = counts.reason(key)
        if reason is None:
            counts.others += 1
            return
        reason.count += 1
        if reason.example is None:
            reason.example = _short(item), _short(in_one_line(error))


def count_as_part_of(part: int, whole: int) -> None:
    """Counts items that an internal part of a pipeline drops as those of the whole pipeline."""
    with _lock.held():
        _whole_of[str(part)] = str(whole)


def has_epochs(number: int, statistics: Callable[[], Statistics]) -> None:
    """Registers the statistics of a continuous pipeline, which contain the epochs of dropped items."""
    with _lock.held():
        whole = _whole_of.get(str(number), str(number))
        _by_pipeline.setdefault(whole, _OfPipeline()).statistics.append(statistics)


def warn_of_epoch(number: int, epoch: int) -> None:
    """Logs one warning if a continuous pipeline dropped items of an epoch. Called when the epoch has ended.

    If a run has dropped more than 10,000 items, items of the next epoch may be included.

    Args:
        number: The number of the pipeline.
        epoch: The number of the epoch.
    """
    with _lock.held():
        of = None if str(number) in _whole_of else _by_pipeline.get(str(number))
        if of is None:
            return
        if of.is_empty():
            of.end(epoch)
            return
        is_listed = of.in_all <= _MAX_LISTED
        sources = of.statistics
    # Not under the lock, because threads that drop items wait for the lock.
    listed = [item for statistics in sources for item in statistics()["dropped"]] if is_listed else None
    with _lock.held():
        counts = of.take_epoch(epoch, listed)
        of.end(epoch)
    _warn(f"epoch {epoch} of pipeline {number} ended", counts)


def warn_of_dropped(number: int, has_delivered: Callable[[], bool], failed: bool) -> None:
    """Logs one warning if a pipeline has dropped items that were not reported, and has not failed.

    Called when the pipeline has ended.

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
        of = _by_pipeline.pop(str(number), None)
    if of is None or failed:
        return
    ended = "ended" if of.ended is None else f"ended after epoch {of.ended}"
    if not has_delivered():
        ended = "ended without any output"
    _warn(f"pipeline {number} {ended}", of.take_all())


def _warn(what: str, counts: _Counts) -> None:
    total = counts.total
    if total:
        items = "1 item was" if total == 1 else f"{total} items were"
        log_warning(
            f"{what}, and {items} dropped {counts}; to end a pipeline after a number of failures, pass "
            "max_failures to build(), or on_error to a loader"
        )


def _of_listed(item: Dropped) -> tuple[_Key, str]:
    """Returns the reason of an item that the engine lists, and its error in one line."""
    text = " ".join(item["reason"].split())
    if text.startswith(_RAISED):
        text = text[len(_RAISED) :]
        kind = text.partition(":")[0]
    else:
        kind = error_of_kind(item["kind"]).__name__
        text = f"{kind}: {text}"
    return (item["stage"], kind), _short(text)


def _name(item: Dropped) -> str:
    return f"item {item['index']}" if item["key"] is None else _short(item["key"])


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
