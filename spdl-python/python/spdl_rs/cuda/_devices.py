"""CUDA devices that this process has opened, each once per allocator until `release`."""

from __future__ import annotations

import os
import re
import sys
from typing import TypedDict

from .. import _spdl_rs
from .._errors import CudaFallbackWarning, CudaUnavailable, warn_caller
from .._locks import ForkSafeLock
from ._allocators import Allocator, AllocatorLike, functions_of

_FORMS = '"cpu", "cuda", "cuda:1" or "auto"'

# Keys are (process, ordinal, allocator): a forked child cannot use the devices of its parent, and each
# allocator has its own memory pool.
_open: dict[tuple[int, int, Allocator | None], _spdl_rs.CudaDevice] = {}
_lock = ForkSafeLock()
# Whether the warning about missing nvJPEG was issued.
_has_warned = False
# How often the host decoded a video instead of a device.
_host_decodes = 0


class MemoryStatistics(TypedDict):
    """Memory of one device and one allocator that this process uses, and pinned host memory."""

    live_bytes: int
    """Bytes of device memory in live arrays."""
    peak_bytes: int
    """The maximum of `live_bytes`."""
    free_bytes: int
    """Bytes of device memory that are ready for reuse."""
    unsure_bytes: int
    """Bytes of device memory that are not reused: after an error it is unknown whether a stream still uses
    them."""
    allocations: int
    """The number of allocations of device memory."""
    copying_bytes: int
    """Bytes of host memory that transfers in flight use."""
    release_failures: int
    """The number of resources that could not be returned to the driver."""


def is_available() -> bool:
    """Returns whether a CUDA driver and a device are available. Never raises.

    >>> import spdl_rs
    >>> spdl_rs.cuda.is_available() == (spdl_rs.cuda.device_count() > 0)
    True
    """
    return device_count() > 0


def device_count() -> int:
    """Returns the number of CUDA devices; 0 without a usable driver. Never raises."""
    return _spdl_rs.CudaDevice.count()


def fallbacks() -> int:
    """Returns how often `device="auto"`, or video decoding with `fallback=True`, fell back to the host in this process.

    The first fallback of each kind issues a `CudaFallbackWarning` with the reason.
    """
    return _spdl_rs.CudaDevice.fallbacks() + _host_decodes


def count_host_decode(message: str) -> None:
    """Counts a video that the host decodes. The first one issues a warning."""
    global _host_decodes
    with _lock.held():
        _host_decodes += 1
        is_first = _host_decodes == 1
    if is_first:
        warn_caller(message, CudaFallbackWarning)


def memory_statistics(
    device: str = "cuda", *, allocator: AllocatorLike | None = None
) -> MemoryStatistics:
    """Returns statistics of the memory that this process uses on one device, from one allocator.

    Args:
        device: `"cuda"` (device 0), `"cuda:1"` and so on.
        allocator: The allocator of the memory, as for `spdl_rs.io.cuda_config`. `None`: the driver.

    Raises:
        CudaUnavailable: CUDA is not available.
        InvalidArgumentError: `device` is not the name of an existing device.
    """
    return opened(device, allocator).statistics()


def release() -> None:
    """Returns all unused device memory to the driver, or to the allocator that it came from.

    Memory in use is returned when its arrays are dropped. The next use of a device opens it again, which
    is slow.
    """
    with _lock.held():
        ours = [key for key in _open if key[0] == os.getpid()]
        released = [_open.pop(key) for key in ours]
    # The devices are dropped without the lock, because driver calls may take long.
    del released


def opened(device: str, allocator: AllocatorLike | None = None) -> _spdl_rs.CudaDevice:
    """Returns the CUDA device of that name. Opens it if necessary."""
    found = chosen(device, allocator)
    if found is None:
        raise ValueError(f'device must be "cuda" or "cuda:1" and so on, not {device!r}')
    return found


def opened_before(ordinal: int) -> _spdl_rs.CudaDevice | None:
    """Returns the device with that number if this process has opened it, without calling the driver."""
    return _open.get((os.getpid(), ordinal, None))


def of_memory(memory: _spdl_rs.DeviceMemory) -> _spdl_rs.CudaDevice:
    """Returns the device and allocator to which memory belongs, even after `release`."""
    with _lock.held():
        ours = [device for key, device in _open.items() if key[0] == os.getpid()]
    return next((device for device in ours if memory.is_of(device)), None) or memory.device()


def chosen(device: str, allocator: AllocatorLike | None = None) -> _spdl_rs.CudaDevice | None:
    """Returns the requested device; `None` is the host."""
    device = _name(device)
    if device == "cpu":
        if allocator is not None:
            raise ValueError('allocator requires a CUDA device, but device is "cpu"')
        return None
    functions = functions_of(allocator)
    ordinal = _ordinal(device)
    with _lock.held():
        key = os.getpid(), ordinal, functions
        found = _open.get(key)
        if found is not None:
            return found
        found, reason, is_first = _spdl_rs.CudaDevice.choose(device, wheel_folders(), functions)
        if found is not None:
            _open[key] = found
    if found is None and is_first:
        warn_caller(f"batches stay in host memory: {reason}", CudaFallbackWarning)
    return found


def cuda_ordinal(device: str) -> int:
    """Returns the number in the name of a CUDA device, without calling the driver."""
    if not isinstance(device, str):
        raise TypeError(f'device must be "cuda" or "cuda:1" and so on, not {device!r}')
    if device in ("auto", "cpu"):
        raise ValueError(f'device must be "cuda" or "cuda:1" and so on, not {device!r}')
    return _ordinal(device)


def to_decode(device: str) -> list[str]:
    """Returns the folders to search for decoding libraries.

    With `"auto"`, missing nvJPEG issues one warning, and the host decodes.

    Raises:
        CudaUnavailable: nvJPEG is missing, and `device` names a CUDA device.
    """
    global _has_warned
    folders = wheel_folders()
    parts = _spdl_rs.CudaDevice.status(folders)
    missing = [part[2:] for part in parts if part[0] == "nvjpeg" and not part[1]]
    for reason, remedy in missing:
        text = f"cannot decode JPEG on the device: {reason}; {remedy}"
        if device != "auto":
            raise CudaUnavailable(text, kind="unsupported")
        if not _has_warned:
            _has_warned = True
            warn_caller(f"the host decodes images: {text}", CudaFallbackWarning)
    return folders


def wheel_folders() -> list[str]:
    """Returns the folders of `sys.path` that contain wheels of NVIDIA."""
    return [place for place in sys.path if os.path.isdir(os.path.join(place, "nvidia"))]


def _name(device: object) -> str:
    """Returns the name of a device. A `torch.device` has its name as `str`."""
    is_of_torch = type(device).__module__ == "torch" and type(device).__name__ == "device"
    name = str(device) if is_of_torch else device
    if not isinstance(name, str):
        raise TypeError(f"device must be {_FORMS}, not {device!r}")
    return name


def _ordinal(device: str) -> int:
    if device in ("auto", "cuda"):
        return 0
    number = re.fullmatch(r"cuda:(\d{1,9})", device, re.ASCII)
    if number is None:
        raise ValueError(f"device must be {_FORMS}, not {device!r}")
    return int(number[1])
