"""The event loop of a pipeline: the main function of its thread."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING

from ... import _spdl_rs
from .._failures.failure import FatalStageError, as_exception
from .._failures.log import log_failure

if TYPE_CHECKING:
    from .supervisor import LoopSupervisor

_NAME = "the event loop"


class EventLoop:
    """Runs the coroutines of a job queue until the queue is closed.

    If the loop itself fails, the pipeline fails, and so do jobs that are submitted later.

    Args:
        jobs: The queue of jobs.
        supervisor: Runs hooks, queues and background tasks on the same loop.
    """

    def __init__(self, jobs: _spdl_rs.Inbox, supervisor: LoopSupervisor | None = None) -> None:
        self._jobs = jobs
        self._supervisor = supervisor
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancelled: set[int] = set()
        self._failure: FatalStageError | None = None

    def __call__(self) -> None:
        try:
            self._jobs.run_loop(self._run_loop)
        except BaseException as error:
            self._fail(error)
            self._refuse_all()
        finally:
            if self._supervisor is not None:
                self._supervisor.close()

    def _run_loop(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            serving = loop.create_task(self._serve(loop))
            while not serving.done():
                try:
                    loop.run_until_complete(serving)
                except BaseException as error:
                    if serving.done():
                        raise
                    # For example, a task raised SystemExit. Other tasks run to their ends.
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
        loop.add_reader(self._jobs.fileno(), self._take, loop, closed)
        if self._supervisor is not None:
            self._supervisor.begin()
        try:
            await closed
        finally:
            loop.remove_reader(self._jobs.fileno())
            self._cancelled.update(self._tasks)
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._supervisor is not None:
                await self._supervisor.end()

    def _take(self, loop: asyncio.AbstractEventLoop, closed: asyncio.Future[None]) -> None:
        jobs, cancelled, end = self._jobs.take()
        for job in jobs:
            if self._failure is not None:
                job.fail(self._failure)
            else:
                self._tasks[job.id] = loop.create_task(self._run(job))
        for number in cancelled:
            task = self._tasks.get(number)
            if task is not None:
                self._cancelled.add(number)
                task.cancel()
        if end and not closed.done():
            closed.set_result(None)

    async def _run(self, job: _spdl_rs.Job) -> None:
        try:
            job.done(await job.start())
        except asyncio.CancelledError as cancelled:
            if job.id in self._cancelled:
                job.cancel()
            else:
                error = RuntimeError("a coroutine was cancelled, but not by the pipeline")
                error.__cause__ = cancelled
                job.fail(error)
        except BaseException as error:
            job.fail(error)
        finally:
            self._tasks.pop(job.id, None)
            self._cancelled.discard(job.id)

    def _fail(self, error: BaseException) -> None:
        """Makes the pipeline fail with the first failure of the loop."""
        if self._failure is not None:
            return
        failure = as_exception(error)
        self._failure = FatalStageError(_NAME, failure)
        if self._supervisor is None:
            log_failure(_NAME, failure)
        else:
            self._supervisor.loop_failed(self._failure)

    def _refuse_all(self) -> None:
        """Fails all jobs until the queue is closed, because no loop runs."""
        if self._supervisor is not None:
            self._supervisor.refuse_all()
        readable = select.poll()
        readable.register(self._jobs.fileno(), select.POLLIN)
        end = False
        while not end:
            readable.poll()
            jobs, _, end = self._jobs.take()
            for job in jobs:
                if self._failure is not None:
                    job.fail(self._failure)
