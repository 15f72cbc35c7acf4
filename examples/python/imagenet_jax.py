"""Trains a small network on images in class folders with JAX, and evaluates it after each epoch.

    cargo xtask demo                        creates a demo data set
    python examples/python/imagenet_jax.py
    python examples/python/imagenet_jax.py imagenet/train --val imagenet/val --size 224

Requires `spdl-rs` and `jax`. Batches are normalised float32 arrays in NHWC layout, which JAX shares
without a copy on the CPU. The rate of the first epoch includes compilation.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import demo_data
import jax
import jax.numpy as jnp
import numpy
from spdl_rs import ImageLoader
from spdl_rs.io import to_jax


def main() -> None:
    options = arguments()
    train, val, classes = loaders(options)
    params = network(jax.random.key(options.seed), classes)
    momentum = jax.tree.map(jnp.zeros_like, params)

    for epoch in range(options.epochs):
        start, losses = time.perf_counter(), []
        for images, labels in train:
            params, momentum, loss = train_step(
                params, momentum, to_jax(images), labels, options.learning_rate
            )
            # Asynchronous: JAX computes while the next batch is loaded.
            losses.append(loss)
        mean_loss = float(jnp.stack(losses).mean())
        seconds = time.perf_counter() - start

        waited = train.stats()["consumer"]["waited_s"]
        print(
            f"epoch {epoch}: {len(losses)} steps, loss {mean_loss:.3f}, "
            f"{evaluate(params, val):.0%} accuracy on held-out images; "
            f"{len(losses) * options.batch_size / seconds:,.0f} images/s, "
            f"{waited / seconds:.0%} of the time waited for data",
            flush=True,
        )
    print(train.diagnose())
    if options.save:
        numpy.savez(options.save, *jax.tree.leaves(params))


def loaders(options: argparse.Namespace) -> tuple[ImageLoader, ImageLoader, int]:
    """Returns the training loader, the evaluation loader, and the number of classes."""
    both: dict[str, Any] = {
        "batch_size": options.batch_size,
        "size": options.size,
        "layout": "nhwc-f32",
        "seed": options.seed,
    }
    # With batches of one size, JAX compiles the step only once.
    training: dict[str, Any] = {**both, "train": True, "drop_last": True}
    if options.val:
        train = ImageLoader(options.data, **training)
        return train, ImageLoader(options.val, **both), len(train.classes)
    shown, held_out = demo_data.split(options.data or demo_data.folder())
    train = ImageLoader(shown.paths, labels=shown.labels, **training)
    val = ImageLoader(held_out.paths, labels=held_out.labels, **both)
    return train, val, max(shown.labels) + 1


def network(key: jax.Array, classes: int, channels: tuple[int, ...] = (3, 16, 32, 64)) -> Any:
    """Returns the parameters of a few stride-2 convolutions and a linear layer."""
    keys = jax.random.split(key, len(channels))
    kernels = [
        jax.random.normal(key, (3, 3, inputs, outputs)) * (2 / (9 * inputs)) ** 0.5
        for key, inputs, outputs in zip(keys, channels, channels[1:])
    ]
    return {"kernels": kernels, "head": head(keys[-1], channels[-1], classes)}


def head(key: jax.Array, inputs: int, classes: int) -> jax.Array:
    return jax.random.normal(key, (inputs, classes)) * inputs**-0.5


def logits(params: Any, images: jax.Array) -> jax.Array:
    """Maps `float32 [N, size, size, 3]` to `float32 [N, classes]`."""
    x = images
    for kernel in params["kernels"]:
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=dimensions)
        x = jax.nn.relu(x)
    return x.mean((1, 2)) @ params["head"]


@jax.jit
def train_step(params: Any, momentum: Any, images: Any, labels: Any, learning_rate: float) -> Any:
    """One step of gradient descent; returns parameters, momentum and loss."""

    def loss_of(params: Any) -> jax.Array:
        of_classes = jax.nn.log_softmax(logits(params, images))
        return -jnp.take_along_axis(of_classes, labels[:, None], axis=1).mean()

    loss, gradient = jax.value_and_grad(loss_of)(params)
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, gradient)
    params = jax.tree.map(lambda old, change: old - learning_rate * change, params, momentum)
    return params, momentum, loss


@jax.jit
def count_right(params: Any, images: Any, labels: Any) -> jax.Array:
    return (logits(params, images).argmax(1) == labels).sum()


def evaluate(params: Any, loader: ImageLoader) -> float:
    """Returns the accuracy."""
    right = total = 0
    for images, labels in loader:
        right += int(count_right(params, to_jax(images), labels))
        total += len(labels)
    return right / total


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="folder with one folder per class")
    parser.add_argument("--val", type=Path, help="folder for evaluation [default: 20 %% of DATA]")
    parser.add_argument("--epochs", type=int, default=3, help="number of epochs [default: 3]")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch [default: 32]")
    parser.add_argument("--size", type=int, default=64, help="image side in pixels [default: 64]")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="[default: 0.05]")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights, order and crops [default: 0]"
    )
    parser.add_argument("--save", type=Path, help="write the weights to this file (.npz)")
    options = parser.parse_args()
    if options.val and not options.data:
        parser.error("--val requires DATA")
    return options


if __name__ == "__main__":
    main()
