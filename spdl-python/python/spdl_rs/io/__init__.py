"""Bytes in memory to arrays: archives, files of NumPy, WAV, images; and arrays to other libraries.

>>> import io, numpy, spdl_rs.io
>>> file = io.BytesIO()
>>> numpy.savez(file, images=numpy.zeros((2, 3), "u1"), labels=numpy.arange(2))
>>> arrays = spdl_rs.io.load_npz(file.getvalue())
>>> arrays.files
['images', 'labels']
>>> arrays["labels"]
array([0, 1])

Nothing is copied where that can be avoided: what these functions give are views of what they were
given, which they keep alive. A view may be written to where its memory may. What is damaged raises a
`DataError`, which is a `ValueError` too; nothing ends early without saying so.

`transfer_tensor` puts the arrays of a batch on a CUDA device, `transfer_tensor_d2h` brings them back.
`decode_image_nvjpeg` and `decode_packets_nvdec` decode JPEGs and videos there.

`Fetch`, `DecodeImage`, `AugmentImage` and `BatchImages` are steps from paths and addresses to batches
of images: functions of one item, and stages that a pipeline runs in Rust, without the GIL. Crops, such
as `Letterbox`, and augmentations, such as `RandAugment`, say what those do.

Of what SPDL has by names of its own, such as `load_video`, the error says what there is instead.
"""

import importlib
from typing import TYPE_CHECKING

from .._spdl_rs import Array, WAVHeader
from . import _absent
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
    CenterCrop,
    Crop,
    Letterbox,
    RandomCrop,
    RandomResizedCrop,
    ResizedCenterCrop,
    Stretch,
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
    "RandomSolarize",
    "ResizedCenterCrop",
    "Stretch",
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
        _absent.refuse(__name__, name, _absent.NAMES)
