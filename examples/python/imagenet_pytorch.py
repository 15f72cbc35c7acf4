"""Trains a small PyTorch network on images in class folders, and evaluates it after each epoch.

    cargo xtask demo                            creates a demo data set
    python examples/python/imagenet_pytorch.py
    python examples/python/imagenet_pytorch.py imagenet/train --val imagenet/val --size 224
    torchrun --nproc-per-node 8 examples/python/imagenet_pytorch.py imagenet/train

Requires `spdl-rs` and `torch`. With `torchrun`, each process is a rank. The ranks divide the images
among themselves; in training, all ranks have the same number of batches. Batches are normalised
float32 arrays in NCHW layout, which `torch.from_numpy` shares without a copy.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import demo_data
import torch
import torch.distributed as distributed
from spdl_rs import ImageLoader
from torch import nn

RANK, WORLD_SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    if WORLD_SIZE > 1:
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    train, val, classes = loaders(options)
    model: nn.Module = network(classes).to(device)
    if WORLD_SIZE > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)

    for epoch in range(options.epochs):
        start, losses = time.perf_counter(), []
        for images, labels in train:
            x = torch.from_numpy(images).to(device, non_blocking=True)
            y = torch.from_numpy(labels).to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # Asynchronous: a GPU computes while the next batch is loaded.
            losses.append(loss.detach())
        mean_loss = float(torch.stack(losses).mean())
        seconds = time.perf_counter() - start

        accuracy = evaluate(model, val, device)
        waited = train.stats()["consumer"]["waited_s"]
        images = WORLD_SIZE * len(losses) * options.batch_size
        say(
            f"epoch {epoch}: {len(losses)} steps, loss {mean_loss:.3f}, "
            f"{accuracy:.0%} accuracy on held-out images; "
            f"{images / seconds:,.0f} images/s, {waited / seconds:.0%} of the time waited for data"
        )
    say(train.diagnose())
    if WORLD_SIZE > 1:
        distributed.destroy_process_group()


def loaders(options: argparse.Namespace) -> tuple[ImageLoader, ImageLoader, int]:
    """Returns the training loader, the evaluation loader, and the number of classes."""
    both: dict[str, Any] = {
        "batch_size": options.batch_size,
        "size": options.size,
        "layout": "nchw-f32",
        "seed": options.seed,
        "rank": RANK,
        "world_size": WORLD_SIZE,
        # Ranks on one machine share its CPUs.
        "threads": max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))),
    }
    # All ranks need the same number of batches: each step synchronises the gradients.
    training: dict[str, Any] = {**both, "train": True, "drop_last": True}
    # Each image is evaluated exactly once, so some ranks have one more image.
    evaluation: dict[str, Any] = {**both, "remainder": "uneven"}
    if options.val:
        train = ImageLoader(options.data, **training)
        return train, ImageLoader(options.val, **evaluation), len(train.classes)
    shown, held_out = demo_data.split(options.data or demo_data.folder())
    train = ImageLoader(shown.paths, labels=shown.labels, **training)
    val = ImageLoader(held_out.paths, labels=held_out.labels, **evaluation)
    return train, val, max(shown.labels) + 1


def network(classes: int, channels: tuple[int, ...] = (3, 16, 32, 64)) -> nn.Sequential:
    """Returns a network of a few stride-2 convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(channels, channels[1:]):
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pool, nn.Linear(channels[-1], classes))


@torch.inference_mode()
def evaluate(model: nn.Module, loader: ImageLoader, device: torch.device) -> float:
    """Returns the accuracy over all ranks."""
    right_and_total = torch.zeros(2, dtype=torch.int64, device=device)
    # Ranks may have different numbers of batches here, so use the model without synchronisation.
    local = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    local.eval()
    for images, labels in loader:
        found = local(torch.from_numpy(images).to(device)).argmax(1).cpu()
        right_and_total[0] += (found == torch.from_numpy(labels)).sum()
        right_and_total[1] += len(labels)
    local.train()
    if WORLD_SIZE > 1:
        distributed.all_reduce(right_and_total)
    right, total = right_and_total.tolist()
    return right / total


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="folder with one folder per class")
    parser.add_argument("--val", type=Path, help="folder for evaluation [default: 20 %% of DATA]")
    parser.add_argument("--epochs", type=int, default=3, help="number of epochs [default: 3]")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="images per batch and rank [default: 32]"
    )
    parser.add_argument("--size", type=int, default=64, help="image side in pixels [default: 64]")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="[default: 0.003]")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights, order and crops [default: 0]"
    )
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default_device, help="compute device [default: cuda if available]"
    )
    options = parser.parse_args()
    if options.val and not options.data:
        parser.error("--val requires DATA")
    return options


if __name__ == "__main__":
    main()
