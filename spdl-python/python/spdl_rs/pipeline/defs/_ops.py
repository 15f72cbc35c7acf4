"""Inspection of functions: their kind, name and definition."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["call", "iterate", "await", "iterate-async"]


def unwrap(op: Any) -> Any:
    """Returns the function inside `functools.partial` objects."""
    while isinstance(op, functools.partial):
        op = op.func
    return op


def name_of(op: Any) -> str:
    """Returns the name of a function, or of the class of another callable."""
    op = unwrap(op)
    name = getattr(op, "__name__", None)
    return name if isinstance(name, str) else type(op).__name__


def function_of(op: Any, called: str = "an op") -> Callable[[Any], Any]:
    """Returns the function to call for each item: `op`, or its `__getitem__`.

    Args:
        op: The function or object.
        called: The name of `op` in messages.

    Raises:
        TypeError: `op` can neither be called nor indexed, or does not accept one argument.
    """
    if callable(op):
        _check_takes_one(op)
        return op
    if hasattr(type(op), "__getitem__"):
        return op.__getitem__
    raise TypeError(
        f"{called} must be callable or have __getitem__; {type(op).__name__!r} objects have neither"
    )


def _check_takes_one(op: Callable[..., Any]) -> None:
    """Refuses functions that do not accept one argument."""
    try:
        signature = inspect.signature(op)
    except (TypeError, ValueError, NameError):
        # Some C functions have no signature. Python 3.14 evaluates annotations, which may name types
        # that exist for type checkers only.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"{where(op)} is called with one argument, the item, but its signature is {signature}: {error}"
        ) from None


def kind_of(op: Any) -> Kind:
    """Returns whether an op returns a result, yields results, or is async."""
    function = unwrap(op)
    # For objects with `__call__`, the kind is that of the method `__call__`.
    method = type(function).__call__ if callable(function) else None
    for candidate in (function, method):
        if inspect.isasyncgenfunction(candidate):
            return "iterate-async"
        if inspect.iscoroutinefunction(candidate):
            return "await"
        if inspect.isgeneratorfunction(candidate):
            return "iterate"
    return "call"


def code_of(op: Any) -> CodeType | None:
    """Returns the code object that runs, if the op is Python code."""
    function = unwrap(op)
    if not callable(function):
        return _code(getattr(type(function), "__getitem__", None))
    return _code(function) or _code(type(function).__call__)


def where(op: Any, *, full_path: bool = False) -> str:
    """Returns the name of an op, with file and line if known: `decode at train.py:12`."""
    code = _code(unwrap(op))
    name = name_of(op)
    if code is None:
        return name
    path = code.co_filename if full_path else os.path.basename(code.co_filename)
    return f"{name} at {path}:{code.co_firstlineno}"


def _code(function: Any) -> CodeType | None:
    """Returns the code object of a function, or of the function that it wraps."""
    # `inspect.unwrap` raises ValueError for objects with arbitrary attributes, such as mocks.
    with contextlib.suppress(ValueError):
        function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
