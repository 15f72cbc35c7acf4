"""Migrates a program for upstream SPDL to `spdl_rs` in two steps, and measures the rates.

    cargo xtask demo                            creates a demo data set
    python examples/python/migrate_from_upstream.py
    python examples/python/migrate_from_upstream.py photos --threads 8

Requires `spdl-rs` and `pillow`; upstream SPDL need not be installed.

1. Keep the program: `import spdl` imports `spdl_rs`. This program calls `spdl_rs.compat.install()`;
   `python -m spdl_rs.compat PROGRAM.py` runs a program without changing it.
2. Replace Python functions by native stages, which run without the GIL.
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
    for name, build in ("Python functions", with_functions), ("native stages", with_native_stages):
        # Both builds use the order of the first epoch.
        pipeline = build(embed_shuffle(files), options)
        start, images = time.perf_counter(), 0
        with pipeline.auto_stop():
            for batch in pipeline:
                images += len(batch)
        rate = images / (time.perf_counter() - start)
        print(f"{name}: {images:,} images, {rate:,.0f} images/s", flush=True)
        print(f"    {pipeline.stats()['diagnosis']}")


def with_functions(source: Any, options: argparse.Namespace) -> Any:
    """Builds the existing pipeline, which does not use `spdl_rs`."""

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
    """Builds the same pipeline with stages in Rust."""
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
    parser.add_argument("data", nargs="?", type=Path, help="folder with one folder per class")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch [default: 32]")
    parser.add_argument("--size", type=int, default=224, help="image side in pixels [default: 224]")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="threads [default: number of CPUs]"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
