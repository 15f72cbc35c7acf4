"""Hooks are checked once, when the pipeline is built, and not with each item."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from .._arguments import shown
from ._hooks import TaskHook
from ._stage_info import StageInfo

# How users write the methods, and what these are called with.
_METHODS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "stage_hook": ("async def stage_hook(self)", ()),
    "task_hook": ("async def task_hook(self, input_item=None)", (None,)),
}
_DECORATOR = "contextlib.asynccontextmanager"


def hooks_of(factory: Callable[[StageInfo], Iterable[TaskHook]], info: StageInfo) -> list[TaskHook]:
    """The hooks that a factory gives for a stage.

    Raises:
        TypeError: The factory cannot be called with a stage, or gives no list of hooks; or a
            hook's method cannot be called as it is, or is a coroutine function.
        ValueError: A hook's method is a generator that nobody made a context manager.
    """
    said = _does_not_take(factory, (info,))
    if said is not None:
        raise TypeError(
            f"task_hook_factory is called with one argument, the StageInfo of the stage {info}; {said}"
        )
    given: Any = factory(info)
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"task_hook_factory must give a list of TaskHooks for the stage {info}, [] where it has "
            f"none, not {shown(given)}"
        )
    hooks = list(given)
    for hook in hooks:
        _check(hook, info)
    return hooks


def not_a_context_manager(method: str, given: Any) -> TypeError:
    """What is raised where a hook's method gave something else than an async context manager."""
    signature, _ = _METHODS[method]
    return TypeError(
        f"{method} must give an async context manager, not {type(given).__name__!r}; write it as "
        f"`{signature}`, with one yield, and decorate it with {_DECORATOR}"
    )


def _check(hook: Any, info: StageInfo) -> None:
    if isinstance(hook, type):
        raise TypeError(
            f"task_hook_factory gave {shown(hook)} for the stage {info}, and no TaskHook; make one of "
            f"it, as in [{hook.__name__}()]"
        )
    for name, (signature, arguments) in _METHODS.items():
        method = getattr(hook, name, None)
        if not callable(method):
            raise TypeError(
                f"task_hook_factory gave {shown(hook)} for the stage {info}, and no TaskHook: it has "
                f"no method {name}"
            )
        _check_decorated(method, f"{type(hook).__name__}.{name}, of the stage {info},", signature)
        said = _does_not_take(method, arguments)
        if said is not None:
            called_with = "the item" if arguments else "nothing"
            raise TypeError(
                f"{type(hook).__name__}.{name}, which task_hook_factory gave for the stage {info}, is "
                f"called with {called_with}, as in `{signature}`; {said}"
            )


def _check_decorated(method: Callable[..., Any], what: str, signature: str) -> None:
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        raise ValueError(
            f"{what} is a generator, and no async context manager; decorate it with {_DECORATOR}"
        )
    if inspect.iscoroutinefunction(method):
        raise TypeError(
            f"{what} is a coroutine function, and no async context manager; write it as "
            f"`{signature}`, with one yield, and decorate it with {_DECORATOR}"
        )


def _does_not_take(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str | None:
    """Why a function cannot be called with these; `None` where it can, or does not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError):
        # Python 3.14 evaluates annotations, whose names may be for type checkers alone.
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"{signature} does not take that: {error}"
    return None
