"""Suspends threads that wait in system calls, until the process ends.

Up to Python 3.13, a thread that returns to Python code during finalization is unwound. The native module cannot
survive that: the process would abort, with a wrong exit status. An immediate exit would avoid the abort, but an
`atexit` function does not know the exit status.

A signal interrupts the system call of a thread. Python's handler, which needs no GIL, then writes to the wakeup
file descriptor. This descriptor is a full pipe here, so the handler never returns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable
from typing import Protocol

_TIMEOUT_S = 0.1
"""The longest wait for the threads to enter the signal handler."""


class _Thread(Protocol):
    @property
    def ident(self) -> int | None: ...
    @property
    def native_id(self) -> int | None: ...


def suspend(threads: Iterable[_Thread]) -> None:
    """Suspends those threads that wait in a system call. Must be called at exit, by the main thread.

    Threads that run are not suspended, because they may hold a lock of the C library. Has no effect on systems
    other than Linux.
    """
    waiting = [thread for thread in threads if _is_waiting(thread)]
    if not waiting or threading.current_thread() is not threading.main_thread():
        return
    # No thread closes the pipe.
    pipe = _full_pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Programs rarely use this signal, whose default action is to ignore the signal.
    signal.signal(signal.SIGURG, _do_nothing)
    descriptor = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    os.set_blocking(pipe, True)
    for thread in waiting:
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(thread.ident or 0, signal.SIGURG)
    deadline = time.monotonic() + _TIMEOUT_S
    while not all(_is_writing(thread, pipe) for thread in waiting):
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    signal.set_wakeup_fd(descriptor)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _full_pipe() -> int:
    """Returns the writing end of a full pipe."""
    _, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (1 << 16, 1):
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, bytes(size)):
                pass
    return writer


def _is_waiting(thread: _Thread) -> bool:
    # The state follows the name of the thread, which may contain parentheses.
    return _read(thread, "stat").rpartition(")")[2].split()[:1] == ["S"]


def _is_writing(thread: _Thread, descriptor: int) -> bool:
    # The number of the system call and its arguments; "running" if the thread runs.
    return _read(thread, "syscall").split()[1:2] == [hex(descriptor)]


def _read(thread: _Thread, file: str) -> str:
    """Reads a file of a thread in `/proc`; an empty text if there is none."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/self/task/{thread.native_id}/{file}") as opened,
    ):
        return opened.read()
    return ""


def _do_nothing(*_: object) -> None:
    pass
