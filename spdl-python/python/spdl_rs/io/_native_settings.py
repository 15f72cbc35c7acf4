"""Checks the parameters of crops and augmentations, and converts them for the native module."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from .. import _arguments as check

Color: TypeAlias = "int | tuple[int, int, int]"
Interval: TypeAlias = "tuple[float, float]"


class NativeSettings:
    """A frozen dataclass with a native counterpart of the same name."""

    def _native(self) -> tuple[str, dict[str, Any]]:
        """Returns the name and the parameters for the native module."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return type(self).__name__, {field.name: getattr(self, field.name) for field in fields}


def set_frozen(value: object, /, **checked: Any) -> None:
    """Sets checked attributes of a frozen dataclass."""
    for name, setting in checked.items():
        object.__setattr__(value, name, setting)


def plain(value: Any) -> Any:
    """Converts lists to tuples, which are hashable, and scalars of NumPy to numbers of Python.

    The `repr` of the result is an expression of Python.
    """
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return value.item() if getattr(value, "shape", None) == () else value


def size(name: str, value: Any, most: int = 2**32 - 1) -> int | tuple[int, int]:
    """Returns the side of a square, or height and width, of at most `most` pixels."""
    if not isinstance(value, (tuple, list)):
        return check.whole(name, value, 1, most)
    if len(value) != 2:
        raise TypeError(f"{name} must be a whole number, or (height, width), not {value!r}")
    height, width = (check.whole(name, side, 1, most) for side in value)
    return height, width


def color(name: str, value: Any) -> tuple[int, int, int]:
    """Returns red, green and blue, from three levels or one level for all."""
    levels = value if isinstance(value, (tuple, list)) else (value,) * 3
    if len(levels) != 3:
        raise TypeError(f"{name} must be one colour level or a tuple of three, not {value!r}")
    red, green, blue = (check.whole(name, level, 0, 255) for level in levels)
    return red, green, blue


def interval(name: str, value: Any) -> Interval:
    """Returns a pair: minimum and maximum."""
    least, most = check.reals(name, value, 2)
    return least, most


def around(name: str, value: Any, middle: int, *, zero: bool = False) -> Interval | None:
    """Returns a pair as it is, and converts a number to the interval around `middle`.

    Returns `None` for 0, unless `zero` is set.
    """
    if isinstance(value, (tuple, list)):
        return interval(name, value)
    number = check.real(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, not {number}")
    if number == 0 and not zero:
        return None
    least = middle - number
    return (max(0.0, least) if middle else least), middle + number


def point(value: Any) -> Interval | None:
    """Returns a point in the image, or `None`."""
    return None if value is None else interval("center", value)


def sampling(augmentation: Any) -> dict[str, Any]:
    """Returns the parameters of all augmentations that move pixels."""
    check.choice("interpolation", augmentation.interpolation, ("nearest", "bilinear"))
    fill = augmentation.fill
    return {
        "interpolation": augmentation.interpolation,
        "fill": None if fill is None else color("fill", fill),
    }


def set_whole(augmentation: object, *names: str) -> None:
    """Checks parameters that are integers, and sets them."""
    for name in names:
        number = check.whole(name, getattr(augmentation, name), 0, 2**31 - 1)
        set_frozen(augmentation, **{name: number})
