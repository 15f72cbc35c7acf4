"""Makes the files of tests/formats/data and the pixels that independent decoders give for them.

    python -m venv venv && venv/bin/pip install pillow==13.0.0 numpy pillow-jxl-plugin OpenEXR
    venv/bin/python spdl-media/tests/formats/make_data.py

Run with Pillow 13.0.0, pillow-jxl-plugin 1.3.8 (libjxl), OpenEXR 3.5, NumPy 2.4, Python 3.11.

Each picture NAME has a file NAME.rgb: a zlib stream of width, height and 8-bit RGB rows. The pixels are
Pillow's, or computed from the written values for formats that Pillow does not read.
"""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import OpenEXR
import pillow_jxl  # noqa: F401, registers itself
from PIL import Image, TiffImagePlugin

from scene import HEIGHT, WIDTH, scene

DATA = Path(__file__).resolve().parent / "data"


def keep(name, content, pixels=None):
    """Writes a file and its expected pixels: those of Pillow, or `pixels` (rows of RGB)."""
    (DATA / name).write_bytes(content)
    if pixels is None:
        image = Image.open(io.BytesIO(content))
        pixels = np.asarray(image.convert("RGB"))
    height, width, _ = pixels.shape
    packed = zlib.compress(struct.pack("<II", width, height) + pixels.astype(np.uint8).tobytes(), 9)
    (DATA / (name + ".rgb")).write_bytes(packed)


def save(image, name, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    keep(name, stream.getvalue())


def directory_first(content):
    """Moves the directory of a TIFF from the end of the file, where libtiff puts it, to its start."""
    (directory,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, directory)
    entries = []
    for entry in range(count):
        tag, kind, number, _ = struct.unpack_from("<HHII", content, directory + 2 + entry * 12)
        place = directory + 2 + entry * 12 + 8
        length = number * {1: 1, 2: 1, 3: 2, 4: 4, 5: 8}[kind]
        if length > 4:
            (place,) = struct.unpack_from("<I", content, place)
        value = content[place : place + length]
        if tag in (273, 279):
            # Offsets and lengths of the strips as 32-bit values.
            value = [*struct.unpack(f"<{number}{'H' if kind == 3 else 'I'}", value)]
        entries.append((tag, kind, number, value))
    found = {tag: value for tag, _, _, value in entries}
    strips = [content[at : at + length] for at, length in zip(found[273], found[279])]
    start = 8 + 2 + count * 12 + 4
    lengths = [4 * len(value) if isinstance(value, list) else len(value) for *_, value in entries]
    data = start + sum(length for length in lengths if length > 4)
    offsets = [data + sum(map(len, strips[:before])) for before in range(len(strips))]
    directory, values = struct.pack("<H", count), b""
    for tag, kind, number, value in entries:
        if isinstance(value, list):
            kind = 4
            value = struct.pack(f"<{number}I", *(offsets if tag == 273 else value))
        if len(value) > 4:
            place = struct.pack("<I", start + len(values))
            values += value
        else:
            place = value.ljust(4, b"\0")
        directory += struct.pack("<HHI", tag, kind, number) + place
    return b"II*\0" + struct.pack("<I", 8) + directory + bytes(4) + values + b"".join(strips)


def psnr(one, other):
    difference = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    return 10 * np.log10(255**2 / np.mean(difference**2))


def jpeg_quality():
    """PSNR and size of JPEGs by libjpeg-turbo, by quality and subsampling."""
    photo = Image.open(DATA.parents[3] / "assets" / "photos" / "astronaut.jpg").convert("RGB")
    lines = []
    for quality in (10, 50, 75, 90, 98):
        for name in ("4:4:4", "4:2:2", "4:2:0"):
            stream = io.BytesIO()
            photo.save(stream, "JPEG", quality=quality, subsampling=name)
            bytes_used = len(stream.getvalue())
            value = psnr(photo, Image.open(stream).convert("RGB"))
            lines.append(f"{quality}\t{name}\t{value:.3f}\t{bytes_used}\n")
    (DATA / "jpeg-quality.tsv").write_text("".join(lines))


def webp_quality():
    """PSNR and size of lossy WebP by libwebp, by quality and effort."""
    photo = Image.open(DATA.parents[3] / "assets" / "photos" / "astronaut.jpg").convert("RGB")
    lines = []
    for effort, qualities in ((4, (10, 30, 50, 75, 90, 98)), (0, (75,)), (6, (75,))):
        for quality in qualities:
            stream = io.BytesIO()
            photo.save(stream, "WEBP", quality=quality, method=effort)
            bytes_used = len(stream.getvalue())
            value = psnr(photo, Image.open(stream).convert("RGB"))
            lines.append(f"{quality}\t{effort}\t{value:.3f}\t{bytes_used}\n")
    (DATA / "webp-quality.tsv").write_text("".join(lines))


def main():
    DATA.mkdir(exist_ok=True)
    for old in DATA.iterdir():
        old.unlink()
    jpeg_quality()
    webp_quality()
    rgb, alpha = scene(), scene()
    alpha.putalpha(Image.fromarray(np.tile(np.arange(WIDTH, dtype=np.uint8) * 6, (HEIGHT, 1))))
    grey = rgb.convert("L")
    pixels = np.asarray(rgb)

    save(rgb, "rgb.ppm", "PPM")
    save(grey, "grey.pgm", "PPM")
    save(grey.convert("1"), "bit.pbm", "PPM")
    text = "P3\n# a comment\n%d %d\n255\n" % rgb.size
    text += "\n".join(" ".join(map(str, row.ravel())) for row in pixels) + "\n"
    keep("text.ppm", text.encode())
    save(rgb, "rgb.qoi", "QOI")
    save(alpha, "rgb-alpha.qoi", "QOI")
    save(rgb, "rgb.tga", "TGA")
    save(rgb, "packed.tga", "TGA", compression="tga_rle")
    save(grey, "grey.tga", "TGA")
    save(alpha, "rgb-alpha.tga", "TGA")
    # Decoders read only whole blocks.
    save(rgb.crop((0, 0, 36, 28)), "rgb.dds", "DDS", pixel_format="DXT1")
    square = alpha.resize((32, 32))
    save(square, "png.ico", "ICO", sizes=[(32, 32)])
    save(square, "bmp.ico", "ICO", sizes=[(32, 32)], bitmap_format="bmp")
    save(square, "several.ico", "ICO", sizes=[(16, 16), (32, 32), (24, 24)])

    # farbfeld: 16 bits, big-endian, red, green, blue, alpha.
    wide = np.dstack([pixels, np.full((HEIGHT, WIDTH), 255)]).astype(">u2") * 257
    header = b"farbfeld" + struct.pack(">II", WIDTH, HEIGHT)
    keep("rgb.ff", header + wide.astype(">u2").tobytes(), pixels)

    # Radiance: mantissas with a shared exponent, here 128 for multiples of 1/256 from 0 to 1.
    shared = np.dstack([pixels, np.full((HEIGHT, WIDTH), 128)]).astype(np.uint8)
    header = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y %d +X %d\n" % (HEIGHT, WIDTH)
    keep("rgb.hdr", header + shared.tobytes(), np.rint(pixels / 256.0 * 255))

    # OpenEXR: floats, some of them beyond 0 to 1.
    light = (pixels.astype(np.float32) - 20) / 200
    path = DATA / "rgb.exr"
    kind = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with OpenEXR.File(kind, {"RGB": light}) as file:
        file.write(str(path))
    keep("rgb.exr", path.read_bytes(), np.rint(light.clip(0, 1) * 255))

    save(rgb, "lossless.jxl", "JXL", lossless=True)
    save(rgb, "lossy.jxl", "JXL", quality=85)
    save(grey, "grey.jxl", "JXL", lossless=True)
    save(alpha, "rgb-alpha.jxl", "JXL", lossless=True)
    save(rgb.resize((270, 30)), "groups.jxl", "JXL", quality=70)

    # For truncated files: several strips, and top-down rows.
    TiffImagePlugin.STRIP_SIZE = 4 * WIDTH * 3
    compressions = ("deflate", "tiff_adobe_deflate"), ("lzw", "tiff_lzw"), ("packed", "packbits")
    for name, compression in compressions:
        stream = io.BytesIO()
        rgb.save(stream, "TIFF", compression=compression)
        keep(f"{name}-strips.tiff", directory_first(stream.getvalue()))
    padding = bytes(-WIDTH * 3 % 4)
    rows = b"".join(row[:, ::-1].tobytes() + padding for row in pixels)
    header = struct.pack("<IiiHHIIiiII", 40, WIDTH, -HEIGHT, 1, 24, 0, len(rows), 0, 0, 0, 0)
    keep("top-down.bmp", b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + header + rows)


if __name__ == "__main__":
    main()
