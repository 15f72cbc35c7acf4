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

`Fetch`, `DecodeImage` and `BatchImages` are steps from paths to batches of images: functions of one
item, and stages that a pipeline runs in Rust, without the GIL.
"""

from .._spdl_rs import Array, WAVHeader
from ._convert import (
    ArrayInterface,
    CUDAArrayInterface,
    to_jax,
    to_numba,
    to_numpy,
    to_torch,
)
from ._npy import NpzFile, UnsupportedTypeError, load_npy, load_npz
from ._operators import BatchImages, DecodeImage, Fetch
from ._tar import iter_tarfile
from ._wav import load_wav, parse_wav

__all__ = [
    "Array",
    "ArrayInterface",
    "BatchImages",
    "CUDAArrayInterface",
    "DecodeImage",
    "Fetch",
    "NpzFile",
    "UnsupportedTypeError",
    "WAVHeader",
    "iter_tarfile",
    "load_npy",
    "load_npz",
    "load_wav",
    "parse_wav",
    "to_jax",
    "to_numba",
    "to_numpy",
    "to_torch",
]
