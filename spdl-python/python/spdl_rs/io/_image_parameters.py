"""The parameters that turn an encoded image into pixels, and their checks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from .. import _spdl_rs
from .._arguments import MAX_SIDE, choice, flag, layout, real, reals
from .._arguments import min_partial as checked_min_partial
from ._augmentations import Augmentation, several
from ._crops import RANDOM_CROPS, VARYING_CROPS, AspectBuckets, Crop
from ._native_settings import set_frozen, size

# Larger standard deviations are for pixels from 0 to 255.
_MAX_STD = 10


@dataclass(frozen=True, repr=False)
class ImageParameters:
    """Base class of `DecodeImage` and `fields.Image`, which describe the parameters."""

    _BFLOAT16: ClassVar[bool] = False
    """Whether arrays of bfloat16 are possible."""
    _OF_IMAGES: ClassVar[bool] = True
    """Whether alpha, 16 bits and EXIF orientations are possible."""

    size: int | tuple[int, int] = 224
    _: KW_ONLY
    train: bool = False
    layout: Literal[
        "nhwc-u8",
        "nhwc-u16",
        "nhwc-f16",
        "nhwc-bf16",
        "nhwc-f32",
        "nchw-u8",
        "nchw-u16",
        "nchw-f16",
        "nchw-bf16",
        "nchw-f32",
    ] = "nhwc-u8"
    crop: Crop | None = None
    horizontal_flip: float | None = None
    vertical_flip: float = 0.0
    filter: Literal["nearest", "area", "bilinear", "bicubic", "lanczos3"] = "bilinear"
    color: Literal["rgb", "bgr", "grey", "rgba"] = "rgb"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    exact: bool = False
    on_truncated: Literal["error", "partial"] = "error"
    augment: Augmentation | str | Sequence[Augmentation | str] = ()
    min_partial: float = 0.5
    exif_orientation: bool = True

    def __post_init__(self) -> None:
        layout(self.layout, bfloat16=self._BFLOAT16, uint16=self._OF_IMAGES)
        if self.crop is not None and not isinstance(self.crop, Crop):
            raise TypeError(
                f"crop must be a crop of spdl_rs.io, such as Stretch(), not {self.crop!r}"
            )
        if isinstance(self.crop, VARYING_CROPS) and self.size != type(self).size:
            raise ValueError(
                f"size={self.size} has no effect on crop={self.crop}, which determines the size; omit it"
            )
        choice("filter", self.filter, ("nearest", "area", "bilinear", "bicubic", "lanczos3"))
        choice("color", self.color, ("rgb", "bgr", "grey", "rgba") if self._OF_IMAGES else ("rgb", "bgr", "grey"))
        choice("on_truncated", self.on_truncated, ("error", "partial"))
        flip = self.horizontal_flip
        set_frozen(
            self,
            size=size("size", self.size, MAX_SIDE),
            train=flag("train", self.train),
            horizontal_flip=None if flip is None else real("horizontal_flip", flip),
            vertical_flip=real("vertical_flip", self.vertical_flip),
            mean=reals("mean", self.mean, 3),
            std=reals("std", self.std, 3),
            exact=flag("exact", self.exact),
            min_partial=real("min_partial", self.min_partial),
            exif_orientation=flag("exif_orientation", self.exif_orientation),
            augment=several("augment", self.augment),
        )
        self._check_normalization()
        # The native module checks the remaining conditions.
        self._decoder()

    def _check_normalization(self) -> None:
        unit = "as a fraction of 255; divide values for pixels from 0 to 255 by 255"
        if not all(0 <= mean <= 1 for mean in self.mean):
            raise ValueError(f"mean must be in [0, 1], not {self.mean}: {unit}")
        if not all(0 < std <= _MAX_STD for std in self.std):
            raise ValueError(f"std must be in (0, {_MAX_STD}], not {self.std}: {unit}")
        defaults = type(self).mean, type(self).std
        if self._is_unnormalized and (self.mean, self.std) != defaults:
            most = 255 if self.layout.endswith("u8") else 65535
            raise ValueError(
                f'mean and std have no effect on layout={self.layout!r}, whose pixels are from 0 to {most}: choose '
                'a normalised layout, such as "nchw-f32", or omit mean and std'
            )

    @property
    def _is_unnormalized(self) -> bool:
        return self.layout.endswith(("u8", "u16"))

    @property
    def _is_random(self) -> bool:
        """Whether the result may depend on random numbers."""
        default = 0.5 if self.train else 0.0
        flips = default if self.horizontal_flip is None else self.horizontal_flip, self.vertical_flip
        crops = self.train if self.crop is None else isinstance(self.crop, RANDOM_CROPS)
        crops = crops or (isinstance(self.crop, AspectBuckets) and self.crop.random)
        steps = several("augment", self.augment)
        return crops or any(0 < flip < 1 for flip in flips) or any(step._is_random for step in steps)

    def _settings(self) -> dict[str, Any]:
        """Returns the parameters for the native module. Those that are `None` have no effect."""
        names = ["train", "layout", "horizontal_flip", "vertical_flip", "filter", "color", "exact", "on_truncated"]
        names.append("exif_orientation")
        normalization = (None, None) if self._is_unnormalized else (self.mean, self.std)
        return {
            **{name: getattr(self, name) for name in names},
            "size": None if isinstance(self.crop, VARYING_CROPS) else self.size,
            "crop": None if self.crop is None else self.crop._native(),
            "mean": normalization[0],
            "std": normalization[1],
            "augment": [step._native() for step in several("augment", self.augment)],
            "min_partial": checked_min_partial(self.min_partial, self.on_truncated),
        }

    def _decoder(self) -> _spdl_rs.ImageDecoder:
        """Returns the native decoder, whose random numbers depend on `seed` if there is one."""
        return _decoder(self)


@functools.lru_cache(maxsize=64)
def _decoder(of: ImageParameters) -> _spdl_rs.ImageDecoder:
    return _spdl_rs.ImageDecoder(of._settings(), getattr(of, "seed", 0))
