"""Writes the videos of `cargo xtask bench recipes`: photographs that move, H.264 in MP4, 300 frames at 30 per second.

Usage: video_data.py OUT. Needs the images of data.py. `OUT/video/360p` has 24 videos of 640 x 360, `1080p` has 6 of
1920 x 1080: x264, preset medium, a key frame every 60 frames, B-frames as reference frames.
"""

import os
import sys

import av
import numpy as np
from PIL import Image

import common


def frames(number, width, height, photos):
    """A window that moves over a photograph, and a part of another one that moves in it."""
    draw = np.random.default_rng(number)
    first, second = (Image.open(photos[i]).convert("RGB") for i in draw.integers(len(photos), size=2))
    canvas = np.asarray(first.resize((width * 5 // 4, height * 5 // 4), Image.Resampling.BICUBIC))
    part = np.asarray(second.resize((width // 4, height // 3), Image.Resampling.BICUBIC))
    angle, phase = draw.uniform(0.5, 2, 4), draw.uniform(0, 6, 4)
    noise = draw.integers(-3, 4, (height, width, 1), dtype="i2")
    for time in np.arange(common.VIDEO_FRAMES) / 30:
        waves = (np.sin(angle * time + phase) + 1) / 2
        top, left = int(waves[0] * height / 4), int(waves[1] * width / 4)
        image = canvas[top : top + height, left : left + width].astype("i2")
        image += np.roll(noise, int(time * 900), axis=1)
        y, x = int(waves[2] * height * 2 / 3), int(waves[3] * width * 3 / 4)
        image[y : y + height // 3, x : x + width // 4] = part[: height - y, : width - x]
        yield np.clip(image, 0, 255).astype("u1")


def write(path, number, width, height, photos):
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"preset": "medium", "crf": "23", "g": "60", "threads": "2"}
        for pixels in frames(number, width, height, photos):
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def main(out):
    folder = os.path.join(out, "video")
    if os.path.exists(folder):
        return
    photos = [stem + ".jpg" for stem in common.stems(out)]
    for name, (width, height, count) in common.VIDEOS.items():
        part = os.path.join(folder + ".partial", name)
        os.makedirs(part, exist_ok=True)
        for number in range(count):
            write(os.path.join(part, f"{number:03}.mp4"), number, width, height, photos)
    os.replace(folder + ".partial", folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
