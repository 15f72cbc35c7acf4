"""What a function may give as its result: nothing that is still to be awaited."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from .._failures.log import log_warning
from ..defs._ops import where

_UNDECIDED = frozenset((types.CoroutineType, types.AsyncGeneratorType, types.GeneratorType))
# They give nothing that would have to be awaited, and need not be asked.
_PLAIN = (type, types.BuiltinFunctionType, types.MethodDescriptorType)


class UnusableResultError(TypeError):
    """A function gave what is no item: something that is still to be awaited."""

    tells_all = True


class Results:
    """Looks at the results of one stage's function.

    Of a function that is wrapped in another one, or applied by a lambda, nobody can tell beforehand
    that its result is to be awaited or iterated. Coroutines and async generators are refused as they
    come. Generators go on as items, as any iterable does; that is logged once, unless the next stage
    takes them apart.

    Args:
        op: What the user gave, for messages.
        stage: Its stage's name.
        taken_apart: Whether the next stage iterates what it is given.
    """

    def __init__(self, op: Any, stage: str, taken_apart: bool) -> None:
        self._op = op
        self._stage = stage
        self._silent = taken_apart

    def wrap(self, kind: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What to call instead of a function of this kind. Its results are items.

        That raises `UnusableResultError`, a `TypeError`, where a result is none.
        """
        if kind == "await":

            async def awaited(item: Any) -> Any:
                result = await function(item)
                if type(result) in _UNDECIDED:
                    self.look_at(result)
                return result

            return awaited
        if kind != "call" or isinstance(function, _PLAIN):
            return function

        def called(item: Any) -> Any:
            result = function(item)
            if type(result) in _UNDECIDED:
                self.look_at(result)
            return result

        return called

    def look_at(self, result: Any) -> None:
        """Of a coroutine or generator: says what is to be done with it, or raises
        `UnusableResultError`."""
        if isinstance(result, types.GeneratorType):
            if not self._silent:
                self._silent = True
                log_warning(
                    f"{self._stage}: {where(self._op)} gives generators, which go on as items. To have "
                    "what they yield go on, put .disaggregate() behind the stage, or give it a "
                    "generator function: one with `yield from` in it"
                )
            return
        if isinstance(result, types.CoroutineType):
            # Nobody awaits it, of which there is nothing more to say.
            result.close()
            what, remedy = "a coroutine", "`async def op(item): return await ...`"
        else:
            what = "an async generator"
            remedy = "`async def op(item):` with `async for ...: yield ...` in it"
        raise UnusableResultError(
            f"{where(self._op)} gave {what}, which is no item; stage {self._stage} could not tell "
            "beforehand, as of a lambda or a decorated function: give it the async function itself, or "
            f"{remedy}"
        )
