"""libjpeg-turbo (simplejpeg) alone: whole decodes, in a pool of threads, of files in memory.

No loader: the bound for those that decode whole images with it. Neither reading nor resizing nor
batching is counted, so the crop that is asked for makes no difference.
"""

import os
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


def batches(options, files):
    def decode(start):
        pictures = []
        for data, label in files[start : start + TASK]:
            encoded = read(data) if isinstance(data, str) else data
            pictures.append((simplejpeg.decode_jpeg(encoded, "RGB"), label))
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
