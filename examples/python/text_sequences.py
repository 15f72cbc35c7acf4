"""Packs text documents into token sequences of equal length, for training a language model, and resumes.

    python examples/python/text_sequences.py
    python examples/python/text_sequences.py corpus/ --tokenizer tokenizer.json --length 1024 --state state.json

Requires `spdl-rs` and `numpy`. Without a folder of `.txt` files, the program generates documents.

Rust threads read and tokenize the documents, and pack whole documents into sequences, with little padding; longer
documents are divided. Without `--tokenizer`, a `tokenizer.json` of Hugging Face, tokens are bytes. The order of
documents differs in each epoch, and depends only on the seed. With `--state`, the program saves its progress after each
batch; if it is interrupted, the next run resumes after the last saved batch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from spdl_rs import Loader, fields, sequences

IGNORED = -100
"""The target where the loss is 0, as PyTorch's `cross_entropy` expects by default."""


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted((options.data or generated(Path(folder))).rglob("*.txt"))
        if not paths:
            raise SystemExit(f'"{options.data}" contains no .txt files')
        loader = loader_of(paths, options)
        if options.state is not None and options.state.exists():
            loader.load_state_dict(json.loads(options.state.read_text()))
        while loader.epoch < options.epochs:
            run_epoch(loader, options)


def loader_of(paths: list[Path], options: argparse.Namespace) -> Loader:
    if options.tokenizer is None:
        tokens: fields.Field = fields.Array(None, "int64", stored_dtype="uint8")
    else:
        tokens = fields.Tokens(options.tokenizer)
    return Loader(
        [{"tokens": path} for path in paths],
        batch_size=options.batch_size,
        shuffle=True,
        seed=options.seed,
        drop_last=True,
        tokens=tokens,
        # A sequence has one more token than an input, because targets are the following tokens.
        group=sequences.Pack("tokens", length=options.length + 1, long="split"),
    )


def run_epoch(loader: Loader, options: argparse.Namespace) -> None:
    epoch = loader.epoch
    tokens = batches = checksum = 0
    start = time.perf_counter()
    for batch in loader:
        inputs, targets = inputs_and_targets(batch)
        assert inputs.shape == targets.shape == (options.batch_size, options.length)
        # The training step belongs here.
        tokens, batches = tokens + int((targets != IGNORED).sum()), batches + 1
        checksum = (checksum * 31 + int(inputs.sum())) % 2**32
        if options.state is not None:
            save(loader.state_dict(), options.state)
    rate = tokens / (time.perf_counter() - start)
    print(
        f"epoch {epoch}: {batches} batches, {tokens:,} tokens, {rate:,.0f} tokens/s, "
        f"checksum {checksum:08x}"
    )


def inputs_and_targets(batch: dict[str, Any]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Returns the tokens, and the token after each; tokens of another document and padding are no targets."""
    tokens, segments = batch["tokens"], batch["segment_ids"]
    is_target = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return tokens[:, :-1], numpy.where(is_target, tokens[:, 1:], IGNORED)


def save(state: dict[str, Any], path: Path) -> None:
    """Replaces the file, so that it is complete at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    os.replace(new, path)


def generated(folder: Path) -> Path:
    """Writes 200 documents of random words, and returns their folder."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=n % 9 + 1)) for n in range(500)]
    for number, text in enumerate(documents(draw, words)):
        (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")
    return folder


def documents(draw: random.Random, words: list[str]) -> Iterator[str]:
    for _ in range(200):
        yield " ".join(draw.choices(words, k=draw.randint(10, 400)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="a folder with .txt files")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it, tokens are bytes")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="the file of the progress")
    return parser.parse_args()


if __name__ == "__main__":
    main()
