"""Loads image batches with a pipeline of native stages, and prints its statistics.

    cargo xtask demo                            creates a demo data set
    python examples/python/image_batches.py
    python examples/python/image_batches.py photos --size 224 --train

Requires only `spdl-rs`. The stages run in Rust without the GIL, and decode each image into its slot
of the batch. Python functions can be added before, between and after them. If you need no
Python functions, use `spdl_rs.ImageLoader`, which can also shuffle, and resume from a state.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import demo_data
from spdl_rs import Statistics
from spdl_rs.io import BatchImages, DecodeImage, Fetch
from spdl_rs.pipeline import PipelineBuilder


def main() -> None:
    options = arguments()
    paths, labels = demo_data.labeled(options.data or demo_data.folder())

    pipeline = (
        PipelineBuilder()
        .add_source(zip(paths, labels))
        .pipe(Fetch(), concurrency=8, output_order="input")
        .pipe(DecodeImage(options.size, train=options.train), output_order="input")
        .aggregate(BatchImages(options.batch_size))
        .add_sink()
        .build(num_threads=1)
    )

    start = time.perf_counter()
    with pipeline.auto_stop():
        batches = [
            f"{images.dtype} {list(images.shape)}, labels {labels.tolist()}"
            for images, labels in pipeline
        ]
    seconds = time.perf_counter() - start

    print(f"{len(batches)} batches, the last one {batches[-1]}")
    print(f"{len(paths):,} images in {seconds:.2f} s: {len(paths) / seconds:,.0f} images/s\n")
    show(pipeline.stats())


def show(statistics: Statistics) -> None:
    """Prints the time spent in each stage, and the bottleneck."""
    print(f"{'stage':<24}{'workers':>8}{'images':>8}{'failed':>8}{'busy':>7}{'median':>11}")
    for stage in statistics["stages"]:
        print(
            f"{stage['name']:<24}{stage['concurrency']:>8}{stage['items']:>8}{stage['failures']:>8}"
            f"{stage['busy_share']:>7.0%}{stage['service_ms']['p50']:>8.3f} ms"
        )
    waited = statistics["consumer"]["waited_s"] / statistics["elapsed_s"]
    print(f"\nwaited for data: {waited:.0%} of the time")
    print(statistics["diagnosis"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="folder with one folder per class")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch [default: 32]")
    parser.add_argument("--size", type=int, default=224, help="image side in pixels [default: 224]")
    parser.add_argument("--train", action="store_true", help="random crops and horizontal flips")
    return parser.parse_args()


if __name__ == "__main__":
    main()
