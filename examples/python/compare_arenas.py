"""Measures how fast arrays move from a worker process to this process, with and without shared memory.

    python examples/python/compare_arenas.py
    python examples/python/compare_arenas.py --mib 0.25 4 32 --total-mib 1024

Requires `spdl-rs` and `numpy`.

Without an arena, items are pickled into a pipe. A `SharedMemoryRingBuffer` copies large payloads
into and out of shared memory. A `SharedMemorySegmentPool` delivers views of shared memory, without
a copy in this process. The program also reads each array once, as a training step would.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator
from typing import Any

import numpy
from spdl_rs.pipeline import (
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    iterate_in_subprocess,
)

MIB = 1 << 20


def arrays(count: int, size: int) -> Iterator[numpy.ndarray]:
    """Yields arrays of one value each. Runs in the worker process."""
    for number in range(count):
        yield numpy.full(size, number % 256, numpy.uint8)


def main() -> None:
    options = arguments()
    print(f"{'MiB per item':>12}{'no arena':>12}{'ring buffer':>12}{'pool':>12}   (GB/s)")
    for mib in options.mib:
        size = int(mib * MIB)
        count = max(4, int(options.total_mib / mib))
        arenas = [
            None,
            SharedMemoryRingBuffer(4 * size + MIB),
            SharedMemorySegmentPool(size + MIB, 8),
        ]
        rates = [measured(count, size, arena) for arena in arenas]
        print(f"{mib:>12g}" + "".join(f"{rate / 1e9:>12.2f}" for rate in rates))


def measured(count: int, size: int, arena: Any) -> float:
    """Returns the rate of the second pass in bytes per second."""
    items = iterate_in_subprocess(functools.partial(Arrays, count, size), arena=arena)
    rate = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for number, array in enumerate(items):
            if not array.min() == array.max() == number % 256:
                raise SystemExit(f"array {number} is wrong")
        rate = count * size / (time.perf_counter() - start)
    return rate


class Arrays:
    """Arrays that can be iterated repeatedly."""

    def __init__(self, count: int, size: int) -> None:
        self._make = functools.partial(arrays, count, size)

    def __iter__(self) -> Iterator[numpy.ndarray]:
        return self._make()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, nargs="+", default=[0.0625, 1, 8, 32])
    parser.add_argument("--total-mib", type=float, default=512, help="MiB per pass")
    return parser.parse_args()


if __name__ == "__main__":
    main()
