"""A hand-written loader: a thread pool that fills batches, with prefetch."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import common

BATCHES_AHEAD = 4


def batches(options, load):
    """Yields (images, labels). `load(path, mode, out)` writes one image into its slot."""
    files = options.files * options.epochs
    with ThreadPoolExecutor(options.workers) as pool:
        waiting = deque()

        def finish():
            images, labels, futures = waiting.popleft()
            for future in futures:
                future.result()
            return images, labels

        for start in range(0, len(files), common.BATCH):
            part = files[start : start + common.BATCH]
            images = np.empty((len(part), common.SIZE, common.SIZE, 3), np.uint8)
            labels = np.array([label for _, label in part])
            futures = [
                pool.submit(load, path, options.mode, out)
                for (path, _), out in zip(part, images)
            ]
            waiting.append((images, labels, futures))
            if len(waiting) > BATCHES_AHEAD:
                yield finish()
        while waiting:
            yield finish()
