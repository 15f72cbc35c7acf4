"""Checks of arguments that are specific to pipelines."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ..._arguments import MAX_THREADS, shown, whole
from ..._failure_policy import Skip
from ..._failure_policy import max_failures as of_policy


def threads(value: Any) -> int:
    """Returns the number of threads of a pipeline.

    Raises:
        TypeError: `value` is not an integer.
        ValueError: `value` is out of range.
    """
    return whole("num_threads", value, 1, MAX_THREADS)


def budget(value: Any, name: str = "max_failures") -> None:
    """Checks a failure budget: a number of items, or a fraction of them.

    Raises:
        TypeError: `value` has another type. Floats are rejected, because 0.1 as a float is not exact.
        ValueError: A fraction is not in (0, 1].
    """
    if isinstance(value, Skip):
        # Loaders that are built from a pipeline pass their `on_error`.
        return
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise TypeError(
            f"{name} must be an int (a number of items) or a fractions.Fraction (a share of items), "
            f"not {shown(value)}"
        )
    if isinstance(value, Fraction) and not 0 < value <= 1:
        raise ValueError(f"{name} must be in range (0, 1] if it is a share of items, not {value}")


def native_budget(value: int | Fraction | Skip) -> int | float | tuple[float, int, bool]:
    """Converts a failure budget to the engine's form: a fraction is rounded up to a float."""
    if isinstance(value, Skip):
        return of_policy(value) or 0
    if isinstance(value, Fraction):
        share = float(value)
        return share if share >= value else math.nextafter(share, 2.0)
    return max(-1, min(value, 2**62))
