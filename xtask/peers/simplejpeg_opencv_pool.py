"""libjpeg-turbo (simplejpeg) and OpenCV's area filter in a pool of threads."""

import random

import cv2
import simplejpeg

import common
import thread_pool

# The pool is the parallelism; OpenCV's own threads would only add to it.
cv2.setNumThreads(0)


def load(path, mode, out):
    with open(path, "rb") as file:
        picture = simplejpeg.decode_jpeg(file.read(), "RGB")
    left, top, width, height = common.region(mode, picture.shape[1], picture.shape[0])
    left, top = round(left), round(top)
    part = picture[top : top + round(height), left : left + round(width)]
    cv2.resize(part, (common.SIZE, common.SIZE), dst=out, interpolation=cv2.INTER_AREA)
    if mode == "train" and random.random() < 0.5:
        cv2.flip(out, 1, dst=out)


if __name__ == "__main__":
    options = common.arguments()
    common.measure(lambda: thread_pool.batches(options, load))
