"""From files to packets of audio, video and images."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy
import numpy.typing

from .. import _arguments as check
from .._errors import UnsupportedError
from .._secrets import without_secrets
from ._media_values import (
    AudioCodec,
    AudioPackets,
    ImageCodec,
    ImagePackets,
    Time,
    VideoCodec,
    VideoPackets,
    codec_of,
    fractions_of,
    invalid,
    native,
    packets_of,
)

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | numpy.typing.NDArray[Any] | Any"
Packets: TypeAlias = "AudioPackets | VideoPackets | ImagePackets"

_PacketsType = TypeVar("_PacketsType", AudioPackets, VideoPackets, ImagePackets)
_CodecType = TypeVar("_CodecType", AudioCodec, VideoCodec, ImageCodec)
_MAX_BUFFER = 2**30


@dataclasses.dataclass(frozen=True)
class DemuxConfig:
    """How to open a file; created by `demux_config`."""

    format: str | None = None
    """FFmpeg's name of the format; `None`: recognised by the content."""
    format_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Options of the format."""
    buffer_size: int = 65_536
    """The bytes that are read at a time."""


def demux_config(
    format: str | None = None,
    format_options: Mapping[str, str] | None = None,
    buffer_size: int = 65_536,
) -> DemuxConfig:
    """Sets how to open a file.

    Args:
        format: FFmpeg's name of the format, for files that have no header, such as `"s16le"` or `"rawvideo"`.
        format_options: Options of the format, such as `{"pixel_format": "nv12", "video_size": "320x240"}`;
            `{"max_streams": "10"}` limits the number of streams, by default 1,000.
        buffer_size: The bytes that are read at a time.

    >>> demux_config("s16le", {"sample_rate": "16000"}).format
    's16le'
    """
    options = check.options("format_options", format_options)
    size = check.whole("buffer_size", buffer_size, 1, _MAX_BUFFER)
    return DemuxConfig(check.text_or_none("format", format), options, size)


class Demuxer:
    """Reads the packets of a file: encoded audio, video, or an image.

    A demuxer of a path or an address reads only the parts of the file that the packets need. Use it in a `with`
    statement, which closes the file. A demuxer of an address is closed if Ctrl-C interrupts a read.

    Args:
        src: A path; an address (`https:`, `s3:`, `gs:`, `az:`, `hf:`), which is read by range requests of 1 MiB; or the
            content of a file: `bytes`, an array of `uint8`, or a tensor.
        demux_config: How to open the file, from `demux_config`.
        name: The name of the file in error messages.

    Raises:
        RuntimeError: The file cannot be read, or has no known format. The error is also a `DataError` or an
            `OSError`.
        UnsupportedError: `spdl_rs` was built without FFmpeg.
    """

    def __init__(
        self, src: Source, *, demux_config: DemuxConfig | None = None, name: str | None = None
    ) -> None:
        config = DemuxConfig() if demux_config is None else demux_config
        data, source = _resolve(src)
        self._source = source if name is None else name
        self._demuxer = native().MediaDemuxer(
            data,
            name,
            format=config.format,
            options=list(config.format_options.items()),
            buffer_size=config.buffer_size,
        )

    def demux_audio(
        self, window: tuple[Time, Time] | None = None, *, bsf: str | None = None
    ) -> AudioPackets:
        """Returns the packets of the best audio stream.

        Args:
            window: Start and end in seconds: the packets that these samples need.
            bsf: Filters of packets: see `BSF`.

        Raises:
            RuntimeError: There is no audio, or the file is damaged.
        """
        return self._demux("audio", window, bsf)

    def demux_video(
        self, window: tuple[Time, Time] | None = None, *, bsf: str | None = None
    ) -> VideoPackets:
        """Returns the packets of the best video stream.

        Args:
            window: Start and end in seconds: the packets that the frames from the start up to, but not including,
                the end need, from a key frame on.
            bsf: Filters of packets: see `BSF`.

        Raises:
            RuntimeError: There is no video, or the file is damaged.
        """
        return self._demux("video", window, bsf)

    def demux_image(self, *, bsf: str | None = None) -> ImagePackets:
        """Returns the packet of an image, or the first packet of a video.

        Raises:
            RuntimeError: There is no image, or the file is damaged.
        """
        return self._demux("image", None, bsf)

    def _demux(self, kind: str, window: tuple[Time, Time] | None, bsf: str | None) -> Any:
        demuxed = self._demuxer.demux(kind, None if window is None else fractions_of(window), bsf)
        return packets_of(demuxed, self._source)

    @overload
    def streaming_demux(
        self, indices: int | None = None, *, duration: float = -1, num_packets: int = -1
    ) -> Iterator[Packets]: ...
    @overload
    def streaming_demux(
        self, indices: Sequence[int] | Set[int], *, duration: float = -1, num_packets: int = -1
    ) -> Iterator[dict[int, Packets]]: ...
    def streaming_demux(
        self,
        indices: int | Sequence[int] | Set[int] | None = None,
        *,
        duration: float = -1,
        num_packets: int = -1,
    ) -> Iterator[Packets] | Iterator[dict[int, Packets]]:
        """Iterates over the packets of the file, a portion at a time. Each packet is returned once.

        The packets have no codec: decode them with `Decoder(demuxer.video_codec)`.

        Args:
            indices: The number of a stream, such as `demuxer.video_stream_index`, by default 0; or several
                numbers, for portions that are dictionaries by number.
            duration: The seconds of a portion.
            num_packets: The number of packets of a portion, instead of `duration`.

        Raises:
            ValueError: Neither or both of `duration` and `num_packets` are positive.
            RuntimeError: There is no such stream, or it has neither audio nor video.
        """
        if (duration > 0) == (num_packets > 0):
            raise ValueError(
                "exactly one of duration and num_packets must be positive; they are "
                f"{duration!r} and {num_packets!r}"
            )
        is_one = indices is None or isinstance(indices, int)
        wanted = {indices or 0} if indices is None or isinstance(indices, int) else set(indices)
        if any(index < 0 for index in wanted):
            raise invalid(f"Stream index must not be negative: {sorted(wanted)}")
        portions = self._portions(wanted, max(num_packets, 0), float(duration))
        if is_one:
            return (packets for portion in portions for packets in portion.values())
        return portions

    def _portions(self, indices: set[int], num_packets: int, duration: float) -> Iterator[dict[int, Packets]]:
        while portion := self._demuxer.read_some(indices, num_packets, duration):
            yield {index: packets_of(packets, self._source) for index, packets in portion.items()}

    def has_audio(self) -> bool:
        """Whether the file has audio."""
        return self._demuxer.has_audio()

    @property
    def video_stream_index(self) -> int:
        """The number of the best video stream."""
        return self._demuxer.stream_index("video")

    @property
    def audio_stream_index(self) -> int:
        """The number of the best audio stream."""
        return self._demuxer.stream_index("audio")

    @property
    def audio_codec(self) -> AudioCodec:
        """The codec of the best audio stream."""
        return codec_of(self._demuxer.codec("audio"))

    @property
    def video_codec(self) -> VideoCodec:
        """The codec of the best video stream."""
        return codec_of(self._demuxer.codec("video"))

    @property
    def image_codec(self) -> ImageCodec:
        """The codec of an image."""
        return codec_of(self._demuxer.codec("image"))

    def __enter__(self) -> Demuxer:
        return self

    def __exit__(self, *_: object) -> None:
        self._demuxer.close()


def _resolve(src: Any) -> tuple[Any, str]:
    """Returns a path or a buffer, and its name for `repr` of packets."""
    if isinstance(src, (str, os.PathLike)):
        return src, without_secrets(os.fsdecode(src))
    if hasattr(src, "numpy"):
        src = src.numpy()
    try:
        view = memoryview(src)
    except TypeError:
        raise TypeError(
            f"src must be a path, an address, or the content of a file, not {type(src).__name__}"
        ) from None
    address = numpy.frombuffer(view.cast("B"), dtype=numpy.uint8).ctypes.data if view.nbytes else 0
    return src, f"Bytes: {address:#x}"


def demux_audio(
    src: Source,
    *,
    timestamp: tuple[Time, Time] | None = None,
    demux_config: DemuxConfig | None = None,
    bsf: str | None = None,
    name: str | None = None,
) -> AudioPackets:
    """Returns the packets of the best audio stream of a file: `Demuxer(src).demux_audio(timestamp)`."""
    with Demuxer(src, demux_config=demux_config, name=name) as demuxer:
        return demuxer.demux_audio(timestamp, bsf=bsf)


def demux_video(
    src: Source,
    *,
    timestamp: tuple[Time, Time] | None = None,
    demux_config: DemuxConfig | None = None,
    bsf: str | None = None,
    name: str | None = None,
) -> VideoPackets:
    """Returns the packets of the best video stream of a file: `Demuxer(src).demux_video(timestamp)`."""
    with Demuxer(src, demux_config=demux_config, name=name) as demuxer:
        return demuxer.demux_video(timestamp, bsf=bsf)


def demux_image(
    src: Source,
    *,
    demux_config: DemuxConfig | None = None,
    bsf: str | None = None,
    name: str | None = None,
) -> ImagePackets:
    """Returns the packet of an image: `Demuxer(src).demux_image()`."""
    with Demuxer(src, demux_config=demux_config, name=name) as demuxer:
        return demuxer.demux_image(bsf=bsf)


@dataclasses.dataclass(frozen=True)
class MediaInfo:
    """What a file of audio or video contains; returned by `probe`."""

    format: str
    """FFmpeg's name of the container, such as `"mov,mp4,m4a,3gp,3g2,mj2"`."""
    duration: float | None
    """The duration in seconds, as the header has it; `None` if it has none."""
    audio: AudioCodec | None
    """The codec of the best audio stream; `None` if there is no audio."""
    video: VideoCodec | None
    """The codec of the best video stream; `None` if there is no video."""


def probe(src: Source, *, demux_config: DemuxConfig | None = None, name: str | None = None) -> MediaInfo:
    """Reads the header of a file of audio or video: format, duration, codecs.

    Args:
        src: A path, an address, or the content of a file: see `Demuxer`.
        demux_config: How to open the file, from `demux_config`.
        name: The name of the file in error messages.

    Raises:
        RuntimeError: The file cannot be read, or has no known format.
    """
    with Demuxer(src, demux_config=demux_config, name=name) as demuxer:
        found = demuxer._demuxer
        codecs: dict[str, Any] = {"audio": None, "video": None}
        seconds = []
        for kind in codecs:
            try:
                codecs[kind] = codec_of(found.codec(kind))
            except UnsupportedError:
                continue
            seconds.append(found.seconds(kind))
        durations = [duration for duration in seconds if duration is not None]
        return MediaInfo(found.format, max(durations, default=None), **codecs)


class BSF(Generic[_CodecType, _PacketsType]):
    """FFmpeg's bit stream filters: they change packets without decoding them.

    Args:
        codec: The codec of the packets, such as `demuxer.video_codec`.
        bsf: The names and options of the filters, such as `"h264_mp4toannexb"`.

    Raises:
        RuntimeError: FFmpeg has no such filter, or the filter does not support the codec.
    """

    def __init__(self, codec: _CodecType, bsf: str) -> None:
        self._filter = native().MediaBitStreamFilter(codec._native, bsf)

    def filter(self, packets: _PacketsType, flush: bool = False) -> _PacketsType | None:
        """Filters packets, and consumes them.

        Args:
            packets: The packets.
            flush: Also return the packets that the filters would keep for the next call.

        Returns:
            The packets that are ready; `None` if there are none.
        """
        source = packets._source
        filtered = self._filter.filter(packets._take("BSF.filter"), flush)
        return packets_of(filtered, source) if len(filtered) else None

    def flush(self) -> _PacketsType | None:
        """Returns the packets that are left after the last call of `filter`; `None` if there are none."""
        left = self._filter.filter(None, True)
        return packets_of(left) if len(left) else None


def apply_bsf(packets: _PacketsType, bsf: str) -> _PacketsType | None:
    """Filters all packets of a stream: `BSF(packets.codec, bsf).filter(packets, flush=True)`.

    Raises:
        ValueError: The packets have no codec.
    """
    if packets.codec is None:
        raise ValueError("packets of streaming_demux have no codec; use BSF with that of the Demuxer")
    return BSF(packets.codec, bsf).filter(packets, flush=True)
