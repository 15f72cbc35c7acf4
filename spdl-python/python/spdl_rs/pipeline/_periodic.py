"""Coroutines that are called again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ._logging import log_failure
from ._tasks import create_task


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
