"""Stages with hooks: functions that are called within the hooks of their stage."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack
from typing import Any

from ..._closing import aclosing, closing
from .._failures.failure import Cancelled, FatalStageError
from .._failures.log import log_failure
from .._hooks.task_hooks import TaskHook, TaskStatsHook
from .supervisor import Lifespan, LoopSupervisor, checked

_END = object()


class HookedStage:
    """The hooks of one stage.

    Worker threads still call the functions: the thread makes the event loop enter the hooks, calls the
    function, and makes the event loop leave the hooks, in the same asyncio task.

    Args:
        name: The name of the stage.
        hooks: The hooks, the outermost first.
        supervisor: Runs the hooks.
    """

    def __init__(self, name: str, hooks: Sequence[TaskHook], supervisor: LoopSupervisor) -> None:
        self._hooks = hooks
        self._supervisor = supervisor
        self._lifespan = Lifespan(name, [hook.stage_hook for hook in hooks])
        supervisor.add_lifespan(self._lifespan)
        self._wrong_type: FatalStageError | None = None
        # Hooks that only measure do not need the event loop.
        self._meters = [hook for hook in hooks if isinstance(hook, TaskStatsHook)]
        self._only_meters = len(self._meters) == len(hooks) and all(
            type(hook).task_hook is TaskStatsHook.task_hook for hook in self._meters
        )

    def wrap(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function to call instead of a function of this kind."""
        if kind == "draw":
            return lambda item, draws: self.call(function, item, item, draws)
        if kind == "await":
            return self._awaiting(function)
        if kind == "iterate-async":
            return self._iterating_async(function)
        if kind == "iterate":
            return self._iterating(function)
        return lambda item: self.call(function, item)

    def wrap_aggregators(self, make: Callable[[], Any]) -> Callable[[], HookedAggregator]:
        """Returns a factory of aggregators that enter the hooks for each input item."""
        return lambda: HookedAggregator(self, make())

    def call(self, function: Callable[..., Any], item: Any, *arguments: Any) -> Any:
        """Calls a function on this thread within the hooks, with `item` or with other arguments.

        Returns `None` if the function failed and a hook suppressed the exception.
        """
        self._lifespan.wait()
        arguments = arguments or (item,)
        if self._only_meters:
            return self._measure(function, arguments)
        entered = _HookedCall(self, item)
        if not entered.wait():
            return None
        try:
            result = function(*arguments)
        except BaseException as error:
            entered.leave(error)
            return None
        entered.leave(None)
        return result

    def _measure(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        began = time.monotonic()
        try:
            result = function(*arguments)
        except StopAsyncIteration:
            raise
        except Exception:
            self._record(None)
            raise
        if result is not _END:
            self._record(time.monotonic() - began)
        return result

    def _record(self, seconds: float | None) -> None:
        for meter in self._meters:
            meter.record(seconds)

    async def enter(self, stack: AsyncExitStack, item: Any) -> None:
        """Enters the hooks for an item. Runs on the event loop.

        Raises:
            FatalStageError: A hook does not return an async context manager.
        """
        returned = [hook.task_hook(item) for hook in self._hooks]
        try:
            contexts = [checked(context, "task_hook") for context in returned]
        except TypeError as error:
            if self._wrong_type is None:
                # The traceback contains no frames of the user.
                error.__traceback__ = None
                log_failure(self._lifespan.name, error)
                self._wrong_type = FatalStageError(self._lifespan.name, error)
            raise self._wrong_type from None
        for context in contexts:
            await stack.enter_async_context(context)

    def _awaiting(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        async def between_hooks(item: Any) -> Any:
            await self._lifespan.entered()
            result = None
            async with AsyncExitStack() as stack:
                await self.enter(stack, item)
                result = await function(item)
            return result

        return between_hooks

    def _iterating(self, function: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Any]:
        def next_of(results: Iterator[Any]) -> Any:
            result = next(results, _END)
            if result is _END and not self._only_meters:
                # Hooks receive the end of the iteration as an exception, as for async iterables.
                raise StopAsyncIteration
            return result

        def between_hooks(item: Any) -> Iterator[Any]:
            with closing(iter(function(item))) as results:
                while True:
                    ended = False

                    def step() -> Any:
                        nonlocal ended
                        try:
                            return next_of(results)
                        except StopAsyncIteration:
                            ended = True
                            raise

                    try:
                        result = self.call(lambda _: step(), item)
                    except StopAsyncIteration:
                        if not ended:
                            raise
                        return
                    # A hook may have suppressed `StopAsyncIteration`.
                    if ended or result is _END:
                        return
                    yield result

        return between_hooks

    def _iterating_async(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def between_hooks(item: Any) -> AsyncIterator[Any]:
            await self._lifespan.entered()
            async with aclosing(aiter(function(item))) as results:
                while True:
                    ended, result = False, None
                    try:
                        async with AsyncExitStack() as stack:
                            await self.enter(stack, item)
                            try:
                                result = await anext(results)
                            except StopAsyncIteration:
                                ended = True
                                raise
                    except StopAsyncIteration:
                        if not ended:
                            raise
                    if ended:
                        return
                    yield result

        return between_hooks

    def begin(self, call: _HookedCall) -> None:
        """Makes the event loop enter the hooks."""
        self._supervisor.submit(call.run, call.refuse, call.may_be_cancelled)

    @property
    def is_ending(self) -> bool:
        """Whether the pipeline is ending, so that tasks are cancelled for that reason."""
        return self._supervisor.is_ending


class _HookedCall:
    """One call of a function on a worker thread, within the hooks of its stage."""

    def __init__(self, stage: HookedStage, item: Any) -> None:
        self._stage = stage
        self._item = item
        self._entered: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        # The future is done after the call. Its result is the exception of the function, if any.
        self._called: concurrent.futures.Future[BaseException | None] = concurrent.futures.Future()
        stage.begin(self)

    def wait(self) -> bool:
        """Waits until the hooks are entered. Returns whether to call the function."""
        return self._entered.result()

    def leave(self, error: BaseException | None) -> None:
        """Leaves the hooks after the call.

        Raises:
            BaseException: Exceptions that the hooks raise or propagate.
        """
        self._called.set_result(error)
        self._left.result()

    def may_be_cancelled(self) -> bool:
        """Returns whether the function has not been called yet. After the call the hooks must be left."""
        return not self._entered.done()

    def refuse(self) -> None:
        """Fails the call because the pipeline has ended."""
        self._entered.set_exception(Cancelled("the pipeline was stopped"))

    async def run(self) -> None:
        """Enters the hooks, waits for the function, and leaves the hooks. Runs on the event loop."""
        try:
            async with AsyncExitStack() as stack:
                await self._stage.enter(stack, self._item)
                self._entered.set_result(True)
                error = await asyncio.wrap_future(self._called)
                if error is not None:
                    raise error
        except asyncio.CancelledError as error:
            # The function or a hook may also have raised CancelledError.
            by_pipeline = self._stage.is_ending and not self._called.done()
            self._answer(Cancelled("the pipeline was stopped") if by_pipeline else error)
        except BaseException as error:
            self._answer(error)
        else:
            self._answer(None)

    def _answer(self, error: BaseException | None) -> None:
        # If a hook failed and another hook suppressed the exception, the function is not called.
        answer = self._left if self._entered.done() else self._entered
        if error is not None:
            answer.set_exception(error)
        elif answer is self._left:
            self._left.set_result(None)
        else:
            self._entered.set_result(False)


class HookedAggregator:
    """An aggregator that enters the hooks for each input item."""

    def __init__(self, stage: HookedStage, aggregator: Any) -> None:
        self._stage = stage
        self._aggregator = aggregator

    def accumulate(self, item: Any) -> Any:
        return self._stage.call(self._aggregator.accumulate, item)

    def flush(self) -> Any:
        return self._aggregator.flush()
