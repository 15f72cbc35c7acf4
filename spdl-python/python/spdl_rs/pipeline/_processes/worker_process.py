"""Worker processes that end with their parent.

A duplex pipe connects the parent and a worker. In the worker, a thread reads messages of the parent at all
times, so sending never blocks the parent for long. Messages of the worker wait in the pipe until the parent
reads them. There are no semaphores, and no threads in the parent. If either process is killed, the other one
neither hangs nor leaks resources:

- the parent waits for the pipe and for the end of the worker at the same time;
- the thread of the worker waits for the pipe and for the end of the parent at the same time.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.util  # its exit function must be registered before ours
import os
import pickle
import queue
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ... import _spdl_rs, _worker_traces
from ..._locks import ForkSafeLock
from .._failures.child_process import (
    check_can_be_imported,
    exit_code_in_words,
    exit_code_of,
    with_advice,
)
from .._failures.failure import Cancelled
from . import exit as _exit  # its exit function must run after ours
from .message_reader import MessageReader
from .remote_errors import (
    ExceptionWrapper,
    WorkerError,
    WorkerTimeoutError,
    pickled_message,
)

_END = "end"
"""The message that ends a worker. In the worker, also the last message in the queue."""
FAILED = "failed"
"""The message with an `ExceptionWrapper` that a worker sends before it ends because of an exception."""

# How long a worker may take to end by itself, and then by SIGTERM.
_GRACE_S = 0.7
_TERMINATION_S = 1.0
# How long a worker may take to end by itself when this process exits, or after its parent was killed. A worker
# may have workers, so that these times add up.
_EXIT_GRACE_S = 0.4
_ORPHAN_GRACE_S = 0.3


def start_method(context: Any = None) -> Any:
    """Returns a `multiprocessing` context, from a name or a context.

    The default is the start method that the program has set (`multiprocessing.set_start_method`), unless it is
    `fork`; else `forkserver`, or `spawn` if that is not available. Processes with threads must not be forked,
    and a process that runs pipelines has threads.

    Raises:
        ValueError: The start method is not available.
        TypeError: `context` is not a context.
    """
    if context is None:
        # `allow_none`, because starting a process fixes the default of the platform.
        context = multiprocessing.get_start_method(allow_none=True)
        if context in (None, "fork"):
            methods = multiprocessing.get_all_start_methods()
            context = "forkserver" if "forkserver" in methods else "spawn"
    if isinstance(context, str):
        return multiprocessing.get_context(context)
    if not hasattr(context, "Process") or not hasattr(context, "Pipe"):
        raise TypeError(
            "mp_context must be the name of a start method or a context of multiprocessing, not "
            f"{type(context).__name__}"
        )
    return context


class WorkerProcess:
    """The parent's handle of a worker process, which runs `body(parent, *arguments)`.

    The process ends when this object is dropped, and at exit.

    Args:
        body: A top-level function of a module. Its first argument is a `Parent`.
        arguments: Further arguments, pickled unless the start method is `fork`.
        name: The name of the process in messages.
        context: The result of `start_method`.
        daemon: If true, the process cannot have child processes, like daemon processes of `multiprocessing`.
        shared: The last argument, an object that transfers file descriptors when it is pickled.

    Raises:
        TypeError: The arguments cannot be pickled.
        RuntimeError: The main module cannot be imported by the process.
    """

    def __init__(
        self,
        body: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        name: str,
        context: Any,
        daemon: bool = False,
        shared: Any = None,
    ) -> None:
        check_can_be_imported(context)
        self.name = name
        self._owner = os.getpid()
        self._connection, its = context.Pipe(duplex=True)
        self._reader = MessageReader(self._connection)
        self._sending = threading.Lock()
        self._deferred: collections.deque[Any] = collections.deque()
        process = context.Process(
            target=_main,
            args=(its, _DeferredPickle((body, arguments)), shared),
            name=name,
            daemon=daemon,
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"cannot start {name}: its arguments cannot be pickled: {error}; define functions and "
                "classes at the top level of a module, not in a function, or use "
                "mp_context='fork'"
            ) from error
        finally:
            its.close()
        self._process = process
        # Unlike the sentinel, a pidfd is not kept open by child processes of the worker.
        handles = _pidfds(process.pid)
        self.waitables: list[Any] = [self._connection, process.sentinel, *handles]
        """Objects for `multiprocessing.connection.wait`."""
        self._closed = self._has_sent = False
        # At exit, `_end_workers` ends the process, because finalizers do not run at exit.
        self._handles = _Handles(process, self._connection, self._sending, self._owner)
        weakref.finalize(self, _end, [self._handles]).atexit = False
        _end_before_multiprocessing_waits()
        with _registry_lock.held():
            _live.add(self)
        if _worker_traces.active is not None:
            _worker_traces.active.include(self)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.exitcode is None

    @property
    def is_owner(self) -> bool:
        """Whether this process has started the worker. `False` in a forked child."""
        return os.getpid() == self._owner

    def send(self, message: Any) -> None:
        """Sends a message to the worker. Has no effect after the worker has ended, or in a forked child.

        Raises:
            TypeError: The message cannot be pickled.
        """
        if not self.is_owner:
            return
        pickled = pickled_message(message)
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(pickled)
        self._send_deferred()

    def send_soon(self, message: Any) -> None:
        """Sends a message without blocking, also from finalizers, which may run during a `send`."""
        if not self.is_owner:
            # Only the parent may free memory of the worker.
            self._deferred.clear()
            return
        self._deferred.append(message)
        self._send_deferred()

    def _send_deferred(self) -> None:
        # If another thread is sending a message, that thread also sends the deferred messages.
        while self._deferred and self._sending.acquire(blocking=False):
            try:
                while self._deferred:
                    self._connection.send_bytes(pickle.dumps(self._deferred.popleft(), protocol=5))
            except OSError:
                self._deferred.clear()
            finally:
                self._sending.release()

    def receive(self, timeout: float | None = None) -> Any:
        """Waits for a message of the worker.

        Args:
            timeout: The longest wait in seconds. Default: no limit.

        Raises:
            WorkerTimeoutError: No message arrived in time.
            WorkerError: The worker has ended.
            Cancelled: `close` has ended the worker.
            Exception: The exception that ended the worker.
        """
        ready = wait(self.waitables, timeout)
        if not ready:
            raise WorkerTimeoutError(f"{self.name} sent nothing within {timeout} s")
        try:
            # Messages sent before the end are delivered first.
            if self._connection not in ready and not self._connection.poll(0):
                raise EOFError
            pickled = self._reader.read()
        except (EOFError, OSError):
            if self._closed:
                raise Cancelled(f"{self.name} was ended") from None
            raise WorkerError(f"{self.name} {self._how_it_ended()}") from None
        self._has_sent = True
        message = pickle.loads(pickled)
        if message[0] == FAILED:
            error = message[1].unwrap()
            if isinstance(error, Exception):
                raise error
            raise WorkerError(f"{self.name} ended with {error!r}") from error
        return message

    def request_end(self) -> None:
        """Requests that the process ends by itself. Does not wait."""
        if self.is_owner:
            self._closed = True
            _request_end(self._handles)

    def close(self) -> None:
        """Ends the process: first by request, then by signals."""
        close_all([self])

    def _how_it_ended(self) -> str:
        code = exit_code_of(self._process, _TERMINATION_S)
        if code is None:
            return "has closed its pipe"
        return exit_code_in_words(code, at_start=not self._has_sent)


class Parent:
    """The worker's connection to its parent.

    When the parent ends, or requests the end of the worker, the reading thread calls `at_end`.
    """

    def __init__(self, connection: Connection) -> None:
        self.at_end: Callable[[], None] | None = None
        # `SimpleQueue` is not used, because `SimpleQueue.get(timeout=0)` may block forever on Python 3.10.
        self._received: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._connection = connection
        self._sending = threading.Lock()
        _watch_parent()
        threading.Thread(target=self._read, name="spdl_parent_reader", daemon=True).start()

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends a message to the parent, and waits until the pipe has room.

        Raises:
            ParentGone: The parent no longer reads.
            TypeError: The message cannot be pickled.
        """
        pickled = pickled_message(message)
        try:
            with self._sending:
                self._connection.send_bytes(pickled)
        except OSError:
            raise ParentGone from None

    def receive(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Waits for a message of the parent.

        Args:
            timeout: The longest wait in seconds. Default: no limit.

        Raises:
            ParentGone: There are no more messages.
            queue.Empty: No message arrived in time.
            Exception: The message cannot be unpickled.
        """
        message = self._received.get(timeout=timeout)
        if message[0] == _END:
            self._received.put(message)
            raise ParentGone
        if message[0] == FAILED:
            raise message[1]
        return message

    def _read(self) -> None:
        gone = False
        for waitable in self._until_gone():
            if waitable is not self._connection:
                gone = True
                break
            try:
                pickled = self._connection.recv_bytes()
            except (EOFError, OSError):
                gone = True
                break
            try:
                message = pickle.loads(pickled)
            except AttributeError as error:
                message = (FAILED, with_advice(error))
            except Exception as error:
                # Unpickling failed, for example because a module is not installed in this process.
                message = (FAILED, error)
            if message[0] == _END:
                break
            if not _worker_traces.handle(message):
                self._received.put(message)
        _worker_traces.end()
        self._received.put((_END,))
        if self.at_end is not None:
            self.at_end()
        self._end_sends()
        if gone:
            # No parent can kill this process if it does not end by itself.
            time.sleep(_ORPHAN_GRACE_S)
            os._exit(1)

    def _end_sends(self) -> None:
        """Makes sends fail, also a send that waits because the parent no longer reads."""
        if not hasattr(socket, "AF_UNIX"):
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as pipe,
        ):
            pipe.shutdown(socket.SHUT_WR)

    def _until_gone(self) -> Iterator[Any]:
        waitables: list[Any] = [self._connection]
        parent = multiprocessing.parent_process()
        if parent is not None:
            waitables += [parent.sentinel, *_pidfds(parent.pid)]
        while True:
            ready = wait(waitables)
            yield self._connection if self._connection in ready else ready[0]


class ParentGone(Exception):
    """The parent has ended, or has requested the end of the worker."""


class _DeferredPickle:
    """An object that is unpickled explicitly in the worker, so that failures can be reported."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._pickled: bytes | None = None

    def __getstate__(self) -> bytes:
        try:
            return pickle.dumps(self._content, protocol=5)
        except RuntimeError as error:
            # Of objects of `multiprocessing`, such as a queue.
            raise pickle.PicklingError(str(error)) from error

    def __setstate__(self, pickled: bytes) -> None:
        self._content, self._pickled = None, pickled

    def load(self) -> Any:
        if self._pickled is None:
            return self._content
        try:
            return pickle.loads(self._pickled)
        except AttributeError as error:
            raise with_advice(error) from None


def _main(connection: Connection, work: _DeferredPickle, shared: Any) -> None:
    # The terminal sends Ctrl-C to all processes of the group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Parent(connection)
    try:
        body, arguments = work.load()
        body(parent, *arguments, *(() if shared is None else (shared,)))
    except ParentGone:
        pass
    except BaseException as error:
        with contextlib.suppress(ParentGone):
            parent.send((FAILED, ExceptionWrapper(error)))
        raise SystemExit(1) from None


def end_with_parent(
    initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> None:
    """Makes this process of a pool end if its parent is killed, and calls an initializer."""

    def wait_and_end() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            waitables: list[Any] = [parent.sentinel, *_pidfds(parent.pid)]
            wait(waitables)
            os._exit(1)

    _watch_parent()
    threading.Thread(target=wait_and_end, name="spdl_parent_watcher", daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _watch_parent() -> None:
    """Makes this process end if its parent is killed, even while a function holds the GIL."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        # Later than the Python code that also watches the parent.
        _spdl_rs.end_after(parent.pid, _ORPHAN_GRACE_S + 0.1)


class _ProcessHandle:
    """A pidfd: a file descriptor that becomes readable when a process ends."""

    def __init__(self, file_descriptor: int) -> None:
        self._file_descriptor = file_descriptor

    def fileno(self) -> int:
        return self._file_descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The descriptor is not closed earlier: another thread may be waiting for it, and the system would
        # reuse the number.
        # `close` is a default argument, because the module `os` may be gone during finalization.
        close(self._file_descriptor)


def _pidfds(pid: int | None) -> list[_ProcessHandle]:
    """Returns a pidfd of a process, if the system supports it."""
    if pid is None or not hasattr(os, "pidfd_open"):
        return []
    try:
        return [_ProcessHandle(os.pidfd_open(pid))]
    except OSError:
        return []


@dataclasses.dataclass(frozen=True)
class _Handles:
    """What a process needs to end its worker."""

    process: Any
    connection: Connection
    sending: threading.Lock
    owner: int


_live: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
# Protects `_live`. Any thread may add to `_live`.
_registry_lock = ForkSafeLock()
_registered_in: int | None = None
"""The process in which `multiprocessing` calls `_end_workers` at exit."""


def live_workers() -> list[WorkerProcess]:
    """Returns the workers of this process."""
    with _registry_lock.held():
        return [worker for worker in _live if worker.is_owner]


def close_all(workers: Sequence[WorkerProcess], grace_s: float = _GRACE_S) -> None:
    """Ends processes concurrently: first by request, then by signals.

    Args:
        workers: The processes.
        grace_s: How many seconds the processes may take to end by themselves.
    """
    for worker in workers:
        worker._closed = True
    _end([worker._handles for worker in workers], grace_s)


def _request_end(handles: _Handles, grace_s: float = _GRACE_S) -> None:
    if handles.sending.acquire(timeout=grace_s):
        try:
            handles.connection.send_bytes(pickle.dumps((_END,)))
        except OSError:
            pass
        finally:
            handles.sending.release()


def _end(several: Sequence[_Handles], grace_s: float = _GRACE_S) -> None:
    # A forked child must not end the worker processes of its parent.
    several = [each for each in several if each.owner == os.getpid()]
    processes = [each.process for each in several]
    deadline = time.monotonic() + grace_s
    for each in several:
        if each.process.exitcode is None:
            # Another thread may be sending a message to a process that does not read.
            _request_end(each, max(0.0, deadline - time.monotonic()))
    for process in _running_after(processes, max(0.0, deadline - time.monotonic())):
        process.terminate()
    for process in _running_after(processes, _TERMINATION_S):
        process.kill()
    _running_after(processes, _TERMINATION_S)


def _running_after(processes: Sequence[Any], seconds: float) -> list[Any]:
    """Waits for processes. Returns those that still run after a number of seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    return [process for process in processes if process.exitcode is None]


def _end_workers() -> None:
    """Ends all workers at exit, before `multiprocessing` waits for them."""
    _exit.begin()
    with _registry_lock.held():
        workers = list(_live)
    close_all(workers, _EXIT_GRACE_S)


def _end_before_multiprocessing_waits() -> None:
    """Makes `multiprocessing` end the workers of this process before it waits for them.

    Child processes of `multiprocessing` wait for their own children without running `atexit` functions.
    """
    global _registered_in
    if _registered_in != os.getpid():
        # A fork clears the finalizers.
        _registered_in = os.getpid()
        multiprocessing.util.Finalize(None, _end_workers, exitpriority=100)


atexit.register(_end_workers)
