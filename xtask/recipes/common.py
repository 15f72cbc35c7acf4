"""Common code of the programs of `cargo xtask bench recipes`: arguments, timing, results, captions.

All programs of a task yield batches of 32 samples with arrays of the same shapes and dtypes, from the same
stored samples. Random numbers differ. Time is measured from the construction of the loader to its last
batch, with worker start-up but without imports. CPU time is that of the process and of its worker processes
that have ended.
"""

import argparse
import json
import os
import resource
import time
import zlib

BATCH = 32
CLASSES = 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Sides of the images of the tasks.
CLASSIFICATION, DETECTION, SEGMENTATION = 224, 640, 512
# The shape of the images of each task.
SHAPES = {
    "deit": (3, CLASSIFICATION, CLASSIFICATION),
    "simclr": (3, CLASSIFICATION, CLASSIFICATION),
    "dino": (3, CLASSIFICATION, CLASSIFICATION),
    "detection": (3, DETECTION, DETECTION),
    "segmentation": (3, SEGMENTATION, SEGMENTATION),
    "clip": (3, CLASSIFICATION, CLASSIFICATION),
}
TOKENS = 77


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=SHAPES)
    parser.add_argument("data", help="a folder written by data.py")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def stems(folder):
    """The paths of the samples without their extensions."""
    files = os.path.join(folder, "files")
    names = sorted(name for name in os.listdir(files) if name.endswith(".jpg"))
    return [os.path.join(files, name.removesuffix(".jpg")) for name in names]


def shards(folder):
    return sorted(
        os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".tar")
    )


def tokenize(caption):
    """A tokenizer in Python: hashes of words and of their three-letter prefixes, 77 numbers."""
    tokens = [1]
    for word in caption.lower().split():
        word = "".join(letter for letter in word if letter.isalnum())
        for part in (word[:3], word[3:]):
            if part:
                tokens.append(2 + zlib.crc32(part.encode()) % 49_000)
    tokens = tokens[:TOKENS]
    return tokens + [0] * (TOKENS - len(tokens))


def _cpu_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(task, make_batches):
    """Iterates over the batches of `make_batches()`, and prints one JSON object.

    A batch is a tuple of arrays or lists. The first one is the images, float32 `[N, 3, height, width]`.
    """
    cpu_start, start = _cpu_seconds(), time.perf_counter()
    first, samples, total = None, 0, 0.0
    batches = iter(make_batches())
    for batch in batches:
        if first is None:
            first = time.perf_counter() - start
        images = batch[0]
        assert tuple(images.shape[1:]) == SHAPES[task], images.shape
        assert "float32" in str(images.dtype), images.dtype
        assert all(len(part) == len(images) for part in batch), [len(part) for part in batch]
        samples += len(images)
        # Reads one pixel of each image as a cheap check.
        total += float(images[:, :, images.shape[2] // 2, images.shape[3] // 2].mean()) * len(images)
    seconds = time.perf_counter() - start
    del batches
    report = {
        "samples": samples,
        "seconds": seconds,
        "cpu_s_per_1000": (_cpu_seconds() - cpu_start) * 1000 / max(samples, 1),
        "first_batch_ms": 1000 * (first or 0.0),
        "mean_centre": total / max(samples, 1),
    }
    print(json.dumps(report))
