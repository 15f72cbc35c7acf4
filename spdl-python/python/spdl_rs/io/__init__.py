"""Reading and decoding: archives, NumPy files, WAV, images; and conversion to other libraries.

| task | use |
|---|---|
| read files and object stores, decode, augment, batch | `Fetch`, `DecodeImage`, `AugmentImage`, `BatchImages` |
| choose a crop, or augmentations | `CenterCrop`, `Letterbox`, …; `RandAugment`, `ColorJitter`, … |
| read tar, zip, npy, npz or WAV from memory | `iter_tarfile`, `iter_zipfile`, `load_npy`, `load_npz`, `load_wav` |
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

`Fetch`, `DecodeImage` and `AugmentImage` can be called with one item, and `BatchImages` with a list of items.
As stages of a pipeline, the operators run in Rust, without the GIL. `BatchImages` does so only after
`DecodeImage`.

Access to a name that SPDL has and this package lacks, such as `load_video`, raises an exception that names
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
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
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
    RandomResizedCrop,
    RandomScaledCrop,
    Resize,
    ResizedCenterCrop,
    Stretch,
    TenCrop,
)
from ._device_images import decode_image_nvjpeg, load_image_batch_nvjpeg
from ._device_video import (
    NvDecDecoder,
    decode_packets_nvdec,
    nv12_to_bgr,
    nv12_to_rgb,
    nvdec_decoder,
)
from ._npy import NpzFile, UnsupportedTypeError, load_npy, load_npz
from ._operators import AugmentImage, BatchImages, DecodeImage, Fetch
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
    "AugMix",
    "AugmentImage",
    "Augmentation",
    "AutoAugment",
    "BatchImages",
    "CUDAArrayInterface",
    "CUDAConfig",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "DecodeImage",
    "Fetch",
    "FiveCrop",
    "GaussianBlur",
    "Letterbox",
    "NpzFile",
    "NvDecDecoder",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomScaledCrop",
    "RandomSolarize",
    "Resize",
    "ResizedCenterCrop",
    "Stretch",
    "TenCrop",
    "TimmAugMix",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "UnsupportedTypeError",
    "WAVHeader",
    "cpu_storage",
    "cuda_config",
    "decode_image_nvjpeg",
    "decode_packets_nvdec",
    "iter_tarfile",
    "iter_zipfile",
    "load_image_batch_nvjpeg",
    "load_npy",
    "load_npz",
    "load_wav",
    "nv12_to_bgr",
    "nv12_to_rgb",
    "nvdec_decoder",
    "parse_wav",
    "to_jax",
    "to_numba",
    "to_numpy",
    "to_torch",
    "transfer_buffer",
    "transfer_buffer_cpu",
    "transfer_tensor",
    "transfer_tensor_d2h",
    "transfer_tensor_h2d",
]

if TYPE_CHECKING:
    from . import utils as utils
else:

    def __getattr__(name):
        if name == "utils":
            return importlib.import_module(f".{name}", __name__)
        _missing_names.refuse(__name__, name, _missing_names.NAMES)
