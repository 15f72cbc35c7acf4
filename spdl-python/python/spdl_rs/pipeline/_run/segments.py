"""Pipelines of several runs, with queues of Python's between them.

```text
run ──► Pump ──► queue ──► Relay ──► run               a queue that works in a way of its own
run ──► Pump ──► queue ──┐
run ──► Pump ──► queue ──┴► op ──► queue ──► Relay ──► run          a function that merges
```

The queues are on the event loop; pumps and relays are threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from typing import TYPE_CHECKING, Any

from ... import _spdl_rs
from ..._closing import aclosing, closing
from .._failures.failure import (
    Cancelled,
    FatalStageError,
    PipelineFailure,
    stages_and_errors,
)
from .._hooks.markers import _EOF, _EPOCH_END
from ..defs._stage_info import StageInfo

if TYPE_CHECKING:
    from .._event_loop.supervisor import Companions
    from .._hooks.queues import AsyncQueue
    from ..defs._configs import MergeOp

# From this many calls on a share of failures is judged.
_PROBATION = 100
_END = object()
# How long a queue that says it is not empty may take to give an item, where no more are put in.
_PATIENCE_S = 1.0


class Pump:
    """Puts what a run gives into a queue: the body of a thread.

    Args:
        run: The run.
        queue: The queue.
        companions: Are told of failures.
        relay: Takes what is put in; it ends where the queue does not take its end in.
    """

    def __init__(
        self,
        run: _spdl_rs.PipelineRun,
        queue: AsyncQueue,
        companions: Companions,
        relay: Relay | None = None,
    ) -> None:
        self._run = run
        self._queue = queue
        self._companions = companions
        self._relay = relay

    def __call__(self) -> None:
        try:
            self._run.start()
            while True:
                item = self._run.next()
                if item is not None:
                    self._put(item[0])
                elif self._run.ended:
                    break
                else:
                    self._put(_EPOCH_END)
            self._put(_EOF)
        except Cancelled:
            pass
        except PipelineFailure as failure:
            self._companions.failures.extend(stages_and_errors(failure))
            self._put_last()
        except FatalStageError:
            # That of the event loop, which the companions know.
            pass
        except BaseException as error:
            self._companions.failed(self._queue.name, error)
            self._put_last()
        finally:
            self._run.stop()

    def _put(self, item: Any) -> None:
        wait(self._companions, lambda: self._queue.put(item))

    def _put_last(self) -> None:
        try:
            self._put(_EOF)
        except (Cancelled, FatalStageError):
            pass
        except BaseException:
            # The queue has failed before, which has been told.
            if self._relay is not None:
                self._relay.end()


class Relay:
    """Gives what comes out of a queue, until its end: a source."""

    def __init__(self, queue: AsyncQueue, companions: Companions) -> None:
        self._queue = queue
        self._companions = companions
        # On the event loop.
        self._is_ended = False
        self._getting: asyncio.Task[Any] | None = None

    def end(self) -> None:
        """Ends it behind what is in the queue; called by any thread."""
        with contextlib.suppress(Cancelled, FatalStageError):
            self._companions.ask(self._end, lambda: None, lambda: True)

    async def _end(self) -> None:
        self._is_ended = True
        if self._getting is not None:
            self._getting.cancel()

    async def _get(self) -> Any:
        if not self._is_ended:
            self._getting = asyncio.current_task()
            try:
                return await self._queue.get()
            except asyncio.CancelledError:
                if not self._is_ended or self._companions.is_ending:
                    raise
            finally:
                self._getting = None
        if self._queue.empty():
            return _EOF
        try:
            return await asyncio.wait_for(self._queue.get(), _PATIENCE_S)
        except asyncio.TimeoutError:
            return _EOF

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                item = wait(self._companions, self._get)
            except Cancelled:
                return
            if item is _EOF:
                return
            yield item


def wait(companions: Companions, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Awaits something on the event loop, for a thread.

    Raises:
        Cancelled: The pipeline has ended.
    """
    reply: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def refuse() -> None:
        reply.set_exception(Cancelled("the pipeline was stopped"))

    async def answer() -> None:
        try:
            reply.set_result(await ask())
        except asyncio.CancelledError as error:
            if companions.is_ending:
                refuse()
            else:
                reply.set_exception(error)
        except BaseException as error:
            reply.set_exception(error)

    companions.ask(answer, refuse, lambda: True)
    return reply.result()


class Merging:
    """A function of the user's that merges queues into one.

    Args:
        op: The function.
        info: What it is told of itself.
        inputs: The queues that it takes items from.
        halts: End what puts items into each of them.
        output: The queue that it puts items into.
        companions: Are told where it fails.
    """

    def __init__(
        self,
        op: MergeOp,
        info: StageInfo,
        inputs: Sequence[AsyncQueue],
        halts: Sequence[Callable[[], None]],
        output: AsyncQueue,
        companions: Companions,
    ) -> None:
        self._op = op
        self._info = info
        self._inputs = inputs
        self._halts = halts
        self._output = output
        self._companions = companions

    async def run(self) -> None:
        """Runs it. What it leaves in its queues is dropped, and what fills them ended."""
        try:
            await self._op(self._info, list(self._inputs), self._output)
        except BaseException as error:
            if self._companions.is_ending and isinstance(error, asyncio.CancelledError):
                raise
            self._companions.failed(str(self._info), error)
        finally:
            for halt in self._halts:
                halt()
        drains = [asyncio.create_task(_drain(queue)) for queue in self._inputs]
        try:
            await self._output.put(_EOF)
        finally:
            for drain in drains:
                drain.cancel()


async def _drain(queue: AsyncQueue) -> None:
    while True:
        await queue.get()


class SharedLimits:
    """What several runs share: how many functions run at once, and the budget of failures.

    Args:
        num_threads: How many functions run at once that are not async.
        max_failures: As the engine takes it.
    """

    def __init__(self, num_threads: int, max_failures: int | float) -> None:
        self._threads = threading.BoundedSemaphore(num_threads)
        self._budget = max_failures
        self._lock = threading.Lock()
        self._calls = 0
        self._failures = 0

    def wrap(
        self, kind: str, name: str, function: Callable[..., Any], shares_threads: bool
    ) -> Callable[..., Any]:
        """A function that counts for the limits, instead of one of this kind."""
        if kind == "await":
            return self._awaiting(name, function)
        if kind == "iterate-async":
            return self._iterating_async(name, function)
        if kind == "iterate":
            return self._iterating(name, function, shares_threads)
        return self._calling(name, function, shares_threads)

    def wrap_aggregators(
        self, name: str, make: Callable[[], Any]
    ) -> Callable[[], CountedAggregator]:
        """What makes aggregators of which each call counts."""
        return lambda: CountedAggregator(make(), functools.partial(self._counted, name))

    def _calling(
        self, name: str, function: Callable[..., Any], shares_threads: bool
    ) -> Callable[..., Any]:
        def limited(*arguments: Any) -> Any:
            with self._counted(name), self._thread(shares_threads):
                return function(*arguments)

        return limited

    def _iterating(
        self, name: str, function: Callable[[Any], Iterable[Any]], shares_threads: bool
    ) -> Callable[[Any], Any]:
        def limited(item: Any) -> Iterator[Any]:
            with self._counted(name):
                with self._thread(shares_threads):
                    made = iter(function(item))
                with closing(made) as results:
                    while True:
                        with self._thread(shares_threads):
                            result = next(results, _END)
                        if result is _END:
                            return
                        yield result

        return limited

    def _awaiting(
        self, name: str, function: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Any]:
        async def limited(item: Any) -> Any:
            with self._counted(name):
                return await function(item)

        return limited

    def _iterating_async(
        self, name: str, function: Callable[[Any], AsyncIterable[Any]]
    ) -> Callable[[Any], Any]:
        async def limited(item: Any) -> AsyncIterator[Any]:
            with self._counted(name):
                async with aclosing(aiter(function(item))) as results:
                    async for result in results:
                        yield result

        return limited

    @contextlib.contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._count(name, error)
            raise
        self._count(name, None)

    def _thread(self, shares_threads: bool) -> contextlib.AbstractContextManager[Any]:
        return self._threads if shares_threads else contextlib.nullcontext()

    def _count(self, name: str, error: Exception | None) -> None:
        """Counts a call, and its failure.

        Raises:
            FatalStageError: The budget is used up.
        """
        with self._lock:
            self._calls += 1
            if error is None:
                return
            self._failures += 1
            if isinstance(self._budget, int):
                is_over = 0 <= self._budget < self._failures
            else:
                is_over = self._calls >= _PROBATION and self._failures > self._budget * self._calls
        if is_over and not isinstance(error, (FatalStageError, Cancelled)):
            raise FatalStageError(name, error) from error


class CountedAggregator:
    """An aggregator of which each call counts for the limits."""

    def __init__(
        self, aggregator: Any, counted: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._aggregator = aggregator
        self._counted = counted

    def accumulate(self, item: Any) -> Any:
        with self._counted():
            return self._aggregator.accumulate(item)

    def flush(self) -> Any:
        return self._aggregator.flush()
