"""What became of videos that a device was to decode."""

from __future__ import annotations

from typing import TypedDict

from ._allocators import AllocatorLike
from ._devices import opened, wheel_folders


class VideoStatistics(TypedDict):
    """What became of videos, since the device was opened; of decoders that all share."""

    frames: int
    """Frames that came out sound, as far as the device says."""
    damaged_frames: int
    """Frames that were damaged."""
    unsupported_videos: int
    """How often a video was refused, since the device does not decode it."""
    decoders_made: int
    """Decoders that were made."""
    decoders_reused: int
    """How often one was used again for another video."""
    decoders_configured: int
    """How often one was set to another size of pictures."""


def video_statistics(
    device: str = "cuda", *, allocator: AllocatorLike | None = None
) -> VideoStatistics:
    """What became of videos that `nvdec_decoder` and `decode_packets_nvdec` have decoded on a device.

    Args:
        device: `"cuda"`, which is device 0, or `"cuda:1"` and so on.
        allocator: Of decoders whose frames lie in whose memory, as of `spdl_rs.io.cuda_config`. `None`: the
            driver's.

    Raises:
        CudaUnavailable: There is no such thing here, or no NVDEC.
        InvalidArgumentError: `device` is none, or there is no device of that number.

    >>> spdl_rs.cuda.video_statistics()["frames"]  # doctest: +SKIP
    1312
    """
    told = opened(device, allocator).decoders(wheel_folders()).video_statistics()
    names = list(VideoStatistics.__annotations__)
    return VideoStatistics(**dict(zip(names, told)))  # pyright: ignore[reportArgumentType]
