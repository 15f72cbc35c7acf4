"""Host-to-device and device-to-host transfers of arrays and batches."""

from __future__ import annotations

import collections
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy
import numpy.typing

from .. import _arguments as check
from .. import _spdl_rs
from .._spdl_rs import Array
from ._convert import ArrayInterface

if TYPE_CHECKING:
    from ..cuda import DeviceArray
    from ..cuda._allocators import Allocator, AllocatorLike

# The alignment of the driver: each array of a batch can be used like a separate allocation.
_ALIGNMENT = 256
_BFLOAT16 = "bfloat16"
# NumPy kinds of numbers that DLPack supports.
_KINDS = "biufc"


@dataclasses.dataclass(frozen=True)
class CUDAConfig:
    """A device, the stream that uses its arrays, and an allocator; created by `cuda_config`."""

    device_index: int
    """The number of the device."""
    stream: int
    """The stream that waits for transfers, numbered as in the array API standard."""
    allocator: Allocator | None = None
    """The two functions of the allocator of device memory; `None`: the driver."""


def cuda_config(
    device_index: int, *, stream: int = 2, allocator: AllocatorLike | None = None
) -> CUDAConfig:
    """Selects a device, the stream that uses its arrays, and an allocator.

    Memory comes from a pool, so arrays need no separate allocations. Memory is recycled after its consumers
    have finished. The pool returns memory to `allocator` if it exceeds the peak use, if the device is full,
    and on `spdl_rs.cuda.release`. Each allocator has a separate pool.

    Args:
        device_index: The number of the device, from 0.
        stream: The stream that waits for transfers: 1 is the legacy default stream, 2 the per-thread default
            stream of the calling thread, larger numbers are stream handles. A stream must exist as long as
            the arrays.
        allocator: The allocator of device memory. `None`: the driver. `"torch"`: PyTorch's caching
            allocator. Or two functions, `(allocate, free)`:

            - `allocate(size, device, stream)` returns the address of at least `size` bytes on the device
              with that number, a multiple of 256. `stream` is the handle of the stream that uses the memory
              first. If no memory is left, the function raises `MemoryError` or an exception class named
              `OutOfMemoryError`; the pool then frees unused memory and calls `allocate` once more.
            - `free(address)` frees the memory. The device has completed all work on the memory by then.

            Any thread may call the two functions. Memory in use during interpreter finalization is not freed.

    Raises:
        ImportError: `allocator` is `"torch"`, and PyTorch is not installed.
        TypeError: `allocator` is not an allocator.
        ValueError: A number is out of range. Stream 0 is ambiguous and rejected.

    >>> cuda_config(1).device_index
    1
    """
    index = check.whole("device_index", device_index, 0, 2**20)
    number = check.whole("stream", stream, 1, 2**63 - 1)
    if allocator is None:
        return CUDAConfig(index, number)
    # This module is imported lazily, because users without CUDA do not need it.
    from ..cuda._allocators import functions_of

    return CUDAConfig(index, number, functions_of(allocator))


def cpu_storage(size: int, *, pin_memory: bool = True, device_index: int = 0) -> Array:
    """Allocates host memory, `uint8 [size]`, which `numpy.asarray` reads and writes in place.

    Args:
        size: The size in bytes.
        pin_memory: Whether to allocate pinned memory, which a device reads directly. Pinned memory is
            recycled.
        device_index: The number of the device that reads the memory.

    Raises:
        CudaUnavailable: `pin_memory` is set, and there is no CUDA device.

    >>> cpu_storage(100, pin_memory=False).shape
    (100,)
    """
    size = check.whole("size", size, 0, 2**63 - 1)
    if not check.flag("pin_memory", pin_memory):
        return Array((size,), "uint8")
    return _device(device_index).pinned(size)


def transfer_buffer(buffer: ArrayInterface, *, device_config: CUDAConfig) -> DeviceArray:
    """Starts the upload of an array to a device, and returns immediately.

    `buffer` may be modified after the call: it is copied to pinned memory first.

    Args:
        buffer: A host array of numbers: a NumPy array, an `Array`, or an object with
            `__array_interface__`.
        device_config: The device and stream, from `cuda_config`. The stream waits for the upload.

    Raises:
        CudaUnavailable: There is no CUDA device.
        CudaError: The device memory is full, a call of the driver failed, or the allocator raised an
            exception, which is the `__cause__`.
        TypeError: `buffer` is not an array of numbers.
    """
    if not isinstance(buffer, ArrayInterface):
        raise TypeError(f"{type(buffer).__name__} has no __array_interface__")
    device = _device(device_config.device_index, device_config.allocator)
    (array,) = _uploaded([buffer], device)
    array._memory.wait_on(device_config.stream)
    return array


def transfer_buffer_cpu(
    buffer: DeviceArray, *, stream: Any | None = None
) -> numpy.typing.NDArray[Any]:
    """Copies a `DeviceArray` to the host, after all work queued on `stream` so far. Blocks.

    Args:
        buffer: The array.
        stream: A number as for `cuda_config`, or a stream of PyTorch or CuPy. `None`: the legacy default
            stream.

    Raises:
        CudaError: The transfer failed.
        TypeError: `buffer` is not a `DeviceArray`.
    """
    from ..cuda import DeviceArray

    if not isinstance(buffer, DeviceArray):
        raise TypeError(f"buffer must be a DeviceArray, not {type(buffer).__name__}")
    return buffer.to_host(stream=stream)


def transfer_tensor(batch: Any, /, *, num_caches: int = 4, device: str | None = None) -> Any:
    """Uploads all arrays of a batch to a CUDA device in one transfer, and returns immediately.

    The batch may consist of nested lists, tuples, named tuples, dictionaries (also `defaultdict` and similar
    types) and data classes. The result has the same structure. NumPy arrays and `Array`s become
    `DeviceArray`s; PyTorch tensors on the CPU become tensors on the device. Other values are unchanged. The
    batch may be modified after the call.

    Uploaded tensors are ready for PyTorch's current stream of the calling thread, usually the default stream.
    To use another stream, pass NumPy arrays and call `to_torch` of the `DeviceArray`s on that stream.

    The function can also be a stage of a pipeline: `.pipe(transfer_tensor)`.

    Args:
        batch: The batch.
        num_caches: Ignored. In `spdl`, that many batches are kept alive so that their memory is not
            overwritten. Here memory is recycled after its consumers have finished.
        device: For example `"cuda:1"`. `None`: the device with the number in the environment variable
            `LOCAL_RANK`, or else device 0.

    Raises:
        CudaUnavailable: There is no CUDA device.
        CudaError: The device memory is full, or a call of the driver failed.
        RuntimeError: `LOCAL_RANK` is not the index of a device.
        TypeError: The element type of an array is not numeric.
    """
    check.whole("num_caches", num_caches, 0, 2**63 - 1)
    return _placed(batch, device)


def transfer_tensor_h2d(
    batch: Any,
    /,
    *,
    device: str | None = None,
    stream: int | Any | None = None,
    producer_event: int | Any | None = None,
) -> Any:
    """Uploads a batch as `transfer_tensor` does, for a stream and after an event.

    Args:
        batch: See `transfer_tensor`.
        device: See `transfer_tensor`.
        stream: A stream that waits for the upload, in addition to streams that import the arrays later: a
            number as for `cuda_config`, or a stream of PyTorch or CuPy. The stream must exist as
            long as the arrays.
        producer_event: An event of PyTorch or CuPy, or its handle. The batch is read after the event
            completes, for example because a device still writes to its pinned memory. The call waits for
            the event without the GIL, and handles Ctrl-C.

    Raises:
        CudaError, CudaUnavailable, RuntimeError: See `transfer_tensor`.
        TypeError, ValueError: `stream` is not a stream, or `producer_event` is not an event.
        TypeError: The element type of an array is not numeric.
    """
    from ..cuda import _device_array

    number = None if stream is None else _device_array.stream_number(stream)
    event = _device_array.event_number(producer_event)
    return _placed(batch, device, number, event)


def transfer_tensor_d2h(
    batch: Any,
    /,
    *,
    device: str | None = None,
    stream: int | Any | None = None,
    producer_event: int | Any | None = None,
) -> Any:
    """Copies a batch to the host: `DeviceArray`s become NumPy arrays. Blocks until all copies are complete.

    PyTorch tensors are not copied; use PyTorch to copy tensors.

    Args:
        batch: See `transfer_tensor`.
        device: For example `"cuda:1"`: arrays on other devices are left unchanged. `None`: all devices.
        stream: The copies start after the work queued on this stream; see `transfer_buffer_cpu`.
        producer_event: An event of PyTorch or CuPy, or its handle: the copies start after the event
            completes, and wait for no stream unless `stream` is given.

    Raises:
        CudaError: A transfer failed.
        TypeError, ValueError: `stream`, `producer_event` or `device` is invalid.
    """
    from ..cuda import DeviceArray, _devices

    name = None if device is None else f"cuda:{_devices.cuda_ordinal(device)}"

    def is_there(value: Any) -> bool:
        return isinstance(value, DeviceArray) and name in (None, value.device)

    def copied(array: DeviceArray) -> numpy.typing.NDArray[Any]:
        return array.to_host(stream=stream, producer_event=producer_event)

    return _rebuilt(batch, is_there, copied)


def _placed(
    batch: Any, device: str | None, stream: int | None = None, event: int | None = None
) -> Any:
    """Uploads a batch after `event`, for `stream` and for the streams of its consumers."""
    arrays = list(_leaves(batch))
    target = _device_of_rank() if device is None else _named(device)
    if not arrays:
        return batch
    if event is not None:
        target.wait_for_event(event)
    on_devices = _uploaded(arrays, target)
    if stream is not None:
        # All arrays share one allocation.
        on_devices[0]._memory.wait_on(stream)
    placed = iter(on_devices)

    def place(array: Any) -> Any:
        on_device = next(placed)
        return on_device.to_torch() if _is_torch(array) else on_device

    return _rebuilt(batch, _is_of_host, place)


def _device(index: int, allocator: Allocator | None = None) -> _spdl_rs.CudaDevice:
    return _named(f"cuda:{check.whole('device_index', index, 0, 2**20)}", allocator)


def _named(device: str, allocator: Allocator | None = None) -> _spdl_rs.CudaDevice:
    # This module is imported lazily, because users without CUDA do not need it.
    from ..cuda import _devices

    return _devices.opened(device, allocator)


def _device_of_rank() -> _spdl_rs.CudaDevice:
    rank = os.environ.get("LOCAL_RANK", "0")
    if not rank.isdecimal():
        raise RuntimeError(f"LOCAL_RANK is {rank!r}, which is not a device index")
    from ..cuda import _devices

    opened = _devices.opened_before(int(rank))
    if opened is not None:
        # Counting devices loads the driver, which is too slow for each batch.
        return opened
    count = _spdl_rs.CudaDevice.count()
    if 0 < count <= int(rank):
        raise RuntimeError(f"LOCAL_RANK is {rank}, but there are {count} CUDA devices, numbered from 0")
    return _named(f"cuda:{int(rank)}")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_of_host(value: Any) -> bool:
    if _is_torch(value):
        return value.device.type == "cpu"
    # NumPy scalars have the array interface too, but are not uploaded.
    return isinstance(value, (numpy.ndarray, Array))


def _viewed(value: Any) -> tuple[numpy.typing.NDArray[Any], str]:
    """Returns a NumPy view of an array, and the name of its element type."""
    dtype = getattr(value, "dtype", None)
    if _is_torch(value):
        value = value.detach()
        if str(dtype) == "torch.bfloat16":
            return value.view(sys.modules["torch"].int16).numpy(), _BFLOAT16
        array = value.numpy()
    else:
        array = numpy.asarray(value)
        if str(dtype) == _BFLOAT16:
            return array.view("i2"), _BFLOAT16
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 16:
        raise TypeError(f"an array of {array.dtype} cannot be uploaded to a device")
    return array, array.dtype.newbyteorder("=").name


def _uploaded(values: list[Any], device: _spdl_rs.CudaDevice) -> list[DeviceArray]:
    """Uploads arrays in one transfer."""
    from ..cuda import DeviceArray

    arrays = [_viewed(value) for value in values]
    offsets, end = [], 0
    for array, _ in arrays:
        offsets.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    staging = _spdl_rs.Staging(device, end)
    for (array, _), offset in zip(arrays, offsets):
        _write(staging, offset, array)
    memory = staging.upload()
    return [
        DeviceArray(memory, array.shape, dtype, offset)
        for (array, dtype), offset in zip(arrays, offsets)
    ]


def _write(staging: _spdl_rs.Staging, offset: int, array: numpy.typing.NDArray[Any]) -> None:
    """Copies an array to the staging buffer, C-contiguous and in native byte order.

    The view of `staging` must be dropped here, because no view may exist when the buffer is uploaded.
    """
    room = numpy.asarray(staging)[offset : offset + array.nbytes]
    room.view(array.dtype.newbyteorder("=")).reshape(array.shape)[...] = array


def _leaves(batch: Any) -> Iterator[Any]:
    """Yields the host arrays of a batch in order."""
    if _is_of_host(batch):
        yield batch
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _leaves(value)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in _arguments_of(batch):
            yield from _leaves(getattr(batch, field))


def _arguments_of(batch: Any) -> list[str]:
    """Returns the fields of a data class that its constructor takes."""
    return [field.name for field in dataclasses.fields(batch) if field.init]


def _rebuilt(batch: Any, is_leaf: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Returns a copy of a nested batch with each leaf replaced, in order."""
    if is_leaf(batch):
        return change(batch)

    def inner(value: Any) -> Any:
        return _rebuilt(value, is_leaf, change)

    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(inner, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(inner, batch))
    if isinstance(batch, collections.defaultdict):
        items = {key: inner(value) for key, value in batch.items()}
        return type(batch)(batch.default_factory, items)
    if isinstance(batch, Mapping):
        items = {key: inner(value) for key, value in batch.items()}
        return type(batch)(items)  # pyright: ignore[reportCallIssue]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = {name: inner(getattr(batch, name)) for name in _arguments_of(batch)}
        return dataclasses.replace(batch, **changed)
    return batch
