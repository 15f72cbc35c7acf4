"""Checks of arguments that several configurations share."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any


# What every number of the native module can be.
_MOST = 2**62


def whole(name: str, value: Any, wrong_type: type[Exception] = ValueError) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: It is less; or so large that it makes no sense.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return not_huge(name, value)


def not_huge(name: str, value: Any) -> Any:
    """Passes on what is no number that native code cannot hold.

    Raises:
        ValueError: It is one.
    """
    if isinstance(value, int) and value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST:,}, and is larger")
    return value


def seconds(name: str, value: float | None) -> float | None:
    """A time, or none.

    Raises:
        ValueError: It is too large for a float.
        TypeError: It is no number.
    """
    try:
        return None if value is None else float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a number of seconds") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}") from None


def budget(value: Any) -> None:
    """Checks a budget of failures: a whole number, or a share.

    Raises:
        TypeError: It is neither, a float say: whether 0.1 is meant exactly, nobody knows.
        ValueError: The share is not in (0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise TypeError(
            "max_failures must be an int (a number of items) or a fractions.Fraction (a share), "
            f"not {type(value).__name__}"
        )
    if isinstance(value, Fraction) and not 0 < value <= 1:
        raise ValueError(f"max_failures as a share must be in (0, 1], not {value}")


def native_budget(value: int | Fraction) -> int | float:
    """The same as the engine takes it: a share as a float that is not less."""
    if isinstance(value, Fraction):
        share = float(value)
        return share if share >= value else math.nextafter(share, 2.0)
    return max(-1, min(value, 2**62))
