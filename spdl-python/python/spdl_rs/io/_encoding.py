"""From arrays to frames, packets and files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, overload

import numpy
import numpy.typing

from .. import _arguments as check
from ._convert import to_numpy
from ._media_values import (
    AudioCodec,
    AudioFrames,
    AudioPackets,
    ImagePackets,
    VideoCodec,
    VideoFrames,
    VideoPackets,
    invalid,
    native,
    packets_of,
)

_PacketsType = TypeVar("_PacketsType", AudioPackets, VideoPackets)
_FramesType = TypeVar("_FramesType", AudioFrames, VideoFrames)
_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class AudioEncodeConfig:
    """How to encode audio; created by `audio_encode_config`."""

    num_channels: int
    sample_rate: int
    sample_fmt: str | None
    bit_rate: int
    compression_level: int
    qscale: int


@dataclasses.dataclass(frozen=True)
class VideoEncodeConfig:
    """How to encode video or an image; created by `video_encode_config`."""

    height: int
    width: int
    frame_rate: tuple[int, int]
    pix_fmt: str | None
    bit_rate: int
    compression_level: int
    qscale: int
    gop_size: int
    max_b_frames: int
    colorspace: str | None
    color_primaries: str | None
    color_trc: str | None


def audio_encode_config(
    *,
    num_channels: int,
    sample_rate: int,
    sample_fmt: str | None = "fltp",
    bit_rate: int = -1,
    compression_level: int = -1,
    qscale: int = -1,
) -> AudioEncodeConfig:
    """Sets how to encode audio. A value of -1 leaves the choice to the encoder.

    Args:
        num_channels: The number of channels.
        sample_rate: Samples per second and channel.
        sample_fmt: The format of the frames that are encoded; `None`: the first that the encoder supports.
        bit_rate: Bits per second.
        compression_level: The effort of compression, in the units of the encoder.
        qscale: A constant quality, in the units of the encoder.

    >>> audio_encode_config(num_channels=1, sample_rate=16_000).sample_fmt
    'fltp'
    """
    return AudioEncodeConfig(
        check.whole("num_channels", num_channels, 1, _MAX),
        check.whole("sample_rate", sample_rate, 1, _MAX),
        check.text_or_none("sample_fmt", sample_fmt),
        bit_rate,
        compression_level,
        qscale,
    )


def video_encode_config(
    *,
    height: int,
    width: int,
    frame_rate: tuple[int, int] | None = None,
    pix_fmt: str | None = "rgb24",
    bit_rate: int = -1,
    compression_level: int = -1,
    qscale: int = -1,
    gop_size: int = -1,
    max_b_frames: int = -1,
    colorspace: str | None = None,
    color_primaries: str | None = None,
    color_trc: str | None = None,
) -> VideoEncodeConfig:
    """Sets how to encode video or an image. A value of -1 leaves the choice to the encoder.

    Args:
        height: The number of rows.
        width: Pixels per row.
        frame_rate: Frames per second: numerator and denominator; `None`: 25.
        pix_fmt: The format of the frames that are encoded; `None`: the first that the encoder supports.
        bit_rate: Bits per second.
        compression_level: The effort of compression, in the units of the encoder.
        qscale: A constant quality, in the units of the encoder.
        gop_size: Frames from one key frame to the next.
        max_b_frames: The most consecutive frames that depend on later ones.
        colorspace: FFmpeg's name of the matrix of the colours, such as `"bt709"`.
        color_primaries: FFmpeg's name of the primary colours.
        color_trc: FFmpeg's name of the transfer function.

    >>> video_encode_config(height=240, width=320).frame_rate
    (25, 1)
    """
    return VideoEncodeConfig(
        check.whole("height", height, 1, _MAX),
        check.whole("width", width, 1, _MAX),
        (25, 1) if frame_rate is None else (int(frame_rate[0]), int(frame_rate[1])),
        check.text_or_none("pix_fmt", pix_fmt),
        bit_rate,
        compression_level,
        qscale,
        gop_size,
        max_b_frames,
        colorspace,
        color_primaries,
        color_trc,
    )


def _chosen(value: int) -> int | None:
    return None if value < 0 else value


class _Encoder(Generic[_FramesType, _PacketsType]):
    def __init__(self, native: Any) -> None:
        self._encoder = native

    def encode(self, frames: _FramesType) -> _PacketsType | None:
        """Encodes frames, and consumes them.

        Returns:
            The packets that are ready; `None` if there are none.

        Raises:
            RuntimeError: The frames do not fit the encoder.
        """
        return _some(self._encoder.encode(frames._take("encode")))

    def flush(self) -> _PacketsType | None:
        """Returns the remaining packets, after the last frame; `None` if there are none."""
        return _some(self._encoder.encode(None))


def _some(packets: Any) -> Any:
    return packets_of(packets) if len(packets) else None


class VideoEncoder(_Encoder[VideoFrames, VideoPackets]):
    """The encoder of a video stream; created by `Muxer.add_encode_stream`."""


class AudioEncoder(_Encoder[AudioFrames, AudioPackets]):
    """The encoder of an audio stream; created by `Muxer.add_encode_stream`."""

    @property
    def frame_size(self) -> int:
        """The samples per channel of each call of `encode`, except the last; 0: any number."""
        return self._encoder.frame_size


class Muxer:
    """Writes audio, video or an image to a file.

    Add the streams, open the file in a `with` statement, and write the packets. At its end, the file is complete.

    >>> import numpy, spdl_rs.io
    >>> muxer = Muxer("dark.mkv")
    >>> config = video_encode_config(height=48, width=64, pix_fmt="yuv444p")
    >>> encoder = muxer.add_encode_stream(config, encoder="ffv1")
    >>> planes = numpy.zeros((10, 3, 48, 64), "uint8")
    >>> with muxer.open():
    ...     frames = create_reference_video_frame(planes, "yuv444p", (25, 1), pts=0)
    ...     for packets in (encoder.encode(frames), encoder.flush()):
    ...         if packets is not None:
    ...             muxer.write(0, packets)
    >>> spdl_rs.io.probe("dark.mkv").video.name
    'ffv1'
    >>> numpy.asarray(spdl_rs.io.load_video("dark.mkv")).shape
    (10, 48, 64, 3)

    Args:
        dst: The path of the file. An existing file is replaced.
        format: FFmpeg's name of the format; by default, the extension decides.

    Raises:
        RuntimeError: FFmpeg has no such format.
    """

    def __init__(self, dst: str | os.PathLike[str], /, *, format: str | None = None) -> None:
        self._muxer = native().MediaMuxer(os.fspath(dst), format)

    @overload
    def add_encode_stream(
        self,
        config: AudioEncodeConfig,
        *,
        encoder: str | None = ...,
        encoder_config: Mapping[str, str] | None = ...,
    ) -> AudioEncoder: ...
    @overload
    def add_encode_stream(
        self,
        config: VideoEncodeConfig,
        *,
        encoder: str | None = ...,
        encoder_config: Mapping[str, str] | None = ...,
    ) -> VideoEncoder: ...
    def add_encode_stream(
        self,
        config: AudioEncodeConfig | VideoEncodeConfig,
        *,
        encoder: str | None = None,
        encoder_config: Mapping[str, str] | None = None,
    ) -> AudioEncoder | VideoEncoder:
        """Adds a stream of frames that are encoded, and returns its encoder.

        Args:
            config: The settings, from `audio_encode_config` or `video_encode_config`.
            encoder: FFmpeg's name of the encoder; by default, that of the format of the file.
            encoder_config: Options of the encoder.

        Raises:
            RuntimeError: FFmpeg has no such encoder, or it does not support the settings. The message lists the
                formats that it supports.
            TypeError: `config` has another type.
        """
        options = list(check.options("encoder_config", encoder_config).items())
        if not isinstance(config, (AudioEncodeConfig, VideoEncodeConfig)):
            raise TypeError(
                "config must come from audio_encode_config or video_encode_config, not "
                f"{type(config).__name__}"
            )
        rates = _chosen(config.bit_rate), _chosen(config.compression_level), _chosen(config.qscale)
        if isinstance(config, AudioEncodeConfig):
            sizes = config.num_channels, config.sample_rate
            return AudioEncoder(
                self._muxer.add_audio(sizes, config.sample_fmt, rates, encoder, options)
            )
        return VideoEncoder(
            self._muxer.add_video(
                (config.width, config.height),
                config.frame_rate,
                config.pix_fmt,
                rates,
                (_chosen(config.gop_size), _chosen(config.max_b_frames)),
                (config.colorspace, config.color_primaries, config.color_trc),
                encoder,
                options,
            )
        )

    def add_remux_stream(self, codec: AudioCodec | VideoCodec) -> None:
        """Adds a stream of packets that are already encoded, such as those of `Demuxer.streaming_demux`.

        Args:
            codec: How they are encoded, such as `demuxer.audio_codec`.
        """
        self._muxer.add_encoded(codec._native)

    def open(self, muxer_config: Mapping[str, str] | None = None) -> Muxer:
        """Creates the file, and writes its header. Returns the muxer, for a `with` statement.

        Args:
            muxer_config: Options of the format.

        Raises:
            RuntimeError: There are no streams, the format does not support them, or the file cannot be created.
        """
        self._muxer.start(list(check.options("muxer_config", muxer_config).items()))
        return self

    def write(self, stream_index: int, packets: AudioPackets | VideoPackets | ImagePackets) -> None:
        """Writes packets.

        Args:
            stream_index: The number of the stream, in the order in which the streams were added.
            packets: The packets.

        Raises:
            RuntimeError: There is no such stream, the packets are of another kind, or the file is not open.
        """
        if stream_index < 0:
            raise invalid(f"Stream index is out of range: {stream_index}")
        self._muxer.write(stream_index, packets._use())

    def flush(self) -> None:
        """Writes the packets that wait for those of other streams. A `with` statement calls this."""
        self._muxer.flush()

    def close(self) -> None:
        """Writes the end of the file. A `with` statement calls this."""
        self._muxer.finish()

    def __enter__(self) -> Muxer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.flush()
            self.close()
        except RuntimeError:
            # The first exception has the cause.
            if kind is None:
                raise


def _array(array: Any, is_big_endian: bool = False) -> numpy.typing.NDArray[Any]:
    """Returns a contiguous array whose type has the byte order of the machine.

    The bytes of formats such as `gray16be` are those of the array.
    """
    if hasattr(array, "numpy"):
        array = array.numpy()
    found = numpy.ascontiguousarray(to_numpy(array))
    native_order = found.dtype.newbyteorder("=")
    return found.view(native_order) if is_big_endian else found.astype(native_order, copy=False)


def create_reference_audio_frame(
    array: Any, sample_fmt: str, sample_rate: int, pts: int
) -> AudioFrames:
    """Creates audio from an array, to be filtered or encoded. The samples are copied.

    Args:
        array: `[channels, samples]` for planar formats, `[samples, channels]` for others; an array or a tensor.
        sample_fmt: The format: `u8`, `s16` (`int16`), `s32`, `s64`, `flt` (`float32`) or `dbl`; planar with a `p`
            at the end.
        sample_rate: Samples per second and channel.
        pts: The number of the first sample.

    Raises:
        ValueError: Shape or type of the array do not fit the format.
    """
    samples = _array(array)
    if samples.ndim != 2:
        raise invalid(f"audio has the shape [channels, samples] or [samples, channels], not {list(samples.shape)}")
    made = native().MediaFrames.of_samples(
        samples, samples.shape, samples.dtype.name, sample_fmt, sample_rate, pts
    )
    return AudioFrames(made, array)


def create_reference_video_frame(
    array: Any, pix_fmt: str, frame_rate: tuple[int, int], pts: int
) -> VideoFrames:
    """Creates frames of a video from an array, to be filtered or encoded. The pixels are copied.

    Args:
        array: `[frames, height, width, 3]` for `rgb24` and `bgr24`, `[frames, height, width]` for `gray` (`uint8`)
            and `gray16` (16 bits), `[frames, 3, height, width]` for `yuv444p`, `[frames, 1, height * 3 / 2, width]`
            for `yuv420p` with the planes below each other; an array or a tensor. `convert_frames` returns the same shapes.
        pix_fmt: The format.
        frame_rate: Frames per second: numerator and denominator.
        pts: The number of the first frame.

    Raises:
        ValueError: Shape or type of the array do not fit the format, or the format has no array.
    """
    pixels = _array(array, pix_fmt.endswith("be"))
    made = native().MediaFrames.of_pictures(
        pixels, pixels.shape, pixels.dtype.name, pix_fmt, tuple(frame_rate), pts
    )
    return VideoFrames(made, array)


# The formats of `save_image`: the position of the channels, and the bytes per element.
_IMAGE_FORMATS = {
    "rgb24": (2, 1),
    "bgr24": (2, 1),
    "gray": (None, 1),
    "gray16": (None, 2),
    "gray16be": (None, 2),
    "gray16le": (None, 2),
    "yuv444p": (0, 1),
}


def save_image(
    path: str | os.PathLike[str],
    data: Any,
    pix_fmt: str = "rgb24",
    *,
    bit_rate: int = -1,
    compression_level: int = -1,
    qscale: int = -1,
    gop_size: int = -1,
    max_b_frames: int = -1,
    colorspace: str | None = None,
    color_primaries: str | None = None,
    color_trc: str | None = None,
) -> None:
    """Writes an image file, in the format of the extension.

    Args:
        path: The path, such as `"image.png"`. An existing file is replaced.
        data: `[height, width, 3]` for `rgb24` and `bgr24`, `[height, width]` for `gray` (8 bits) and `gray16`,
            `gray16be`, `gray16le` (16 bits), `[3, height, width]` for `yuv444p`; an array or a tensor.
        pix_fmt: The format of `data`. The encoder must support it: PNG has `rgb24` and grey, JPEG `yuv444p`.
        bit_rate, compression_level, qscale, gop_size, max_b_frames, colorspace, color_primaries, color_trc:
            See `video_encode_config`.

    Raises:
        ValueError: Shape or type of `data` do not fit the format.
        RuntimeError: The encoder does not support the format, or the file cannot be written.
    """
    if pix_fmt not in _IMAGE_FORMATS:
        raise ValueError(f"pix_fmt must be one of {', '.join(_IMAGE_FORMATS)}, not {pix_fmt!r}")
    channels, item_size = _IMAGE_FORMATS[pix_fmt]
    shape = tuple(data.shape)
    if len(shape) != (2 if channels is None else 3) or (channels is not None and shape[channels] != 3):
        expected = {None: "[height, width]", 0: "[3, height, width]", 2: "[height, width, 3]"}[channels]
        raise ValueError(f"{pix_fmt} images have the shape {expected}, not {list(shape)}")
    pixels = _array(data, pix_fmt.endswith("be"))
    if pixels.dtype.itemsize != item_size or pixels.dtype.kind not in "ui":
        raise ValueError(f"{pix_fmt} images have elements of {8 * item_size} bits, not {pixels.dtype}")
    height, width = shape[1:] if channels == 0 else shape[:2]
    muxer = Muxer(path)
    encoder = muxer.add_encode_stream(
        video_encode_config(
            height=height,
            width=width,
            frame_rate=(1, 1),
            pix_fmt=pix_fmt,
            bit_rate=bit_rate,
            compression_level=compression_level,
            qscale=qscale,
            gop_size=gop_size,
            max_b_frames=max_b_frames,
            colorspace=colorspace,
            color_primaries=color_primaries,
            color_trc=color_trc,
        )
    )
    with muxer.open():
        frames = create_reference_video_frame(pixels[None], pix_fmt, (1, 1), 0)
        for packets in (encoder.encode(frames), encoder.flush()):
            if packets is not None:
                muxer.write(0, packets)
