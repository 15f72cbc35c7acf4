"""Fine-tunes a trained network on tar shards with JAX, and resumes from a checkpoint.

    cargo xtask demo                            creates a demo data set
    python examples/python/imagenet_jax.py --save weights.npz
    python examples/python/finetune_from_shards.py --weights weights.npz --checkpoint run.state
    python examples/python/finetune_from_shards.py "https://host/{000..147}.tar" --cache /scratch

Requires `spdl-rs` and `jax`. If a run with `--checkpoint` is interrupted by Ctrl-C, a crash or
`kill -9`, run the same command again: the program resumes from the last checkpoint, and the result
equals that of an uninterrupted run. Shards are local files, or URLs of a web server or store.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from pathlib import Path
from typing import Any

import demo_data
import jax
import jax.numpy as jnp
import numpy
from imagenet_jax import head, network, train_step
from spdl_rs import ImageLoader
from spdl_rs.io import to_jax


def main() -> None:
    options = arguments()
    loader = ImageLoader(
        options.shards or demo_data.shards(demo_data.folder()),
        batch_size=options.batch_size,
        size=options.size,
        train=True,
        layout="nhwc-f32",
        drop_last=True,
        seed=options.seed,
        on_error="skip",
        cache=options.cache,
    )
    print(loader)
    params = pretrained(options)
    momentum = jax.tree.map(jnp.zeros_like, params)
    step = 0
    if options.checkpoint and options.checkpoint.exists():
        # Security: unpickling can execute code, so load only your own checkpoints.
        saved = pickle.loads(options.checkpoint.read_bytes())
        params, momentum, step = saved["params"], saved["momentum"], saved["step"]
        loader.load_state_dict(saved["loader"])
        print(f"resuming in epoch {loader.epoch} after step {step}")

    def save() -> None:
        state = {"params": params, "momentum": momentum, "step": step}
        # The state matches the weights: prefetched batches are loaded again after a resume.
        write(options.checkpoint, {**state, "loader": loader.state_dict()})

    for epoch in range(loader.epoch, options.epochs):
        start, losses = time.perf_counter(), []
        for images, labels in loader:
            params, momentum, loss = train_step(
                params, momentum, to_jax(images), labels, options.learning_rate
            )
            losses.append(loss)
            step += 1
            if options.checkpoint and step % options.save_every == 0:
                save()
            if step == options.stop_after:
                return
        seconds = time.perf_counter() - start
        if losses:
            statistics = loader.stats()
            print(
                f"epoch {epoch}: step {step}, loss {float(jnp.stack(losses).mean()):.4f}; "
                f"{len(losses) * options.batch_size / seconds:,.0f} images/s, "
                f"{statistics['consumer']['waited_s'] / seconds:.0%} of the time waited for data; "
                f"{statistics['dropped_total']} corrupt images dropped",
                flush=True,
            )
    print(loader.diagnose())
    if options.checkpoint:
        save()


def pretrained(options: argparse.Namespace) -> Any:
    """Creates a network with the weights of a trained network, if given, and a new last layer."""
    key = jax.random.key(options.seed)
    params = network(key, options.classes)
    if options.weights:
        trained = [jnp.asarray(array) for array in numpy.load(options.weights).values()]
        params = jax.tree.unflatten(jax.tree.structure(params), trained)
    inputs, _ = params["head"].shape
    return {**params, "head": head(key, inputs, options.classes)}


def write(path: Path, checkpoint: dict[str, Any]) -> None:
    """Replaces the checkpoint file atomically."""
    temporary = path.with_name(f"{path.name}.partial")
    temporary.write_bytes(pickle.dumps(jax.device_get(checkpoint)))
    os.replace(temporary, path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", nargs="?", help="tar shards, such as shards/shard-{000..147}.tar")
    parser.add_argument("--weights", type=Path, help="weights written by imagenet_jax.py --save")
    parser.add_argument("--classes", type=int, default=100, help="number of classes [default: 100]")
    parser.add_argument("--checkpoint", type=Path, help="resume from this file, and save to it")
    parser.add_argument(
        "--save-every", type=int, default=10, help="steps between checkpoints [default: 10]"
    )
    parser.add_argument("--stop-after", type=int, help="exit after this step, to test a resume")
    parser.add_argument("--cache", type=Path, help="cache the images in this folder")
    parser.add_argument("--epochs", type=int, default=3, help="number of epochs [default: 3]")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch [default: 32]")
    parser.add_argument("--size", type=int, default=64, help="image side in pixels [default: 64]")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="[default: 0.05]")
    parser.add_argument("--seed", type=int, default=0, help="seed of order and crops [default: 0]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
