"""Migrates from `torch.utils.data.DataLoader` to `spdl_rs` in two steps, and measures the rates.

    cargo xtask demo                            creates a demo data set
    python examples/python/migrate_from_torch_dataloader.py
    python examples/python/migrate_from_torch_dataloader.py photos --workers 8

Requires `spdl-rs`, `torch` and `pillow`.

1. Change the import: the same dataset and the same batches, with threads instead of processes.
2. Read, decode and crop in Rust: replace the dataset by `ImageLoader`.

docs/migrating.md lists the differences between PyTorch's loader and the loader of step 1.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from pathlib import Path

import demo_data
import spdl_rs.torch
import torch.utils.data
from spdl_rs import ImageLoader


class Photos(torch.utils.data.Dataset):
    """The existing dataset: image files, resized and cropped by Pillow, with their labels."""

    def __init__(self, images: Path, size: int) -> None:
        self.paths, self.labels = demo_data.labeled(images)
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = demo_data.by_pillow(self.paths[index], self.size)
        return torch.from_numpy(pixels), self.labels[index]


def main() -> None:
    options = arguments()
    folder = options.data or demo_data.folder()
    photos = Photos(folder, options.size)
    settings = {"batch_size": options.batch_size, "shuffle": True, "num_workers": options.workers}

    before = torch.utils.data.DataLoader(photos, **settings)
    torch.manual_seed(options.seed)
    sums_before = measure("torch.utils.data.DataLoader", before)

    after = spdl_rs.torch.DataLoader(photos, **settings)
    torch.manual_seed(options.seed)
    sums_after = measure("spdl_rs.torch.DataLoader", after)
    print(f"the same batches in the same order: {sums_before == sums_after}")

    images = ImageLoader(
        folder, batch_size=options.batch_size, size=options.size, shuffle=True, seed=options.seed
    )
    measure("spdl_rs.ImageLoader", ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in images))
    print(images.diagnose())


def measure(name: str, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    """Takes all batches, prints the rate, and returns a checksum for each batch."""
    start, count, sums = time.perf_counter(), 0, []
    for images, labels in batches:
        count += len(labels)
        sums.append(int(images.sum(dtype=torch.int64)) + int(labels.sum()))
    seconds = time.perf_counter() - start
    print(f"{name:<28} {count / seconds:>7,.0f} images/s", flush=True)
    return sums


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="folder with one folder per class")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch [default: 32]")
    parser.add_argument("--size", type=int, default=224, help="image side in pixels [default: 224]")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="workers [default: number of CPUs]"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the order [default: 0]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
