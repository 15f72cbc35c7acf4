"""Batches loaded by worker processes, for code that holds the GIL."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.context
import pickle
import signal
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Any

from ..pipeline._failures.child_process import (
    check_can_be_imported,
    exit_code_in_words,
    exit_code_of,
    with_advice,
)
from ..pipeline._processes import exit as _exit
from ..pipeline._processes.remote_errors import ExceptionWrapper
from ..pipeline._processes.worker_process import end_with_parent
from ..torch._map_style import MapStyleFetch
from ._thread_workers import ThreadDataLoader

# How long a process of a broken pool may take to end.
_TERMINATION_S = 1.0
# How long the processes may take to end after the last batch of an epoch.
_END_S = 60.0

# The pools of this process, and their processes, also those that outlive their pool.
_pools: weakref.WeakSet[_PoolFetch] = weakref.WeakSet()
_processes: weakref.WeakSet[Any] = weakref.WeakSet()


class ProcessDataLoader(ThreadDataLoader):
    """`ThreadDataLoader` with a process pool for each epoch.

    The data set and `collate_fn` are pickled once in this process and unpickled once in each worker
    process. A thread waits for each process.
    """

    def __init__(
        self,
        *arguments: Any,
        context: multiprocessing.context.BaseContext,
        init_concurrency: int | None,
        **options: Any,
    ) -> None:
        check_can_be_imported(context)
        super().__init__(*arguments, **options)
        self._context = context
        self._init_concurrency = init_concurrency
        batched = self.batch_sampler is not None
        try:
            self._pickled = pickle.dumps(MapStyleFetch(self.dataset, self.collate_fn, batched))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _cannot_be_sent(self.dataset, error) from error

    def _fetch(self, pin: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        init_semaphore = None
        if self._init_concurrency is not None:
            init_semaphore = self._context.BoundedSemaphore(self._init_concurrency)
        executor = ProcessPoolExecutor(
            self.num_workers,
            mp_context=self._context,
            initializer=end_with_parent,
            initargs=(_begin, (self._pickled, init_semaphore)),
        )
        # Starts the processes now, before more threads exist: a fork does not copy threads.
        executor.submit(int)
        return _PoolFetch(executor, pin)


def _cannot_be_sent(dataset: Any, error: Exception) -> TypeError:
    """Returns the exception for a data set or a `collate_fn` that cannot be pickled."""
    try:
        pickle.dumps(dataset)
    except Exception:
        what = "dataset"
    else:
        what = "collate_fn"
    return TypeError(
        f"cannot pickle {what} for worker processes: {error}; define functions and classes at the top "
        "level of a module, not in a function and not as lambdas, or omit multiprocessing_context: "
        "worker threads need no pickling"
    )


class _PoolFetch:
    """Requests batches from a process pool and waits for them."""

    def __init__(self, executor: ProcessPoolExecutor, pin: Callable[[Any], Any] | None) -> None:
        self._executor = executor
        self._pin = pin
        # A broken pool drops its references to processes.
        self._processes: dict[int, Any] = {}
        self._has_results = False
        _note_processes(executor)
        _pools.add(self)
        _register_once()

    def __call__(self, index: Any) -> Any:
        broken: tuple[BaseException | None] | None = None
        made = batch = None
        try:
            made = self._executor.submit(_make, index)
            self._processes.update(_note_processes(self._executor))
            batch = made.result()
        except BrokenProcessPool as error:
            # All waiting callers receive this same exception object, whose traceback would keep their
            # frames alive.
            broken, made = (error.__cause__,), None
        if broken is not None:
            raise BrokenProcessPool(self._what_ended()) from broken[0]
        self._has_results = True
        if isinstance(batch, ExceptionWrapper):
            raise batch.unwrap()
        return batch if self._pin is None else self._pin(batch)

    def _what_ended(self) -> str:
        """Describes which processes have ended, and how."""
        processes = dict(self._processes)
        # The pool terminates the remaining processes with SIGTERM.
        codes = {pid: exit_code_of(process, _TERMINATION_S) for pid, process in processes.items()}
        ended = [
            f"process {pid} {exit_code_in_words(code, at_start=not self._has_results)}"
            for pid, code in codes.items()
            if code not in (None, 0, -signal.SIGTERM)
        ]
        what = "; ".join(ended) or f"one of the processes {list(codes)} ended"
        if -signal.SIGKILL in codes.values():
            what += " (the system kills processes if memory runs out)"
        return f"{what}; the loader needs all its worker processes: create a new iterator"

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Waits until all processes have ended, also those that are still starting, for a bounded time."""
        processes = self._processes | _note_processes(self._executor)
        self.close()
        deadline = time.monotonic() + _END_S
        for process in processes.values():
            exit_code_of(process, max(0.0, deadline - time.monotonic()))


def _note_processes(executor: ProcessPoolExecutor) -> dict[int, Any]:
    """Returns the processes of a pool, and stores them for the exit of this process."""
    processes: dict[int, Any] = dict(vars(executor).get("_processes") or {})
    _processes.update(processes.values())
    return processes


@functools.cache
def _register_once() -> None:
    def forget() -> None:
        _pools.clear()
        _processes.clear()

    _exit.call_before_executors_end(_end_processes, forget=forget)


def _end_processes() -> None:
    """Ends all processes at exit, where Python would wait for running functions without a limit."""
    for pool in list(_pools):
        pool.close()
    processes = list(_processes)
    deadline = time.monotonic() + _exit.TIMEOUT_S
    # Ctrl-C only ends this wait.
    with contextlib.suppress(KeyboardInterrupt):
        for process in processes:
            exit_code_of(process, max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.exitcode is None:
            process.kill()


_fetch: MapStyleFetch | Exception | None = None
"""The fetch function of a worker process, or the exception raised while it was unpickled."""


def _begin(pickled: bytes, init_semaphore: Any) -> None:
    global _fetch
    with nullcontext() if init_semaphore is None else init_semaphore:
        try:
            _fetch = pickle.loads(pickled)
        except AttributeError as error:
            _fetch = with_advice(error)
        except Exception as error:
            # The first request raises this exception. If the initializer raised it, the pool would break
            # without reporting the reason.
            _fetch = error


def _make(index: Any) -> Any:
    """Returns a batch or a wrapped exception. An exception that cannot be unpickled would break the pool."""
    assert _fetch is not None, "the initializer runs first"
    if isinstance(_fetch, Exception):
        return ExceptionWrapper(_fetch)
    try:
        return _fetch(index)
    except BaseException as error:
        return ExceptionWrapper(error)
