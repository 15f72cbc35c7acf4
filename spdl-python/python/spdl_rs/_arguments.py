"""Checks of what users give: addresses, numbers and flags, before the native module sees them."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeAlias

Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

_SOURCE = "source must be a folder, an address, or a list of paths"


def addresses(source: Path | Iterable[Path]) -> tuple[list[str], bool]:
    """The addresses as text, and whether they are a list."""
    if isinstance(source, (str, bytes, os.PathLike)):
        return [os.fsdecode(source)], False
    try:
        paths = iter(source)
    except TypeError:
        raise TypeError(f"{_SOURCE}, not {type(source).__name__}") from None
    try:
        return [os.fsdecode(path) for path in paths], True
    except TypeError as error:
        raise TypeError(f"{_SOURCE}: {error}") from None


def labels_of(labels: Iterable[SupportsIndex] | None) -> list[int] | None:
    """Labels as numbers of 64 bits."""
    if labels is None:
        return None
    if isinstance(labels, (str, bytes)):
        raise TypeError(f"labels must be a list of whole numbers, not {type(labels).__name__}")
    numbers = (int(label) if isinstance(label, bool) else label for label in labels)
    return [whole("labels", label, -(2**63), 2**63 - 1) for label in numbers]


def names(name: str, value: Iterable[str] | None) -> list[str] | None:
    """Different texts, at least one, or nothing."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a list of str, not {type(value).__name__}")
    try:
        texts = list(value)
    except TypeError:
        raise TypeError(f"{name} must be a list of str, not {shown(value)}") from None
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a list of str, but {shown(text)} is in it")
    if not texts or len(set(texts)) < len(texts):
        raise ValueError(f"{name} must hold one name or more, and none twice")
    return texts


def whole(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    try:
        number = operator.index(_no_flag(value))
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {shown(value)}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {shown(number)}")
    return number


def _no_flag(value: SupportsIndex) -> SupportsIndex:
    if isinstance(value, bool):
        raise TypeError
    return value


def shown(value: object) -> str:
    """A value in messages: itself where it is short, else what it is."""
    if isinstance(value, int) and abs(value) >> 64:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}…"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def real(name: str, value: Any) -> float:
    """A number."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    return float(value)


def reals(name: str, value: Any, *counts: int) -> tuple[float, ...]:
    """So many numbers, or another of these counts."""
    values = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(values) not in counts:
        wanted = " or ".join(map(str, counts))
        raise TypeError(f"{name} must be a tuple of {wanted} numbers, not {value!r}")
    return tuple(real(name, number) for number in values)


def flag(name: str, value: Any) -> bool:
    """`True` or `False`, of NumPy's too."""
    # That of NumPy can only be there where NumPy is.
    numpy = sys.modules.get("numpy")
    if not isinstance(value, bool) and not (numpy and isinstance(value, numpy.bool_)):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of these words."""
    if not isinstance(value, str) or value not in choices:
        *some, last = [f'"{choice}"' for choice in choices]
        raise ValueError(f"{name} must be {', '.join(some)} or {last}, not {value!r}")
    return value


def text(name: str, value: Any) -> str | None:
    """A text, or nothing."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {shown(value)}")
    return value
