"""Arrays of other libraries, in the same memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy
import numpy.typing

if TYPE_CHECKING:
    import jax  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

# What `Array` calls the upper halves of `float32`, which NumPy does not have.
_BFLOAT16 = "bfloat16"


@runtime_checkable
class ArrayInterface(Protocol):
    """What has memory of this machine that NumPy can read, by `__array_interface__`.

    `Array` has it, and so do NumPy's own arrays.

    >>> import numpy
    >>> isinstance(numpy.zeros(3), ArrayInterface), isinstance([1, 2], ArrayInterface)
    (True, False)
    """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Address, shape and type, as NumPy's array interface has them, version 3."""
        ...


@runtime_checkable
class CUDAArrayInterface(Protocol):
    """What has memory of an NVIDIA GPU, by `__cuda_array_interface__`.

    >>> import numpy
    >>> isinstance(numpy.zeros(3), CUDAArrayInterface)
    False
    """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address, shape and type, as Numba's CUDA array interface has them."""
        ...


def to_numpy(buffer: ArrayInterface) -> numpy.typing.NDArray[Any]:
    """The same memory as an array of NumPy, which keeps `buffer` alive.

    It may be written to where `buffer` may. NumPy has no `bfloat16`: elements of that type are bytes
    (`V2`), which `view(ml_dtypes.bfloat16)` makes numbers of, where that package is.

    Raises:
        TypeError: `buffer` has no `__array_interface__`.

    >>> import spdl_rs.io
    >>> array = spdl_rs.io.Array((2, 3), "float32")
    >>> to_numpy(array)[0]
    array([0., 0., 0.], dtype=float32)
    """
    if not isinstance(buffer, ArrayInterface):
        raise TypeError(f"{type(buffer).__name__} has no __array_interface__")
    return numpy.asarray(buffer)


def to_torch(buffer: ArrayInterface | CUDAArrayInterface) -> torch.Tensor:  # pyright: ignore[reportAttributeAccessIssue]
    """The same memory as a tensor of PyTorch, which keeps `buffer` alive.

    It is on the GPU where `buffer` is. PyTorch has no tensors that cannot be written to: of memory
    that must not change, such as a view of `bytes`, it warns, and writing to it is a mistake.

    Raises:
        ValueError: `buffer` is on a GPU and empty.
        TypeError: It has neither of the two interfaces, or elements that PyTorch does not have.
        ImportError: PyTorch is not installed.
    """
    torch = importlib.import_module("torch")
    from ..cuda import DeviceArray

    if isinstance(buffer, DeviceArray):
        return buffer.to_torch()
    if isinstance(buffer, CUDAArrayInterface):
        if 0 in buffer.__cuda_array_interface__["shape"]:
            raise ValueError("an empty array on a GPU cannot be handed to PyTorch")
        return torch.as_tensor(buffer, device="cuda")
    array = to_numpy(buffer)
    if _is_bfloat16(buffer):
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_jax(buffer: ArrayInterface) -> jax.Array:
    """The same memory as an array of JAX on the CPU, which keeps `buffer` alive.

    JAX only takes memory as it is that is aligned to 64 bytes, as that of an `Array` is, and copies
    other. It takes arrays to never change: do not write to `buffer` any more. Without
    `jax_enable_x64` numbers of 64 bits become such of 32, and are copied.

    Raises:
        TypeError: `buffer` has no `__array_interface__`, or elements that JAX does not have.
        ImportError: JAX is not installed.
    """
    jax = importlib.import_module("jax")
    array = to_numpy(buffer)
    if _is_bfloat16(buffer):
        array = array.view(jax.numpy.bfloat16)
    # `jax.numpy.array(array, copy=False)` copies.
    return jax.device_put(array, jax.devices("cpu")[0], may_alias=True)


def to_numba(buffer: ArrayInterface | CUDAArrayInterface) -> Any:
    """The same memory as an array that functions compiled by Numba take.

    On the CPU that is an array of NumPy, as of `to_numpy`; on a GPU a `DeviceNDArray`.

    Raises:
        TypeError: `buffer` has neither of the two interfaces.
        ImportError: `buffer` is on a GPU, and Numba is not installed.

    >>> import spdl_rs.io
    >>> to_numba(spdl_rs.io.Array((2,), "int64"))
    array([0, 0])
    """
    if isinstance(buffer, CUDAArrayInterface):
        return importlib.import_module("numba.cuda").as_cuda_array(buffer)
    return to_numpy(buffer)


def _is_bfloat16(buffer: ArrayInterface) -> bool:
    return getattr(buffer, "dtype", None) == _BFLOAT16
