"""Statistics of video decoding on a device."""

from __future__ import annotations

from typing import TypedDict

from ._allocators import AllocatorLike
from ._devices import opened, wheel_folders


class VideoStatistics(TypedDict):
    """Statistics of video decoding since the device was opened, and of the decoder pool."""

    frames: int
    """Frames that the device decoded without reporting an error."""
    damaged_frames: int
    """Frames that the device reported as corrupt."""
    unsupported_videos: int
    """Videos that were rejected because the device cannot decode them."""
    decoders_made: int
    """Decoders created."""
    decoders_reused: int
    """How often a decoder was reused for another video."""
    decoders_configured: int
    """How often a decoder was reconfigured to another frame size."""


def video_statistics(
    device: str = "cuda", *, allocator: AllocatorLike | None = None
) -> VideoStatistics:
    """Returns statistics of `nvdec_decoder` and `decode_packets_nvdec` on a device.

    Args:
        device: `"cuda"` (device 0), `"cuda:1"` and so on.
        allocator: The allocator of the decoders' frames, as for `spdl_rs.io.cuda_config`. `None`: the
            driver.

    Raises:
        CudaUnavailable: CUDA or NVDEC is not available.
        InvalidArgumentError: `device` is not the name of an existing device.

    >>> spdl_rs.cuda.video_statistics()["frames"]  # doctest: +SKIP
    1312
    """
    counts = opened(device, allocator).decoders(wheel_folders()).video_statistics()
    names = list(VideoStatistics.__annotations__)
    return VideoStatistics(**dict(zip(names, counts)))  # pyright: ignore[reportArgumentType]
