"""Reading and decoding: archives, NumPy files, WAV, images; and conversion to other libraries.

| task | use |
|---|---|
| read files and object stores, decode, augment, batch | `Fetch`, `DecodeImage`, `AugmentImage`, `BatchImages` |
| decode clips of videos, waveforms, spectrograms in a pipeline | `Decode` with a field of `spdl_rs.fields` |
| choose a crop, or augmentations | `CenterCrop`, `Letterbox`, …; `RandAugment`, `ColorJitter`, … |
| read tar, zip, npy, npz or WAV from memory | `iter_tarfile`, `iter_zipfile`, `load_npy`, `load_npz`, `load_wav` |
| decode whole files of audio, video, images, by FFmpeg | `load_audio`, `load_video`, `load_image`, `load_image_batch` |
| read the header of audio or video | `probe` |
| demux, decode, filter, convert step by step | `Demuxer`, `decode_packets`, `Decoder`, `FilterGraph`, `convert_frames` |
| encode, write files | `save_image`, `Muxer`, `create_reference_video_frame` |
| share memory with NumPy, PyTorch, JAX, Numba | `to_numpy`, `to_torch`, `to_jax`, `to_numba` |
| upload to a CUDA device, download | `transfer_tensor`, `transfer_tensor_d2h` |
| decode JPEG or video on a CUDA device | `decode_image_nvjpeg`, `decode_packets_nvdec`, `nvdec_decoder` |


>>> import io, numpy, spdl_rs.io
>>> file = io.BytesIO()
>>> numpy.savez(file, images=numpy.zeros((2, 3), "u1"), labels=numpy.arange(2))
>>> arrays = spdl_rs.io.load_npz(file.getvalue())
>>> arrays.files
['images', 'labels']
>>> arrays["labels"]
array([0, 1])

Functions that read uncompressed data in memory return views that keep this memory alive. (24-bit WAV
samples are copied.) A view is writable if the memory is writable. Corrupt and truncated data raise
`DataError`, a subclass of `ValueError`.

`Fetch`, `Decode`, `DecodeImage` and `AugmentImage` can be called with one item, and `BatchImages` with a list of items.
As stages of a pipeline, the operators run in Rust, without the GIL. `BatchImages` does so only after
`DecodeImage`.

Functions that need FFmpeg raise `UnsupportedError` if `spdl_rs` was built without it. Their errors are also
`RuntimeError`s.

Access to a name that SPDL has and this package lacks, such as `encode_image`, raises an exception that names
the alternative.
"""

import importlib
from typing import TYPE_CHECKING

from .._spdl_rs import Array, WAVHeader
from . import _missing_names
from ._augmentations import (
    Augmentation,
    AugMix,
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
    TimmAugMix,
    TimmRandAugment,
    TrivialAugmentWide,
)
from ._convert import (
    ArrayInterface,
    CUDAArrayInterface,
    to_jax,
    to_numba,
    to_numpy,
    to_torch,
)
from ._crops import (
    AspectBuckets,
    CenterCrop,
    Crop,
    FiveCrop,
    Letterbox,
    RandomCrop,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomScaledCrop,
    RandomZoomOut,
    Resize,
    ResizedCenterCrop,
    Stretch,
    TenCrop,
)
from ._decoding import (
    AudioDecoder,
    DecodeConfig,
    Decoder,
    FilterGraph,
    VideoDecoder,
    convert_array,
    convert_frames,
    decode_config,
    decode_packets,
    sample_decode_video,
)
from ._demuxing import (
    BSF,
    DemuxConfig,
    Demuxer,
    MediaInfo,
    apply_bsf,
    demux_audio,
    demux_config,
    demux_image,
    demux_video,
    probe,
)
from ._device_images import decode_image_nvjpeg, load_image_batch_nvjpeg
from ._device_video import (
    NvDecDecoder,
    decode_packets_nvdec,
    nv12_to_bgr,
    nv12_to_rgb,
    nvdec_decoder,
    streaming_load_video_nvdec,
)
from ._encoding import (
    AudioEncodeConfig,
    AudioEncoder,
    Muxer,
    VideoEncodeConfig,
    VideoEncoder,
    audio_encode_config,
    create_reference_audio_frame,
    create_reference_video_frame,
    save_image,
    video_encode_config,
)
from ._filter_descriptions import (
    get_abuffer_desc,
    get_audio_filter_desc,
    get_buffer_desc,
    get_filter_desc,
    get_video_filter_desc,
)
from ._media_loading import (
    load_audio,
    load_image,
    load_image_batch,
    load_video,
)
from ._media_values import (
    AudioCodec,
    AudioFrames,
    AudioPackets,
    ImageCodec,
    ImageFrames,
    ImagePackets,
    VideoCodec,
    VideoFrames,
    VideoPackets,
)
from ._npy import NpzFile, UnsupportedTypeError, load_npy, load_npz
from ._operators import AugmentImage, BatchImages, Decode, DecodeImage, Fetch
from ._tar import iter_tarfile
from ._transfer import (
    CUDAConfig,
    cpu_storage,
    cuda_config,
    transfer_buffer,
    transfer_buffer_cpu,
    transfer_tensor,
    transfer_tensor_d2h,
    transfer_tensor_h2d,
)
from ._wav import load_wav, parse_wav
from ._zip import iter_zipfile

__all__ = [
    "Array",
    "ArrayInterface",
    "AspectBuckets",
    "AudioCodec",
    "AudioDecoder",
    "AudioEncodeConfig",
    "AudioEncoder",
    "AudioFrames",
    "AudioPackets",
    "AugMix",
    "AugmentImage",
    "Augmentation",
    "AutoAugment",
    "BSF",
    "BatchImages",
    "CPUBuffer",
    "CUDAArrayInterface",
    "CUDAConfig",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "DecodeConfig",
    "Decode",
    "DecodeImage",
    "Decoder",
    "DemuxConfig",
    "Demuxer",
    "Fetch",
    "FilterGraph",
    "FiveCrop",
    "GaussianBlur",
    "ImageCodec",
    "ImageFrames",
    "ImagePackets",
    "Letterbox",
    "MediaInfo",
    "Muxer",
    "NpzFile",
    "NvDecDecoder",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomScaledCrop",
    "RandomSolarize",
    "RandomZoomOut",
    "Resize",
    "ResizedCenterCrop",
    "Stretch",
    "TenCrop",
    "TimmAugMix",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "UnsupportedTypeError",
    "VideoCodec",
    "VideoDecoder",
    "VideoEncodeConfig",
    "VideoEncoder",
    "VideoFrames",
    "VideoPackets",
    "WAVHeader",
    "apply_bsf",
    "audio_encode_config",
    "convert_array",
    "convert_frames",
    "cpu_storage",
    "create_reference_audio_frame",
    "create_reference_video_frame",
    "cuda_config",
    "decode_config",
    "decode_image_nvjpeg",
    "decode_packets",
    "decode_packets_nvdec",
    "demux_audio",
    "demux_config",
    "demux_image",
    "demux_video",
    "get_abuffer_desc",
    "get_audio_filter_desc",
    "get_buffer_desc",
    "get_filter_desc",
    "get_video_filter_desc",
    "iter_tarfile",
    "iter_zipfile",
    "load_audio",
    "load_image",
    "load_image_batch",
    "load_image_batch_nvjpeg",
    "load_npy",
    "load_npz",
    "load_video",
    "load_wav",
    "nv12_to_bgr",
    "nv12_to_rgb",
    "nvdec_decoder",
    "parse_wav",
    "probe",
    "sample_decode_video",
    "save_image",
    "streaming_load_video_nvdec",
    "to_jax",
    "to_numba",
    "to_numpy",
    "to_torch",
    "transfer_buffer",
    "transfer_buffer_cpu",
    "transfer_tensor",
    "transfer_tensor_d2h",
    "transfer_tensor_h2d",
    "video_encode_config",
]

CPUBuffer = Array
"""The name that SPDL gives to arrays of `convert_frames`."""

if TYPE_CHECKING:
    from . import utils as utils
else:

    def __getattr__(name):
        if name == "utils":
            return importlib.import_module(f".{name}", __name__)
        _missing_names.refuse(__name__, name, _missing_names.NAMES)
