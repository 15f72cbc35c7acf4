"""Names of SPDL that are not here, and what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from opcode import opmap
from types import FrameType
from typing import NoReturn

_IMAGES = (
    "spdl_rs.io.DecodeImage(size)(data) gives the pixels of an image, and "
    ".pipe(Fetch()).pipe(DecodeImage(size)).aggregate(BatchImages(n)) batches of them"
)
_WRITING = "audio, video and images cannot be encoded yet; Pillow writes images of arrays"
_VIDEO = "video cannot be decoded yet"
_AUDIO = "audio can be read from WAV files only yet: load_wav"
_MEDIA = f"{_VIDEO}, and {_AUDIO}"
_DEVICE = "transfer_tensor and transfer_buffer give arrays of spdl_rs.cuda.DeviceArray"
_PINNED = "cpu_storage gives pinned memory, as an array of NumPy"
_VIDEO_ON_GPU = "nvdec_decoder(...).streaming_decode_packets decodes H.264 and HEVC with start codes, and IVF files"
_FFMPEG = "this package has no FFmpeg in it: its settings and filters have no counterpart"


def _each(advice: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


NAMES: Mapping[str, str] = {
    **_each(_IMAGES, "load_image load_image_batch demux_image ImageCodec ImagePackets ImageFrames"),
    **_each(
        _VIDEO,
        "load_video demux_video sample_decode_video VideoCodec VideoDecoder VideoFrames VideoPackets",
    ),
    **_each(_AUDIO, "load_audio demux_audio AudioCodec AudioDecoder AudioFrames AudioPackets"),
    **_each(
        _MEDIA,
        "BSF DecodeConfig Decoder DemuxConfig Demuxer apply_bsf convert_frames decode_config "
        "decode_packets demux_config create_reference_audio_frame create_reference_video_frame",
    ),
    **_each(
        _WRITING,
        "AudioEncodeConfig AudioEncoder Muxer VideoEncodeConfig VideoEncoder audio_encode_config "
        "encode_image save_image video_encode_config",
    ),
    **_each(
        f"{_FFMPEG}; crops, resizing and augmentations are arguments of DecodeImage",
        "FilterGraph get_abuffer_desc get_audio_filter_desc get_buffer_desc get_filter_desc "
        "get_video_filter_desc",
    ),
    **_each(
        "arrays of NumPy go where SPDL has buffers; to_numpy, to_torch and to_jax take them",
        "CPUBuffer convert_array",
    ),
    **_each(_PINNED, "CPUStorage"),
    **_each(_DEVICE, "CUDABuffer"),
    **_each(_VIDEO_ON_GPU, "streaming_load_video_nvdec"),
}
"""What `spdl.io` has, and `spdl_rs.io` has not: a name, and what is said to whoever asks for it."""

UTILITIES: Mapping[str, str] = _each(
    _FFMPEG,
    "built_with_cuda built_with_nvcodec built_with_nvjpeg get_ffmpeg_filters get_ffmpeg_log_level "
    "get_ffmpeg_versions set_ffmpeg_log_level",
)
"""The same of `spdl.io.utils`."""


def refuse(module: str, name: str, absent: Mapping[str, str]) -> NoReturn:
    """Says that a module has no such attribute, and what to do where SPDL has it. To be called by the
    module's `__getattr__` alone.

    Raises:
        ImportError: It is asked for by `from … import …`, which would tell no other reason.
        AttributeError: Else.
    """
    if name not in absent:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    advice = f"which SPDL has: {absent[name]}"
    if _is_imported(sys._getframe(2)):
        raise ImportError(f"cannot import name {name!r} from {module!r}, {advice}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}, {advice}", name=name)


def _is_imported(asker: FrameType) -> bool:
    return asker.f_code.co_code[asker.f_lasti] == opmap["IMPORT_FROM"]
