"""Fine-tunes a trained network on other classes, from tar shards; ended in any way, it goes on.

    cargo xtask demo                            makes a data set to try it on
    python examples/python/imagenet_jax.py --save weights.npz
    python examples/python/finetune_from_shards.py --weights weights.npz --checkpoint run.state
    python examples/python/finetune_from_shards.py "https://host/{000..147}.tar" --cache /scratch

It needs `jax` beside `spdl-rs`. Given the same line again after Ctrl-C, a crash or `kill -9`, it
goes on from the checkpoint: no image is shown twice or left out, and the outcome is that of a run
which nothing disturbed. Shards may lie on a disk, on a web server or in a store.
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
        # Unpickling runs what the file says: load none that you have not written.
        saved = pickle.loads(options.checkpoint.read_bytes())
        params, momentum, step = saved["params"], saved["momentum"], saved["step"]
        loader.load_state_dict(saved["loader"])
        print(f"goes on in epoch {loader.epoch} after step {step}")

    def save() -> None:
        state = {"params": params, "momentum": momentum, "step": step}
        # Of the same moment as the weights: batches that were made ahead are made again.
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
                f"{statistics['dropped_total']} damaged images left out",
                flush=True,
            )
    print(loader.diagnose())
    if options.checkpoint:
        save()


def pretrained(options: argparse.Namespace) -> Any:
    """A network with the weights of another one, but for its last layer."""
    key = jax.random.key(options.seed)
    params = network(key, options.classes)
    if options.weights:
        trained = [jnp.asarray(array) for array in numpy.load(options.weights).values()]
        params = jax.tree.unflatten(jax.tree.structure(params), trained)
    inputs, _ = params["head"].shape
    return {**params, "head": head(key, inputs, options.classes)}


def write(path: Path, checkpoint: dict[str, Any]) -> None:
    """Writes it whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(pickle.dumps(jax.device_get(checkpoint)))
    os.replace(unfinished, path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", nargs="?", help="tar shards, as shards/shard-{000..147}.tar")
    parser.add_argument("--weights", type=Path, help="what imagenet_jax.py --save has written")
    parser.add_argument("--classes", type=int, default=100, help="labels are 0 to CLASSES - 1")
    parser.add_argument("--checkpoint", type=Path, help="go on from this file, and write it")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="end without a word after so many steps")
    parser.add_argument("--cache", type=Path, help="keep what was read in this folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="the side of the images in pixels")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
