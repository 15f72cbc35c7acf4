"""Decodes a video on a CUDA device (NVDEC), and prints the shapes of its frames and the rate.

    python examples/python/decode_on_device.py clip.mp4 --size 224
    python examples/python/decode_on_device.py          a small video of the repository

Requires `spdl-rs` with FFmpeg, which the wheel contains, and a CUDA device. Without a device, or if it
cannot decode the codec, the reason is printed, and the CPU decodes the video.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from spdl_rs.cuda import CudaError, CudaUnavailable
from spdl_rs.io import cuda_config, get_video_filter_desc, load_video, streaming_load_video_nvdec, to_numpy
from spdl_rs.io.utils import get_ffmpeg_versions

VIDEO = Path(__file__).parents[2] / "spdl-media" / "tests" / "video" / "h264.mp4"


def main() -> None:
    options = arguments()
    if not get_ffmpeg_versions():
        raise SystemExit("spdl_rs was built without FFmpeg: install a wheel of `cargo xtask wheel`")
    start = time.perf_counter()
    try:
        shapes = [frames.shape for frames in on_device(options)]
        place = f"device {options.device}"
    except (CudaUnavailable, CudaError) as error:
        print(f"decoding on the CPU: {error}")
        shapes = [frames.shape for frames in on_cpu(options)]
        place = "CPU"
    seconds = time.perf_counter() - start
    count = sum(shape[0] for shape in shapes)
    print(f"{place}: {count} frames in {seconds:.2f} s: {count / seconds:.0f} frames/s")
    print(f"arrays: {[list(shape) for shape in shapes]}")


def on_device(options: argparse.Namespace) -> Iterator[Any]:
    """Arrays uint8 [frames, 3, size, size] in the memory of the device; torch.from_dlpack takes them."""
    sizes = {"pix_fmt": "rgb", "scale_width": options.size, "scale_height": options.size}
    device = cuda_config(options.device)
    return streaming_load_video_nvdec(
        options.video, device, num_frames=options.frames, post_processing_params=sizes
    )


def on_cpu(options: argparse.Namespace) -> Iterator[numpy.ndarray]:
    """The same arrays in the memory of the host."""
    filters = get_video_filter_desc(scale_width=options.size, scale_height=options.size, pix_fmt="rgb24")
    frames = to_numpy(load_video(options.video, filter_desc=filters)).transpose(0, 3, 1, 2)
    for start in range(0, len(frames), options.frames):
        yield frames[start : start + options.frames]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("video", nargs="?", type=Path, default=VIDEO, help="a video file")
    parser.add_argument("--frames", type=int, default=8, help="frames of an array [default: 8]")
    parser.add_argument("--size", type=int, default=64, help="side of a frame in pixels [default: 64]")
    parser.add_argument("--device", type=int, default=0, help="number of the CUDA device [default: 0]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
