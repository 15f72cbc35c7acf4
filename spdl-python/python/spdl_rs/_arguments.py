"""Checks of what users give: addresses, numbers and flags, before the native module sees them."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeAlias

import numpy

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
    return [whole("labels", label, -(2**63), 2**63 - 1) for label in labels]


def names(name: str, value: Iterable[str] | None) -> list[str] | None:
    """Different texts, at least one, or nothing."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a list of str, not {type(value).__name__}")
    texts = list(value)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a list of str, but {text!r} is in it")
    if not texts or len(set(texts)) < len(texts):
        raise ValueError(f"{name} must hold one name or more, and none twice")
    return texts


def whole(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {number}")
    return number


def real(name: str, value: Any) -> float:
    """A number."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
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
    if not isinstance(value, (bool, numpy.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
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
        raise TypeError(f"{name} must be a str, not {value!r}")
    return value
