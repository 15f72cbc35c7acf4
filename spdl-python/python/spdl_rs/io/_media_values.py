"""Codecs, packets and frames of audio, video and images, as values."""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar, cast, overload

from .. import _spdl_rs
from .._errors import InvalidArgumentError, MediaError, UnsupportedError, of_media
from ._buffer import Buffer

Time: TypeAlias = "float | Decimal | str | Fraction"

# A float such as 0.04 means the nearest fraction with a denominator of this size: 1/25.
_MAX_DENOMINATOR = 10**9
# Seconds: more than 30 years, which stands for an infinite time.
_MAX_TIME = 10**9

_Packets = TypeVar("_Packets", bound="MediaPackets")
_Frames = TypeVar("_Frames", bound="MediaFrames")


def native() -> Any:
    """Returns the native module, if it was built with FFmpeg.

    Raises:
        UnsupportedError: It was not.
    """
    if not _spdl_rs.ffmpeg_versions():
        advice = "install a wheel with FFmpeg, or build with the feature `ffmpeg`"
        error = UnsupportedError(f"spdl_rs was built without FFmpeg; {advice}", kind="unsupported")
        raise of_media(error)
    return importlib.import_module("spdl_rs._spdl_rs")


@contextlib.contextmanager
def named(source: str | None) -> Iterator[None]:
    """Adds the name of the file to errors of decoding."""
    try:
        yield
    except MediaError as error:
        if error.key is not None or source is None:
            raise
        key, message = source, f"{source}: {error}"
        raise type(error)(message, kind=error.kind, key=key, offset=error.offset) from None


def invalid(message: str) -> MediaError:
    """Returns an error for an argument, which is a `ValueError` and a `RuntimeError`."""
    return of_media(InvalidArgumentError(message, kind="invalid-argument"))


def fractions_of(window: tuple[Time, Time]) -> tuple[int, int, int, int]:
    """Returns numerator and denominator of the start and of the end of a window."""
    start, end = (_fraction(time) for time in window)
    return start.numerator, start.denominator, end.numerator, end.denominator


def _fraction(time: Time) -> Fraction:
    if isinstance(time, (float, Decimal)) and math.isinf(time):
        time = math.copysign(_MAX_TIME, time)
    exact = Fraction(time)
    if abs(exact) > _MAX_TIME:
        raise ValueError(f"a time of {time} s is out of range")
    return exact.limit_denominator(_MAX_DENOMINATOR)


class _Codec:
    def __init__(self, native: Any) -> None:
        self._native = native

    @property
    def name(self) -> str:
        """FFmpeg's name of the codec, such as `"h264"`."""
        return self._native.name

    @property
    def time_base(self) -> tuple[int, int]:
        """The unit of time stamps in seconds: numerator and denominator."""
        return self._native.time_base


class AudioCodec(_Codec):
    """How an audio stream is encoded."""

    @property
    def sample_rate(self) -> int:
        """Samples per second and channel."""
        return self._native.sample_rate

    @property
    def num_channels(self) -> int:
        """The number of channels."""
        return self._native.num_channels

    @property
    def sample_fmt(self) -> str:
        """The format of decoded samples, such as `"fltp"`."""
        return self._native.sample_fmt

    @property
    def channel_layout(self) -> str:
        """FFmpeg's description of the channels, such as `"stereo"`."""
        return self._native.channel_layout

    def __repr__(self) -> str:
        return (
            f"AudioCodec({self.name!r}, {self.num_channels} channels, {self.sample_rate} Hz, "
            f"{self.sample_fmt!r})"
        )


class _PictureCodec(_Codec):
    @property
    def width(self) -> int:
        """Pixels per row."""
        return self._native.width

    @property
    def height(self) -> int:
        """The number of rows."""
        return self._native.height

    @property
    def pix_fmt(self) -> str:
        """The format of decoded pixels, such as `"yuv420p"`."""
        return self._native.pix_fmt

    @property
    def sample_aspect_ratio(self) -> tuple[int, int]:
        """Width and height of a pixel; the width is 0 if the ratio is unknown."""
        return self._native.sample_aspect_ratio

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.width} x {self.height}, {self.pix_fmt!r})"


class VideoCodec(_PictureCodec):
    """How a video stream is encoded."""

    @property
    def frame_rate(self) -> tuple[int, int]:
        """Frames per second: numerator and denominator."""
        return self._native.frame_rate

    @property
    def color_primaries(self) -> int:
        """The colour primaries, a number of ITU-T H.273: 1 for BT.709, 9 for BT.2020, 2 if unspecified."""
        return self._native.color_numbers[0]

    @property
    def color_transfer(self) -> int:
        """The transfer characteristics, a number of ITU-T H.273: 1 for BT.709, 16 for PQ, 18 for HLG, 2 if unspecified."""
        return self._native.color_numbers[1]

    @property
    def color_matrix(self) -> int:
        """The matrix coefficients, a number of ITU-T H.273: 1 for BT.709, 9 for BT.2020, 2 if unspecified."""
        return self._native.color_numbers[2]

    @property
    def is_hdr(self) -> bool:
        """Whether the transfer characteristics are those of high dynamic range: PQ or HLG."""
        return self.color_transfer in (16, 18)


class ImageCodec(_PictureCodec):
    """How an image is encoded."""


Codec = AudioCodec | VideoCodec | ImageCodec

_CODECS: dict[str, type[Any]] = {"audio": AudioCodec, "video": VideoCodec, "image": ImageCodec}


def codec_of(native: Any) -> Any:
    """Returns the public value of a native codec."""
    return _CODECS[native.kind](native)


class _Consumable:
    """A handle of native values. Functions that use the values up take them, which releases memory early."""

    _native: Any
    _consumer: str | None = None

    def _use(self) -> Any:
        if self._consumer is None:
            return self._native
        raise TypeError(
            f"these {type(self).__name__} were consumed by {self._consumer}; call clone() before {self._consumer}"
        )

    def _take(self, consumer: str) -> Any:
        taken = self._use()
        self._native, self._consumer = None, consumer
        return taken


class MediaPackets(_Consumable):
    """Encoded packets of one stream, in the order of decoding. They can be pickled."""

    def __init__(self, native: Any, source: str | None = None) -> None:
        self._native = native
        self._source = source

    def clone(self: _Packets) -> _Packets:
        """Returns packets that share the memory of these, and can be decoded separately."""
        return type(self)(self._use().share(), self._source)

    def __getstate__(self) -> bytes:
        return self._use().to_bytes()

    def __setstate__(self, state: bytes) -> None:
        self.__init__(native().MediaPackets.from_bytes(state))

    @classmethod
    def deserialize(cls: type[_Packets], data: bytes) -> _Packets:
        """Returns the packets whose `__getstate__` returned `data`.

        Raises:
            CorruptError: `data` are other bytes.
            TypeError: `data` are packets of another kind.
        """
        return cls.deserialize_view(data)

    @classmethod
    def deserialize_view(cls: type[_Packets], data: Buffer) -> _Packets:
        """As `deserialize`, without a copy if `data` is a view of `bytes`."""
        found = native().MediaPackets.from_bytes(data)
        expected = _PACKETS[found.kind]
        if cls is not expected:
            raise TypeError(f"data contains {expected.__name__}, not {cls.__name__}")
        return cls(found)

    @property
    def codec(self) -> Any:
        """How the packets are encoded; `None` for packets of `Demuxer.streaming_demux`."""
        codec = self._use().codec
        return None if codec is None else codec_of(codec)

    def _codec(self) -> Any:
        codec = self._use().codec
        if codec is None:
            raise RuntimeError("packets of streaming_demux have no codec; use that of the Demuxer")
        return codec

    def _shown(self, details: str) -> str:
        packets = self._native
        if packets is None:
            return f"{type(self).__name__}(consumed by {self._consumer})"
        window = "" if packets.window is None else f", {packets.window[0]:g} to {packets.window[1]:g} s"
        source = "" if self._source is None else f", source={self._source!r}"
        return f"{type(self).__name__}({len(packets)} packets, {packets.num_bytes} bytes{details}{window}{source})"


class _TimedPackets(MediaPackets):
    @property
    def timestamp(self) -> tuple[float, float] | None:
        """Start and end of the window that was demuxed or sliced, in seconds."""
        return self._use().window

    def slice(self: _Packets, timestamp: tuple[Time, Time]) -> _Packets:
        """Returns the packets that decoding the frames in a window needs; they share the memory of these.

        Of packets with a window, only the frames in both windows are decoded.

        Args:
            timestamp: Start and end in seconds.

        Raises:
            UnsupportedError: The file stores no times of presentation.
        """
        return type(self)(self._use().slice(fractions_of(timestamp)), self._source)


class AudioPackets(_TimedPackets):
    """Encoded audio. Functions that decode or filter packets consume them: use `clone` to keep them."""

    @property
    def sample_rate(self) -> int:
        """Samples per second and channel."""
        return self._codec().sample_rate

    @property
    def num_channels(self) -> int:
        """The number of channels."""
        return self._codec().num_channels

    def __len__(self) -> int:
        """The number of packets."""
        return len(self._use())

    def __repr__(self) -> str:
        codec = None if self._native is None else self._native.codec
        return self._shown("" if codec is None else f", {codec.name}, {codec.sample_rate} Hz")


class _PicturePackets(MediaPackets):
    @property
    def pix_fmt(self) -> str:
        """The format of decoded pixels, such as `"yuv420p"`."""
        return self._codec().pix_fmt

    @property
    def width(self) -> int:
        """Pixels per row."""
        return self._codec().width

    @property
    def height(self) -> int:
        """The number of rows."""
        return self._codec().height

    def __repr__(self) -> str:
        codec = None if self._native is None else self._native.codec
        return self._shown("" if codec is None else f", {codec.name}, {codec.width} x {codec.height}")


class VideoPackets(_TimedPackets, _PicturePackets):
    """Encoded video. Functions that decode or filter packets consume them: use `clone` to keep them.

    `len(packets)` is the number of packets, or, after demuxing with a window, that of the packets whose frames are in
    the window. Decoding may need packets before the window, which are kept too.
    """

    @property
    def frame_rate(self) -> tuple[int, int]:
        """Frames per second: numerator and denominator."""
        return self._codec().frame_rate

    def get_timestamps(self, *, raw: bool = False) -> list[float]:
        """The times of the frames in the window in seconds, in the order of presentation.

        Args:
            raw: The times of all packets instead, in their order.
        """
        packets = self._use()
        return packets.packet_times() if raw else packets.frame_times()

    def __len__(self) -> int:
        packets = self._use()
        return len(packets) if packets.window is None else len(packets.frame_times())


class ImagePackets(_PicturePackets):
    """An encoded image. Decoding consumes it: use `clone` to keep it."""


_PACKETS: dict[str, type[Any]] = {"audio": AudioPackets, "video": VideoPackets, "image": ImagePackets}


def packets_of(native: Any, source: str | None = None) -> Any:
    """Returns the public value of native packets."""
    return _PACKETS[native.kind](native, source)


class MediaFrames(_Consumable):
    """Decoded frames of one stream."""

    def __init__(self, native: Any, keep: Any = None) -> None:
        self._native = native
        # As in SPDL, the array of reference frames lives as long as the frames.
        self._keep = keep

    def clone(self: _Frames) -> _Frames:
        """Returns frames that share the memory of these, and can be converted separately."""
        return type(self)(self._use().share(), self._keep)

    def _shown(self, details: str) -> str:
        if self._native is None:
            return f"{type(self).__name__}(consumed by {self._consumer})"
        return f"{type(self).__name__}({details}, {self._native.format!r})"


class AudioFrames(MediaFrames):
    """Decoded audio. `convert_frames` consumes it: use `clone` to keep it."""

    @property
    def num_frames(self) -> int:
        """The number of samples per channel, as `len(frames)`."""
        return self._use().num_samples

    @property
    def sample_rate(self) -> int:
        """Samples per second and channel."""
        return self._use().sample_rate

    @property
    def num_channels(self) -> int:
        """The number of channels."""
        return self._use().num_channels

    @property
    def sample_fmt(self) -> str:
        """The format of the samples: `u8`, `s16`, `s32`, `s64`, `flt` or `dbl`; planar with a `p` at the end."""
        return self._use().format

    def __len__(self) -> int:
        return self.num_frames

    def __repr__(self) -> str:
        frames = self._native
        details = "" if frames is None else f"{frames.num_samples} samples, {frames.num_channels} channels"
        return self._shown(details)


class _PictureFrames(MediaFrames):
    @property
    def num_planes(self) -> int:
        """The number of planes of a picture: 3 for `yuv420p`, 1 for `rgb24`."""
        return self._use().num_planes

    @property
    def width(self) -> int:
        """Pixels per row."""
        return self._use().width

    @property
    def height(self) -> int:
        """The number of rows."""
        return self._use().height

    @property
    def pix_fmt(self) -> str:
        """The format of the pixels, such as `"rgb24"`."""
        return self._use().format

    @property
    def color_primaries(self) -> int:
        """The colour primaries, a number of ITU-T H.273: 1 for BT.709, 9 for BT.2020, 2 if unspecified."""
        return self._use().color_numbers[0]

    @property
    def color_transfer(self) -> int:
        """The transfer characteristics, a number of ITU-T H.273: 1 for BT.709, 16 for PQ, 18 for HLG, 2 if unspecified."""
        return self._use().color_numbers[1]

    @property
    def color_matrix(self) -> int:
        """The matrix coefficients, a number of ITU-T H.273: 0 for RGB, 1 for BT.709, 2 if unspecified."""
        return self._use().color_numbers[2]

    @property
    def is_full_range(self) -> bool | None:
        """Whether samples use all values, instead of 16 to 235; `None` if unspecified."""
        return self._use().is_full_range

    def __repr__(self) -> str:
        frames = self._native
        details = "" if frames is None else f"{len(frames)} x {frames.height} x {frames.width}"
        return self._shown(details)


class ImageFrames(_PictureFrames):
    """A decoded image. `convert_frames` consumes it: use `clone` to keep it."""

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that the decoder found, such as entries of EXIF.

        Entries of EXIF have the name of their tag: `{"Orientation": "6", "ExposureTime": "1:125"}`. FFmpeg reads EXIF of
        JPEG and WebP; from version 8 on, also that of PNG and TIFF.
        """
        return dict(self._use().metadata())

    @property
    def pts(self) -> float:
        """The time in seconds of a frame of a video."""
        return self._use().times()[0]


class VideoFrames(_PictureFrames):
    """Decoded video. `convert_frames` consumes it: use `clone` to keep it.

    `frames[3]` is an `ImageFrames`; `frames[::2]` and `frames[[0, 5, -1]]` are `VideoFrames`. They share
    the memory of the frames.
    """

    @property
    def num_frames(self) -> int:
        """The number of frames, as `len(frames)`."""
        return len(self._use())

    @property
    def time_base(self) -> tuple[int, int]:
        """The unit of `get_pts` in seconds: numerator and denominator."""
        return self._use().time_base

    def get_pts(self) -> list[int]:
        """The time stamps of the frames, in units of `time_base`."""
        return self._use().timestamps()

    def get_timestamps(self) -> list[float]:
        """The times of the frames in seconds."""
        return self._use().times()

    def __len__(self) -> int:
        return self.num_frames

    def __iter__(self) -> Iterator[ImageFrames]:
        return (self[position] for position in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> ImageFrames: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int]) -> VideoFrames: ...
    def __getitem__(self, key: int | slice | Sequence[int]) -> ImageFrames | VideoFrames:
        frames = self._use()
        count = len(frames)
        if isinstance(key, slice):
            return VideoFrames(frames.pick(list(range(count))[key]))
        if hasattr(key, "__len__"):
            positions = cast("Sequence[int]", key)
            return VideoFrames(frames.pick([_position(index, count) for index in positions]))
        return ImageFrames(frames.image(_position(key, count)))


def _position(index: Any, count: int) -> int:
    position = operator.index(index)
    if not -count <= position < count:
        raise IndexError(f"there is no frame {position} in {count} frames")
    return position % count


_FRAMES: dict[str, type[Any]] = {"audio": AudioFrames, "video": VideoFrames, "image": ImageFrames}


def frames_of(native: Any, keep: Any = None) -> Any:
    """Returns the public value of native frames."""
    return _FRAMES[native.kind](native, keep)
