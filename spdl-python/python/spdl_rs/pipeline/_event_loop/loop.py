"""The event loop of a pipeline with coroutines: the body of its thread."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING

from ... import _spdl_rs
from .._failures.failure import FatalStageError, as_exception
from .._failures.log import log_failure

if TYPE_CHECKING:
    from .supervisor import Companions

_NAME = "the event loop"


class EventLoop:
    """Awaits what comes through an inbox, until that is closed.

    Where it fails itself, the pipeline fails with whatever asks for it from then on.

    Args:
        inbox: Where it comes from.
        companions: What else runs meanwhile.
    """

    def __init__(self, inbox: _spdl_rs.Inbox, companions: Companions | None = None) -> None:
        self._inbox = inbox
        self._companions = companions
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unwanted: set[int] = set()
        self._failure: FatalStageError | None = None

    def __call__(self) -> None:
        try:
            self._run_loop()
        except BaseException as error:
            self._fail(error)
            self._refuse_all()
        finally:
            if self._companions is not None:
                self._companions.close()

    def _run_loop(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            served = loop.create_task(self._serve(loop))
            while not served.done():
                try:
                    loop.run_until_complete(served)
                except BaseException as error:
                    if served.done():
                        raise
                    # A task of the user's raised SystemExit, say. The others go on to their ends.
                    self._fail(error)
        finally:
            try:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                loop.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        closed = loop.create_future()
        loop.add_reader(self._inbox.fileno(), self._take, loop, closed)
        if self._companions is not None:
            self._companions.begin()
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
            if self._failure is not None:
                job.fail(self._failure)
            else:
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

    def _fail(self, error: BaseException) -> None:
        """Lets the pipeline fail, with the first failure of the loop."""
        if self._failure is not None:
            return
        failure = as_exception(error)
        self._failure = FatalStageError(_NAME, failure)
        if self._companions is None:
            log_failure(_NAME, failure)
        else:
            self._companions.loop_failed(self._failure)

    def _refuse_all(self) -> None:
        """Lets all jobs fail until the inbox is closed, where no loop runs."""
        if self._companions is not None:
            self._companions.refuse_all()
        mail = select.poll()
        mail.register(self._inbox.fileno(), select.POLLIN)
        end = False
        while not end:
            mail.poll()
            jobs, _, end = self._inbox.take()
            for job in jobs:
                if self._failure is not None:
                    job.fail(self._failure)
