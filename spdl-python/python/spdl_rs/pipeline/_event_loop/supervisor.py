"""What runs on the event loop beside a pipeline: lives of stages and queues, background tasks.

```text
begin ── lives entered ── items … ── end of the pipeline ── last reports ── lives left ── over
         background tasks ─────────── cancelled
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


class Life:
    """The life of a stage or a queue: what is entered before its first item, and left at the end.

    Args:
        name: Of the stage or the queue.
        contexts: Make what is to be entered, the outermost first.
    """

    def __init__(
        self, name: str, contexts: Sequence[Callable[[], AbstractAsyncContextManager[Any]]]
    ) -> None:
        self.name = name
        self._contexts = contexts
        self._begun: concurrent.futures.Future[None] = concurrent.futures.Future()

    def wait(self) -> None:
        """Waits, on any other thread than the event loop's, until all has been entered.

        Raises:
            FatalStageError: That failed.
        """
        self._begun.result()

    async def begun(self) -> None:
        """The same on the event loop."""
        if not self._begun.done():
            # Waited for in this way, it is not cancelled with whoever waits.
            await asyncio.wait([asyncio.wrap_future(self._begun)])
        self._begun.result()

    async def live(self, over: asyncio.Event) -> None:
        """Enters, waits until it is over, and leaves.

        Raises:
            Exception: That of the user's code.
        """
        try:
            async with AsyncExitStack() as stack:
                for make in self._contexts:
                    context = checked(make(), "stage_hook")
                    await stack.enter_async_context(context)
                self._begun.set_result(None)
                await over.wait()
        except BaseException as raised:
            # Nobody cancels a life: it ends by itself, and what is raised is the user's.
            error = as_exception(raised)
            self.refuse(FatalStageError(self.name, error))
            if error is raised:
                raise
            raise error from raised
        error = RuntimeError("a stage_hook failed, and another one kept that to itself")
        self.refuse(FatalStageError(self.name, error))

    def refuse(self, failure: FatalStageError) -> None:
        """Tells whoever waits that it has failed, where it has not begun."""
        if not self._begun.done():
            self._begun.set_exception(failure)


class Companions:
    """All that runs beside one pipeline.

    Args:
        background_tasks: Make the tasks.
    """

    def __init__(self, background_tasks: Sequence[BackgroundTaskFactory]) -> None:
        self._background_tasks = background_tasks
        self._lives: list[Life] = []
        self._errands: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._loop: concurrent.futures.Future[asyncio.AbstractEventLoop]
        self._loop = concurrent.futures.Future()
        self._tasks: list[asyncio.Task[Any]] = []
        self._living: list[asyncio.Task[None]] = []
        self._over: asyncio.Event
        # What threads have asked for, of which each waits until it has been answered.
        self._asked: dict[asyncio.Task[None], Callable[[], bool]] = {}
        self._before_the_end: list[concurrent.futures.Future[None]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._loop_failure: FatalStageError | None = None
        self.failures: list[tuple[str, Exception]] = []
        """What failed, and of which stage: it ends the pipeline."""
        self.over = Latch()
        """Whether all has ended."""

    def add_life(self, life: Life) -> None:
        """Adds what is entered when the pipeline begins."""
        self._lives.append(life)

    def add_errand(self, errand: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Adds what runs meanwhile, and is cancelled at the end; whatever it raises is its own."""
        self._errands.append(errand)

    def wait_for(self, done: concurrent.futures.Future[None]) -> None:
        """Keeps the event loop running until this is done."""
        self._before_the_end.append(done)

    def failed(self, name: str, raised: BaseException) -> None:
        """Takes in that something of a stage failed for good."""
        error = as_exception(raised)
        shorten(error)
        log_failure(name, error)
        self.failures.append((name, error))

    def loop_failed(self, failure: FatalStageError) -> None:
        """Takes in that something ended the event loop that should not have: it goes on, but
        whatever asks for it fails."""
        self.failed(failure.stage, failure.error)
        self._loop_failure = failure

    def refuse_all(self) -> None:
        """Refuses whoever waits for an event loop that does not run."""
        failure = self._loop_failure
        if failure is None:
            return
        if not self._loop.done():
            self._loop.set_exception(failure)
        for life in self._lives:
            life.refuse(failure)

    def close(self) -> None:
        """Says that nothing runs any more."""
        with self._lock:
            self._closed = True
        self.over.open()

    @property
    def is_ending(self) -> bool:
        """Whether what is cancelled on the event loop is so since the pipeline ends."""
        return self._closed

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, for other threads; waits for its beginning."""
        return self._loop.result()

    def ask(
        self,
        ask: Callable[[], Coroutine[Any, Any, None]],
        refuse: Callable[[], None],
        may_cancel: Callable[[], bool],
    ) -> None:
        """Runs a coroutine on the event loop, asked by any thread.

        Args:
            ask: Makes it.
            refuse: Is called instead, on the event loop, where the pipeline has ended meanwhile.
            may_cancel: Says at the end of the pipeline whether it is cancelled, or waited for.

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
            task = loop.create_task(ask())
            self._asked[task] = may_cancel
            task.add_done_callback(self._asked.pop)

        with self._lock:
            if self._closed:
                raise Cancelled("the pipeline was stopped")
            loop.call_soon_threadsafe(begin)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits this on the event loop, for a thread that the end of the loop waits for."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def begin(self) -> None:
        """Begins, on the event loop."""
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._living = [loop.create_task(life.live(self._over)) for life in self._lives]
        self._tasks = [loop.create_task(self._work(make)) for make in self._background_tasks]
        self._tasks += [loop.create_task(errand()) for errand in self._errands]
        self._loop.set_result(loop)

    async def end(self) -> None:
        """Ends, on the event loop. What stages do has been cancelled before."""
        with self._lock:
            self._closed = True
        # What threads asked for before is refused now.
        await asyncio.sleep(0)
        asked = list(self._asked)
        await _cancel([*self._tasks, *(task for task in asked if self._asked[task]())])
        await asyncio.gather(*asked, return_exceptions=True)
        done = [asyncio.wrap_future(future) for future in self._before_the_end]
        await asyncio.gather(*done, return_exceptions=True)
        self._over.set()
        results = await asyncio.gather(*self._living, return_exceptions=True)
        for life, result in zip(self._lives, results, strict=True):
            if result is not None:
                self.failed(life.name, result)
        self.over.open()

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
    """What a hook gave, where it is what it should be.

    Raises:
        TypeError: It is no async context manager.
    """
    if hasattr(type(context), "__aenter__") and hasattr(type(context), "__aexit__"):
        return context
    if asyncio.iscoroutine(context):
        # Nobody awaits it, of which there is nothing more to say.
        context.close()
    raise not_a_context_manager(method, context)
