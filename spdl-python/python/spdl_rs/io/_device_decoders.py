"""Decoders of a CUDA device, and the arrays that they produce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _arguments as check
from .. import _spdl_rs
from ._transfer import CUDAConfig, _device, _device_of_rank

if TYPE_CHECKING:
    from ..cuda import DeviceArray

# The per-thread default stream, as numbered by the array API standard.
_PER_THREAD = 2


def decoders_of(config: CUDAConfig | None) -> tuple[_spdl_rs.DeviceDecoders, int]:
    """Returns the decoders of a device and the stream that waits for results.

    Memory comes from the allocator of `config`.

    Raises:
        CudaUnavailable: There is no CUDA device.
        TypeError: `config` is not a `CUDAConfig`.
    """
    if config is None:
        return decoders_on(_device_of_rank()), _PER_THREAD
    checked(config)
    return decoders_on(_device(config.device_index, config.allocator)), config.stream


def decoders_of_array(
    array: DeviceArray, config: CUDAConfig | None
) -> tuple[_spdl_rs.DeviceDecoders, int]:
    """Returns the decoders of the device and allocator of an array, and the stream of `config`.

    Raises:
        ValueError: `config` is for another device.
        TypeError: `config` is not a `CUDAConfig`.
    """
    from ..cuda import _devices

    memory = array._memory
    if config is not None and checked(config).device_index != memory.ordinal:
        raise ValueError(
            f"device_config is for CUDA device {config.device_index}, but the array is on device "
            f"{memory.ordinal}"
        )
    stream = _PER_THREAD if config is None else config.stream
    return decoders_on(_devices.of_memory(memory)), stream


def checked(config: CUDAConfig) -> CUDAConfig:
    """Returns `config` if `cuda_config` created it."""
    if not isinstance(config, CUDAConfig):
        raise TypeError(f"device_config must be created by cuda_config, not {check.shown(config)}")
    return config


def decoders_on(device: _spdl_rs.CudaDevice) -> _spdl_rs.DeviceDecoders:
    """Returns the decoders of an opened device."""
    from ..cuda import _devices

    return device.decoders(_devices.wheel_folders())


def size_of(scale_width: int, scale_height: int) -> tuple[int, int] | None:
    """Returns the (width, height) to resize to; `None` if both arguments are -1.

    Raises:
        ValueError: Only one argument is given, or one is out of range.
    """
    width = check.whole("scale_width", scale_width, -1, check.MAX_SIDE)
    height = check.whole("scale_height", scale_height, -1, check.MAX_SIDE)
    if (width, height) == (-1, -1):
        return None
    if width < 1 or height < 1:
        raise ValueError(
            "scale_width and scale_height must both be at least 1, or both be omitted, not "
            f"{width} and {height}"
        )
    return width, height


def placed(memory: _spdl_rs.DeviceMemory, shape: list[int], dtype: str, stream: int) -> DeviceArray:
    """Returns an array. The stream waits for the upload of the array."""
    from ..cuda import DeviceArray

    memory.wait_on(stream)
    return DeviceArray(memory, tuple(shape), dtype)
