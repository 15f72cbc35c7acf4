"""The fields of the samples of a `Loader`: what is stored, and how it becomes part of a batch.

| class | value in the batch |
|---|---|
| `Image` | decoded pixels, one array |
| `Audio` | decoded samples of audio |
| `Mel` | a log-mel spectrogram, filter bank or cepstral coefficients of audio |
| `AudioFrames` | the number of frames of audio or of its features |
| `Video` | frames of a video, one array |
| `VideoFrames`, `VideoTimes` | the number of frames that a video has; when they are presented |
| `Mask` | class numbers that follow an image, one array |
| `Depth` | a depth map that follows an image, one array |
| `Boxes`, `KeyPoints` | coordinates that follow an image |
| `Number`, `Array` | numbers |
| `Tokens` | ids of tokens, stored or made from text |
| `Text`, `Bytes`, `Json` | a list of `str`, `bytes` or Python objects |
| `Label` | the class number of the sample, `int64 [N]` |
| `Key`, `Index` | the name of the sample; its position in the order of the epoch |
| `Url` | the address of the file or object that holds the sample |
| `Geometry`, `ImageSize` | the crop, resize, flips and warps of an image as a matrix; the size of the stored image |

Fields compare by their arguments, can be pickled, and their `repr` is an expression of Python that makes an equal
field.

By default, the value is stored under the name that the field has in the batch: `caption=fields.Text()` reads
`000017.caption` or `000017.caption.txt` of tar shards, or the column `caption` of Parquet and CSV files. All fields have
the arguments of `Field`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, SupportsIndex, TypeAlias, get_args

from . import _arguments as check
from ._other_names import explained
from .io._augmentation_texts import evaluated
from .io._crops import (
    CANVAS_CROPS,
    VARYING_CROPS,
    FiveCrop,
    Letterbox,
    RandomIoUCrop,
    RandomZoomOut,
    TenCrop,
)
from .io._image_parameters import ImageParameters
from .io._native_settings import NativeSettings, plain, set_frozen

__all__ = [
    "Array",
    "Audio",
    "AudioFrames",
    "Boxes",
    "Bytes",
    "Depth",
    "Field",
    "FieldSpec",
    "Geometry",
    "Image",
    "ImageSize",
    "Index",
    "Json",
    "Key",
    "KeyPoints",
    "Label",
    "Mask",
    "Mel",
    "Number",
    "Padded",
    "Ragged",
    "Text",
    "Tokens",
    "Url",
    "Video",
    "VideoFrames",
    "VideoTimes",
]

_DTYPES = ("bool", "uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
DType: TypeAlias = Literal[
    "bool", "uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"
]
StoredDType: TypeAlias = Literal[
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
_ELEMENTS = get_args(StoredDType)
_MASKS = ("uint8", "uint16", "int32", "int64")
_IDS = ("uint16", "uint32", "int32", "int64")
_COLLATE = ("stack", "list", "ragged", "pad")


class FieldSpec(NamedTuple):
    """The values of a field in a batch: see `Loader.spec`."""

    shape: tuple[int | None, ...]
    """The shape of one sample. `None`: samples differ in this dimension."""
    dtype: str
    """The name of a data type of NumPy, such as `"uint8"`, or `"bfloat16"`; or `"str"`, `"bytes"` or `"object"`."""
    collate: Literal["stack", "list", "ragged", "pad"]
    """How the batch joins the samples: one array with a further first dimension, a list, `Ragged` or `Padded`."""


class Ragged(NamedTuple):
    """Samples of different lengths, one after another.

    `values[offsets[i]:offsets[i + 1]]` is sample `i`. `torch.nested.nested_tensor_from_jagged` takes both
    arrays.
    """

    values: Any
    """The samples, joined along their first dimension."""
    offsets: Any
    """`int64 [N + 1]`."""


class Padded(NamedTuple):
    """Samples of different sizes, each at the start of an area of the largest size.

    Other elements are 0, `padding` for arrays, or `outside` for masks.
    """

    values: Any
    """`[N, ...]`."""
    sizes: Any
    """`int64 [N, K]`: the size of each sample in the `K` dimensions that differ."""


@dataclass(frozen=True, repr=False)
class Field:
    """Base class of fields.

    Args:
        stored_as: The stored field that holds the value: the extension in tar shards, the column in tables,
            Parquet, CSV and JSON lines, the name in dicts. A list: the first one that a sample has, if possible
            one that is not empty. `None`: the name of the field in the batch; if a sample lacks it, the only one of
            `NAME.txt`, `NAME.json`, `NAME.npy` and `NAME.npz`, or of `NAME.png` and so on for images, masks, audio and
            video; for `Image`, also the common names such as `jpg`, `png` and `image`.
        at: The place of the value inside a stored JSON document: names of members and indices of elements,
            separated by dots, for example `"objects.0.bbox"`.
        optional: Whether a sample may lack the value. Its array is then 0 or empty, its mask has the number
            `outside`, its text is empty, its JSON `None`. If `False`, such a sample is an error, to which the
            loader's `on_error` applies.
        default: The value of samples that lack it; implies `optional`.
        missing: What to do with a sample that lacks the value, or whose value is null. `"error"`: see `optional`.
            `"drop"`: the sample is dropped, whatever the loader's `on_error` is, and does not count in its limits.
            `stats()["dropped"]` lists it with the kind `missing-value`, and `stats()["dropped_total"]` counts it.
            The next samples fill the batch. An epoch that consists of such samples only ends with an error. Excludes
            `optional` and `default`. A file that a stored path names, but that does not exist, is an error.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.
    """

    _: KW_ONLY
    stored_as: str | Sequence[str] | None = None
    at: str | None = None
    optional: bool = False
    default: Any = None
    missing: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        names = self.stored_as
        if names is not None and not isinstance(names, str):
            names = tuple(check.names("stored_as", names) or ())
        default = self.default.tolist() if hasattr(self.default, "tolist") else self.default
        set_frozen(
            self,
            stored_as=None if names is None else names,
            at=check.text_or_none("at", self.at),
            optional=check.flag("optional", self.optional),
            default=bytes(default) if isinstance(default, bytearray) else plain(default),
        )
        if self.at is not None and not all(self.at.split(".")):
            raise ValueError(f'at must be names separated by dots, such as "a.0.b", not {self.at!r}')
        _native_default(self.default)
        check.choice("missing", self.missing, ("error", "drop"))
        if self.missing == "drop" and (self.optional or self.default is not None):
            raise ValueError('missing="drop" excludes optional and default, which keep samples that lack the value')

    def _refuse(self, *names: str) -> None:
        """Raises `ValueError` if an argument is given that has no effect on fields of this class."""
        defaults = {field.name: field.default for field in dataclasses.fields(Field)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"{type(self).__name__} has no argument {name}")

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        fields = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        shown = (f"{field.name}={value!r}" for field, value in fields if value != field.default)
        return f"{type(self).__name__}({', '.join(shown)})"

    def _native(self) -> tuple[str, dict[str, Any]]:
        """Returns the name of the class and the parameters for the native module."""
        return type(self).__name__, {**self._common(), **self._own()}

    def _common(self) -> dict[str, Any]:
        """Returns the parameters of this class that are given."""
        default = _native_default(self.default)
        common = {
            "stored_as": self.stored_as,
            "at": self.at,
            "optional": self.optional or None,
            "default": default,
            "missing": None if self.missing == "error" else self.missing,
        }
        return {name: value for name, value in common.items() if value is not None}

    def _stored(self) -> tuple[str, dict[str, Any]] | None:
        """Like `_native`, for the stored value without the geometry of an image; `None` for pixels."""
        return self._native()

    def _own(self) -> dict[str, Any]:
        """Returns the parameters of the subclass."""
        common = {field.name for field in dataclasses.fields(Field)}
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields if field.name not in common}


def _native_default(value: Any) -> tuple[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return "text", value
    if isinstance(value, bytes):
        return "bytes", value
    try:
        return "json", json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"default must be text, bytes, numbers or JSON: {error}") from None


@explained
@dataclass(frozen=True, repr=False)
class Image(Field, ImageParameters):
    """An encoded image, decoded, cropped, resized, flipped, augmented and normalised.

    The parameters are those of `spdl_rs.io.DecodeImage`, whose help describes them in full, except `seed`, which is an
    argument of the loader. The value is `uint8 [N, height, width, 3]` with `layout="nhwc-u8"`, or one of the other layouts; with
    `color="rgba"`, it has four channels. With `exif_orientation=False`, boxes, key points and masks that follow the image
    have the coordinates of the stored pixels too.

    Args:
        size: Width and height of the result in pixels, or (height, width).
        train: Whether to crop at random and flip with probability 0.5. The arguments below override `train`.
        layout: Order of dimensions and dtype: `"nhwc-"` or `"nchw-"`, and `"u8"` (0 to 255), `"u16"` (0 to 65,535), or
            `"f16"` or `"f32"`, which are normalised. Also `"bf16"`: with `output="torch"`, tensors of `torch.bfloat16`;
            otherwise, arrays have the dtype `bfloat16` of the package `ml_dtypes`, which must be installed.
        crop: The part of the image, and how it is resized: `RandomResizedCrop`, `Letterbox`, `Stretch`, `Resize` and
            others of `spdl_rs.io`.
        horizontal_flip, vertical_flip: The probability of a flip, 0 to 1.
        filter: The interpolation: `"nearest"`, `"area"`, `"bilinear"`, `"bicubic"` or `"lanczos3"`. All but `"nearest"`
            are antialiased when an image shrinks, as with torchvision's `antialias=True`.
        color: `"rgb"`, `"bgr"`, `"grey"` or `"rgba"`.
        mean, std: Mean and standard deviation for normalised layouts, as fractions of 255. Default: those of ImageNet.
        augment: An augmentation of `spdl_rs.io`, a text such as `"randaugment(2, 9)"`, or a list of these.
        exact: Whether to decode at full size before resizing, which is slower.
        on_truncated: What to do if a file is truncated: `"error"`, or `"partial"`: fill missing rows with black.
        min_partial: The minimum share of rows that `"partial"` needs.
        exif_orientation: Whether the orientation in the metadata is applied.
        view: Images with the same number draw the same crop and flips, if their parameters are equal. Images
            with different numbers are independent views of one stored image, for example for contrastive
            learning.
        collate: With `crop=Resize(...)` or `AspectBuckets(...)`, which give each image another size, `"list"` (the
            default): a list of arrays, or `"pad"`: `Padded`. Masks and depth maps that follow the image are collated in
            the same way, and padded with their number `outside`. Images of other crops are one array.
        zoom_out: Places the image on a larger canvas before `crop`: a `RandomZoomOut` of `spdl_rs.io`, or a text such as
            `"randomzoomout(p=0.5)"`. `crop` is `Stretch()`, `Letterbox(...)` with the same `fill`, or `Resize(...)`.
        iou_crop: Crops a part that overlaps a box, after `zoom_out` and before `crop`: a `RandomIoUCrop`, or text. A field of
            boxes must follow the image, and `crop` is one of those for `zoom_out`.

    >>> from spdl_rs import Loader, fields
    >>> from spdl_rs.io import ColorJitter, RandomResizedCrop
    >>> view = dict(crop=RandomResizedCrop(), horizontal_flip=0.5, augment=ColorJitter(0.4))
    >>> loader = Loader(
    ...     "photos",
    ...     batch_size=4,
    ...     first=fields.Image(32, **view),
    ...     second=fields.Image(32, **view, view=1),
    ... )
    >>> {name: value.shape for name, value in next(iter(loader)).items()}
    {'first': (4, 32, 32, 3), 'second': (4, 32, 32, 3)}
    """

    _BFLOAT16: ClassVar[bool] = True
    _: KW_ONLY
    view: SupportsIndex = 0
    collate: Literal["list", "pad"] | None = None
    zoom_out: RandomZoomOut | str | None = None
    iou_crop: RandomIoUCrop | str | None = None

    def __post_init__(self) -> None:
        Field.__post_init__(self)
        ImageParameters.__post_init__(self)
        self._check_canvas()
        if isinstance(self.crop, VARYING_CROPS):
            set_frozen(self, collate=check.choice("collate", self.collate or "list", ("list", "pad")))
        elif self.collate is not None:
            raise ValueError(
                f"collate={check.shown(self.collate)} needs crop=Resize(...) or AspectBuckets(...): images of other "
                "crops have one size"
            )
        set_frozen(self, view=check.whole("view", self.view, 0, 2**32 - 1))

    def _check_canvas(self) -> None:
        for name, kind in {"zoom_out": RandomZoomOut, "iou_crop": RandomIoUCrop}.items():
            given = getattr(self, name)
            if given is None:
                continue
            if isinstance(given, str):
                given = evaluated(name, given, {kind.__name__.lower(): kind}, (kind.__name__,))
                set_frozen(self, **{name: given})
            if not isinstance(given, kind):
                raise TypeError(f"{name} must be a {kind.__name__} of spdl_rs.io, not {check.shown(given)}")
            if not isinstance(self.crop, CANVAS_CROPS):
                raise ValueError(
                    f"{name} needs crop=Stretch(), Letterbox(...) or Resize(...), which show all of an image, not "
                    f"crop={self.crop}"
                )
        zoom_out = self.zoom_out
        if isinstance(zoom_out, RandomZoomOut) and isinstance(self.crop, Letterbox) and self.crop.fill != zoom_out.fill:
            raise ValueError(f"zoom_out and crop must have the same fill, not {zoom_out.fill} and {self.crop.fill}")

    def _stored(self) -> None:
        return None

    def _own(self) -> dict[str, Any]:
        canvas = {"zoom_out": self.zoom_out, "iou_crop": self.iou_crop}
        return {
            **self._settings(),
            "view": self.view,
            "collate": self.collate or "stack",
            **{name: step._native() for name, step in canvas.items() if isinstance(step, NativeSettings)},
        }


@explained
@dataclass(frozen=True, repr=False)
class Video(Field, ImageParameters):
    """Frames of an encoded video, cropped, resized, flipped, augmented and normalised.

    The value is `uint8 [N, frames, height, width, 3]` with `layout="nhwc-u8"`, or `[N, frames, 3, height, width]` with
    the layouts that begin with `nchw`. All frames of a sample have the same crop, flips and augmentations. Only the
    packets that the frames need are decoded; the frames equal those of a full decode.

    Formats: MP4, MOV, Matroska, WebM, AVI, MPEG streams and others that FFmpeg reads. If `spdl_rs` was built without
    FFmpeg, the samples are errors of the kind `unsupported`.

    Args:
        frames: The number of frames of a sample. Default: 16, or the number of `indices` or `times`.
        indices: The numbers of the frames in order of presentation, from 0 on, in ascending order; instead of `frames`.
        times: The seconds from the first frame of the video at which the frames are shown, in ascending order; instead of
            `frames`.
        every: The distance of the frames: seconds as text (`"0.5s"`), or a number of frames. Default: the frames are spread
            evenly over the video: the middles of as many equal parts.
        fps: Frames per second of the sample, instead of `every`.
        start: The time of the first frame in seconds. Evenly spread frames are spread over the rest of the video.
        random: Whether the clip has a random position, by the random numbers of the sample. Evenly spread frames are then
            drawn from as many equal parts.
        short: What to do with a video that has fewer frames: `"error"`, `"repeat"` the last frame, or `"cycle"`.
            `VideoFrames` is the number of frames that the video has.
        on_truncated: `"error"`, or `"partial"`: frames that cannot be decoded are filled with 0, and their time is NaN;
            `stats()["partial"]` counts such samples.
        min_partial: The minimum share of the frames that a damaged video must have.
        collate: With `crop=Resize(...)` or `AspectBuckets(...)`, which give each video another size, `"list"` (the
            default) or `"pad"`.

    The other parameters are those of `Image`, except `exact`, `FiveCrop`, `TenCrop`, `color="rgba"`, layouts of `u16` and
    `exif_orientation`. The rotation in the metadata of the video is applied.

    >>> from spdl_rs import fields
    >>> whole = fields.Video(224, frames=16)
    >>> training = fields.Video(224, frames=16, every="0.25s", random=True, train=True)
    >>> times = fields.VideoTimes(like="video")
    """

    _BFLOAT16: ClassVar[bool] = True
    _OF_IMAGES: ClassVar[bool] = False
    _: KW_ONLY
    frames: SupportsIndex | None = None
    every: str | SupportsIndex | None = None
    fps: float | None = None
    start: float = 0.0
    random: bool = False
    short: Literal["error", "repeat", "cycle"] = "error"
    collate: Literal["list", "pad"] | None = None
    indices: Sequence[SupportsIndex] | None = None
    times: Sequence[float] | None = None

    def __post_init__(self) -> None:
        Field.__post_init__(self)
        for name in ("indices", "times"):
            if (values := getattr(self, name)) is not None:
                # Tuples can be hashed.
                set_frozen(self, **{name: tuple(check.listed(name, values, "a list of numbers"))})
        ImageParameters.__post_init__(self)
        if self.exact:
            raise ValueError("exact=True is not supported for video: frames are resized before they become RGB")
        if isinstance(self.crop, (FiveCrop, TenCrop)):
            raise ValueError("several crops of a frame are not supported for video")
        if not self.exif_orientation:
            raise ValueError("exif_orientation=False is not supported for video, which has no EXIF metadata")
        every, fps, start = self.every, self.fps, check.real("start", self.start)
        if every is not None and fps is not None:
            raise ValueError("every and fps exclude each other")
        if isinstance(every, str):
            _seconds("every", every)
        elif every is not None:
            every = check.whole("every", every, 1, 2**32 - 1)
        if fps is not None:
            fps = check.real("fps", fps)
            if not 0 < fps < math.inf:
                raise ValueError(f"fps must be above 0 and finite, not {fps}")
        if not 0 <= start < math.inf:
            raise ValueError(f"start must be at least 0 and finite, not {start}")
        frames = None if self.frames is None else check.whole("frames", self.frames, 1, 2**20)
        if self.indices is not None or self.times is not None:
            frames = self._listed(frames)
        if isinstance(self.crop, VARYING_CROPS):
            set_frozen(self, collate=check.choice("collate", self.collate or "list", ("list", "pad")))
        elif self.collate is not None:
            raise ValueError(
                f"collate={check.shown(self.collate)} needs crop=Resize(...) or AspectBuckets(...): videos of other "
                "crops have one size"
            )
        set_frozen(
            self,
            frames=16 if frames is None else frames,
            every=every,
            fps=fps,
            start=start,
            random=check.flag("random", self.random),
            short=check.choice("short", self.short, ("error", "repeat", "cycle")),
        )

    def _listed(self, frames: int | None) -> int:
        """Checks the frames or the times of a list. Returns their number."""
        name = "times" if self.indices is None else "indices"
        values: tuple[float, ...] = ()
        if self.indices is not None:
            values = tuple(check.whole(name, index, 0, 2**32 - 1) for index in self.indices)
        elif self.times is not None:
            values = tuple(check.real(name, time) for time in self.times)
        excluded = {
            "times": name != "times" and self.times is not None,
            "every": self.every is not None,
            "fps": self.fps is not None,
            "start": bool(self.start),
            "random": bool(self.random),
        }
        for other, is_given in excluded.items():
            if is_given:
                raise ValueError(f"{name} and {other} exclude each other")
        if not values or not all(0 <= value < math.inf for value in values) or list(values) != sorted(values):
            raise ValueError(f"{name} must be numbers of at least 0, in ascending order, and not be empty")
        if frames not in (None, len(values)):
            raise ValueError(f"frames must be omitted with {name}, which are {len(values)}, not {frames}")
        set_frozen(self, **{name: values})
        return len(values)

    def _stored(self) -> None:
        return None

    def _own(self) -> dict[str, Any]:
        clip = ("frames", "indices", "times", "every", "fps", "start", "random", "short")
        own = {name: getattr(self, name) for name in clip}
        return {**self._settings(), **own, "collate": self.collate or "stack"}


def _seconds(name: str, text: str) -> float:
    """The number of seconds in a text such as `0.5s`."""
    try:
        seconds = float(text.removesuffix("s")) if text.endswith("s") else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f'{name} must be seconds such as "0.5s", or a number of frames, not {text!r}')
    return seconds


@explained
@dataclass(frozen=True, repr=False)
class Audio(Field):
    """An audio file, decoded, cut, and converted to one sample rate.

    Formats: WAV (8 to 64 bits, A-law, µ-law), FLAC, MP3, AAC (low complexity, in ADTS frames), Vorbis, Opus and FLAC
    in Ogg. With FFmpeg (`io.utils.get_ffmpeg_versions()`), also audio in MP4, MOV, Matroska, AVI, MPEG streams, AIFF and
    CAF, and the sound of videos: if a sample has no audio file, that of its video. The delay and the padding of the encoder are removed if the file stores them. The value is `float32`, where ±1 is full
    scale, `[N, channels, frames]`, or a list of arrays `[channels, frames]` if samples differ in size. A *frame* is
    one sample of each channel.

    Args:
        sample_rate: Frames per second. Files with another rate are converted by a windowed sinc filter, with the
            results of torchaudio's `functional.resample`. `None`: the rate of each file.
        channels: `"all"` (the default): those of the file. `"mono"`: the mean of them. A number: that of the file must
            be equal.
        channel: The index of the only channel to use, instead of `channels`.
        start: The start of the part to use, in seconds. A file that ends before it is an error.
        duration: The duration of the part to use, in seconds. Default: up to the end. Shorter files give shorter
            samples.
        frames: The number of frames of every sample: longer ones end earlier, shorter ones are padded with zeros at their
            end. Only the needed part of the file is decoded.
        random: With `frames`: whether longer samples begin at a random frame, by the random numbers of the sample,
            instead of the first.
        trim_to_speech: Use only the part from 0.1 s before the first speech to 0.1 s after the last. The number is the
            least score of speech of the neural network `earshot`, above 0 and below 1, such as 0.5. `frames` applies to
            the trimmed part; the whole part is decoded. A sample without speech is an error.
        dtype: `"float32"`, `"float16"`, or `"int16"`, where ±32,768 is full scale.
        layout: `"planar"`: `[channels, frames]`. `"interleaved"`: `[frames, channels]`.
        on_truncated: `"error"`, or `"partial"`: the frames of a truncated file are used; `stats()["partial"]` counts
            such samples.
        collate: `"list"` (the default if samples differ in size), `"pad"`: `Padded`, `"ragged"`: `Ragged`, or `"stack"`.
            `"ragged"` joins samples along their first dimension, so that the frames must be that dimension:
            `layout="interleaved"`, with a number of channels.

    >>> from spdl_rs import fields
    >>> whole = fields.Audio(sample_rate=16_000, channels="mono", collate="pad")
    >>> training = fields.Audio(sample_rate=16_000, channels="mono", frames=80_000, random=True)
    >>> frames = fields.AudioFrames(like="audio")  # without the padding
    """

    _CHANNELS: ClassVar[str] = "all"
    _: KW_ONLY
    sample_rate: SupportsIndex | None = None
    channels: Literal["all", "mono"] | SupportsIndex | None = None
    channel: SupportsIndex | None = None
    start: float = 0.0
    duration: float | None = None
    frames: SupportsIndex | None = None
    random: bool = False
    trim_to_speech: float | None = None
    dtype: Literal["float32", "float16", "int16"] = "float32"
    layout: Literal["planar", "interleaved"] = "planar"
    on_truncated: Literal["error", "partial"] = "error"
    collate: Literal["stack", "list", "ragged", "pad"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("dtype", self.dtype, ("float32", "float16", "int16"))
        check.choice("layout", self.layout, ("planar", "interleaved"))
        check.choice("on_truncated", self.on_truncated, ("error", "partial"))
        rate, channel, frames = self.sample_rate, self.channel, self.frames
        channels = self.channels
        if isinstance(channels, str):
            check.choice("channels", channels, ("all", "mono"))
        elif channels is not None:
            channels = check.whole("channels", channels, 1, 65535)
        if channel is not None and channels is not None:
            raise ValueError("channels and channel exclude each other")
        is_random = check.flag("random", self.random)
        if is_random and frames is None:
            raise ValueError("random=True needs frames")
        start = check.real("start", self.start)
        if not 0 <= start < math.inf:
            raise ValueError(f"start must be at least 0 and finite, not {start}")
        duration = None if self.duration is None else check.real("duration", self.duration)
        if duration is not None and not 0 < duration < math.inf:
            raise ValueError(f"duration must be above 0 and finite, not {duration}")
        speech = None if self.trim_to_speech is None else check.real("trim_to_speech", self.trim_to_speech)
        if speech is not None and not 0 < speech < 1:
            raise ValueError(f"trim_to_speech must be above 0 and below 1, not {speech}")
        chosen = self._CHANNELS if channels is None else channels
        is_fixed = frames is not None and (chosen != "all" or channel is not None)
        collate = self.collate or ("stack" if is_fixed else "list")
        set_frozen(
            self,
            sample_rate=None if rate is None else check.whole("sample_rate", rate, 1, 2**32 - 1),
            channels=channels,
            channel=None if channel is None else check.whole("channel", channel, 0, 65535),
            start=start,
            duration=duration,
            frames=None if frames is None else check.whole("frames", frames, 1, 2**31 - 1),
            random=is_random,
            trim_to_speech=speech,
            collate=check.choice("collate", collate, _COLLATE),
        )
        if self.collate == "stack" and not is_fixed:
            raise ValueError('collate="stack" needs frames, and channels or channel')
        if self.collate == "ragged":
            if frames is not None:
                raise ValueError('collate="ragged" is for samples of different lengths; drop frames or collate')
            self._check_order(has_channels=chosen != "all" or channel is not None)

    def _check_order(self, has_channels: bool) -> None:
        """Raises `ValueError` if samples differ in other dimensions than the first."""
        if self.layout != "interleaved" or not has_channels:
            raise ValueError('collate="ragged" needs layout="interleaved", and channels or channel')

    def _stored(self) -> None:
        return None

    def _own(self) -> dict[str, Any]:
        chosen = self._CHANNELS if self.channels is None else self.channels
        return {**super()._own(), "channels": chosen if self.channel is None else None}


@dataclass(frozen=True, repr=False)
class Mel(Audio):
    """Features of one channel of audio, computed from its samples.

    | `style` | value of a sample | as computed by |
    |---|---|---|
    | `"whisper"` | log-mel spectrogram `[bins, frames // 160]`; 16 kHz; 80 (default) or 128 bins | OpenAI's Whisper |
    | `"fbank"` | mel filter bank `[windows, bins]`, windows of 25 ms every 10 ms; 23 bins | Kaldi, without dither |
    | `"mfcc"` | cepstral coefficients `[windows, bins]` of 23 mel bins; 13 coefficients | Kaldi, without dither |
    | `"spectrogram"` | power spectrogram `[size // 2 + 1, frames // hop + 1]` | `torch.stft`, with a Hann window |

    The other arguments are those of `Audio`. `channels` is `"mono"` by default, and `sample_rate` 16,000.
    `frames` is the number of frames of audio; padding precedes the computation. `collate="ragged"` is for `"fbank"` and
    `"mfcc"`, whose first dimension is that of time. Values may differ in their last bits between processors.

    Args:
        bins: The number of bins, or of coefficients. Default: see above.
        scale: Factor of the samples for `"fbank"` and `"mfcc"`. Kaldi itself uses 32,768; torchaudio uses 1.
        size: The number of samples of a window, for `"spectrogram"`.
        hop: The number of samples between windows, for `"spectrogram"`.

    >>> from spdl_rs import fields
    >>> whisper = fields.Mel(frames=480_000)  # 30 seconds: [80, 3000]
    >>> kaldi = fields.Mel("fbank", bins=80, scale=32768, collate="pad")
    """

    _CHANNELS: ClassVar[str] = "mono"
    style: Literal["whisper", "fbank", "mfcc", "spectrogram"] = "whisper"
    _: KW_ONLY
    sample_rate: SupportsIndex | None = 16_000
    bins: SupportsIndex | None = None
    scale: float = 1.0
    size: SupportsIndex = 400
    hop: SupportsIndex = 160

    def __post_init__(self) -> None:
        check.choice("style", self.style, ("whisper", "fbank", "mfcc", "spectrogram"))
        super().__post_init__()
        if self.layout != "planar":
            raise ValueError("Mel has no argument layout")
        scale = check.real("scale", self.scale)
        if not 0 < abs(scale) < math.inf:
            raise ValueError(f"scale must be a finite number other than 0, not {scale}")
        if self.dtype == "int16":
            raise ValueError(f'dtype="int16" is for samples of audio; style={self.style!r} needs "float32" or "float16"')
        if self.channels not in (None, "mono", 1):
            raise ValueError(f'Mel needs one channel, such as channels="mono", not channels={self.channels!r}')
        self._check_unused()
        set_frozen(
            self,
            bins=None if self.bins is None else check.whole("bins", self.bins, 1, 65536),
            scale=scale,
            size=check.whole("size", self.size, 2, 65536),
            hop=check.whole("hop", self.hop, 1, 65536),
        )

    def _check_unused(self) -> None:
        """Raises `ValueError` if an argument is given that has no effect on the style."""
        styles = {
            "bins": ("whisper", "fbank", "mfcc"),
            "scale": ("fbank", "mfcc"),
            "size": ("spectrogram",),
            "hop": ("spectrogram",),
        }
        for name, of in styles.items():
            value = getattr(self, name)
            if self.style not in of and value != getattr(type(self), name):
                names = " or ".join(f'"{style}"' for style in of)
                raise ValueError(f"{name}={value} has no effect on style={self.style!r}; it is for style={names}")

    def _check_order(self, has_channels: bool) -> None:
        if self.style not in ("fbank", "mfcc"):
            raise ValueError(f'collate="ragged" needs style="fbank" or "mfcc", not {self.style!r}')


@explained
@dataclass(frozen=True, repr=False)
class Mask(Field):
    """Class numbers of pixels, which follow the crop, resize, flips and warps of an image.

    The stored mask is a grey or palette PNG of the size of its image. Its grey values or palette indices are
    the class numbers; they are never interpolated. Each pixel takes the number at its centre, as for torchvision's
    `NEAREST_EXACT`; torchvision resizes masks with `NEAREST`, which takes the upper left corner. The value is
    `[N, height, width]`.

    Args:
        like: The name of the image in the batch.
        outside: The number of pixels outside the image, such as the ignored class 255, or -100, which PyTorch's losses
            ignore by default. Any number of the range of `dtype`; negative for `"int32"` and `"int64"` only. `None`: 0,
            with a warning of the loader if the crop of the image pads it, because 0 is usually a class.
        dtype: `"uint8"`, `"uint16"`, `"int32"` or `"int64"`.

    >>> from spdl_rs import fields
    >>> mask = fields.Mask(like="image", stored_as="seg.png", outside=255)
    """

    _: KW_ONLY
    like: str = "image"
    outside: SupportsIndex | None = None
    dtype: Literal["uint8", "uint16", "int32", "int64"] = "int64"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.text("like", self.like)
        check.choice("dtype", self.dtype, _MASKS)
        bits = int(self.dtype.lstrip("uint"))
        least, most = (0, 2**bits - 1) if self.dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if self.outside is None:
            return
        try:
            outside = check.whole("outside", self.outside, least, most)
        except ValueError as error:
            raise ValueError(f"{error}, with dtype={self.dtype!r}") from None
        set_frozen(self, outside=outside)

    def _stored(self) -> None:
        return None

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "outside": self.outside or 0}


@dataclass(frozen=True, repr=False)
class Depth(Field):
    """A depth map, which follows the crop, resize, flips and warps of an image.

    The stored map is a grey PNG of 8 or 16 bits, of the size of its image. Its values are never interpolated. The
    value is `[N, height, width]`.

    Args:
        like: The name of the image in the batch.
        scale: The factor of the stored values, such as 0.001 for millimetres.
        outside: The stored value, before `scale`, of pixels outside the image.
        dtype: `"float32"`, or `"uint16"` for the stored values without `scale`.

    >>> from spdl_rs import fields
    >>> depth = fields.Depth(like="image", stored_as="depth.png", scale=0.001)
    """

    _: KW_ONLY
    like: str = "image"
    scale: float = 1.0
    outside: SupportsIndex = 0
    dtype: Literal["float32", "uint16"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.text("like", self.like)
        check.choice("dtype", self.dtype, ("float32", "uint16"))
        scale = check.real("scale", self.scale)
        if not 0 < abs(scale) < math.inf:
            raise ValueError(f"scale must be a finite number other than 0, not {scale}")
        if self.dtype == "uint16" and scale != 1:
            raise ValueError('scale has no effect on dtype="uint16"; use "float32"')
        set_frozen(self, scale=scale, outside=check.whole("outside", self.outside, 0, 65535))

    def _stored(self) -> None:
        return None


def _checked_collate(collate: Any, shape: tuple[int | None, ...]) -> str:
    if collate is None:
        return "list" if None in shape else "stack"
    return check.choice("collate", collate, _COLLATE)


def _checked_shape(shape: Any) -> tuple[int | None, ...]:
    sides = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(None if side is None else check.whole("shape", side, 1) for side in sides)


def _stored_numbers(
    field: Boxes | KeyPoints, shape: tuple[int | None, ...]
) -> tuple[str, dict[str, Any]]:
    """The native array of the stored boxes or points."""
    own = {"shape": shape, "dtype": "float32", "collate": field.collate}
    return "Array", {**field._common(), **own}


@explained
@dataclass(frozen=True, repr=False)
class Boxes(Field):
    """Boxes that follow the crop, resize, flips and warps of an image, `float32 [boxes, 4]` per sample.

    Boxes are clipped to the sample. Boxes outside it, and boxes below the limits, are dropped, together with
    the rows of the fields that name these boxes in `rows_of`. A box outside its image is an error.

    Args:
        like: The name of the image in the batch.
        format: `"xyxy"` (left, top, right, bottom), `"xywh"` (left, top, width, height; COCO) or `"cxcywh"`
            (centre, width, height), of the stored boxes and of the batch. If COCO or Pascal VOC annotations define
            another format of the stored field, the loader raises `ValueError`.
        normalized: Whether the stored boxes, and those of the batch, are fractions of width and height. If it is
            `False`, and the first sample with boxes has values of 0 to 1 only, a warning is logged.
        min_area: Boxes with a smaller area in the sample, in square pixels, are dropped.
        min_visibility: Boxes of which a smaller share of the area is in the sample are dropped, 0 to 1.
        drop_where: A stored field with a number for each box: boxes whose number is not 0 are dropped, such as
            `drop_where="crowd"` for COCO. If a sample lacks this field, no box is dropped.
        empty: Samples that have no boxes, or none after `drop_where`: `"keep"`, or `"drop"`, as with `missing="drop"` of
            `Field`. Samples whose boxes are all outside the crop are kept.
        collate: `"list"`: a list of arrays. `"ragged"`: `Ragged`. `"pad"`: `Padded`.

    >>> from spdl_rs import fields
    >>> from spdl_rs.io import RandomRotation
    >>> image = fields.Image(640, horizontal_flip=0.5, augment=RandomRotation(10))
    >>> boxes = fields.Boxes(like="image", format="xywh", stored_as="json", at="boxes")
    >>> classes = fields.Array(None, "int64", stored_as="json", at="classes", rows_of="boxes")
    """

    _: KW_ONLY
    like: str = "image"
    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"
    normalized: bool = False
    min_area: float = 0.0
    min_visibility: float = 0.0
    drop_where: str | None = None
    empty: Literal["keep", "drop"] = "keep"
    collate: Literal["list", "ragged", "pad"] = "list"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.text("like", self.like)
        check.text_or_none("drop_where", self.drop_where)
        check.choice("empty", self.empty, ("keep", "drop"))
        check.choice("format", self.format, ("xyxy", "xywh", "cxcywh"))
        check.choice("collate", self.collate, ("list", "ragged", "pad"))
        area = check.real("min_area", self.min_area)
        visibility = check.real("min_visibility", self.min_visibility)
        if not 0 <= area < math.inf:
            raise ValueError(f"min_area must be at least 0 and finite, not {area}")
        if not 0 <= visibility <= 1:
            raise ValueError(f"min_visibility must be 0 to 1, not {visibility}")
        set_frozen(
            self,
            normalized=check.flag("normalized", self.normalized),
            min_area=area,
            min_visibility=visibility,
        )

    def _stored(self) -> tuple[str, dict[str, Any]]:
        return _stored_numbers(self, (None, 4))


@dataclass(frozen=True, repr=False)
class KeyPoints(Field):
    """Points that follow the crop, resize, flips and warps of an image, `float32`.

    The last dimension holds x and y in pixels from the upper left corner, and optionally a visibility, as in COCO.
    The visibility of points outside the sample becomes 0. A flip maps x to the width - x, as for boxes; torchvision's
    flips of key points map x to the width - 1 - x.

    Args:
        shape: The shape of a sample: `(17, 3)`, or `(None, 17, 3)` for any number of persons.
        like: The name of the image in the batch.
        mirrored_pairs: Pairs of points that change places in mirrored images, such as the left and the right
            eye.
        rows_of: The field of boxes to which the rows belong: see `Array`.
        collate: `"stack"` for a fixed shape; otherwise `"list"`, `"ragged"` or `"pad"`: see `Boxes`.
    """

    shape: tuple[int | None, ...]
    _: KW_ONLY
    like: str = "image"
    mirrored_pairs: Sequence[tuple[int, int]] = ()
    rows_of: str | None = None
    collate: Literal["stack", "list", "ragged", "pad"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check.text("like", self.like)
        shape = _checked_shape(self.shape)
        pairs = check.listed("mirrored_pairs", self.mirrored_pairs, "a list of pairs")
        sides = [tuple(check.whole("mirrored_pairs", one, 0) for one in pair) for pair in pairs]
        set_frozen(
            self,
            shape=shape,
            mirrored_pairs=tuple(sides),
            rows_of=check.text_or_none("rows_of", self.rows_of),
            collate=_checked_collate(self.collate, shape),
        )

    def _stored(self) -> tuple[str, dict[str, Any]]:
        return _stored_numbers(self, self.shape)


@dataclass(frozen=True, repr=False)
class Array(Field):
    """Numbers: an array, a list in a column, nested lists in JSON, or text with a number.

    Bytes in tar shards, files, Parquet, Arrow and dicts are `.npy` files, `.npz` files with one array, or text, which
    their first bytes show; or raw elements, with `stored_dtype`. Elements are converted to `dtype`. Arrays of objects,
    complex numbers and Fortran order are errors.

    Args:
        shape: The shape of a sample, in which `None` stands for any length: `(512,)`, `(None, 4)`, or `None`
            for a list of any length.
        dtype: `"bool"`, `"uint8"`, `"uint16"`, `"int16"`, `"int32"`, `"int64"`, `"float16"`, `"float32"` or
            `"float64"`. Integers accept whole numbers in their range only, and `bool` accepts 0 and 1.
        rows_of: The name of a field of boxes. Each row (along the first dimension) belongs to a box, and is
            dropped with it.
        collate: `"stack"` for a fixed shape: one array `[N, ...]`. Otherwise `"list"` (the default): a list
            of arrays, `"ragged"`: `Ragged`, or `"pad"`: `Padded`.
        padding: With `collate="pad"`, the elements outside the samples, such as -100 for targets. Default: 0.
        member: The name of the array in a `.npz` file, as in `numpy.savez(file, name=array)`.
        stored_dtype: The type of the elements of stored bytes without a header, in C order and little-endian, such as
            `"uint8"`, `"float16"` or `"uint64"`. Their number determines the length of one dimension that is `None` in
            `shape`. A sample of another size is an error. Values that are no bytes, such as lists, are not affected.

    With `member` or `stored_dtype`, the column of a CSV file or of JSON lines holds the paths of files. Without
    `stored_as`, it is also the file of a folder or pattern: `Loader("embeddings/*.npy", x=fields.Array(512), ...)`.

    >>> from spdl_rs import fields
    >>> embedding = fields.Array(512, "float32", stored_as="npy")
    >>> tokens = fields.Array(None, "int64", collate="pad")
    >>> depth = fields.Array((480, 640), "float32", stored_as="npz", member="depth")
    >>> features = fields.Array((None, 80), "float32", stored_as="bin", stored_dtype="float16")
    """

    shape: int | None | tuple[int | None, ...]
    dtype: DType = "float32"
    _: KW_ONLY
    rows_of: str | None = None
    collate: Literal["stack", "list", "ragged", "pad"] | None = None
    padding: SupportsIndex | float | None = None
    member: str | None = None
    stored_dtype: StoredDType | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("dtype", self.dtype, _DTYPES)
        shape = _checked_shape(self.shape)
        check.text_or_none("member", self.member)
        if self.stored_dtype is not None:
            check.choice("stored_dtype", self.stored_dtype, _ELEMENTS)
            if self.member is not None:
                raise ValueError("member and stored_dtype exclude each other: the arrays of .npz files have a dtype")
            if shape.count(None) > 1:
                raise ValueError(
                    f"stored_dtype needs a shape in which at most one dimension is None, not {self.shape}"
                )
        set_frozen(
            self,
            shape=shape,
            rows_of=check.text_or_none("rows_of", self.rows_of),
            collate=_checked_collate(self.collate, shape),
        )
        if self.padding is not None:
            if self.collate != "pad":
                raise ValueError(f'padding={self.padding} needs collate="pad"')
            check.real("padding", self.padding)
            set_frozen(self, padding=plain(self.padding))

    def _stored(self) -> tuple[str, dict[str, Any]]:
        kind, settings = self._native()
        return kind, {**settings, "rows_of": None}


@dataclass(frozen=True, repr=False)
class Number(Field):
    """One number per sample: the value is `[N]`.

    Args:
        dtype: See `Array`.
    """

    dtype: DType = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("dtype", self.dtype, _DTYPES)


@explained
@dataclass(frozen=True, repr=False)
class Tokens(Field):
    """Ids of tokens: stored ids, or text that Rust threads tokenize without the GIL.

    Args:
        tokenizer: The path of a `tokenizer.json` of Hugging Face `tokenizers`, for stored text. Its own truncation and
            padding are ignored. `None`: the stored value has the ids, as for `Array`.
        dtype: `"int32"` or `"int64"`.
        max_length: The maximum number of ids, at least 1. A sample with more ids is an error. Default: no maximum.
        truncate: Whether longer samples are truncated to `max_length` instead. As in the Python library `tokenizers`,
            special tokens remain.
        special_tokens: Whether the tokenizer adds its special tokens, such as `[CLS]` and `[SEP]`.
        stored_dtype: The type of the elements of stored bytes without a header, little-endian: `"uint16"`,
            `"uint32"`, `"int32"` or `"int64"`. Default: stored bytes are `.npy` files or text.
        length: The number of ids of each sample: the batch is one array `[N, length]`, such as `length=77` for CLIP.
            Shorter samples end with `padding`. Longer ones are errors, or truncated with `truncate`. Default: samples
            have different lengths.
        padding: The id in unused places, with `length` or `collate="pad"`, such as the id of `[PAD]`. Default: 0.
        collate: `"list"` (the default): a list of arrays. `"ragged"`: `Ragged`. `"pad"`: `Padded`. With `length`:
            `"stack"`.

    Creating the loader reads the tokenizer: a missing file raises `FileNotFoundError`, and other files
    `InvalidArgumentError`. A checkpoint state belongs to the content of the tokenizer.

    >>> from spdl_rs import fields
    >>> stored = fields.Tokens(stored_as="npy", dtype="int32")
    >>> text = fields.Tokens("tokenizer.json", max_length=2048, truncate=True, stored_as="text")
    >>> clip = fields.Tokens("tokenizer.json", length=77, truncate=True, padding=49407, stored_as="caption")
    """

    tokenizer: str | os.PathLike[str] | None = None
    dtype: Literal["int32", "int64"] = "int64"
    _: KW_ONLY
    max_length: SupportsIndex | None = None
    truncate: bool = False
    special_tokens: bool = True
    stored_dtype: Literal["uint16", "uint32", "int32", "int64"] | None = None
    length: SupportsIndex | None = None
    padding: SupportsIndex | None = None
    collate: Literal["stack", "list", "ragged", "pad"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("dtype", self.dtype, ("int32", "int64"))
        length = None if self.length is None else check.whole("length", self.length, 1, 2**31 - 1)
        collate = self.collate or ("list" if length is None else "stack")
        check.choice("collate", collate, _COLLATE)
        if (collate == "stack") != (length is not None):
            raise ValueError(
                'collate="stack" needs length, the number of ids of each sample'
                if length is None
                else f'length={length} makes one array of all samples, so that collate is "stack"; drop collate or length'
            )
        padding = self.padding
        if padding is not None:
            padding = check.whole("padding", padding, -(2**31), 2**31 - 1)
            if collate not in ("stack", "pad"):
                raise ValueError(f'padding={padding} needs length or collate="pad"')
        if self.stored_dtype is not None:
            check.choice("stored_dtype", self.stored_dtype, _IDS)
            if self.tokenizer is not None:
                raise ValueError(
                    "stored_dtype is the type of stored ids; text has none: drop tokenizer or stored_dtype"
                )
        most = self.max_length
        truncate = check.flag("truncate", self.truncate)
        if truncate and most is None and length is None:
            raise ValueError("truncate=True needs max_length or length")
        most = None if most is None else check.whole("max_length", most, 1, 2**31 - 1)
        if most is not None and length is not None and most > length:
            raise ValueError(f"max_length must be at most length, which is {length}, not {most}")
        set_frozen(
            self,
            tokenizer=_checked_tokenizer(self.tokenizer),
            max_length=most,
            length=length,
            padding=padding,
            collate=collate,
            truncate=truncate,
            special_tokens=check.flag("special_tokens", self.special_tokens),
        )


def _checked_tokenizer(tokenizer: Any) -> str | None:
    """Returns the path of a tokenizer."""
    if tokenizer is None or isinstance(tokenizer, (str, bytes, os.PathLike)):
        return None if tokenizer is None else os.fsdecode(tokenizer)
    # Fast tokenizers of `transformers` contain one of `tokenizers`.
    inner = "tokenizer.backend_tokenizer" if hasattr(tokenizer, "backend_tokenizer") else "tokenizer"
    way = (
        f'save it with {inner}.save("tokenizer.json"), and pass this path'
        if inner != "tokenizer" or hasattr(tokenizer, "save")
        else "to call a tokenizer of Python, use fields.Text() and the argument map of the loader"
    )
    raise TypeError(f"tokenizer must be the path of a tokenizer.json, not {check.shown(tokenizer)}; {way}")


@dataclass(frozen=True, repr=False)
class Text(Field):
    """UTF-8 text: a list of `str`."""


@dataclass(frozen=True, repr=False)
class Bytes(Field):
    """The stored bytes: a list of `bytes`."""


@dataclass(frozen=True, repr=False)
class Json(Field):
    """JSON: a list of Python objects, as `json.loads` returns them.

    Differences: integers of more than 64 bits become `float`; NaN, infinities and larger numbers are errors.
    """


@explained
@dataclass(frozen=True, repr=False)
class Label(Field):
    """The class number of each sample, `int64 [N]`, by the rules of `ImageLoader(label_field=, classes=)`.

    Args:
        classes: The names of the classes, in the order of their numbers.

    A loader has at most one label. Its `stored_as` is one name or `None`, and it has no `at`, `optional` and `default`.
    Samples without a label have -1; if `stored_as` is given, they are errors. With `missing="drop"`, such samples, and
    those with a negative number, are dropped instead: see `Field`.

    >>> from spdl_rs import Loader, fields
    >>> samples = [{"text": "a", "label": 1}, {"text": "b"}]
    >>> loader = Loader(samples, batch_size=2, text=fields.Text(), label=fields.Label(missing="drop"))
    >>> [(batch["text"], batch["label"].tolist()) for batch in loader]
    [(['a'], [1])]
    """

    _: KW_ONLY
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse("at", "optional", "default")
        check.text_or_none("stored_as", self.stored_as)
        names = check.names("classes", self.classes)
        set_frozen(self, classes=None if names is None else tuple(names))

    def _own(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, repr=False)
class _Unstored(Field):
    """Base class of fields that no stored field supplies."""

    stored_as: str | Sequence[str] | None = dataclasses.field(default=None, init=False)
    at: str | None = dataclasses.field(default=None, init=False)
    optional: bool = dataclasses.field(default=False, init=False)
    default: Any = dataclasses.field(default=None, init=False)
    missing: Literal["error", "drop"] = dataclasses.field(default="error", init=False)


@dataclass(frozen=True, repr=False)
class _OfMedia(_Unstored):
    """Base class of fields that describe how an image or audio was decoded."""

    _: KW_ONLY
    like: str = "image"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.text("like", self.like)

    def _stored(self) -> None:
        return None


@dataclass(frozen=True, repr=False)
class Geometry(_OfMedia):
    """The crop, resize, flips and warps of an image, as an affine matrix: `float32 [N, 2, 3]`.

    The matrix maps pixels of the stored, upright image to pixels of the sample, counted from the upper left
    corner: `x' = m[0, 0] * x + m[0, 1] * y + m[0, 2]`, `y' = m[1, 0] * x + m[1, 1] * y + m[1, 2]`, as for OpenCV's
    `transform`. Its inverse maps predicted boxes to the stored image. All elements are 0 if the sample lacks the
    image.

    Args:
        like: The name of the image in the batch.

    >>> import numpy
    >>> from spdl_rs import Loader, fields
    >>> from spdl_rs.io import Letterbox
    >>> image = fields.Image(64, crop=Letterbox())
    >>> loader = Loader("photos", batch_size=1, image=image, geometry=fields.Geometry())
    >>> (matrix,) = loader.peek()["geometry"]
    >>> corner = numpy.linalg.solve(matrix[:, :2], [64, 64] - matrix[:, 2])  # in the stored image
    """


@dataclass(frozen=True, repr=False)
class ImageSize(_OfMedia):
    """Height and width of the stored, upright image in pixels, `int64 [N, 2]`; 0 if the sample lacks the image.

    Args:
        like: The name of the image in the batch.
    """


@dataclass(frozen=True, repr=False)
class AudioFrames(_OfMedia):
    """The number of frames of audio without padding, `int64 [N]`; 0 if the sample lacks the audio.

    For `Mel`, the number of windows of this audio.

    Args:
        like: The name of the audio in the batch.
    """

    _: KW_ONLY
    like: str = "audio"


@dataclass(frozen=True, repr=False)
class VideoFrames(_OfMedia):
    """The number of frames of a clip that the video has, `int64 [N]`; 0 if the sample lacks the video.

    Less than the number of frames of the clip if frames of a short video are repeated, or frames are damaged.

    Args:
        like: The name of the video in the batch.
    """

    _: KW_ONLY
    like: str = "video"


@dataclass(frozen=True, repr=False)
class VideoTimes(_OfMedia):
    """When the frames of a clip are presented, `float64 [N, frames]`, in seconds from the first frame of the video.

    The times of damaged frames are NaN. All times are 0 if the sample lacks the video.

    Args:
        like: The name of the video in the batch.
    """

    _: KW_ONLY
    like: str = "video"


@dataclass(frozen=True, repr=False)
class Key(_Unstored):
    """The name of each sample: a list of `str`. Has no arguments.

    A path for files, such as `photos/cat/1.jpg`; `FILE:NAME` in tar and zip files, such as `train-0.tar:cat/0001` for the
    members `cat/0001.jpg` and `cat/0001.txt`; `FILE:ROW` in Parquet files and JSON Lines, such as `train.parquet:7`.
    Bytes of file names that are not valid UTF-8 are encoded as by `os.fsdecode`.
    """


@dataclass(frozen=True, repr=False)
class Url(_Unstored):
    """The address of the file or object that holds each sample: a list of `str`. Has no arguments.

    A path, or an address such as `s3://bucket/train-000.tar`, without user name, password and query. If the fields of a
    sample are in several objects, that of the first field of the loader that is read from a file or object. Empty for
    samples in memory, such as those of lists of dicts and Arrow tables.

    >>> from spdl_rs import Loader, fields
    >>> loader = Loader("photos", batch_size=1, image=fields.Image(32), url=fields.Url())
    >>> loader.peek()["url"]
    ['photos/cat/1.png']
    """


@dataclass(frozen=True, repr=False)
class Index(_Unstored):
    """The position of each sample in the order of its epoch, `int64 [N]`. Has no arguments.

    The first sample of an epoch has 0. With several ranks, positions are those of the epoch of all ranks. With `shuffle`,
    the position is not the number of the row in the data set. `stats()["dropped"][…]["index"]` is the same position.

    The number of a row of a table, of a Parquet file, or of an item in a list is the end of its `Key`:
    `int(key.rsplit(":", 1)[1])`, from 0. To get another number, store it and read it with `Number("int64")`.

    >>> from spdl_rs import Loader, fields
    >>> samples = [{"text": text} for text in "abcd"]
    >>> loader = Loader(samples, batch_size=4, shuffle=True, seed=1, index=fields.Index(), key=fields.Key())
    >>> batch = loader.peek()
    >>> batch["index"]
    array([0, 1, 2, 3])
    >>> sorted(int(key.rsplit(":", 1)[1]) for key in batch["key"])
    [0, 1, 2, 3]
    """
