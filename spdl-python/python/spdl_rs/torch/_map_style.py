"""An epoch of a data set that is indexed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from .._locks import ForkSafeLock
from ..pipeline._failures.failure import _add_notes
from ..pipeline._failures.item_text import describe
from ..source._resumable import skip_empty_epoch
from ._handover import HandedOver
from ._workers import Workers


class LoaderTimedOutError(TimeoutError, RuntimeError):
    """A batch was not ready in time. PyTorch's loader raises a `RuntimeError`, which this is."""


LoaderTimedOutError.__module__ = "spdl_rs.torch"


class MapStyleFetch:
    """Makes a batch of a list of indices, or a sample of one index."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        batched: bool,
        pin: Callable[[Any], Any] | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._batched = batched
        self._pin = pin

    def __call__(self, index: Any) -> Any:
        if not self._batched:
            samples = self._sample(index)
        elif getattr(self._dataset, "__getitems__", None):
            samples = self._samples(index)
        else:
            samples = [self._sample(each) for each in index]
        batch = told_of(self._collate_fn, samples, f"collate_fn, for indices {describe(index)}")
        return batch if self._pin is None else self._pin(batch)

    def _sample(self, index: Any) -> Any:
        return told_of(self._item, index, f"sample {describe(index)}")

    def _item(self, index: Any) -> Any:
        return self._dataset[index]

    def _samples(self, indices: Any) -> Any:
        return told_of(self._dataset.__getitems__, indices, f"samples {describe(indices)}")


def told_of(function: Callable[[Any], Any], argument: Any, what: str) -> Any:
    """Calls a function, and notes on what it raises for which sample that was."""
    try:
        return function(argument)
    except StopIteration as error:
        # A loop would take this for the end of the data.
        raised = RuntimeError(f"StopIteration was raised for {what}")
        raise raised from error
    except SystemExit as error:
        # It would end the program of whoever takes the batch, without a word.
        raised = RuntimeError(f"SystemExit was raised for {what}, with {error.code!r}")
        raise raised from error
    except Exception as error:
        _add_notes(error, f"Raised for: {what}")
        raise


class Progress:
    """Which batches of an epoch were given. They are numbered in the order of the sampler."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.drawn: int = state.get("_sampler_iter_yielded", 0)
        """How many were drawn from the sampler, those that were not given included."""
        self.given: int = state.get("_num_yielded", 0)
        """All before this one were."""
        self.beyond: set[int] = set(state.get("_yielded_beyond", ()))
        """Those that were too, though one before was not."""
        self.sampler_state: Any = state.get("_index_sampler_state")
        """The sampler's state behind the batch before `given`."""
        self.sampler_ended: bool = state.get("_index_sampler_ended", False)
        """Whether that is the end of an epoch before."""
        self.just_given: dict[int, None] = {}
        """Those that were given and not counted yet: what one puts in, no signal comes between."""
        self._ended = False
        self._behind: dict[int, Any] = {}
        self._lock = ForkSafeLock()

    def drew(self, number: int, sampler_state: Any) -> None:
        with self._lock.held():
            self.drawn = max(self.drawn, number + 1)
            if sampler_state is not None:
                self._behind[number] = sampler_state

    def end(self, number: int) -> None:
        """There is none with this number."""
        with self._lock.held():
            self.drawn, self._ended = number, True

    @property
    def finished(self) -> bool:
        """Whether all were given."""
        with self._lock.held():
            self.count()
            return self._ended and self.given >= self.drawn

    def count(self) -> None:
        """Counts those that were just given. Wherever that is interrupted, nothing is lost of it."""
        with self._lock.held():
            for number in list(self.just_given):
                self._count(number)
                del self.just_given[number]

    def _count(self, number: int) -> None:
        if number >= self.given:
            self.beyond.add(number)
        while (given := self.given) in self.beyond:
            sampler_state = self._behind.get(given, self.sampler_state)
            # Together: behind these no signal is heard.
            self.sampler_state, self.sampler_ended, self.given = sampler_state, False, given + 1
            self.beyond.discard(given)
            self._behind.pop(given, None)

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


class MapStyleEpoch(HandedOver):
    """The batches of one epoch. The sampler is iterated in the thread that asks for them.

    Args:
        workers: Who makes batches.
        index_sampler: What is iterated.
        progress: Where it begins; told of how far it comes.
        ahead: How many batches are in the making while one is used; 0: none, they are made when
            they are asked for.
        timeout: How many seconds to wait for one.
    """

    def __init__(
        self,
        workers: Workers,
        index_sampler: Any,
        progress: Progress,
        *,
        ahead: int,
        timeout: float | None = None,
    ) -> None:
        super().__init__([workers], progress.just_given)
        self._worker = workers
        self._stateful = stateful(index_sampler)
        self._progress = progress
        self._ahead = ahead
        self._timeout = timeout
        self._indices, self._number = self._from(index_sampler, progress.given)
        self._error: Exception | None = None
        self._under_way = 0
        if ahead:
            self._submit()

    def _from(self, index_sampler: Any, position: int) -> tuple[Iterator[Any], int]:
        """What is left of a pass."""
        if self._stateful is not None and self._progress.sampler_state is not None:
            # It was loaded already, and goes on by itself.
            ended = self._progress.sampler_ended
            return skip_empty_epoch(index_sampler) if ended else iter(index_sampler), position
        indices = iter(index_sampler)
        skipped = sum(1 for _ in islice(indices, position))
        if skipped < position:
            raise ValueError(
                f"the state is of a longer sampler: {position} batches were given, here are "
                f"{skipped}"
            )
        if self._progress.drawn and self._stateful is None:
            # Drawn now, while the generators are what they were when the epoch began.
            indices = chain(list(islice(indices, 1)), indices)
        return indices, position

    def _submit(self) -> None:
        while self._error is None and self._under_way < max(1, self._ahead):
            try:
                index = next(self._indices)
                state = None if self._stateful is None else self._stateful.state_dict()
            except Exception as error:
                # In its turn, behind what was drawn before. The end of the data is an error, too.
                self._error = error
                return
            number, self._number = self._number, self._number + 1
            self._progress.drew(number, state)
            if number not in self._progress.beyond:
                self._worker.submit(number, index)
                self._under_way += 1

    def _take(self) -> tuple[int, None, Any]:
        self._worker.is_at_work = False
        self._progress.count()
        self._submit()
        if not self._under_way:
            assert self._error is not None
            self._worker.close()
            if isinstance(self._error, StopIteration):
                self._progress.end(self._number)
            raise self._error
        number, result = taken(self._worker, self._timeout)
        self._under_way -= 1
        if self._ahead:
            self._submit()
        return number, None, result

    def _is_as_before(self) -> bool:
        return self._worker.is_at_work


def taken(workers: Workers, timeout: float | None) -> tuple[int, Any]:
    """The next result.

    Raises:
        LoaderTimedOutError: There was none in time.
    """
    try:
        return workers.take(timeout)
    except TimeoutError:
        raise LoaderTimedOutError(f"the next batch was not ready within {timeout} s") from None


def stateful(index_sampler: Any) -> Any:
    """What of a sampler has a state: itself, or the one that it makes batches of."""
    for candidate in (index_sampler, getattr(index_sampler, "sampler", None)):
        if hasattr(candidate, "state_dict") and hasattr(candidate, "load_state_dict"):
            return candidate
    return None
