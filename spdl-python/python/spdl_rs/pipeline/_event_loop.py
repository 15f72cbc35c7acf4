"""The event loop of a pipeline with coroutines: the body of its thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .. import _spdl_rs

if TYPE_CHECKING:
    from ._companions import Companions


class EventLoop:
    """Awaits what comes through an inbox, until that is closed.

    Args:
        inbox: Where it comes from.
        companions: What else runs meanwhile.
    """

    def __init__(self, inbox: _spdl_rs.Inbox, companions: Companions | None = None) -> None:
        self._inbox = inbox
        self._companions = companions
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unwanted: set[int] = set()

    def __call__(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve(loop))
        finally:
            try:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                loop.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        closed = loop.create_future()
        if self._companions is not None:
            self._companions.begin()
        loop.add_reader(self._inbox.fileno(), self._take, loop, closed)
        try:
            await closed
        finally:
            loop.remove_reader(self._inbox.fileno())
            self._unwanted.update(self._tasks)
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._companions is not None:
                await self._companions.end()

    def _take(self, loop: asyncio.AbstractEventLoop, closed: asyncio.Future[None]) -> None:
        jobs, unwanted, end = self._inbox.take()
        for job in jobs:
            self._tasks[job.id] = loop.create_task(self._run(job))
        for number in unwanted:
            task = self._tasks.get(number)
            if task is not None:
                self._unwanted.add(number)
                task.cancel()
        if end and not closed.done():
            closed.set_result(None)

    async def _run(self, job: _spdl_rs.Job) -> None:
        try:
            job.done(await job.start())
        except asyncio.CancelledError as cancelled:
            if job.id in self._unwanted:
                job.cancel()
            else:
                error = RuntimeError("a coroutine was cancelled, and not by the pipeline")
                error.__cause__ = cancelled
                job.fail(error)
        except BaseException as error:
            job.fail(error)
        finally:
            self._tasks.pop(job.id, None)
            self._unwanted.discard(job.id)
