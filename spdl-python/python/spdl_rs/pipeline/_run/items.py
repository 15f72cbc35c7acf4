"""Iterators over the items of consecutive runs. One run has a native iterator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._failures.failure import PipelineFailure

if TYPE_CHECKING:
    from .supervised_run import SupervisedRun


class Items:
    """Iterates the items of consecutive runs, or of one epoch. Thread-safe: each item is delivered to one thread.

    Args:
        run: The runs.
        timeout: The longest wait for an item in seconds; `None`: no limit.
        at_end: Called at the end.
    """

    def __init__(
        self,
        run: SupervisedRun,
        timeout: float | None,
        at_end: Callable[[], object],
    ) -> None:
        self._run = run
        self._timeout = timeout
        self._at_end = at_end
        self._is_ended = False

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        if self._is_ended:
            raise StopIteration
        try:
            item = self._run.next(self._timeout)
        except PipelineFailure as failure:
            # The frames of this method are irrelevant; the contained exceptions have tracebacks.
            raise failure.with_traceback(None) from failure.__cause__
        if item is None:
            self._is_ended = True
            self._at_end()
            raise StopIteration
        return item[0]
