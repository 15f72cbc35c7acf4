"""One thread at a time, in this process and in its forks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class Exclusive:
    """What one thread at a time may do, for state that several threads change.

    In a fork of the process it is free: threads that held it are not there. A handler of a signal,
    or a finalizer, that runs amid the work of its own thread gets in as well. A copy, a pickled one
    too, is free and of its own.

    >>> exclusive = Exclusive()
    >>> with exclusive.held():
    ...     with exclusive.held():
    ...         print("still this thread")
    still this thread
    """

    def __init__(self) -> None:
        # By process. Of several threads that come first, one puts its lock in: that is one step.
        self._locks: dict[int, threading.RLock] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Waits until no other thread is within."""
        process = os.getpid()
        lock = self._locks.get(process)
        if lock is None:
            lock = self._locks.setdefault(process, threading.RLock())
        with lock:
            yield

    def __reduce__(self) -> tuple[type[Exclusive], tuple[()]]:
        return Exclusive, ()
