"""The workers that make the batches of an epoch: the consumer's thread, or a worker pool."""

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
from ._statistics import Meter, ReadStatistics


class Raised:
    """An exception of a task, as its result."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


Result = tuple[int, Any]
"""The number of a task, and its result or `Raised`."""


class Workers(Protocol):
    """Runs tasks, each with a number."""

    is_running: bool
    """True while `take` runs a task itself. An interrupted task stays in the queue."""

    def submit(self, number: int, task: Any) -> None:
        """Adds a task to the queue. Does not block."""
        ...

    def take(self, timeout: float | None) -> Result:
        """Waits for the next result.

        Raises:
            TimeoutError: No result was ready within `timeout` seconds.
        """
        ...

    def close(self) -> None:
        """Stops. Tasks in the queue are dropped; `close` does not wait for running tasks."""
        ...

    def end(self) -> None:
        """Stops after the last result was taken. Waits for worker processes."""
        ...

    @property
    def read_statistics(self) -> ReadStatistics:
        """A function that returns the statistics, also after `close`. Does not keep self alive."""
        ...


class CallerWorkers:
    """Runs each task in the consumer's thread, when its result is requested."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work
        self._tasks: deque[tuple[int, Any]] = deque()
        self.is_running = False
        self._meter = Meter()
        weakref.finalize(self, self._meter.end)

    def submit(self, number: int, task: Any) -> None:
        self._tasks.append((number, task))

    def take(self, timeout: float | None) -> Result:
        del timeout
        number, task = self._tasks[0]
        began = time.monotonic()
        self.is_running = True
        try:
            result = self._work(task)
        except Exception as error:
            result = Raised(error)
        self.is_running = False
        self._meter.record(time.monotonic() - began, isinstance(result, Raised))
        # The task is removed last, so that Ctrl-C leaves the task in the queue.
        self._tasks.popleft()
        return number, result

    def close(self) -> None:
        self._tasks.clear()
        self._meter.end()

    def end(self) -> None:
        self.close()

    @property
    def read_statistics(self) -> ReadStatistics:
        return self._meter.statistics


class ThreadWorkers:
    """Runs tasks in the worker pool of a pipeline.

    Args:
        work: The function called with each task. Its method `close`, if any, is called at the end; its method
            `wait`, if any, is called before, after the last result was taken.
        num_threads: The number of tasks that run concurrently.
        in_order: If true, results have the order of their tasks, else of their completion.
        max_results: The maximum number of tasks submitted and not taken.
        init: Called first in each thread, with the number of the thread.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        *,
        num_threads: int,
        in_order: bool,
        max_results: int,
        init: Callable[[int], None],
    ) -> None:
        self.is_running = False
        # No thread waits for tasks, so no thread must be woken at the end.
        self._tasks = _spdl_rs.TaskQueue()
        config = (
            PipelineBuilder()
            .add_source(self._tasks)
            .pipe(
                _CatchExceptions(work, init),
                name="fetch",
                concurrency=num_threads,
                output_order="input" if in_order else "completion",
            )
            .add_sink(max_results)
            .get_config()
        )
        self._pipeline: Pipeline[Result] = build_unprofiled(config, num_threads)
        self._wait_for_work: Callable[[], None] | None = getattr(work, "wait", None)
        self._close_work: Callable[[], None] | None = getattr(work, "close", None)
        end_before(self)
        self._pipeline.start()

    def submit(self, number: int, task: Any) -> None:
        self._tasks.put((number, task))

    def take(self, timeout: float | None) -> Result:
        try:
            return self._pipeline.get_item(timeout=timeout)
        except EOFError:
            raise StoppedError("the loader was stopped; iterate it again", kind="stopped") from None

    def end(self) -> None:
        if self._wait_for_work is not None:
            self._wait_for_work()
        self.close()

    def close(self) -> None:
        if self._close_work is not None:
            self._close_work()
        # A thread of the pipeline may call `close`. A thread cannot join itself, so do not wait.
        with contextlib.suppress(TimeoutError, PipelineFailure, RuntimeError):
            self._pipeline.stop(timeout=0)

    def __del__(self) -> None:
        # If Ctrl-C interrupts this call, the pipeline ends when it is garbage-collected.
        if hasattr(self, "_close_work"):
            self.close()

    @property
    def read_statistics(self) -> ReadStatistics:
        return self._pipeline._started().monitor.statistics


class _CatchExceptions:
    """Returns exceptions of tasks as results, so that they keep their order and identity."""

    def __init__(self, work: Callable[[Any], Any], init: Callable[[int], None]) -> None:
        self._work = work
        self._init = init
        self._numbers = itertools.count()
        self._thread = threading.local()

    def __call__(self, task: tuple[int, Any]) -> Result:
        number, argument = task
        try:
            self._init_thread()
            return number, self._work(argument)
        except BaseException as error:
            return number, Raised(error)

    def _init_thread(self) -> None:
        here = self._thread
        if not hasattr(here, "number"):
            here.number, here.is_initialized = next(self._numbers), False
        if not here.is_initialized:
            # A thread whose initialization failed tries again with its next task.
            self._init(here.number)
            here.is_initialized = True
