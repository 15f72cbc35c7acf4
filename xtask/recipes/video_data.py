"""Writes the videos of `cargo xtask bench video`: photographs that move, H.264 in MP4, 300 frames at 30 per second.

Usage: video_data.py OUT. Needs the images of data.py. `OUT/video/360p` has 24 videos of 640 x 360, `1080p` has 6 of
1920 x 1080: x264, preset medium, a key frame every 60 frames, B-frames as reference frames. `OUT/video/small` has
1,000 links to 8 videos of 64 x 48 to 120 x 76 with 20 frames.
"""

import os
import sys

import av
import numpy as np
from PIL import Image

import common


def frames(number, width, height, count, photos):
    """A window that moves over a photograph, and a part of another one that moves in it."""
    draw = np.random.default_rng(number)
    first, second = (Image.open(photos[i]).convert("RGB") for i in draw.integers(len(photos), size=2))
    canvas = np.asarray(first.resize((width * 5 // 4, height * 5 // 4), Image.Resampling.BICUBIC))
    part = np.asarray(second.resize((width // 4, height // 3), Image.Resampling.BICUBIC))
    angle, phase = draw.uniform(0.5, 2, 4), draw.uniform(0, 6, 4)
    noise = draw.integers(-3, 4, (height, width, 1), dtype="i2")
    for time in np.arange(count) / 30:
        waves = (np.sin(angle * time + phase) + 1) / 2
        top, left = int(waves[0] * height / 4), int(waves[1] * width / 4)
        image = canvas[top : top + height, left : left + width].astype("i2")
        image += np.roll(noise, int(time * 900), axis=1)
        y, x = int(waves[2] * height * 2 / 3), int(waves[3] * width * 3 / 4)
        image[y : y + height // 3, x : x + width // 4] = part[: height - y, : width - x]
        yield np.clip(image, 0, 255).astype("u1")


def write(path, number, width, height, photos, count=common.VIDEO_FRAMES):
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"preset": "medium", "crf": "23", "g": "60", "threads": "2"}
        for pixels in frames(number, width, height, count, photos):
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def write_small(folder, photos):
    for number in range(common.SMALL_VIDEOS):
        path = os.path.join(folder, f"{number:04}.mp4")
        if number < 8:
            write(path, number, 64 + 8 * number, 48 + 4 * number, photos, 20)
        else:
            os.link(os.path.join(folder, f"{number % 8:04}.mp4"), path)


def main(out):
    photos = [stem + ".jpg" for stem in common.stems(out)]
    for name in [*common.VIDEOS, "small"]:
        folder = os.path.join(out, "video", name)
        if os.path.exists(folder):
            continue
        part = folder + ".partial"
        os.makedirs(part, exist_ok=True)
        if name == "small":
            write_small(part, photos)
        else:
            width, height, count = common.VIDEOS[name]
            for number in range(count):
                write(os.path.join(part, f"{number:03}.mp4"), number, width, height, photos)
        os.replace(part, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
