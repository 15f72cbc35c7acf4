"""Tasks of `asyncio` whose failures are logged, and how failures are logged."""

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
    """Makes a task on the running event loop, as `asyncio.create_task` does, and logs its failure.

    Args:
        coro: What to await.
        name: The task's name.
        log_cancelled: Whether it is logged where the task is cancelled.
        suppress_repeated_logs: Whether failures are logged less often where they are raised again
            and again in the same line.
        suppression_threshold: How many of these are logged.
        suppression_warning_interval: After how many more there is a reminder each time.

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
    """Whether a failure has been logged often enough. Logs the reminders."""
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
        _LOGGER.warning("errors repeat at %s:%d; no more of them are logged", *place)
    elif (count - threshold) % max(1, interval) == 0:
        _LOGGER.warning("there have been %d errors at %s:%d", count, *place)
    return True


@asynccontextmanager
async def every(interval: float, call: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Calls every `interval` seconds, where that is positive; and once when the block is left.

    What a call raises is logged; what the last one raises is raised.
    """
    over = asyncio.Event()

    async def repeat() -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + interval
        while True:
            try:
                await asyncio.wait_for(over.wait(), max(0.0, due - loop.time()))
                return
            except asyncio.TimeoutError:
                pass
            # A call that takes longer than the interval is not followed by several at once.
            due = max(due + interval, loop.time())
            try:
                await call()
            except Exception as error:
                log_failure("a callback of statistics", error)

    calls = create_task(repeat()) if interval > 0 else None
    try:
        yield
    finally:
        over.set()
        if calls is not None:
            await calls
        await call()
