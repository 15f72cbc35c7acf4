"""Samples that the failure policy of a loader drops."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from .._errors import TooManyFailuresError
from .._failure_policy import OnError, max_failures
from .._locks import ForkSafeLock
from .._statistics import Dropped, Statistics
from ..pipeline._failures.item_text import describe
from ..pipeline._failures.log import in_one_line, log_failure

_LOGGER = logging.getLogger("spdl_rs.torch")

_MAX_LISTED = 100_000


class NoSamples:
    """The result of a batch of which all samples were dropped."""


class DroppedSamples:
    """The samples that an epoch dropped, and the limit of their number. Threads may share it.

    Args:
        on_error: The failure policy, not `"raise"`.
    """

    def __init__(self, on_error: OnError) -> None:
        limit = max_failures(on_error)
        assert limit is not None
        self._share, self._after, self._at_end = limit if isinstance(limit, tuple) else (None, 0, False)
        self._most = limit if isinstance(limit, int) else -1
        self._tried = 0
        self._counts: Counter[str] = Counter()
        self._listed: list[Dropped] = []
        self._lock = ForkSafeLock()

    def record(self, loaded: int, failed: list[tuple[Any, Exception]]) -> None:
        """Counts the samples of a batch: those loaded, and the indices and exceptions of those that failed.

        Raises:
            TooManyFailuresError: More samples failed than the policy allows. The cause is the last failure.
        """
        with self._lock.held():
            self._tried += loaded + len(failed)
            for index, error in failed:
                self._counts[type(error).__name__] += 1
                if len(self._listed) < _MAX_LISTED:
                    self._listed.append(_entry(error, index))
            total, tried = self._counts.total(), self._tried
            exceeded = self._is_exceeded(total, self._after)
        for index, error in failed:
            log_failure("sample", error, describe(index))
        if failed and exceeded:
            raise self._too_many(f"{total} of {tried} samples failed") from failed[-1][1]

    def _is_exceeded(self, failed: int, after: int) -> bool:
        if self._share is None:
            return 0 <= self._most < failed
        return self._tried >= after and failed > self._share * self._tried

    def _too_many(self, failed: str) -> TooManyFailuresError:
        with self._lock.held():
            first = "; ".join(entry["reason"] for entry in self._listed[:3])
        limit = f"{self._most} samples" if self._share is None else f"{100 * self._share:g} %"
        return TooManyFailuresError(
            f"{failed}; the failure policy (on_error) allows {limit}; first failures: {first}",
            kind="too-many-failures",
            stage="fetch",
        )

    def end(self, is_complete: bool) -> None:
        """Logs one warning about the dropped samples of the epoch.

        Args:
            is_complete: Whether this was an entire epoch, not the rest of a resumed one.

        Raises:
            TooManyFailuresError: More samples failed than the policy allows.
            RuntimeError: All samples failed.
        """
        with self._lock.held():
            failed, tried = self._counts.total(), self._tried
            if not failed:
                return
            counts = ", ".join(f"{kind}: {count}" for kind, count in self._counts.most_common())
            first = self._listed[0]["reason"]
            exceeded = self._is_exceeded(failed, 0 if self._at_end else self._after)
        text = f"{failed} of {tried} samples failed ({counts}); the first failure: {first}"
        if exceeded:
            raise self._too_many(f"{failed} of {tried} samples failed ({counts})")
        if failed == tried and is_complete:
            raise RuntimeError(f"the epoch delivered no batch: {text}")
        _LOGGER.warning("the epoch ended, and %s", text)

    def add_to(self, statistics: Statistics) -> Statistics:
        """Returns statistics that also contain the dropped samples."""
        with self._lock.held():
            listed, counts = list(self._listed), dict(self._counts)
        return {
            **statistics,
            "dropped": listed,
            "dropped_total": sum(counts.values()),
            "dropped_counts": [
                {"stage": "fetch", "kind": kind, "count": count} for kind, count in counts.items()
            ],
        }


def _entry(error: Exception, index: Any) -> Dropped:
    return {
        "key": describe(index),
        "stage": "fetch",
        "kind": getattr(error, "kind", None) or type(error).__name__,
        "reason": f"sample {describe(index)}: {in_one_line(error)}",
        "epoch": -1,
        "index": -1,
    }
