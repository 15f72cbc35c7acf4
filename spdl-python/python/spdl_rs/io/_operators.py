"""Operators that turn paths into batches of images: functions of one item, or native pipeline stages."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import random
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    overload,
)

import numpy
import numpy.typing

from .. import _spdl_rs
from .._arguments import MAX_SIDE, choice, flag, layout, real, reals, shown, whole
from .._arguments import min_partial as checked_min_partial
from .._secrets import without_secrets
from .._spdl_rs import Array
from . import _repeated_draws as repeated_draws
from ._augmentations import Augmentation, several
from ._crops import VARYING_CROPS
from ._batch_check import mismatch_message, mismatched
from ._buffer import Buffer
from ._image_parameters import ImageParameters
from ._native_settings import set_frozen

if TYPE_CHECKING:
    from ..fields import Audio, Video

Path: TypeAlias = "str | bytes | os.PathLike[str]"
Encoded: TypeAlias = "Buffer | Array"
Pixels: TypeAlias = "numpy.typing.NDArray[Any]"
Bytes: TypeAlias = "numpy.typing.NDArray[numpy.uint8]"
Labels: TypeAlias = "numpy.typing.NDArray[numpy.int64]"
Generator: TypeAlias = "numpy.random.Generator | random.Random"
Input = TypeVar("Input")


@dataclass(frozen=True)
class Fetch:
    """Reads the file or object at a path or address. Returns the bytes, `uint8 [size]`.

    Strings that contain `://` are addresses: `https:`, `http:`, `s3:`, `gs:`, `az:` or `file:`. Transient
    failures are retried. Credentials come from the environment, as for the command-line tools of each
    store. Passwords and signatures in addresses are never printed.

    As a stage (`PipelineBuilder.pipe`), `Fetch` runs without the GIL. The number of concurrent reads adapts to
    the throughput, unless `concurrency` fixes it. Bytes go to a following `DecodeImage` without passing
    through Python. A pair of a path and an integer label becomes a pair of bytes and label.

    Connections are kept for further reads from the same store, unless the address contains a password or
    a signature.

    Args:
        max_bytes: The largest accepted file, in bytes. Larger files are rejected, before they are read if the
            size is known by then. Default: 64 MiB.

    Raises:
        TypeError: `max_bytes` is not an integer.
        ValueError: `max_bytes` is not in 1 to 2**64 - 1.

    A call raises `NotFoundError`, `PermissionDeniedError` or `IoError` if the file cannot be read. A call
    raises `UnavailableError` or `TimedOutError` if a store does not respond in time, and
    `LimitExceededError` if the file is too large. `error.key` is the path or address. Items that are
    neither a path nor a pair of a path and an integer raise `TypeError`. In a pipeline, these exceptions
    are failures of the stage.

    >>> from spdl_rs.io import Fetch
    >>> data = Fetch()("photos/cat/1.png")
    >>> data.dtype, bytes(data[:4])
    (dtype('uint8'), b'\\x89PNG')
    """

    _: KW_ONLY
    max_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        set_frozen(self, max_bytes=whole("max_bytes", self.max_bytes, 1, 2**64 - 1))

    @overload
    def __call__(self, item: Path, /) -> Bytes: ...
    @overload
    def __call__(self, item: tuple[Path, SupportsIndex], /) -> tuple[Bytes, int]: ...
    def __call__(self, item: Any, /) -> Any:
        """Reads one file or object. Handles Ctrl-C during the wait."""
        path, *label = _parts(item)
        data = numpy.asarray(_reader(self.max_bytes).read(path))
        return (data, *label) if label else data


class _RandomOperator(Generic[Input]):
    """A function of one item whose result may depend on random numbers."""

    # The name of the stage, which selects the random numbers together with the seed.
    _STAGE: ClassVar[str] = "decode"
    seed: int

    @overload
    def __call__(
        self,
        item: tuple[Input, SupportsIndex],
        /,
        *,
        epoch: int | None = None,
        index: int | None = None,
        rng: Generator | None = None,
    ) -> tuple[Pixels, int]: ...
    @overload
    def __call__(
        self,
        item: Input,
        /,
        *,
        epoch: int | None = None,
        index: int | None = None,
        rng: Generator | None = None,
    ) -> Pixels: ...
    def __call__(
        self,
        item: Any,
        /,
        *,
        epoch: int | None = None,
        index: int | None = None,
        rng: Generator | None = None,
    ) -> Any:
        """Processes one item.

        Args:
            item: The bytes of a file, or the pixels for `AugmentImage`; or a pair of these and a label.
            epoch, index: The epoch (default: 0) and the position in it, which determine the random numbers
                together with `seed`. `None`: those of the item of the pipeline that makes the call.
            rng: Instead of `index`: a generator of NumPy or of `random`, which determines the random numbers.

        Raises:
            ValueError: The result depends on random numbers, the call is not made by a function of a pipeline,
                and neither `index` nor `rng` is given.

        >>> from spdl_rs.io import DecodeImage, Fetch
        >>> data, decode = Fetch()("photos/cat/1.png"), DecodeImage(32, train=True, seed=7)
        >>> bool((decode(data, index=3) == decode(data, index=3)).all())
        True
        >>> rng = numpy.random.default_rng(0)
        >>> bool((decode(data, rng=rng) == decode(data, rng=rng)).all())
        False
        """
        return self._apply(item, self._draws_of_call(epoch, index, rng))

    @property
    def _draws(self) -> tuple[int, str]:
        """The seed and the stage name that select the random numbers."""
        return self.seed, self._STAGE

    @property
    def _is_random(self) -> bool:
        """Whether the result may depend on random numbers."""
        raise NotImplementedError

    def _result(self, value: Input, draws: _spdl_rs.Draws) -> Any:
        """The result for a value without its label."""
        raise NotImplementedError

    def _apply(self, item: Any, draws: _spdl_rs.Draws) -> Any:
        value, *label = _parts(item)
        result = numpy.asarray(self._result(value, draws))
        return (result, *label) if label else result

    def _draws_of_call(
        self, epoch: int | None, index: int | None, rng: Generator | None
    ) -> _spdl_rs.Draws:
        """Returns the random numbers of a direct call."""
        seed, stage = self._draws
        if rng is not None:
            if epoch is not None or index is not None:
                raise ValueError("pass either rng, or index and epoch, not both")
            return _spdl_rs.Draws(_bits(rng), 0, 0, stage)
        if index is not None:
            epoch = 0 if epoch is None else whole("epoch", epoch, 0, 2**63)
            return _spdl_rs.Draws(seed, epoch, whole("index", index, 0, 2**63), stage)
        if not self._is_random:
            return _spdl_rs.Draws(seed, 0, 0, stage)
        if epoch is not None:
            raise ValueError("epoch requires index: the position of the item in the epoch")
        of_item = _spdl_rs.Draws.of_item(seed, stage)
        if of_item is None:
            raise ValueError(
                f"{self!r} needs the position of the item for its random numbers: pass index= (and epoch=), or "
                "a generator as rng=. Only functions that a pipeline calls on its own threads need neither"
            )
        draws, name, epoch, index = of_item
        if index == 0:
            repeated_draws.check(self, name, epoch)
        return draws

@dataclass(frozen=True, repr=False)
class DecodeImage(ImageParameters, _RandomOperator[Encoded]):
    """Decodes, crops and resizes an image, as `ImageLoader` does: from bytes to pixels.

    The result is `uint8 [size, size, 3]`, RGB (`layout="nhwc-u8"`), or `float32 [3, size, size]`,
    normalised (`layout="nchw-f32"`), or one of the other layouts of `ImageLoader`.

    Steps: orientation from the metadata, crop and resize in one pass, flip, augmentations, normalisation.

    As a stage (`PipelineBuilder.pipe`), `DecodeImage` runs on native threads, without the GIL. `concurrency`
    is their number; the default is the number of CPUs that this process may use. The input is the output of a
    preceding `Fetch`, or objects from Python: `bytes` are not copied, other buffers are copied once. If
    `aggregate(BatchImages(...))` follows, images are written directly into their slots of the batch. A pair
    of bytes and a label becomes a pair of pixels and label.

    Random numbers depend on `seed`, the epoch and the position of the item in the source, if `DecodeImage` is a
    stage, or is called by a function or generator that is a stage and runs on the pipeline's threads. Random
    numbers of the stage are the same as in `ImageLoader(..., shuffle=False, seed=seed)`. Further calls for the
    same item draw other numbers. `build(epoch=...)` sets the epoch if each epoch has a separate pipeline. All
    other calls require `index` or `rng`, if the result depends on random numbers.

    Args:
        size: Width and height of the result in pixels, 1 to 16,384; or (height, width).
        train: Whether to augment: see `ImageLoader`. The arguments below override `train`.
        layout: See `ImageLoader`. Also `"nhwc-u16"` and `"nchw-u16"`: `uint16`, 0 to 65,535, which keep the 16 bits of
            PNG and TIFF files; samples of 8 bits are multiplied by 257. All other layouts, floats too, use 8 bits of
            all files: the upper 8 of 16 bits, but grey values of 16 bits are clamped to 255, as in Pillow. `u16` is
            slower, and excludes `augment`, `FiveCrop` and `TenCrop`.
        seed: Determines all random numbers, 0 to 2**64 - 1.
        crop: The part of the image to use. `None`: `RandomResizedCrop()` with `train`, else the centre of
            the image, resized to cover `size / 0.875`.
        horizontal_flip: The probability of a horizontal flip, 0 to 1. `None`: 0.5 with `train`, else 0.
        vertical_flip: The probability of a vertical flip, 0 to 1.
        filter: The interpolation: `"nearest"`, `"area"`, `"bilinear"`, `"bicubic"` or `"lanczos3"`. All but `"nearest"`
            are antialiased when an image shrinks, as with torchvision's `antialias=True`.
        color: `"rgb"`, `"bgr"`, `"grey"` with one channel, or `"rgba"` with four. Alpha is that of PNG, WebP, GIF, TIFF
            and BMP files; it is opaque (the largest value) for other files and outside the image. As in Pillow, pixels
            are resized premultiplied by alpha, so that transparent pixels do not change the colours of others, and
            pixels that become transparent are black; the result is not premultiplied. `"rgba"` is slower, and
            excludes `augment`, `FiveCrop` and `TenCrop`.
        mean, std: Mean and standard deviation of red, green and blue, as fractions of 255 (a mean is at most 1),
            for normalised layouts; for grey, the first value is used. Alpha is not normalised: it is 0 to 1.
            `mean=(0, 0, 0), std=(1, 1, 1)`: no normalisation; values are 0 to 1, as those of torchvision's
            `ToTensor`. Default: the values of ImageNet.
        exact: Whether to decode at full size and convert to RGB before resizing. Exact decoding is slower;
            pixel values differ from those of Pillow by at most one level (of 255).
        on_truncated: What to do if a file is truncated. `"error"`: raise `TruncatedError`. `"partial"`:
            missing rows are filled with black.
        augment: One augmentation of the resized image, such as `ColorJitter(0.4)` or `"randaugment(2, 9)"`,
            or a list of augmentations: see `Augmentation`.
        min_partial: The minimum share of the rows of the crop that must be decoded with
            `on_truncated="partial"`, 0 to 1. With fewer rows, the image remains an error.
        exif_orientation: Whether the orientation in EXIF metadata, or in the tag of TIFF files, is applied. If not, rows
            and columns are those of the stored pixels, as with OpenCV's `IMREAD_IGNORE_ORIENTATION`.

    Raises:
        ValueError: An argument is out of range (`InvalidArgumentError` is a subclass).
        NotImplementedError: `layout` specifies `bf16`.
        TypeError: An argument has the wrong type.

    A call raises `DataError` if the bytes cannot be decoded, and `TypeError` for objects without the
    buffer protocol. `error.key` is `"bytes"`, or in a pipeline the path that was fetched.

    >>> from spdl_rs.io import ColorJitter, DecodeImage, Fetch, Letterbox
    >>> pixels = DecodeImage(32)(Fetch()("photos/cat/1.png"))
    >>> pixels.shape, pixels.dtype
    ((32, 32, 3), dtype('uint8'))
    >>> decode = DecodeImage((24, 32), crop=Letterbox(), color="grey", augment=ColorJitter(0.4))
    >>> decode(Fetch()("photos/cat/1.png"), index=0).shape
    (24, 32, 1)
    >>> DecodeImage(32)(b"no image")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    spdl_rs.UnsupportedError: bytes: unknown image format: ...
    """

    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        set_frozen(self, seed=whole("seed", self.seed, 0, 2**64 - 1))
        if isinstance(self.crop, VARYING_CROPS):
            raise ValueError(
                f"DecodeImage has one size, but crop={type(self.crop).__name__}(...) gives each image another; use "
                "Loader with fields.Image, or Letterbox() or Stretch()"
            )
        super().__post_init__()

    def _native(self) -> _spdl_rs.ImageDecoder:
        return self._decoder()

    def _result(self, value: Encoded, draws: _spdl_rs.Draws) -> Any:
        return self._decoder().decode(value, draws)

    def __repr__(self) -> str:
        return _repr(self, "size", "train", "layout", "seed")


@dataclass(frozen=True)
class Decode(_RandomOperator[Encoded]):
    """Decodes a file to the value of a field, such as the frames of a clip or a waveform: from bytes to an array.

    As a stage (`PipelineBuilder.pipe`), `Decode` runs on native threads, without the GIL. `concurrency` is their number;
    the default is the number of CPUs that this process may use. The input is the output of a preceding `Fetch`, or
    objects from Python: `bytes` are not copied, other buffers are copied once. A pair of bytes and a label becomes a pair
    of the value and label. `aggregate(BatchImages(...))` stacks values of one shape.

    Random numbers are drawn as by `DecodeImage`; those of the stage are the same as in
    `Loader(..., shuffle=False, seed=seed)`.

    Args:
        field: A `Video`, `Audio` or `Mel` of `spdl_rs.fields`. Its arguments `stored_as`, `at`, `optional`,
            `default` and `collate` have no effect.
        seed: Determines all random numbers, 0 to 2**64 - 1.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `seed` is out of range.

    A call raises `DataError` if the bytes cannot be decoded, and `TypeError` for objects without the buffer protocol.
    `error.key` is `"bytes"`, or in a pipeline the path that was fetched.

    >>> from spdl_rs import fields
    >>> from spdl_rs.io import Decode
    >>> decode = Decode(fields.Audio(sample_rate=16_000, channels="mono"))
    >>> with open("speech.wav", "rb") as file:
    ...     samples = decode(file.read())
    >>> samples.shape, samples.dtype
    ((1, 16000), dtype('float32'))
    """

    field: Audio | Video
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        from ..fields import Audio, Video

        if not isinstance(self.field, (Audio, Video)):
            raise TypeError(
                "field must be a Video, Audio or Mel of spdl_rs.fields, such as fields.Video(224), not "
                f"{shown(self.field)}; DecodeImage decodes images"
            )
        set_frozen(self, seed=whole("seed", self.seed, 0, 2**64 - 1))
        self._native()

    @property
    def _is_random(self) -> bool:
        """Whether the result may depend on random numbers."""
        return self.field.random or getattr(self.field, "_is_random", False)

    def _result(self, value: Encoded, draws: _spdl_rs.Draws) -> Any:
        return self._native().decode(value, draws)

    def _native(self) -> _spdl_rs.FieldDecoder:
        return _field_decoder(self)


@dataclass(frozen=True)
class AugmentImage(_RandomOperator[Pixels]):
    """Augments decoded images, `uint8 [height, width, 3]`, RGB. The shape does not change.

    `DecodeImage(augment=...)` does the same in the decoding threads, and also supports normalised layouts.
    Prefer `DecodeImage(augment=...)` if `DecodeImage` produces all images. `AugmentImage` is for images from
    other sources, and for augmentations that take longer than decoding. As a stage (`PipelineBuilder.pipe`),
    `AugmentImage` has separate native threads, without the GIL. Images of a preceding `DecodeImage` do not
    pass through Python, and a following `aggregate(BatchImages(...))` runs in Rust as well. A pair of pixels
    and a label becomes a pair of pixels and label.

    Random numbers depend on `seed`, the epoch and the position of the item in the source, as in `DecodeImage`.
    Calls outside of a pipeline require `index` or `rng`.

    Args:
        augmentations: One augmentation, for example `ColorJitter(...)`, or a list; as objects or text.
        seed: Determines the random numbers, 0 to 2**64 - 1.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `seed` is out of range.

    A call raises `TypeError` for dtypes other than `uint8`, and `ValueError` for other shapes.

    >>> from spdl_rs.io import AugmentImage, RandomInvert
    >>> AugmentImage(RandomInvert(p=1))(numpy.full((2, 2, 3), 5, "u1"))[0, 0].tolist()
    [250, 250, 250]
    """

    _STAGE: ClassVar[str] = "augment"

    augmentations: Augmentation | str | Sequence[Augmentation | str]
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        steps = several("augmentations", self.augmentations)
        set_frozen(self, augmentations=steps, seed=whole("seed", self.seed, 0, 2**64 - 1))
        self._native()

    @property
    def _is_random(self) -> bool:
        """Whether the result may depend on random numbers."""
        return any(step._is_random for step in several("augmentations", self.augmentations))

    def _result(self, value: Pixels, draws: _spdl_rs.Draws) -> Any:
        return self._native().apply(value, draws)

    def _native(self) -> _spdl_rs.ImageAugmenter:
        return _augmenter(self)


@dataclass(frozen=True)
class BatchImages:
    """Stacks `N` images of shape `[...]` into a batch `[N, ...]`. Labels become `int64 [N]`.

    Pass a `BatchImages` to `PipelineBuilder.aggregate`. Directly after `pipe(DecodeImage(...))`, or after
    both this stage and `pipe(AugmentImage(...))`, the stage runs in Rust, without the GIL. After other
    stages, it stacks arrays from Python functions. Items are images, or pairs of an image and a label;
    batches are then pairs of arrays. Either all items of a pipeline have a label, or no item has a label.

    Args:
        batch_size: Images per batch, at least 1. The next image takes the slot of a failed image, so
            only the last batch of an epoch may be smaller.
        drop_last: Whether to leave out an incomplete last batch.

    Raises:
        TypeError: `batch_size` is not an integer, or `drop_last` is not `True` or `False`.
        ValueError: `batch_size` is less than 1.

    A call with a list stacks that list. `ValueError` is raised if the list is empty, if shapes or types
    differ, or if only some images have labels. In a pipeline, images of a full batch that differ from the
    majority are dropped, which counts as one failure; the other images stay for the next batch. In the
    incomplete last batch of an epoch, such a difference ends the pipeline.

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
       - Fetch(output_order='input', op=Fetch(max_bytes=67108864)) [native]
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
        set_frozen(self, batch_size=batch_size, drop_last=flag("drop_last", self.drop_last))

    def __call__(self, items: Sequence[Any], /) -> Any:
        """Stacks a list of images, or of pairs of an image and a label."""
        if not isinstance(items, Sequence):
            raise TypeError(
                f"BatchImages takes a list of images, not {type(items).__name__}; in a pipeline, pass "
                f"it to aggregate, which makes lists: .aggregate({self!r})"
            )
        parts = [_parts(item) for item in items]
        if not parts:
            raise ValueError("a batch needs at least one image, but the list is empty")
        mismatches = mismatched(parts)
        if mismatches:
            raise ValueError(mismatch_message(parts, mismatches))
        return _stacked(parts)

    def accumulate(self, item: Any) -> Any | None:
        """Adds an image. Returns a batch if one is complete, else `None`.

        Raises:
            TypeError: The item is a tuple, but not a pair of an image and a label.
            ValueError: Some images of a complete batch differ from the majority. These images are
                dropped; the other images stay for the next batch.
        """
        _parts(item)
        self._items.append(item)
        return self._take() if len(self._items) >= self.batch_size else None

    def flush(self) -> Any | None:
        """Returns an incomplete batch at the end of an epoch, or `None`."""
        if self._items and not self.drop_last:
            return self._take()
        self._items.clear()
        return None

    def _take(self) -> Any:
        items = self._items.copy()
        self._items.clear()
        parts = [_parts(item) for item in items]
        mismatches = mismatched(parts)
        if mismatches:
            dropped = set(mismatches)
            self._items.extend(item for at, item in enumerate(items) if at not in dropped)
            raise ValueError(mismatch_message(parts, mismatches))
        return _stacked(parts)


@functools.lru_cache(maxsize=8)
def _reader(max_bytes: int) -> _spdl_rs.Reader:
    return _spdl_rs.Reader(max_bytes)


@functools.lru_cache(maxsize=64)
def _field_decoder(of: Decode) -> _spdl_rs.FieldDecoder:
    return _spdl_rs.FieldDecoder(of.field._native(), of.seed)


@functools.lru_cache(maxsize=64)
def _augmenter(of: AugmentImage) -> _spdl_rs.ImageAugmenter:
    steps = several("augmentations", of.augmentations)
    return _spdl_rs.ImageAugmenter([step._native() for step in steps], of.seed)


def _bits(rng: Generator) -> int:
    """Draws 64 bits from a generator."""
    if isinstance(rng, numpy.random.Generator):
        return int(rng.integers(2**64, dtype=numpy.uint64))
    if isinstance(rng, random.Random):
        return rng.getrandbits(64)
    raise TypeError(f"rng must be a numpy.random.Generator or a random.Random, not {shown(rng)}")


def _repr(of: Any, *always: str) -> str:
    """The `repr` of a dataclass, without parameters that have their default value."""
    shown = [
        f"{field.name}={getattr(of, field.name)!r}"
        for field in dataclasses.fields(of)
        if field.name in always or getattr(of, field.name) != field.default
    ]
    return f"{type(of).__name__}({', '.join(shown)})"


def _stacked(parts: Sequence[tuple[Any, ...]]) -> Any:
    """Stacks matching images into a batch."""
    images = numpy.stack([numpy.asarray(part[0]) for part in parts])
    if len(parts[0]) == 1:
        return images
    return images, numpy.array([part[1] for part in parts], dtype=numpy.int64)


def _parts(item: Any) -> tuple[Any, ...]:
    """Splits an item into a value, or a value and its label."""
    if not isinstance(item, tuple):
        return (item,)
    if len(item) != 2:
        raise TypeError(
            f"an item must be a value or a pair of value and label, not {len(item)} values"
        )
    value, label = item
    try:
        return value, operator.index(label)
    except TypeError:
        shown = without_secrets(repr(label))
        raise TypeError(f"a label must be a 64-bit integer, not {shown}") from None
