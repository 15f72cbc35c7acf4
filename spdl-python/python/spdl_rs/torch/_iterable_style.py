"""An epoch of a data set that is iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from .._exclusive import Exclusive
from ..pipeline._failure import _add_notes
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
        self.finished = False
        self._exclusive = Exclusive()

    def gave(self, worker: int, behind: Any) -> None:
        """A batch of a worker was given, or its exception raised."""
        with self._exclusive.held():
            self.given += 1
            self._next(worker, behind)

    def ended(self, worker: int) -> None:
        """A worker has no more batches."""
        with self._exclusive.held():
            self._next(worker, "end")

    def _next(self, worker: int, behind: Any) -> None:
        self.states[worker] = behind
        self.turn = (worker + 1) % len(self.states)

    def state(self) -> dict[str, Any]:
        with self._exclusive.held():
            return {
                "_num_yielded": self.given,
                "_worker_snapshots": list(self.states),
                "_next_worker": self.turn,
            }


class IterableEpoch:
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
        self._workers = workers
        self._progress = progress
        self._ahead = ahead
        self._timeout = timeout
        self._asking = Exclusive()
        for worker, state in zip(workers, progress.states, strict=True):
            for _ in range(0 if state == "end" else ahead):
                worker.submit(0, None)

    def __iter__(self) -> IterableEpoch:
        return self

    def __next__(self) -> Any:
        with self._asking.held():
            return self._next()

    def _next(self) -> Any:
        progress = self._progress
        while any(state != "end" for state in progress.states):
            turn = progress.turn
            if progress.states[turn] == "end":
                progress.ended(turn)
                continue
            worker = self._workers[turn]
            if not self._ahead:
                worker.submit(0, None)
            _, result = taken(worker, self._timeout)
            if result is _END:
                progress.ended(turn)
                worker.close()
                continue
            if self._ahead:
                worker.submit(0, None)
            if isinstance(result, Raised):
                progress.gave(turn, progress.states[turn])
                raise result.error
            batch, behind = result
            progress.gave(turn, behind)
            return batch
        progress.finished = True
        raise StopIteration
