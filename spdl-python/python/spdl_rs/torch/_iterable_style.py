"""An epoch of a data set that is iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from .._locks import ForkSafeLock
from ..pipeline._failures.failure import _add_notes
from ._handover import HandedOver
from ._map_style import taken, told_of
from ._workers import Raised, Workers

_END = object()


class IterableFetch:
    """Makes the next batch of an iterator of a worker's own.

    Args:
        dataset: What the worker iterates.
        collate_fn: Puts samples together.
        batch_size: How many; `None`: each one goes through `collate_fn` by itself.
        drop_last: Whether a last batch that is not full is left out.
        pin: Moves a batch to pinned memory.
        state: Where it begins: what it gave with the batch before.
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
        """A batch, and the state behind it; or `_END`."""
        if self._samples is None:
            self._samples = self._begin(self._state)
        try:
            sample_or_samples = self._next(self._samples)
        except SystemExit as error:
            what = f"a sample behind the first {self._fetched} batches"
            raise RuntimeError(f"SystemExit was raised for {what}, with {error.code!r}") from error
        except Exception as error:
            _add_notes(error, f"Raised for: a sample behind the first {self._fetched} batches")
            raise
        if sample_or_samples is _END:
            return _END
        self._fetched += 1
        batch = told_of(self._collate_fn, sample_or_samples, f"collate_fn, batch {self._fetched}")
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
    """How far each worker is, and whose turn it is."""

    def __init__(self, workers: int, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.states: list[Any] = list(state.get("_worker_snapshots") or [None] * workers)
        """Behind the last batch of each worker that was given: `None` at its start, `"end"`."""
        self.turn: int = state.get("_next_worker", 0)
        self.given: int = state.get("_num_yielded", 0)
        self.just_given: dict[int, tuple[int, Any]] = {}
        """What was taken from which worker, by its place, that was given and not counted yet: its
        state behind that. What one puts in, no signal comes between."""
        self._counted = 0
        self._places: int | None = None
        self._lock = ForkSafeLock()

    def end(self, places: int) -> None:
        """All workers are at their ends, behind so many places."""
        with self._lock.held():
            self._places = places

    @property
    def finished(self) -> bool:
        """Whether all were given."""
        with self._lock.held():
            self.count()
            return self._counted == self._places

    def count(self) -> None:
        """Counts what was just given. Wherever that is interrupted, nothing is lost of it.

        What comes behind a place that is not given is not counted: a worker goes on from one state.
        """
        with self._lock.held():
            while (place := self._counted) in self.just_given:
                worker, behind = self.just_given[place]
                states = list(self.states)
                states[worker] = behind
                turn = (worker + 1) % len(states)
                given = self.given + (behind != "end")
                # Together: behind these no signal is heard.
                self.states, self.turn, self.given = states, turn, given
                self._counted = place + 1
                del self.just_given[place]

    def state(self) -> dict[str, Any]:
        with self._lock.held():
            self.count()
            return {
                "_num_yielded": self.given,
                "_worker_snapshots": list(self.states),
                "_next_worker": self.turn,
            }


class IterableEpoch(HandedOver):
    """The batches of one epoch: one of each worker in turn, without those that are at their end.

    Args:
        workers: One for each iterator.
        progress: Where it begins; told of how far it comes.
        ahead: How many batches each worker makes ahead; 0: none.
        timeout: How many seconds to wait for one.
    """

    def __init__(
        self,
        workers: list[Workers],
        progress: IterableProgress,
        *,
        ahead: int,
        timeout: float | None = None,
    ) -> None:
        super().__init__(workers, progress.just_given)
        self._progress = progress
        self._ahead = ahead
        self._timeout = timeout
        # As it is for whoever takes the next batch, though the one before may not be given yet.
        self._states, self._turn, self._places = list(progress.states), progress.turn, 0
        for worker, state in zip(workers, progress.states, strict=True):
            for _ in range(0 if state == "end" else ahead):
                worker.submit(0, None)

    def _take(self) -> tuple[int, tuple[int, Any], Any]:
        self._progress.count()
        while any(state != "end" for state in self._states):
            turn = self._turn
            if self._states[turn] == "end":
                self._ended(turn)
                continue
            worker = self._workers[turn]
            if not self._ahead:
                worker.submit(0, None)
            _, result = taken(worker, self._timeout)
            if result is _END:
                self._ended(turn)
                worker.close()
                continue
            if self._ahead:
                worker.submit(0, None)
            behind = self._states[turn]
            if not isinstance(result, Raised):
                result, behind = result
            return self._next(turn, behind), (turn, behind), result
        self._progress.end(self._places)
        raise StopIteration

    def _is_as_before(self) -> bool:
        # An iterator that was interrupted has lost samples, or is at its end.
        return False

    def _ended(self, turn: int) -> None:
        """A worker has no more batches."""
        self._just_given[self._next(turn, "end")] = (turn, "end")

    def _next(self, turn: int, behind: Any) -> int:
        """The place of what was taken; it is the next worker's turn."""
        place, self._places = self._places, self._places + 1
        self._states[turn], self._turn = behind, (turn + 1) % len(self._states)
        return place
