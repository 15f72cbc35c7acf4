"""Everything on the event loop except coroutines of stages: hooks, queues, background tasks.

```text
start ── lifespans entered ── items … ── end of the pipeline ── last reports ── lifespans left ── end
         background tasks ────────────── cancelled
```
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from ..._locks import Latch
from .._failures.failure import Cancelled, FatalStageError, as_exception
from .._failures.log import log_failure
from .._failures.tracebacks import shorten
from .._hooks.background import BackgroundTaskFactory
from .._hooks.task_hooks import not_a_context_manager

T = TypeVar("T")


class Lifespan:
    """Contexts of a stage or queue, entered before its first item and left at the end.

    Args:
        name: The name of the stage or queue.
        contexts: Functions that create the contexts, the outermost first.
    """

    def __init__(
        self, name: str, contexts: Sequence[Callable[[], AbstractAsyncContextManager[Any]]]
    ) -> None:
        self.name = name
        self._contexts = contexts
        self._entered: concurrent.futures.Future[None] = concurrent.futures.Future()

    def wait(self) -> None:
        """Blocks until all contexts are entered. The thread of the event loop must not call this method.

        Raises:
            FatalStageError: A context failed.
        """
        self._entered.result()

    async def entered(self) -> None:
        """Waits on the event loop until all contexts are entered."""
        if not self._entered.done():
            # `asyncio.wait` does not cancel the future if the waiting task is cancelled.
            await asyncio.wait([asyncio.wrap_future(self._entered)])
        self._entered.result()

    async def run(self, ended: asyncio.Event) -> None:
        """Enters the contexts, waits for the end, and leaves them.

        Raises:
            Exception: An exception of the user's code.
        """
        try:
            async with AsyncExitStack() as stack:
                for make in self._contexts:
                    context = checked(make(), "stage_hook")
                    await stack.enter_async_context(context)
                self._entered.set_result(None)
                await ended.wait()
        except BaseException as raised:
            # This task is never cancelled, so the user's code has raised any exception.
            error = as_exception(raised)
            self.refuse(FatalStageError(self.name, error))
            if error is raised:
                raise
            raise error from raised
        error = RuntimeError("a stage_hook failed, and another hook suppressed the exception")
        self.refuse(FatalStageError(self.name, error))

    def refuse(self, failure: FatalStageError) -> None:
        """Fails waiting stages, if the contexts are not entered yet."""
        if not self._entered.done():
            self._entered.set_exception(failure)


class LoopSupervisor:
    """Runs lifespans, background tasks and submitted coroutines of one pipeline.

    Args:
        background_tasks: Functions that create background tasks.
    """

    def __init__(self, background_tasks: Sequence[BackgroundTaskFactory]) -> None:
        self._background_tasks = background_tasks
        self._lifespans: list[Lifespan] = []
        self._coroutines: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._loop: concurrent.futures.Future[asyncio.AbstractEventLoop]
        self._loop = concurrent.futures.Future()
        self._tasks: list[asyncio.Task[Any]] = []
        self._lifespan_tasks: list[asyncio.Task[None]] = []
        self._pipeline_ended: asyncio.Event
        # Tasks submitted by threads, each of which waits for its result.
        self._submitted: dict[asyncio.Task[None], Callable[[], bool]] = {}
        self._required: list[concurrent.futures.Future[None]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._loop_failure: FatalStageError | None = None
        self.failures: list[tuple[str, Exception]] = []
        """Exceptions that end the pipeline, with the names of their stages."""
        self.ended = Latch()
        """Opened when all coroutines of the supervisor have ended."""

    def add_lifespan(self, lifespan: Lifespan) -> None:
        """Adds a lifespan, before the start of the pipeline."""
        self._lifespans.append(lifespan)

    def add_coroutine(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Adds a coroutine that is cancelled at the end. The coroutine must handle its exceptions."""
        self._coroutines.append(make)

    def wait_before_end(self, done: concurrent.futures.Future[None]) -> None:
        """Keeps the event loop running until a future is done."""
        self._required.append(done)

    def add_failure(self, name: str, raised: BaseException) -> None:
        """Records an exception of a stage that ends the pipeline."""
        error = as_exception(raised)
        shorten(error)
        log_failure(name, error)
        self.failures.append((name, error))

    def loop_failed(self, failure: FatalStageError) -> None:
        """Records a failure of the event loop. The loop continues, but submitted coroutines fail."""
        self.add_failure(failure.stage, failure.error)
        self._loop_failure = failure

    def refuse_all(self) -> None:
        """Fails all waiting threads, because no event loop runs."""
        failure = self._loop_failure
        if failure is None:
            return
        if not self._loop.done():
            self._loop.set_exception(failure)
        for lifespan in self._lifespans:
            lifespan.refuse(failure)

    def close(self) -> None:
        """Marks the event loop as ended."""
        with self._lock:
            self._closed = True
        self.ended.open()

    @property
    def is_ending(self) -> bool:
        """Whether the pipeline is ending, so that tasks are cancelled for that reason."""
        return self._closed

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop. Waits for its start. The loop's own thread must not read this property."""
        return self._loop.result()

    def submit(
        self,
        make: Callable[[], Coroutine[Any, Any, None]],
        refuse: Callable[[], None],
        may_cancel: Callable[[], bool],
    ) -> None:
        """Runs a coroutine on the event loop. Thread-safe.

        Args:
            make: Creates the coroutine.
            refuse: Called on the event loop instead of `make`, if the pipeline has ended by then.
            may_cancel: Returns whether the task may be cancelled at the end of the pipeline. If not, the
                loop waits for the task.

        Raises:
            Cancelled: The pipeline has ended.
            FatalStageError: The event loop has failed.
        """
        loop = self.loop
        if self._loop_failure is not None:
            raise self._loop_failure

        def begin() -> None:
            if self._closed:
                refuse()
                return
            task = loop.create_task(make())
            self._submitted[task] = may_cancel
            task.add_done_callback(self._submitted.pop)

        with self._lock:
            if self._closed:
                raise Cancelled("the pipeline was stopped")
            loop.call_soon_threadsafe(begin)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the event loop and waits, for threads that end before the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def begin(self) -> None:
        """Starts lifespans, background tasks and coroutines. Runs on the event loop."""
        loop = asyncio.get_running_loop()
        self._pipeline_ended = asyncio.Event()
        self._lifespan_tasks = [
            loop.create_task(lifespan.run(self._pipeline_ended)) for lifespan in self._lifespans
        ]
        self._tasks = [loop.create_task(self._work(make)) for make in self._background_tasks]
        self._tasks += [loop.create_task(make()) for make in self._coroutines]
        self._loop.set_result(loop)

    async def end(self) -> None:
        """Ends lifespans, background tasks and coroutines, after those of stages are cancelled.

        Runs on the event loop.
        """
        with self._lock:
            self._closed = True
        # Submissions that are already scheduled are refused now.
        await asyncio.sleep(0)
        submitted = list(self._submitted)
        await _cancel([*self._tasks, *(task for task in submitted if self._submitted[task]())])
        await asyncio.gather(*submitted, return_exceptions=True)
        done = [asyncio.wrap_future(future) for future in self._required]
        await asyncio.gather(*done, return_exceptions=True)
        self._pipeline_ended.set()
        results = await asyncio.gather(*self._lifespan_tasks, return_exceptions=True)
        for lifespan, result in zip(self._lifespans, results, strict=True):
            if result is not None:
                self.add_failure(lifespan.name, result)
        self.ended.open()

    async def _work(self, make: BackgroundTaskFactory) -> None:
        name = getattr(make, "__name__", type(make).__name__)
        try:
            await make().run()
        except BaseException as error:
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise
            shorten(error)
            log_failure(f"background task {name}", error)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def checked(context: Any, method: str) -> AbstractAsyncContextManager[Any]:
    """Returns `context` if it is an async context manager.

    Raises:
        TypeError: `context` has another type.
    """
    if hasattr(type(context), "__aenter__") and hasattr(type(context), "__aexit__"):
        return context
    if asyncio.iscoroutine(context):
        # Avoids the warning about a coroutine that is never awaited.
        context.close()
    raise not_a_context_manager(method, context)
