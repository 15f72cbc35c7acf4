"""Executors that several stages share, with priorities."""

from __future__ import annotations

import concurrent.futures
import heapq
import itertools
import os
import sys
import threading
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ..._arguments import whole

T = TypeVar("T")

# Executors of this process that were pickled or unpickled, by token.
_by_token: weakref.WeakValueDictionary[str, PriorityExecutor] = weakref.WeakValueDictionary()
_by_token_lock = threading.RLock()


class PriorityExecutor(ABC):
    """A pool of workers with a priority queue of calls.

    The pool receives only as many calls as it has workers. Other calls wait in the queue, so a free worker
    always gets the call with the highest priority.
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
        # `with` uses this lock, not the `Condition`: Ctrl-C while entering a `Condition` may leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[tuple[int, int, _Call]] = []
        self._running = 0
        self._dispatching = False
        self._shut_down = False
        with _by_token_lock:
            _by_token[self._token] = self

    @staticmethod
    @abstractmethod
    def _make_pool(max_workers: int, **options: Any) -> concurrent.futures.Executor: ...

    def get_executor(self, *, priority: int | None = None) -> PriorityExecutorEntrypoint:
        """Creates an entry point, usually for one stage.

        Args:
            priority: Calls of the entry point with the highest number run first. Calls of equal priority run
                in order of submission. Default: 1 for the first entry point without this argument, 2 for the
                second, and so on. So stages that are added later have higher priority.

        Raises:
            TypeError: `priority` is not an `int`.
        """
        if priority is None:
            priority = next(self._entry_points)
        elif isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an int, not {type(priority).__name__}")
        return PriorityExecutorEntrypoint(self, priority)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuses further calls.

        Args:
            wait: Whether to wait for all submitted calls.
            cancel_futures: Whether to cancel calls that have not started.
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
        return _executor_of_token, (type(self), self._token, self._max_workers, self._options)

    def _submit(self, priority: int, call: _Call) -> None:
        with self._lock:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            heapq.heappush(self._waiting, (-priority, next(self._order), call))
        self._dispatch()

    def _is_idle(self) -> bool:
        return not self._waiting and self._running == 0

    def _dispatch(self) -> None:
        """Submits calls to the pool while it has free workers."""
        with self._lock:
            if self._dispatching:
                # The dispatching thread checks the queue again before it stops.
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
            while self._waiting and self._running < self._max_workers:
                call = heapq.heappop(self._waiting)[2]
                if call.future.set_running_or_notify_cancel():
                    self._running += 1
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
            self._running -= 1


E = TypeVar("E", bound=PriorityExecutor)


class PriorityThreadPoolExecutor(PriorityExecutor):
    """Threads that several stages share. By default, calls of later stages run first.

    Args:
        max_workers: The number of threads. Default: as for `ThreadPoolExecutor`.
        thread_name_prefix, initializer, initargs: See `ThreadPoolExecutor`.

    Raises:
        ValueError: `max_workers` is not an integer, or less than 1.

    The executor and its entry points can be pickled. In another process, the executor and its
    entry points refer to one executor, which that process creates with the same arguments.

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
    """Processes that several stages share. By default, calls of later stages run first.

    Args:
        max_workers: The number of processes. Default: the number of CPUs.
        kwargs: See `ProcessPoolExecutor`. The default of `mp_context` is that of
            `iterate_in_subprocess`.

    Raises:
        ValueError: `max_workers` is not an integer, or less than 1.

    The executor can be pickled, like `PriorityThreadPoolExecutor`.
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
    """Subinterpreters that several stages share. Requires Python 3.14.

    Functions that run in subinterpreters cannot import `spdl_rs` or NumPy, which require the main interpreter.

    Args:
        max_workers: The number of subinterpreters. Default: as for `InterpreterPoolExecutor`.
        kwargs: See `InterpreterPoolExecutor`.

    Raises:
        RuntimeError: Python is older than 3.14.
        ValueError: `max_workers` is not an integer, or less than 1.
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
            version = ".".join(map(str, sys.version_info[:2]))
            raise RuntimeError(
                "PriorityInterpreterPoolExecutor requires Python 3.14 or newer, but this is Python "
                f"{version}; use PriorityProcessPoolExecutor"
            )
        return pool(max_workers, **options)


class PriorityExecutorEntrypoint(concurrent.futures.Executor):
    """An executor for one stage that submits calls to a shared executor with a priority.

    Created by `get_executor`.
    """

    def __init__(self, executor: PriorityExecutor, priority: int) -> None:
        self._executor = executor
        self._priority = priority
        self.has_own_objects = executor.has_own_objects

    @property
    def priority(self) -> int:
        """Calls with the highest number run first."""
        return self._priority

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        call = _Call(fn, args, kwargs)
        self._executor._submit(self._priority, call)
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Has no effect, because other stages use the shared executor. Shut down the shared executor."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._executor, self._priority)


class _Call:
    """A call and its future."""

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self.function, self.arguments, self.options = function, arguments, options
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()


def _executor_of_token(
    kind: type[PriorityExecutor], token: str, max_workers: int, options: dict[str, Any]
) -> PriorityExecutor:
    """Returns the executor with that token. Creates it if this process has none."""
    with _by_token_lock:
        executor = _by_token.get(token)
        if executor is None:
            executor = kind(max_workers, **options)
            executor._token = token
            _by_token[token] = executor
    return executor
