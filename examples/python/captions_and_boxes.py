"""Loads images with a caption and boxes from tar shards, prints a batch, and resumes within an epoch.

    cargo xtask demo                            creates a demo data set
    python examples/python/captions_and_boxes.py
    python examples/python/captions_and_boxes.py photos --size 224

Requires `spdl-rs` and `numpy`. The program writes the images of the folder to tar shards, with a
document `NUMBER.json` for each: the name of its folder as the caption, and a square near the upper
left corner as a box. Replace the shards by yours, and `stored_as` and `at` by the places of your
values.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import tarfile
import tempfile
import time
from pathlib import Path

import demo_data
import numpy
from spdl_rs import Loader, fields
from spdl_rs.io import ColorJitter, RandomResizedCrop


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        write_shards(options.data or demo_data.folder(), Path(folder))
        loader = make_loader(folder, options)
        start = time.perf_counter()
        images = sum(len(batch["image"]) for batch in loader)
        seconds = time.perf_counter() - start
        print(f"{images:,} images in {seconds:.2f} s: {images / seconds:,.0f} images/s")
        print(loader.diagnose())
        show(loader.peek())
        print("the resumed epoch has equal batches:", resumes_exactly(folder, options))


def make_loader(folder: str, options: argparse.Namespace) -> Loader:
    return Loader(
        f"{folder}/train-*.tar",
        batch_size=options.batch_size,
        shuffle=True,
        image=fields.Image(
            options.size,
            crop=RandomResizedCrop((0.5, 1.0)),
            horizontal_flip=0.5,
            augment=ColorJitter(0.4),
        ),
        caption=fields.Text(stored_as="json", at="caption"),
        # Boxes follow the crop and the flip of the image; those outside it are dropped with their classes.
        boxes=fields.Boxes(format="xywh", stored_as="json", at="boxes"),
        classes=fields.Array(None, "int64", stored_as="json", at="classes", rows_of="boxes"),
        batch_map=with_prompts,
    )


def with_prompts(batch: dict, rng: numpy.random.Generator) -> dict:
    """Adds prompts with random words. Runs on the threads of the loader."""
    words = rng.choice(["a photo of", "a picture of", "an image of"], len(batch["caption"]))
    return {**batch, "prompt": [f"{a} {b}" for a, b in zip(words, batch["caption"])]}


def show(batch: dict) -> None:
    print(f"image: {batch['image'].dtype} {list(batch['image'].shape)}")
    for caption, boxes, classes in zip(batch["caption"][:3], batch["boxes"], batch["classes"]):
        print(f"{caption}: boxes {numpy.round(boxes, 1).tolist()} of classes {classes.tolist()}")


def resumes_exactly(folder: str, options: argparse.Namespace) -> bool:
    """Whether a loader that resumes after two batches delivers the others of the epoch."""
    loader = make_loader(folder, options)
    with iter(loader) as batches:
        delivered = list(itertools.islice(batches, 2))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(batches)
    again = make_loader(folder, options)
    again.load_state_dict(state)
    resumed = list(again)
    assert delivered and len(resumed) == len(rest)
    return all(
        (a["image"] == b["image"]).all() and a["prompt"] == b["prompt"]
        for a, b in zip(rest, resumed)
    )


def write_shards(images: Path, folder: Path, count: int = 4) -> None:
    """Writes the images, and a document for each, as tar shards in the layout of WebDataset."""
    samples = list(zip(*demo_data.labeled(images)))
    for shard in range(count):
        with tarfile.open(folder / f"train-{shard}.tar", "w") as archive:
            for number in range(shard, len(samples), count):
                path, label = samples[number]
                # Left, top, width and height; images must have at least 80 × 80 pixels.
                boxes = {"boxes": [[10, 10, 70, 70]], "classes": [label]}
                document = {"caption": path.parent.name, **boxes}
                add(archive, f"{number:06}{path.suffix}", path.read_bytes())
                add(archive, f"{number:06}.json", json.dumps(document).encode())


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="folder with one folder per class")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per batch [default: 32]")
    parser.add_argument("--size", type=int, default=224, help="image side in pixels [default: 224]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
