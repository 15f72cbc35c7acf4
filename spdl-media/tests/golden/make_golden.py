"""Makes the small image files of tests/data and the expected pixels of tests/golden.

    python -m venv venv && venv/bin/pip install pillow==13.0.0 numpy
    venv/bin/python spdl-media/tests/golden/make_golden.py

Run with Pillow 13.0.0 (libjpeg-turbo 3.2.0, libwebp 1.6.0, libtiff 4.7.2), NumPy 2.4, Python 3.11.
Reads assets/photos and the third-party files of SPDL_CORPORA (default: ../shared/corpora beside the
repository). Third-party files are not copied, but some of their pixels are stored.

golden.tsv has one line per expectation: folder (data, photos, corpora), path, action (`decode`;
`eval SIZE`; `crop LEFT TOP WIDTH HEIGHT SIZE`), width and height of the result, the step between
stored pixels (in row order), and the number of its bytes in golden.bin, a zlib stream of RGB pixels.
"""

import csv
import io
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
DATA = HERE.parent / "data"
PHOTOS = REPOSITORY / "assets" / "photos"
CORPORA = Path(os.environ.get("SPDL_CORPORA", REPOSITORY.parent / "shared" / "corpora"))

KEPT_PIXELS = 1500
EVAL_SIZE = 48
CROP_SIZE = 32
CORPORA_FILES = 60

# Pillow accepts these files, but with other pixels, on purpose or because of a bug.
LEFT_OUT = {
    "flower-rgb-planar-16.tif": "Pillow reads planes of 16 bits as planes of 8",
    "flower-separated-planar-16.tif": "likewise",
    "anim.webp": "the crate blends the first frame's translucent pixels otherwise",
    "V5_A1_R5_G5_B5.bmp": "5 bits are stretched to 8 otherwise, by up to 1 level in half of the samples",
    "hpredict-1c-12b.tiff": "12 bits are not supported",
    "smallliz.tif": "the likes of it are in tests/formats/variants",
    "zackthecat.tif": "old-style JPEG of separate tables is not supported",
    "fax2d.tif": "the likes of it are in tests/formats/variants",
    "seq-1c-1b-fax3-lsb-71f6a21a.tiff": "likewise",
    "big_g4.tif": "likewise",
    "badplanes.bmp": "likewise",
    "progressive-missing-dc.jpg": "refused: it holds no DC scan, all is grey",
    "28c74d9284d9836017fd519f6932efd8.jpg": "likewise",
}
# Another test covers files of fuzzers, most of which are corrupt. These JPEGs are valid.
NOT_FOR_PIXELS = {"go-fuzz-corpus", "ljt-seed-corpora-afl", "fuzzer-test-suite"}
VALID_JPEGS = {
    "python.jpg",
    "peacock.s-weird.jpeg",
    "non_interleaved_420_64x64.jpg",
    "id:002030,src:001063,op:arith8,pos:164,val:-8.jpg",
    "id:002452,src:001576,op:arith8,pos:164,val:-28.jpg",
    "id:003043,src:002885,op:havoc,rep:1.jpg",
    "id:002047,src:001072,op:flip2,pos:164.jpg",
    "id:000170,src:000000,op:flip1,pos:307,+cov.jpg",
}


def scene(width, height):
    """An asymmetric picture with gradients, edges and text-like detail."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 255 * x / max(1, width - 1)
    green = 255 * y / max(1, height - 1)
    blue = 127 + 120 * np.sin(x * 0.7 + y * 0.3)
    image = np.stack([red, green, blue], -1)
    image[3 : height // 3, 2 : width // 4] = (250, 20, 30)
    image[height // 2 :: 4, width // 2 :] = (10, 200, 240)
    return Image.fromarray(image.clip(0, 255).astype(np.uint8), "RGB")


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def png_chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def raw_png(width, height, bits, color, rows, extra=b"", adam7=False):
    """A PNG of a variant that Pillow does not write. `rows`: packed bytes, or pixels if interlaced."""
    if adam7:
        passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        data = b""
        for left, top, across, down in passes:
            part = rows[top::down, left::across]
            if part.size:
                data += b"".join(b"\0" + row.tobytes() for row in part)
    else:
        data = b"".join(b"\0" + row for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, int(adam7))
    chunks = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(data, 9))
    return b"\x89PNG\r\n\x1a\n" + chunks + png_chunk(b"IEND", b"")


def make_data():
    DATA.mkdir(exist_ok=True)
    for old in DATA.iterdir():
        old.unlink()
    rgb = scene(37, 29)
    grey = rgb.convert("L")
    alpha = rgb.copy()
    alpha.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 37).astype(np.uint8), (29, 1))))
    cmyk = Image.merge("CMYK", (*rgb.split(), grey.point(lambda v: v // 3)))
    palette = rgb.quantize(64, dither=Image.Dither.NONE)
    few = rgb.quantize(13, dither=Image.Dither.NONE)
    wide = Image.fromarray((np.asarray(grey).astype(np.uint16) * 5) % 700)

    def save(image, name, **options):
        image.save(DATA / name, **options)

    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        save(rgb, f"{name}.jpg", quality=85, subsampling=sampling)
        save(rgb, f"{name}-progressive.jpg", quality=85, subsampling=sampling, progressive=True)
    save(rgb.rotate(90, expand=True), "420-tall.jpg", quality=60, subsampling=2)
    save(scene(4, 3), "420-narrow.jpg", quality=90, subsampling=2)
    save(scene(2, 2), "420-tiny.jpg", quality=90, subsampling=2)
    save(scene(16, 16), "420-one-unit.jpg", quality=90, subsampling=2)
    save(rgb, "rgb.jpg", quality=85, keep_rgb=True)
    save(rgb, "restarts.jpg", quality=85, subsampling=2, restart_marker_blocks=2)
    save(rgb, "restarts-progressive.jpg", quality=85, progressive=True, restart_marker_rows=1)
    for name, unit in (("of", "rows"), ("within", "blocks")):
        options = {f"restart_marker_{unit}": 1 if unit == "rows" else 5}
        save(scene(112, 64), f"restarts-{name}-rows.jpg", quality=60, subsampling=2, **options)
    save(rgb, "optimized.jpg", quality=100, optimize=True, subsampling=0)
    save(rgb, "coarse.jpg", quality=3)
    save(grey, "grey.jpg", quality=85)
    save(grey, "grey-progressive.jpg", quality=85, progressive=True)
    save(cmyk, "cmyk.jpg", quality=85)
    save(cmyk, "cmyk-progressive.jpg", quality=85, progressive=True)
    # The same CMYK, marked as YCCK by the Adobe marker.
    content = (DATA / "cmyk.jpg").read_bytes()
    adobe = content.index(b"Adobe")
    (DATA / "ycck.jpg").write_bytes(content[: adobe + 11] + b"\2" + content[adobe + 12 :])
    for orientation in range(1, 9):
        save(rgb, f"orientation-{orientation}.jpg", quality=85, exif=exif(orientation))

    save(grey.convert("1"), "bit.png")
    save(grey, "grey.png")
    save(wide, "grey16.png")
    save(alpha.convert("LA"), "grey-alpha.png")
    save(palette, "palette.png")
    save(few, "palette4.png", bits=4)
    save(few, "palette-transparent.png", transparency=3)
    save(rgb, "rgb.png")
    save(alpha, "rgb-alpha.png")
    save(rgb, "orientation-6.png", exif=exif(6))
    sixteen = (np.asarray(rgb).astype(np.uint16) * 257 - np.asarray(rgb)).astype(">u2")
    (DATA / "rgb16.png").write_bytes(raw_png(37, 29, 16, 2, [row.tobytes() for row in sixteen]))
    for bits in (2, 4):
        values = np.asarray(grey) >> (8 - bits)
        rows = []
        for row in values:
            text = "".join(f"{value:0{bits}b}" for value in row)
            text += "0" * (-len(text) % 8)
            rows.append(int(text, 2).to_bytes(len(text) // 8, "big"))
        (DATA / f"grey{bits}.png").write_bytes(raw_png(37, 29, bits, 0, rows))
    (DATA / "interlaced.png").write_bytes(raw_png(37, 29, 8, 2, np.asarray(rgb), adam7=True))
    (DATA / "interlaced16.png").write_bytes(
        raw_png(37, 29, 16, 0, np.asarray(wide).astype(">u2"), adam7=True)
    )

    save(rgb, "lossy.webp", quality=80)
    save(rgb, "lossless.webp", lossless=True)
    save(alpha, "lossy-alpha.webp", quality=80)
    save(alpha, "lossless-alpha.webp", lossless=True, exact=True)
    save(rgb, "orientation-8.webp", quality=80, exif=exif(8))
    save(rgb, "animated.webp", save_all=True, append_images=[rgb.rotate(180)], lossless=True)

    save(palette, "palette.gif", interlace=0)
    save(palette, "interlaced.gif", interlace=1)
    save(grey, "grey.gif")
    save(few, "transparent.gif", transparency=2)
    save(palette, "animated.gif", save_all=True, append_images=[palette.rotate(180)])
    # A frame that covers a part of the logical screen.
    stream = io.BytesIO()
    few.save(stream, "GIF", interlace=0)
    content = bytearray(stream.getvalue())
    content[6:10] = struct.pack("<HH", 45, 33)
    frame = content.index(b"\x2c\0\0\0\0")
    content[frame + 1 : frame + 5] = struct.pack("<HH", 5, 3)
    (DATA / "offset.gif").write_bytes(content)

    save(grey.convert("1"), "bit.bmp")
    save(grey, "grey.bmp")
    save(palette, "palette.bmp")
    save(rgb, "rgb.bmp")
    save(alpha, "rgb-alpha.bmp")

    save(grey.convert("1"), "bit.tiff")
    save(grey, "grey.tiff")
    save(wide, "grey16.tiff")
    save(wide.convert("F"), "float.tiff")
    save(alpha.convert("LA"), "grey-alpha.tiff")
    save(palette, "palette.tiff")
    save(rgb, "rgb.tiff")
    save(rgb, "lzw.tiff", compression="tiff_lzw")
    save(rgb, "deflate.tiff", compression="tiff_adobe_deflate")
    save(rgb, "packbits.tiff", compression="packbits")
    save(alpha, "rgb-alpha.tiff")
    save(cmyk, "cmyk.tiff")
    save(palette, "palette-lzw.tiff", compression="tiff_lzw")
    save(rgb, "orientation-5.tiff", tiffinfo={274: 5})


def upright(path):
    """The upright picture. Pillow applies the orientation of TIFF files on loading."""
    image = Image.open(path)
    image.load()
    return ImageOps.exif_transpose(image).convert("RGB")


def kept(image):
    """A subset of the pixels in row order, and the step between them."""
    pixels = np.asarray(image).reshape(-1, 3)
    step = max(1, math.ceil(len(pixels) / KEPT_PIXELS))
    while step > 1 and math.gcd(step, image.width) != 1:
        step += 1
    return pixels[::step].tobytes(), step


def eval_pixels(image, size):
    """Resize the shorter side to round(size / 0.875), crop the centre, as torchvision does."""
    shorter = round(size / 0.875)
    width, height = image.size
    if width <= height:
        resized = (shorter, int(shorter * height / width))
    else:
        resized = (int(shorter * width / height), shorter)
    image = image.resize(resized, Image.Resampling.BILINEAR)
    left, top = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
    return image.crop((left, top, left + size, top + size))


def fixed_boxes(image):
    """Two off-centre crops, one of them narrow."""
    width, height = image.size
    for left, top, right, bottom in ((0.1, 0.2, 0.55, 0.9), (0.35, 0.05, 1.0, 0.4)):
        left, top = int(left * width), int(top * height)
        yield left, top, max(1, int(right * width) - left), max(1, int(bottom * height) - top)


def corpora_files():
    """A selection with all variants of each format and mode."""
    with open(CORPORA / "ORACLE_pillow.tsv", newline="") as table:
        oracle = {row["sha256"]: row for row in csv.DictReader(table, delimiter="\t")}
    groups, jpegs = {}, []
    with open(CORPORA / "MANIFEST.tsv", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t"):
            found = oracle.get(row["sha256"])
            if row["format"] not in ("jpeg", "png", "webp", "gif", "bmp", "tiff") or not found:
                continue
            if found["result"] != "ok" or Path(row["path"]).name in LEFT_OUT:
                continue
            path = f"{row['corpus']}/files/{row['path']}"
            if row["format"] == "jpeg":
                if Path(path).name in VALID_JPEGS:
                    jpegs.append(path)
                continue
            if row["corpus"] in NOT_FOR_PIXELS:
                continue
            width, height = map(int, found["size"].split("x"))
            if width * height > 1_000_000 or width * height < 16:
                continue
            groups.setdefault((row["format"], found["mode"]), []).append((row["sha256"], path))
    for group in groups.values():
        group.sort()
    chosen = jpegs
    for turn in range(1000):
        for key in sorted(groups):
            if turn < len(groups[key]) and len(chosen) < CORPORA_FILES:
                chosen.append(groups[key][turn][1])
    return sorted(chosen)


def main():
    make_data()
    lines, content = [], b""

    def add(place, path, action, image):
        nonlocal content
        pixels, step = kept(image) if action == "decode" else (image.tobytes(), 1)
        lines.append("\t".join(map(str, (place, path, action, *image.size, step, len(pixels)))))
        content += pixels

    def add_file(place, root, path, resized):
        image = upright(root / path)
        add(place, path, "decode", image)
        if not resized:
            return
        add(place, path, f"eval {EVAL_SIZE}", eval_pixels(image, EVAL_SIZE))
        for left, top, width, height in fixed_boxes(image):
            part = image.crop((left, top, left + width, top + height))
            part = part.resize((CROP_SIZE, CROP_SIZE), Image.Resampling.BILINEAR)
            add(place, path, f"crop {left} {top} {width} {height} {CROP_SIZE}", part)

    for path in sorted(path.name for path in DATA.iterdir()):
        add_file("data", DATA, path, path.startswith("orientation") or path in ("rgb.png", "420.jpg"))
    for path in ("astronaut.jpg", "chelsea.jpg", "friends.jpg", "rocket.jpg", "umang.jpg"):
        add_file("photos", PHOTOS, path, True)
    for path in corpora_files():
        add_file("corpora", CORPORA, path, True)

    (HERE / "golden.tsv").write_text("\n".join(lines) + "\n")
    (HERE / "golden.bin").write_bytes(zlib.compress(content, 9))
    print(len(lines), "expectations,", (HERE / "golden.bin").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
