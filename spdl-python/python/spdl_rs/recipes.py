"""Recipes: the fields of common training set-ups, for `Loader`.

| function | images |
|---|---|
| `imagenet_train`, `imagenet_eval` | the recipes of torchvision's classification references |
| `deit` | strong augmentation for vision transformers |
| `simclr` | two views for contrastive learning |
| `dino` | global and local crops for self-distillation |
| `clip`, `clip_eval` | images of image–text pairs |
| `coco_detection` | an image, its boxes and their classes |
| `ssd_detection` | the same, with the augmentations of SSD |
| `ade20k` | an image and its mask, for semantic segmentation |
| `Mix`, `deit_mix` | MixUp and CutMix of the images of a batch |
| `Mosaic` | mosaics of the images of a batch, with their boxes |
| `CopyPaste` | objects of other images of the batch, with their boxes |

Each function but `deit_mix` returns one `fields.Image`, or a `dict` of several fields by name. `layout` is that of the
image. Further arguments replace or add arguments of `fields.Image`, such as `stored_as`.

>>> from spdl_rs import Loader, fields, recipes
>>> loader = Loader("photos", batch_size=4, image=recipes.imagenet_train(64), label=fields.Label())
>>> loader.peek()["image"].shape
(4, 3, 64, 64)
>>> loader = Loader("photos", recipes.simclr(32), batch_size=4)
>>> sorted(loader.peek())
['view0', 'view1']

Random numbers differ from those of the original programs; distributions are equal, except where noted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

from . import _arguments as check
from .fields import Array, Boxes, Field, Image, Mask
from .io._augmentations import (
    MEAN_COLOR,
    Augmentation,
    ColorJitter,
    GaussianBlur,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
    TimmRandAugment,
)
from .io._native_settings import set_frozen
from .io._crops import (
    VARYING_CROPS,
    Letterbox,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomScaledCrop,
    RandomZoomOut,
    Resize,
    ResizedCenterCrop,
    Stretch,
)

__all__ = [
    "CopyPaste",
    "Mix",
    "Mosaic",
    "ade20k",
    "clip",
    "clip_eval",
    "coco_detection",
    "deit",
    "deit_mix",
    "dino",
    "imagenet_eval",
    "imagenet_train",
    "simclr",
    "ssd_detection",
]

# Mean and standard deviation of the data on which CLIP was trained: the constants of OpenAI's CLIP.
_CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
# The ranges of torchvision's `RandomPhotometricDistort`.
_PHOTOMETRIC = tuple(
    RandomApply(change, p=0.5)
    for change in (
        ColorJitter(brightness=(0.875, 1.125)),
        ColorJitter(contrast=(0.5, 1.5)),
        ColorJitter(saturation=(0.5, 1.5)),
        ColorJitter(hue=0.05),
    )
)


@dataclass(frozen=True)
class Mix:
    """MixUp and CutMix for the argument `mix` of `Loader`: mixes each image of a batch with the previous one.

    The first image is mixed with the last. Labels become `float32 [N, classes]`, the weight of each class; without
    `mixup` and `cutmix`, only the labels change.
    MixUp (Zhang et al., 2018, arXiv:1710.09412) blends two images; CutMix (Yun et al., 2019,
    arXiv:1905.04899) copies a rectangle. The ratio is drawn once per batch.

    Args:
        classes: The number of classes. Labels are 0 to `classes - 1`; others are errors.
        mixup: MixUp with a ratio from the Beta distribution of this parameter; `None`: no MixUp.
        cutmix: CutMix, likewise.
        probability: The probability that a batch is mixed.
        cutmix_probability: The probability of CutMix for a batch that is mixed, if both are given.
        smoothing: The fraction of the weight of each label that all classes share equally.
        image, label: The names of the fields. The label is a `Label`, or a `Number` of dtype `int64`.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    >>> from spdl_rs import Loader, fields
    >>> loader = Loader(
    ...     "photos",
    ...     batch_size=4,
    ...     image=imagenet_train(32),
    ...     label=fields.Label(),
    ...     mix=Mix(2, mixup=0.2, cutmix=1.0, smoothing=0.1),
    ... )
    >>> loader.peek()["label"].shape
    (4, 2)
    """

    classes: SupportsIndex
    mixup: float | None = None
    cutmix: float | None = None
    probability: float = 1.0
    cutmix_probability: float = 0.5
    smoothing: float = 0.0
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        def alpha(name: str, value: float | None) -> float | None:
            if value is None:
                return None
            value = check.real(name, value)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, not {value}")
            return value

        def fraction(name: str, value: float) -> float:
            value = check.real(name, value)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be 0 to 1, not {value}")
            return value

        set_frozen(
            self,
            classes=check.whole("classes", self.classes, 1, 2**31 - 1),
            mixup=alpha("mixup", self.mixup),
            cutmix=alpha("cutmix", self.cutmix),
            probability=fraction("probability", self.probability),
            cutmix_probability=fraction("cutmix_probability", self.cutmix_probability),
            smoothing=fraction("smoothing", self.smoothing),
            image=check.text("image", self.image),
            label=check.text("label", self.label),
        )

    def _native(self) -> tuple[str, dict[str, Any]]:
        return _described(Mix, self)


@dataclass(frozen=True)
class Mosaic:
    """Mosaics of four images of a batch, with their boxes, for the argument `mix` of `Loader`.

    The image itself and three others of the batch meet at a random centre, as in YOLOv4 (Bochkovskiy et al., 2020,
    arXiv:2004.10934). Each keeps its size and is clipped. Boxes and masks follow: boxes are clipped, and dropped by the
    limits of `fields.Boxes`, with the rows of the fields that name them in `rows_of`. Other fields keep the values of
    the sample. Key points and `Geometry` are refused. The mosaics of a batch depend on its first sample.

    Args:
        p: The probability that an image becomes a mosaic.
        center: The range of the centre, as fractions of width and height. `(0, 1)` shows as much of each image as
            YOLOv5 before its random scale.
        image: The name of the image, which has one size. Boxes and their rows are lists (`collate="list"`).

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    >>> from spdl_rs import Loader, fields
    >>> loader = Loader("photos", batch_size=4, image=fields.Image(64), mix=Mosaic(p=0.5))
    >>> loader.peek()["image"].shape
    (4, 64, 64, 3)
    """

    p: float = 1.0
    center: tuple[float, float] = (0.25, 0.75)
    image: str = "image"

    def __post_init__(self) -> None:
        p, center = check.real("p", self.p), check.reals("center", self.center, 2)
        if not 0 <= p <= 1:
            raise ValueError(f"p must be 0 to 1, not {p}")
        if not 0 <= center[0] <= center[1] <= 1:
            raise ValueError(f"center must be two fractions that ascend, not {center}")
        set_frozen(self, p=p, center=center, image=check.text("image", self.image))

    def _native(self) -> tuple[str, dict[str, Any]]:
        return _described(Mosaic, self)


@dataclass(frozen=True)
class CopyPaste:
    """Pastes objects of other images of a batch, with their boxes, for the argument `mix` of `Loader`.

    For each image, another image of the batch is drawn, and some of its objects. The pixels of the box of each replace
    those at the same place, also in masks. This is Copy-Paste (Ghiasi et al., 2021, arXiv:2012.07177) for objects that
    have boxes but no outlines. A box of the image itself becomes the smallest box around its visible part; it is
    dropped by the limits of `fields.Boxes`, with the rows of the fields that name it in `rows_of`. The same applies to
    objects of the other image that were not drawn: they may be visible in the boxes of drawn ones. Visible parts are
    measured in whole pixels. Other fields keep the values of the sample. Key points and `Geometry` are refused. The
    result depends on the batch.

    Args:
        p: The probability that objects are pasted onto an image.
        share: The probability of each object of the other image to be pasted.
        image: The name of the image, which has one size. One field of boxes follows it; boxes and their rows are lists
            (`collate="list"`).

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    >>> from pathlib import Path
    >>> from spdl_rs import Loader, fields
    >>> samples = [
    ...     {"image": Path("photos/cat/1.png"), "boxes": [[0, 0, 4, 4]]},
    ...     {"image": Path("photos/dog/1.png"), "boxes": [[8, 8, 12, 12]]},
    ... ]
    >>> image = fields.Image(64, crop=Letterbox())
    >>> mix = CopyPaste(share=1.0)
    >>> loader = Loader(samples, batch_size=2, image=image, boxes=fields.Boxes(), mix=mix)
    >>> [len(boxes) for boxes in loader.peek()["boxes"]]
    [2, 2]
    """

    p: float = 1.0
    share: float = 0.5
    image: str = "image"

    def __post_init__(self) -> None:
        p, share = check.real("p", self.p), check.real("share", self.share)
        for name, value in {"p": p, "share": share}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be 0 to 1, not {value}")
        set_frozen(self, p=p, share=share, image=check.text("image", self.image))

    def _native(self) -> tuple[str, dict[str, Any]]:
        return _described(CopyPaste, self)


def _described(kind: type[CopyPaste | Mix | Mosaic], one: Any) -> tuple[str, dict[str, Any]]:
    """The name and parameters for the native module, also of an instance of a subclass."""
    return kind.__name__, {field.name: getattr(one, field.name) for field in dataclasses.fields(kind)}


def deit_mix(classes: SupportsIndex = 1000) -> Mix:
    """Returns MixUp of 0.8 or CutMix of 1.0, with label smoothing of 0.1, as for DeiT."""
    return Mix(classes, mixup=0.8, cutmix=1.0, smoothing=0.1)


def imagenet_train(size: int = 224, *, layout: str = "nchw-f32", **settings: Any) -> Image:
    """Returns an image as torchvision's classification reference trains on it.

    A random crop of 8 to 100 % of the area, resized to `size`, flipped with probability 0.5, normalised with
    the mean and standard deviation of ImageNet. It equals `ImageLoader(train=True)`.
    """
    return _image(size, layout, {"train": True}, settings)


def imagenet_eval(
    size: int = 224, *, covering: int = 256, layout: str = "nchw-f32", **settings: Any
) -> Image:
    """Returns an image as torchvision's classification reference evaluates it.

    The shorter side is resized to `covering`, and the centre is cropped.
    """
    return _image(size, layout, {"crop": ResizedCenterCrop(covering)}, settings)


def deit(size: int = 224, *, layout: str = "nchw-f32", **settings: Any) -> Image:
    """Returns an image with strong augmentation, as for DeiT (Touvron et al., 2021).

    As `imagenet_train` with bicubic interpolation, RandAugment of timm (`"rand-m9-mstd0.5-inc1"`), and random
    erasing with probability 0.25. Differences: RandAugment interpolates bilinearly, see `TimmRandAugment`; erased
    pixels have uniform levels, not normally distributed values after the normalisation. For MixUp and CutMix,
    pass `mix=deit_mix(classes)` to `Loader`.
    """
    policy = TimmRandAugment(2, 9, 0.5, increasing=True, fill=MEAN_COLOR)
    erasing = RandomErasing(p=0.25, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random")
    recipe = {"train": True, "filter": "bicubic", "augment": (policy, erasing)}
    return _image(size, layout, recipe, settings)


def simclr(
    size: int = 224, *, views: int = 2, layout: str = "nchw-f32", **settings: Any
) -> dict[str, Image]:
    """Returns independent views of an image, `view0`, `view1` and so on, as for SimCLR (Chen et al., 2020).

    Each view: a random crop of 8 to 100 % of the area, a flip, colour jitter of strength 1 with probability
    0.8, greyscale with probability 0.2, and blur with a kernel of a tenth of `size` with probability 0.5.
    """
    kernel = size // 10 // 2 * 2 + 1
    augment = (
        RandomApply(ColorJitter(0.8, 0.8, 0.8, 0.2), p=0.8),
        RandomGrayscale(0.2),
        RandomApply(GaussianBlur(kernel), p=0.5),
    )
    recipe = {"train": True, "augment": augment}
    return {
        f"view{view}": _image(size, layout, {**recipe, "view": view}, settings) for view in range(views)
    }


def dino(
    size: int = 224,
    *,
    local_size: int = 96,
    local_crops: int = 8,
    global_scale: tuple[float, float] = (0.4, 1.0),
    local_scale: tuple[float, float] = (0.05, 0.4),
    layout: str = "nchw-f32",
    **settings: Any,
) -> dict[str, Image]:
    """Returns two large and several small crops of an image, as for DINO (Caron et al., 2021).

    The large crops are `global0` and `global1`, the small ones `local0` and so on. All are flipped with
    probability 0.5, and have colour jitter, greyscale and blur; `global1` is solarised with probability 0.2.

    Args:
        size: The side of the large crops.
        local_size: The side of the small crops.
        local_crops: The number of small crops.
        global_scale, local_scale: The minimum and maximum fraction of the image's area.
        layout: See `ImageLoader`.
        settings: Further arguments of `fields.Image`.
    """
    jitter = (RandomApply(ColorJitter(0.4, 0.4, 0.2, 0.1), p=0.8), RandomGrayscale(0.2))

    def blurred(p: float, *more: Augmentation) -> tuple[Augmentation, ...]:
        # The kernel spans six standard deviations of at most 2 pixels.
        return (*jitter, RandomApply(GaussianBlur(13), p=p), *more)

    crops = [
        ("global0", size, global_scale, blurred(1.0)),
        ("global1", size, global_scale, blurred(0.1, RandomSolarize(128, p=0.2))),
    ]
    crops += [(f"local{crop}", local_size, local_scale, blurred(0.5)) for crop in range(local_crops)]
    images = {}
    for view, (name, side, scale, augment) in enumerate(crops):
        recipe = {
            "crop": RandomResizedCrop(scale),
            "horizontal_flip": 0.5,
            "filter": "bicubic",
            "augment": augment,
            "view": view,
        }
        images[name] = _image(side, layout, recipe, settings)
    return images


def clip(size: int = 224, *, layout: str = "nchw-f32", **settings: Any) -> Image:
    """Returns an image as OpenCLIP trains on it.

    A random crop of 90 to 100 % of the area, bicubic, normalised with the constants of CLIP.
    """
    recipe = {"crop": RandomResizedCrop((0.9, 1.0)), "filter": "bicubic"}
    return _image(size, layout, recipe, settings, **_CLIP)


def clip_eval(size: int = 224, *, layout: str = "nchw-f32", **settings: Any) -> Image:
    """Returns an image as OpenCLIP evaluates it.

    The shorter side is resized to `size`, bicubic, and the centre is cropped.
    """
    recipe = {"crop": ResizedCenterCrop(size), "filter": "bicubic"}
    return _image(size, layout, recipe, settings, **_CLIP)


def coco_detection(
    size: int | tuple[int, int] | None = None,
    *,
    document: str | None = None,
    boxes: str = "boxes",
    classes: str = "classes",
    format: Literal["xyxy", "xywh", "cxcywh"] | None = None,
    keep_crowd: bool = False,
    keep_empty: bool = False,
    collate: Literal["list", "ragged", "pad"] = "list",
    layout: str = "nchw-f32",
    **settings: Any,
) -> dict[str, Field]:
    """Returns the fields `image`, `boxes` and `classes`, as for torchvision's detection reference.

    The image is flipped with probability 0.5, resized to fit into `size`, padded with the mean colour, and
    normalised with the mean and standard deviation of ImageNet. As in the reference, boxes of crowds are dropped, and so
    are images without boxes. For evaluation, pass `horizontal_flip=0, keep_empty=True`. With
    `crop=Resize(800, longest=1333)`, images are resized as in the reference, and differ in size.

    Args:
        size: The side of the sample, or (height, width). Default: 640, or the size of `Resize`.
        document: The stored JSON document with the boxes and their classes. `None`: they are stored fields, as of
            COCO annotations.
        boxes, classes: The stored fields, or the places in the document: see the argument `at` of fields. A list of
            boxes and a list of class numbers, of the same length.
        format: The format of the boxes: see `fields.Boxes`. Default: `"xywh"` in a document, as in COCO;
            otherwise `"xyxy"`.
        keep_crowd: Whether to keep the boxes for which the stored field `crowd` is not 0.
        keep_empty: Whether to keep images without boxes. Otherwise, `len(loader)` is an upper bound, and ranks may have
            different numbers of batches: see `filter` of `Loader`.
        collate: How boxes and classes are collated: `"list"`, `"ragged"` or `"pad"`, see `fields.Boxes`. Padding is 0
            for boxes and -1 for classes; `sizes` is `[N, 1]`, the numbers of boxes. With `"pad"`, images of different
            sizes are padded too.
        layout: See `ImageLoader`.
        settings: Further arguments of `fields.Image`.

    >>> sorted(coco_detection(640))
    ['boxes', 'classes', 'image']
    """
    recipe = {"crop": Letterbox(MEAN_COLOR), "horizontal_flip": 0.5}
    if size is None and not isinstance(settings.get("crop"), Resize):
        size = 640

    if format is None:
        format = "xyxy" if document is None else "xywh"

    def stored(name: str) -> dict[str, Any]:
        return {"stored_as": name} if document is None else {"stored_as": document, "at": name}

    padding = None
    if collate == "pad":
        padding = -1
        if isinstance(settings.get("crop"), VARYING_CROPS):
            settings["collate"] = "pad"

    return {
        "image": _image(size, layout, recipe, settings),
        "boxes": Boxes(
            format=format,
            collate=collate,
            drop_where=None if check.flag("keep_crowd", keep_crowd) else "crowd",
            empty="keep" if check.flag("keep_empty", keep_empty) else "drop",
            **stored(boxes),
        ),
        "classes": Array(
            None, "int64", rows_of="boxes", collate=collate, padding=padding, **stored(classes)
        ),
    }


def ssd_detection(size: int | tuple[int, int] = 300, **arguments: Any) -> dict[str, Field]:
    """Returns the fields `image`, `boxes` and `classes`, augmented as for SSD in torchvision's detection reference.

    The image is placed on a canvas of the mean colour with probability 0.5 (`RandomZoomOut`), a part that overlaps a box
    is cropped (`RandomIoUCrop`) and stretched to `size`, and flipped with probability 0.5. Brightness, contrast, saturation
    and hue change with probability 0.5 each. The image is normalised with the mean and standard deviation of ImageNet.
    Differences: colours change last, in this order, and with the canvas.

    Args:
        size: The side of the sample, or (height, width).
        arguments: Those of `coco_detection`, and further arguments of `fields.Image`.

    >>> ssd_detection(320)["image"].iou_crop
    RandomIoUCrop(min_scale=0.3, max_scale=1.0, min_aspect_ratio=0.5, max_aspect_ratio=2.0, sampler_options=None, trials=40)
    """
    recipe = {
        "crop": Stretch(),
        "zoom_out": RandomZoomOut(MEAN_COLOR),
        "iou_crop": RandomIoUCrop(),
        "augment": _PHOTOMETRIC,
    }
    return coco_detection(size, **{**recipe, **arguments})


def ade20k(
    size: int = 512,
    *,
    shorter: tuple[int, int] | None = None,
    mask: str | Sequence[str] = "seg.png",
    outside: int = 255,
    layout: str = "nchw-f32",
    **settings: Any,
) -> dict[str, Field]:
    """Returns the fields `image` and `mask`, as references of semantic segmentation train on ADE20K.

    The shorter side is resized to a random length, a random square is cropped, padded and flipped with probability
    0.5, and brightness, contrast, saturation and hue change with probability 0.5 each. The image is normalised with
    the mean and standard deviation of ImageNet. Differences: the order of the changes is fixed, and their factors
    are those of torchvision's `RandomPhotometricDistort`; crops may show one class only. Numbers of the mask are
    kept: 0 is "other" in ADE20K.

    Args:
        size: The side of the sample.
        shorter: The minimum and maximum length of the shorter side. `None`: half to twice `size`.
        mask: The stored mask.
        outside: The number of pixels outside the image, which the loss ignores.
        layout: See `ImageLoader`.
        settings: Further arguments of `fields.Image`.

    >>> ade20k(512)["image"].crop
    RandomScaledCrop(shorter=(256, 1024), fill=(124, 116, 104))
    """
    recipe = {
        "crop": RandomScaledCrop(shorter or (max(size // 2, 1), 2 * size), MEAN_COLOR),
        "horizontal_flip": 0.5,
        "augment": _PHOTOMETRIC,
    }
    return {
        "image": _image(size, layout, recipe, settings),
        "mask": Mask(stored_as=mask, outside=outside),
    }


def _image(
    size: int | tuple[int, int] | None,
    layout: str,
    recipe: dict[str, Any],
    settings: dict[str, Any],
    **normalization: tuple[float, ...],
) -> Image:
    if layout.endswith("u8"):
        # Pixels from 0 to 255 are not normalised.
        normalization = {}
    arguments = {"layout": layout, **normalization, **recipe, **settings}
    return Image(*(() if size is None else (size,)), **arguments)
