"""Devices that are in use: each is opened once in a process."""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import TypedDict

from .. import _spdl_rs
from .._errors import CudaFallbackWarning, CudaUnavailable
from .._locks import Exclusive
from ._allocators import Allocator, AllocatorLike, functions_of

_FORMS = '"cpu", "cuda", "cuda:1" or "auto"'

# By process, as a fork cannot use the devices of the process that it comes from; by number; and by
# allocator, each of which has a pool of its own.
_open: dict[tuple[int, int, Allocator | None], _spdl_rs.CudaDevice] = {}
_exclusive = Exclusive()
# That there is no nvJPEG.
_has_warned = False


class MemoryStatistics(TypedDict):
    """What a device has lent to batches, and to arrays that are on their way."""

    live_bytes: int
    """Bytes of the device in arrays that somebody holds."""
    peak_bytes: int
    """The most that were held at once."""
    free_bytes: int
    """Bytes of the device that wait to be used again."""
    unsure_bytes: int
    """Bytes of the device that are not used again, as it could not be told who still uses them."""
    allocations: int
    """How often memory of the device was allocated."""
    copying_bytes: int
    """Bytes of the host that copies under way use."""
    release_failures: int
    """How often something could not be given back to the driver."""


def is_available() -> bool:
    """Whether there is a device, and a driver. It never raises.

    >>> import spdl_rs
    >>> spdl_rs.cuda.is_available() == (spdl_rs.cuda.device_count() > 0)
    True
    """
    return device_count() > 0


def device_count() -> int:
    """How many devices there are; 0 where there is no driver that can be used. It never raises."""
    return _spdl_rs.CudaDevice.count()


def fallbacks() -> int:
    """How often `device="auto"` has fallen back to the host in this process.

    The first time, a `CudaFallbackWarning` says why.
    """
    return _spdl_rs.CudaDevice.fallbacks()


def memory_statistics(
    device: str = "cuda", *, allocator: AllocatorLike | None = None
) -> MemoryStatistics:
    """What a device has lent to this process.

    Args:
        device: `"cuda"`, which is device 0, or `"cuda:1"` and so on.
        allocator: Whose memory, as of `spdl_rs.io.cuda_config`. `None`: the driver's.

    Raises:
        CudaUnavailable: There is no such thing here.
        InvalidArgumentError: `device` is none, or there is no device of that number.
    """
    return opened(device, allocator).statistics()


def release() -> None:
    """Gives all memory of devices back to the driver that waits to be used again.

    Memory that somebody still uses is given back when it is let go of. Who needs a device later opens it
    anew, which takes a moment.
    """
    with _exclusive.held():
        ours = [key for key in _open if key[0] == os.getpid()]
        released = [_open.pop(key) for key in ours]
    # The driver may take long over it: nobody else shall wait for that.
    del released


def opened(device: str, allocator: AllocatorLike | None = None) -> _spdl_rs.CudaDevice:
    """A CUDA device by its name, opened now if nobody has."""
    found = chosen(device, allocator)
    if found is None:
        raise ValueError(f'device must be "cuda" or "cuda:1" and so on, not {device!r}')
    return found


def opened_before(ordinal: int) -> _spdl_rs.CudaDevice | None:
    """The device of that number where somebody has opened it, without asking the driver."""
    return _open.get((os.getpid(), ordinal, None))


def of_memory(memory: _spdl_rs.DeviceMemory) -> _spdl_rs.CudaDevice:
    """The device that memory is of, with its allocator, also where it was released since."""
    with _exclusive.held():
        ours = [device for key, device in _open.items() if key[0] == os.getpid()]
    return next((device for device in ours if memory.is_of(device)), None) or memory.device()


def chosen(device: str, allocator: AllocatorLike | None = None) -> _spdl_rs.CudaDevice | None:
    """The device that is asked for: `None` is the host."""
    device = _name(device)
    if device == "cpu":
        if allocator is not None:
            raise ValueError('allocator is for CUDA devices, and device is "cpu"')
        return None
    functions = functions_of(allocator)
    ordinal = _ordinal(device)
    with _exclusive.held():
        key = os.getpid(), ordinal, functions
        found = _open.get(key)
        if found is not None:
            return found
        found, reason, is_first = _spdl_rs.CudaDevice.choose(device, wheel_folders(), functions)
        if found is not None:
            _open[key] = found
    if found is None and is_first:
        warnings.warn(f"batches stay on the host: {reason}", CudaFallbackWarning, stacklevel=4)
    return found


def cuda_ordinal(device: str) -> int:
    """The number of a CUDA device by its name, which nothing is asked about."""
    if not isinstance(device, str):
        raise TypeError(f'device must be "cuda" or "cuda:1" and so on, not {device!r}')
    if device in ("auto", "cpu"):
        raise ValueError(f'device must be "cuda" or "cuda:1" and so on, not {device!r}')
    return _ordinal(device)


def to_decode(device: str) -> list[str]:
    """Where libraries that decode may lie. With `"auto"`, it warns once where there is no nvJPEG, without
    which the host decodes.

    Raises:
        CudaUnavailable: There is none, and a device was asked for by its name.
    """
    global _has_warned
    folders = wheel_folders()
    parts = _spdl_rs.CudaDevice.status(folders)
    missing = [part[2:] for part in parts if part[0] == "nvjpeg" and not part[1]]
    for reason, remedy in missing:
        text = f"JPEGs cannot be decoded on the device: {reason}; {remedy}"
        if device != "auto":
            raise CudaUnavailable(text, kind="unsupported")
        if not _has_warned:
            _has_warned = True
            warnings.warn(f"the host decodes: {text}", CudaFallbackWarning, stacklevel=4)
    return folders


def wheel_folders() -> list[str]:
    """Folders of packages in which there may be wheels of NVIDIA's."""
    return [place for place in sys.path if os.path.isdir(os.path.join(place, "nvidia"))]


def _name(device: object) -> str:
    """A device by its name; one of PyTorch's has it as its text."""
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
