"""Locks that forks and interrupts cannot leave locked."""

from __future__ import annotations

import contextlib
import os
import threading
import time
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


# After so long a wait looks itself: Ctrl-C may have come to whoever would have passed it on.
_LOOK_S = 0.05


class Latch:
    """Is opened once. Any thread may wait for that.

    Ctrl-C may interrupt a wait at any place and keeps nobody from opening it. In the wait of a
    `threading.Event` it may leave a lock behind that whoever sets the event needs.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """To be called once, or by one thread at a time."""
        if not self._is_open:
            self._is_open = True
            self._closed.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, for so many seconds at most. Says whether it is open."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_open:
            left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
            if left <= 0:
                break
            if self._closed.acquire(timeout=left):
                self._closed.release()
        return self._is_open
