"""The steps from a path to a batch: for a single call, or as native stages of a pipeline."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, SupportsIndex, TypeAlias, overload

import numpy
import numpy.typing

from .. import _spdl_rs
from .._arguments import flag, whole
from .._spdl_rs import Array
from ._buffer import Buffer

Path: TypeAlias = "str | bytes | os.PathLike[str]"
Encoded: TypeAlias = "Buffer | Array"
Pixels: TypeAlias = "numpy.typing.NDArray[Any]"
Bytes: TypeAlias = "numpy.typing.NDArray[numpy.uint8]"
Labels: TypeAlias = "numpy.typing.NDArray[numpy.int64]"


@dataclass(frozen=True)
class Fetch:
    """Reads a file: a path becomes its bytes, `uint8 [size]`.

    In `PipelineBuilder.pipe` it runs without the GIL, with many files under way. What is handed on to
    `DecodeImage` never passes through Python. A pair of a path and a label, a whole number, becomes a
    pair of bytes and that label.

    Args:
        max_bytes: Larger files are refused, before they are read. Default: 1 GiB.

    Raises:
        TypeError: `max_bytes` is no whole number.
        ValueError: It is not in 1 to 2**64 - 1.

    A call raises `NotFoundError`, `PermissionDeniedError` or `IoError` for a file that cannot be read,
    `LimitExceededError` for one that is too large, each with the path in `error.key`, and `TypeError`
    for what is no path. In a pipeline these are failures of the stage.

    >>> from spdl_rs.io import Fetch
    >>> data = Fetch()("photos/cat/1.png")
    >>> data.dtype, bytes(data[:4])
    (dtype('uint8'), b'\\x89PNG')
    """

    _: KW_ONLY
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        _set(self, "max_bytes", whole("max_bytes", self.max_bytes, 1, 2**64 - 1))

    @overload
    def __call__(self, item: Path, /) -> Bytes: ...
    @overload
    def __call__(self, item: tuple[Path, SupportsIndex], /) -> tuple[Bytes, int]: ...
    def __call__(self, item: Any, /) -> Any:
        """Reads one file. Ctrl-C is heard meanwhile."""
        path, *label = _parts(item)
        data = numpy.asarray(_spdl_rs.FileReader(self.max_bytes).read(path))
        return (data, *label) if label else data


@dataclass(frozen=True)
class DecodeImage:
    """Decodes, crops and resizes an image, as `ImageLoader` does: bytes become pixels.

    They are `uint8 [size, size, 3]`, RGB (`layout="nhwc-u8"`), or `float32 [3, size, size]`,
    normalised (`layout="nchw-f32"`), and so on for the other layouts of `ImageLoader`.

    In `PipelineBuilder.pipe` it runs on threads of its own, without the GIL; `concurrency` says how
    many, and as many as this process may use CPUs is the default. It takes bytes from `Fetch` right
    in front of it, or else from Python: `bytes` without a copy, other buffers with one. Where
    `aggregate(BatchImages(...))` is right behind it, each image is written straight into its place in
    the batch. A pair of bytes and a label becomes a pair of pixels and that label.

    With `train=True` what is random is drawn from `seed`, from the epoch, and from the place of the
    item in the source: the same as `ImageLoader(..., shuffle=False, seed=seed)` draws there.

    Args:
        size: The side of the square images in pixels, 1 to 16,384.
        train: Whether to augment: see `ImageLoader`.
        layout: As for `ImageLoader`.
        seed: Decides all augmentation, 0 to 2**64 - 1.

    Raises:
        ValueError: An argument is out of range (`InvalidArgumentError` is one, too).
        NotImplementedError: `layout` is of `bf16`.
        TypeError: An argument is of the wrong type.

    A call raises `DataError` for what is no image, with `"bytes"` in `error.key`, or in a pipeline the
    path that was fetched; and `TypeError` for what has no bytes.

    >>> from spdl_rs.io import DecodeImage, Fetch
    >>> pixels = DecodeImage(32)(Fetch()("photos/cat/1.png"))
    >>> pixels.shape, pixels.dtype
    ((32, 32, 3), dtype('uint8'))
    >>> DecodeImage(32)(b"no image")
    Traceback (most recent call last):
    spdl_rs.UnsupportedError: bytes: not an image of a known format: it starts with "no image"; \
known are jpeg, png, webp, gif, bmp, tiff
    """

    size: int = 224
    _: KW_ONLY
    train: bool = False
    layout: Literal["nhwc-u8", "nhwc-f16", "nhwc-f32", "nchw-u8", "nchw-f16", "nchw-f32"] = (
        "nhwc-u8"
    )
    seed: int = 0

    def __post_init__(self) -> None:
        _set(self, "size", whole("size", self.size, 1, 2**32 - 1))
        _set(self, "train", flag("train", self.train))
        if not isinstance(self.layout, str):
            raise TypeError(f'layout must be "nhwc-u8" or "nchw-f32", not {self.layout!r}')
        _set(self, "seed", whole("seed", self.seed, 0, 2**64 - 1))
        # What Python does not know of sizes and layouts is told now.
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
            epoch, index: Which numbers to draw with `train=True`: those of this place in this epoch.
        """
        data, *label = _parts(item)
        epoch, index = whole("epoch", epoch, 0, 2**63), whole("index", index, 0, 2**63)
        pixels = numpy.asarray(self._native().decode(data, epoch, index))
        return (pixels, *label) if label else pixels

    def _native(self) -> _spdl_rs.ImageDecoder:
        return _decoder(self.size, self.train, self.layout, self.seed)


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
    of different shapes or types, and where only some have labels.

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
        _set(self, "batch_size", whole("batch_size", self.batch_size, 1, 2**63 - 1))
        _set(self, "drop_last", flag("drop_last", self.drop_last))

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
        if len({len(part) for part in parts}) > 1:
            raise ValueError("some images have a label and some have none; give all one, or none")
        images = [numpy.asarray(part[0]) for part in parts]
        kinds = dict.fromkeys((image.dtype, image.shape) for image in images)
        if len(kinds) > 1:
            found = " and ".join(f"{dtype} {list(shape)}" for dtype, shape in list(kinds)[:2])
            raise ValueError(f"images of a batch must be of one type and shape, not {found}")
        stacked = numpy.stack(images)
        if len(parts[0]) == 1:
            return stacked
        return stacked, numpy.array([part[1] for part in parts], dtype=numpy.int64)

    def accumulate(self, item: Any) -> Any | None:
        """Takes an image in. Returns a batch where one is full, else `None`."""
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
        return self(items)


@functools.lru_cache(maxsize=64)
def _decoder(size: int, train: bool, layout: str, seed: int) -> _spdl_rs.ImageDecoder:
    return _spdl_rs.ImageDecoder(size, train, layout, seed)


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
        raise TypeError(f"a label must be a whole number of 64 bits, not {label!r}") from None


def _set(operator_: object, name: str, value: Any) -> None:
    """Sets what was checked, in an object that is frozen for all others."""
    object.__setattr__(operator_, name, value)
