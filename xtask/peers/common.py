"""What all peers share: the data set's files, the geometry of the crops, timing, the result.

Every peer does the same work: read a file, decode it to RGB, cut it to `SIZE` x `SIZE` with an
antialiasing filter, and put it into a batch of unsigned bytes, (batch, height, width, channel).
Time is counted from building the loader to its last batch, worker start-up included and imports
excluded; CPU time likewise, of the process and of the workers it has waited for.
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
    # Before the clock starts: what the other side reports excludes listing the folder, too.
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
    """The part of a picture that becomes the output, as (left, top, width, height)."""
    if mode == "eval":
        # Resizing the shorter side to 256 and cutting out the middle 224 x 224, as one step.
        side = SIZE * min(width, height) / EVAL_RESIZE
        return (width - side) / 2, (height - side) / 2, side, side
    # Inception's crop (Szegedy et al., 2015): 8 to 100 % of the area, aspect 3/4 to 4/3.
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
    """Runs through `make_batches()`, an iterable of (images, labels), and prints one JSON object.

    With `decode_only` the images are pictures of any size, and no batch.
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
        # One pixel of each picture: proof that it is there, at no cost.
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
