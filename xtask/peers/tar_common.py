"""Common code of the readers of tar shards: arguments, timing, results.

All readers do the same work: read all shards completely, and return the undecoded bytes of each
sample's members. Time is measured from the construction of the reader to its last sample, without
imports. CPU time is that of the process and of its worker processes that have ended.
"""

import argparse
import json
import resource
import time
from concurrent.futures import ThreadPoolExecutor


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("epochs", type=int)
    parser.add_argument("shards", nargs="+")
    return parser.parse_args()


def _cpu_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def grouped(members):
    """Groups (name, data) pairs into samples by the name up to its first dot.

    Returns (number of samples, number of bytes, time of the first sample).
    """
    last, samples, size, first = None, 0, 0, None
    for name, data in members:
        stem = name[: name.index(".")]
        if stem != last:
            samples, last = samples + 1, stem
            if first is None:
                first = time.perf_counter()
        size += len(data)
    return samples, size, first


def in_threads(threads, shards, read):
    """Calls `read(shard)` for all shards.

    Returns the sums of samples and bytes, and the earliest time of a first sample.
    """
    if threads == 1:
        found = [read(shard) for shard in shards]
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(read, shards))
    samples, sizes, firsts = zip(*found)
    return sum(samples), sum(sizes), min(firsts)


def measure(run):
    """Calls `run()` and prints one JSON object.

    `run()` returns the numbers of samples and bytes, and the time of the first sample.
    """
    cpu_start, start = _cpu_seconds(), time.perf_counter()
    samples, size, first = run()
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "samples": samples,
                "bytes": size,
                "seconds": seconds,
                "cpu_s_per_1000": (_cpu_seconds() - cpu_start) * 1000 / max(samples, 1),
                "first_batch_ms": 1000 * (first - start),
            }
        )
    )
