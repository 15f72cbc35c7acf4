"""Who works on the tasks of an epoch: the caller, or threads of a pipeline."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .. import _spdl_rs
from .._errors import StoppedError
from ..pipeline import Pipeline, PipelineBuilder, PipelineFailure
from ..pipeline._build.build import build_unprofiled
from ..pipeline._processes.exit import end_before
from ._statistics import Meter, Tell


class Raised:
    """What a task raised, in place of its result."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


Result = tuple[int, Any]
"""The number of a task, and what it gave."""


class Workers(Protocol):
    """Works on tasks that are handed in with a number each."""

    is_at_work: bool
    """Whether `take` works on a task itself, which stays there if that is interrupted."""

    def submit(self, number: int, task: Any) -> None:
        """Hands a task in. Does not wait."""
        ...

    def take(self, timeout: float | None) -> Result:
        """Waits for the next result.

        Raises:
            TimeoutError: There was none in time.
        """
        ...

    def close(self) -> None:
        """Ends. What was not begun is never begun; what is under way is not waited for."""
        ...

    @property
    def tell(self) -> Tell:
        """Tells what they did so far, also after their end. Does not keep them working."""
        ...


class InCaller:
    """Works on a task when its result is asked for, in the thread that asks."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work
        self._tasks: deque[tuple[int, Any]] = deque()
        self.is_at_work = False
        self._meter = Meter()
        weakref.finalize(self, self._meter.end)

    def submit(self, number: int, task: Any) -> None:
        self._tasks.append((number, task))

    def take(self, timeout: float | None) -> Result:
        del timeout
        number, task = self._tasks[0]
        began = time.monotonic()
        self.is_at_work = True
        try:
            result = self._work(task)
        except Exception as error:
            result = Raised(error)
        self.is_at_work = False
        self._meter.record(time.monotonic() - began, isinstance(result, Raised))
        # After Ctrl-C it is still there.
        self._tasks.popleft()
        return number, result

    def close(self) -> None:
        self._tasks.clear()
        self._meter.end()

    @property
    def tell(self) -> Tell:
        return self._meter.statistics


class InThreads:
    """Works on tasks in threads, on the engine of pipelines.

    Args:
        work: What is done with each task. If it has `close`, that is called at the end.
        num_threads: How many tasks are worked on at once.
        in_order: Whether results come in the order of their tasks, or as they are ready.
        most: How many tasks are handed in and not taken at most.
        begin: What each thread does first, given its number.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        *,
        num_threads: int,
        in_order: bool,
        most: int,
        begin: Callable[[int], None],
    ) -> None:
        self.is_at_work = False
        # No thread waits for tasks, so that nobody has to be told of their end.
        self._tasks = _spdl_rs.TaskQueue()
        config = (
            PipelineBuilder()
            .add_source(self._tasks)
            .pipe(
                _Caught(work, begin),
                name="fetch",
                concurrency=num_threads,
                output_order="input" if in_order else "completion",
            )
            .add_sink(most)
            .get_config()
        )
        self._pipeline: Pipeline[Result] = build_unprofiled(config, num_threads)
        self._close_work: Callable[[], None] | None = getattr(work, "close", None)
        end_before(self)
        self._pipeline.start()

    def submit(self, number: int, task: Any) -> None:
        self._tasks.put((number, task))

    def take(self, timeout: float | None) -> Result:
        try:
            return self._pipeline.get_item(timeout=timeout)
        except EOFError:
            raise StoppedError("the loader was stopped; iterate it anew", kind="stopped") from None

    def close(self) -> None:
        if self._close_work is not None:
            self._close_work()
        # It may be a thread of the pipeline that lets go of it: one cannot wait for oneself.
        with contextlib.suppress(TimeoutError, PipelineFailure, RuntimeError):
            self._pipeline.stop(timeout=0)

    def __del__(self) -> None:
        # Where Ctrl-C comes before this, the pipeline ends since nobody holds it.
        if hasattr(self, "_close_work"):
            self.close()

    @property
    def tell(self) -> Tell:
        return self._pipeline._started().monitor.statistics


class _Caught:
    """Makes what a task raises its result, so that it comes in its turn, as the object it is."""

    def __init__(self, work: Callable[[Any], Any], begin: Callable[[int], None]) -> None:
        self._work = work
        self._begin = begin
        self._numbers = itertools.count()
        self._thread = threading.local()

    def __call__(self, task: tuple[int, Any]) -> Result:
        number, argument = task
        try:
            self._begin_thread()
            return number, self._work(argument)
        except BaseException as error:
            return number, Raised(error)

    def _begin_thread(self) -> None:
        here = self._thread
        if not hasattr(here, "number"):
            here.number, here.has_begun = next(self._numbers), False
        if not here.has_begun:
            # A thread that fails to begin tries again with its next task.
            self._begin(here.number)
            here.has_begun = True
