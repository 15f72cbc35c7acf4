"""Loads images with libjpeg-turbo (simplejpeg) and OpenCV's area filter in a thread pool.

With `--scaled`, libjpeg-turbo decodes at the smallest size at which the crop is not smaller than
the output.
"""

import math
import random
import sys

import cv2
import simplejpeg

import common
import thread_pool

# Parallelism comes from the pool; OpenCV's threads would oversubscribe the CPUs.
cv2.setNumThreads(0)


SCALED = "--scaled" in sys.argv
if SCALED:
    sys.argv.remove("--scaled")


def load(path, mode, out):
    with open(path, "rb") as file:
        encoded = file.read()
    if SCALED:
        rows, columns, *_ = simplejpeg.decode_jpeg_header(encoded)
        left, top, width, height = common.region(mode, columns, rows)
        share = min(1, max(common.SIZE / width, common.SIZE / height))
        picture = simplejpeg.decode_jpeg(
            encoded, "RGB", min_height=math.ceil(rows * share), min_width=math.ceil(columns * share)
        )
        scale = picture.shape[1] / columns
        left, top, width, height = (scale * edge for edge in (left, top, width, height))
    else:
        picture = simplejpeg.decode_jpeg(encoded, "RGB")
        left, top, width, height = common.region(mode, picture.shape[1], picture.shape[0])
    left, top = round(left), round(top)
    part = picture[top : top + round(height), left : left + round(width)]
    cv2.resize(part, (common.SIZE, common.SIZE), dst=out, interpolation=cv2.INTER_AREA)
    if mode == "train" and random.random() < 0.5:
        cv2.flip(out, 1, dst=out)


if __name__ == "__main__":
    options = common.arguments()
    common.measure(lambda: thread_pool.batches(options, load))
