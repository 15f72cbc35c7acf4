"""The data that the examples run on where none is given: what `cargo xtask demo` made last."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

_REPOSITORY = Path(__file__).resolve().parents[2]


class Labeled(NamedTuple):
    """Images, and the class of each."""

    paths: list[Path]
    labels: list[int]


def folder() -> Path:
    """A folder with a folder of JPEGs for each class.

    A class shows crops of one photograph. There are 14 of these: with more classes, some cannot be
    told from each other.
    """
    target = Path(os.environ.get("CARGO_TARGET_DIR", _REPOSITORY / "target"))
    made = sorted(target.glob("demo/data-*"), key=os.path.getmtime)
    if not made:
        raise SystemExit("say which folder of images; `cargo xtask demo` makes one to try this on")
    return made[-1]


def labeled(images: Path) -> Labeled:
    """All images of a folder of class folders; classes are numbered as by `ImageLoader`."""
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    pairs = [(path, label) for label, name in enumerate(classes) for path in sorted(name.iterdir())]
    if not pairs:
        raise SystemExit(f"{images} has no folders with images")
    return Labeled([path for path, _ in pairs], [label for _, label in pairs])


def split(images: Path) -> tuple[Labeled, Labeled]:
    """Four fifths of the images to train on, and the rest to evaluate on."""
    everything = labeled(images)
    train, held_out = Labeled([], []), Labeled([], [])
    for number, (path, label) in enumerate(zip(*everything)):
        part = train if number % 5 else held_out
        part.paths.append(path)
        part.labels.append(label)
    return train, held_out


def shards(images: Path, count: int = 4) -> str:
    """Tar shards of the images, as `webdataset` lays them out, made once beside their folder.

    `spdl pack FOLDER SHARDS/` does that better, and for every kind of data set.
    """
    place = images.parent / f"shards-of-{images.name}"
    if not place.is_dir():
        unfinished = images.parent / f".{place.name}"
        unfinished.mkdir(exist_ok=True)
        samples = list(zip(*labeled(images)))
        for shard in range(count):
            with tarfile.open(unfinished / f"shard-{shard}.tar", "w") as archive:
                for number in range(shard, len(samples), count):
                    path, label = samples[number]
                    _add(archive, f"{number:06}{path.suffix}", path.read_bytes())
                    _add(archive, f"{number:06}.cls", b"%d" % label)
        unfinished.rename(place)
    return str(place / f"shard-{{0..{count - 1}}}.tar")


def by_pillow(file: Any, size: int) -> Any:
    """The centre of an image as Pillow decodes and resizes it: `uint8 [size, size, 3]`."""
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
