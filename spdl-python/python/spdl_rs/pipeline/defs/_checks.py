"""Checks of arguments that several configurations share."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ..._arguments import flag as _flag
from ..._arguments import shown

MOST_THREADS = 2**16
"""More would take the machine down."""
_MOST = 2**63 - 1


def whole(
    name: str,
    value: Any,
    wrong_type: type[Exception] = ValueError,
    *,
    least: int = 1,
    most: int = _MOST,
) -> int:
    """A whole number from `least` to `most`.

    Raises:
        ValueError: It is less, or more.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(f"{name} must be an int, not {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {shown(value)}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, not {shown(value)}")
    return value


def threads(value: Any) -> int:
    """How many threads a pipeline has.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less than 1, or more than any machine can have.
    """
    return whole("num_threads", value, TypeError, most=MOST_THREADS)


def budget(value: Any, name: str = "max_failures") -> None:
    """Checks a budget of failures: a whole number, or a share.

    Raises:
        TypeError: It is neither, a float say: whether 0.1 is meant exactly, nobody knows.
        ValueError: The share is not in (0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise TypeError(
            f"{name} must be an int (a number of items) or a fractions.Fraction (a share), "
            f"not {shown(value)}"
        )
    if isinstance(value, Fraction) and not 0 < value <= 1:
        raise ValueError(f"{name} as a share must be in (0, 1], not {value}")


def flag(name: str, value: Any) -> bool:
    """`True` or `False`; 1 and 0 are taken for them, as settings in files have them.

    Raises:
        TypeError: It is neither: whether "no" is meant as yes, nobody knows.
    """
    return bool(value) if type(value) is int and value in (0, 1) else _flag(name, value)


def seconds(name: str, value: Any) -> float:
    """A number of seconds, negative or infinite ones too.

    Raises:
        TypeError: It is no number.
        ValueError: It is NaN.
    """
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        raise ValueError(f"{name} must be a number of seconds, not nan")
    return number


def timeout(value: Any, name: str = "timeout") -> float | None:
    """How long to wait: a number of seconds, or `None` for as long as it takes.

    Raises:
        TypeError, ValueError: As for `seconds`.
    """
    if value is None:
        return None
    number = seconds(name, value)
    # No clock counts as far.
    return None if number > _MOST_SECONDS else number


_MOST_SECONDS = 1e9


def function(name: str, value: Any) -> None:
    """Checks that something can be called.

    Raises:
        TypeError: It cannot.
    """
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {shown(value)}")


def text(name: str, value: Any) -> str:
    """A text.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {shown(value)}")
    return value


def native_budget(value: int | Fraction) -> int | float:
    """The same as the engine takes it: a share as a float that is not less."""
    if isinstance(value, Fraction):
        share = float(value)
        return share if share >= value else math.nextafter(share, 2.0)
    return max(-1, min(value, 2**62))
