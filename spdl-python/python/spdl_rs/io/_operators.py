"""The steps from a path to a batch: for a single call, or as native stages of a pipeline."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, SupportsIndex, TypeAlias, overload

import numpy
import numpy.typing

from .. import _spdl_rs
from .._arguments import MOST_SIDE, choice, flag, layout, real, reals, whole
from .._secrets import without_secrets
from .._spdl_rs import Array
from ._alike import not_alike, odd_ones
from ._augmentations import Augmentation, several
from ._buffer import Buffer
from ._crops import Crop
from ._described import put, size, width_and_height

Path: TypeAlias = "str | bytes | os.PathLike[str]"
Encoded: TypeAlias = "Buffer | Array"
Pixels: TypeAlias = "numpy.typing.NDArray[Any]"
Bytes: TypeAlias = "numpy.typing.NDArray[numpy.uint8]"
Labels: TypeAlias = "numpy.typing.NDArray[numpy.int64]"


@dataclass(frozen=True)
class Fetch:
    """Reads a file, or an object of a store: a path or an address becomes its bytes, `uint8 [size]`.

    A text with `://` in it is an address: `https:` and `http:`, `s3:`, `gs:`, `az:` or `file:`. What
    fails for a moment is tried again for a while. Credentials are found where each store's own tools
    find them; passwords and signatures in addresses are never shown.

    In `PipelineBuilder.pipe` it runs without the GIL. How many reads are under way it finds out by
    trying; `concurrency` says it once for all. What is handed on to `DecodeImage` never passes through
    Python. A pair of a path and a label, a whole number, becomes a pair of bytes and that label.

    Connections are kept for the next read of the same store, except where an address holds a
    password or a signature.

    Args:
        max_bytes: What is larger is refused, before it is read. Default: 1 GiB.

    Raises:
        TypeError: `max_bytes` is no whole number.
        ValueError: It is not in 1 to 2**64 - 1.

    A call raises `NotFoundError`, `PermissionDeniedError` or `IoError` for what cannot be read,
    `UnavailableError` or `TimedOutError` where a store did not answer in time, `LimitExceededError`
    for what is too large, each with the path or the address in `error.key`; and `TypeError` for what
    is neither. In a pipeline these are failures of the stage.

    >>> from spdl_rs.io import Fetch
    >>> data = Fetch()("photos/cat/1.png")
    >>> data.dtype, bytes(data[:4])
    (dtype('uint8'), b'\\x89PNG')
    """

    _: KW_ONLY
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        put(self, max_bytes=whole("max_bytes", self.max_bytes, 1, 2**64 - 1))

    @overload
    def __call__(self, item: Path, /) -> Bytes: ...
    @overload
    def __call__(self, item: tuple[Path, SupportsIndex], /) -> tuple[Bytes, int]: ...
    def __call__(self, item: Any, /) -> Any:
        """Reads one file or object. Ctrl-C is heard meanwhile."""
        path, *label = _parts(item)
        data = numpy.asarray(_reader(self.max_bytes).read(path))
        return (data, *label) if label else data


@dataclass(frozen=True, repr=False)
class DecodeImage:
    """Decodes, crops and resizes an image, as `ImageLoader` does: bytes become pixels.

    They are `uint8 [size, size, 3]`, RGB (`layout="nhwc-u8"`), or `float32 [3, size, size]`,
    normalised (`layout="nchw-f32"`), and so on for the other layouts of `ImageLoader`.

    The image is turned upright, cropped and resized in one, mirrored, changed by the augmentations,
    and then normalised and laid out.

    In `PipelineBuilder.pipe` it runs on threads of its own, without the GIL; `concurrency` says how
    many, and as many as this process may use CPUs is the default. It takes bytes from `Fetch` right
    in front of it, or else from Python: `bytes` without a copy, other buffers with one. Where
    `aggregate(BatchImages(...))` is right behind it, each image is written straight into its place in
    the batch. A pair of bytes and a label becomes a pair of pixels and that label.

    What is random is drawn from `seed`, from the epoch, and from the place of the item in the source:
    the same as `ImageLoader(..., shuffle=False, seed=seed)` draws there.

    Args:
        size: The side of the square images in pixels, 1 to 16,384; or their height and width.
        train: Whether to augment: see `ImageLoader`. The arguments behind it say more than this one.
        layout: As for `ImageLoader`.
        seed: Decides all augmentation, 0 to 2**64 - 1.
        crop: Which part of the image is seen. `None`: `RandomResizedCrop()` with `train`, and else the
            centre of the image, resized until it just covers `size / 0.875`.
        horizontal_flip: How often a sample is mirrored left to right, 0 to 1. `None`: half of the time
            with `train`, else never.
        vertical_flip: How often it is mirrored top to bottom, 0 to 1.
        filter: How pixels are weighed: `"nearest"`, `"area"`, `"bilinear"`, `"bicubic"` or
            `"lanczos3"`.
        color: `"rgb"`, `"bgr"`, or `"grey"` with one channel.
        mean, std: Of red, green and blue, as shares of 255, where the layout is normalised; of grey,
            the first. Default: ImageNet's.
        exact: Whether images are decoded at full size and to RGB before they are resized: slower,
            and within a level of 255 of what Pillow gives.
        on_truncated: What happens to a file that ends early. `"error"`: it is damaged. `"partial"`:
            what there is of the image is used, the rest is black.
        augment: Random changes of the resized image, such as `ColorJitter` or `RandAugment`: one, or
            several in a row.

    Raises:
        ValueError: An argument is out of range (`InvalidArgumentError` is one, too).
        NotImplementedError: `layout` is of `bf16`.
        TypeError: An argument is of the wrong type.

    A call raises `DataError` for what is no image, with `"bytes"` in `error.key`, or in a pipeline the
    path that was fetched; and `TypeError` for what has no bytes.

    >>> from spdl_rs.io import ColorJitter, DecodeImage, Fetch, Letterbox
    >>> pixels = DecodeImage(32)(Fetch()("photos/cat/1.png"))
    >>> pixels.shape, pixels.dtype
    ((32, 32, 3), dtype('uint8'))
    >>> decode = DecodeImage((24, 32), crop=Letterbox(), color="grey", augment=ColorJitter(0.4))
    >>> decode(Fetch()("photos/cat/1.png")).shape
    (24, 32, 1)
    >>> DecodeImage(32)(b"no image")
    Traceback (most recent call last):
    spdl_rs.UnsupportedError: bytes: not an image of a known format: it starts with "no image"; \
known are jpeg, png, webp, gif, bmp, tiff
    """

    size: int | tuple[int, int] = 224
    _: KW_ONLY
    train: bool = False
    layout: Literal["nhwc-u8", "nhwc-f16", "nhwc-f32", "nchw-u8", "nchw-f16", "nchw-f32"] = (
        "nhwc-u8"
    )
    seed: int = 0
    crop: Crop | None = None
    horizontal_flip: float | None = None
    vertical_flip: float = 0.0
    filter: Literal["nearest", "area", "bilinear", "bicubic", "lanczos3"] = "bilinear"
    color: Literal["rgb", "bgr", "grey"] = "rgb"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    exact: bool = False
    on_truncated: Literal["error", "partial"] = "error"
    augment: Augmentation | Sequence[Augmentation] = ()

    def __post_init__(self) -> None:
        layout(self.layout)
        if self.crop is not None and not isinstance(self.crop, Crop):
            raise TypeError(f"crop must be one of spdl_rs.io, such as Stretch(), not {self.crop!r}")
        choice("filter", self.filter, ("nearest", "area", "bilinear", "bicubic", "lanczos3"))
        choice("color", self.color, ("rgb", "bgr", "grey"))
        choice("on_truncated", self.on_truncated, ("error", "partial"))
        flip = self.horizontal_flip
        put(
            self,
            size=size("size", self.size, MOST_SIDE),
            train=flag("train", self.train),
            seed=whole("seed", self.seed, 0, 2**64 - 1),
            horizontal_flip=None if flip is None else real("horizontal_flip", flip),
            vertical_flip=real("vertical_flip", self.vertical_flip),
            mean=reals("mean", self.mean, 3),
            std=reals("std", self.std, 3),
            exact=flag("exact", self.exact),
            augment=several("augment", self.augment),
        )
        # What Python does not know of sizes, layouts and numbers is told now.
        self._native()

    @overload
    def __call__(self, item: Encoded, /, *, epoch: int = 0, index: int = 0) -> Pixels: ...
    @overload
    def __call__(
        self, item: tuple[Encoded, SupportsIndex], /, *, epoch: int = 0, index: int = 0
    ) -> tuple[Pixels, int]: ...
    def __call__(self, item: Any, /, *, epoch: int = 0, index: int = 0) -> Any:
        """Decodes one image.

        Args:
            item: The bytes, or a pair of them and a label.
            epoch, index: Which numbers to draw where something is random: those of this place in this
                epoch.
        """
        return self._drawn(item, _draws(self._draws, epoch, index))

    @property
    def _draws(self) -> tuple[int, str]:
        """Whose random numbers are drawn: the seed, and the name of the stage."""
        return self.seed, "decode"

    def _drawn(self, item: Any, draws: _spdl_rs.Draws) -> Any:
        data, *label = _parts(item)
        pixels = numpy.asarray(self._native().decode(data, draws))
        return (pixels, *label) if label else pixels

    def _native(self) -> _spdl_rs.ImageDecoder:
        return _decoder(self)

    def __repr__(self) -> str:
        return _repr(self, "size", "train", "layout", "seed")


@dataclass(frozen=True)
class AugmentImage:
    """Changes decoded images at random: `uint8 [height, width, 3]`, RGB, become as many others.

    `DecodeImage(augment=...)` does the same in the threads that decode, also for images that are
    normalised: take that, if all come from there. This is for images from elsewhere, and for changes
    that take longer than decoding: in `PipelineBuilder.pipe` it has threads of its own, without the
    GIL, and takes images from `DecodeImage` right in front of it without Python. Then
    `aggregate(BatchImages(...))` right behind it runs in Rust, too. A pair of pixels and a label
    becomes a pair of other pixels and that label.

    What is random is drawn from `seed`, from the epoch, and from the place of the item in the source.

    Args:
        augmentations: What is done: `ColorJitter(...)`, say, or several in a row.
        seed: Decides what is drawn, 0 to 2**64 - 1.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `seed` is out of range.

    A call raises `TypeError` for what is not `uint8`, and `ValueError` for another shape.

    >>> from spdl_rs.io import AugmentImage, RandomInvert
    >>> AugmentImage(RandomInvert(p=1))(numpy.full((2, 2, 3), 5, "u1"))[0, 0].tolist()
    [250, 250, 250]
    """

    augmentations: Augmentation | Sequence[Augmentation]
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        steps = several("augmentations", self.augmentations)
        put(self, augmentations=steps, seed=whole("seed", self.seed, 0, 2**64 - 1))
        self._native()

    @overload
    def __call__(self, item: Pixels, /, *, epoch: int = 0, index: int = 0) -> Pixels: ...
    @overload
    def __call__(
        self, item: tuple[Pixels, SupportsIndex], /, *, epoch: int = 0, index: int = 0
    ) -> tuple[Pixels, int]: ...
    def __call__(self, item: Any, /, *, epoch: int = 0, index: int = 0) -> Any:
        """Gives a changed copy of one image.

        Args:
            item: The pixels, or a pair of them and a label.
            epoch, index: Which numbers to draw: those of this place in this epoch.
        """
        return self._drawn(item, _draws(self._draws, epoch, index))

    @property
    def _draws(self) -> tuple[int, str]:
        """Whose random numbers are drawn: the seed, and the name of the stage."""
        return self.seed, "augment"

    def _drawn(self, item: Any, draws: _spdl_rs.Draws) -> Any:
        pixels, *label = _parts(item)
        changed = numpy.asarray(self._native().apply(pixels, draws))
        return (changed, *label) if label else changed

    def _native(self) -> _spdl_rs.ImageAugmenter:
        return _augmenter(self)


@dataclass(frozen=True)
class BatchImages:
    """Puts images side by side: `[...]` each become `[N, ...]`; labels become `int64 [N]`.

    `PipelineBuilder.aggregate` takes it. Right behind `pipe(DecodeImage(...))` it runs without the
    GIL, and nothing is copied; elsewhere it stacks the arrays that Python functions give. Items are
    images, or pairs of an image and its label: then it gives a pair of arrays. Either all items of a
    pipeline have a label, or none has.

    Args:
        batch_size: Images per batch, at least 1. An image that fails leaves its place to the next
            one, so that only the last batch of an epoch may be smaller.
        drop_last: Whether that one is left out.

    Raises:
        TypeError: `batch_size` is no whole number, or `drop_last` is not `True` or `False`.
        ValueError: `batch_size` is less than 1.

    Called with a list, it stacks that; it raises `ValueError` where the list is empty, where images are
    of different shapes or types, and where only some have labels. In a pipeline, those images of a full
    batch are dropped that are not like most of it, which is one failure; the others wait for more. At
    the end of an epoch that ends the pipeline.

    >>> from spdl_rs.io import BatchImages, DecodeImage, Fetch
    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> paths = [("photos/cat/1.png", 0), ("photos/cat/2.png", 0), ("photos/dog/1.png", 1)]
    >>> builder = PipelineBuilder().add_source(paths).pipe(Fetch(), output_order="input")
    >>> builder = builder.pipe(DecodeImage(32)).aggregate(BatchImages(2)).add_sink()
    >>> print(builder.get_config())
    PipelineConfig
     - Source: SourceConfig(source=[('photos/cat/1.png', 0), ('photos/cat/2.png', 0), \
('photos/dog/1.png', 1)])
     - Pipes:
       - Fetch(output_order="input", op=Fetch(max_bytes=1073741824)) [native]
       - DecodeImage(op=DecodeImage(size=32, train=False, layout='nhwc-u8', seed=0)) [native]
       - aggregate(BatchImages(batch_size=2, drop_last=False)) [native]
     - Sink: SinkConfig(buffer_size=3)
    >>> for images, labels in builder.build(num_threads=1):
    ...     print(images.shape, images.dtype, labels)
    (2, 32, 32, 3) uint8 [0 0]
    (1, 32, 32, 3) uint8 [1]
    >>> BatchImages(2)([numpy.zeros((4, 4, 3)), numpy.ones((4, 4, 3))]).shape
    (2, 4, 4, 3)
    """

    batch_size: int
    _: KW_ONLY
    drop_last: bool = False
    _items: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        batch_size = whole("batch_size", self.batch_size, 1, 2**63 - 1)
        put(self, batch_size=batch_size, drop_last=flag("drop_last", self.drop_last))

    def __call__(self, items: Sequence[Any], /) -> Any:
        """Stacks a list of images, or of pairs of an image and a label."""
        if not isinstance(items, Sequence):
            raise TypeError(
                f"BatchImages takes a list of images, not {type(items).__name__}; in a pipeline it "
                f"belongs into aggregate, which makes lists: .aggregate({self!r})"
            )
        parts = [_parts(item) for item in items]
        if not parts:
            raise ValueError("there are no images to make a batch of")
        odd = odd_ones(parts)
        if odd:
            raise ValueError(not_alike(parts, odd))
        return _stacked(parts)

    def accumulate(self, item: Any) -> Any | None:
        """Takes an image in. Returns a batch where one is full, else `None`.

        Raises:
            TypeError: It is a pair, but not of an image and a label.
            ValueError: Of a full batch, some images are not like the others. These are dropped; the
                others wait for more.
        """
        _parts(item)
        self._items.append(item)
        return self._take() if len(self._items) >= self.batch_size else None

    def flush(self) -> Any | None:
        """Returns what is held at the end of an epoch, if anything is and is wanted, else `None`."""
        if self._items and not self.drop_last:
            return self._take()
        self._items.clear()
        return None

    def _take(self) -> Any:
        items = self._items.copy()
        self._items.clear()
        parts = [_parts(item) for item in items]
        odd = odd_ones(parts)
        if odd:
            dropped = set(odd)
            self._items.extend(item for at, item in enumerate(items) if at not in dropped)
            raise ValueError(not_alike(parts, odd))
        return _stacked(parts)


@functools.lru_cache(maxsize=8)
def _reader(max_bytes: int) -> _spdl_rs.Reader:
    return _spdl_rs.Reader(max_bytes)


@functools.lru_cache(maxsize=64)
def _decoder(of: DecodeImage) -> _spdl_rs.ImageDecoder:
    return _spdl_rs.ImageDecoder(
        size=width_and_height(of.size),
        train=of.train,
        layout=of.layout,
        seed=of.seed,
        crop=None if of.crop is None else of.crop._native(),
        filter=of.filter,
        horizontal_flip=of.horizontal_flip,
        vertical_flip=of.vertical_flip,
        color=of.color,
        mean=of.mean,
        std=of.std,
        exact=of.exact,
        keep_partial=of.on_truncated == "partial",
        augment=[step._native() for step in several("augment", of.augment)],
    )


@functools.lru_cache(maxsize=64)
def _augmenter(of: AugmentImage) -> _spdl_rs.ImageAugmenter:
    steps = several("augmentations", of.augmentations)
    return _spdl_rs.ImageAugmenter([step._native() for step in steps], of.seed)


def _draws(of: tuple[int, str], epoch: int, index: int) -> _spdl_rs.Draws:
    seed, stage = of
    epoch, index = whole("epoch", epoch, 0, 2**63), whole("index", index, 0, 2**63)
    return _spdl_rs.Draws(seed, epoch, index, stage)


def _repr(of: Any, *always: str) -> str:
    """As that of a dataclass, without the settings that nobody has changed."""
    told = [
        f"{field.name}={getattr(of, field.name)!r}"
        for field in dataclasses.fields(of)
        if field.name in always or getattr(of, field.name) != field.default
    ]
    return f"{type(of).__name__}({', '.join(told)})"


def _stacked(parts: Sequence[tuple[Any, ...]]) -> Any:
    """A batch of what is alike."""
    images = numpy.stack([numpy.asarray(part[0]) for part in parts])
    if len(parts[0]) == 1:
        return images
    return images, numpy.array([part[1] for part in parts], dtype=numpy.int64)


def _parts(item: Any) -> tuple[Any, ...]:
    """A value, or a value and its label."""
    if not isinstance(item, tuple):
        return (item,)
    if len(item) != 2:
        raise TypeError(f"a pair of a value and its label is needed, not {len(item)} values")
    value, label = item
    try:
        return value, operator.index(label)
    except TypeError:
        shown = without_secrets(repr(label))
        raise TypeError(f"a label must be a whole number of 64 bits, not {shown}") from None
