"""From packets to frames, and from frames to arrays."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy
import numpy.typing

from .. import _arguments as check
from .._spdl_rs import Array
from . import _filter_descriptions as descriptions
from ._buffer import Buffer
from ._convert import to_numpy
from ._media_values import (
    AudioCodec,
    AudioFrames,
    AudioPackets,
    ImageFrames,
    ImagePackets,
    MediaFrames,
    VideoCodec,
    VideoFrames,
    VideoPackets,
    frames_of,
    named,
    native,
)

Frames: TypeAlias = "AudioFrames | VideoFrames | ImageFrames"

_PacketsType = TypeVar("_PacketsType", AudioPackets, VideoPackets)
_FramesType = TypeVar("_FramesType", AudioFrames, VideoFrames)
_LOG = logging.getLogger("spdl_rs.io")
_MAX_FRAMES = 2**62


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How to decode; created by `decode_config`."""

    decoder: str | None = None
    """FFmpeg's name of the decoder; `None`: that of the codec."""
    decoder_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Options of the decoder."""


def decode_config(
    decoder: str | None = None, decoder_options: Mapping[str, str] | None = None
) -> DecodeConfig:
    """Sets how to decode.

    Args:
        decoder: FFmpeg's name of the decoder, such as `"h264"`; by default, that of the codec.
        decoder_options: Options of the decoder, such as `{"threads": "4"}`. The default is one thread.

    >>> decode_config(decoder_options={"threads": "2"}).decoder_options
    {'threads': '2'}
    """
    options = check.options("decoder_options", decoder_options)
    return DecodeConfig(check.text_or_none("decoder", decoder), options)


def _settings(config: DecodeConfig | None) -> dict[str, Any]:
    config = DecodeConfig() if config is None else config
    return {"decoder": config.decoder, "options": list(config.decoder_options.items())}


@overload
def decode_packets(
    packets: AudioPackets,
    filter_desc: str | None = ...,
    decode_config: DecodeConfig | None = ...,
    *,
    num_frames: int = ...,
) -> AudioFrames: ...
@overload
def decode_packets(
    packets: VideoPackets,
    filter_desc: str | None = ...,
    decode_config: DecodeConfig | None = ...,
    *,
    num_frames: int = ...,
) -> VideoFrames: ...
@overload
def decode_packets(
    packets: ImagePackets,
    filter_desc: str | None = ...,
    decode_config: DecodeConfig | None = ...,
    *,
    num_frames: int = ...,
) -> ImageFrames: ...
def decode_packets(
    packets: AudioPackets | VideoPackets | ImagePackets,
    filter_desc: str | None = descriptions.DEFAULT,
    decode_config: DecodeConfig | None = None,
    *,
    num_frames: int = -1,
) -> Frames:
    """Decodes packets, and consumes them.

    If some packets are damaged, the frames of the others are returned, and a warning with their number is logged. Of
    a video that was demuxed with a window, only the frames in the window are returned.

    Args:
        packets: The packets of `demux_audio`, `demux_video` or `demux_image`.
        filter_desc: Filters of the frames, from `get_audio_filter_desc` or `get_video_filter_desc`. By default,
            audio is converted to `fltp` and cut to the window of the packets, and pictures are converted to
            `rgb24`. `None`: frames as the decoder returns them.
        decode_config: How to decode, from `decode_config`.
        num_frames: Stop after this number of frames; -1: all.

    Raises:
        RuntimeError: No packet can be decoded, FFmpeg has no such decoder, or a filter fails.
        TypeError: The packets were consumed before.
    """
    codec = packets.codec
    if codec is None:
        raise RuntimeError("packets of streaming_demux have no codec; use Decoder with that of the Demuxer")
    window = getattr(packets, "timestamp", None)
    graph = descriptions.resolved(filter_desc, codec, window)
    most = None if num_frames < 0 else num_frames
    taken = packets._take("decode_packets")
    with named(packets._source):
        frames, failed, first = native().decode_media_packets(
            taken, filters=graph, num_frames=most, **_settings(decode_config)
        )
    _warn(failed, first, packets._source)
    return frames_of(frames)


def _warn(failed: int, first: str | None, source: str | None) -> None:
    if failed:
        _LOG.warning("%d packets of %s were not decoded; the first: %s", failed, source or "a stream", first)


class _StreamDecoder(Generic[_PacketsType, _FramesType]):
    def __init__(self, codec: Any, filter_desc: str | None, config: DecodeConfig | None) -> None:
        graph = descriptions.resolved(filter_desc, codec)
        self._decoder = native().MediaDecoder(codec._native, filters=graph, **_settings(config))
        self._waiting: Any = None
        self._size = 0
        self._failed = 0

    def streaming_decode_packets(self, packets: _PacketsType) -> Iterator[_FramesType]:
        """Decodes packets, and consumes them; yields the frames that are ready."""
        source = packets._source
        return self._frames(packets._take("streaming_decode_packets"), source)

    def flush(self) -> Iterator[_FramesType]:
        """Yields the remaining frames, after the last packet."""
        return self._frames(None, None)

    def _frames(self, packets: Any, source: str | None) -> Iterator[Any]:
        decoded = self._decoder.decode(packets)
        failed, first = self._decoder.failures()
        _warn(failed - self._failed, first, source)
        self._failed = failed
        waiting = decoded if self._waiting is None else self._waiting.joined(decoded)
        self._waiting = None
        if not self._size:
            if len(waiting):
                yield frames_of(waiting)
            return
        start, count = 0, len(waiting)
        while count - start >= self._size:
            yield frames_of(waiting.pick(list(range(start, start + self._size))))
            start += self._size
        rest = waiting.pick(list(range(start, count)))
        if packets is not None:
            self._waiting = rest
        elif len(rest):
            yield frames_of(rest)


class AudioDecoder(_StreamDecoder[AudioPackets, AudioFrames]):
    """Decodes a stream of audio portion by portion; created by `Decoder`."""


class VideoDecoder(_StreamDecoder[VideoPackets, VideoFrames]):
    """Decodes a stream of video portion by portion; created by `Decoder`."""

    def set_buffer_size(self, buffer_size: int) -> None:
        """Sets the number of frames of each portion; 0: as many as are ready. The last portion may be smaller."""
        self._size = check.whole("buffer_size", buffer_size, 0, _MAX_FRAMES)


@overload
def Decoder(
    codec: AudioCodec, *, filter_desc: str | None = ..., decode_config: DecodeConfig | None = ...
) -> AudioDecoder: ...
@overload
def Decoder(
    codec: VideoCodec, *, filter_desc: str | None = ..., decode_config: DecodeConfig | None = ...
) -> VideoDecoder: ...
def Decoder(
    codec: AudioCodec | VideoCodec,
    *,
    filter_desc: str | None = descriptions.DEFAULT,
    decode_config: DecodeConfig | None = None,
) -> AudioDecoder | VideoDecoder:
    """Creates a decoder for the packets of `Demuxer.streaming_demux`.

    Args:
        codec: `demuxer.audio_codec` or `demuxer.video_codec`.
        filter_desc: Filters of the frames: see `decode_packets`.
        decode_config: How to decode, from `decode_config`.

    Raises:
        RuntimeError: FFmpeg has no decoder, or the filters are wrong.
        TypeError: `codec` is not a codec of audio or video.
    """
    if isinstance(codec, AudioCodec):
        return AudioDecoder(codec, filter_desc, decode_config)
    if isinstance(codec, VideoCodec):
        return VideoDecoder(codec, filter_desc, decode_config)
    raise TypeError(f"codec must be a codec of audio or video, not {type(codec).__name__}")


def sample_decode_video(
    packets: VideoPackets,
    indices: Sequence[int],
    *,
    decode_config: DecodeConfig | None = None,
    filter_desc: str | None = descriptions.DEFAULT,
) -> list[ImageFrames]:
    """Decodes some frames of a video: each from the nearest key frame before it. The packets are not consumed.

    Args:
        packets: The packets of `demux_video`.
        indices: The numbers of the frames among those in the window of the packets, ascending.
        decode_config: How to decode, from `decode_config`.
        filter_desc: Filters of the frames: see `decode_packets`.

    Raises:
        IndexError: There are fewer frames.
        ValueError: `indices` is empty, not ascending, or has duplicates.
        RuntimeError: A frame cannot be decoded.
    """
    wanted = [int(index) for index in indices]
    if not wanted:
        raise ValueError("indices must not be empty")
    count = len(packets)
    if not all(0 <= index < count for index in wanted):
        raise IndexError(f"indices must be from 0 to {count - 1}, the last of {count} frames")
    if any(left >= right for left, right in zip(wanted, wanted[1:], strict=False)):
        raise ValueError("indices must be ascending, without duplicates")
    graph = descriptions.resolved(filter_desc, packets.codec)
    with named(packets._source):
        frames = native().decode_media_frames(
            packets._use(), wanted, filters=graph, **_settings(decode_config)
        )
    return [ImageFrames(frames.image(position)) for position in range(len(frames))]


class FilterGraph:
    """A graph of FFmpeg's filters.

    Its inputs are `buffer` and `abuffer`, described by `get_buffer_desc` and `get_abuffer_desc`; its outputs are
    `buffersink` and `abuffersink`: `f"{get_buffer_desc(codec)},hflip,buffersink"`.

    Args:
        filter_desc: The description, in FFmpeg's syntax.

    Raises:
        RuntimeError: The description is wrong.
    """

    def __init__(self, filter_desc: str) -> None:
        self._graph = native().MediaFilterGraph(filter_desc)

    def add_frames(self, frames: Frames, *, key: str | None = None) -> None:
        """Gives frames to an input, and consumes them.

        Args:
            frames: The frames.
            key: The name of the input, such as `"buffer@in0"`; required if there is more than one.

        Raises:
            RuntimeError: There is no such input, or the frames do not fit.
        """
        self._graph.add(frames._take("FilterGraph.add_frames"), key)

    def flush(self) -> None:
        """Ends all inputs, so that the filters return all frames."""
        self._graph.finish()

    def get_frames(self, *, key: str | None = None) -> Any:
        """Returns the frames that an output has ready; `None` if there are none.

        Args:
            key: The name of the output, such as `"buffersink@out0"`; required if there is more than one.

        Raises:
            RuntimeError: There is no such output, or a filter failed.
        """
        frames = self._graph.take(key)
        return frames_of(frames) if len(frames) else None

    def dump(self) -> str:
        """Returns FFmpeg's drawing of the graph."""
        return self._graph.drawing()

    def __repr__(self) -> str:
        return self.dump()


def convert_frames(
    frames: Frames | Sequence[AudioFrames] | Sequence[VideoFrames] | Sequence[ImageFrames],
    storage: Buffer | Array | None = None,
) -> Array | numpy.typing.NDArray[Any]:
    """Converts frames to an array, and consumes them.

    | frames | shape |
    |---|---|
    | `rgb24`, `bgr24`, `rgba`, `gray` and others with pixels side by side | `[frames, height, width, channels]` |
    | `yuv444p`, `gbrp` | `[frames, 3, height, width]` |
    | `yuv420p`, `nv12` | `[frames, 1, 1.5 × height, width]` |
    | `yuv422p` | `[frames, 1, 2 × height, width]` |
    | `gray16` | `[frames, 1, height, width]`, `uint16` |
    | planar audio, such as `fltp` | `[channels, samples]` |
    | other audio, such as `s16` | `[samples, channels]` |

    Images lack the dimension of frames. A list of frames adds a first dimension.

    Args:
        frames: Frames, or a list of frames with the same shape.
        storage: Memory to write to, such as that of `cpu_storage`; by default, new memory.

    Raises:
        RuntimeError: The format has no shape, or the frames differ in size or format.
        ValueError: `storage` is too small.
        TypeError: The frames were consumed before.
    """
    parts = [frames] if isinstance(frames, MediaFrames) else list(frames)
    for part in parts:
        if not isinstance(part, MediaFrames):
            raise TypeError(f"frames must be frames, or a list of frames, not {type(part).__name__}")
    if len({id(part) for part in parts}) < len(parts):
        raise TypeError("the list contains the same frames twice; use clone()")
    # Nothing is consumed if a part cannot be used.
    handles = [part._use() for part in parts]
    array = native().MediaFrames.to_array(handles, not isinstance(frames, MediaFrames))
    result = array if storage is None else _stored(array, storage)
    for part in parts:
        part._take("convert_frames")
    return result


def _stored(array: Array | numpy.typing.NDArray[Any], storage: Any) -> numpy.typing.NDArray[Any]:
    source = numpy.asarray(array)
    memory = to_numpy(storage) if isinstance(storage, Array) else numpy.asarray(memoryview(storage))
    if not memory.flags.c_contiguous or not memory.flags.writeable:
        raise ValueError("storage must be contiguous memory that can be written")
    flat = memory.reshape(-1).view(numpy.uint8)
    if flat.nbytes < source.nbytes:
        raise ValueError(f"storage has {flat.nbytes} bytes, and the array needs {source.nbytes}")
    target = flat[: source.nbytes].view(source.dtype).reshape(source.shape)
    target[...] = source
    return target


def convert_array(
    vals: numpy.typing.ArrayLike, storage: Buffer | Array | None = None
) -> Array | numpy.typing.NDArray[Any]:
    """Copies an array, such as labels beside images, to new memory, or to `storage`.

    Args:
        vals: An array, or a sequence of numbers.
        storage: Memory to write to.

    Raises:
        ValueError: `storage` is too small.

    >>> convert_array([3, 5])
    array([3, 5])
    """
    array = numpy.array(vals)
    return array if storage is None else _stored(array, storage)
