"""Three starved trainings, and one that is not. The report of `spdl_rs.profile` names each cause.

    python examples/python/starved_training.py
    python examples/python/starved_training.py slow-store --seconds 10

Requires only `spdl-rs`. docs/guides/is-my-training-starved.md explains the reports.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any

import spdl_rs
from spdl_rs.pipeline import Pipeline, PipelineBuilder

BATCH = 16
# Enough samples for all runs of a profile.
SAMPLES = range(10_000_000)


def step(batch: list[Any]) -> None:
    """A training step of 20 ms on a device: the CPU only waits."""
    time.sleep(0.02)


async def read_object(number: int) -> int:
    """Reads from a store that responds after 20 ms."""
    await asyncio.sleep(0.02)
    return number


def decode_in_python(number: int) -> int:
    """Computes in Python for some milliseconds, and so holds the GIL."""
    return sum(value * value % 7 for value in range(40_000))


def load_file(number: int) -> int:
    """Waits for a disk for 5 ms."""
    time.sleep(0.005)
    return number


def slow_store() -> Pipeline[Any]:
    """Only 4 requests are in flight: 4 / 20 ms = 200 samples/s, and the step needs 800."""
    return _training().pipe(read_object, concurrency=4).aggregate(BATCH).add_sink().build(num_threads=2)


def gil() -> Pipeline[Any]:
    """Four threads, but Python code runs on one at a time."""
    return (
        _training().pipe(decode_in_python, concurrency=4).aggregate(BATCH).add_sink().build(num_threads=4)
    )


def few_threads() -> Pipeline[Any]:
    """The stage may process 16 samples at the same time, but there are only 2 threads."""
    return _training().pipe(load_file, concurrency=16).aggregate(BATCH).add_sink().build(num_threads=2)


def fed() -> Pipeline[Any]:
    """The same as `few_threads` with 16 threads, and so with 3,200 samples/s."""
    return _training().pipe(load_file, concurrency=16).aggregate(BATCH).add_sink().build(num_threads=16)


def _training() -> PipelineBuilder:
    return PipelineBuilder().add_source(SAMPLES)


TRAININGS: dict[str, Callable[[], Pipeline[Any]]] = {
    "slow-store": slow_store,
    "gil": gil,
    "few-threads": few_threads,
    "fed": fed,
}


def main() -> None:
    options = arguments()
    for name in options.training or TRAININGS:
        pipeline = TRAININGS[name]()
        with pipeline.auto_stop():
            report = spdl_rs.profile(pipeline, step, max_seconds=options.seconds)
        print(f"{name}\n{report}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("training", nargs="*", choices=[[], *TRAININGS], help="which; default: all")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each [%(default)s]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
