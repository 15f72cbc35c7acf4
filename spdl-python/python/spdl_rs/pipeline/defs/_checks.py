"""Checks of arguments that several configurations share."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any


def whole(name: str, value: Any, wrong_type: type[Exception] = ValueError) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: It is less.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value


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
