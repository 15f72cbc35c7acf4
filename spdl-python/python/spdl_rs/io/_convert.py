"""Zero-copy conversion to arrays of other libraries."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy
import numpy.typing

if TYPE_CHECKING:
    import jax  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

# The dtype name of `Array` for bfloat16, which NumPy does not have.
_BFLOAT16 = "bfloat16"


@runtime_checkable
class ArrayInterface(Protocol):
    """An object with host memory that NumPy can read through `__array_interface__`.

    `Array` and NumPy arrays implement this protocol.

    >>> import numpy
    >>> isinstance(numpy.zeros(3), ArrayInterface), isinstance([1, 2], ArrayInterface)
    (True, False)
    """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Address, shape and type, as in version 3 of NumPy's array interface."""
        ...


@runtime_checkable
class CUDAArrayInterface(Protocol):
    """An object with memory of an NVIDIA GPU, described by `__cuda_array_interface__`.

    >>> import numpy
    >>> isinstance(numpy.zeros(3), CUDAArrayInterface)
    False
    """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address, shape and type, as in Numba's CUDA array interface."""
        ...


def to_numpy(buffer: ArrayInterface) -> numpy.typing.NDArray[Any]:
    """Returns a NumPy array that shares the memory of `buffer` and keeps it alive.

    The array is writable if `buffer` is. NumPy has no `bfloat16`: such elements become bytes (`V2`), which
    `view(ml_dtypes.bfloat16)` converts to numbers if that package is installed.

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
    """Returns a PyTorch tensor that shares the memory of `buffer` and keeps it alive.

    The tensor is on the device of `buffer`. PyTorch has no read-only tensors: for read-only memory, such
    as a view of `bytes`, PyTorch warns, and writing to the tensor is undefined behaviour.

    Raises:
        ValueError: `buffer` is an empty GPU array, but not a `DeviceArray`.
        TypeError: `buffer` has neither interface, or PyTorch does not have its element type.
        ImportError: PyTorch is not installed.
    """
    torch = importlib.import_module("torch")
    from ..cuda import DeviceArray

    if isinstance(buffer, DeviceArray):
        return buffer.to_torch()
    if isinstance(buffer, CUDAArrayInterface):
        if 0 in buffer.__cuda_array_interface__["shape"]:
            raise ValueError("PyTorch cannot import an empty array through __cuda_array_interface__")
        return torch.as_tensor(buffer, device="cuda")
    array = to_numpy(buffer)
    if _is_bfloat16(buffer):
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_jax(buffer: ArrayInterface) -> jax.Array:
    """Returns a JAX array on the CPU, which shares the memory of `buffer` if JAX supports this.

    JAX shares and keeps alive memory that is aligned to 64 bytes, such as that of `Array`, and copies other
    memory. JAX assumes that arrays never change: do not write to `buffer` afterwards. Without
    `jax_enable_x64`, 64-bit numbers are copied and converted to 32-bit numbers.

    Raises:
        TypeError: `buffer` has no `__array_interface__`, or JAX does not have its element type.
        ImportError: JAX is not installed.
    """
    jax = importlib.import_module("jax")
    array = to_numpy(buffer)
    if _is_bfloat16(buffer):
        array = array.view(jax.numpy.bfloat16)
    # Even `jax.numpy.array(array, copy=False)` would copy.
    return jax.device_put(array, jax.devices("cpu")[0], may_alias=True)


def to_numba(buffer: ArrayInterface | CUDAArrayInterface) -> Any:
    """Returns an array for functions compiled by Numba, which shares the memory of `buffer`.

    The result is a NumPy array if `buffer` is on the CPU, and a `DeviceNDArray` if it is on a GPU.

    Raises:
        TypeError: `buffer` has neither interface.
        ImportError: `buffer` is on a GPU and Numba is not installed.

    >>> import spdl_rs.io
    >>> to_numba(spdl_rs.io.Array((2,), "int64"))
    array([0, 0])
    """
    if isinstance(buffer, CUDAArrayInterface):
        return importlib.import_module("numba.cuda").as_cuda_array(buffer)
    return to_numpy(buffer)


def _is_bfloat16(buffer: ArrayInterface) -> bool:
    return getattr(buffer, "dtype", None) == _BFLOAT16
