"""Names of SPDL that this package lacks, with alternatives for error messages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from opcode import opmap
from types import FrameType
from typing import NoReturn

_IMAGES = (
    "use spdl_rs.io.DecodeImage(size)(data) for one image, and "
    ".pipe(Fetch()).pipe(DecodeImage(size)).aggregate(BatchImages(n)) for batches"
)
_WRITING = "audio, video and images cannot be encoded yet; use Pillow to write images"
_VIDEO = "frames of videos are decoded by Loader(videos, batch_size=n, video=fields.Video(size, frames=16))"
_AUDIO = "audio is decoded by Loader(files, batch_size=n, audio=fields.Audio()); load_wav reads WAV files"
_MEDIA = f"{_VIDEO}, and {_AUDIO}"
_DEVICE = "transfer_tensor and transfer_buffer return spdl_rs.cuda.DeviceArray instead"
_PINNED = "cpu_storage returns pinned memory as a NumPy array"
_VIDEO_ON_GPU = "nvdec_decoder(...).streaming_decode_packets decodes H.264 and HEVC with start codes, and IVF files"
_FFMPEG = "the settings and filters of FFmpeg have no counterpart"


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
        "NumPy arrays replace the buffers of SPDL; to_numpy, to_torch and to_jax convert them",
        "CPUBuffer convert_array",
    ),
    **_each(_PINNED, "CPUStorage"),
    **_each(_DEVICE, "CUDABuffer"),
    **_each(_VIDEO_ON_GPU, "streaming_load_video_nvdec"),
}
"""Names of `spdl.io` that `spdl_rs.io` lacks, with the advice of the error message."""

UTILITIES: Mapping[str, str] = _each(
    _FFMPEG,
    "built_with_cuda built_with_nvcodec built_with_nvjpeg get_ffmpeg_filters get_ffmpeg_log_level "
    "set_ffmpeg_log_level",
)
"""Names of `spdl.io.utils` that `spdl_rs.io.utils` lacks."""


def refuse(module: str, name: str, absent: Mapping[str, str]) -> NoReturn:
    """Raises the exception for a missing attribute. Only for `__getattr__` of a module.

    If SPDL has the name, the message gives an alternative.

    Raises:
        ImportError: The caller is `from … import …`, which would hide the message of an AttributeError.
        AttributeError: Otherwise.
    """
    if name not in absent:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    advice = f"; SPDL has this name: {absent[name]}"
    error: Exception
    if _is_imported(sys._getframe(2)):
        error = ImportError(f"cannot import name {name!r} from {module!r}{advice}", name=module)
    else:
        error = AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name)
    # The program is at fault, not an item of a pipeline.
    vars(error)["_ends_pipeline"] = True
    raise error


def _is_imported(caller: FrameType) -> bool:
    return caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
