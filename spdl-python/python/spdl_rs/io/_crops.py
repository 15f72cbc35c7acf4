"""Crops: which part of an image becomes the sample of `DecodeImage`.

Each class corresponds to the torchvision transforms that it names. Parameters are drawn from the same
distributions, with different random numbers.
"""

from __future__ import annotations

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
    width_and_height,
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

    def _native(self) -> tuple[str, dict[str, Any]]:
        return type(self).__name__, {"covering": width_and_height(self.covering)}


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


RANDOM_CROPS = (RandomResizedCrop, RandomCrop, RandomScaledCrop)
