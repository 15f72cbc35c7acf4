"""An epoch of an iterable data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from .._locks import ForkSafeLock
from ..pipeline._failures.failure import _add_notes
from ._batch_iterator import BatchIterator
from ._map_style import call_with_note, take_result
from ._workers import Raised, Workers

_END = object()


class IterableFetch:
    """Makes the next batch from the iterator of one worker.

    Args:
        dataset: The data set of this worker.
        collate_fn: Combines samples into a batch.
        batch_size: Samples per batch. `None`: `collate_fn` is called with each single sample.
        drop_last: If true, an incomplete last batch is left out.
        pin: Copies a batch to pinned memory.
        state: The worker's state after its last delivered batch, to resume from.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        batch_size: int | None,
        drop_last: bool,
        pin: Callable[[Any], Any] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._pin = pin
        self._state = state
        self._fetched = 0
        self._samples: Iterator[Any] | None = None

    def __call__(self, _: None) -> Any:
        """Returns a batch and the state after it, or `_END`."""
        if self._samples is None:
            self._samples = self._begin(self._state)
        try:
            sample_or_samples = self._next(self._samples)
        except SystemExit as error:
            what = f"a sample after the first {self._fetched} batches"
            raise RuntimeError(f"SystemExit was raised for {what}, with code {error.code!r}") from error
        except Exception as error:
            _add_notes(error, f"Raised for: a sample after the first {self._fetched} batches")
            raise
        if sample_or_samples is _END:
            return _END
        self._fetched += 1
        batch = call_with_note(
            self._collate_fn, sample_or_samples, f"collate_fn, batch {self._fetched}"
        )
        return batch if self._pin is None else self._pin(batch), self._snapshot()

    def _begin(self, state: dict[str, Any] | None) -> Iterator[Any]:
        if state is None:
            return iter(self._dataset)
        if state["dataset"] is not None:
            self._dataset.load_state_dict(state["dataset"])
        samples = iter(self._dataset)
        if state["iterator"] is not None:
            samples.load_state_dict(state["iterator"])  # pyright: ignore[reportAttributeAccessIssue]
        elif state["dataset"] is None:
            skipped = state["fetched"] * (self._batch_size or 1)
            for _ in islice(samples, skipped):
                pass
        self._fetched = state["fetched"]
        return samples

    def _next(self, samples: Iterator[Any]) -> Any:
        if self._batch_size is None:
            return next(samples, _END)
        batch = list(islice(samples, self._batch_size))
        if not batch or (self._drop_last and len(batch) < self._batch_size):
            return _END
        return batch

    def _snapshot(self) -> dict[str, Any]:
        samples, dataset = self._samples, self._dataset
        return {
            "fetched": self._fetched,
            "iterator": _state_of(samples),
            "dataset": None if samples is dataset else _state_of(dataset),
        }


def _state_of(held: Any) -> Any:
    if hasattr(held, "state_dict") and hasattr(held, "load_state_dict"):
        return held.state_dict()
    return None


class IterableProgress:
    """The state of each worker, and which worker delivers the next batch."""

    def __init__(self, workers: int, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.states: list[Any] = list(state.get("_worker_snapshots") or [None] * workers)
        """Per worker, the state after its last delivered batch; `None` at its start, or `"end"`."""
        self.turn: int = state.get("_next_worker", 0)
        self.given: int = state.get("_num_yielded", 0)
        self.uncounted: dict[int, tuple[int, Any]] = {}
        """Maps the position of a delivered batch to its worker and the worker's state after the batch.
        `count` empties this dict. A signal cannot interrupt an insertion."""
        self._counted = 0
        self._places: int | None = None
        self._lock = ForkSafeLock()

    def end(self, places: int) -> None:
        """Records that all workers have ended, after `places` positions."""
        with self._lock.held():
            self._places = places

    @property
    def finished(self) -> bool:
        """True if all batches were delivered."""
        with self._lock.held():
            self.count()
            return self._counted == self._places

    def count(self) -> None:
        """Counts the delivered batches. If a signal interrupts this method, no count is lost.

        Batches after a position that was not delivered are not counted, because a worker
        resumes from one state.
        """
        with self._lock.held():
            while (place := self._counted) in self.uncounted:
                worker, state_after = self.uncounted[place]
                states = list(self.states)
                states[worker] = state_after
                turn = (worker + 1) % len(states)
                given = self.given + (state_after != "end")
                # No signal is handled between these assignments.
                self.states, self.turn, self.given = states, turn, given
                self._counted = place + 1
                del self.uncounted[place]

    def state(self) -> dict[str, Any]:
        with self._lock.held():
            self.count()
            return {
                "_num_yielded": self.given,
                "_worker_snapshots": list(self.states),
                "_next_worker": self.turn,
            }


class IterableEpoch(BatchIterator):
    """The batches of one epoch, from each worker in turn. Workers that ended are skipped.

    Args:
        workers: The workers, each of which has a separate iterator.
        progress: The start position. Updated with each batch.
        ahead: The number of batches that each worker prefetches; 0: no prefetch.
        timeout: The maximum wait for a batch, in seconds.
    """

    def __init__(
        self,
        workers: list[Workers],
        progress: IterableProgress,
        *,
        ahead: int,
        timeout: float | None = None,
    ) -> None:
        super().__init__(workers, progress.uncounted)
        self._progress = progress
        self._ahead = ahead
        self._timeout = timeout
        # The state for the next `_take`: the previous batch may not be delivered yet.
        self._states, self._turn, self._places = list(progress.states), progress.turn, 0
        for worker, state in zip(workers, progress.states, strict=True):
            for _ in range(0 if state == "end" else ahead):
                worker.submit(0, None)

    def _take(self) -> tuple[int, tuple[int, Any], Any]:
        self._progress.count()
        while any(state != "end" for state in self._states):
            turn = self._turn
            if self._states[turn] == "end":
                self._worker_ended(turn)
                continue
            worker = self._workers[turn]
            if not self._ahead:
                worker.submit(0, None)
            _, result = take_result(worker, self._timeout)
            if result is _END:
                self._worker_ended(turn)
                worker.close()
                continue
            if self._ahead:
                worker.submit(0, None)
            state_after = self._states[turn]
            if not isinstance(result, Raised):
                result, state_after = result
            return self._next(turn, state_after), (turn, state_after), result
        self._progress.end(self._places)
        raise StopIteration

    def _can_take_again(self) -> bool:
        # An interrupted iterator has lost samples, or has ended.
        return False

    def _worker_ended(self, turn: int) -> None:
        """Records that a worker has no more batches."""
        self._uncounted[self._next(turn, "end")] = (turn, "end")

    def _next(self, turn: int, state_after: Any) -> int:
        """Returns the position of a taken batch, and advances to the next worker."""
        place, self._places = self._places, self._places + 1
        self._states[turn], self._turn = state_after, (turn + 1) % len(self._states)
        return place
