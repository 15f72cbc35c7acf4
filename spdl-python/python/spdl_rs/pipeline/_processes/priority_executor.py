"""Executors that several stages share, and that work for the last of them first."""

from __future__ import annotations

import concurrent.futures
import heapq
import itertools
import os
import threading
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ..._arguments import whole
from ..defs._executors import needs_interpreters

T = TypeVar("T")

# In each process, the executors to which entry points lead that have been pickled.
_by_token: weakref.WeakValueDictionary[str, PriorityExecutor] = weakref.WeakValueDictionary()
_by_token_lock = threading.RLock()


class PriorityExecutor(ABC):
    """A queue by priority, in front of a pool.

    The pool is given as many calls as it has workers; the others wait here, so that the most urgent
    one is next whenever a worker is free.
    """

    has_own_objects = False
    """Whether the workers share no objects with this interpreter."""

    def __init__(self, max_workers: int, options: dict[str, Any]) -> None:
        self._max_workers = whole("max_workers", max_workers, wrong_type=ValueError)
        self._options = options
        self._pool = self._make_pool(self._max_workers, **options)
        self._token = uuid.uuid4().hex
        self._entry_points = itertools.count(1)
        self._order = itertools.count()
        # The lock by itself: Ctrl-C may leave a `Condition` that is entered locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[tuple[int, int, _Call]] = []
        self._under_way = 0
        self._dispatching = False
        self._shut_down = False
        with _by_token_lock:
            _by_token[self._token] = self

    @staticmethod
    @abstractmethod
    def _make_pool(max_workers: int, **options: Any) -> concurrent.futures.Executor: ...

    def get_executor(self, *, priority: int | None = None) -> PriorityExecutorEntrypoint:
        """Makes an entry point, for one stage mostly.

        Args:
            priority: Calls by way of the entry point with the highest number come first; among
                equals, those that came first. Default: one more than that of the entry point made
                by default before, 1 for the first. So stages that are added later come first.

        Raises:
            TypeError: `priority` is no int.
        """
        if priority is None:
            priority = next(self._entry_points)
        elif isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an int, not {type(priority).__name__}")
        return PriorityExecutorEntrypoint(self, priority)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls.

        Args:
            wait: Whether to return only when all calls are done.
            cancel_futures: Whether calls that have not begun are cancelled.
        """
        with self._lock:
            self._shut_down = True
            if cancel_futures:
                cancelled, self._waiting = self._waiting, []
                for _, _, call in cancelled:
                    call.future.cancel()
            if wait:
                self._changed.wait_for(self._is_idle)
            idle = self._is_idle()
        if idle:
            self._pool.shutdown(wait)

    def __enter__(self: E) -> E:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_its_token, (type(self), self._token, self._max_workers, self._options)

    def _submit(self, priority: int, call: _Call) -> None:
        with self._lock:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            heapq.heappush(self._waiting, (-priority, next(self._order), call))
        self._dispatch()

    def _is_idle(self) -> bool:
        return not self._waiting and self._under_way == 0

    def _dispatch(self) -> None:
        """Gives calls to the pool, as long as it has free workers."""
        with self._lock:
            if self._dispatching:
                # Whoever does so looks again before it ends.
                return
            self._dispatching = True
        while (call := self._next_call()) is not None:
            try:
                done = self._pool.submit(call.function, *call.arguments, **call.options)
            except BaseException as error:
                self._finished()
                call.future.set_exception(error)
            else:
                done.add_done_callback(lambda done, call=call: self._done(call, done))

    def _next_call(self) -> _Call | None:
        with self._lock:
            while self._waiting and self._under_way < self._max_workers:
                call = heapq.heappop(self._waiting)[2]
                if call.future.set_running_or_notify_cancel():
                    self._under_way += 1
                    return call
            self._dispatching = False
            self._changed.notify_all()
            idle = self._shut_down and self._is_idle()
        if idle:
            self._pool.shutdown(wait=False)
        return None

    def _done(self, call: _Call, done: concurrent.futures.Future[Any]) -> None:
        self._finished()
        if done.cancelled():
            call.future.set_exception(concurrent.futures.CancelledError())
        elif (error := done.exception()) is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(done.result())
        self._dispatch()

    def _finished(self) -> None:
        with self._lock:
            self._under_way -= 1


E = TypeVar("E", bound=PriorityExecutor)


class PriorityThreadPoolExecutor(PriorityExecutor):
    """Threads that several stages share, and that work for the last of these first.

    Args:
        max_workers: How many threads. Default: as for `ThreadPoolExecutor`.
        thread_name_prefix, initializer, initargs: As for `ThreadPoolExecutor`.

    Raises:
        ValueError: `max_workers` is no int, or less than 1.

    It can be pickled, and so can its entry points: in another process they lead to an executor that
    is made there alike, all to the same one.

    >>> from spdl_rs.pipeline import PipelineBuilder, PriorityThreadPoolExecutor
    >>> with PriorityThreadPoolExecutor(2) as pool:
    ...     builder = PipelineBuilder().add_source(["1", "2"])
    ...     builder = builder.pipe(int, executor=pool.get_executor())
    ...     builder = builder.pipe(hex, executor=pool.get_executor()).add_sink()
    ...     list(builder.build(num_threads=1))
    ['0x1', '0x2']
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if max_workers is None:
            max_workers = min(32, (os.cpu_count() or 1) + 4)
        options = {
            "thread_name_prefix": thread_name_prefix,
            "initializer": initializer,
            "initargs": initargs,
        }
        super().__init__(max_workers, options)

    @staticmethod
    def _make_pool(max_workers: int, **options: Any) -> concurrent.futures.Executor:
        return concurrent.futures.ThreadPoolExecutor(max_workers, **options)


class PriorityProcessPoolExecutor(PriorityExecutor):
    """Processes that several stages share, and that work for the last of these first.

    Args:
        max_workers: How many processes. Default: one for each CPU.
        kwargs: As for `ProcessPoolExecutor`. The default of `mp_context` is that of
            `iterate_in_subprocess`.

    Raises:
        ValueError: `max_workers` is no int, or less than 1.

    It can be pickled, as a `PriorityThreadPoolExecutor` can.
    """

    has_own_objects = True

    def __init__(self, max_workers: int | None = None, **kwargs: Any) -> None:
        super().__init__(os.cpu_count() or 1 if max_workers is None else max_workers, kwargs)

    @staticmethod
    def _make_pool(max_workers: int, **options: Any) -> concurrent.futures.Executor:
        from . import worker_process as _worker_process

        context = _worker_process.start_method(options.pop("mp_context", None))
        first = (options.pop("initializer", None), options.pop("initargs", ()))
        return concurrent.futures.ProcessPoolExecutor(
            max_workers, context, _worker_process.end_with_parent, first, **options
        )


class PriorityInterpreterPoolExecutor(PriorityExecutor):
    """Interpreters of this process that several stages share. Needs Python 3.14.

    Functions that run there cannot import `spdl_rs`, nor NumPy: both need the main interpreter.

    Args:
        max_workers: How many. Default: as for `InterpreterPoolExecutor`.
        kwargs: As for `InterpreterPoolExecutor`.

    Raises:
        RuntimeError: Python is older than 3.14.
        ValueError: `max_workers` is no int, or less than 1.
    """

    has_own_objects = True

    def __init__(self, max_workers: int | None = None, **kwargs: Any) -> None:
        if max_workers is None:
            max_workers = min(32, (os.cpu_count() or 1) + 4)
        super().__init__(max_workers, kwargs)

    @staticmethod
    def _make_pool(max_workers: int, **options: Any) -> concurrent.futures.Executor:
        pool: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", None)
        if pool is None:
            needs_interpreters("PriorityInterpreterPoolExecutor", "PriorityProcessPoolExecutor")
        return pool(max_workers, **options)


class PriorityExecutorEntrypoint(concurrent.futures.Executor):
    """By which a stage gives calls to an executor that it shares: `get_executor` makes it."""

    def __init__(self, executor: PriorityExecutor, priority: int) -> None:
        self._executor = executor
        self._priority = priority
        self.has_own_objects = executor.has_own_objects

    @property
    def priority(self) -> int:
        """Calls with the highest number come first."""
        return self._priority

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        call = _Call(fn, args, kwargs)
        self._executor._submit(self._priority, call)
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing: others share the executor, which has a `shutdown` of its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._executor, self._priority)


class _Call:
    """A call, and what becomes of it."""

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self.function, self.arguments, self.options = function, arguments, options
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()


def _by_its_token(
    kind: type[PriorityExecutor], token: str, max_workers: int, options: dict[str, Any]
) -> PriorityExecutor:
    """The executor that is known by a token in this process. It is made where there is none."""
    with _by_token_lock:
        executor = _by_token.get(token)
        if executor is None:
            executor = kind(max_workers, **options)
            executor._token = token
            _by_token[token] = executor
    return executor
