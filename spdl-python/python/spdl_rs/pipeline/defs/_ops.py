"""What kind of function an op is, and what it is called."""

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
    """The function inside partial applications."""
    while isinstance(op, functools.partial):
        op = op.func
    return op


def name_of(op: Any) -> str:
    """The name of a function, or else of its class."""
    op = unwrap(op)
    name = getattr(op, "__name__", None)
    return name if isinstance(name, str) else type(op).__name__


def function_of(op: Any, called: str = "an op") -> Callable[[Any], Any]:
    """What is called for each item: the op, or its `__getitem__`. In messages it is `called` so.

    Raises:
        TypeError: It can be neither called nor indexed, or not with one item.
    """
    if callable(op):
        _check_takes_one(op)
        return op
    if hasattr(type(op), "__getitem__"):
        return op.__getitem__
    raise TypeError(
        f"{called} must be callable, or have __getitem__; {type(op).__name__!r} objects are neither"
    )


def _check_takes_one(op: Callable[..., Any]) -> None:
    """Refuses now what would fail for each item."""
    try:
        signature = inspect.signature(op)
    except (TypeError, ValueError, NameError):
        # Not every function of C tells its own; and Python 3.14 evaluates annotations, whose names may
        # be for type checkers alone.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"{where(op)} is called with one argument, the item, which {signature} does not take: {error}"
        ) from None


def kind_of(op: Any) -> Kind:
    """In what way an op gives its results."""
    function = unwrap(op)
    # An object with `__call__` is what that is.
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
    """What runs, where that is code of Python's: a function's, or that of an object's method."""
    function = unwrap(op)
    if not callable(function):
        return _code(getattr(type(function), "__getitem__", None))
    return _code(function) or _code(type(function).__call__)


def where(op: Any) -> str:
    """File and line of an op's definition, where it has one: `decode at train.py:12`."""
    code = _code(unwrap(op))
    name = name_of(op)
    if code is None:
        return name
    return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _code(function: Any) -> CodeType | None:
    """The code of a function, or of what it wraps, where that is Python's."""
    # Of some objects every attribute is there: they wrap something without end.
    with contextlib.suppress(ValueError):
        function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
