"""Checks of arguments that only pipelines have."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ..._arguments import MOST_THREADS, shown, whole


def threads(value: Any) -> int:
    """How many threads a pipeline has.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less than 1, or more than any machine can have.
    """
    return whole("num_threads", value, 1, MOST_THREADS)


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


def native_budget(value: int | Fraction) -> int | float:
    """The same as the engine takes it: a share as a float that is not less."""
    if isinstance(value, Fraction):
        share = float(value)
        return share if share >= value else math.nextafter(share, 2.0)
    return max(-1, min(value, 2**62))
