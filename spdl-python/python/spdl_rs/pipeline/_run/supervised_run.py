"""A run that ends after its event loop has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ... import _spdl_rs
from ..._statistics import Statistics, slowest_of
from .._event_loop.supervisor import LoopSupervisor
from .._failures.failure import PipelineFailure, with_others


class SupervisedRun:
    """A run that ends after its event loop, and fails if hooks, queues or the loop fail.

    Args:
        run: The last run.
        inner_runs: The runs that produce its items, in order.
        supervisor: Runs hooks, queues and background tasks.
    """

    def __init__(
        self,
        run: _spdl_rs.PipelineRun,
        inner_runs: Sequence[_spdl_rs.PipelineRun],
        supervisor: LoopSupervisor,
    ) -> None:
        self._run = run
        # Runs end when they are dropped, so only their monitors are kept.
        self._monitors = [inner.monitor for inner in inner_runs] + [run.monitor]
        self._supervisor = supervisor
        self._is_reported = False
        # The failure of the run, if a caller did not wait for the event loop to end.
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
            # For example, a stage raised `SystemExit`. No other failure is reported.
            self._is_reported = True
            raise
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._supervisor.ended.wait(left):
            self._failure = failure
            raise TimeoutError(f"the event loop of the pipeline did not end within {timeout} s")
        self._is_reported = True
        failure = with_others(failure, self._supervisor.failures)
        if failure is not None:
            raise failure
        return None

    def halt(self) -> None:
        self._run.halt()

    def stop(self, timeout: float | None = None) -> bool:
        return self._run.stop(timeout)

    def take_failure(self) -> BaseException | None:
        """Returns the failure if it was not reported yet. For use after the end."""
        failure = self._run.take_failure()
        if self._is_reported:
            return None
        self._is_reported = True
        if failure is None or isinstance(failure, PipelineFailure):
            return with_others(failure, self._supervisor.failures)
        return failure


class AllMonitors:
    """Statistics of consecutive runs."""

    def __init__(self, monitors: Sequence[_spdl_rs.Monitor]) -> None:
        self._monitors = monitors

    def statistics(self) -> Statistics:
        """Returns the statistics of the last run, with the stages, queues and failures of all runs."""
        every = [monitor.statistics() for monitor in self._monitors]
        whole = every[-1]
        whole["stages"] = [stage for one in every for stage in one["stages"]]
        whole["queues"] = [queue for one in every for queue in one["queues"]]
        whole["dropped"] = [dropped for one in every for dropped in one["dropped"]]
        whole["dropped_total"] = sum(one["dropped_total"] for one in every)
        whole["dropped_counts"] = [count for one in every for count in one["dropped_counts"]]
        whole["decisions"] = [decision for one in every for decision in one["decisions"]]
        whole["left_out"] = sum(one["left_out"] for one in every)
        whole["slowest"] = slowest_of(every)
        return whole
