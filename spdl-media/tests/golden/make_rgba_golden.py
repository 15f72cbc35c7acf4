"""Makes the expected pixels of tests/golden/rgba.*: alpha and 16 bits.

    python -m venv venv && venv/bin/pip install pillow==13.0.0 numpy tifffile
    venv/bin/python spdl-media/tests/golden/make_rgba_golden.py

Run with Pillow 13.0.0, NumPy 2.4, tifffile 2026.3.3, Python 3.11. Reads tests/data, and writes its files
`wide-*`: PNG files by the standard library, TIFF files by tifffile.

rgba.tsv has one line per expectation: kind, file name, filter name of this project, left, top, width and
height of the crop, width and height of the result. rgba.bin is a zlib stream of all expectations. Kinds:

- `rgba`: the crop in Pillow's mode RGBA, 4 bytes per pixel, not resized.
- `premultiplied`: the crop in Pillow's mode RGBa, resized: the width first, as Pillow before 13.0.
- `wide`: red, green, blue and alpha, 16 bits, little-endian. They are arrays of NumPy that were written to
  the file, or as tifffile and Pillow read them; resized as floats by Pillow.
"""

import struct
import zlib
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "area": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos3": Image.Resampling.LANCZOS,
}
WITH_ALPHA = [
    "rgb-alpha.png",
    "grey-alpha.png",
    "palette-transparent.png",
    "lossy-alpha.webp",
    "lossless-alpha.webp",
    "transparent.gif",
    "rgb-alpha.tiff",
    "rgb-alpha.bmp",
    # Without alpha.
    "rgb.png",
    "palette.gif",
    "lossless.webp",
    "rgb.tiff",
    "rgb.bmp",
]
SIZE = (29, 23)  # height, width


def write_png(path, pixels, color_type):
    """A PNG of 16 bits, not interlaced."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))


def wide_files():
    """The pixels of files with 16 bits: red, green, blue, alpha."""
    rng = np.random.default_rng(20)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = [np.sin(x / 3 + k) * np.cos(y / 5 - k) for k in range(4)]
    smooth = np.stack([(wave + 1) * 32767 for wave in waves], axis=-1)
    pixels = np.clip(smooth + rng.integers(-900, 900, smooth.shape), 0, 65535).astype(np.uint16)
    rgb, grey, alpha = pixels[..., :3], pixels[..., :1], pixels[..., 3:]
    opaque = np.full_like(alpha, 65535)
    write_png(DATA / "wide-rgb.png", rgb, 2)
    write_png(DATA / "wide-rgb-alpha.png", pixels, 6)
    write_png(DATA / "wide-grey-alpha.png", np.concatenate([grey, alpha], axis=-1), 4)
    tifffile.imwrite(DATA / "wide-rgb.tiff", rgb, photometric="rgb", metadata=None, software="")
    options = {"photometric": "rgb", "extrasamples": ["unassalpha"], "metadata": None, "software": ""}
    tifffile.imwrite(DATA / "wide-rgb-alpha.tiff", pixels, **options)
    planes = np.moveaxis(pixels, -1, 0).copy()
    options |= {"planarconfig": "separate", "byteorder": ">", "rowsperstrip": 8}
    tifffile.imwrite(DATA / "wide-planes.tiff", planes, **options)
    assert (tifffile.imread(DATA / "wide-rgb.tiff") == rgb).all()
    assert (tifffile.imread(DATA / "wide-planes.tiff") == planes).all()
    grey_of = {name: np.asarray(Image.open(DATA / name)).astype(np.uint16) for name in ("grey16.png", "grey16.tiff")}
    files = {
        "wide-rgb.png": np.concatenate([rgb, opaque], axis=-1),
        "wide-rgb-alpha.png": pixels,
        "wide-grey-alpha.png": np.concatenate([grey, grey, grey, alpha], axis=-1),
        "wide-rgb.tiff": np.concatenate([rgb, opaque], axis=-1),
        "wide-rgb-alpha.tiff": pixels,
        "wide-planes.tiff": pixels,
    }
    for name, found in grey_of.items():
        full = np.full_like(found, 65535)
        files[name] = np.stack([found, found, found, full], axis=-1)
    return files


def resized(pixels, size, resample):
    """Resizes an array of floats from 0 to 65,535, the width first, and clamps after each pass."""
    width, height = size
    channels = []
    for channel in np.moveaxis(pixels, -1, 0):
        image = Image.fromarray(channel.astype(np.float32))
        for step in ((width, image.height), (width, height)):
            image = Image.fromarray(np.clip(np.asarray(image.resize(step, resample)), 0, 65535))
        channels.append(np.asarray(image, dtype=np.float64))
    return np.stack(channels, axis=-1)


def resized_wide(pixels, size, resample):
    if resample == Image.Resampling.NEAREST:
        channels = [Image.fromarray(one.copy()).resize(size, resample) for one in np.moveaxis(pixels, -1, 0)]
        return np.stack([np.asarray(one) for one in channels], axis=-1)
    colors, alpha = pixels[..., :3].astype(np.float64), pixels[..., 3:].astype(np.float64)
    found = resized(np.concatenate([colors * alpha / 65535, alpha], axis=-1), size, resample)
    share = np.maximum(found[..., 3:], 1e-9) / 65535
    straight = np.clip(np.concatenate([found[..., :3] / share, found[..., 3:]], axis=-1), 0, 65535)
    straight = np.floor(straight + 0.5).astype(np.uint16)
    straight[straight[..., 3] == 0] = 0
    return straight


def main():
    lines, content = [], b""

    def add(kind, name, filter_name, crop, size, values):
        nonlocal content
        lines.append("\t".join(map(str, (kind, name, filter_name, *crop, *size))))
        content += values

    for name in WITH_ALPHA:
        image = Image.open(DATA / name).convert("RGBA")
        width, height = image.size
        for crop in ((0, 0, width, height), (3, 2, width - 7, height - 5)):
            left, top, *size = crop
            part = image.crop((left, top, left + size[0], top + size[1]))
            add("rgba", name, "bilinear", crop, size, part.tobytes())
    for name in ("rgb-alpha.png", "lossless-alpha.webp"):
        image = Image.open(DATA / name).convert("RGBA").convert("RGBa")
        crop = (0, 0, *image.size)
        for size in ((17, 11), (51, 60)):
            for filter_name, resample in FILTERS.items():
                if filter_name != "nearest":
                    across = image.resize((size[0], image.height), resample)
                    add("premultiplied", name, filter_name, crop, size, across.resize(size, resample).tobytes())
    for name, pixels in wide_files().items():
        height, width = pixels.shape[:2]
        crop = (2, 3, width - 5, height - 4)
        left, top, *size = crop
        part = pixels[top : top + size[1], left : left + size[0]]
        add("wide", name, "bicubic", crop, size, part.astype("<u2").tobytes())
        for filter_name, resample in FILTERS.items():
            size = (13, 37)
            values = resized_wide(pixels, size, resample)
            add("wide", name, filter_name, (0, 0, width, height), size, values.astype("<u2").tobytes())
    (HERE / "rgba.tsv").write_text("\n".join(lines) + "\n")
    (HERE / "rgba.bin").write_bytes(zlib.compress(content, 9))
    print(len(lines), "expectations,", (HERE / "rgba.bin").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
