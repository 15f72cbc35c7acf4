"""Arrays from the host to a CUDA device, and back; alone, or as many as a batch holds."""

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

# As the driver aligns memory: each array of a batch can be used as if it were alone.
_ALIGNMENT = 256
_BFLOAT16 = "bfloat16"
# Numbers that devices and DLPack have.
_KINDS = "biufc"


@dataclasses.dataclass(frozen=True)
class CUDAConfig:
    """On which device arrays are put, and which stream uses them there; made by `cuda_config`."""

    device_index: int
    """The number of the device."""
    stream: int
    """The stream that waits for the copies, as the array API numbers it."""
    allocator: Allocator | None = None
    """The two functions that memory of the device comes from; `None`: the driver's."""


def cuda_config(
    device_index: int, *, stream: int = 2, allocator: AllocatorLike | None = None
) -> CUDAConfig:
    """On which device arrays are put, and which stream uses them there.

    Memory comes from a pool, so that nothing is allocated for each array. It is used again once its
    consumers are done with it, and given back to `allocator` when there is more of it than was ever held
    at once, when the device is full, and by `spdl_rs.cuda.release`. Each allocator has a pool of its own
    until then.

    Args:
        device_index: The number of the device, from 0.
        stream: The stream that is to wait for the copies: 1 is the legacy default stream, 2 the default
            stream of the thread that asks for the copy, larger numbers are streams, which have to exist
            as long as the arrays.
        allocator: Who allocates the device's memory. `None`: the driver. `"torch"`: the caching allocator
            of PyTorch, which then knows of it. Or two functions, `(allocate, free)`:

            - `allocate(size, device, stream)` returns the address of at least so many bytes of the
              device of that number, a multiple of 256. They are first used on `stream`, a number.
              Where there are none, it raises `MemoryError`, or what is called `OutOfMemoryError`: what
              the pool has no use for is freed then, and it is asked once more;
            - `free(address)` takes them back. All work with them is done by then.

            They are called by any thread. Memory that is in use while Python ends is not given back.

    Raises:
        ImportError: `allocator` is `"torch"`, and PyTorch is not installed.
        TypeError: `allocator` is none.
        ValueError: A number is out of range. 0 is no stream, as it may mean either default one.

    >>> cuda_config(1).device_index
    1
    """
    index = check.whole("device_index", device_index, 0, 2**20)
    number = check.whole("stream", stream, 1, 2**63 - 1)
    if allocator is None:
        return CUDAConfig(index, number)
    # Not imported before: who stays on the host need not wait for it.
    from ..cuda._allocators import functions_of

    return CUDAConfig(index, number, functions_of(allocator))


def cpu_storage(size: int, *, pin_memory: bool = True, device_index: int = 0) -> Array:
    """Bytes of the host, `uint8 [size]`, which `numpy.asarray` reads and writes in place.

    Args:
        size: How many.
        pin_memory: Whether a device copies from them directly. Such memory is used again once it is let
            go of.
        device_index: The number of that device.

    Raises:
        CudaUnavailable: Memory is to be pinned, and there is no device.

    >>> cpu_storage(100, pin_memory=False).shape
    (100,)
    """
    size = check.whole("size", size, 0, 2**63 - 1)
    if not check.flag("pin_memory", pin_memory):
        return Array((size,), "uint8")
    return _device(device_index).pinned(size)


def transfer_buffer(buffer: ArrayInterface, *, device_config: CUDAConfig) -> DeviceArray:
    """Starts to copy an array to a device, and returns at once.

    `buffer` may be changed as soon as this returns: it is first copied to pinned memory.

    Args:
        buffer: An array of numbers of the host: NumPy's, an `Array`, or what else has
            `__array_interface__`.
        device_config: Where to, as of `cuda_config`. Its stream waits for the copy.

    Raises:
        CudaUnavailable: There is no CUDA device.
        CudaError: The device's memory is full, the driver refuses for another reason, or the allocator
            has raised something: that is the cause.
        TypeError: `buffer` is no array, or not one of numbers.
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
    """A copy of a `DeviceArray` on the host, behind all that `stream` was told so far; it waits.

    Args:
        buffer: The array.
        stream: A number as of `cuda_config`, or a stream of PyTorch's or CuPy's. `None`: the legacy
            default stream.

    Raises:
        CudaError: The copy failed.
        TypeError: `buffer` is no `DeviceArray`.
    """
    from ..cuda import DeviceArray

    if not isinstance(buffer, DeviceArray):
        raise TypeError(f"buffer must be a DeviceArray, not {type(buffer).__name__}")
    return buffer.to_host(stream=stream)


def transfer_tensor(batch: Any, /, *, num_caches: int = 4, device: str | None = None) -> Any:
    """Puts all arrays of a batch on a CUDA device, in one copy, and returns at once.

    The batch may hold lists, tuples, named tuples, dictionaries (`defaultdict` and the like, too) and
    data classes, in one another. What comes is of the same shape: in place of each array of NumPy, and
    of each `Array`, there is a `DeviceArray`; in place of each tensor of PyTorch on the CPU, there is a
    tensor on the device. All else is left as it is. The batch may be changed as soon as this returns.

    Such a tensor is for the stream that is PyTorch's current one in this thread, mostly the default one.
    Who works on another stream gives arrays of NumPy, and takes the `DeviceArray`s there, by `to_torch`.

    It is a stage of a pipeline too, for the thread of which nobody waits: `.pipe(transfer_tensor)`.

    Args:
        batch: What holds the arrays.
        num_caches: Nothing. It is there since `spdl` has it, where that many batches are kept, lest
            their memory be overwritten. Here memory is used again when its consumers are done.
        device: `"cuda:1"`, say. `None`: the device that the environment variable `LOCAL_RANK`
            numbers, or else device 0.

    Raises:
        CudaUnavailable: There is no CUDA device.
        CudaError: The device's memory is full, or the driver refuses for another reason.
        RuntimeError: `LOCAL_RANK` names a device that does not exist.
        TypeError: An array is not of numbers.
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
    """The same as `transfer_tensor`, for a stream, and behind an event.

    Args:
        batch: What holds the arrays, as of `transfer_tensor`.
        device: As of `transfer_tensor`.
        stream: A stream that waits for the copies, beside those for which the arrays are taken later: a
            number as of `cuda_config`, or a stream of PyTorch's or CuPy's. It has to exist as long as
            the arrays.
        producer_event: An event of PyTorch's or CuPy's, or its number. The batch is read once that has
            been reached: where a device still writes it, to pinned memory say. This waits for it, without
            the GIL, and hears Ctrl-C.

    Raises:
        CudaError, CudaUnavailable, RuntimeError: As of `transfer_tensor`.
        TypeError, ValueError: `stream` is no stream, or `producer_event` no event; as of
            `transfer_tensor`.
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
    """A copy of a batch on the host: in place of each `DeviceArray`, there is an array of NumPy.

    Tensors of PyTorch are left to PyTorch. It waits until the last array is there.

    Args:
        batch: What holds the arrays, as of `transfer_tensor`.
        device: `"cuda:1"`, say: arrays on other devices are left as they are. `None`: those on all.
        stream: The copies come behind what this stream was told so far; see `transfer_buffer_cpu`.
        producer_event: An event of PyTorch's or CuPy's, or its number: the copies come behind all that
            was told before it was recorded, and behind no stream but one that is given, too.

    Raises:
        CudaError: A copy failed.
        TypeError, ValueError: `stream` is no stream, `producer_event` no event, or `device` no device.
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
    """The batch, put on a device once `event` has been reached, for `stream` among others."""
    arrays = list(_leaves(batch))
    target = _device_of_rank() if device is None else _named(device)
    if not arrays:
        return batch
    if event is not None:
        target.wait_for_event(event)
    on_devices = _uploaded(arrays, target)
    if stream is not None:
        # All are in the same memory.
        on_devices[0]._memory.wait_on(stream)
    placed = iter(on_devices)

    def place(array: Any) -> Any:
        on_device = next(placed)
        return on_device.to_torch() if _is_torch(array) else on_device

    return _rebuilt(batch, _is_of_host, place)


def _device(index: int, allocator: Allocator | None = None) -> _spdl_rs.CudaDevice:
    return _named(f"cuda:{check.whole('device_index', index, 0, 2**20)}", allocator)


def _named(device: str, allocator: Allocator | None = None) -> _spdl_rs.CudaDevice:
    # Not imported before: who stays on the host need not wait for it.
    from ..cuda import _devices

    return _devices.opened(device, allocator)


def _device_of_rank() -> _spdl_rs.CudaDevice:
    rank = os.environ.get("LOCAL_RANK", "0")
    if not rank.isdecimal():
        raise RuntimeError(f"LOCAL_RANK is {rank!r}, which numbers no device")
    from ..cuda import _devices

    opened = _devices.opened_before(int(rank))
    if opened is not None:
        # To count them, the driver is loaded: not for every batch.
        return opened
    count = _spdl_rs.CudaDevice.count()
    if 0 < count <= int(rank):
        raise RuntimeError(f"LOCAL_RANK is {rank}, and there are {count} devices")
    return _named(f"cuda:{int(rank)}")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_of_host(value: Any) -> bool:
    if _is_torch(value):
        return value.device.type == "cpu"
    # Numbers of NumPy's have the interface, but are no arrays.
    return isinstance(value, (numpy.ndarray, Array))


def _viewed(value: Any) -> tuple[numpy.typing.NDArray[Any], str]:
    """An array as NumPy has it, and the name of the type of its elements."""
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
        raise TypeError(f"an array of {array.dtype} cannot be put on a device")
    return array, array.dtype.newbyteorder("=").name


def _uploaded(values: list[Any], device: _spdl_rs.CudaDevice) -> list[DeviceArray]:
    """All arrays, put on the device by one copy."""
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
    """Copies an array in the byte order of the machine, the last index fastest. Views of `staging` end
    here: nobody may have one when it is sent."""
    room = numpy.asarray(staging)[offset : offset + array.nbytes]
    room.view(array.dtype.newbyteorder("=")).reshape(array.shape)[...] = array


def _leaves(batch: Any) -> Iterator[Any]:
    """The arrays of the host, in the order in which they stand there."""
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
    """The fields of a data class that it is made of."""
    return [field.name for field in dataclasses.fields(batch) if field.init]


def _rebuilt(batch: Any, is_leaf: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """The same with each leaf changed, in the order in which they stand there."""
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
