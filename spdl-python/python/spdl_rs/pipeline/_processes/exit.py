"""The end of the process: every pipeline ends before, as no thread may ask for the GIL afterwards."""

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


class ProcessEnds(BaseException):
    """The process ends, and has waited for this function for long enough."""


class _Closes(Protocol):
    def close(self) -> None: ...


SECONDS = 10.0
"""How long functions that are under way are waited for at most."""
_SILENT_SECONDS = 1.0
"""After so long it is said what is waited for."""

_runs: weakref.WeakSet[_spdl_rs.PipelineRun] = weakref.WeakSet()
_threads: weakref.WeakKeyDictionary[threading.Thread, Mapping[CodeType, Sequence[str]]]
_threads = weakref.WeakKeyDictionary()
_owners: weakref.WeakSet[_Closes] = weakref.WeakSet()
# Around these, to which any thread may add.
_registry_lock = ForkSafeLock()

_begun = threading.Event()

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def end_with_process(runs: Iterable[_spdl_rs.PipelineRun]) -> None:
    """Takes in what is to be ended."""
    with _registry_lock.held():
        _runs.update(runs)


def wait_at_exit(
    threads: Iterable[threading.Thread], stages: Mapping[CodeType, Sequence[str]]
) -> None:
    """Takes in threads to wait for, before they start, and of which stages functions are that they
    may call."""
    with _registry_lock.held():
        _threads.update(dict.fromkeys(threads, stages))


def start_all(threads: Iterable[threading.Thread]) -> None:
    """Starts threads. Not to be called where signals are heard: `start` waits for each, and if that is
    interrupted, the thread is there and may be kept from its first step for ever."""
    for thread in threads:
        thread.start()


def end_before(owner: _Closes) -> None:
    """Takes in what is closed before pipelines are ended, where it is still there."""
    with _registry_lock.held():
        _owners.add(owner)


def has_begun() -> bool:
    """Whether the process ends, and pipelines with it."""
    return _begun.is_set()


def _end_all() -> None:
    began = time.monotonic()
    _begun.set()
    with _registry_lock.held():
        runs, threads, owners = list(_runs), dict(_threads), list(_owners)
    # Ctrl-C ends a wait, and no more than that: Python ends under threads that go on all the same.
    with contextlib.suppress(KeyboardInterrupt):
        for owner in owners:
            owner.close()
    # None waits for another one to end.
    for run in runs:
        run.stop(0)
    with contextlib.suppress(KeyboardInterrupt):
        _wait_for(runs, threads, began)
    _interrupt(threads)
    with contextlib.suppress(KeyboardInterrupt):
        if _spdl_rs.Workers.forbid_python() and sys.version_info < (3, 14):
            log_warning(
                "functions of pipelines are under way still, and the process does not wait for them "
                "any longer; if one goes on before it is over, Python up to 3.13 crashes"
            )


def _wait_for(
    runs: Sequence[_spdl_rs.PipelineRun],
    threads: Mapping[threading.Thread, Mapping[CodeType, Sequence[str]]],
    began: float,
) -> None:
    """Waits for as long as is allowed, and says so."""
    if not _have_ended(runs, threads, began + _SILENT_SECONDS):
        waits = "; ".join(_under_way(threads)) or "work of the native module"
        log_warning(
            f"the process ends, and waits for functions of pipelines that are under way, for "
            f"{SECONDS:.0f} s at most: {waits}"
        )
        _have_ended(runs, threads, began + SECONDS)


def _have_ended(
    runs: Sequence[_spdl_rs.PipelineRun], threads: Iterable[threading.Thread], deadline: float
) -> bool:
    """Waits until then at most."""
    ended = True
    for run in runs:
        ended = run.stop(max(0.0, deadline - time.monotonic())) and ended
    for thread in threads:
        # One that was interrupted before its start has no number, and never had one.
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
            ended = ended and not thread.is_alive()
    return ended


def _interrupt(threads: Iterable[threading.Thread]) -> None:
    """Raises `ProcessEnds` in functions that are under way, where they run Python code: up to version
    3.13, Python unwinds threads that run on when it ends, and the native module cannot bear that.
    Those that wait, for a lock or in a library, hear of it when they come back: in time where that is
    before Python ends. Where it is while Python ends, nothing helps: only ending the process at once
    would, and its exit status is not known here."""
    numbers = [thread.ident for thread in threads if thread.is_alive() and thread.ident is not None]
    if not numbers:
        return
    try:
        import ctypes
    except ImportError:
        # There are builds of Python without it.
        return
    for number in numbers:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(number), ctypes.py_object(ProcessEnds)
        )


def _under_way(
    threads: Mapping[threading.Thread, Mapping[CodeType, Sequence[str]]],
) -> Iterator[str]:
    """The functions that threads are in, and of which stages they are."""
    frames = sys._current_frames()
    for thread, stages in threads.items():
        # Those that have ended have no number any more that is theirs.
        frame = frames.get(thread.ident or 0) if thread.is_alive() else None
        called = list(_outermost_first(frame))
        known = [frame for frame in called if frame.f_code in stages]
        others = [frame for frame in called if not _is_ours(frame)]
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


def _is_ours(frame: FrameType) -> bool:
    """Whether it is of what calls the user's functions."""
    file = frame.f_code.co_filename
    return file == threading.__file__ or file.startswith(_HERE)


atexit.register(_end_all)
