"""The functions of a `Loader` in worker processes: `executor="processes"`."""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import _spdl_rs
from ._errors import ForkedProcessError
from ._functions import KEYS, InTurn, note, running
from ._locks import ForkSafeLock

if TYPE_CHECKING:
    from .pipeline._processes.worker_process import Parent

# How long a call waits before it looks again for an idle process.
_POLL_S = 0.01


class FunctionProcesses:
    """Calls functions in worker processes. Arrays are copied through shared memory.

    A process starts when a call finds none idle. The processes end with this object, after a failure that is not
    an exception of a function, and with this process.

    Args:
        functions: The functions, which are pickled.
        count: The maximum number of processes.
    """

    def __init__(self, functions: InTurn, count: int) -> None:
        self._functions, self._count = functions, count
        self._lock = ForkSafeLock()
        self._owner = os.getpid()
        self._idle: list[_Worker] = []
        self._live = 0
        self._started = 0

    def __call__(self, batch: dict[str, Any], seeds: list[list[int]]) -> Any:
        keys = batch[KEYS]
        with running("functions in worker processes"):
            try:
                worker = self._take()
                try:
                    result, error = worker.call(batch, seeds)
                except BaseException:
                    # The process has ended, or its answer was not read.
                    worker.close()
                    self._release(None)
                    raise
            except Exception as error:
                note(error, f"call for the samples {keys[0]!r} to {keys[-1]!r}")
                raise
        self._release(worker)
        if error is not None:
            # With the traceback of the process as its cause.
            raise error
        return result

    def _take(self) -> _Worker:
        """Returns an idle process, or starts one.

        Raises:
            ForkedProcessError: This process is a forked child of the process that started the processes.
            TypeError: The functions cannot be pickled.
            RuntimeError: The main module cannot be imported by the process.
        """
        while True:
            with self._lock.held():
                if self._started and self._owner != os.getpid():
                    raise ForkedProcessError(
                        "cannot call the functions of a Loader in a forked child process: only the parent can use "
                        'their worker processes; start the child with the method "spawn"'
                    )
                if self._idle:
                    return self._idle.pop()
                if self._live < self._count:
                    self._owner = os.getpid()
                    self._live += 1
                    self._started += 1
                    number = self._started
                    break
            # An epoch that was left early still uses the processes.
            time.sleep(_POLL_S)
        try:
            return _Worker(self._functions, number)
        except BaseException:
            self._release(None)
            raise

    def _release(self, worker: _Worker | None) -> None:
        """Returns a process; `None` if it has ended."""
        with self._lock.held():
            if worker is None:
                self._live -= 1
            else:
                self._idle.append(worker)


class _Worker:
    """A worker process, and the memory that it shares with this process."""

    def __init__(self, functions: InTurn, number: int) -> None:
        # These modules are imported lazily, because importing multiprocessing is slow.
        from .pipeline._processes.arena import CallReader, CallWriter
        from .pipeline._processes.random_state import RandomState
        from .pipeline._processes.shared_memory import SharedMemory
        from .pipeline._processes.worker_process import WorkerProcess, start_method

        calls, results = SharedMemory(1, "calls"), SharedMemory(1, "results")
        self._writer, self._reader = CallWriter(calls), CallReader(results)
        self._process = WorkerProcess(
            _serve,
            (functions, RandomState(), number),
            name=f"process {number} for the functions of a Loader",
            context=start_method(),
            shared=(calls, results),
        )

    def call(self, batch: Any, seeds: list[list[int]]) -> tuple[Any, Exception | None]:
        """Returns the result of the functions, or their exception.

        Raises:
            WorkerError: The process has ended.
            Exception: The exception that ended the process.
        """
        self._process.send(("call", *self._writer.write(batch, _no_wait), seeds))
        kind, cpu_s, *rest = self._process.receive()
        _spdl_rs.add_cpu_time(cpu_s)
        if kind == "result":
            return self._reader.read(*rest), None
        wrapped, notes = rest
        error = wrapped.unwrap()
        # An exception that cannot be pickled has lost its notes.
        for text in notes:
            if text not in getattr(error, "__notes__", []):
                note(error, text)
        return None, error

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def _no_wait(timeout: float) -> None:
    """Is never called, because the memory grows."""


def _serve(
    parent: Parent, functions: InTurn, random_state: Any, number: int, shared: tuple[Any, Any]
) -> None:
    """The main function of a worker process."""
    from .pipeline._processes.arena import CallReader, CallWriter
    from .pipeline._processes.remote_errors import ExceptionWrapper

    reader, writer = CallReader(shared[0]), CallWriter(shared[1])
    random_state.restore_for(number)
    _use_one_thread()
    while True:
        _, *written, seeds = parent.receive()
        kind, answer = "result", ()
        began, began_cpu_s = _spdl_rs.Trace.now(), time.process_time()
        try:
            answer = writer.write(functions(reader.read(*written), seeds), _no_wait)
        except Exception as error:
            kind, answer = "raised", (ExceptionWrapper(error), getattr(error, "__notes__", []))
        if began is not None:
            _spdl_rs.Trace.span("functions", began, True, [])
        parent.send((kind, time.process_time() - began_cpu_s, *answer))


def _use_one_thread() -> None:
    """Makes PyTorch compute on one thread, as in its own worker processes: other processes use the other CPUs."""
    if "torch" in sys.modules:
        importlib.import_module("torch").set_num_threads(1)
    else:
        # For functions that import PyTorch later.
        os.environ["OMP_NUM_THREADS"] = "1"
