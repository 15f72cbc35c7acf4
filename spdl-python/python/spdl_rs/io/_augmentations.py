"""Random changes of images, with torchvision's names, parameters, defaults and pixels.

They describe what `DecodeImage(augment=...)` and `AugmentImage(...)` do. What is drawn follows
torchvision's distributions, with random numbers of its own: they depend on the seed, the epoch and
the place of the item alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .. import _arguments as check
from .. import _spdl_rs
from ._described import (
    Color,
    Described,
    Interval,
    around,
    interval,
    point,
    put,
    put_whole,
    sampling,
)

Interpolation: TypeAlias = Literal["nearest", "bilinear"]


class Augmentation(Described):
    """A random change of an image: one of the classes below it.

    Raises:
        TypeError: A parameter is of the wrong type.
        ValueError: One is out of range (`InvalidArgumentError` is a `ValueError`).
    """

    def _check(self) -> None:
        """Has the native module check what it takes."""
        for name, value in vars(self).items():
            if isinstance(value, list):
                # So that it has a hash.
                put(self, **{name: tuple(value)})
        _spdl_rs.ImageAugmenter([self._native()], 0)


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Changes brightness, contrast, saturation and hue, in a random order.

    Args:
        brightness, contrast, saturation: By a factor from `max(0, 1 - number)` to `1 + number`, or
            from the first to the second of a pair. 0: not at all.
        hue: By `-number` to `number` turns, 0 to 0.5, or between a pair from -0.5 to 0.5.

    >>> from spdl_rs.io import ColorJitter, DecodeImage
    >>> decode = DecodeImage(224, train=True, augment=[ColorJitter(0.4, 0.4, 0.4, hue=0.1)])
    """

    brightness: float | Interval = 0
    contrast: float | Interval = 0
    saturation: float | Interval = 0
    hue: float | Interval = 0

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        factors = {name: getattr(self, name) for name in ("brightness", "contrast", "saturation")}
        native = {name: around(name, value, 1) for name, value in factors.items()}
        return type(self).__name__, {**native, "hue": around("hue", self.hue, 0)}


@dataclass(frozen=True)
class GaussianBlur(Augmentation):
    """Blurs.

    Args:
        kernel_size: An odd number of pixels, or two, across and down.
        sigma: The standard deviation in pixels, or the least and the largest.
    """

    kernel_size: int | tuple[int, int]
    sigma: float | Interval = (0.1, 2.0)

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        sides = self.kernel_size
        sides = sides if isinstance(sides, (tuple, list)) else (sides, sides)
        if len(sides) != 2:
            raise TypeError(f"kernel_size must be a whole number, or two, not {sides!r}")
        across, down = (check.whole("kernel_size", side, 1, 2**31 - 1) for side in sides)
        return type(self).__name__, {"kernel_size": (across, down), "sigma": _same(self.sigma)}


@dataclass(frozen=True)
class _Chance(Augmentation):
    """A change that is made or not."""

    p: float = 0.5

    def __post_init__(self) -> None:
        put(self, p=check.real("p", self.p))
        self._check()


@dataclass(frozen=True)
class RandomGrayscale(_Chance):
    """Makes the image grey, with probability `p`."""

    p: float = 0.1


@dataclass(frozen=True)
class RandomInvert(_Chance):
    """Inverts all levels, with probability `p`."""


@dataclass(frozen=True)
class RandomEqualize(_Chance):
    """Spreads the levels of each channel evenly, with probability `p`."""


@dataclass(frozen=True)
class RandomAutocontrast(_Chance):
    """Stretches the levels of each channel, with probability `p`."""


@dataclass(frozen=True)
class RandomPosterize(Augmentation):
    """Keeps the upper `bits` of each level, 0 to 8, with probability `p`."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        put(self, bits=check.whole("bits", self.bits, 0, 8), p=check.real("p", self.p))
        self._check()


@dataclass(frozen=True)
class RandomSolarize(Augmentation):
    """Inverts the levels from `threshold` on, 255 at most, with probability `p`."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        put(self, threshold=check.real("threshold", self.threshold), p=check.real("p", self.p))
        self._check()


@dataclass(frozen=True)
class RandomAdjustSharpness(Augmentation):
    """Makes the image sharper, or less sharp where the factor is less than 1, with probability `p`."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        factor = check.real("sharpness_factor", self.sharpness_factor)
        put(self, sharpness_factor=factor, p=check.real("p", self.p))
        self._check()


@dataclass(frozen=True)
class RandomRotation(Augmentation):
    """Rotates. The size stays: what is turned out of the image is lost.

    Args:
        degrees: By `-number` to `number`, counter-clockwise, or between a pair.
        interpolation: How levels are read between pixels.
        center: What stays where it is, in pixels from the upper left corner. `None`: the centre.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.
    """

    degrees: float | Interval
    interpolation: Interpolation = "nearest"
    center: tuple[float, float] | None = None
    fill: Color | None = (0, 0, 0)

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        degrees, center = around("degrees", self.degrees, 0, zero=True), point(self.center)
        return type(self).__name__, {"degrees": degrees, "center": center, **sampling(self)}


@dataclass(frozen=True)
class RandomAffine(Augmentation):
    """Rotates, shifts, scales and shears.

    Args:
        degrees: By `-number` to `number`, clockwise, or between a pair.
        translate: The largest shifts, across and down, as shares of width and height.
        scale: The least and the largest factor.
        shear: Along x by `-number` to `number` degrees, or between a pair; or along x and y, four.
        interpolation: How levels are read between pixels.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.
        center: What stays where it is but for the shift. `None`: the centre.
    """

    degrees: float | Interval
    translate: tuple[float, float] | None = None
    scale: Interval | None = None
    shear: float | Interval | tuple[float, float, float, float] | None = None
    interpolation: Interpolation = "nearest"
    fill: Color | None = (0, 0, 0)
    center: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        shear: Any = self.shear
        if isinstance(shear, (tuple, list)):
            angles = (*check.reals("shear", shear, 2, 4), 0.0, 0.0)
            shear = angles[:2], angles[2:4]
        elif shear is not None:
            shear = around("shear", shear, 0, zero=True), (0.0, 0.0)
        translate, scale = self.translate, self.scale
        return type(self).__name__, {
            "degrees": around("degrees", self.degrees, 0, zero=True),
            "translate": None if translate is None else interval("translate", translate),
            "scale": None if scale is None else interval("scale", scale),
            "shear": shear,
            "center": point(self.center),
            **sampling(self),
        }


@dataclass(frozen=True)
class RandomPerspective(Augmentation):
    """Looks at the image from another side.

    Args:
        distortion_scale: How far a corner may move, as a share of half the width and height.
        p: How likely that is done.
        interpolation: How levels are read between pixels.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Interpolation = "bilinear"
    fill: Color | None = (0, 0, 0)

    def __post_init__(self) -> None:
        distortion = check.real("distortion_scale", self.distortion_scale)
        put(self, distortion_scale=distortion, p=check.real("p", self.p))
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class RandomErasing(Augmentation):
    """Erases a random rectangle, of the image's levels: before they are normalised.

    Args:
        p: How likely that is done.
        scale: The least and the largest share of the area.
        ratio: The least and the largest height ÷ width.
        value: The level that is left, or three; or `"random"`.
    """

    p: float = 0.5
    scale: Interval = (0.02, 0.33)
    ratio: Interval = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random"] = 0

    def __post_init__(self) -> None:
        scale, ratio = interval("scale", self.scale), interval("ratio", self.ratio)
        put(self, p=check.real("p", self.p), scale=scale, ratio=ratio)
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        value: Any = self.value
        if isinstance(value, str):
            if value != "random":
                raise ValueError(f'value must be a level, three levels or "random", not {value!r}')
            value = None
        elif isinstance(value, (tuple, list)):
            value = check.reals("value", value, 3)
        else:
            value = (check.real("value", value),) * 3
        return name, {**settings, "value": value}


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """A few operations one after another, all of the same magnitude.

    Args:
        num_ops: How many.
        magnitude: Which magnitude, counted from 0.
        num_magnitude_bins: How many magnitudes there are.
        interpolation: How levels are read between pixels.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.

    >>> from spdl_rs.io import DecodeImage, RandAugment
    >>> decode = DecodeImage(224, train=True, augment=[RandAugment(num_ops=2, magnitude=9)])
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Color | None = None

    def __post_init__(self) -> None:
        put_whole(self, "num_ops", "magnitude", "num_magnitude_bins")
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class TrivialAugmentWide(Augmentation):
    """One operation of any magnitude.

    Args:
        num_magnitude_bins: How many magnitudes there are.
        interpolation: How levels are read between pixels.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.
    """

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Color | None = None

    def __post_init__(self) -> None:
        put_whole(self, "num_magnitude_bins")
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class AutoAugment(Augmentation):
    """One pair of operations of those that were found for ImageNet.

    Args:
        interpolation: How levels are read between pixels.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.
    """

    interpolation: Interpolation = "nearest"
    fill: Color | None = None

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        return type(self).__name__, sampling(self)


@dataclass(frozen=True)
class AugMix(Augmentation):
    """Blends the image with several chains of operations.

    Args:
        severity: How many magnitudes are drawn from, from the weakest on, 1 to 10.
        mixture_width: How many chains there are.
        chain_depth: How many operations a chain has; -1: drawn from 1 to 3.
        alpha: Of the distributions that weights are drawn from; positive.
        all_ops: Whether brightness, colour, contrast and sharpness are among the operations.
        interpolation: How levels are read between pixels.
        fill: The colour outside. `None`: black; at edges not quite as with 0, as in torchvision.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Interpolation = "bilinear"
    fill: Color | None = None

    def __post_init__(self) -> None:
        put_whole(self, "severity", "mixture_width")
        check.whole("chain_depth", self.chain_depth, -1, 2**31 - 1)
        put(
            self, alpha=check.real("alpha", self.alpha), all_ops=check.flag("all_ops", self.all_ops)
        )
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        depth = None if self.chain_depth == -1 else self.chain_depth
        return name, {**settings, "chain_depth": depth, **sampling(self)}


@dataclass(frozen=True)
class RandomApply(Augmentation):
    """Makes other changes, all or none of them.

    Args:
        augmentations: One, or several in a row.
        p: How likely they are made.

    >>> from spdl_rs.io import GaussianBlur, RandomApply
    >>> RandomApply([GaussianBlur(9)], p=0.1)
    RandomApply(augmentations=(GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)),), p=0.1)
    """

    augmentations: Augmentation | Sequence[Augmentation]
    p: float = 0.5

    def __post_init__(self) -> None:
        all_of = several("augmentations", self.augmentations)
        put(self, augmentations=all_of, p=check.real("p", self.p))
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        steps = several("augmentations", self.augmentations)
        return type(self).__name__, {
            "augmentations": [step._native() for step in steps],
            "p": self.p,
        }


def several(name: str, value: Any) -> tuple[Augmentation, ...]:
    """Augmentations in a row."""
    steps = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for step in steps:
        if not isinstance(step, Augmentation):
            raise TypeError(
                f"{name} must be augmentations of spdl_rs.io, such as ColorJitter(0.4), not {step!r}"
            )
    return steps


def _same(value: Any) -> Interval:
    if isinstance(value, (tuple, list)):
        return interval("sigma", value)
    sigma = check.real("sigma", value)
    return sigma, sigma
