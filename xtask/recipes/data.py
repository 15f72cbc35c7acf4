"""Writes the samples of `cargo xtask bench recipes`: image, mask, boxes with classes, caption.

Usage: data.py IMAGES OUT. `OUT/files` has loose files for loaders that read files, `OUT/*.tar` the same
samples as tar shards in the layout of WebDataset.
"""

import io
import json
import os
import random
import shutil
import sys
import tarfile

import numpy as np
from PIL import Image

SHARDS = 8
WORDS = (
    "a the old small red green quiet bright dog cat horse street river mountain house garden standing running "
    "near under beside photograph painting of with and in morning evening light"
).split()


def sample(path, label, number):
    """The members of a sample by extension."""
    draw = random.Random(number)
    with open(path, "rb") as file:
        encoded = file.read()
    width, height = Image.open(io.BytesIO(encoded)).size
    boxes, classes = [], []
    mask = np.zeros((height, width), np.uint8)
    for _ in range(draw.randint(1, 8)):
        left, top = draw.randint(0, width - 20), draw.randint(0, height - 20)
        right, bottom = draw.randint(left + 10, width), draw.randint(top + 10, height)
        kind = draw.randint(1, 90)
        boxes.append([left, top, right, bottom])
        classes.append(kind)
        mask[top:bottom, left:right] = kind
    png = io.BytesIO()
    Image.fromarray(mask).save(png, "PNG")
    caption = " ".join(draw.choice(WORDS) for _ in range(draw.randint(6, 24)))
    return {
        "jpg": encoded,
        "cls": str(label).encode(),
        "json": json.dumps({"boxes": boxes, "classes": classes}).encode(),
        "seg.png": png.getvalue(),
        "txt": caption.encode(),
    }


def main(images, out):
    if os.path.exists(os.path.join(out, "complete")):
        return
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(os.path.join(out, "files"))
    classes = sorted(entry.name for entry in os.scandir(images) if entry.is_dir())
    paths = [
        (os.path.join(images, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(images, name)))
    ]
    random.Random(0).shuffle(paths)
    per_shard = -(-len(paths) // SHARDS)
    for shard in range(SHARDS):
        with tarfile.open(os.path.join(out, f"train-{shard:04}.tar"), "w") as archive:
            for number in range(shard * per_shard, min((shard + 1) * per_shard, len(paths))):
                for extension, value in sample(*paths[number], number).items():
                    name = f"{number:06}.{extension}"
                    with open(os.path.join(out, "files", name), "wb") as file:
                        file.write(value)
                    member = tarfile.TarInfo(name)
                    member.size = len(value)
                    archive.addfile(member, io.BytesIO(value))
    open(os.path.join(out, "complete"), "w").close()


if __name__ == "__main__":
    main(*sys.argv[1:])
