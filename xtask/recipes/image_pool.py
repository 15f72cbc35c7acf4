"""A pool of threads that loads images of the recipe of DeiT, for libraries without a loader."""

import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import common
import numpy as np

BATCHES_AHEAD = 4


def batches(options, make, load):
    """Yields batches of `load(state, stem, out)`, which writes one image and returns its class.

    Each thread of the pool borrows one of the states that `make()` returns. MixUp is applied to all batches.
    """
    stems = common.stems(options.data)
    states = deque(make() for _ in range(options.workers))
    size = common.CLASSIFICATION

    def load_with_any(stem, out):
        mine = states.pop()
        try:
            return load(mine, stem, out)
        finally:
            states.append(mine)

    def finish(images, futures):
        targets = np.full((len(images), common.CLASSES), 0.1 / common.CLASSES, np.float32)
        targets[range(len(images)), [future.result() for future in futures]] += 0.9
        share = np.float32(random.betavariate(0.8, 0.8))
        mixed = images * share + np.roll(images, 1, 0) * (1 - share)
        return mixed, targets * share + np.roll(targets, 1, 0) * (1 - share)

    with ThreadPoolExecutor(options.workers) as pool:
        for _ in range(options.epochs):
            random.shuffle(stems)
            waiting = deque()
            for start in range(0, len(stems), common.BATCH):
                part = stems[start : start + common.BATCH]
                images = np.empty((len(part), 3, size, size), np.float32)
                waiting.append(
                    (images, [pool.submit(load_with_any, *pair) for pair in zip(part, images)])
                )
                if len(waiting) > BATCHES_AHEAD:
                    yield finish(*waiting.popleft())
            while waiting:
                yield finish(*waiting.popleft())


def class_of(stem):
    """The class of an image."""
    with open(stem + ".cls") as file:
        return int(file.read())
