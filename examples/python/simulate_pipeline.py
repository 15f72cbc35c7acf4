"""Predicts the rate of a pipeline from the time of each stage, before its functions exist.

    python examples/python/simulate_pipeline.py
    python examples/python/simulate_pipeline.py fetch:40:16 decode:8:4 --step-ms 3
    python examples/python/simulate_pipeline.py fetch:40:16 decode:cpu8:2 --items 500

Requires only `spdl-rs`.

A stage is NAME:MS:CONCURRENCY. The simulated stage sleeps MS milliseconds per item, like a function
that waits or releases the GIL. With `cpu` before MS, the stage computes in Python and holds the GIL.
The loop takes `--step-ms` per item. The program compares the measured rate with the limit of each
stage, which is concurrency / time, and prints what limits the pipeline.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from spdl_rs.pipeline import PipelineBuilder


@dataclass(frozen=True)
class Stage:
    """A simulated stage."""

    name: str
    seconds: float
    concurrency: int
    computes: bool

    def __call__(self, item: Any) -> Any:
        if not self.computes:
            time.sleep(self.seconds)
            return item
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return item

    @property
    def limit(self) -> float:
        """The largest possible rate in items per second. Only one thread holds the GIL."""
        return (1 if self.computes else self.concurrency) / self.seconds


def main() -> None:
    options = arguments()
    builder: PipelineBuilder[Any, Any] = PipelineBuilder().add_source(range(options.items))
    for stage in options.stages:
        builder.pipe(stage, name=stage.name, concurrency=stage.concurrency)
    threads = sum(stage.concurrency for stage in options.stages)
    pipeline = builder.add_sink().build(num_threads=threads)
    items, first = 0, 0.0
    with pipeline.auto_stop():
        for _ in pipeline:
            # The first item fills the pipeline; the rate starts after it.
            first = first or time.perf_counter()
            items += 1
            time.sleep(options.step_ms / 1000)
    rate = (items - 1) / max(time.perf_counter() - first, 1e-9)
    limits = {stage.name: stage.limit for stage in options.stages}
    if options.step_ms:
        limits["loop"] = 1000 / options.step_ms
    for name, limit in limits.items():
        print(f"{name:<12}{limit:>10,.0f} items/s at most")
    slowest = min(limits, key=limits.__getitem__)
    print(f"{'measured':<12}{rate:>10,.0f} items/s, {100 * rate / limits[slowest]:.0f}% of {slowest}")
    print(pipeline.stats()["diagnosis"])


def stage_of(text: str) -> Stage:
    """Parses NAME:MS:CONCURRENCY."""
    try:
        name, milliseconds, concurrency = text.split(":")
        seconds = float(milliseconds.removeprefix("cpu")) / 1000
        stage = Stage(name, seconds, int(concurrency), milliseconds.startswith("cpu"))
    except ValueError:
        stage = None
    if stage is None or not stage.name or not stage.seconds > 0 or stage.concurrency < 1:
        raise argparse.ArgumentTypeError(f"expected NAME:MS:CONCURRENCY, not {text!r}")
    return stage


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ["fetch:40:16", "decode:8:2", "collate:1:1"]
    parser.add_argument("stages", nargs="*", type=stage_of, default=list(map(stage_of, default)))
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=0.0, help="time of the loop per item")
    return parser.parse_args()


if __name__ == "__main__":
    main()
