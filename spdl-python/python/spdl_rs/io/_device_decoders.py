"""What decodes on a device, and what arrays that come from it have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _arguments as check
from .. import _spdl_rs
from ._transfer import CUDAConfig, _device, _device_of_rank

if TYPE_CHECKING:
    from ..cuda import DeviceArray

MOST_SIDE = 16_384
"""The largest side of an image that is made on a device."""
# The default stream of the thread that asks.
_PER_THREAD = 2


def decoders_of(config: CUDAConfig | None) -> tuple[_spdl_rs.DeviceDecoders, int]:
    """The decoders of a device, and the stream that is to wait for what they make.

    Raises:
        CudaUnavailable: There is no CUDA device.
        TypeError: `config` is none.
    """
    if config is None:
        return decoders_on(_device_of_rank()), _PER_THREAD
    if not isinstance(config, CUDAConfig):
        raise TypeError(f"device_config must come from cuda_config, not be {check.shown(config)}")
    return decoders_on(_device(config.device_index)), config.stream


def decoders_on(device: _spdl_rs.CudaDevice) -> _spdl_rs.DeviceDecoders:
    """The decoders of an opened device."""
    from ..cuda import _devices

    return device.decoders(_devices.wheel_folders())


def size_of(scale_width: int, scale_height: int) -> tuple[int, int] | None:
    """Width and height that images are resized to; `None` where both are -1.

    Raises:
        ValueError: One is there without the other, or is out of range.
    """
    width = check.whole("scale_width", scale_width, -1, MOST_SIDE)
    height = check.whole("scale_height", scale_height, -1, MOST_SIDE)
    if (width, height) == (-1, -1):
        return None
    if width < 1 or height < 1:
        raise ValueError(
            "scale_width and scale_height go together, and are 1 or more: both, or neither, not "
            f"{width} and {height}"
        )
    return width, height


def placed(memory: _spdl_rs.DeviceMemory, shape: list[int], dtype: str, stream: int) -> DeviceArray:
    """An array for which a stream waits."""
    from ..cuda import DeviceArray

    memory.wait_on(stream)
    return DeviceArray(memory, tuple(shape), dtype)
