"""Checks of what users give, in one place: numbers, flags, texts, functions, lists and addresses."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeAlias, TypeVar

from ._errors import InvalidArgumentError

T = TypeVar("T")
Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

MOST_THREADS = 2**16
"""More would take the machine down."""
MOST_SIDE = 16_384
"""How many pixels a side of a sample may have."""
_LAYOUTS = ("nhwc-u8", "nhwc-f16", "nhwc-f32", "nchw-u8", "nchw-f16", "nchw-f32")
_MOST = 2**63 - 1
_MOST_SECONDS = 1e9

_SOURCE = "a folder, an address, or a list of paths"


def addresses(source: Path | Iterable[Path]) -> tuple[list[str], bool]:
    """The addresses as text, and whether they are a list."""
    if isinstance(source, (str, bytes, os.PathLike)):
        return [os.fsdecode(source)], False
    paths = listed("source", source, _SOURCE)
    try:
        return [os.fsdecode(path) for path in paths], True
    except TypeError as error:
        raise TypeError(f"source must be {_SOURCE}: {error}") from None


def listed(name: str, value: Iterable[T], what: str) -> list[T]:
    """What is in a list, or in anything else that can be iterated. In messages it is `what`."""
    # What it raises while it is iterated is its own.
    try:
        items = iter(value)
    except TypeError:
        raise TypeError(f"{name} must be {what}, not {shown(value)}") from None
    return list(items)


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
    texts = listed(name, value, "a list of str")
    for each in texts:
        if not isinstance(each, str):
            raise TypeError(f"{name} must be a list of str, but {shown(each)} is in it")
    if not texts or len(set(texts)) < len(texts):
        raise ValueError(f"{name} must hold one name or more, and none twice")
    return texts


def whole(
    name: str,
    value: SupportsIndex,
    least: int = 1,
    most: int | None = None,
    *,
    wrong_type: type[Exception] = TypeError,
) -> int:
    """A whole number from `least` to `most`, NumPy's too. A flag is none. Without `most` it is any
    that the native module takes.

    Raises:
        ValueError: It is less, or more.
        TypeError: It is none; or `wrong_type` is raised.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise wrong_type(f"{name} must be a whole number, not {shown(value)}")
    number = operator.index(value)
    if not least <= number <= (_MOST if most is None else most):
        allowed = f"{least} to {_MOST if most is None else most}"
        if most is None and number < least:
            allowed = f"at least {least}"
        raise ValueError(f"{name} must be {allowed}, not {shown(number)}")
    return number


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


def flag(name: str, value: Any, *, or_number: bool = False) -> bool:
    """`True` or `False`, of NumPy's too; with `or_number` 1 or 0, as settings in files have them."""
    if or_number and type(value) is int and value in (0, 1):
        return bool(value)
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


def layout(value: Any) -> str:
    """How pixels lie in memory, as far as NumPy has it; what else there is, the native module says."""
    if not isinstance(value, str):
        raise TypeError(f'layout must be "nhwc-u8" or "nchw-f32", not {value!r}')
    if value in ("nhwc-bf16", "nchw-bf16"):
        order, _ = value.split("-")
        raise NotImplementedError(
            f'layout="{value}": NumPy has no bfloat16; take "{order}-f32" or "{order}-u8", and convert '
            "batches where they are used, as with torch.from_numpy(images).to(torch.bfloat16)"
        )
    if value not in _LAYOUTS:
        names = ", ".join(f'"{name}"' for name in _LAYOUTS)
        raise InvalidArgumentError(
            f"layout must be one of {names}, not {shown(value)}", kind="invalid-argument"
        )
    return value


def text(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {shown(value)}")
    return value


def text_or_none(name: str, value: Any) -> str | None:
    """A text, or nothing."""
    return None if value is None else text(name, value)


def function(name: str, value: Any) -> None:
    """Checks that something can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {shown(value)}")


def seconds(name: str, value: Any) -> float:
    """A number of seconds, negative or infinite ones too, but not NaN."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        raise ValueError(f"{name} must be a number of seconds, not nan")
    return number


def timeout(value: Any, *, least: float = -math.inf) -> float | None:
    """How long to wait: a number of seconds, or `None` for as long as it takes."""
    if value is None:
        return None
    number = seconds("timeout", value)
    if number < least:
        raise ValueError(f"timeout must not be negative, not {number}")
    # No clock counts as far.
    return None if number > _MOST_SECONDS else number
