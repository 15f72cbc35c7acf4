"""Arrays in the memory of a CUDA device."""

from __future__ import annotations

import importlib
import math
import operator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy
import numpy.typing

from .. import _spdl_rs

if TYPE_CHECKING:
    import jax  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

_CPU = 1
_CUDA = 2
# Type codes of DLPack, by `kind` of a NumPy dtype.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT16 = "bfloat16"
_BFLOAT_CODE = 4
# CUDA's handle of the legacy default stream (`cudaStreamLegacy`).
_LEGACY_DEFAULT = 1
_NO_STREAM = -1


class DeviceArray(_spdl_rs.PlacedArray):
    """A C-contiguous array in the memory of a CUDA device. The upload may still be in progress.

    PyTorch, JAX, CuPy and other libraries import the array without a copy, by DLPack or the CUDA array
    interface: `torch.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)`, `cupy.asarray(array)`. The
    stream of the library waits for the upload; the host does not. Imported arrays keep the memory alive.
    After the last reference is dropped, the memory is recycled once the streams that use it have finished
    the work that was queued before.

    Instances are created by `ImageLoader(..., device="cuda")` and by functions of `spdl_rs.io`, such as
    `transfer_tensor` and `decode_image_nvjpeg`. The class has no public constructor.
    """

    __slots__ = ("__weakref__",)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def dtype(self) -> str:
        """The data type: NumPy's name, or `bfloat16`."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * _bits(self._dtype) // 8

    @property
    def device(self) -> str:
        """The device, for example `cuda:0`."""
        return f"cuda:{self._memory.ordinal}"

    @property
    def device_index(self) -> int:
        """The number of the device."""
        return self._memory.ordinal

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a 0-dimensional array has no length")
        return self._shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self._dtype} {list(self._shape)} on {self.device})"

    def __array__(self, *_: object, **__: object) -> NoReturn:
        # Otherwise NumPy would create an object array.
        raise TypeError("a DeviceArray is not in host memory: copy it with to_host()")

    def is_ready(self) -> bool:
        """Returns whether the upload is complete, without waiting.

        Raises:
            CudaError: The transfer failed.
        """
        return self._memory.is_ready()

    def wait(self) -> None:
        """Blocks until the upload is complete. Rarely needed.

        Raises:
            CudaError: The transfer failed.
        """
        self._memory.wait()

    def record_stream(self, stream: int | Any) -> None:
        """Marks the memory as used by a stream, in addition to streams that imported the array.

        The memory is recycled after the array and all arrays imported from it are dropped, and the work
        queued on the stream is done. The stream must exist until then.

        Args:
            stream: A number as in `__dlpack__`, or a stream of PyTorch or CuPy.

        Raises:
            TypeError: `stream` is not a stream.
            ValueError: `stream` is a number that is not a valid stream.
        """
        self._memory.record_stream(stream_number(stream))

    def to_host(
        self, *, stream: int | Any | None = None, producer_event: int | Any | None = None
    ) -> numpy.typing.NDArray[Any]:
        """Copies the array to host memory, after all work queued on `stream` so far.

        Waits without the GIL and handles Ctrl-C. NumPy has no `bfloat16`: such elements become bytes
        (`V2`).

        Args:
            stream: See `record_stream`. `None`: the legacy default stream, or no stream if
                `producer_event` is given.
            producer_event: An event of PyTorch or CuPy, or its handle: the copy starts after the event
                completes.

        Raises:
            InvalidArgumentError: `stream` is captured into a CUDA graph.
            CudaError: The transfer failed.
            TypeError, ValueError: `stream` is not a stream, or `producer_event` is not an event.
        """
        event = event_number(producer_event)
        if stream is None and producer_event is not None:
            stream = _NO_STREAM
        copied = self._memory.download(self._offset, self.nbytes, stream_number(stream), event)
        dtype = "V2" if self._dtype == _BFLOAT16 else self._dtype
        return numpy.asarray(copied).view(dtype).reshape(self._shape)

    def to_torch(self) -> torch.Tensor:  # pyright: ignore[reportAttributeAccessIssue]
        """Returns a PyTorch tensor that shares the memory, for PyTorch's current stream.

        Raises:
            ImportError: PyTorch is not installed.
        """
        return importlib.import_module("torch").from_dlpack(self)

    def to_jax(self) -> jax.Array:
        """Returns a JAX array that shares the memory.

        Raises:
            ImportError: JAX is not installed.
        """
        return importlib.import_module("jax.dlpack").from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's device type (CUDA) and the number of the device."""
        return _CUDA, self._memory.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Returns a DLPack capsule. `from_dlpack` of other libraries calls this method.

        With `stream=-1` no stream waits for the upload, and only the legacy default stream is known to
        use the memory. A consumer on another stream must call `record_stream` for it, so that the memory
        is not recycled too early. The consumer must not read the array
        before `is_ready` or `wait` reports completion.

        Args:
            stream: The stream that waits for the upload, numbered as in the array API standard: `None`
                and 1 are the legacy default stream, 2 is the per-thread default stream, larger numbers
                are stream handles. -1 means no synchronization. 0 is ambiguous and rejected.
            max_version: The latest DLPack version that the consumer supports. `None` or below 1.0: an
                unversioned capsule.
            dl_device: The device that the consumer requests: the device of the array, or `(1, 0)`, which
                copies to the host.
            copy: `False`: never copy. `True` is rejected, because arrays are not copied on the device.

        Raises:
            BufferError: The request cannot be met.
            ValueError: `stream` is not a valid stream.
            InvalidArgumentError: `stream` is captured into a CUDA graph.
            CudaError: A call of the driver failed.
        """
        number = stream_number(stream)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if tuple(dl_device) != (_CPU, 0):
                raise BufferError(f"cannot export {self!r} to device {tuple(dl_device)}")
            if copy is False:
                raise BufferError(f"cannot export {self!r} to the host without a copy")
            return _host_capsule(self.to_host(stream=number), max_version)
        if copy:
            raise BufferError(
                "a DeviceArray cannot be copied on its device; copy the imported array instead"
            )
        self._memory.wait_on(number)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        return self._memory.dlpack(self._offset, self._shape, _element(self._dtype), versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, with the legacy default stream.

        The legacy default stream waits for the upload. The memory is recycled only after the work on that
        stream is done. A consumer that uses another stream must make that stream wait for the legacy
        default stream, and pass it to `record_stream`.
        """
        if self._dtype == _BFLOAT16:
            raise AttributeError("the CUDA array interface has no bfloat16; use DLPack instead")
        self._memory.wait_on(_LEGACY_DEFAULT)
        address = self._memory.address + self._offset if self.size else 0
        return {
            "version": 3,
            "shape": self._shape,
            "typestr": numpy.dtype(self._dtype).str,
            "data": (address, False),
            "strides": None,
            "stream": _LEGACY_DEFAULT,
        }


def stream_number(stream: int | Any | None) -> int | None:
    """Returns the number of a stream, as in the array API standard."""
    if stream is None:
        return None
    # Attributes of `torch.cuda.Stream` and of CuPy streams. In both, 0 is the legacy default stream.
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number or _LEGACY_DEFAULT
    if isinstance(stream, bool):
        raise TypeError(f"stream must be an integer handle or a stream object, not {stream!r}")
    try:
        number = operator.index(stream)
    except TypeError:
        raise TypeError(f"stream must be an integer handle or a stream object, not {stream!r}") from None
    if not -1 <= number < 2**63 or number == 0:
        raise ValueError(
            f"invalid stream {number}: expected 1 (legacy default stream), 2 (per-thread default stream), "
            "-1 (no synchronization), or a stream handle"
        )
    return number


def event_number(event: int | Any | None) -> int | None:
    """Returns the handle of an event; `None` for events that were never recorded."""
    if event is None:
        return None
    # Attributes of `torch.cuda.Event` and of CuPy events.
    for name in ("cuda_event", "ptr"):
        number = getattr(event, name, None)
        if isinstance(number, int):
            return number or None
    if isinstance(event, bool):
        raise TypeError(f"producer_event must be an integer handle or an event object, not {event!r}")
    try:
        number = operator.index(event)
    except TypeError:
        raise TypeError(f"producer_event must be an integer handle or an event object, not {event!r}") from None
    if not 0 < number < 2**63:
        raise ValueError(f"{number} is not a CUDA event")
    return number


def _element(dtype: str) -> tuple[int, int]:
    """Returns the DLPack type code and the number of bits of an element."""
    if dtype == _BFLOAT16:
        return _BFLOAT_CODE, 16
    return _CODES[numpy.dtype(dtype).kind], _bits(dtype)


def _bits(dtype: str) -> int:
    return 16 if dtype == _BFLOAT16 else 8 * numpy.dtype(dtype).itemsize


def _host_capsule(array: numpy.typing.NDArray[Any], max_version: tuple[int, int] | None) -> object:
    if max_version is None:
        return array.__dlpack__()
    try:
        return array.__dlpack__(max_version=max_version)
    except TypeError:
        # NumPy before 2.1 exports only unversioned capsules.
        return array.__dlpack__()
