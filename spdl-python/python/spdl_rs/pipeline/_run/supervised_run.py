"""A run with companions: its end is that of all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ... import _spdl_rs
from ..._statistics import Statistics
from .._event_loop.supervisor import Companions
from .._failures.failure import PipelineFailure, with_others


class SupervisedRun:
    """A run that has ended when its companions have, and fails where they do.

    Args:
        run: The run.
        inner_runs: What gives it items, the first first.
        companions: What runs beside it.
    """

    def __init__(
        self,
        run: _spdl_rs.PipelineRun,
        inner_runs: Sequence[_spdl_rs.PipelineRun],
        companions: Companions,
    ) -> None:
        self._run = run
        # Not the runs, which end when nobody holds them.
        self._monitors = [inner.monitor for inner in inner_runs] + [run.monitor]
        self._companions = companions
        self._is_told = False
        # That of the run, where somebody did not wait for the companions to end, too.
        self._failure: PipelineFailure | None = None

    @property
    def ended(self) -> bool:
        return self._run.ended

    @property
    def pace(self) -> tuple[float, list[int]]:
        return self._run.pace

    @property
    def monitor(self) -> AllMonitors:
        return AllMonitors(self._monitors)

    def next(self, timeout: float | None = None) -> tuple[Any] | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        failure = self._failure
        try:
            item = self._run.next(timeout)
            if item is not None or not self._run.ended:
                return item
        except PipelineFailure as error:
            failure = error
        except Exception:
            raise
        except BaseException:
            # `SystemExit` of a stage, say, has ended the run, and is all that is told.
            self._is_told = True
            raise
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._companions.over.wait(left):
            self._failure = failure
            raise TimeoutError(f"what runs beside the pipeline did not end within {timeout} s")
        self._is_told = True
        failure = with_others(failure, self._companions.failures)
        if failure is not None:
            raise failure
        return None

    def items(self, timeout: float | None) -> Iterator[Any]:
        return _Items(self, timeout)

    def halt(self) -> None:
        self._run.halt()

    def stop(self, timeout: float | None = None) -> bool:
        return self._run.stop(timeout)

    def take_failure(self) -> BaseException | None:
        """The failure that nobody has been told of yet. To be asked after the end."""
        failure = self._run.take_failure()
        if self._is_told:
            return None
        self._is_told = True
        if failure is None or isinstance(failure, PipelineFailure):
            return with_others(failure, self._companions.failures)
        return failure


class _Items:
    """Gives the items of a run, or of one of its epochs, each to one of the threads that ask."""

    def __init__(self, run: SupervisedRun, timeout: float | None) -> None:
        self._run = run
        self._timeout = timeout
        self._is_ended = False

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        try:
            item = None if self._is_ended else self._run.next(self._timeout)
        except PipelineFailure as failure:
            # Where we came from tells nothing; the exceptions in it have tracebacks of their own.
            raise failure.with_traceback(None) from failure.__cause__
        if item is None:
            self._is_ended = True
            raise StopIteration
        return item[0]


class AllMonitors:
    """What several runs did that follow each other."""

    def __init__(self, monitors: Sequence[_spdl_rs.Monitor]) -> None:
        self._monitors = monitors

    def statistics(self) -> Statistics:
        """The numbers of the last run, with the stages, queues and failures of all."""
        every = [monitor.statistics() for monitor in self._monitors]
        whole = every[-1]
        whole["stages"] = [stage for one in every for stage in one["stages"]]
        whole["queues"] = [queue for one in every for queue in one["queues"]]
        whole["dropped"] = [dropped for one in every for dropped in one["dropped"]]
        whole["dropped_total"] = sum(one["dropped_total"] for one in every)
        whole["left_out"] = sum(one["left_out"] for one in every)
        return whole
