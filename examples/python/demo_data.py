"""The default data set of the examples: the newest output of `cargo xtask demo`."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

_REPOSITORY = Path(__file__).resolve().parents[2]


class Labeled(NamedTuple):
    """Paths of images, and the class number of each image."""

    paths: list[Path]
    labels: list[int]


def folder() -> Path:
    """Returns a folder with one subfolder of JPEG files for each class.

    The images of a class are crops of one photograph. There are 14 photographs, so with more than
    14 classes, some classes look the same.
    """
    target = Path(os.environ.get("CARGO_TARGET_DIR", _REPOSITORY / "target"))
    made = sorted(target.glob("demo/data-*"), key=os.path.getmtime)
    if not made:
        raise SystemExit("no data set found: pass a folder of images, or run `cargo xtask demo`")
    return made[-1]


def labeled(images: Path) -> Labeled:
    """Lists all images in class folders, and numbers the classes as `ImageLoader` does."""
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    pairs = [(path, label) for label, name in enumerate(classes) for path in sorted(name.iterdir())]
    if not pairs:
        raise SystemExit(f'"{images}" contains no folders with images')
    return Labeled([path for path, _ in pairs], [label for _, label in pairs])


def split(images: Path) -> tuple[Labeled, Labeled]:
    """Selects 80 % of the images for training and the other 20 % for evaluation."""
    everything = labeled(images)
    train, held_out = Labeled([], []), Labeled([], [])
    for number, (path, label) in enumerate(zip(*everything)):
        part = train if number % 5 else held_out
        part.paths.append(path)
        part.labels.append(label)
    return train, held_out


def shards(images: Path, count: int = 4) -> str:
    """Writes the images as tar shards next to their folder, unless the shards exist already.

    Returns a pattern with the paths of all shards, which have the WebDataset layout.
    `spdl pack FOLDER SHARDS/` is the general tool for all kinds of data sets.
    """
    place = images.parent / f"shards-of-{images.name}"
    if not place.is_dir():
        temporary = images.parent / f".{place.name}"
        temporary.mkdir(exist_ok=True)
        samples = list(zip(*labeled(images)))
        for shard in range(count):
            with tarfile.open(temporary / f"shard-{shard}.tar", "w") as archive:
                for number in range(shard, len(samples), count):
                    path, label = samples[number]
                    _add(archive, f"{number:06}{path.suffix}", path.read_bytes())
                    _add(archive, f"{number:06}.cls", b"%d" % label)
        temporary.rename(place)
    return str(place / f"shard-{{0..{count - 1}}}.tar")


def by_pillow(file: Any, size: int) -> Any:
    """Decodes, resizes and centre-crops an image with Pillow: `uint8 [size, size, 3]`."""
    import numpy
    from PIL import Image

    with Image.open(file) as opened:
        image = opened.convert("RGB")
    scale = size / 0.875 / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return numpy.array(image.crop((left, top, left + size, top + size)))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
