"""Checks of the results of functions: coroutines and async generators are not items."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from .._failures.log import log_warning
from ..defs._ops import where

_CHECKED_TYPES = frozenset((types.CoroutineType, types.AsyncGeneratorType, types.GeneratorType))
# Types of callables that never return coroutines or generators.
_PLAIN = (type, types.BuiltinFunctionType, types.MethodDescriptorType)


class UnusableResultError(TypeError):
    """A function returned a coroutine or an async generator instead of an item."""

    _traceback_is_redundant = True


class ResultCheck:
    """Checks the results of the function of one stage.

    For wrapped functions and lambdas it is unknown before the call whether the result must be awaited or
    iterated. Coroutines and async generators are rejected. Generators are forwarded as items, like other
    iterables; one warning is logged, unless the next stage iterates the generators.

    Args:
        op: The function of the user, for messages.
        stage: The name of the stage.
        is_iterated: Whether the next stage iterates the results.
    """

    def __init__(self, op: Any, stage: str, is_iterated: bool) -> None:
        self._op = op
        self._stage = stage
        self._silent = is_iterated

    def wrap(self, kind: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a function that checks the results of `function`.

        The returned function raises `UnusableResultError`, a `TypeError`.
        """
        if kind == "await":

            async def awaited(item: Any) -> Any:
                result = await function(item)
                if type(result) in _CHECKED_TYPES:
                    self.check(result)
                return result

            return awaited
        if kind != "call" or isinstance(function, _PLAIN):
            return function

        def called(item: Any) -> Any:
            result = function(item)
            if type(result) in _CHECKED_TYPES:
                self.check(result)
            return result

        return called

    def check(self, result: Any) -> None:
        """Closes a coroutine, and logs or raises what to change.

        Raises:
            UnusableResultError: The result is a coroutine or an async generator.
        """
        if isinstance(result, types.GeneratorType):
            if not self._silent:
                self._silent = True
                log_warning(
                    f"{self._stage}: {where(self._op)} returns generators, which are forwarded as items; "
                    "to forward the values that they yield, add .disaggregate() after the stage, or use a generator "
                    "function (with `yield from`)"
                )
            return
        if isinstance(result, types.CoroutineType):
            # Avoids the warning about a coroutine that is never awaited.
            result.close()
            what, remedy = "a coroutine", "`async def op(item): return await ...`"
        else:
            what = "an async generator"
            remedy = "`async def op(item):` with `async for ...: yield ...` in it"
        raise UnusableResultError(
            f"{where(self._op)} returned {what}, which is not an item; stage {self._stage} cannot detect "
            "this in advance for lambdas and decorated functions: pass the async function itself, or "
            f"{remedy}"
        )
