"""Writes small videos and recordings, loads them with `VideoLoader` and `AudioLoader`, and prints shapes and times.

    python examples/python/media_loaders.py --frames 8 --every 0.25s --seconds 0.5

Requires `numpy`, and `spdl-rs` with FFmpeg, which the wheel contains. The files are written by the FFmpeg in
`spdl-rs`; the program `ffmpeg` is not needed. Both data sets are folders whose subfolders are the classes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy
from spdl_rs import AudioLoader, VideoLoader
from spdl_rs.io import (
    Muxer,
    audio_encode_config,
    create_reference_audio_frame,
    create_reference_video_frame,
    video_encode_config,
)
from spdl_rs.io.utils import get_ffmpeg_versions

CLASSES, FILES = 2, 3
HEIGHT, WIDTH, FRAME_RATE = 48, 64, (10, 1)
SAMPLE_RATE = 16_000


def main() -> None:
    options = arguments()
    if not get_ffmpeg_versions():
        raise SystemExit("spdl_rs was built without FFmpeg: install a wheel of `cargo xtask wheel`")
    with tempfile.TemporaryDirectory() as folder:
        videos, recordings = Path(folder, "videos"), Path(folder, "recordings")
        for label in range(CLASSES):
            for number in range(FILES):
                write_video(videos / f"class{label}" / f"{number}.mkv", 20 + 5 * number, label)
                write_recording(recordings / f"class{label}" / f"{number}.wav", 1 + number / 2, label)
        show_clips(videos, options)
        show_recordings(recordings, options)


def show_clips(folder: Path, options: argparse.Namespace) -> None:
    loader = VideoLoader(folder, batch_size=2, size=32, frames=options.frames, every=options.every, train=True)
    print(f"{len(loader)} batches of the classes {', '.join(loader.classes)}")
    for batch in loader:
        print(f"frames: {batch.frames.dtype} {list(batch.frames.shape)}")
        for label, times in zip(batch.labels, batch.times):
            print(f"class {label}: frames at {numpy.round(times, 2).tolist()} s")


def show_recordings(folder: Path, options: argparse.Namespace) -> None:
    # Whole recordings are padded to the longest of the batch.
    for batch in AudioLoader(folder, batch_size=3):
        print(f"samples: {batch.samples.dtype} {list(batch.samples.shape)}, lengths {batch.lengths.tolist()}")
    spectrograms = AudioLoader(folder, batch_size=6, seconds=options.seconds, mel=80, train=True)
    print(f"log-mel spectrograms: {list(spectrograms.peek().samples.shape)}")


def write_video(path: Path, frames: int, label: int) -> None:
    """Writes a bright column that moves to the right, in the colour of the class."""
    planes = numpy.full((frames, 3, HEIGHT, WIDTH), 128, numpy.uint8)
    planes[:, 0] = 50
    planes[:, 1 + label] = 200
    for number in range(frames):
        planes[number, 0, :, 2 * number % WIDTH] = 230
    path.parent.mkdir(parents=True, exist_ok=True)
    muxer = Muxer(path)
    config = video_encode_config(height=HEIGHT, width=WIDTH, frame_rate=FRAME_RATE, pix_fmt="yuv444p")
    encoder = muxer.add_encode_stream(config, encoder="ffv1")
    with muxer.open():
        write(muxer, encoder.encode(create_reference_video_frame(planes, "yuv444p", FRAME_RATE, pts=0)))
        write(muxer, encoder.flush())


def write_recording(path: Path, seconds: float, label: int) -> None:
    """Writes a tone whose pitch is that of the class."""
    time = numpy.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tone = 10_000 * numpy.sin(2 * numpy.pi * 220 * (label + 1) * time)
    path.parent.mkdir(parents=True, exist_ok=True)
    muxer = Muxer(path)
    config = audio_encode_config(num_channels=1, sample_rate=SAMPLE_RATE, sample_fmt="s16")
    encoder = muxer.add_encode_stream(config)
    with muxer.open():
        samples = tone.astype(numpy.int16)[:, None]
        write(muxer, encoder.encode(create_reference_audio_frame(samples, "s16", SAMPLE_RATE, pts=0)))
        write(muxer, encoder.flush())


def write(muxer: Muxer, packets: object | None) -> None:
    """Writes the packets that an encoder has returned, if there are any."""
    if packets is not None:
        muxer.write(0, packets)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=4, help="frames of a clip [default: 4]")
    parser.add_argument("--every", default="0.4s", help="seconds between frames [default: 0.4s]")
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of a spectrogram [default: 0.5]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
