"""Helpers for asyncio: tasks whose failures are logged, and periodic calls."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from .._failures.log import log_failure

T = TypeVar("T")

_LOGGER = logging.getLogger("spdl_rs.pipeline")

_repeats: Counter[tuple[str, int]] = Counter()
_lock = threading.Lock()


def create_task(
    coro: Coroutine[Any, Any, T],
    name: str | None = None,
    log_cancelled: bool = False,
    suppress_repeated_logs: bool = False,
    suppression_threshold: int = 5,
    suppression_warning_interval: int = 100,
) -> asyncio.Task[T]:
    """Creates a task on the running event loop, like `asyncio.create_task`, and logs its failure.

    Args:
        coro: The coroutine.
        name: The name of the task.
        log_cancelled: Whether to log that the task was cancelled.
        suppress_repeated_logs: Whether to log repeated failures at the same line less often.
        suppression_threshold: How many repeated failures are logged.
        suppression_warning_interval: The number of further failures after which their count is logged.

    Raises:
        RuntimeError: There is no running event loop.

    >>> import asyncio
    >>> from spdl_rs.pipeline import create_task
    >>> async def main():
    ...     return await create_task(asyncio.sleep(0, "done"))
    >>> asyncio.run(main())
    'done'
    """
    task = asyncio.create_task(coro, name=name)

    def log(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            if log_cancelled:
                _LOGGER.warning("task %s was cancelled", task.get_name())
            return
        error = task.exception()
        if error is None:
            return
        if suppress_repeated_logs and _is_repeated(
            error, suppression_threshold, suppression_warning_interval
        ):
            return
        log_failure(f"task {task.get_name()}", error)

    task.add_done_callback(log)
    return task


def _is_repeated(error: BaseException, threshold: int, interval: int) -> bool:
    """Returns whether a failure is suppressed. Logs the reminders."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return False
    place = (frames[-1].filename, frames[-1].lineno or 0)
    with _lock:
        _repeats[place] += 1
        count = _repeats[place]
    if count <= threshold:
        return False
    if count == threshold + 1:
        _LOGGER.warning("repeated errors at %s:%d are no longer logged", *place)
    elif (count - threshold) % max(1, interval) == 0:
        _LOGGER.warning("%d errors so far at %s:%d", count, *place)
    return True


@asynccontextmanager
async def call_periodically(
    interval: float, call: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Calls a function every `interval` seconds, if positive, and once when the block is left.

    Exceptions are logged. The last call raises its exceptions.
    """
    left = asyncio.Event()

    async def repeat() -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + interval
        while True:
            try:
                await asyncio.wait_for(left.wait(), max(0.0, due - loop.time()))
                return
            except asyncio.TimeoutError:
                pass
            # Missed calls are skipped.
            due = max(due + interval, loop.time())
            try:
                await call()
            except Exception as error:
                log_failure("a callback of statistics", error)

    calls = create_task(repeat()) if interval > 0 else None
    try:
        yield
    finally:
        left.set()
        if calls is not None:
            await calls
        await call()
