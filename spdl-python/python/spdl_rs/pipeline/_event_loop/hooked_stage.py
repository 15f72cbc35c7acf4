"""Stages with hooks: what is called for each item instead of the stage's own function."""

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
from .supervisor import Companions, Life, checked

_END = object()


class HookedStage:
    """The hooks of one stage.

    A function that runs on a thread is called there: the thread asks the event loop to enter the
    hooks, calls the function, and asks it to leave them, in the same task.

    Args:
        name: The stage's.
        hooks: The outermost first.
        companions: What runs the hooks.
    """

    def __init__(self, name: str, hooks: Sequence[TaskHook], companions: Companions) -> None:
        self._hooks = hooks
        self._companions = companions
        self._life = Life(name, [hook.stage_hook for hook in hooks])
        companions.add_life(self._life)
        self._misfit: FatalStageError | None = None
        # Those that only measure need no event loop.
        self._meters = [hook for hook in hooks if isinstance(hook, TaskStatsHook)]
        self._only_meters = len(self._meters) == len(hooks) and all(
            type(hook).task_hook is TaskStatsHook.task_hook for hook in self._meters
        )

    def wrap(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """What to call instead of a function of this kind."""
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
        """What makes aggregators with hooks around each item that they take in."""
        return lambda: HookedAggregator(self, make())

    def call(self, function: Callable[..., Any], item: Any, *arguments: Any) -> Any:
        """Calls a function on this thread, with `item` or with other arguments, between the hooks.
        `None` where the function failed, and a hook kept that to itself.
        """
        self._life.wait()
        arguments = arguments or (item,)
        if self._only_meters:
            return self._measure(function, arguments)
        entered = _Entered(self, item)
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
        """Enters the hooks for an item, on the event loop.

        Raises:
            FatalStageError: A hook gives no async context manager, and would for no item.
        """
        given = [hook.task_hook(item) for hook in self._hooks]
        try:
            contexts = [checked(context, "task_hook") for context in given]
        except TypeError as error:
            if self._misfit is None:
                # Its traceback shows nothing of the user's.
                error.__traceback__ = None
                log_failure(self._life.name, error)
                self._misfit = FatalStageError(self._life.name, error)
            raise self._misfit from None
        for context in contexts:
            await stack.enter_async_context(context)

    def _awaiting(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        async def between_hooks(item: Any) -> Any:
            await self._life.begun()
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
                # Hooks are told of the end as they are for async iterables.
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
                    # A hook may have kept the end to itself.
                    if ended or result is _END:
                        return
                    yield result

        return between_hooks

    def _iterating_async(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def between_hooks(item: Any) -> AsyncIterator[Any]:
            await self._life.begun()
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

    def begin(self, entered: _Entered) -> None:
        """Asks the event loop to enter the hooks."""
        self._companions.ask(entered.hold, entered.refuse, entered.may_be_cancelled)

    @property
    def is_ending(self) -> bool:
        """Whether what is cancelled is so since the pipeline ends."""
        return self._companions.is_ending


class _Entered:
    """The hooks of a stage around what a thread does for one item."""

    def __init__(self, stage: HookedStage, item: Any) -> None:
        self._stage = stage
        self._item = item
        self._entered: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        # What the function raised, if anything, once it has been called.
        self._called: concurrent.futures.Future[BaseException | None] = concurrent.futures.Future()
        stage.begin(self)

    def wait(self) -> bool:
        """Waits until the hooks have been entered. Says whether the function is to be called."""
        return self._entered.result()

    def leave(self, error: BaseException | None) -> None:
        """Leaves the hooks after the function was called.

        Raises:
            BaseException: What the hooks let pass, or raise.
        """
        self._called.set_result(error)
        self._left.result()

    def may_be_cancelled(self) -> bool:
        """Whether the function has not been called yet. Once it has, the hooks are left."""
        return not self._entered.done()

    def refuse(self) -> None:
        """Says that the pipeline has ended."""
        self._entered.set_exception(Cancelled("the pipeline was stopped"))

    async def hold(self) -> None:
        """Enters the hooks, waits for the function, and leaves them; on the event loop."""
        try:
            async with AsyncExitStack() as stack:
                await self._stage.enter(stack, self._item)
                self._entered.set_result(True)
                error = await asyncio.wrap_future(self._called)
                if error is not None:
                    raise error
        except asyncio.CancelledError as error:
            # The function, or a hook, may have raised that, too.
            by_pipeline = self._stage.is_ending and not self._called.done()
            self._answer(Cancelled("the pipeline was stopped") if by_pipeline else error)
        except BaseException as error:
            self._answer(error)
        else:
            self._answer(None)

    def _answer(self, error: BaseException | None) -> None:
        # Where a hook refused, and another one kept that to itself, there is nothing to call.
        answer = self._left if self._entered.done() else self._entered
        if error is not None:
            answer.set_exception(error)
        elif answer is self._left:
            self._left.set_result(None)
        else:
            self._entered.set_result(False)


class HookedAggregator:
    """An aggregator with hooks around each item that it takes in."""

    def __init__(self, stage: HookedStage, aggregator: Any) -> None:
        self._stage = stage
        self._aggregator = aggregator

    def accumulate(self, item: Any) -> Any:
        return self._stage.call(self._aggregator.accumulate, item)

    def flush(self) -> Any:
        return self._aggregator.flush()
