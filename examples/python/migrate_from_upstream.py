"""From upstream's SPDL to `spdl_rs`, in two steps, with the rate of each.

    cargo xtask demo                            makes a data set to try it on
    python examples/python/migrate_from_upstream.py
    python examples/python/migrate_from_upstream.py photos --threads 8

It needs `pillow` beside `spdl-rs`; SPDL itself need not be installed.

1. Keep the program: `import spdl` gives `spdl_rs`. Here `install` does that from inside;
   `python -m spdl_rs.compat PROGRAM.py` does it from outside, with the program untouched.
2. Put native stages, which run without the GIL, in place of functions.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from pathlib import Path
from typing import Any

import demo_data
import numpy
import spdl_rs.compat
from spdl_rs.io import BatchImages, DecodeImage, Fetch

spdl_rs.compat.install()

from spdl.pipeline import PipelineBuilder  # noqa: E402  # pyright: ignore[reportMissingImports]
from spdl.source.local_directory import LocalDirectory  # noqa: E402  # pyright: ignore[reportMissingImports]
from spdl.source.utils import embed_shuffle  # noqa: E402  # pyright: ignore[reportMissingImports]


def main() -> None:
    options = arguments()
    files = LocalDirectory(options.data or demo_data.folder(), "*/*")
    for name, build in ("functions of Python", as_it_was), ("native stages", with_native_stages):
        # The first epoch's order, both times.
        pipeline = build(embed_shuffle(files), options)
        start, images = time.perf_counter(), 0
        with pipeline.auto_stop():
            for batch in pipeline:
                images += len(batch)
        rate = images / (time.perf_counter() - start)
        print(f"{name}: {images:,} images, {rate:,.0f} images/s", flush=True)
        print(f"    {pipeline.stats()['diagnosis']}")


def as_it_was(source: Any, options: argparse.Namespace) -> Any:
    """What one has. Nothing in it knows of `spdl_rs`."""

    async def read(path: Path) -> bytes:
        return path.read_bytes()

    def decode(data: bytes) -> numpy.ndarray:
        return demo_data.by_pillow(io.BytesIO(data), options.size)

    return (
        PipelineBuilder()
        .add_source(source)
        .pipe(read, concurrency=4)
        .pipe(decode, concurrency=options.threads)
        .aggregate(options.batch_size)
        .pipe(numpy.stack)
        .add_sink(3)
        .build(num_threads=options.threads)
    )


def with_native_stages(source: Any, options: argparse.Namespace) -> Any:
    """The same, in Rust."""
    return (
        PipelineBuilder()
        .add_source(source)
        .pipe(Fetch(), concurrency=4)
        .pipe(DecodeImage(options.size), concurrency=options.threads)
        .aggregate(BatchImages(options.batch_size))
        .add_sink(3)
        .build(num_threads=options.threads)
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="a folder with a folder for each class")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="the side of the images in pixels")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
