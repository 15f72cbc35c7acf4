"""Random augmentations with the names, parameters, defaults and pixel values of torchvision.

Augmentations are arguments of `DecodeImage(augment=...)` and `AugmentImage(...)`, as objects or as text: see
`Augmentation`. Parameters have the same
distributions as in torchvision, but the random numbers differ. The random numbers depend only on the seed,
the epoch and the position of the item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .. import _arguments as check
from .. import _spdl_rs
from ._augmentation_texts import described
from ._native_settings import (
    Color,
    Interval,
    NativeSettings,
    around,
    interval,
    plain,
    point,
    sampling,
    set_frozen,
    set_whole,
)

# The mean colour of ImageNet, which the normalisation turns into 0.
MEAN_COLOR = (124, 116, 104)
Interpolation: TypeAlias = Literal["nearest", "bilinear"]


class Augmentation(NativeSettings):
    """Base class of random augmentations.

    Wherever an augmentation is an argument, text can be used in its place: the name of a class in any case, with
    arguments as in Python, such as `"randaugment(2, 9)"`, `"augmix"` or `"randomapply(gaussianblur(9), p=0.1)"`;
    `"trivialaugment"`; or RandAugment and AugMix as named in timm, such as `"rand-m9-mstd0.5-inc1"` and
    `"augmix-m5-w4-d2"`. The text becomes the object.

    Raises:
        TypeError: A parameter has the wrong type.
        ValueError: A parameter is out of range (`InvalidArgumentError` is a subclass).
    """

    def _check(self) -> None:
        """Makes the native module check the parameters."""
        set_frozen(self, **{name: plain(value) for name, value in vars(self).items()})
        _spdl_rs.ImageAugmenter([self._native()], 0)

    @property
    def _is_random(self) -> bool:
        """Whether the result may depend on random numbers."""
        return True


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Changes brightness, contrast, saturation and hue, in a random order.

    Args:
        brightness, contrast, saturation: A number `x`: the factor is drawn from `max(0, 1 - x)` to
            `1 + x`; 0 means no change. A pair: the minimum and maximum of the factor.
        hue: A number `x` from 0 to 0.5: the shift is drawn from `-x` to `x`, as a fraction of the colour
            wheel. A pair between -0.5 and 0.5: the minimum and maximum of the shift.

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
    """Blurs the image with a Gaussian kernel.

    Args:
        kernel_size: An odd number of pixels, or (width, height).
        sigma: The standard deviation in pixels, or its minimum and maximum.
    """

    kernel_size: int | tuple[int, int]
    sigma: float | Interval = (0.1, 2.0)

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        sides = self.kernel_size
        sides = sides if isinstance(sides, (tuple, list)) else (sides, sides)
        if len(sides) != 2:
            raise TypeError(f"kernel_size must be one whole number or two, not {sides!r}")
        across, down = (check.whole("kernel_size", side, 1, 2**31 - 1) for side in sides)
        return type(self).__name__, {"kernel_size": (across, down), "sigma": _same(self.sigma)}


@dataclass(frozen=True)
class _Chance(Augmentation):
    """An augmentation that is applied with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        set_frozen(self, p=check.real("p", self.p))
        self._check()

    @property
    def _is_random(self) -> bool:
        return 0 < self.p < 1


@dataclass(frozen=True)
class RandomGrayscale(_Chance):
    """Converts the image to greyscale, with probability `p`."""

    p: float = 0.1


@dataclass(frozen=True)
class RandomInvert(_Chance):
    """Inverts all pixel values, with probability `p`."""


@dataclass(frozen=True)
class RandomEqualize(_Chance):
    """Equalises the histogram of each channel, with probability `p`."""


@dataclass(frozen=True)
class RandomAutocontrast(_Chance):
    """Maximises the contrast of each channel, with probability `p`."""


@dataclass(frozen=True)
class RandomPosterize(Augmentation):
    """Keeps the upper `bits` bits of each pixel value, with probability `p`. `bits` is 0 to 8."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        set_frozen(self, bits=check.whole("bits", self.bits, 0, 8), p=check.real("p", self.p))
        self._check()

    @property
    def _is_random(self) -> bool:
        return 0 < self.p < 1


@dataclass(frozen=True)
class RandomSolarize(Augmentation):
    """Inverts pixel values of at least `threshold`, with probability `p`. `threshold` is at most 255."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        set_frozen(
            self, threshold=check.real("threshold", self.threshold), p=check.real("p", self.p)
        )
        self._check()

    @property
    def _is_random(self) -> bool:
        return 0 < self.p < 1


@dataclass(frozen=True)
class RandomAdjustSharpness(Augmentation):
    """Sharpens the image, or blurs it if the factor is less than 1, with probability `p`."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        factor = check.real("sharpness_factor", self.sharpness_factor)
        set_frozen(self, sharpness_factor=factor, p=check.real("p", self.p))
        self._check()

    @property
    def _is_random(self) -> bool:
        return 0 < self.p < 1


@dataclass(frozen=True)
class RandomRotation(Augmentation):
    """Rotates the image. The size stays the same; corners that leave the frame are cropped.

    Args:
        degrees: The counter-clockwise angle. A number `x`: drawn from `-x` to `x`. A pair: the minimum and
            maximum.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        center: The centre of rotation in pixels from the upper left corner. `None`: the centre of the
            image.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.
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
    """Rotates, translates, scales and shears the image.

    Args:
        degrees: The clockwise angle. A number `x`: drawn from `-x` to `x`. A pair: the minimum and maximum.
        translate: The largest horizontal and vertical shifts, as fractions of width and height.
        scale: The minimum and maximum factor.
        shear: The angle in degrees. A number `x`: drawn from `-x` to `x`, along the x axis. A pair: the
            minimum and maximum along x. Four numbers: the minimum and maximum along x, then along y.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.
        center: The centre of rotation, scaling and shear in pixels from the upper left corner. `None`: the
            centre of the image.
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
            shear = check.reals("shear", shear, 2, 4)
        elif shear is not None:
            shear = around("shear", shear, 0, zero=True)
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
    """Applies a random perspective transform.

    Args:
        distortion_scale: How far a corner may move, as a fraction of half the width and height.
        p: The probability of the transform.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Interpolation = "bilinear"
    fill: Color | None = (0, 0, 0)

    def __post_init__(self) -> None:
        distortion = check.real("distortion_scale", self.distortion_scale)
        set_frozen(self, distortion_scale=distortion, p=check.real("p", self.p))
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class RandomErasing(Augmentation):
    """Erases a random rectangle, before pixel values are normalised.

    Args:
        p: The probability of erasing.
        scale: The minimum and maximum fraction of the area.
        ratio: The minimum and maximum height ÷ width.
        value: The colour of erased pixels: a level, a whole number from 0 (black) to 255, or one per channel; or
            `"random"`; or `"mean"`, the mean colour of ImageNet, (124, 116, 104), which its normalisation turns into
            about 0. Fractions are errors, because pixels are normalised later.
    """

    p: float = 0.5
    scale: Interval = (0.02, 0.33)
    ratio: Interval = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random", "mean"] = 0

    def __post_init__(self) -> None:
        scale, ratio = interval("scale", self.scale), interval("ratio", self.ratio)
        if self.value == "mean":
            set_frozen(self, value=MEAN_COLOR)
        set_frozen(self, p=check.real("p", self.p), scale=scale, ratio=ratio)
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        value: Any = self.value
        if isinstance(value, str):
            if value == "random":
                return name, settings
            raise ValueError(f'value must be a number, three numbers, "random" or "mean", not {value!r}')
        is_list = isinstance(value, (tuple, list))
        value = check.reals("value", value, 3) if is_list else check.real("value", value)
        if not all(0 <= level <= 255 and level.is_integer() for level in (value if is_list else (value,))):
            raise ValueError(
                f"value must be whole numbers from 0 to 255, not {self.value}: pixels are erased before the "
                "normalisation; for the mean colour of ImageNet, pass \"mean\": (124, 116, 104)"
            )
        return name, {**settings, "value": value}


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """Applies several random operations of the same magnitude.

    Args:
        num_ops: The number of operations.
        magnitude: The index of the magnitude, 0 to `num_magnitude_bins - 1`.
        num_magnitude_bins: The number of magnitudes, at least 2.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.

    >>> from spdl_rs.io import DecodeImage, RandAugment
    >>> decode = DecodeImage(224, train=True, augment=[RandAugment(num_ops=2, magnitude=9)])
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Color | None = None

    def __post_init__(self) -> None:
        set_whole(self, "num_ops", "magnitude", "num_magnitude_bins")
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class TimmRandAugment(Augmentation):
    """Applies several random operations, each with a probability and a random magnitude, as timm does.

    The text `"rand-m9-n2-mstd0.5-mmax10-inc1-p0.5"` is `TimmRandAugment(2, 9, 0.5, 10, True, 0.5)`. Differences to
    timm: interpolation is not bicubic, translations are whole pixels, and pixel values are those of torchvision's
    operations on tensors.

    Args:
        num_ops: The number of operations.
        magnitude: The mean magnitude, 0 to 100; 10 is the usual maximum.
        magnitude_std: The standard deviation of normally distributed magnitudes, 0 to 100; or `"uniform"`:
            magnitudes are uniform from 0 to `magnitude`.
        magnitude_max: The value above which magnitudes are clipped, 0 to 100.
        increasing: Whether higher magnitudes are stronger for all operations.
        p: The probability of each operation.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.

    >>> from spdl_rs.io import DecodeImage
    >>> DecodeImage(224, train=True, augment="rand-m9-mstd0.5-inc1").augment[0].magnitude_std
    0.5
    """

    num_ops: int = 2
    magnitude: float = 10.0
    magnitude_std: float | Literal["uniform"] = 0.0
    magnitude_max: float = 10.0
    increasing: bool = False
    p: float = 0.5
    interpolation: Interpolation = "bilinear"
    fill: Color | None = (128, 128, 128)

    def __post_init__(self) -> None:
        set_whole(self, "num_ops")
        set_frozen(
            self,
            magnitude=check.real("magnitude", self.magnitude),
            magnitude_std=_deviation(self.magnitude_std),
            magnitude_max=check.real("magnitude_max", self.magnitude_max),
            increasing=check.flag("increasing", self.increasing),
            p=check.real("p", self.p),
        )
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class TrivialAugmentWide(Augmentation):
    """Applies one random operation of a random magnitude.

    Args:
        num_magnitude_bins: The number of magnitudes, at least 2.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.
    """

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Color | None = None

    def __post_init__(self) -> None:
        set_whole(self, "num_magnitude_bins")
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class AutoAugment(Augmentation):
    """Applies a random pair of operations from the policy that was learned for ImageNet.

    Args:
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.
    """

    interpolation: Interpolation = "nearest"
    fill: Color | None = None

    def __post_init__(self) -> None:
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        return type(self).__name__, sampling(self)


@dataclass(frozen=True)
class AugMix(Augmentation):
    """Blends the image with the results of several random chains of operations.

    Args:
        severity: The number of magnitudes to draw from, starting with the weakest, 1 to 10.
        mixture_width: The number of chains.
        chain_depth: The number of operations per chain; -1: drawn from 1 to 3.
        alpha: The parameter of the Dirichlet and beta distributions of the weights, positive.
        all_ops: Whether to include brightness, colour, contrast and sharpness.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Interpolation = "bilinear"
    fill: Color | None = None

    def __post_init__(self) -> None:
        set_whole(self, "severity", "mixture_width")
        check.whole("chain_depth", self.chain_depth, -1, 2**31 - 1)
        set_frozen(
            self, alpha=check.real("alpha", self.alpha), all_ops=check.flag("all_ops", self.all_ops)
        )
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class TimmAugMix(Augmentation):
    """Blends the image with the results of several random chains of operations, as timm does.

    The text `"augmix-m5-w4-d2-a1-mstd0.5"` is `TimmAugMix(5, 0.5, 4, 2, 1)`. timm's `b1` blends in another order, which
    has the same result but for rounding, and is accepted. Differences to timm: those of `TimmRandAugment`.

    Args:
        magnitude: The maximum of uniform magnitudes, or the mean of normally distributed ones, 0 to 100; magnitudes
            are clipped to 10.
        magnitude_std: The standard deviation of normally distributed magnitudes, 0 to 100; or `"uniform"`:
            magnitudes are uniform from 0 to `magnitude`.
        mixture_width: The number of chains.
        chain_depth: The number of operations per chain; -1: drawn from 1 to 3.
        alpha: The parameter of the Dirichlet and beta distributions of the weights, positive.
        interpolation: How values between pixels are computed: `"nearest"` or `"bilinear"`.
        fill: The colour outside the image. `None`: black. As in torchvision, bilinear interpolation blends
            edge pixels with black, and then with `fill` unless `fill` is `None`.

    >>> from spdl_rs.io import DecodeImage
    >>> DecodeImage(224, train=True, augment="augmix-m5-w4-d2").augment[0].mixture_width
    4
    """

    magnitude: float = 3.0
    magnitude_std: float | Literal["uniform"] = "uniform"
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    interpolation: Interpolation = "bilinear"
    fill: Color | None = (128, 128, 128)

    def __post_init__(self) -> None:
        set_whole(self, "mixture_width")
        check.whole("chain_depth", self.chain_depth, -1, 2**31 - 1)
        set_frozen(
            self,
            magnitude=check.real("magnitude", self.magnitude),
            magnitude_std=_deviation(self.magnitude_std),
            alpha=check.real("alpha", self.alpha),
        )
        self._check()

    def _native(self) -> tuple[str, dict[str, Any]]:
        name, settings = super()._native()
        return name, {**settings, **sampling(self)}


@dataclass(frozen=True)
class RandomApply(Augmentation):
    """Applies a list of augmentations with a probability: either all or none of them.

    Args:
        augmentations: One augmentation, or a list, as objects or text.
        p: The probability.

    >>> from spdl_rs.io import GaussianBlur, RandomApply
    >>> RandomApply([GaussianBlur(9)], p=0.1)
    RandomApply(augmentations=(GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)),), p=0.1)
    """

    augmentations: Augmentation | str | Sequence[Augmentation | str]
    p: float = 0.5

    def __post_init__(self) -> None:
        all_of = several("augmentations", self.augmentations)
        set_frozen(self, augmentations=all_of, p=check.real("p", self.p))
        self._check()

    @property
    def _is_random(self) -> bool:
        steps = several("augmentations", self.augmentations)
        return 0 < self.p < 1 or any(step._is_random for step in steps)

    def _native(self) -> tuple[str, dict[str, Any]]:
        steps = several("augmentations", self.augmentations)
        return type(self).__name__, {
            "augmentations": [step._native() for step in steps],
            "p": self.p,
        }


@dataclass(frozen=True)
class RandomChoice(Augmentation):
    """Applies one of several augmentations, chosen at random for each image.

    Args:
        augmentations: A list of augmentations, as objects or text. For several in sequence, use
            `RandomApply([...], p=1)`.
        p: A number of at least 0 for each augmentation: its probability is this number divided by the sum of all.
            Default: all have the same probability.

    >>> from spdl_rs.io import DecodeImage
    >>> DecodeImage(224, augment="randomchoice([gaussianblur(9), randominvert], p=[3, 1])").augment[0].p
    (3.0, 1.0)
    """

    augmentations: Sequence[Augmentation | str]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        steps = several("augmentations", self.augmentations)
        count = len(steps)
        p = None if self.p is None else check.reals("p", self.p, count)
        set_frozen(self, augmentations=steps, p=p)
        self._check()

    @property
    def _is_random(self) -> bool:
        return len(self.augmentations) > 1 or any(step._is_random for step in _steps_of(self))

    def _native(self) -> tuple[str, dict[str, Any]]:
        own = {"augmentations": [step._native() for step in _steps_of(self)], "p": self.p}
        return type(self).__name__, own


@dataclass(frozen=True)
class RandomOrder(Augmentation):
    """Applies all of several augmentations, in an order that is random for each image.

    Args:
        augmentations: A list of augmentations, as objects or text.

    >>> from spdl_rs.io import RandomOrder
    >>> RandomOrder(["randominvert", "randomgrayscale"])
    RandomOrder(augmentations=(RandomInvert(p=0.5), RandomGrayscale(p=0.1)))
    """

    augmentations: Sequence[Augmentation | str]

    def __post_init__(self) -> None:
        set_frozen(self, augmentations=several("augmentations", self.augmentations))
        self._check()

    @property
    def _is_random(self) -> bool:
        return len(self.augmentations) > 1 or any(step._is_random for step in _steps_of(self))

    def _native(self) -> tuple[str, dict[str, Any]]:
        return type(self).__name__, {"augmentations": [step._native() for step in _steps_of(self)]}


def _steps_of(one: RandomChoice | RandomOrder) -> tuple[Augmentation, ...]:
    return several("augmentations", one.augmentations)


def several(name: str, value: Any) -> tuple[Augmentation, ...]:
    """Returns a tuple of augmentations, which may be described by text."""
    steps = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    steps = tuple(
        described(name, step, _classes()) if isinstance(step, str) else step for step in steps
    )
    for step in steps:
        if isinstance(step, tuple):
            raise TypeError(f"{name} must be a list for several augmentations: one text for each")
        if not isinstance(step, Augmentation):
            # They precede the resize, and need boxes.
            other = {"RandomZoomOut": "zoom_out", "RandomIoUCrop": "iou_crop"}.get(type(step).__name__)
            raise TypeError(
                f"{name} must be augmentations of spdl_rs.io, such as ColorJitter(0.4), not {step!r}"
                + (f"; pass it as {other}= of fields.Image" if other else "")
            )
    return steps


def _classes() -> dict[str, type[Augmentation]]:
    """The classes that text can name."""
    kinds = (ColorJitter, GaussianBlur, RandomGrayscale, RandomInvert, RandomEqualize, RandomAutocontrast)
    kinds += (RandomPosterize, RandomSolarize, RandomAdjustSharpness, RandomRotation, RandomAffine)
    kinds += (RandomPerspective, RandomErasing, RandAugment, TimmRandAugment, TrivialAugmentWide)
    kinds += (AutoAugment, AugMix, TimmAugMix, RandomApply, RandomChoice, RandomOrder)
    return {kind.__name__: kind for kind in kinds}


def _deviation(value: Any) -> Any:
    """Returns a standard deviation, or `"uniform"`."""
    if isinstance(value, str):
        return check.choice("magnitude_std", value, ("uniform",))
    return check.real("magnitude_std", value)


def _same(value: Any) -> Interval:
    if isinstance(value, (tuple, list)):
        return interval("sigma", value)
    sigma = check.real("sigma", value)
    return sigma, sigma
