"""Code of the user's around stages and items."""

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
from .durations import Durations, in_words

_LOGGER = logging.getLogger("spdl_rs.pipeline")


class TaskHook(ABC):
    """Is run around a stage and around each of its items, on the pipeline's event loop.

    A hook is made for one stage, by the `task_hook_factory` of `build_pipeline`. Where there are
    several for a stage, the first one is the outermost. An item that a stage turns into several
    has its `task_hook` around each of them, and once more around the end, which is a
    `StopAsyncIteration`: let it pass. What puts items together has it around each that it takes in.

    `asyncio.Task`s are not cancelled between the two halves of a hook: whatever has been entered
    is left.

    >>> from contextlib import asynccontextmanager
    >>> from spdl_rs.pipeline import PipelineBuilder, TaskHook
    >>> class Tell(TaskHook):
    ...     @asynccontextmanager
    ...     async def task_hook(self, input_item=None):
    ...         print("before", input_item)
    ...         yield
    ...         print("after", input_item)
    >>> builder = PipelineBuilder().add_source("ab").pipe(str.upper).add_sink()
    >>> list(builder.build(num_threads=1, task_hook_factory=lambda info: [Tell()]))
    before a
    after a
    before b
    after b
    ['A', 'B']
    """

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Is entered before the stage's first item, and left when the pipeline has ended.

        What it raises ends the pipeline with a `PipelineFailure`.
        """
        yield

    @abstractmethod
    def task_hook(self, input_item: Any = None) -> AbstractAsyncContextManager[None]:
        """Is entered before an item, and left after it.

        What it raises is a failure of the item. So is what the stage raises, which passes through
        here; where it is not raised again, the item is dropped without one.

        Args:
            input_item: What the stage was given.
        """


@dataclass
class TaskPerfStats:
    """What a stage did. Times are in seconds, and those of successful calls only."""

    num_tasks: int
    """How many calls there were."""
    num_failures: int
    """How many of them failed."""
    ave_time: float
    """How long one took on average."""
    p90_time: float
    """How long 90 % of them took at most."""
    p99_time: float
    """How long 99 % of them took at most."""

    def __str__(self) -> str:
        return (
            f"{self.num_tasks} tasks, {self.num_failures} failed; mean {in_words(self.ave_time)}, "
            f"p90 {in_words(self.p90_time)}, p99 {in_words(self.p99_time)}"
        )


class TaskStatsHook(TaskHook):
    """Measures how long a stage takes, and logs that at the end.

    Args:
        info: The stage.
        interval: After how many seconds `interval_stats_callback` is called each time, and once
            more at the end with the rest. Where it is not positive, only at the end, with
            everything.

    >>> from spdl_rs.pipeline import PipelineBuilder, TaskStatsHook
    >>> class Tell(TaskStatsHook):
    ...     async def interval_stats_callback(self, stats):
    ...         print(self.info.stage_name, stats.num_tasks, stats.num_failures)
    >>> builder = PipelineBuilder().add_source([1, 0]).pipe(lambda n: 1 / n, name="invert")
    >>> list(builder.add_sink().build(num_threads=1, task_hook_factory=lambda info: [Tell(info)]))
    invert 2 1
    [1.0]
    """

    def __init__(self, info: StageInfo, interval: float = -1) -> None:
        self.info = info
        self.interval = interval
        self.num_tasks = 0
        self.num_success = 0
        self._lock = threading.Lock()
        self._all = Durations()
        self._lap = Durations()
        self._lap_tasks = 0

    @property
    def ave_time(self) -> float:
        """How long a successful call took on average, in seconds."""
        return self._all.mean

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        """Calls `interval_stats_callback` each interval and at the end."""
        from .tasks import every

        async with every(self.interval, self._tell):
            yield
        if self.interval > 0:
            self._log(self._stats(self.num_tasks, self._all))

    @asynccontextmanager
    async def task_hook(self, input_item: Any = None) -> AsyncIterator[None]:
        """Measures a call."""
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
        """Counts a call, from any thread; `None` for one that failed."""
        with self._lock:
            self.num_tasks += 1
            self._lap_tasks += 1
            if seconds is not None:
                self.num_success += 1
                self._all.record(seconds)
                self._lap.record(seconds)

    async def interval_stats_callback(self, stats: TaskPerfStats) -> None:
        """Is given what was measured in an interval. By default it is logged, at INFO.

        What it raises is logged, but for the last time: there it ends the pipeline with a
        `PipelineFailure`.
        """
        self._log(stats)

    async def _tell(self) -> None:
        with self._lock:
            stats = self._stats(self._lap_tasks, self._lap)
            self._lap_tasks = 0
            self._lap.clear()
        await self.interval_stats_callback(stats)

    def _stats(self, tasks: int, successes: Durations) -> TaskPerfStats:
        return TaskPerfStats(
            tasks,
            tasks - successes.count,
            successes.mean,
            successes.percentile(90),
            successes.percentile(99),
        )

    def _log(self, stats: TaskPerfStats) -> None:
        _LOGGER.info("[%s] %s", self.info, stats)


# How users write the methods, and what these are called with.
_METHODS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "stage_hook": ("async def stage_hook(self)", ()),
    "task_hook": ("async def task_hook(self, input_item=None)", (None,)),
}
_DECORATOR = "contextlib.asynccontextmanager"


def hooks_of(factory: Callable[[StageInfo], Iterable[TaskHook]], info: StageInfo) -> list[TaskHook]:
    """The hooks that a factory gives for a stage.

    Raises:
        TypeError: The factory cannot be called with a stage, or gives no list of hooks; or a
            hook's method cannot be called as it is, or is a coroutine function.
        ValueError: A hook's method is a generator that nobody made a context manager.
    """
    said = _does_not_take(factory, (info,))
    if said is not None:
        raise TypeError(
            f"task_hook_factory is called with one argument, the StageInfo of the stage {info}; {said}"
        )
    given: Any = factory(info)
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"task_hook_factory must give a list of TaskHooks for the stage {info}, [] where it has "
            f"none, not {shown(given)}"
        )
    hooks = list(given)
    for hook in hooks:
        _check(hook, info)
    return hooks


def not_a_context_manager(method: str, given: Any) -> TypeError:
    """What is raised where a hook's method gave something else than an async context manager."""
    signature, _ = _METHODS[method]
    return TypeError(
        f"{method} must give an async context manager, not {type(given).__name__!r}; write it as "
        f"`{signature}`, with one yield, and decorate it with {_DECORATOR}"
    )


def _check(hook: Any, info: StageInfo) -> None:
    if isinstance(hook, type):
        raise TypeError(
            f"task_hook_factory gave {shown(hook)} for the stage {info}, and no TaskHook; make one of "
            f"it, as in [{hook.__name__}()]"
        )
    for name, (signature, arguments) in _METHODS.items():
        method = getattr(hook, name, None)
        if not callable(method):
            raise TypeError(
                f"task_hook_factory gave {shown(hook)} for the stage {info}, and no TaskHook: it has "
                f"no method {name}"
            )
        _check_decorated(method, f"{type(hook).__name__}.{name}, of the stage {info},", signature)
        said = _does_not_take(method, arguments)
        if said is not None:
            called_with = "the item" if arguments else "nothing"
            raise TypeError(
                f"{type(hook).__name__}.{name}, which task_hook_factory gave for the stage {info}, is "
                f"called with {called_with}, as in `{signature}`; {said}"
            )


def _check_decorated(method: Callable[..., Any], what: str, signature: str) -> None:
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        raise ValueError(
            f"{what} is a generator, and no async context manager; decorate it with {_DECORATOR}"
        )
    if inspect.iscoroutinefunction(method):
        raise TypeError(
            f"{what} is a coroutine function, and no async context manager; write it as "
            f"`{signature}`, with one yield, and decorate it with {_DECORATOR}"
        )


def _does_not_take(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str | None:
    """Why a function cannot be called with these; `None` where it can, or does not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError):
        # Python 3.14 evaluates annotations, whose names may be for type checkers alone.
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"{signature} does not take that: {error}"
    return None
