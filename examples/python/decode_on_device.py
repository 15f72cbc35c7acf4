"""Decodes a video on a CUDA device (NVDEC), and prints the shapes of its frames and the rate.

    python examples/python/decode_on_device.py clip.mp4 --size 224
    python examples/python/decode_on_device.py          a small video of the repository

Requires `spdl-rs` with FFmpeg, which the wheel contains. Without a CUDA device, or if the device cannot decode the
codec, a warning has the reason, and the CPU decodes the video.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from spdl_rs.cuda import fallbacks
from spdl_rs.io import cuda_config, streaming_load_video_nvdec
from spdl_rs.io.utils import get_ffmpeg_versions

VIDEO = Path(__file__).parents[2] / "spdl-media" / "tests" / "video" / "h264.mp4"


def main() -> None:
    options = arguments()
    if not get_ffmpeg_versions():
        raise SystemExit("spdl_rs was built without FFmpeg: install a wheel of `cargo xtask wheel`")
    sizes = {"pix_fmt": "rgb", "scale_width": options.size, "scale_height": options.size}
    start = time.perf_counter()
    # Arrays uint8 [frames, 3, size, size]. torch.from_dlpack takes them from the memory of the device or of the host.
    arrays = streaming_load_video_nvdec(
        options.video,
        cuda_config(options.device),
        num_frames=options.frames,
        post_processing_params=sizes,
        fallback=True,
    )
    shapes = [list(frames.shape) for frames in arrays]
    seconds = time.perf_counter() - start
    place = "CPU" if fallbacks() else f"device {options.device}"
    count = sum(shape[0] for shape in shapes)
    print(f"{place}: {count} frames in {seconds:.2f} s: {count / seconds:.0f} frames/s")
    print(f"arrays: {shapes}")


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
