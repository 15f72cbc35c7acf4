"""libjpeg-turbo (simplejpeg) alone: whole decodes, in a pool of threads, of files in memory.

No loader: the bound for those that decode whole images with it. Neither reading nor resizing nor
batching is counted, so the requested crop makes no difference. Each thread reuses one separate
buffer, so that nothing is allocated meanwhile.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import simplejpeg

import common

# Pictures that are decoded by one task of a thread, so that handing over costs nothing.
TASK = 8
# Of all files together; larger sets are decoded from the page cache.
LARGEST_MEMORY = 4 << 30


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Memory(threading.local):
    """Where a thread decodes to."""

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
            # The next one takes its place.
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
