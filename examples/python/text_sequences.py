"""Packs text documents into token sequences of equal length, for training a language model.

    python examples/python/text_sequences.py
    python examples/python/text_sequences.py corpus/ --length 1024 --batch-size 8 --epochs 2

Requires `spdl-rs` and `numpy`. Without a folder of `.txt` files, the program generates documents.

Tokens are bytes; replace `tokenize` by a real tokenizer. Documents are concatenated, with an end
token after each, and split into sequences. So no sequence is padded, and only the last tokens of an
epoch are left out. The order of documents differs in each epoch, and depends only on the seed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
from spdl_rs.pipeline import PipelineBuilder
from spdl_rs.pipeline.defs import Aggregator
from spdl_rs.source import DistributedRandomSampler

END = 256


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted((options.data or generated(Path(folder))).rglob("*.txt"))
        if not paths:
            raise SystemExit(f'"{options.data}" contains no .txt files')
        for epoch in range(options.epochs):
            run_epoch(paths, epoch, options)


def run_epoch(paths: list[Path], epoch: int, options: argparse.Namespace) -> None:
    order = DistributedRandomSampler(len(paths), rank=0, world_size=1, seed=options.seed + epoch)
    pipeline = (
        PipelineBuilder()
        .add_source(order)
        .pipe(paths.__getitem__, name="path", output_order="input")
        .pipe(tokenize, concurrency=4, output_order="input")
        .aggregate(Sequences(options.length + 1))
        .disaggregate()
        .aggregate(options.batch_size, drop_last=True)
        .pipe(as_batch, output_order="input")
        .add_sink()
        .build(num_threads=4)
    )
    tokens = batches = checksum = 0
    start = time.perf_counter()
    with pipeline.auto_stop():
        for inputs, targets in pipeline:
            # Each target is the token after its input.
            assert inputs.shape == targets.shape == (options.batch_size, options.length)
            tokens, batches = tokens + targets.size, batches + 1
            checksum = (checksum * 31 + int(inputs.sum())) % 2**32
    rate = tokens / (time.perf_counter() - start)
    print(
        f"epoch {epoch}: {batches} batches, {tokens:,} tokens, {rate:,.0f} tokens/s, "
        f"checksum {checksum:08x}"
    )


def tokenize(path: Path) -> numpy.ndarray:
    """Returns the tokens of a document: its bytes, and the end token."""
    text = numpy.frombuffer(path.read_bytes(), numpy.uint8)
    return numpy.append(text.astype(numpy.int64), END)


class Sequences(Aggregator):
    """Concatenates documents, and splits them into sequences of equal length."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._rest = numpy.empty(0, numpy.int64)

    def accumulate(self, item: numpy.ndarray) -> list[numpy.ndarray] | None:
        tokens = numpy.concatenate([self._rest, item])
        whole = len(tokens) // self._length * self._length
        self._rest = tokens[whole:]
        return list(tokens[:whole].reshape(-1, self._length)) or None

    def flush(self) -> None:
        """Leaves out the tokens that do not fill a sequence."""


def as_batch(sequences: list[numpy.ndarray]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Returns inputs and targets."""
    tokens = numpy.stack(sequences)
    return tokens[:, :-1], tokens[:, 1:]


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
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
