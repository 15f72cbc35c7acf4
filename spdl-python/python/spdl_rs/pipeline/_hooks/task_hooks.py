"""Hooks around stages and items, and checks of hooks when a pipeline is built."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..._arguments import shown
from ..defs._stage_info import StageInfo
from .durations import DurationHistogram, format_duration

_LOGGER = logging.getLogger("spdl_rs.pipeline")


class TaskHook(ABC):
    """Base class of hooks that run around a stage and around each of its items, on the event loop.

    The `task_hook_factory` of `build_pipeline` creates hooks for one stage. The first hook of a list is the
    outermost. If a stage yields several results per item, `task_hook` is entered for each result, and once
    more for the end of the results. The end raises `StopAsyncIteration` in the context: do not suppress this
    exception. For aggregators, `task_hook` is entered for each input item.

    A context that was entered is also exited if the pipeline is stopped.

    >>> from contextlib import asynccontextmanager
    >>> from spdl_rs.pipeline import PipelineBuilder, TaskHook
    >>> class Print(TaskHook):
    ...     @asynccontextmanager
    ...     async def task_hook(self, input_item=None):
    ...         print("before", input_item)
    ...         yield
    ...         print("after", input_item)
    >>> builder = PipelineBuilder().add_source("ab").pipe(str.upper).add_sink()
    >>> list(builder.build(num_threads=1, task_hook_factory=lambda info: [Print()]))
    before a
    after a
    before b
    after b
    ['A', 'B']
    """

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """A context that is entered before the first item and left after the end of the pipeline.

        An exception ends the pipeline with a `PipelineFailure`.
        """
        yield

    @abstractmethod
    def task_hook(self, input_item: Any = None) -> AbstractAsyncContextManager[None]:
        """Returns a context that is entered before an item and left after it.

        An exception is a failure of the item. Exceptions of the stage propagate through the context; if the
        context suppresses an exception, the item is dropped without a failure.

        Args:
            input_item: The input of the stage.
        """


@dataclass
class TaskPerfStats:
    """Statistics of a stage. Times are in seconds.

    From a `TaskStatsHook`, times cover successful calls only. In logged native statistics, they cover all calls.
    """

    num_tasks: int
    """The number of calls."""
    num_failures: int
    """The number of failed calls."""
    ave_time: float
    """The mean time of a call."""
    p90_time: float
    """The 90th percentile of the time of a call."""
    p99_time: float
    """The 99th percentile of the time of a call."""

    def __str__(self) -> str:
        return (
            f"{self.num_tasks} tasks, {self.num_failures} failed; mean {format_duration(self.ave_time)}, "
            f"p90 {format_duration(self.p90_time)}, p99 {format_duration(self.p99_time)}"
        )


class TaskStatsHook(TaskHook):
    """A hook that measures how long a stage takes per item, and logs the result.

    Args:
        info: The stage.
        interval: The interval in seconds between calls of `interval_stats_callback`; the last call is at the
            end. If not positive, there is one call at the end, with the statistics of the whole run.

    >>> from spdl_rs.pipeline import PipelineBuilder, TaskStatsHook
    >>> class Print(TaskStatsHook):
    ...     async def interval_stats_callback(self, stats):
    ...         print(self.info.stage_name, stats.num_tasks, stats.num_failures)
    >>> builder = PipelineBuilder().add_source([1, 0]).pipe(lambda n: 1 / n, name="invert")
    >>> list(builder.add_sink().build(num_threads=1, task_hook_factory=lambda info: [Print(info)]))
    invert 2 1
    [1.0]
    """

    def __init__(self, info: StageInfo, interval: float = -1) -> None:
        self.info = info
        self.interval = interval
        self.num_tasks = 0
        self.num_success = 0
        self._lock = threading.Lock()
        self._all = DurationHistogram()
        self._interval_times = DurationHistogram()
        self._interval_tasks = 0

    @property
    def ave_time(self) -> float:
        """The mean time of a successful call, in seconds."""
        return self._all.mean

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Calls `interval_stats_callback` at each interval and at the end."""
        from .tasks import call_periodically

        async with call_periodically(self.interval, self._report):
            yield
        if self.interval > 0:
            self._log(self._stats(self.num_tasks, self._all))

    @asynccontextmanager
    async def task_hook(self, input_item: Any = None) -> AsyncIterator[None]:
        """Measures one call."""
        del input_item
        began = time.monotonic()
        try:
            yield
        except StopAsyncIteration:
            raise
        except Exception:
            self.record(None)
            raise
        self.record(time.monotonic() - began)

    def record(self, seconds: float | None) -> None:
        """Records a call; `None` means a failed call. Thread-safe."""
        with self._lock:
            self.num_tasks += 1
            self._interval_tasks += 1
            if seconds is not None:
                self.num_success += 1
                self._all.record(seconds)
                self._interval_times.record(seconds)

    async def interval_stats_callback(self, stats: TaskPerfStats) -> None:
        """Called with the statistics of an interval. The default logs the statistics at level INFO.

        Exceptions are logged. An exception of the last call ends the pipeline with a `PipelineFailure`.
        """
        self._log(stats)

    async def _report(self) -> None:
        with self._lock:
            stats = self._stats(self._interval_tasks, self._interval_times)
            self._interval_tasks = 0
            self._interval_times.clear()
        await self.interval_stats_callback(stats)

    def _stats(self, tasks: int, successes: DurationHistogram) -> TaskPerfStats:
        return TaskPerfStats(
            tasks,
            tasks - successes.count,
            successes.mean,
            successes.percentile(90),
            successes.percentile(99),
        )

    def _log(self, stats: TaskPerfStats) -> None:
        _LOGGER.info("[%s] %s", self.info, stats)


# The usual signatures of the methods, and the arguments of the pipeline.
_METHODS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "stage_hook": ("async def stage_hook(self)", ()),
    "task_hook": ("async def task_hook(self, input_item=None)", (None,)),
}
_DECORATOR = "contextlib.asynccontextmanager"


def hooks_of(factory: Callable[[StageInfo], Iterable[TaskHook]], info: StageInfo) -> list[TaskHook]:
    """Returns the hooks for a stage.

    Raises:
        TypeError: The factory cannot be called with a `StageInfo`, or does not return a list of hooks; or a
            method of a hook has a wrong signature or is a coroutine function.
        ValueError: A method of a hook is a generator without the decorator for context managers.
    """
    mismatch = _signature_mismatch(factory, (info,))
    if mismatch is not None:
        raise TypeError(
            f"task_hook_factory is called with one argument, the StageInfo of stage {info}, but {mismatch}"
        )
    given: Any = factory(info)
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"task_hook_factory must return a list of TaskHooks for stage {info} ([] for none), "
            f"not {shown(given)}"
        )
    hooks = list(given)
    for hook in hooks:
        _check(hook, info)
    return hooks


def not_a_context_manager(method: str, given: Any) -> TypeError:
    """The exception for a method of a hook that did not return an async context manager."""
    signature, _ = _METHODS[method]
    return TypeError(
        f"{method} must return an async context manager, not {type(given).__name__!r}; define it as "
        f"`{signature}` with one yield, and decorate it with {_DECORATOR}"
    )


def _check(hook: Any, info: StageInfo) -> None:
    if isinstance(hook, type):
        raise TypeError(
            f"task_hook_factory returned {shown(hook)} instead of a TaskHook for stage {info}; return an "
            f"instance, as in [{hook.__name__}()]"
        )
    for name, (signature, arguments) in _METHODS.items():
        method = getattr(hook, name, None)
        if not callable(method):
            raise TypeError(
                f"task_hook_factory returned {shown(hook)} instead of a TaskHook for stage {info}: the value "
                f"has no method {name}"
            )
        _check_decorated(method, f"{type(hook).__name__}.{name}, of stage {info},", signature)
        mismatch = _signature_mismatch(method, arguments)
        if mismatch is not None:
            called_with = "one argument, the item" if arguments else "no arguments"
            raise TypeError(
                f"{type(hook).__name__}.{name}, which task_hook_factory returned for stage {info}, is "
                f"called with {called_with}, as in `{signature}`, but {mismatch}"
            )


def _check_decorated(method: Callable[..., Any], what: str, signature: str) -> None:
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        raise ValueError(
            f"{what} is a generator, not an async context manager; decorate it with {_DECORATOR}"
        )
    if inspect.iscoroutinefunction(method):
        raise TypeError(
            f"{what} is a coroutine function, not an async context manager; define it as "
            f"`{signature}` with one yield, and decorate it with {_DECORATOR}"
        )


def _signature_mismatch(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str | None:
    """Returns why a function cannot be called with these arguments; `None` if it can, or if unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError):
        # Python 3.14 evaluates annotations, which may name types that exist for type checkers only.
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"its signature is {signature}: {error}"
    return None
