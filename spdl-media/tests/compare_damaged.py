"""Compares the pixels of damaged images with those of Pillow, and prints a row of a table for each format.

    python -m venv venv && venv/bin/pip install pillow==13.0.0 numpy spdl_rs
    venv/bin/python spdl-media/tests/compare_damaged.py png gif tiff --copies 40

Each copy of a file of this folder has 1, 2 or 4 random bytes replaced; one in ten is truncated instead. In a PNG, the
bytes are those of a chunk, or of the decompressed rows, and the checksums are corrected. The same seed gives the same
copies. `--keep DIR` writes the copies with different pixels. The results are in
docs/decisions/decoder-crates.md.
"""

import argparse
import collections
import io
import random
import struct
import warnings
import zlib
from pathlib import Path

import numpy
import spdl_rs
from PIL import Image
from spdl_rs.io import DecodeImage, Stretch

TESTS = Path(__file__).resolve().parent
FOLDERS = ["data", "formats/data", "formats/variants"]
COLUMNS = ["equal", "both reject", "only Pillow accepts", "only this project accepts", "different pixels"]
MAX_PIXELS, MAX_SIDE = 1 << 24, 1 << 14
Image.MAX_IMAGE_PIXELS = MAX_PIXELS
warnings.simplefilter("ignore")


def damaged(data, rng):
    if rng.random() < 0.1:
        return data[: rng.randrange(len(data))]
    return damaged_png(data, rng) if data.startswith(b"\x89PNG") else with_other_bytes(data, rng)


def with_other_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 2, 4])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def damaged_png(data, rng):
    chunks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + length]])
        at += 12 + length
    rows = [chunk for chunk in chunks if chunk[0] == b"IDAT"]
    if rng.random() < 0.5:
        whole = zlib.compress(with_other_bytes(zlib.decompress(b"".join(chunk[1] for chunk in rows)), rng))
        rows[0][1] = whole
        chunks = [chunk for chunk in chunks if chunk not in rows[1:]]
    else:
        chunk = rng.choice([chunk for chunk in chunks if chunk[1]])
        chunk[1] = with_other_bytes(chunk[1], rng)
    parts = [struct.pack(">I", len(text)) + name + text for name, text in chunks]
    return data[:8] + b"".join(part + struct.pack(">I", zlib.crc32(part[4:])) for part in parts)


def by_pillow(data):
    """`uint8 [height, width, 3]`, or None."""
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
        return None if max(image.size) > MAX_SIDE else numpy.asarray(image.convert("RGB"))
    except Exception:
        return None


def by_this_project(data, size):
    """The same in this size, which must be that of the image."""
    try:
        return DecodeImage(size, crop=Stretch(), exact=True, on_truncated="error")(data)
    except (spdl_rs.DataError, spdl_rs.UnsupportedError):
        return None


def compare(data):
    pillow = by_pillow(data)
    ours = by_this_project(data, (16, 16) if pillow is None else pillow.shape[:2])
    if pillow is None or ours is None:
        return COLUMNS[1 + 2 * (pillow is None and ours is not None) + (pillow is not None)]
    return COLUMNS[0] if numpy.array_equal(pillow, ours) else COLUMNS[4]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("formats", nargs="+", help="file extensions, such as png")
    arguments.add_argument("--copies", type=int, default=20, help="damaged copies of each file")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--keep", type=Path, help="folder for the copies with different pixels")
    arguments = arguments.parse_args()
    print("| format | copies | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * (1 + len(COLUMNS)))
    for format in arguments.formats:
        counts = collections.Counter()
        files = sorted(file for folder in FOLDERS for file in (TESTS / folder).glob(f"*.{format}"))
        for file in files:
            rng = random.Random(f"{arguments.seed} {file.name}")
            data = file.read_bytes()
            if compare(data) != "equal":
                # Pillow reads another depth or layout, or the file is refused by one of both.
                continue
            for number in range(arguments.copies):
                copy = damaged(data, rng)
                result = compare(copy)
                counts[result] += 1
                if result == COLUMNS[4] and arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    (arguments.keep / f"{file.stem}-{number}{file.suffix}").write_bytes(copy)
        cells = [format.upper(), counts.total(), *(counts[column] for column in COLUMNS)]
        print("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + " |", flush=True)


main()
