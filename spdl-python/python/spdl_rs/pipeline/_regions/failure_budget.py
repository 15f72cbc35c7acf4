"""One failure budget for a pipeline that consists of several parts."""

from __future__ import annotations

import contextlib
import threading
import weakref
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .._failures import failure as _failure
from .._failures.dropped import count_as_part_of
from .._failures.failure import PipelineFailure
from .._failures.stage_names import of_local
from .._run.pipeline import Pipeline, number_of
from ..defs._configs import PathVariantsConfig, PipeConfig, PipelineConfig, StageConfig

if TYPE_CHECKING:
    from .regions import Region

# The number of items after which a budget given as a fraction applies.
_PROBATION_ITEMS = 100


class SharedBudget:
    """Counts failed items of all parts, and makes the pipeline fail if the budget is exceeded.

    Args:
        most: The number of items that may fail, or the fraction; negative: unlimited. Stages with separate
            budgets do not count.
    """

    def __init__(self, most: int | Fraction) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._failures = 0
        self._own_failures: dict[str, int] = {}
        self._regions: weakref.WeakSet[Region] = weakref.WeakSet()
        self._parts: weakref.WeakSet[Pipeline[Any]] = weakref.WeakSet()
        self._tried_elsewhere: weakref.WeakKeyDictionary[Any, dict[str, int]]
        self._tried_elsewhere = weakref.WeakKeyDictionary()
        self._name = ""
        self._whole: int | None = None
        self._failure: PipelineFailure | None = None

    def watch(self, region: Region) -> None:
        """Makes a region fail if the budget is exceeded."""
        self._regions.add(region)

    def count(self, pipeline: Pipeline[Any], config: PipelineConfig[Any]) -> None:
        """Counts failures of a part that runs in this process.

        Dropped items of all parts are counted under the number of the first part.
        """
        self._parts.add(pipeline)
        number = number_of(pipeline)
        self._name = str(number)
        if self._whole is None:
            self._whole = number
        else:
            count_as_part_of(number, self._whole)
        own = _names_with_own_budgets(config.pipes)

        def failed(error: BaseException, place: str, item: str) -> None:
            stage = f"{number}:{place}"
            _failure.report_item_failed(error, stage, item)
            if of_local(place)[1] not in own:
                self._failed(error, stage)

        watching = contextlib.ExitStack()
        watching.enter_context(_failure.failures_reported_to(number, failed))
        weakref.finalize(pipeline, watching.close).atexit = False

    def failed_elsewhere(
        self,
        worker: Any,
        place: str,
        error: BaseException,
        item: str,
        tried: dict[str, int],
        own: int | Fraction | None,
        epoch: int,
    ) -> None:
        """Counts a failure in a worker process.

        Args:
            worker: The process.
            place: The position of the stage.
            error: The exception.
            item: A description of the item.
            tried: How many items each stage of the process has processed so far, failures included.
            own: The stage's separate budget, if any.
            epoch: The number of the epoch.
        """
        stage = f"{self._name}:{place}"
        _failure.report_item_failed(error, stage, item, epoch)
        with self._lock:
            self._tried_elsewhere[worker] = tried
        if own is None:
            self._failed(error, stage)
            return
        with self._lock:
            failures = self._own_failures.get(place, 0) + 1
            self._own_failures[place] = failures
            tried_here = sum(each.get(place, 0) for each in self._tried_elsewhere.values())
        self._check(error, stage, own, failures, tried_here)

    def _failed(self, error: BaseException, stage: str) -> None:
        with self._lock:
            self._failures += 1
            failures = self._failures
        tried = self._most_tried() if isinstance(self.most, Fraction) else 0
        self._check(error, stage, self.most, failures, tried)

    def _check(
        self, error: BaseException, stage: str, most: int | Fraction, failures: int, tried: int
    ) -> None:
        if isinstance(most, Fraction):
            exceeded = tried >= _PROBATION_ITEMS and failures > most * tried
        else:
            exceeded = 0 <= most < failures
        if not exceeded:
            return
        of = f" of {tried}" if isinstance(most, Fraction) else ""
        why = f"{failures} items{of} failed, and max_failures is {most}"
        _failure.add_context(error, f"Why the pipeline ends: {why}")
        shown = error if isinstance(error, Exception) else RuntimeError(repr(error))
        failure = PipelineFailure([(stage, shown)])
        with self._lock:
            self._failure = self._failure or failure
        for region in list(self._regions):
            region.fail(failure, fatal=True)

    def take_failure(self) -> PipelineFailure | None:
        """Returns the failure of the pipeline, once, if no region could raise it."""
        with self._lock:
            failure, self._failure = self._failure, None
        return failure

    def _most_tried(self) -> int:
        """Returns the largest number of items that a stage has processed, failures included."""
        counts: dict[str, int] = {}
        with self._lock:
            for tried in self._tried_elsewhere.values():
                for place, items in tried.items():
                    counts[place] = counts.get(place, 0) + items
        for part in list(self._parts):
            for stage in part.stats()["stages"][1:]:
                counts[stage["name"]] = stage["items"]
        return max(counts.values(), default=0)


def _names_with_own_budgets(stages: Any) -> set[str]:
    names: set[str] = set()
    stage: StageConfig
    for stage in stages:
        if isinstance(stage, PipeConfig) and stage.max_failures is not None:
            names.add(stage.name)
        elif isinstance(stage, PathVariantsConfig):
            for path in stage.paths:
                names |= _names_with_own_budgets(path)
    return names
