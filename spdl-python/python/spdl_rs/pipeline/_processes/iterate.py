"""`iterate_in_subprocess`: an iterable in a worker process."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._arguments import function, whole
from ..._arguments import timeout as checked_timeout
from ..._closing import closing
from ..._errors import ForkedProcessError
from .._failures.tracebacks import shorten
from ..defs import _ops
from ..defs._executors import needs_interpreters
from .remote_errors import WorkerError, WorkerTimeoutError, as_runtime_error

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from .arena import Arena
    from .worker_process import Parent, WorkerProcess

T = TypeVar("T")


def iterate_in_subprocess(
    fn: Callable[[], Iterable[T]],
    *,
    buffer_size: int = 3,
    initializer: Callable[[], object] | Sequence[Callable[[], object]] | None = None,
    mp_context: Any = None,
    timeout: float | None = None,
    daemon: bool = False,
    arena: Arena | None = None,
) -> Iterable[T]:
    """Iterates an iterable in another process. The result can be iterated repeatedly.

    The worker process starts immediately and calls `fn` once. Each iteration of the result iterates the
    iterable that `fn` returned, with up to `buffer_size` items prefetched. Leaving a loop early is allowed;
    the next loop starts a new iteration. For several loops, `fn` must return an iterable that can be iterated
    repeatedly, not a generator object.

    The process starts with the states of the random number generators of `random`, NumPy (legacy) and PyTorch
    (CPU, if imported) of this process. The worker process ends when this process ends, even by SIGKILL, when
    the result is dropped, and after a failure. The worker process ignores Ctrl-C, which this process
    handles.

    Args:
        fn: Returns an iterable.
        buffer_size: How many finished items may wait for the consumer, at least 1; -1 for no limit.
        initializer: A function, or a list of functions, called before `fn`.
        mp_context: A start method, or a context of `multiprocessing`. Default: the start method that the
            program has set, unless it is `"fork"`; else `"forkserver"`, or `"spawn"` if `"forkserver"` is not
            available. With `"forkserver"` and `"spawn"`, `fn` is pickled, and scripts must start processes
            under `if __name__ == "__main__":`. `"fork"` requires neither, but may hang in a process with
            threads, and pipelines have threads.
        timeout: The longest wait for an item in seconds. Default: no limit.
        daemon: If true, the process cannot have child processes, like daemon processes of `multiprocessing`.
        arena: Shared memory for large items, `SharedMemorySegmentPool` or `SharedMemoryRingBuffer`, for this
            iterable only.

    Raises:
        TypeError: An argument has the wrong type, or `fn` cannot be pickled.
        ValueError: An argument is out of range.

    During iteration:

    Raises:
        RuntimeError: What `fn`, an initializer or the iteration raised in the process. The exception also has
            the type that was raised, so `except ValueError` handles a `ValueError`. Its `__cause__` shows
            the remote traceback. Exceptions that cannot be pickled become a plain `RuntimeError` with the
            same message.
        WorkerTimeoutError: No item arrived in time. This exception is a `RuntimeError` and a `TimeoutError`.
        WorkerError: The process ended unexpectedly, which is detected immediately, or it failed before. This
            exception is a `RuntimeError`.

    >>> import functools
    >>> from spdl_rs.pipeline import iterate_in_subprocess
    >>> numbers = iterate_in_subprocess(functools.partial(range, 3))
    >>> [list(numbers) for epoch in range(2)]
    [[0, 1, 2], [0, 1, 2]]
    """
    return iterate_with_pools(
        fn,
        (),
        buffer_size=buffer_size,
        initializer=initializer,
        mp_context=mp_context,
        timeout=timeout,
        daemon=daemon,
        arena=arena,
    )


def iterate_with_pools(
    fn: Callable[[], Iterable[T]],
    pools: Sequence[ProcessPoolExecutor],
    *,
    buffer_size: int = 3,
    initializer: Callable[[], object] | Sequence[Callable[[], object]] | None = None,
    mp_context: Any = None,
    timeout: float | None = None,
    daemon: bool = False,
    arena: Arena | None = None,
) -> Iterable[T]:
    """`iterate_in_subprocess` with the pools of this process that the worker calls by `RemotePool`s."""
    function("fn", fn)
    if buffer_size == -1:
        buffer_size = sys.maxsize
    buffer_size = whole("buffer_size", buffer_size, wrong_type=ValueError)
    timeout = checked_timeout(timeout, least=0)
    return SubprocessIterable(
        fn, pools, buffer_size, _initializers(initializer), mp_context, timeout, daemon, arena
    )


def iterate_in_subinterpreter(
    fn: Callable[[], Iterable[T]],
    *,
    buffer_size: int = 3,
    initializer: Callable[[], object] | Sequence[Callable[[], object]] | None = None,
    timeout: float | None = None,
) -> Iterable[T]:
    """Not supported: raises an exception. In SPDL, this function iterates in a subinterpreter.

    Extension modules built with PyO3 can be loaded in the main interpreter only, so `spdl_rs` cannot be
    imported in a subinterpreter. Use `iterate_in_subprocess`. Stages whose functions do not import `spdl_rs` can
    run on a `concurrent.futures.InterpreterPoolExecutor`: `PipelineBuilder.pipe(function, executor=...)`.

    Raises:
        NotImplementedError: Always, a `RuntimeError`.
    """
    del fn, buffer_size, initializer, timeout
    needs_interpreters("iterate_in_subinterpreter", "iterate_in_subprocess")


class Stoppable(ABC):
    """An iterable that is stopped when the process that iterates it ends."""

    @abstractmethod
    def stop(self) -> None: ...


class SubprocessIterable(Generic[T]):
    """The items that a worker process iterates."""

    def __init__(
        self,
        fn: Callable[[], Iterable[T]],
        pools: Sequence[ProcessPoolExecutor],
        buffer_size: int,
        initializers: tuple[Callable[[], object], ...],
        mp_context: Any,
        timeout: float | None,
        daemon: bool,
        arena: Arena | None,
    ) -> None:
        # These modules are imported lazily, because importing multiprocessing is slow.
        import multiprocessing

        from .random_state import RandomState
        from .remote_pool import serve
        from .worker_process import WorkerProcess, start_method

        writer = None if arena is None else arena.writer()
        calls, its_calls = multiprocessing.Pipe() if pools else (None, None)
        start = functools.partial(
            WorkerProcess,
            _iterate,
            (fn, initializers, RandomState()),
            name=f"the process that iterates {_ops.name_of(fn)}",
            daemon=daemon,
            shared=(writer, its_calls),
        )
        self._buffer_size = buffer_size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._iteration = 0
        self._failure: BaseException | None = None
        try:
            self._worker = start(context=start_method(mp_context))
        except TypeError as error:
            if mp_context is not None or not _is_forked_by_spdl():
                raise
            message = (
                f"{error}; using the start method fork, as SPDL does, which may hang in a process with "
                "threads"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)
            self._worker = start(context=start_method("fork"))
        if calls is not None and its_calls is not None:
            its_calls.close()
            serve(calls, pools, self._worker.waitables[1:])
        # A weak reference, because items may outlive this object and must not keep the process alive.
        worker = weakref.ref(self._worker)
        self._reader = (
            None if arena is None else arena.reader(functools.partial(_send_if_alive, worker))
        )

    def __iter__(self) -> Iterator[T]:
        self._refuse_in_fork()
        with self._lock:
            if self._failure is not None:
                raise WorkerError(
                    f"{self._worker.name} has already failed: {self._failure!r}"
                ) from self._failure
            self._iteration += 1
            mine = self._iteration
        self._worker.send(("start", mine, self._buffer_size))
        taken = 0
        try:
            while received := self._receive(mine):
                taken += 1
                # Credits for flow control are batched, but sent early enough that the process does not wait.
                if taken * 2 >= self._buffer_size:
                    self._worker.send(("taken", mine, taken))
                    taken = 0
                # No reference to the item is kept, because the next item may need the memory of this item.
                yield received.pop()
        finally:
            if self._failure is None:
                self._worker.send(("stop", mine))

    def _receive(self, mine: int) -> list[T]:
        """Returns the next item of an iteration in a list; an empty list at its end."""
        self._refuse_in_fork()
        with self._lock:
            while True:
                if mine != self._iteration:
                    raise RuntimeError("this iteration has ended, because another iteration was started")
                try:
                    kind, iteration, *rest = self._worker.receive(self._timeout)
                    # Items of abandoned iterations are read too, to free their memory.
                    received = [self._read(rest)] if kind == "item" else []
                except WorkerTimeoutError:
                    raise
                except Exception as raised:
                    error = self._failure = as_runtime_error(raised)
                    shorten(error)
                    # Without a context, which would show the same exception again.
                    raise error from error.__cause__
                if iteration == mine:
                    return received

    def _refuse_in_fork(self) -> None:
        if not self._worker.is_owner:
            raise ForkedProcessError(
                f"cannot use {self._worker.name} in a forked child process: only the parent can use it; call "
                "iterate_in_subprocess in this process"
            )

    def _read(self, sent: list[Any]) -> T:
        return sent[0] if self._reader is None else self._reader.read(*sent)


def _iterate(
    parent: Parent,
    fn: Callable[[], Iterable[Any]],
    initializers: tuple[Callable[[], object], ...],
    random_state: Any,
    shared: tuple[Any, Any],
) -> None:
    """The main function of the worker process."""
    writer, calls = shared
    if calls is not None:
        from .remote_pool import connect

        connect(calls)
    random_state.restore()
    for initializer in initializers:
        initializer()
    items = fn()
    try:
        sender = _Sender(parent, writer)
        while True:
            iteration = sender.wait_for_start()
            # An abandoned iterator is closed now, not when it is garbage collected.
            with closing(iter(items)) as iterator:
                sender.send_all(iteration, iterator)
            del iterator
    finally:
        if isinstance(items, Stoppable):
            items.stop()


def _is_forked_by_spdl() -> bool:
    """Whether this is a program for SPDL on a platform on which SPDL forks by default."""
    import multiprocessing

    compat = sys.modules.get("spdl_rs.compat")
    is_default = multiprocessing.get_all_start_methods()[0] == "fork"
    return compat is not None and compat.is_installed() and is_default


def _send_if_alive(worker: weakref.ref[WorkerProcess], message: Any) -> None:
    """Sends a message to a worker process that may have ended."""
    process = worker()
    if process is not None:
        process.send_soon(message)


class _Abandoned(Exception):
    """The parent has left the iteration."""


class _Sender:
    """Sends the items of iterations, with flow control by the parent."""

    def __init__(self, parent: Parent, writer: Any) -> None:
        self._parent = parent
        self._writer = writer
        self._requested = 0
        """The current iteration of the parent; 0 if there is none."""
        self._allowed = 0
        """How many more items may be sent."""

    def wait_for_start(self) -> int:
        """Waits for the next iteration. Returns its number."""
        while not self._requested:
            self._handle_message(None)
        return self._requested

    def send_all(self, iteration: int, iterator: Iterator[Any]) -> None:
        """Sends items until the iterator ends, or the parent leaves the iteration."""
        for item in iterator:
            while self._handle_message(0):
                pass
            while self._allowed == 0 and self._requested == iteration:
                self._handle_message(None)
            if self._requested != iteration:
                return
            self._allowed -= 1
            if self._writer is None:
                self._parent.send(("item", iteration, item))
            else:
                try:
                    written = self._writer.write(item, self._wait_for_room)
                except _Abandoned:
                    return
                self._parent.send(("item", iteration, *written))
            del item
        self._parent.send(("end-of-items", iteration))
        if self._requested == iteration:
            self._requested = 0

    def _wait_for_room(self, timeout: float) -> None:
        iteration = self._requested
        self._handle_message(timeout)
        if not iteration or self._requested != iteration:
            raise _Abandoned

    def _handle_message(self, timeout: float | None) -> bool:
        """Handles one message of the parent. Returns whether one arrived in time."""
        try:
            kind, *rest = self._parent.receive(timeout)
        except queue.Empty:
            return False
        if kind == "start":
            self._requested, self._allowed = rest
        elif kind == "free":
            self._writer.free(*rest)
        elif rest[0] == self._requested:
            if kind == "taken":
                self._allowed += rest[1]
            else:
                self._requested = 0
        return True


def _initializers(
    initializer: Callable[[], object] | Sequence[Callable[[], object]] | None,
) -> tuple[Callable[[], object], ...]:
    if initializer is None:
        return ()
    several = tuple(initializer) if isinstance(initializer, Sequence) else (initializer,)
    for each in several:
        if not callable(each):
            raise TypeError(f"an initializer must be callable, not {each!r}")
    return several
