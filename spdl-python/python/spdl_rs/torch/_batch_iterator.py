"""Base class of the iterators over batches, safe against signals and shared by threads."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from .._errors import interrupted
from .._locks import ForkSafeLock
from ._workers import Raised, Workers


class BatchIterator(ABC):
    """Iterates batches. Threads may share the iterator; each batch goes to one thread.

    A batch is counted only if `next` returns it, or raises its exception. If Ctrl-C interrupts `next` while
    this thread makes a batch of a map-style data set, the following call makes the batch again. Otherwise
    the batch in transit is lost to this iterator, and later calls raise `StoppedError`. A new iterator from
    the loader's state delivers that batch.

    Args:
        workers: The workers, which make the batches.
        uncounted: Receives the delivered batches, by position, before they are counted.
    """

    def __init__(self, workers: Sequence[Workers], uncounted: dict[int, Any]) -> None:
        self._workers = workers
        self._uncounted = uncounted
        self._lock = ForkSafeLock()
        # Maps a thread to true while it may have taken a batch that `next` has not returned.
        self._in_transit: dict[int, bool] = {}

    @abstractmethod
    def _take(self) -> tuple[int, Any, Any]:
        """Waits for the next batch. Returns its position, data to count it, and the batch or a `Raised`."""

    @abstractmethod
    def _can_take_again(self) -> bool:
        """Returns true if an interrupted `_take` has changed nothing."""

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        thread = threading.get_ident()
        with self._lock.held():
            place, known, result = self._take_for(thread)
        if isinstance(result, Raised):
            self._in_transit[thread] = False
            self._uncounted[place] = known
            raise result.error
        # Python handles signals after calls. There is no call from here to the return.
        self._in_transit[thread] = False
        self._uncounted[place] = known
        return result

    def _take_for(self, thread: int) -> tuple[int, Any, Any]:
        if self._in_transit.get(thread):
            for worker in self._workers:
                worker.close()
            raise interrupted()
        self._in_transit[thread] = True
        try:
            return self._take()
        except Exception:
            # No batch was taken, for example at the end of the data or after a timeout.
            self._in_transit[thread] = False
            raise
        except BaseException:
            self._in_transit[thread] = not self._can_take_again()
            raise
