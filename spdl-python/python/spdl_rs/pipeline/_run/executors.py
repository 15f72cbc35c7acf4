"""Stages on a `concurrent.futures.Executor` of the user."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..._closing import closing
from .._failures.child_process import check_can_be_imported
from .._failures.failure import Cancelled
from .._failures.log import log_warning
from .._processes import exit as _exit
from ..defs import _ops

_END = object()
# All calls of this process, until they are garbage-collected.
_calls: weakref.WeakSet[ExecutorCall] = weakref.WeakSet()


class Cancellable(ABC):
    """Work that a pipeline cancels when it is stopped."""

    @abstractmethod
    def cancel(self) -> None:
        """Makes work in progress end soon. Does not wait for the end."""


class ExecutorCall(Cancellable):
    """Calls a function on an executor, and waits for its result.

    Raises:
        RuntimeError: The executor has processes that cannot start.
    """

    def __init__(self, executor: concurrent.futures.Executor, function: Callable[..., Any]) -> None:
        check_can_be_imported(getattr(executor, "_mp_context", None))
        self._executor = executor
        self._function = function
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._cancelled = False
        _calls.add(self)
        _register_once()

    def __call__(self, item: Any) -> Any:
        return self._call(self._function, item)

    def cancel(self) -> None:
        """Cancels calls that have not started, and refuses further calls."""
        self._cancelled = True
        for future in list(self._waiting):
            future.cancel()

    def _running(self) -> list[concurrent.futures.Future[Any]]:
        return [future for future in list(self._waiting) if not future.done()]

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._cancelled:
            raise Cancelled("the pipeline was stopped")
        try:
            if not _has_own_objects(self._executor):
                arguments = (function, *arguments)
                function = _in_this_process
            future = self._executor.submit(function, *arguments)
        except RuntimeError:
            # At exit, Python shuts executors down before pipelines stop.
            if _executors_have_ended():
                raise Cancelled("the process is exiting") from None
            raise
        self._waiting.add(future)
        try:
            if self._cancelled:
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            if self._cancelled:
                raise Cancelled("the pipeline was stopped") from None
            raise
        finally:
            self._waiting.discard(future)


class ExecutorIteration(ExecutorCall):
    """Iterates the result of a function. Each step runs on an executor."""

    def __call__(self, item: Any) -> Iterator[Any]:
        if _has_own_objects(self._executor):
            # Generators cannot be sent to another process or interpreter.
            yield from self._call(_exhaust, self._function, item)
            return
        with closing(iter(self._call(self._function, item))) as results:
            while (result := self._call(next, results, _END)) is not _END:
                yield result


def _in_this_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function. If it forks this process and returns in the child, the child ends."""
    process = os.getpid()
    try:
        return function(*arguments)
    finally:
        if os.getpid() != process:
            _exit.end_forked_child(_ops.name_of(function))


def _exhaust(function: Callable[[Any], Iterable[Any]], item: Any) -> list[Any]:
    # Functions without globals are sent to other interpreters by code, without importing this module.
    return list(function(item))


def _end_calls() -> None:
    """Cancels the calls of all pipelines at exit, and names the functions for which Python waits."""
    calls = list(_calls)
    for call in calls:
        call.cancel()
    # Ctrl-C only ends this wait.
    with contextlib.suppress(KeyboardInterrupt):
        running = {future for call in calls for future in call._running()}
        concurrent.futures.wait(running, _exit.TIMEOUT_S)
    functions = {_ops.where(call._function) for call in calls if call._running()}
    if functions:
        log_warning(
            "the process exits after these functions have returned, because Python waits for their executors: "
            f"{'; '.join(sorted(functions))}; to exit earlier, stop the pipeline and end its functions before the "
            "program ends"
        )


@functools.cache
def _register_once() -> None:
    _exit.call_before_executors_end(_end_calls, forget=_calls.clear)


def _executors_have_ended() -> bool:
    """Returns whether Python has shut down all executors at exit. Python has no public API for this query."""
    flags = (
        ("concurrent.futures.thread", "_shutdown"),
        ("concurrent.futures.process", "_global_shutdown"),
    )
    return any(getattr(sys.modules.get(name), flag, False) for name, flag in flags)


def _has_own_objects(executor: concurrent.futures.Executor) -> bool:
    """Returns whether workers of the executor share no objects with this interpreter."""
    if getattr(executor, "has_own_objects", False):
        return True
    interpreters = getattr(concurrent.futures, "InterpreterPoolExecutor", ())
    return isinstance(executor, concurrent.futures.ProcessPoolExecutor) or isinstance(
        executor, interpreters
    )
