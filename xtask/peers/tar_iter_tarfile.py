"""Reads shards with upstream's `spdl.io.iter_tarfile`: from files (`stream`) or memory (`slice`).

The first argument also sets the number of threads: `stream:2` uses two threads.
"""

import spdl.io

import tar_common


def of_file(shard):
    with open(shard, "rb") as file:
        return tar_common.grouped(spdl.io.iter_tarfile(file))


def of_bytes(shard):
    with open(shard, "rb") as file:
        data = file.read()
    return tar_common.grouped(spdl.io.iter_tarfile(data))


if __name__ == "__main__":
    options = tar_common.arguments()
    way, threads = options.way.split(":")
    read = {"stream": of_file, "slice": of_bytes}[way]
    shards = options.shards * options.epochs
    tar_common.measure(lambda: tar_common.in_threads(int(threads), shards, read))
