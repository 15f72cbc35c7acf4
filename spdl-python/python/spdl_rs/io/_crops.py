"""Which part of an image becomes the sample of `DecodeImage`.

Each does what the transforms of torchvision do that it names. What is drawn follows their
distributions, with random numbers of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _arguments as check
from ._described import Color, Described, color, interval, put, size, width_and_height


class Crop(Described):
    """What `DecodeImage(crop=...)` takes: one of the classes below it."""


@dataclass(frozen=True)
class ResizedCenterCrop(Crop):
    """Resizes the image in proportion until it just covers a size, and takes the centre (`Resize` and
    `CenterCrop`). Where that is smaller than the sample, black is around it.

    Args:
        covering: The side of a square, to which the shorter side is resized; or height and width.

    Raises:
        TypeError, ValueError: It is no such size.

    >>> from spdl_rs.io import DecodeImage, Fetch, ResizedCenterCrop
    >>> DecodeImage(48, crop=ResizedCenterCrop(64))(Fetch()("photos/cat/1.png")).shape
    (48, 48, 3)
    """

    covering: int | tuple[int, int]

    def __post_init__(self) -> None:
        put(self, covering=size("covering", self.covering))

    def _native(self) -> tuple[str, dict[str, Any]]:
        return type(self).__name__, {"covering": width_and_height(self.covering)}


@dataclass(frozen=True)
class RandomResizedCrop(Crop):
    """Resizes a random part of the image (`RandomResizedCrop`).

    Args:
        scale: The least and the largest share of the image's area.
        ratio: The least and the largest width ÷ height.

    Raises:
        TypeError: They are no pairs of numbers. Pairs that make no sense `DecodeImage` refuses.

    >>> from spdl_rs.io import DecodeImage, Fetch, RandomResizedCrop
    >>> decode = DecodeImage(32, crop=RandomResizedCrop(scale=(0.5, 1)), horizontal_flip=0.5, seed=3)
    >>> data = Fetch()("photos/cat/1.png")
    >>> bool((decode(data, index=0) == decode(data, index=1)).all())
    False
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        put(self, scale=interval("scale", self.scale), ratio=interval("ratio", self.ratio))


@dataclass(frozen=True)
class Stretch(Crop):
    """Resizes all of the image, whatever becomes of its proportions (`Resize` with two sides).

    >>> from spdl_rs.io import DecodeImage, Fetch, Stretch
    >>> DecodeImage((16, 64), crop=Stretch())(Fetch()("photos/cat/1.png")).shape
    (16, 64, 3)
    """


@dataclass(frozen=True)
class Letterbox(Crop):
    """Resizes all of the image, in proportion, in the middle of a colour.

    Args:
        fill: Red, green and blue, 0 to 255, or one level for all.

    Raises:
        TypeError, ValueError: It is no colour.

    >>> from spdl_rs.io import DecodeImage, Fetch, Letterbox
    >>> DecodeImage(32, crop=Letterbox(fill=114))(Fetch()("photos/cat/1.png"))[0, 0].tolist()
    [114, 114, 114]
    """

    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        put(self, fill=color("fill", self.fill))


@dataclass(frozen=True)
class CenterCrop(Crop):
    """Takes the centre as it is, in the middle of a colour where the image is smaller (`CenterCrop`).

    Args:
        fill: Red, green and blue, 0 to 255, or one level for all.

    Raises:
        TypeError, ValueError: It is no colour.
    """

    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        put(self, fill=color("fill", self.fill))


@dataclass(frozen=True)
class RandomCrop(Crop):
    """Takes a random part as it is (`RandomCrop` with `pad_if_needed`).

    Args:
        padding: Pixels of the colour that are put around the image before: fewer than the sample's
            shorter side. A smaller image gets as many as it lacks, too.
        fill: Red, green and blue, 0 to 255, or one level for all.

    Raises:
        TypeError, ValueError: They are no such numbers.
    """

    padding: int = 0
    fill: Color = (0, 0, 0)

    def __post_init__(self) -> None:
        put(
            self,
            padding=check.whole("padding", self.padding, 0, 2**32 - 1),
            fill=color("fill", self.fill),
        )
