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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import NoReturn, Protocol

from ... import _spdl_rs
from ..._errors import ForkedProcessError
from ..._locks import ForkSafeLock
from .._failures.failure import ProcessExit
from .._failures.log import log_warning
from .suspend import suspend


class _Closes(Protocol):
    def close(self) -> None: ...


TIMEOUT_S = 0.6
"""The longest wait for running functions. A warning then names those that are still running."""
_INTERRUPTED_S = 0.2
"""The longest wait for running functions after they were interrupted."""

_runs: weakref.WeakSet[_spdl_rs.PipelineRun] = weakref.WeakSet()
_threads: weakref.WeakKeyDictionary[threading.Thread, Mapping[CodeType, Sequence[str]]]
_threads = weakref.WeakKeyDictionary()
_owners: weakref.WeakSet[_Closes] = weakref.WeakSet()
# Protects the registries above. Any thread may add to these registries.
_registry_lock = ForkSafeLock()

_exiting = threading.Event()
_forked_in = "a function of a pipeline"
"""The function of a pipeline that has forked this process, if this process is a forked child."""
_began = 0.0
"""When the process began to exit."""

_ASYNCIO = os.path.join(os.path.dirname(threading.__file__), "asyncio", "")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class PipelineThread(threading.Thread):
    """A daemon thread that runs functions of pipelines, and ends silently by `ProcessExit`."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        super().__init__(name=name, target=target, daemon=True)

    def run(self) -> None:
        # The function may have returned before the exception was raised.
        with contextlib.suppress(ProcessExit):
            super().run()


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


def call_before_executors_end(
    function: Callable[[], None], *, forget: Callable[[], None]
) -> None:
    """Registers a function to be called at exit, before Python waits for the executors created until now.

    Python has no public API for this. `atexit` functions are called after that wait.

    Args:
        function: Is called at exit.
        forget: Is called in a forked child, where the executors of the parent do not run.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        # If the process is already exiting, no call can be started.
        with contextlib.suppress(RuntimeError):
            register(function)


def has_begun() -> bool:
    """Returns whether the process is exiting and stops its pipelines."""
    return _exiting.is_set()


def begin() -> float:
    """Reports that the process is exiting. Returns the time of the first call."""
    global _began
    if not _exiting.is_set():
        _began = time.monotonic()
        _exiting.set()
    return _began


def _stop_all() -> None:
    deadline = begin() + TIMEOUT_S
    with _registry_lock.held():
        runs, threads, owners = list(_runs), dict(_threads), list(_owners)
    # Ctrl-C only ends this wait: the interpreter finalizes in any case.
    with contextlib.suppress(KeyboardInterrupt):
        for owner in owners:
            owner.close()
    # All runs are stopped before the first wait.
    for run in runs:
        run.stop(0)
    ended = False
    with contextlib.suppress(KeyboardInterrupt):
        ended = _wait_until(runs, threads, deadline)
    if not ended:
        functions = "; ".join(_running_functions(threads)) or "work of the native module"
        log_warning(
            f"the process exits while functions of pipelines are still running: {functions}; to wait for them, "
            "stop the pipeline before the program ends"
        )
    _interrupt(threads)
    with contextlib.suppress(KeyboardInterrupt):
        if _spdl_rs.Workers.forbid_python(_INTERRUPTED_S) and sys.version_info < (3, 14):
            suspend([thread for thread in threads if thread.is_alive()])


def end_forked_child(function: str | None = None) -> NoReturn:
    """Ends a forked child process in which a function of a pipeline has returned.

    The other threads of the pipeline do not exist in the child, so that it would hang.
    """
    error = ForkedProcessError(
        f"cannot continue {function or _forked_in} in a forked child process: the pipeline runs in the parent "
        "process only; end the child with os._exit, or start processes with subprocess or multiprocessing"
    )
    # There is no caller to raise the exception in.
    with contextlib.suppress(Exception):
        sys.excepthook(type(error), error, None)
        sys.stderr.flush()
    os._exit(1)


def _note_fork() -> None:
    """Stores which function of a pipeline has forked this process."""
    global _forked_in
    thread = threading.current_thread()
    stages = _threads.get(thread)
    if stages is not None:
        _forked_in = next(_running_functions({thread: stages}), _forked_in)


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
    """Raises `ProcessExit` in functions that still run.

    Functions that wait for a lock or in a library receive the exception when they return to Python code.
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
        # The function of a stage may belong to this package, and call a function of the user.
        of_users = [frame for frame in known if not _is_of_package(frame)] or others
        for frame in (of_users or known)[:1]:
            code = frame.f_code
            stage = f"stage {' or '.join(stages[known[0].f_code])}, " if known else ""
            place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
            yield f"{stage}{code.co_name} at {place}"


def _outermost_first(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _is_of_package(frame: FrameType) -> bool:
    """Returns whether a frame belongs to this package, to `threading` or to `asyncio`."""
    file = frame.f_code.co_filename
    return file == threading.__file__ or file.startswith((_PACKAGE, _ASYNCIO))


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
