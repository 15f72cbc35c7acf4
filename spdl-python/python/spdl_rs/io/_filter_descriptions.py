"""Descriptions of FFmpeg's filters."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from ._media_values import AudioCodec, AudioPackets, ImageCodec, ImagePackets, VideoCodec, VideoPackets

DEFAULT = "__default__"
"""The default of arguments `filter_desc`: conversion to `fltp`, or `rgb24`; of audio, only its window."""


def get_audio_filter_desc(
    *,
    sample_rate: int | None = None,
    num_channels: int | None = None,
    sample_fmt: str | None = "fltp",
    timestamp: tuple[float, float] | None = None,
    num_frames: int | None = None,
    filter_desc: str | None = None,
) -> str | None:
    """Describes filters of audio, for the argument `filter_desc` of `load_audio` and `decode_packets`.

    Args:
        sample_rate: Resamples to this number of samples per second.
        num_channels: Mixes to this number of channels.
        sample_fmt: Converts to this format, such as `"s16"` or `"fltp"` (planar).
        timestamp: Keeps the samples from a start to an end in seconds.
        num_frames: Cuts, or pads with silence, to this number of samples.
        filter_desc: Further filters, before the conversion of the format.

    Returns:
        The description; `None` if nothing is to be done.

    >>> get_audio_filter_desc(sample_rate=16_000, num_channels=1)
    'aformat=channel_layouts=1c,aresample=16000,aformat=sample_fmts=fltp'
    """
    filters = []
    if num_channels is not None:
        filters.append(f"aformat=channel_layouts={num_channels}c")
    if sample_rate is not None:
        filters.append(f"aresample={sample_rate}")
    filters += _window("atrim", timestamp)
    if num_frames is not None:
        filters += ["apad", f"atrim=end_sample={num_frames}"]
    if filter_desc is not None:
        filters.append(filter_desc)
    if sample_fmt is not None:
        filters.append(f"aformat=sample_fmts={sample_fmt}")
    return ",".join(filters) or None


def get_video_filter_desc(
    *,
    frame_rate: tuple[int, int] | None = None,
    timestamp: tuple[float, float] | None = None,
    scale_width: int | None = None,
    scale_height: int | None = None,
    scale_algo: str = "bicubic",
    scale_mode: str | None = "pad",
    crop_width: int | None = None,
    crop_height: int | None = None,
    pix_fmt: str | None = "rgb24",
    num_frames: int | None = None,
    pad_mode: str | None = None,
    filter_desc: str | None = None,
) -> str | None:
    """Describes filters of video or images, for the argument `filter_desc` of `load_video` and `decode_packets`.

    Args:
        frame_rate: Drops and repeats frames for this number of frames per second: numerator and denominator.
        timestamp: Keeps the frames from a start to an end in seconds.
        scale_width: Resizes to this width in pixels; without `scale_height`, the height follows.
        scale_height: Resizes to this height.
        scale_algo: FFmpeg's name of the filter for resizing.
        scale_mode: What happens if the ratio of the sides changes: `"pad"` adds bars, `"crop"` cuts, `None`
            distorts.
        crop_width: Cuts the centre of this width.
        crop_height: Cuts the centre of this height.
        pix_fmt: Converts to this format of pixels; `None` keeps that of the decoder.
        num_frames: Cuts, or pads, to this number of frames.
        pad_mode: The colour of added frames and bars; by default, the last frame, and black.
        filter_desc: Further filters, before the conversion of the format.

    Returns:
        The description; `None` if nothing is to be done.

    Raises:
        ValueError: `scale_mode` has another value.

    >>> get_video_filter_desc(scale_width=224, scale_height=224, scale_mode="crop")
    'scale=w=224:h=224:flags=bicubic:force_original_aspect_ratio=increase,crop=w=224:h=224,format=pix_fmts=rgb24'
    """
    filters = []
    if frame_rate is not None:
        filters.append(f"fps={frame_rate[0]}/{frame_rate[1]}")
    filters += _window("trim", timestamp)
    if scale_width is not None or scale_height is not None:
        filters += _scale(scale_width or 0, scale_height or 0, scale_algo, scale_mode, pad_mode or "black")
    if crop_width is not None or crop_height is not None:
        filters.append(f"crop=w={crop_width or 0}:h={crop_height or 0}")
    if num_frames is not None:
        added = "stop_mode=clone" if pad_mode is None else f"stop_mode=add:color={pad_mode}"
        filters += [f"tpad=stop=-1:{added}", f"trim=end_frame={num_frames}"]
    if filter_desc is not None:
        filters.append(filter_desc)
    if pix_fmt is not None:
        filters.append(f"format=pix_fmts={pix_fmt}")
    return ",".join(filters) or None


def _window(name: str, timestamp: tuple[float, float] | None) -> list[str]:
    if timestamp is None:
        return []
    ends = zip(("start", "end"), timestamp, strict=True)
    # FFmpeg does not read exponents.
    bounds = [f"{end}={Decimal(str(time)):f}" for end, time in ends if not math.isinf(time)]
    return [f"{name}={':'.join(bounds)}"] if bounds else []


def _scale(width: int, height: int, algorithm: str, mode: str | None, color: str) -> list[str]:
    scale = f"scale=w={width}:h={height}:flags={algorithm}"
    if mode is None:
        return [scale]
    if mode == "pad":
        pad = f"pad=w={width}:h={height}:x=-1:y=-1:color={color}"
        return [f"{scale}:force_original_aspect_ratio=decrease", pad]
    if mode == "crop":
        return [f"{scale}:force_original_aspect_ratio=increase", f"crop=w={width}:h={height}"]
    raise ValueError(f'scale_mode must be "pad", "crop" or None, not {mode!r}')


def get_filter_desc(packets: AudioPackets | VideoPackets | ImagePackets, **filter_args: Any) -> str | None:
    """Describes filters for packets: `get_audio_filter_desc` with the window of the packets, or
    `get_video_filter_desc`.

    Args:
        packets: The packets that are decoded with the filters.
        filter_args: The arguments of that function, without `timestamp`.

    Raises:
        TypeError: `packets` are no packets.
    """
    if isinstance(packets, AudioPackets):
        return get_audio_filter_desc(timestamp=packets.timestamp, **filter_args)
    if isinstance(packets, (VideoPackets, ImagePackets)):
        return get_video_filter_desc(timestamp=None, **filter_args)
    raise TypeError(f"packets must be packets, not {type(packets).__name__}")


def get_abuffer_desc(codec: AudioCodec, *, label: str | None = None, sample_fmt: str | None = None) -> str:
    """Describes the input of a `FilterGraph` for the audio of a codec.

    Args:
        codec: The codec whose decoded frames are filtered.
        label: Names the input `abuffer@label`, for graphs with more than one.
        sample_fmt: The format of the frames; by default, that of the codec.
    """
    numerator, denominator = codec.time_base
    return (
        f"{_named('abuffer', label)}=time_base={numerator}/{denominator}:sample_rate={codec.sample_rate}:"
        f"sample_fmt={sample_fmt or codec.sample_fmt}:channel_layout={codec.channel_layout}"
    )


def get_buffer_desc(
    codec: VideoCodec | ImageCodec, label: str | None = None, pix_fmt: str | None = None
) -> str:
    """Describes the input of a `FilterGraph` for the pictures of a codec.

    Args:
        codec: The codec whose decoded frames are filtered.
        label: Names the input `buffer@label`, for graphs with more than one.
        pix_fmt: The format of the frames; by default, that of the codec.
    """
    (numerator, denominator), (width, height) = codec.time_base, codec.sample_aspect_ratio
    return (
        f"{_named('buffer', label)}=video_size={codec.width}x{codec.height}:pix_fmt={pix_fmt or codec.pix_fmt}:"
        f"time_base={numerator}/{denominator}:pixel_aspect={width}/{height}"
    )


def _named(kind: str, label: str | None) -> str:
    return kind if label is None else f"{kind}@{label}"


def resolved(filter_desc: str | None, codec: Any, timestamp: tuple[float, float] | None = None) -> str | None:
    """Returns the description with the default for a codec."""
    if filter_desc != DEFAULT:
        return filter_desc
    if isinstance(codec, AudioCodec):
        return get_audio_filter_desc(timestamp=timestamp)
    return get_video_filter_desc()
