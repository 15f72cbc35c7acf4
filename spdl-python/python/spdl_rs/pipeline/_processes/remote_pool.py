"""Process pools of this process that a worker process uses, because it may not start processes itself.

Daemon processes of `multiprocessing` cannot have child processes. A `RemotePool` in the worker sends each call
over a pipe. A thread of the parent submits it to the pool, and sends the outcome back.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import pickle
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from .remote_errors import ExceptionWrapper, WorkerError, pickled_message

T = TypeVar("T")


def serve(
    connection: Connection,
    pools: Sequence[concurrent.futures.ProcessPoolExecutor],
    worker_end: Sequence[Any],
) -> None:
    """Starts a thread that serves a worker's calls until the worker ends, and then ends the pools.

    Args:
        connection: The pipe to the worker.
        pools: A `RemotePool` contains an index of this sequence.
        worker_end: Objects for `multiprocessing.connection.wait` that are ready when the worker has ended.
    """
    arguments = (connection, pools, worker_end)
    threading.Thread(target=_serve, args=arguments, name="spdl_pools", daemon=True).start()


def connect(connection: Connection) -> None:
    """Connects all `RemotePool`s of this process to the parent."""
    global _calls
    _calls = _Calls(connection)


class RemotePool(concurrent.futures.Executor):
    """A process pool of the parent process.

    Args:
        pool: The index of the pool.
    """

    has_own_objects = True

    def __init__(self, pool: int) -> None:
        self._pool = pool

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        if _calls is None:
            raise RuntimeError("a process pool of another process cannot be used in this process")
        return _calls.submit(self._pool, pickled_message(functools.partial(fn, *args, **kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing: the parent ends the pool when this process ends."""


class _Calls:
    """The calls of this process on pools of its parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._ended = False
        threading.Thread(target=self._read, name="spdl_pool_reader", daemon=True).start()

    def submit(self, pool: int, call: bytes) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            if self._ended:
                raise _ended()
            self._number += 1
            self._waiting[self._number] = future
            try:
                self._connection.send((self._number, pool, call))
            except OSError:
                del self._waiting[self._number]
                raise _ended() from None
        return future

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, outcome = self._connection.recv()
                with self._lock:
                    future = self._waiting.pop(number)
                _finish(future, outcome)
        with self._lock:
            self._ended = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(_ended())


_calls: _Calls | None = None
"""In a worker process: the calls on pools of the parent, after `connect`."""


def _ended() -> WorkerError:
    return WorkerError("the main process has ended its process pools")


def _finish(future: concurrent.futures.Future[Any], outcome: bytes) -> None:
    """Sets the result of a call, or its exception."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = pickle.loads(outcome)
    except Exception as error:
        future.set_exception(error)
        return
    if isinstance(value, ExceptionWrapper):
        future.set_exception(value.unwrap())
    else:
        future.set_result(value)


def _serve(
    connection: Connection,
    pools: Sequence[concurrent.futures.ProcessPoolExecutor],
    worker_end: Sequence[Any],
) -> None:
    sending = threading.Lock()

    def reply(number: int, future: concurrent.futures.Future[bytes]) -> None:
        try:
            outcome = future.result()
        except BaseException as error:
            outcome = pickle.dumps(ExceptionWrapper(error))
        with contextlib.suppress(OSError), sending:
            connection.send((number, outcome))

    with contextlib.suppress(EOFError, OSError):
        while connection in wait([connection, *worker_end]):
            number, pool, call = connection.recv()
            try:
                future = pools[pool].submit(_outcome, call)
            except RuntimeError as error:
                future = concurrent.futures.Future()
                future.set_exception(error)
            future.add_done_callback(functools.partial(reply, number))
    for pool in pools:
        # No caller waits for the results.
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _outcome(call: bytes) -> bytes:
    """In a process of a pool: makes a call. Returns its pickled result or `ExceptionWrapper`."""
    try:
        return pickled_message(pickle.loads(call)())
    except Exception as error:
        return pickle.dumps(ExceptionWrapper(error))
