"""Exit of the process: stops all pipelines before the interpreter finalizes.

During finalization no thread may acquire the GIL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Protocol

from ... import _spdl_rs
from ..._locks import ForkSafeLock
from .._failures.log import log_warning


class ProcessExit(BaseException):
    """Raised in a function of a pipeline that still runs at the end of the process."""


class _Closes(Protocol):
    def close(self) -> None: ...


TIMEOUT_S = 10.0
"""The longest wait for running functions."""
_WARN_AFTER_S = 1.0
"""The wait after which a warning names the running functions."""

_runs: weakref.WeakSet[_spdl_rs.PipelineRun] = weakref.WeakSet()
_threads: weakref.WeakKeyDictionary[threading.Thread, Mapping[CodeType, Sequence[str]]]
_threads = weakref.WeakKeyDictionary()
_owners: weakref.WeakSet[_Closes] = weakref.WeakSet()
# Protects the registries above. Any thread may add to these registries.
_registry_lock = ForkSafeLock()

_exiting = threading.Event()

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def end_with_process(runs: Iterable[_spdl_rs.PipelineRun]) -> None:
    """Registers runs to be stopped at exit."""
    with _registry_lock.held():
        _runs.update(runs)


def wait_at_exit(
    threads: Iterable[threading.Thread], stages: Mapping[CodeType, Sequence[str]]
) -> None:
    """Registers threads to wait for at exit, before they start.

    Args:
        threads: The threads.
        stages: Names of stages by the code of their functions, for messages.
    """
    with _registry_lock.held():
        _threads.update(dict.fromkeys(threads, stages))


def start_all(threads: Iterable[threading.Thread]) -> None:
    """Starts threads. Must not be called where signal handlers run.

    `Thread.start` waits for each thread. If that wait is interrupted, the thread may block forever.
    """
    for thread in threads:
        thread.start()


def end_before(owner: _Closes) -> None:
    """Registers an object to be closed at exit before pipelines are stopped.

    The registry holds only a weak reference.
    """
    with _registry_lock.held():
        _owners.add(owner)


def has_begun() -> bool:
    """Returns whether the process is exiting and stops its pipelines."""
    return _exiting.is_set()


def _stop_all() -> None:
    began = time.monotonic()
    _exiting.set()
    with _registry_lock.held():
        runs, threads, owners = list(_runs), dict(_threads), list(_owners)
    # Ctrl-C only ends this wait: the interpreter finalizes in any case.
    with contextlib.suppress(KeyboardInterrupt):
        for owner in owners:
            owner.close()
    # All runs are stopped before the first wait.
    for run in runs:
        run.stop(0)
    with contextlib.suppress(KeyboardInterrupt):
        _wait_for(runs, threads, began)
    _interrupt(threads)
    with contextlib.suppress(KeyboardInterrupt):
        if _spdl_rs.Workers.forbid_python() and sys.version_info < (3, 14):
            log_warning(
                "functions of pipelines are still running, and the process exits without waiting any longer; "
                "Python up to 3.13 may crash if one of them resumes during finalization"
            )


def _wait_for(
    runs: Sequence[_spdl_rs.PipelineRun],
    threads: Mapping[threading.Thread, Mapping[CodeType, Sequence[str]]],
    began: float,
) -> None:
    """Waits for at most `TIMEOUT_S`, and logs a warning after `_WARN_AFTER_S`."""
    if not _wait_until(runs, threads, began + _WARN_AFTER_S):
        functions = "; ".join(_running_functions(threads)) or "work of the native module"
        log_warning(
            f"the process is exiting and waits at most {TIMEOUT_S:.0f} s for running functions of "
            f"pipelines: {functions}"
        )
        _wait_until(runs, threads, began + TIMEOUT_S)


def _wait_until(
    runs: Sequence[_spdl_rs.PipelineRun], threads: Iterable[threading.Thread], deadline: float
) -> bool:
    """Waits until a deadline. Returns whether all runs and threads have ended."""
    ended = True
    for run in runs:
        ended = run.stop(max(0.0, deadline - time.monotonic())) and ended
    for thread in threads:
        # A thread whose start was interrupted may have no identifier.
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
            ended = ended and not thread.is_alive()
    return ended


def _interrupt(threads: Iterable[threading.Thread]) -> None:
    """Raises `ProcessExit` in functions that still run Python code.

    Up to Python 3.13, the interpreter unwinds threads that run during finalization, which the native module
    cannot survive. Functions that wait for a lock or in a library receive the exception when they return to
    Python code. A return to Python code during finalization may crash; only an immediate exit would avoid
    the crash, but the exit status is unknown here.
    """
    numbers = [thread.ident for thread in threads if thread.is_alive() and thread.ident is not None]
    if not numbers:
        return
    try:
        import ctypes
    except ImportError:
        # Some builds of Python have no ctypes.
        return
    for number in numbers:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(number), ctypes.py_object(ProcessExit)
        )


def _running_functions(
    threads: Mapping[threading.Thread, Mapping[CodeType, Sequence[str]]],
) -> Iterator[str]:
    """Describes the running function of each thread, with the stages that it belongs to."""
    frames = sys._current_frames()
    for thread, stages in threads.items():
        # The identifier of an ended thread may be reused.
        frame = frames.get(thread.ident or 0) if thread.is_alive() else None
        called = list(_outermost_first(frame))
        known = [frame for frame in called if frame.f_code in stages]
        others = [frame for frame in called if not _is_of_package(frame)]
        for frame in (known or others)[:1]:
            code = frame.f_code
            stage = f"stage {' or '.join(stages[code])}, " if known else ""
            place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
            yield f"{stage}{code.co_name} at {place}"


def _outermost_first(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _is_of_package(frame: FrameType) -> bool:
    """Returns whether a frame belongs to this package or to `threading`."""
    file = frame.f_code.co_filename
    return file == threading.__file__ or file.startswith(_PACKAGE)


atexit.register(_stop_all)
