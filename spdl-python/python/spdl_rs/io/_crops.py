"""Crops: which part of an image becomes the sample of `DecodeImage`.

Each class corresponds to the torchvision transforms that it names. Parameters are drawn from the same
distributions, with different random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _arguments as check
from ._native_settings import (
    Color,
    NativeSettings,
    color,
    interval,
    set_frozen,
    size,
)


class Crop(NativeSettings):
    """Base class of crops, for `DecodeImage(crop=...)`."""


@dataclass(frozen=True)
class ResizedCenterCrop(Crop):
    """Resizes the image to cover a size, keeping the aspect ratio, and crops the centre.

    Corresponds to `Resize` and `CenterCrop`. If the resized image is smaller than the sample, it is padded
    with black.

    Args:
        covering: The length to which the shorter side is resized; or (height, width).

    Raises:
        TypeError, ValueError: `covering` is not a valid size.

    >>> from spdl_rs.io import DecodeImage, Fetch, ResizedCenterCrop
    >>> DecodeImage(48, crop=ResizedCenterCrop(64))(Fetch()("photos/cat/1.png")).shape
    (48, 48, 3)
    """

    covering: int | tuple[int, int]

    def __post_init__(self) -> None:
        set_frozen(self, covering=size("covering", self.covering))


@dataclass(frozen=True)
class RandomResizedCrop(Crop):
    """Crops a random part of the image and resizes it (`RandomResizedCrop`).

    Args:
        scale: The minimum and maximum fraction of the image's area.
        ratio: The minimum and maximum width ÷ height.

    Raises:
        TypeError: An argument is not a pair of numbers. `DecodeImage` rejects invalid ranges.

    >>> from spdl_rs.io import DecodeImage, Fetch, RandomResizedCrop
    >>> decode = DecodeImage(32, crop=RandomResizedCrop(scale=(0.5, 1)), horizontal_flip=0.5, seed=3)
    >>> data = Fetch()("photos/cat/1.png")
    >>> bool((decode(data, index=0) == decode(data, index=1)).all())
    False
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        set_frozen(self, scale=interval("scale", self.scale), ratio=interval("ratio", self.ratio))


@dataclass(frozen=True)
class Stretch(Crop):
    """Resizes the whole image without keeping the aspect ratio (`Resize` with two sides).

    >>> from spdl_rs.io import DecodeImage, Fetch, Stretch
    >>> DecodeImage((16, 64), crop=Stretch())(Fetch()("photos/cat/1.png")).shape
    (16, 64, 3)
    """


@dataclass(frozen=True)
class Letterbox(Crop):
    """Resizes the whole image, keeping the aspect ratio, and pads it to the sample size.

    Args:
        fill: The colour of the padding: red, green and blue, 0 to 255, or one level for all.

    Raises:
        TypeError, ValueError: `fill` is not a valid colour.

    >>> from spdl_rs.io import DecodeImage, Fetch, Letterbox
    >>> DecodeImage(32, crop=Letterbox(fill=114))(Fetch()("photos/cat/1.png"))[0, 0].tolist()
    [114, 114, 114]
    """

    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        set_frozen(self, fill=color("fill", self.fill))


@dataclass(frozen=True)
class CenterCrop(Crop):
    """Crops the centre without resizing, and pads smaller images (`CenterCrop`).

    Args:
        fill: The colour of the padding: red, green and blue, 0 to 255, or one level for all.

    Raises:
        TypeError, ValueError: `fill` is not a valid colour.
    """

    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        set_frozen(self, fill=color("fill", self.fill))


@dataclass(frozen=True)
class RandomCrop(Crop):
    """Crops a random part without resizing (`RandomCrop` with `pad_if_needed`).

    Args:
        padding: Pixels added on each side before cropping: fewer than the shorter side of the sample.
            Smaller images are padded to the sample size as well.
        fill: The colour of the padding: red, green and blue, 0 to 255, or one level for all.

    Raises:
        TypeError, ValueError: An argument is out of range or has the wrong type.
    """

    padding: int = 0
    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        set_frozen(
            self,
            padding=check.whole("padding", self.padding, 0, 2**32 - 1),
            fill=color("fill", self.fill),
        )


@dataclass(frozen=True)
class Resize(Crop):
    """Resizes the whole image, keeping the aspect ratio: samples differ in size (`Resize` with `max_size`).

    For `fields.Image` only, whose argument `collate` determines how samples of different sizes become a batch.
    `Resize()` keeps the size of each image.

    Args:
        shorter: The length of the shorter side in pixels.
        longest: The maximum length of the longer side. Without `shorter`, its length.
        multiple_of: Both sides are rounded to the nearest multiple of this number, such as the patch size of a
            vision transformer.

    Raises:
        TypeError, ValueError: An argument is out of range or has the wrong type. A side of more than 16,384
            pixels is an error of the sample.

    >>> from spdl_rs import Loader, fields
    >>> from spdl_rs.io import Resize
    >>> image = fields.Image(crop=Resize(28, longest=64, multiple_of=14))
    >>> [image.shape for image in Loader("photos", batch_size=2, image=image).peek()["image"]]
    [(28, 42, 3), (28, 42, 3)]
    """

    shorter: int | None = None
    longest: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        def side(name: str, value: Any) -> int | None:
            return None if value is None else check.whole(name, value, 1, 2**20)

        set_frozen(
            self,
            shorter=side("shorter", self.shorter),
            longest=side("longest", self.longest),
            multiple_of=check.whole("multiple_of", self.multiple_of, 1, 2**20),
        )


@dataclass(frozen=True)
class RandomScaledCrop(Crop):
    """Resizes the image by a random factor, keeping the aspect ratio, and crops a random part.

    Corresponds to `RandomResize` and `RandomCrop` with `pad_if_needed`, as for semantic segmentation.

    Args:
        shorter: The minimum and maximum length of the resized image's shorter side, in pixels.
        fill: The colour around images smaller than the sample: red, green and blue, 0 to 255, or one level for
            all.

    Raises:
        TypeError, ValueError: An argument is out of range or has the wrong type.

    >>> from spdl_rs.io import DecodeImage, Fetch, RandomScaledCrop
    >>> decode = DecodeImage(32, crop=RandomScaledCrop(shorter=(16, 64)))
    >>> decode(Fetch()("photos/cat/1.png"), index=0).shape
    (32, 32, 3)
    """

    shorter: tuple[int, int]
    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        if not isinstance(self.shorter, (tuple, list)) or len(self.shorter) != 2:
            raise TypeError(f"shorter must be two whole numbers, not {self.shorter!r}")
        least, most = (check.whole("shorter", side, 1, 2**20) for side in self.shorter)
        if least > most:
            raise ValueError(f"shorter must be in order, not {(least, most)}")
        set_frozen(self, shorter=(least, most), fill=color("fill", self.fill))


@dataclass(frozen=True)
class AspectBuckets(Crop):
    """Resizes the image to cover one of several sizes, the one with the nearest aspect ratio, and crops it.

    For `fields.Image` only. With `group=sequences.SameSize("image")`, each batch has images of one size. The ratio of
    two aspect ratios is compared; of sizes with equal ratios, the first is chosen.

    Args:
        sizes: The sizes: (height, width) each. `of` makes a list.
        random: Whether a random part of the resized image is cropped. Default: the centre.

    Raises:
        TypeError, ValueError: An argument is out of range or has the wrong type.

    >>> from spdl_rs import Loader, fields, sequences
    >>> from spdl_rs.io import AspectBuckets
    >>> image = fields.Image(crop=AspectBuckets([(48, 48), (32, 64), (64, 32)]))
    >>> loader = Loader("photos", batch_size=2, image=image, group=sequences.SameSize("image"))
    >>> [batch["image"].shape for batch in loader]
    [(2, 48, 48, 3), (2, 48, 48, 3)]
    """

    sizes: Sequence[tuple[int, int]]
    random: bool = False

    def __post_init__(self) -> None:
        listed = check.listed("sizes", self.sizes, "a list of sizes")
        if not listed:
            raise ValueError("sizes must not be empty")
        sides = [size("sizes", one, check.MAX_SIDE) for one in listed]
        sizes = tuple(one if isinstance(one, tuple) else (one, one) for one in sides)
        set_frozen(self, sizes=sizes, random=check.flag("random", self.random))

    @classmethod
    def of(
        cls, area: int, *, multiple_of: int = 64, max_ratio: float = 2.0, random: bool = False
    ) -> AspectBuckets:
        """Returns the largest sizes of at most this area for all widths and heights, as for SDXL.

        Args:
            area: The maximum number of pixels, such as `1024 * 1024`.
            multiple_of: Widths and heights are multiples of this number.
            max_ratio: The maximum ratio of the longer and the shorter side.
            random: See the class.

        >>> from spdl_rs.io import AspectBuckets
        >>> len(AspectBuckets.of(1024 * 1024).sizes), AspectBuckets.of(256 * 256, multiple_of=64).sizes
        (13, ((192, 320), (256, 256), (320, 192)))
        """
        area = check.whole("area", area, 1, check.MAX_SIDE**2)
        step = check.whole("multiple_of", multiple_of, 1, check.MAX_SIDE)
        most = check.real("max_ratio", max_ratio)
        if step * step > area:
            raise ValueError(f"area={area} is smaller than a square of multiple_of={step}")
        if not most >= 1:
            raise ValueError(f"max_ratio must be at least 1, not {most}")
        sizes = set()
        for side in range(step, min(area // step, check.MAX_SIDE) + 1, step):
            other = min(area // side, check.MAX_SIDE) // step * step
            if max(side, other) <= most * min(side, other):
                sizes |= {(side, other), (other, side)}
        return cls(sorted(sizes), random)


class _Corners(Crop):
    """Base class of crops that make several samples of an image."""

    covering: int | tuple[int, int] | None

    def __post_init__(self) -> None:
        if self.covering is not None:
            set_frozen(self, covering=size("covering", self.covering))


@dataclass(frozen=True)
class FiveCrop(_Corners):
    """Crops the four corners and the centre of the resized image: `[5, …]` per sample (`FiveCrop`).

    The order is upper left, upper right, lower left, lower right, centre. The image is decoded and resized once.
    Flips and augmentations are refused.

    Args:
        covering: The length to which the shorter side is resized before; or (height, width). `None`: no resize.

    Raises:
        TypeError, ValueError: `covering` is not a valid size. A crop larger than the resized image is an error of
            the sample.

    >>> from spdl_rs import Loader, fields
    >>> from spdl_rs.io import FiveCrop
    >>> loader = Loader("photos", batch_size=2, image=fields.Image(48, crop=FiveCrop(64)))
    >>> loader.peek()["image"].shape
    (2, 5, 48, 48, 3)
    """

    covering: int | tuple[int, int] | None = None


@dataclass(frozen=True)
class TenCrop(_Corners):
    """Crops the corners and the centre of the resized image, and of its flip: `[10, …]` per sample (`TenCrop`).

    The first five crops are those of `FiveCrop`, the others those of the flipped image, in the same order.

    Args:
        covering: See `FiveCrop`.
        vertical_flip: Whether the flip is vertical. Default: horizontal.

    Raises:
        TypeError, ValueError: See `FiveCrop`.
    """

    covering: int | tuple[int, int] | None = None
    vertical_flip: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_frozen(self, vertical_flip=check.flag("vertical_flip", self.vertical_flip))


@dataclass(frozen=True)
class RandomZoomOut(NativeSettings):
    """Places the image at a random position on a larger canvas before its crop (`RandomZoomOut`).

    For `fields.Image(zoom_out=...)`. The sides of the canvas are those of the image times one random factor, in whole
    pixels; the position is uniform. Boxes, key points and masks follow. In the sample, pixels whose centres are outside
    the image have the colour `fill`; edges are not blended with it.

    Args:
        fill: The colour of the canvas: red, green and blue, 0 to 255, or one level for all.
        side_range: The minimum and maximum factor of the sides, 1 to 100.
        p: The probability, 0 to 1.

    Raises:
        TypeError, ValueError: An argument is out of range or has the wrong type.

    >>> from spdl_rs import Loader, fields
    >>> from spdl_rs.io import RandomZoomOut, Stretch
    >>> image = fields.Image(32, crop=Stretch(), zoom_out=RandomZoomOut(fill=114, side_range=(2, 2), p=1))
    >>> int((Loader("photos", batch_size=1, image=image).peek()["image"] == 114).all(axis=-1).sum())
    768
    """

    fill: Color = (0, 0, 0)
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        sides, p = interval("side_range", self.side_range), check.real("p", self.p)
        if not 1 <= sides[0] <= sides[1] <= 100:
            raise ValueError(f"side_range must be 1 to 100, in order, not {sides}")
        if not 0 <= p <= 1:
            raise ValueError(f"p must be 0 to 1, not {p}")
        set_frozen(self, fill=color("fill", self.fill), side_range=sides, p=p)


@dataclass(frozen=True)
class RandomIoUCrop(NativeSettings):
    """Crops a random part whose overlap with a box is at least a random minimum (`RandomIoUCrop`).

    For `fields.Image(iou_crop=...)`, with a field of boxes that follow the image. The part becomes the image that the
    argument `crop` resizes. Boxes whose centres are outside the part are dropped, together with the rows of the fields
    that name them in `rows_of`; the others are clipped. The overlap is the intersection over union.

    First, a minimum overlap is drawn; 1 or more leaves the image as it is. Then parts are drawn until one has an aspect
    ratio in range, the centre of a box, and enough overlap with a box whose centre is inside. After `trials` parts,
    another minimum is drawn. Images without boxes, or without a part after 50 minimums, are left as they are. Boxes that
    `fields.Boxes(drop_where=...)` drops are not considered.

    Args:
        min_scale, max_scale: The range of width and height, as fractions of those of the image, above 0 to 1.
        min_aspect_ratio, max_aspect_ratio: The range of width ÷ height in pixels.
        sampler_options: The minimum overlaps. Default: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: The number of parts that are drawn for a minimum overlap, 1 to 10,000.

    Raises:
        TypeError, ValueError: An argument is out of range or has the wrong type.

    >>> from spdl_rs import Loader, fields
    >>> from spdl_rs.io import RandomIoUCrop, Stretch
    >>> image = fields.Image(300, crop=Stretch(), iou_crop=RandomIoUCrop(min_scale=0.5))
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40

    def __post_init__(self) -> None:
        names = ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio")
        checked = {name: check.real(name, getattr(self, name)) for name in names}
        least, most, narrow, wide = checked.values()
        if not 0 < least <= most <= 1:
            raise ValueError(f"min_scale and max_scale must be above 0 up to 1, in order, not {(least, most)}")
        if not 0 < narrow <= wide < math.inf:
            raise ValueError(
                f"min_aspect_ratio and max_aspect_ratio must be finite, above 0, and in order, not {(narrow, wide)}"
            )
        options = self.sampler_options
        if options is not None:
            listed = check.listed("sampler_options", options, "a list of numbers")
            options = tuple(check.real("sampler_options", option) for option in listed)
            if not options or not all(0 <= option < math.inf for option in options):
                raise ValueError(f"sampler_options must be one or more finite numbers of at least 0, not {options}")
        set_frozen(
            self, **checked, sampler_options=options, trials=check.whole("trials", self.trials, 1, 10_000)
        )


VARYING_CROPS = (Resize, AspectBuckets)
"""Crops that give each image another size."""

CANVAS_CROPS = (Stretch, Letterbox, Resize)
"""Crops that show all of a canvas."""

RANDOM_CROPS = (RandomResizedCrop, RandomCrop, RandomScaledCrop)
