"""Values with settings, as the native module takes them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from .. import _arguments as check

Color: TypeAlias = "int | tuple[int, int, int]"
Interval: TypeAlias = "tuple[float, float]"


class Described:
    """A frozen dataclass of which the native module has a counterpart of the same name."""

    def _native(self) -> tuple[str, dict[str, Any]]:
        """Its name and its settings."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return type(self).__name__, {field.name: getattr(self, field.name) for field in fields}


def put(value: object, **checked: Any) -> None:
    """Sets what was checked, in an object that is frozen for all others."""
    for name, setting in checked.items():
        object.__setattr__(value, name, setting)


def size(name: str, value: Any, most: int = 2**32 - 1) -> int | tuple[int, int]:
    """A side of a square, or height and width, of `most` pixels at most."""
    if not isinstance(value, (tuple, list)):
        return check.whole(name, value, 1, most)
    if len(value) != 2:
        raise TypeError(f"{name} must be a whole number, or height and width, not {value!r}")
    height, width = (check.whole(name, side, 1, most) for side in value)
    return height, width


def width_and_height(value: int | tuple[int, int]) -> tuple[int, int]:
    """What `size` gave, as the native module takes it."""
    height, width = (value, value) if isinstance(value, int) else value
    return width, height


def color(name: str, value: Any) -> tuple[int, int, int]:
    """Red, green and blue: three levels, or one for all."""
    levels = value if isinstance(value, (tuple, list)) else (value,) * 3
    if len(levels) != 3:
        raise TypeError(f"{name} must be a level, or three, not {value!r}")
    red, green, blue = (check.whole(name, level, 0, 255) for level in levels)
    return red, green, blue


def interval(name: str, value: Any) -> Interval:
    """The least and the most."""
    least, most = check.reals(name, value, 2)
    return least, most


def around(name: str, value: Any, middle: int, *, zero: bool = False) -> Interval | None:
    """A pair as it is; of a number, what is so far from the middle. `None` for 0, where that is
    nothing."""
    if isinstance(value, (tuple, list)):
        return interval(name, value)
    number = check.real(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative: {number}")
    if number == 0 and not zero:
        return None
    least = middle - number
    return (max(0.0, least) if middle else least), middle + number


def point(value: Any) -> Interval | None:
    """A place in the image, where there is one."""
    return None if value is None else interval("center", value)


def sampling(augmentation: Any) -> dict[str, Any]:
    """What all have that move pixels."""
    check.choice("interpolation", augmentation.interpolation, ("nearest", "bilinear"))
    fill = augmentation.fill
    return {
        "interpolation": augmentation.interpolation,
        "fill": None if fill is None else color("fill", fill),
    }


def put_whole(augmentation: object, *names: str) -> None:
    """Checks the settings of these names, and sets them."""
    for name in names:
        put(augmentation, **{name: check.whole(name, getattr(augmentation, name), 0, 2**31 - 1)})
