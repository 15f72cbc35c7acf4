"""kornia-rs in a pool of threads: the crop, flip, normalisation and MixUp of the recipe of DeiT.

kornia-rs has neither RandAugment nor random erasing, so this program does less work than the others.
"""

import math
import random

import common
import image_pool
import numpy as np
from kornia_rs import imgproc, io, pipeline


def crop(height, width):
    """A random part of 8 to 100 % of the area with an aspect ratio of 3:4 to 4:3: x, y, width, height."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(height, width)
    return (width - side) // 2, (height - side) // 2, side, side


def load(_, stem, out):
    with open(stem + ".jpg", "rb") as file:
        image = io.decode_image_jpegturbo(file.read(), "rgb")
    image = imgproc.crop(image, *crop(*image.shape[:2]))
    if random.random() < 0.5:
        image = imgproc.horizontal_flip(image)
    size = common.CLASSIFICATION
    out[:] = pipeline.resize_normalize_to_tensor(
        np.ascontiguousarray(image), (size, size), common.MEAN, common.STD
    )
    return image_pool.class_of(stem)


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: image_pool.batches(options, lambda: None, load))
