"""Loads images with Pillow in a thread pool."""

import random

import numpy as np
from PIL import Image

import common
import thread_pool


def load(path, mode, out):
    with Image.open(path) as file:
        # `convert` copies even if the image is RGB.
        picture = file if file.mode == "RGB" else file.convert("RGB")
        picture.load()
    left, top, width, height = common.region(mode, *picture.size)
    box = (left, top, left + width, top + height)
    size = (common.SIZE, common.SIZE)
    picture = picture.resize(size, Image.Resampling.BILINEAR, box=box)
    if mode == "train" and random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out[:] = np.asarray(picture)


if __name__ == "__main__":
    options = common.arguments()
    common.measure(lambda: thread_pool.batches(options, load))
