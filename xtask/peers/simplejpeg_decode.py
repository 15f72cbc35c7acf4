"""Decodes whole files in memory with libjpeg-turbo (simplejpeg), in a thread pool.

The rate is an upper bound for loaders that decode whole images with libjpeg-turbo. Images are not
cropped, resized or batched. The files are read before the measurement starts, unless they exceed
`LARGEST_MEMORY`. Each thread reuses one buffer.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import simplejpeg

import common

# Images per task of the pool, so that the overhead of tasks is negligible.
TASK = 8
# Maximum size of all files in memory; larger sets are decoded from the page cache.
LARGEST_MEMORY = 4 << 30


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Memory(threading.local):
    """The output buffer of a thread."""

    def __init__(self):
        self.bytes = bytearray()

    def of(self, encoded):
        rows, columns, *_ = simplejpeg.decode_jpeg_header(encoded)
        if len(self.bytes) < 3 * rows * columns:
            self.bytes = bytearray(3 * rows * columns)
        return self.bytes


def batches(options, files):
    memory = Memory()

    def decode(start):
        pictures = []
        for data, label in files[start : start + TASK]:
            encoded = read(data) if isinstance(data, str) else data
            picture = simplejpeg.decode_jpeg(encoded, "RGB", buffer=memory.of(encoded))
            # Copied, because the next image overwrites the buffer.
            row, column = picture.shape[0] // 2, picture.shape[1] // 2
            pictures.append((picture[row : row + 1, column : column + 1].copy(), label))
        return pictures

    with ThreadPoolExecutor(options.workers) as pool:
        waiting = []
        for start in range(0, len(files), TASK):
            waiting.append(pool.submit(decode, start))
            if len(waiting) > 4 * options.workers:
                yield zip(*waiting.pop(0).result())
        for future in waiting:
            yield zip(*future.result())


if __name__ == "__main__":
    options = common.arguments()
    paths = options.files
    if sum(os.path.getsize(path) for path, _ in paths) <= LARGEST_MEMORY:
        files = [(read(path), label) for path, label in paths]
    else:
        files = paths
    common.measure(lambda: batches(options, files * options.epochs), decode_only=True)
