"""Processes that work for this one, and end with it.

A duplex pipe joins the two. In the worker a thread reads what comes from the parent at all times,
so the parent never waits long when it sends something; what the worker sends waits in the pipe
until the parent reads it. There are no semaphores and no threads in the parent, so whichever side
is killed, nothing is left over and nothing hangs:

- the parent waits for the pipe and for the end of the process at once;
- the worker's thread waits for the pipe and for the end of the parent at once.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import multiprocessing
import multiprocessing.util  # its own function at exit must be registered before ours
import os
import pickle
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from ..._locks import ForkSafeLock
from .._failures.child_process import check_can_be_imported, exit_code_in_words, with_advice
from .._failures.failure import Cancelled
from . import exit as exit  # its function at exit must run after ours
from .remote_errors import (
    ExceptionWrapper,
    WorkerError,
    WorkerTimeoutError,
    pickled_for_another_process,
)

_END = "end"
"""What the parent sends to end a worker; in the worker, what is received last."""
FAILED = "failed"
"""What a worker sends, with a `ExceptionWrapper`, before it ends early."""

# How long a worker may take to end by itself, and then by SIGTERM.
_GRACE_S = 0.7
_TERMINATION_S = 1.0
# How long one whose parent is gone may take, which nobody waits for.
_GRACE_OF_ORPHANS_S = 3.0


def start_method(context: Any = None) -> Any:
    """The context that makes processes: one of `multiprocessing`, by name or as it is.

    By default the one that the program has chosen (`multiprocessing.set_start_method`), unless that
    is `fork`; else `forkserver`, or `spawn` where there is none: a process with threads, as this
    one has as soon as a pipeline runs, must not be forked.

    Raises:
        ValueError: There is no start method of that name here.
        TypeError: It is no context.
    """
    if context is None:
        # Starting any process makes the default of the platform look like the program's choice.
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
    """A process that runs `body(parent, *arguments)`, as its parent sees it.

    It is ended when nobody holds this any more, and when Python ends.

    Args:
        body: A function of a module; it is given a `Parent`.
        arguments: What else it is given. Pickled, unless the start method is `fork`.
        name: What the process is called in messages.
        context: From `start_method`.
        daemon: Whether it may have no processes of its own, as in `multiprocessing`.
        shared: An object that hands file descriptors over as it is pickled; given last.

    Raises:
        TypeError: The arguments cannot be pickled.
        RuntimeError: The program is no file, which the process would have to import.
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
        self._sending = threading.Lock()
        self._soon: collections.deque[Any] = collections.deque()
        process = context.Process(
            target=_main, args=(its, _Cargo((body, arguments)), shared), name=name, daemon=daemon
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"{name} cannot be started, since what it is to do cannot be pickled ({error}); "
                "functions and classes must be defined in a module, not within a function, "
                "unless mp_context is 'fork'"
            ) from error
        finally:
            its.close()
        self._process = process
        # Unlike the sentinel, a handle cannot be held open by processes that the worker has made.
        handles = _handles_of(process.pid)
        self.waitables: list[Any] = [self._connection, process.sentinel, *handles]
        """What `multiprocessing.connection.wait` waits for."""
        self._closed = self._heard = False
        # At exit, `_end_all` is what ends it: finalizers are not called any more by then.
        what = (process, self._connection, self._sending, self._owner)
        weakref.finalize(self, _end, *what).atexit = False
        with _registry_lock.held():
            _live.add(self)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether this process has started the worker; a fork of it has no say in it."""
        return os.getpid() == self._owner

    def send(self, message: Any) -> None:
        """Sends something to the worker, which reads at all times. Does nothing once it has ended,
        and in a fork of this process.

        Raises:
            TypeError: It cannot be pickled.
        """
        if not self.is_ours:
            return
        pickled = pickled_for_another_process(message)
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(pickled)
        self._send_what_waits()

    def send_soon(self, message: Any) -> None:
        """The same, at any time: also from finalizers, which may run amid a `send`."""
        if not self.is_ours:
            # What the fork holds of the worker's memory is the parent's to give back.
            self._soon.clear()
            return
        self._soon.append(message)
        self._send_what_waits()

    def _send_what_waits(self) -> None:
        # Whoever is sending just now does it afterwards.
        while self._soon and self._sending.acquire(blocking=False):
            try:
                while self._soon:
                    self._connection.send_bytes(pickle.dumps(self._soon.popleft(), protocol=5))
            except OSError:
                self._soon.clear()
            finally:
                self._sending.release()

    def receive(self, timeout: float | None = None) -> Any:
        """Waits for what the worker sends.

        Args:
            timeout: For how many seconds. Default: as long as it takes.

        Raises:
            WorkerTimeoutError: Nothing came in time.
            WorkerError: The worker has ended.
            Cancelled: It was ended by `close`.
            Exception: What the worker told to have failed.
        """
        ready = wait(self.waitables, timeout)
        if not ready:
            raise WorkerTimeoutError(f"{self.name} gave nothing within {timeout} s")
        try:
            # What it sent before its end comes first.
            if self._connection not in ready and not self._connection.poll(0):
                raise EOFError
            pickled = self._connection.recv_bytes()
        except (EOFError, OSError):
            if self._closed:
                raise Cancelled(f"{self.name} was ended") from None
            raise WorkerError(f"{self.name} {self._how_it_ended()}") from None
        except BaseException:
            # Interrupted amid a message: what follows cannot be read any more.
            self.close()
            raise
        self._heard = True
        message = pickle.loads(pickled)
        if message[0] == FAILED:
            error = message[1].unwrap()
            if isinstance(error, Exception):
                raise error
            raise WorkerError(f"{self.name} was ended by {error!r}") from error
        return message

    def tell_to_end(self) -> None:
        """Lets the process end by itself, and does not wait for it."""
        if self.is_ours:
            self._closed = True
            _tell_to_end(self._connection, self._sending)

    def close(self) -> None:
        """Ends the process: by itself if it does so soon, else by force."""
        self._closed = True
        _end(self._process, self._connection, self._sending, self._owner)

    def _how_it_ended(self) -> str:
        self._process.join(_TERMINATION_S)
        code = self._process.exitcode
        if code is None:
            return "has closed its pipe"
        return exit_code_in_words(code, at_start=not self._heard)


class Parent:
    """The process that a worker works for, as the worker sees it.

    When it lets go of this worker or ends itself, `at_end` is called, on the thread that reads.
    """

    def __init__(self, connection: Connection) -> None:
        self.at_end: Callable[[], None] | None = None
        # No SimpleQueue: on Python 3.10, its `get(timeout=0)` may wait for ever.
        self._received: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._connection = connection
        self._sending = threading.Lock()
        threading.Thread(target=self._read, name="spdl_parent_reader", daemon=True).start()

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends something to the parent, and waits until the pipe has room for it.

        Raises:
            ParentGone: Nobody will read it.
            TypeError: It cannot be pickled.
        """
        pickled = pickled_for_another_process(message)
        try:
            with self._sending:
                self._connection.send_bytes(pickled)
        except OSError:
            raise ParentGone from None

    def receive(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Waits for what the parent sends.

        Args:
            timeout: For how many seconds. Default: as long as it takes.

        Raises:
            ParentGone: Nothing more comes.
            queue.Empty: Nothing came in time.
            Exception: What came cannot be read here.
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
                # A module that is not there in this process, say.
                message = (FAILED, error)
            if message[0] == _END:
                break
            self._received.put(message)
        self._received.put((_END,))
        if self.at_end is not None:
            self.at_end()
        if gone:
            # Nobody is there to end this process by force.
            time.sleep(_GRACE_OF_ORPHANS_S)
            os._exit(1)

    def _until_gone(self) -> Iterator[Any]:
        waitables: list[Any] = [self._connection]
        parent = multiprocessing.parent_process()
        if parent is not None:
            waitables += [parent.sentinel, *_handles_of(parent.pid)]
        while True:
            ready = wait(waitables)
            yield self._connection if self._connection in ready else ready[0]


class ParentGone(Exception):
    """The parent has ended, or has let go of this worker."""


class _Cargo:
    """What is opened in the worker, so that it can tell of what goes wrong."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._pickled: bytes | None = None

    def __getstate__(self) -> bytes:
        return pickle.dumps(self._content, protocol=5)

    def __setstate__(self, pickled: bytes) -> None:
        self._content, self._pickled = None, pickled

    def open(self) -> Any:
        if self._pickled is None:
            return self._content
        try:
            return pickle.loads(self._pickled)
        except AttributeError as error:
            raise with_advice(error) from None


def _main(connection: Connection, cargo: _Cargo, shared: Any) -> None:
    # Ctrl-C reaches the whole group of processes; the parent says what is to be done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Parent(connection)
    try:
        body, arguments = cargo.open()
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
    """Lets this process of a pool end where its parent was killed; then calls an initializer."""

    def wait_and_end() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            waitables: list[Any] = [parent.sentinel, *_handles_of(parent.pid)]
            wait(waitables)
            os._exit(1)

    threading.Thread(target=wait_and_end, name="spdl_parent_watcher", daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


class _Handle:
    """A file descriptor that becomes readable when a process ends."""

    def __init__(self, file_descriptor: int) -> None:
        self._file_descriptor = file_descriptor

    def fileno(self) -> int:
        return self._file_descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Not sooner: somebody may be waiting for it, and its number is given to others again. The
        # function is given by default, since at Python's end the module may be gone before this.
        close(self._file_descriptor)


def _handles_of(pid: int | None) -> list[_Handle]:
    """A handle of a process, where the system has such."""
    if pid is None or not hasattr(os, "pidfd_open"):
        return []
    try:
        return [_Handle(os.pidfd_open(pid))]
    except OSError:
        return []


_live: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
# Around that set, to which any thread may add.
_registry_lock = ForkSafeLock()


def _tell_to_end(connection: Connection, sending: threading.Lock) -> None:
    if sending.acquire(timeout=_GRACE_S):
        try:
            connection.send_bytes(pickle.dumps((_END,)))
        except OSError:
            pass
        finally:
            sending.release()


def _end(process: Any, connection: Connection, sending: threading.Lock, owner: int) -> None:
    if os.getpid() != owner:
        # A copy of this process, made by a fork, has no say in it.
        return
    if process.exitcode is None:
        _tell_to_end(connection, sending)
        process.join(_GRACE_S)
    if process.exitcode is None:
        process.terminate()
        process.join(_TERMINATION_S)
    if process.exitcode is None:
        process.kill()
        process.join(_TERMINATION_S)


def _end_all() -> None:
    """Ends all workers before Python ends, and before `multiprocessing` waits for them."""
    with _registry_lock.held():
        workers = list(_live)
    for worker in workers:
        worker.tell_to_end()
    for worker in workers:
        worker.close()


atexit.register(_end_all)
