"""How a batch comes to whoever asks for it: counted if, and only if, it does."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from .._errors import interrupted
from .._locks import ForkSafeLock
from ._workers import Raised, Workers


class HandedOver(ABC):
    """Iterates batches, each given to one of the threads that ask; one thread after the other is
    served.

    A batch that Ctrl-C keeps from a loop is not counted. The iterator does not have it any more, and
    so refuses to go on: the state of the loader does.

    Args:
        workers: Who makes batches.
        just_given: Takes in what was given: its place, and what is to be known of it.
    """

    def __init__(self, workers: Sequence[Workers], just_given: dict[int, Any]) -> None:
        self._workers = workers
        self._just_given = just_given
        self._asking = ForkSafeLock()
        # By thread: whether it has taken a batch, maybe, and not given it.
        self._in_hand: dict[int, bool] = {}

    @abstractmethod
    def _take(self) -> tuple[int, Any, Any]:
        """Waits for the next batch: its place, what is to be known of it, and it or `Raised`."""

    @abstractmethod
    def _is_as_before(self) -> bool:
        """Whether a `_take` that was interrupted has changed nothing."""

    def __iter__(self) -> HandedOver:
        return self

    def __next__(self) -> Any:
        thread = threading.get_ident()
        with self._asking.held():
            place, known, result = self._taken_by(thread)
        if isinstance(result, Raised):
            self._in_hand[thread] = False
            self._just_given[place] = known
            raise result.error
        # Python hears signals behind calls. There is none from here to the loop.
        self._in_hand[thread] = False
        self._just_given[place] = known
        return result

    def _taken_by(self, thread: int) -> tuple[int, Any, Any]:
        if self._in_hand.get(thread):
            for worker in self._workers:
                worker.close()
            raise interrupted()
        self._in_hand[thread] = True
        try:
            return self._take()
        except Exception:
            # The end of the data, say, or that it took too long.
            self._in_hand[thread] = False
            raise
        except BaseException:
            self._in_hand[thread] = not self._is_as_before()
            raise
