"""Decoding of whole files of audio, video and images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _filter_descriptions as descriptions
from ._buffer import Buffer
from ._decoding import DecodeConfig, convert_frames, decode_packets
from ._demuxing import DemuxConfig, Source, demux_audio, demux_image, demux_video
from ._media_values import ImageFrames, Time
from ._transfer import CUDAConfig, transfer_buffer

if TYPE_CHECKING:
    import numpy.typing

    from .._spdl_rs import Array
    from ..cuda import DeviceArray

    Arrays = Array | numpy.typing.NDArray[Any] | DeviceArray

_LOG = logging.getLogger("spdl_rs.io")


def load_audio(
    src: Source,
    timestamp: tuple[Time, Time] | None = None,
    *,
    demux_config: DemuxConfig | None = None,
    decode_config: DecodeConfig | None = None,
    filter_desc: str | None = descriptions.DEFAULT,
    device_config: CUDAConfig | None = None,
    name: str | None = None,
) -> Arrays:
    """Decodes audio to an array: by default, `float32 [channels, samples]`.

    For training, use `Loader(files, audio=fields.Audio())`: it decodes in parallel into batches, and needs no FFmpeg for
    WAV, FLAC, MP3, Vorbis, Opus and AAC.

    Args:
        src: A path, an address, or the content of a file: see `Demuxer`.
        timestamp: Start and end in seconds; by default, the whole file.
        demux_config: How to open the file, from `demux_config`.
        decode_config: How to decode, from `decode_config`.
        filter_desc: Filters, from `get_audio_filter_desc`. They replace the cut to `timestamp` and the conversion to
            `float32`.
        device_config: Transfers the array to this CUDA device.
        name: The name of the file in error messages.

    Raises:
        RuntimeError: The file cannot be read, has no audio, or cannot be decoded.
    """
    packets = demux_audio(src, timestamp=timestamp, demux_config=demux_config, name=name)
    return _decoded(packets, filter_desc, decode_config, device_config)


def load_video(
    src: Source,
    timestamp: tuple[Time, Time] | None = None,
    *,
    demux_config: DemuxConfig | None = None,
    decode_config: DecodeConfig | None = None,
    filter_desc: str | None = descriptions.DEFAULT,
    device_config: CUDAConfig | None = None,
    name: str | None = None,
) -> Arrays:
    """Decodes a video to an array: by default, `uint8 [frames, height, width, 3]`.

    For training, use `Loader(videos, video=fields.Video(size, frames=16))`: it decodes only the frames of a sample, in
    parallel, into batches.

    Args:
        src: A path, an address, or the content of a file: see `Demuxer`.
        timestamp: Start and end in seconds; by default, the whole file.
        demux_config: How to open the file, from `demux_config`.
        decode_config: How to decode, from `decode_config`.
        filter_desc: Filters, from `get_video_filter_desc`; by default, conversion to `rgb24`.
        device_config: Transfers the array to this CUDA device.
        name: The name of the file in error messages.

    Raises:
        RuntimeError: The file cannot be read, has no video, or cannot be decoded.
    """
    packets = demux_video(src, timestamp=timestamp, demux_config=demux_config, name=name)
    return _decoded(packets, filter_desc, decode_config, device_config)


def load_image(
    src: Source,
    *,
    demux_config: DemuxConfig | None = None,
    decode_config: DecodeConfig | None = None,
    filter_desc: str | None = descriptions.DEFAULT,
    device_config: CUDAConfig | None = None,
    name: str | None = None,
) -> Arrays:
    """Decodes an image to an array: by default, `uint8 [height, width, 3]`.

    For training, use `ImageLoader`: it decodes in parallel, without FFmpeg, into batches.

    Args:
        src: A path, an address, or the content of a file: see `Demuxer`.
        demux_config: How to open the file, from `demux_config`.
        decode_config: How to decode, from `decode_config`.
        filter_desc: Filters, from `get_video_filter_desc`; by default, conversion to `rgb24`.
        device_config: Transfers the array to this CUDA device.
        name: The name of the file in error messages.

    Raises:
        RuntimeError: The file cannot be read, is no image, or cannot be decoded.
    """
    packets = demux_image(src, demux_config=demux_config, name=name)
    return _decoded(packets, filter_desc, decode_config, device_config)


def load_image_batch(
    srcs: Sequence[Source],
    *,
    width: int | None,
    height: int | None,
    pix_fmt: str | None = "rgb24",
    demux_config: DemuxConfig | None = None,
    decode_config: DecodeConfig | None = None,
    filter_desc: str | None = descriptions.DEFAULT,
    device_config: CUDAConfig | None = None,
    storage: Buffer | Array | None = None,
    strict: bool = True,
) -> Arrays:
    """Decodes images one after the other to one array: by default, `uint8 [images, height, width, 3]`.

    For training, use `ImageLoader`: it decodes in parallel, without FFmpeg.

    Args:
        srcs: Paths, addresses, or contents of files.
        width: The width in pixels to which the images are resized, with bars; `None`: not resized.
        height: The height.
        pix_fmt: The format of the pixels; `None`: that of the files.
        demux_config: How to open the files, from `demux_config`.
        decode_config: How to decode, from `decode_config`.
        filter_desc: Filters that replace the resizing and the conversion, from `get_video_filter_desc`.
        device_config: Transfers the array to this CUDA device.
        storage: Memory to write to, such as that of `cpu_storage`.
        strict: Whether an image that cannot be decoded is an error. Otherwise it is logged, and left out.

    Raises:
        ValueError: `srcs` is empty.
        RuntimeError: No image can be decoded, or one cannot, and `strict` is set; or the images differ in size.
    """
    if not srcs:
        raise ValueError("srcs must not be empty")
    if filter_desc == descriptions.DEFAULT:
        filter_desc = descriptions.get_video_filter_desc(
            scale_width=width, scale_height=height, pix_fmt=pix_fmt
        )
    frames: list[ImageFrames] = []
    failure: Exception | None = None
    for number, src in enumerate(srcs):
        try:
            packets = demux_image(src, demux_config=demux_config)
            frames.append(decode_packets(packets, filter_desc, decode_config))
        except (RuntimeError, TypeError) as error:
            _LOG.error("image %d was not decoded: %s", number, error)
            failure = failure or error
    if failure is not None and (strict or not frames):
        failed = len(srcs) - len(frames)
        raise RuntimeError(f"{failed} of {len(srcs)} images were not decoded; the first: {failure}") from failure
    return _placed(convert_frames(frames, storage), device_config)


def _decoded(
    packets: Any,
    filter_desc: str | None,
    decode_config: DecodeConfig | None,
    device_config: CUDAConfig | None,
) -> Arrays:
    return _placed(convert_frames(decode_packets(packets, filter_desc, decode_config)), device_config)


def _placed(array: Any, device_config: CUDAConfig | None) -> Arrays:
    return array if device_config is None else transfer_buffer(array, device_config=device_config)
