"""Loads clips of videos as batches, and prints their shapes, their times and the rate.

    python examples/python/video_clips.py clips/ --frames 16 --every 0.25s --size 224
    python examples/python/video_clips.py          two small videos of the repository

Requires `numpy`, and `spdl-rs` with FFmpeg, which the wheel contains. Each clip begins at a random position
of its video. The last frame is repeated if a video is too short; the count of its frames is printed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy
from spdl_rs import Loader, fields
from spdl_rs.io.utils import get_ffmpeg_versions

TESTS = Path(__file__).parents[2] / "spdl-media" / "tests" / "video"


def main() -> None:
    options = arguments()
    if not get_ffmpeg_versions():
        raise SystemExit("spdl_rs was built without FFmpeg: install a wheel of `cargo xtask wheel`")
    if options.data and not options.data.exists():
        raise SystemExit(f'cannot open "{options.data}": the file or folder does not exist')
    loader = Loader(
        options.data or [TESTS / "h264.mp4", TESTS / "vp9.webm"],
        batch_size=options.batch_size,
        shuffle=True,
        video=fields.Video(
            options.size,
            frames=options.frames,
            every=options.every,
            random=True,
            train=True,
            short="repeat",
        ),
        count=fields.VideoFrames(),
        times=fields.VideoTimes(),
        key=fields.Key(),
    )
    start, clips = time.perf_counter(), 0
    for batch in loader:
        clips += len(batch["video"])
    seconds = time.perf_counter() - start
    print(f"{clips} clips in {seconds:.2f} s: {clips / seconds:.1f} clips/s")
    print(f"video: {batch['video'].dtype} {list(batch['video'].shape)}")
    for key, count, times in zip(batch["key"], batch["count"], batch["times"]):
        print(f"{Path(key).name}: {count} frames at {numpy.round(times[:count], 2).tolist()} s")
    print(loader.diagnose())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="video, or folder with videos")
    parser.add_argument("--frames", type=int, default=8, help="frames of a clip [default: 8]")
    parser.add_argument("--every", default="0.2s", help="seconds between frames [default: 0.2s]")
    parser.add_argument("--size", type=int, default=64, help="side of a frame in pixels [default: 64]")
    parser.add_argument("--batch-size", type=int, default=8, help="clips per batch [default: 8]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
