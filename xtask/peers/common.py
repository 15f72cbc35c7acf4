"""Common code of all peers: files of the data set, crops, timing, results.

All peers except two do the same work: read a file, decode it to RGB, crop and resize it to
`SIZE` x `SIZE` with an antialiasing filter, and write it into a `uint8` batch (batch, height,
width, channel). The exceptions are `simplejpeg_decode.py`, which only decodes, and
`tensorflow_data.py --alias`, which has no antialiasing filter. Time is measured from the
construction of the loader to its last batch, with worker start-up but without imports. CPU time is
that of the process and of its worker processes that have ended.
"""

import argparse
import json
import math
import os
import random
import resource
import time

SIZE = 224
BATCH = 32
EVAL_RESIZE = round(SIZE / 0.875)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--mode", choices=["eval", "train"], default="eval")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    options = parser.parse_args()
    # Not measured, as in the report of SPDL.
    options.files = image_files(options.data)
    return options


def image_files(folder):
    """The (path, label) pairs of a folder of class folders."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [
        (os.path.join(folder, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(folder, name)))
    ]


def region(mode, width, height):
    """The crop of an image as (left, top, width, height)."""
    if mode == "eval":
        # Resize of the shorter side to 256 and centre crop of 224 x 224, as one step.
        side = SIZE * min(width, height) / EVAL_RESIZE
        return (width - side) / 2, (height - side) / 2, side, side
    # Random resized crop (Szegedy et al., 2015): 8 to 100 % of the area, aspect ratio 3/4 to 4/3.
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


def _cpu_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(make_batches, decode_only=False):
    """Iterates over the (images, labels) of `make_batches()`, and prints one JSON object.

    With `decode_only`, images are a sequence of arrays of any size; otherwise they are one array.
    """
    random.seed(0)
    cpu_start, start = _cpu_seconds(), time.perf_counter()
    first, images, total, pixels = None, 0, 0, 0
    batches = iter(make_batches())
    for batch, labels in batches:
        if first is None:
            first = time.perf_counter() - start
        assert len(labels) == len(batch)
        images += len(batch)
        # Reads one pixel of each image as a cheap check.
        if decode_only:
            middles = (picture[picture.shape[0] // 2, picture.shape[1] // 2] for picture in batch)
            total += sum(int(middle.sum()) for middle in middles)
        else:
            assert batch.shape[1:] == (SIZE, SIZE, 3), batch.shape
            total += int(batch[:, SIZE // 2, SIZE // 2].sum())
        pixels += 3 * len(batch)
    seconds = time.perf_counter() - start
    del batches
    print(
        json.dumps(
            {
                "images": images,
                "seconds": seconds,
                "cpu_s_per_1000": (_cpu_seconds() - cpu_start) * 1000 / max(images, 1),
                "first_batch_ms": 1000 * (first or 0.0),
                "mean_centre": total / max(pixels, 1),
            }
        )
    )
