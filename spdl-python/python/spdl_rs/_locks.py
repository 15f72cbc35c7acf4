"""Locks that stay usable after a fork and after an interrupted wait."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator


class ForkSafeLock:
    """A reentrant lock that is free in a forked child process.

    Threads that held the lock do not exist in the child. The lock is reentrant because signal handlers
    and finalizers may run while their own thread holds it. Copies, including unpickled copies, are
    separate unlocked locks.

    >>> lock = ForkSafeLock()
    >>> with lock.held():
    ...     with lock.held():
    ...         print("reentered")
    reentered
    """

    def __init__(self) -> None:
        # One lock per process. `setdefault` is atomic, so concurrent first callers get the same lock.
        self._locks: dict[int, threading.RLock] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Acquires the lock for a `with` block."""
        process = os.getpid()
        lock = self._locks.get(process)
        if lock is None:
            lock = self._locks.setdefault(process, threading.RLock())
        with lock:
            yield

    def __reduce__(self) -> tuple[type[ForkSafeLock], tuple[()]]:
        return ForkSafeLock, ()


# A waiting thread polls at this interval, because Ctrl-C may have interrupted the thread that woke it.
_POLL_INTERVAL_S = 0.05


class Latch:
    """A one-shot event: any thread may wait until it is opened.

    Unlike `threading.Event`, a wait that Ctrl-C interrupts cannot leave a lock behind that blocks the
    thread which opens the latch.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Opens the latch. Concurrent calls are not allowed."""
        if not self._is_open:
            self._is_open = True
            self._closed.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for at most `timeout` seconds. Returns whether the latch is open."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_open:
            left = _POLL_INTERVAL_S
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
            if left <= 0:
                break
            if self._closed.acquire(timeout=left):
                self._closed.release()
        return self._is_open
