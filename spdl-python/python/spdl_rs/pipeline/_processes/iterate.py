"""Iterables in another process."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._arguments import function, whole
from ..._arguments import timeout as checked_timeout
from ..._closing import closing
from .._failures.tracebacks import shorten
from ..defs import _ops
from ..defs._executors import needs_interpreters
from .remote_errors import WorkerError, WorkerTimeoutError

if TYPE_CHECKING:
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
    """Iterates something in another process. The result can be iterated again and again.

    The process is started at once, calls `fn` once, and iterates what that returns once for each
    iteration here, some items ahead. Leaving a loop early is fine: the next one begins anew. What
    `fn` returns must allow for that too; a generator gives its items once only.

    The process starts with the state that the random number generators of `random`, NumPy (the
    legacy one) and PyTorch (on the CPU, where it is imported) have here. It ends with this process,
    also where that is killed; when nobody holds the result any more; and once something has failed
    in it. It ignores Ctrl-C, which is felt here.

    Args:
        fn: Makes what is iterated.
        buffer_size: How many finished items may wait, at least 1; -1 for any number.
        initializer: One function, or several, to be called before `fn`.
        mp_context: The start method, or a context of `multiprocessing`. Default: the one that the
            program has set, unless that is `"fork"`; else `"forkserver"`, or `"spawn"` where there
            is none. With these, `fn` is pickled, and a script must guard its start by
            `if __name__ == "__main__":`. `"fork"` needs neither, but may hang in a process that
            has threads, as any process has in which a pipeline runs.
        timeout: How many seconds to wait for each item. Default: as long as it takes.
        daemon: Whether the process may have no processes of its own, as in `multiprocessing`.
        arena: Memory by which large items travel, `SharedMemorySegmentPool` or
            `SharedMemoryRingBuffer`. It serves this one iterable.

    Raises:
        TypeError: An argument is of the wrong type, or `fn` cannot be pickled.
        ValueError: An argument is out of range.

    While it is iterated:

    Raises:
        Exception: Whatever `fn`, an initializer or iterating raised in the process, of its type;
            its `__cause__` shows the traceback there. What cannot be pickled arrives as a
            `RuntimeError` that says the same.
        WorkerTimeoutError: No item came in time. It is a `RuntimeError` and a `TimeoutError`.
        WorkerError: The process ended unexpectedly (that is noticed at once), or something failed
            in it before. It is a `RuntimeError`.

    >>> import functools
    >>> from spdl_rs.pipeline import iterate_in_subprocess
    >>> numbers = iterate_in_subprocess(functools.partial(range, 3))
    >>> [list(numbers) for epoch in range(2)]
    [[0, 1, 2], [0, 1, 2]]
    """
    function("fn", fn)
    if buffer_size == -1:
        buffer_size = sys.maxsize
    buffer_size = whole("buffer_size", buffer_size, wrong_type=ValueError)
    timeout = checked_timeout(timeout, least=0)
    return SubprocessIterable(
        fn, buffer_size, _initializers(initializer), mp_context, timeout, daemon, arena
    )


def iterate_in_subinterpreter(
    fn: Callable[[], Iterable[T]],
    *,
    buffer_size: int = 3,
    initializer: Callable[[], object] | Sequence[Callable[[], object]] | None = None,
    timeout: float | None = None,
) -> Iterable[T]:
    """Would iterate something in another interpreter of this process, and refuses to.

    The native module can be loaded in the main interpreter alone, as any that is made with PyO3, so
    `spdl_rs` cannot be imported in another one. Use `iterate_in_subprocess`. Stages of functions that
    do not import it may run on a `concurrent.futures.InterpreterPoolExecutor`, as on any executor:
    `PipelineBuilder.pipe(function, executor=...)`.

    Raises:
        RuntimeError: Always; a `NotImplementedError` from Python 3.14 on, which has interpreters.
    """
    del fn, buffer_size, initializer, timeout
    needs_interpreters("iterate_in_subinterpreter", "iterate_in_subprocess")


class Stoppable(ABC):
    """Something to iterate that is stopped when the process that iterates it ends."""

    @abstractmethod
    def stop(self) -> None: ...


class SubprocessIterable(Generic[T]):
    """What a process iterates, item by item."""

    def __init__(
        self,
        fn: Callable[[], Iterable[T]],
        buffer_size: int,
        initializers: tuple[Callable[[], object], ...],
        mp_context: Any,
        timeout: float | None,
        daemon: bool,
        arena: Arena | None,
    ) -> None:
        # Importing multiprocessing takes time that those need not spend who do not use it.
        from .random_state import RandomState
        from .worker_process import WorkerProcess, start_method

        self._buffer_size = buffer_size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._iteration = 0
        self._failure: BaseException | None = None
        self._worker = WorkerProcess(
            _iterate,
            (fn, initializers, RandomState()),
            name=f"the process that iterates {_ops.name_of(fn)}",
            context=start_method(mp_context),
            daemon=daemon,
            shared=None if arena is None else arena.writer(),
        )
        # Items may live longer than this, and must not keep the process.
        worker = weakref.ref(self._worker)
        self._reader = None if arena is None else arena.reader(functools.partial(_tell, worker))

    def __iter__(self) -> Iterator[T]:
        self._refuse_in_fork()
        with self._lock:
            if self._failure is not None:
                raise WorkerError(
                    f"{self._worker.name} has ended: it failed before ({self._failure!r})"
                ) from self._failure
            self._iteration += 1
            mine = self._iteration
        self._worker.send(("start", mine, self._buffer_size))
        taken = 0
        try:
            while received := self._receive(mine):
                taken += 1
                # Some at a time, but soon enough for the process not to wait.
                if taken * 2 >= self._buffer_size:
                    self._worker.send(("taken", mine, taken))
                    taken = 0
                # Nothing here keeps the item: it may lie in memory that the next one waits for.
                yield received.pop()
        finally:
            if self._failure is None:
                self._worker.send(("stop", mine))

    def _receive(self, mine: int) -> list[T]:
        """The next item of an iteration, if there is one."""
        self._refuse_in_fork()
        with self._lock:
            while True:
                if mine != self._iteration:
                    raise RuntimeError("another iteration has begun since; this one has ended")
                try:
                    kind, iteration, *rest = self._worker.receive(self._timeout)
                    # One of an iteration that was left is read too: its memory is given back.
                    received = [self._read(rest)] if kind == "item" else []
                except WorkerTimeoutError:
                    raise
                except Exception as error:
                    self._failure = error
                    shorten(error)
                    # Python 3.10 would raise it with the traceback that it had.
                    raise error  # noqa: TRY201
                if iteration == mine:
                    return received

    def _refuse_in_fork(self) -> None:
        if not self._worker.is_ours:
            raise RuntimeError("this process is a fork of the one that has the worker")

    def _read(self, sent: list[Any]) -> T:
        return sent[0] if self._reader is None else self._reader.read(*sent)


def _iterate(
    parent: Parent,
    fn: Callable[[], Iterable[Any]],
    initializers: tuple[Callable[[], object], ...],
    random_state: Any,
    writer: Any = None,
) -> None:
    """What the process does."""
    random_state.restore()
    for initializer in initializers:
        initializer()
    items = fn()
    try:
        sender = _Sender(parent, writer)
        while True:
            iteration = sender.wait_for_start()
            # What was left in the middle ends now, and not when it is found by chance.
            with closing(iter(items)) as iterator:
                sender.send_all(iteration, iterator)
            del iterator
    finally:
        if isinstance(items, Stoppable):
            items.stop()


def _tell(worker: weakref.ref[WorkerProcess], message: Any) -> None:
    """Tells a process something, if it is still there."""
    process = worker()
    if process is not None:
        process.send_soon(message)


class _Unwanted(Exception):
    """The parent has left the iteration."""


class _Sender:
    """Sends the items of one iteration after the other, as many ahead as the parent allows."""

    def __init__(self, parent: Parent, writer: Any) -> None:
        self._parent = parent
        self._writer = writer
        self._wanted = 0
        """The iteration that the parent is at; 0: none."""
        self._allowed = 0

    def wait_for_start(self) -> int:
        """The number of the next iteration."""
        while not self._wanted:
            self._take(None)
        return self._wanted

    def send_all(self, iteration: int, iterator: Iterator[Any]) -> None:
        """Sends items until there are no more, or nobody wants them."""
        for item in iterator:
            while self._take(0):
                pass
            while self._allowed == 0 and self._wanted == iteration:
                self._take(None)
            if self._wanted != iteration:
                return
            self._allowed -= 1
            if self._writer is None:
                self._parent.send(("item", iteration, item))
            else:
                try:
                    written = self._writer.write(item, self._take_while_wanted)
                except _Unwanted:
                    return
                self._parent.send(("item", iteration, *written))
            del item
        self._parent.send(("end-of-items", iteration))
        if self._wanted == iteration:
            self._wanted = 0

    def _take_while_wanted(self, timeout: float) -> None:
        iteration = self._wanted
        self._take(timeout)
        if not iteration or self._wanted != iteration:
            raise _Unwanted

    def _take(self, timeout: float | None) -> bool:
        """Takes what the parent says, if it says anything in time."""
        try:
            kind, *rest = self._parent.receive(timeout)
        except queue.Empty:
            return False
        if kind == "start":
            self._wanted, self._allowed = rest
        elif kind == "free":
            self._writer.free(*rest)
        elif rest[0] == self._wanted:
            if kind == "taken":
                self._allowed += rest[1]
            else:
                self._wanted = 0
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
