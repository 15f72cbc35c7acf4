"""Pipelines that consist of several native runs, connected by Python queues.

```text
run ──► Pump ──► queue ──► Relay ──► run                            a custom queue
run ──► Pump ──► queue ──┐
run ──► Pump ──► queue ──┴► op ──► queue ──► Relay ──► run          a custom merge function
```

Queues belong to the event loop. Pumps and relays are threads.
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
    from .._event_loop.supervisor import LoopSupervisor
    from .._hooks.queues import AsyncQueue
    from ..defs._configs import MergeOp

# The number of calls after which a failure budget given as a fraction applies.
_PROBATION_CALLS = 100
_END = object()
# How long to wait for each remaining item of a queue that was closed because of a failure.
_DRAIN_TIMEOUT_S = 1.0


class Pump:
    """Puts the items of a run into a queue. The main function of a thread.

    Args:
        run: The run.
        queue: The queue.
        supervisor: Receives failures.
        relay: The consumer of the queue. The pump ends the relay if the end-of-data marker cannot be put.
    """

    def __init__(
        self,
        run: _spdl_rs.PipelineRun,
        queue: AsyncQueue,
        supervisor: LoopSupervisor,
        relay: Relay | None = None,
    ) -> None:
        self._run = run
        self._queue = queue
        self._supervisor = supervisor
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
            self._supervisor.failures.extend(stages_and_errors(failure))
            self._put_last()
        except FatalStageError:
            # A failure of the event loop, which the supervisor knows already.
            pass
        except BaseException as error:
            self._supervisor.add_failure(self._queue.name, error)
            self._put_last()
        finally:
            self._run.stop()

    def _put(self, item: Any) -> None:
        await_on_loop(self._supervisor, lambda: self._queue.put(item))

    def _put_last(self) -> None:
        try:
            self._put(_EOF)
        except (Cancelled, FatalStageError):
            pass
        except BaseException:
            # The queue has failed before, and its failure was reported.
            if self._relay is not None:
                self._relay.end()


class Relay:
    """A source that yields the items of a queue until its end."""

    def __init__(self, queue: AsyncQueue, supervisor: LoopSupervisor) -> None:
        self._queue = queue
        self._supervisor = supervisor
        # The following attributes are used on the event loop only.
        self._is_ended = False
        self._getting: asyncio.Task[Any] | None = None

    def end(self) -> None:
        """Ends the iteration after the items that are in the queue. Thread-safe."""
        with contextlib.suppress(Cancelled, FatalStageError):
            self._supervisor.submit(self._end, lambda: None, lambda: True)

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
                if not self._is_ended or self._supervisor.is_ending:
                    raise
            finally:
                self._getting = None
        if self._queue.empty():
            return _EOF
        try:
            return await asyncio.wait_for(self._queue.get(), _DRAIN_TIMEOUT_S)
        except asyncio.TimeoutError:
            return _EOF

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                item = await_on_loop(self._supervisor, self._get)
            except Cancelled:
                return
            if item is _EOF:
                return
            yield item


def await_on_loop(supervisor: LoopSupervisor, make: Callable[[], Awaitable[Any]]) -> Any:
    """Awaits the result of `make` on the event loop, and blocks the calling thread.

    Raises:
        Cancelled: The pipeline has ended.
    """
    reply: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def refuse() -> None:
        reply.set_exception(Cancelled("the pipeline was stopped"))

    async def answer() -> None:
        try:
            reply.set_result(await make())
        except asyncio.CancelledError as error:
            if supervisor.is_ending:
                refuse()
            else:
                reply.set_exception(error)
        except BaseException as error:
            reply.set_exception(error)

    supervisor.submit(answer, refuse, lambda: True)
    return reply.result()


class MergeTask:
    """Runs a function of the user that merges queues into one.

    Args:
        op: The function.
        info: The first argument of the function.
        inputs: The queues that the function takes items from.
        halts: Functions that stop the producers of these queues.
        output: The queue that the function puts items into.
        supervisor: Receives failures.
    """

    def __init__(
        self,
        op: MergeOp,
        info: StageInfo,
        inputs: Sequence[AsyncQueue],
        halts: Sequence[Callable[[], None]],
        output: AsyncQueue,
        supervisor: LoopSupervisor,
    ) -> None:
        self._op = op
        self._info = info
        self._inputs = inputs
        self._halts = halts
        self._output = output
        self._supervisor = supervisor

    async def run(self) -> None:
        """Runs the function, then stops the producers and drops remaining input items."""
        try:
            await self._op(self._info, list(self._inputs), self._output)
        except BaseException as error:
            if self._supervisor.is_ending and isinstance(error, asyncio.CancelledError):
                raise
            self._supervisor.add_failure(str(self._info), error)
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
    """Limits that several runs share: concurrently running functions, and the failure budget.

    Args:
        num_threads: The number of functions that may run at the same time; async functions are not counted.
        max_failures: The failure budget, in the engine's form.
    """

    def __init__(
        self, num_threads: int, max_failures: int | float | tuple[float, int, bool]
    ) -> None:
        self._threads = threading.BoundedSemaphore(num_threads)
        self._budget, self._after = (
            max_failures[:2]
            if isinstance(max_failures, tuple)
            else (max_failures, _PROBATION_CALLS)
        )
        self._lock = threading.Lock()
        self._calls = 0
        self._failures = 0

    def wrap(
        self, kind: str, name: str, function: Callable[..., Any], shares_threads: bool
    ) -> Callable[..., Any]:
        """Returns a function that applies the limits to calls of a function of this kind."""
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
        """Returns a factory of aggregators whose calls are counted."""
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
        """Counts a call and its failure.

        Raises:
            FatalStageError: The failure budget is exceeded.
        """
        with self._lock:
            self._calls += 1
            if error is None:
                return
            self._failures += 1
            if isinstance(self._budget, int):
                is_over = 0 <= self._budget < self._failures
            else:
                is_over = self._calls >= self._after and self._failures > self._budget * self._calls
        if is_over and not isinstance(error, (FatalStageError, Cancelled)):
            raise FatalStageError(name, error) from error


class CountedAggregator:
    """An aggregator whose calls are counted by `SharedLimits`."""

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
