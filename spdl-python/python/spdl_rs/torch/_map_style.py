"""An epoch of a map-style data set, which is indexed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from .._locks import ForkSafeLock
from ..pipeline._failures.failure import _add_notes
from ..pipeline._failures.item_text import describe
from ..source._resumable import skip_empty_epoch
from ._batch_iterator import BatchIterator
from ._failures import DroppedSamples, NoSamples
from ._workers import Workers


class LoaderTimedOutError(TimeoutError, RuntimeError):
    """A batch was not ready within `timeout`. A `RuntimeError`, as in PyTorch's loader."""


LoaderTimedOutError.__module__ = "spdl_rs.torch"


class MapStyleFetch:
    """Makes a batch from a list of indices, or a sample from one index."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        batched: bool,
        pin: Callable[[Any], Any] | None = None,
        dropped: DroppedSamples | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._batched = batched
        self._pin = pin
        self._dropped = dropped

    def __call__(self, index: Any) -> Any:
        if self._dropped is not None:
            return self._without_failed(index, self._dropped)
        if not self._batched:
            samples = self._sample(index)
        elif getattr(self._dataset, "__getitems__", None):
            samples = self._samples(index)
        else:
            samples = [self._sample(each) for each in index]
        return self._collate(samples, index)

    def _without_failed(self, index: Any, dropped: DroppedSamples) -> Any:
        """Makes a batch of the samples that do not fail. Returns `NoSamples` if all failed."""
        indices = list(index) if self._batched else [index]
        samples, failed = self._loaded(indices)
        batch: Any = NoSamples
        try:
            if samples:
                batch = self._collate(samples if self._batched else samples[0], index)
        except Exception:
            dropped.record(len(samples), failed)
            raise
        # Counted last, because an interrupted batch is made again.
        dropped.record(len(samples), failed)
        return batch

    def _loaded(self, indices: list[Any]) -> tuple[list[Any], list[tuple[Any, Exception]]]:
        """Returns the samples, and the indices and exceptions of those that failed."""
        failed: list[tuple[Any, Exception]] = []
        if self._batched and getattr(self._dataset, "__getitems__", None):
            try:
                return list(self._samples(indices)), []
            except Exception as error:
                if not hasattr(type(self._dataset), "__getitem__"):
                    return [], [(each, error) for each in indices]
        samples: list[Any] = []
        for each in indices:
            try:
                samples.append(self._sample(each))
            except Exception as error:
                failed.append((each, error))
        return samples, failed

    def _collate(self, samples: Any, index: Any) -> Any:
        what = f"collate_fn, for indices {describe(index)}"
        batch = call_with_note(self._collate_fn, samples, what)
        return batch if self._pin is None else self._pin(batch)

    def _sample(self, index: Any) -> Any:
        return call_with_note(self._item, index, f"sample {describe(index)}")

    def _item(self, index: Any) -> Any:
        return self._dataset[index]

    def _samples(self, indices: Any) -> Any:
        return call_with_note(self._dataset.__getitems__, indices, f"samples {describe(indices)}")


def call_with_note(function: Callable[[Any], Any], argument: Any, what: str) -> Any:
    """Calls a function. Its exceptions get a note that names the sample."""
    try:
        return function(argument)
    except StopIteration as error:
        # A `StopIteration` would end the consumer's loop silently.
        raised = RuntimeError(f"StopIteration was raised for {what}")
        raise raised from error
    except SystemExit as error:
        # A `SystemExit` in the consumer's thread would end the program without a message.
        raised = RuntimeError(f"SystemExit was raised for {what}, with code {error.code!r}")
        raise raised from error
    except Exception as error:
        _add_notes(error, f"Raised for: {what}")
        raise


class Progress:
    """The ledger of an epoch: which batches were delivered, numbered in the sampler's order."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.drawn: int = state.get("_sampler_iter_yielded", 0)
        """The number of batches drawn from the sampler, delivered or not."""
        self.given: int = state.get("_num_yielded", 0)
        """All batches with a smaller number were delivered."""
        self.beyond: set[int] = set(state.get("_yielded_beyond", ()))
        """Delivered batches with a number of at least `given`."""
        self.sampler_state: Any = state.get("_index_sampler_state")
        """The sampler's state after batch `given - 1`."""
        self.sampler_ended: bool = state.get("_index_sampler_ended", False)
        """True if that state is from the end of an earlier epoch."""
        self.uncounted: dict[int, None] = {}
        """Batches delivered since the last `count`. A signal cannot interrupt an insertion."""
        self._ended = False
        self._sampler_states: dict[int, Any] = {}
        self._lock = ForkSafeLock()

    def drew(self, number: int, sampler_state: Any) -> None:
        with self._lock.held():
            self.drawn = max(self.drawn, number + 1)
            if sampler_state is not None:
                self._sampler_states[number] = sampler_state

    def end(self, number: int) -> None:
        """Records that the epoch has `number` batches."""
        with self._lock.held():
            self.drawn, self._ended = number, True

    @property
    def finished(self) -> bool:
        """True if all batches were delivered."""
        with self._lock.held():
            self.count()
            return self._ended and self.given >= self.drawn

    def count(self) -> None:
        """Counts the delivered batches. If a signal interrupts this method, no count is lost."""
        with self._lock.held():
            for number in list(self.uncounted):
                self._count(number)
                del self.uncounted[number]

    def _count(self, number: int) -> None:
        if number >= self.given:
            self.beyond.add(number)
        while (given := self.given) in self.beyond:
            sampler_state = self._sampler_states.get(given, self.sampler_state)
            # No signal is handled between these assignments.
            self.sampler_state, self.sampler_ended, self.given = sampler_state, False, given + 1
            self.beyond.discard(given)
            self._sampler_states.pop(given, None)

    def state(self) -> dict[str, Any]:
        with self._lock.held():
            finished = self.finished
            return {
                "_num_yielded": self.given,
                "_sampler_iter_yielded": self.drawn,
                "_yielded_beyond": sorted(each for each in self.beyond if each >= self.given),
                "_index_sampler_state": self.sampler_state,
                "_index_sampler_ended": self.sampler_ended or finished,
            }


class MapStyleEpoch(BatchIterator):
    """The batches of one epoch. The consumer's thread iterates the sampler.

    Args:
        workers: The workers, which make the batches.
        index_sampler: Iterable of indices, or of lists of indices.
        progress: The start position. Updated with each batch.
        ahead: The largest number of batches in flight. 0: a batch is made when `next` is called.
        timeout: The maximum wait for a batch, in seconds.
        dropped: The samples that the failure policy drops, if any.
    """

    def __init__(
        self,
        workers: Workers,
        index_sampler: Any,
        progress: Progress,
        *,
        ahead: int,
        timeout: float | None = None,
        dropped: DroppedSamples | None = None,
    ) -> None:
        super().__init__([workers], progress.uncounted)
        self._worker = workers
        self._stateful = stateful(index_sampler)
        self._progress = progress
        self._ahead = ahead
        self._timeout = timeout
        self._dropped = dropped
        self._is_complete = not progress.given and not progress.beyond
        self._indices, self._number = self._remaining(index_sampler, progress.given)
        self._error: Exception | None = None
        self._in_flight = 0
        if ahead:
            self._submit()

    def _remaining(self, index_sampler: Any, position: int) -> tuple[Iterator[Any], int]:
        """Returns an iterator over the remaining indices of the epoch, and the position of the first."""
        if self._stateful is not None and self._progress.sampler_state is not None:
            # The sampler's state was loaded: the sampler resumes by itself.
            ended = self._progress.sampler_ended
            return skip_empty_epoch(index_sampler) if ended else iter(index_sampler), position
        indices = iter(index_sampler)
        skipped = sum(1 for _ in islice(indices, position))
        if skipped < position:
            raise ValueError(
                f"the state has {position} delivered batches, but the sampler has only {skipped}"
            )
        if self._progress.drawn and self._stateful is None:
            # The first index is drawn now, while the generators have their state from the start of the epoch.
            indices = chain(list(islice(indices, 1)), indices)
        return indices, position

    def _submit(self) -> None:
        while self._error is None and self._in_flight < max(1, self._ahead):
            try:
                index = next(self._indices)
                state = None if self._stateful is None else self._stateful.state_dict()
            except Exception as error:
                # `_take` raises this exception, `StopIteration` included, after the batches in flight.
                self._error = error
                return
            number, self._number = self._number, self._number + 1
            self._progress.drew(number, state)
            if number not in self._progress.beyond:
                self._worker.submit(number, index)
                self._in_flight += 1

    def _take(self) -> tuple[int, None, Any]:
        while True:
            number, known, result = self._take_any()
            if result is not NoSamples:
                return number, known, result
            # A batch without samples counts as delivered.
            self._progress.uncounted[number] = None

    def _take_any(self) -> tuple[int, None, Any]:
        self._worker.is_running = False
        self._progress.count()
        self._submit()
        if not self._in_flight:
            assert self._error is not None
            if not isinstance(self._error, StopIteration):
                self._worker.close()
            else:
                self._worker.end()
                self._progress.end(self._number)
                dropped, self._dropped = self._dropped, None
                if dropped is not None:
                    dropped.end(self._is_complete)
            raise self._error
        number, result = take_result(self._worker, self._timeout)
        self._in_flight -= 1
        if self._ahead:
            self._submit()
        return number, None, result

    def _can_take_again(self) -> bool:
        return self._worker.is_running


def take_result(workers: Workers, timeout: float | None) -> tuple[int, Any]:
    """Waits for the next result.

    Raises:
        LoaderTimedOutError: No result was ready within `timeout` seconds.
    """
    try:
        return workers.take(timeout)
    except TimeoutError:
        raise LoaderTimedOutError(f"the next batch was not ready within {timeout} s") from None


def stateful(index_sampler: Any) -> Any:
    """Returns the sampler that has a state: `index_sampler` or its inner sampler, or `None`."""
    for candidate in (index_sampler, getattr(index_sampler, "sampler", None)):
        if hasattr(candidate, "state_dict") and hasattr(candidate, "load_state_dict"):
            return candidate
    return None
