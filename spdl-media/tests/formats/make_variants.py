"""Makes the files of tests/formats/variants and the pixels that independent decoders give for them.

    python -m venv venv && venv/bin/pip install pillow==13.0.0 numpy
    venv/bin/python spdl-media/tests/formats/make_variants.py PATH_OF_JPEGTRAN

Run with Pillow 13.0.0 (libjpeg-turbo 3.2.0, libtiff 4.7.2), libjpeg-turbo's jpegtran 3.1, NumPy 2.4.

Rare variants of BMP, GIF, JPEG and TIFF, and files that lack something other than pixels. Each picture
NAME has a file NAME.rgb, as in `make_data.py`. The pixels are Pillow's, or computed from the written
values for variants that Pillow does not read.
"""

import io
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from scene import HEIGHT, WIDTH, scene

HERE = Path(__file__).resolve().parent
DATA = HERE / "variants"
COMMON = HERE.parent / "data"
# Several strips per file.
STRIP_ROWS = 16


def keep(name, content, pixels=None, *, ask_pillow=True):
    (DATA / name).write_bytes(content)
    by_pillow = None
    try:
        if ask_pillow:
            by_pillow = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    except (OSError, ValueError):
        assert pixels is not None, name
    if pixels is None:
        pixels = by_pillow
    elif by_pillow is not None:
        assert np.array_equal(by_pillow, pixels), f"{name}: Pillow reads other pixels"
    height, width, _ = pixels.shape
    packed = zlib.compress(struct.pack("<II", width, height) + pixels.astype(np.uint8).tobytes(), 9)
    (DATA / (name + ".rgb")).write_bytes(packed)


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


# JPEG


def jpegtran(program, name, source, *options):
    content = subprocess.run([program, *options, COMMON / source], capture_output=True, check=True).stdout
    keep(name, content, np.asarray(Image.open(COMMON / source).convert("RGB")))


# Scans of few coefficients and single bits.
STEPS = """
0,1,2: 0-0, 0, 3; 0,1,2: 0-0, 3, 2; 0: 1-9, 0, 2; 0,1,2: 0-0, 2, 1; 1: 1-63, 0, 1; 2: 1-63, 0, 0;
0: 10-63, 0, 0; 0: 1-9, 2, 1; 0,1,2: 0-0, 1, 0; 0: 1-9, 1, 0; 1: 1-63, 1, 0;
"""


def make_many_steps(program):
    """Uniform blocks, one bit per scan: many coefficients from almost no data."""
    tile = 255 * np.random.default_rng(1).integers(0, 2, (8, 8)).astype(np.uint8)
    steps = "0: 0-0, 0, 0; 0: 1-63, 0, 8;" + "".join(f"0: 1-63, {low + 1}, {low};" for low in range(7, -1, -1))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        Image.fromarray(np.tile(tile, (12, 12))).save(folder / "tile.jpg", quality=100)
        (folder / "steps").write_text(steps)
        command = [program, "-arithmetic", "-scans", folder / "steps", folder / "tile.jpg"]
        content = subprocess.run(command, capture_output=True, check=True).stdout
    (DATA.parent / "refused").mkdir(exist_ok=True)
    (DATA.parent / "refused" / "arithmetic-many-steps.jpg").write_bytes(content)


def scan_ends(content):
    """The end of the data of each scan."""
    at, ends = 2, []
    while content[at + 1] != 0xD9:
        marker = content[at + 1]
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == 0xDA:
            while content[at] != 0xFF or content[at + 1] == 0 or 0xD0 <= content[at + 1] <= 0xD7:
                at += 1
            ends.append(at)
    return ends


def make_incomplete_jpegs():
    """Progressive files with an EOI marker after some scans: libjpeg-turbo estimates coefficients."""
    steps = (DATA / "progressive-steps.jpg").read_bytes()
    arithmetic = (DATA / "arithmetic-progressive-steps.jpg").read_bytes()
    rgb = scene()
    wide = rgb.resize((70, 50), Image.Resampling.BICUBIC)
    options = {"quality": 60, "progressive": True}
    for name, content in (
        ("steps", steps),
        ("arithmetic", arithmetic),
        ("420", encoded(wide, "JPEG", subsampling=2, **options)),
        ("422", encoded(wide, "JPEG", subsampling=1, **options)),
        ("444", encoded(wide.crop((0, 0, 20, 50)), "JPEG", subsampling=0, **options)),
        ("grey", encoded(wide.convert("L"), "JPEG", **options)),
        ("narrow", encoded(wide.crop((9, 0, 16, 33)), "JPEG", subsampling=2, **options)),
    ):
        ends = scan_ends(content)
        for count in sorted({1, 2, len(ends) // 2, len(ends) - 1}):
            keep(f"incomplete-{name}-{count}.jpg", content[: ends[count - 1]] + b"\xff\xd9")


# BMP


def rows_of(values, bits, top_down=False):
    """Rows of `bits`-bit numbers, padded to 4 bytes."""
    lines = []
    for row in values if top_down else values[::-1]:
        if bits < 8:
            text = "".join(f"{int(value):0{bits}b}" for value in row)
            line = int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")
        else:
            line = b"".join(int(value).to_bytes(bits // 8, "little") for value in row)
        lines.append(line + bytes(-len(line) % 4))
    return b"".join(lines)


def bmp(data, bits, *, header=40, compression=0, palette=b"", masks=(), height=HEIGHT, planes=1, colors=0, start=None):
    if header == 12:
        info = struct.pack("<IHHHH", 12, WIDTH, height, planes, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, WIDTH, height, planes, bits, compression, len(data), 0, 0, colors, 0)
        info = (info + struct.pack(f"<{len(masks)}I", *masks)).ljust(header, b"\0")
    end = 14 + len(info) + len(palette)
    start = end if start is None else start
    return b"BM" + struct.pack("<IHHI", end + len(data), 0, 0, start) + info + palette + data


def fields(pixels, masks):
    """Colours as words with masks, and their values scaled to 255, truncated."""
    words, stood = 0, []
    for channel, mask in enumerate(masks):
        shift = (mask & -mask).bit_length() - 1
        largest = mask >> shift
        value = pixels[..., channel].astype(np.uint64) * largest // 255
        words = words + (value << np.uint64(shift))
        stood.append(value * 255 // largest)
    return words, np.stack(stood, -1)


def runs(indices, bits):
    """Bottom-up rows with every kind of run-length code."""
    out = b""
    height, width = indices.shape
    for number, row in enumerate(indices[::-1]):
        x = 0
        while x < width:
            end = x + 1
            while end < width and row[end] == row[x] and end - x < 255:
                end += 1
            if end - x < 3 and width - x >= 5:
                # Absolute mode with an odd number of pixels.
                part = [int(value) for value in row[x : x + 5]]
                if bits == 4:
                    part = [part[0] << 4 | part[1], part[2] << 4 | part[3], part[4] << 4]
                out += bytes([0, 5, *part]) + bytes(len(part) % 2)
                end = x + 5
            else:
                value = int(row[x])
                out += bytes([end - x, value << 4 | value if bits == 4 else value])
            x = end
        # The last row needs no end of line.
        out += b"\0\0" if number < height - 1 else b"\0\1"
    return out


def make_bmps():
    rgb = scene()
    pixels = np.asarray(rgb)
    few = rgb.quantize(13, dither=Image.Dither.NONE)
    indices = np.asarray(few)
    colors = np.asarray(few.getpalette()[: 13 * 3], np.uint8).reshape(-1, 3)
    filled = np.vstack([colors, np.zeros((3, 3), np.uint8)])
    shown = filled[indices]
    four = b"".join(bytes([*color[::-1], 0]) for color in filled)
    three = b"".join(bytes(color[::-1]) for color in filled)
    eight = four + bytes(4 * 240)
    words = pixels[..., 2].astype(np.uint64) | pixels[..., 1].astype(np.uint64) << 8 | pixels[..., 0].astype(np.uint64) << 16

    keep("core.bmp", bmp(rows_of(words, 24), 24, header=12), pixels)
    keep("core-palette.bmp", bmp(rows_of(indices, 4), 4, header=12, palette=three), shown)
    keep("os2.bmp", bmp(rows_of(indices, 8), 8, header=64, palette=eight), shown)
    keep("os2-short.bmp", bmp(rows_of(words, 24), 24, header=16), pixels)
    keep("no-planes.bmp", bmp(rows_of(words, 24), 24, planes=0), pixels)
    keep("no-start.bmp", bmp(rows_of(indices, 4), 4, palette=four, start=0), shown)
    keep("start-before-palette.bmp", bmp(rows_of(indices, 4), 4, palette=four, start=54), shown)
    keep("few-colors.bmp", bmp(rows_of(indices, 4), 4, palette=four[: 13 * 4], colors=13), shown)
    keep("beyond-palette.bmp", bmp(rows_of(indices, 4), 4, palette=four[: 9 * 4], colors=9), np.where((indices < 9)[..., None], shown, 0))
    # Indices beyond the palette, as Pillow reads them. Grey palettes continue.
    every = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 256
    ramp = b"".join(bytes([value] * 3 + [0]) for value in range(256))
    for name, palette, colors in (
        ("some", eight[: 13 * 4], 13), ("ramp", ramp[: 100 * 4], 100), ("black", ramp[:4], 1),
        ("black-and-white", ramp[:4] + b"\xff\xff\xff\0", 2),
    ):
        for bits in (1, 4, 8):
            # Pillow reads packed indices of a ramp, and bytes of black and white, as other depths.
            if colors > 1 << bits or (bits == 4 and name != "some") or (bits == 8 and colors < 3):
                continue
            data = rows_of(every % (1 << bits), bits)
            keep(f"beyond-{name}-{bits}.bmp", bmp(data, bits, palette=palette, colors=colors))
        keep(f"beyond-{name}-runs.bmp", bmp(runs(every, 8), 8, compression=1, palette=palette, colors=colors))
    # The pixels start inside the declared palette.
    keep("overlap.bmp", bmp(rows_of(every, 8), 8, palette=eight[: 13 * 4]))
    # Without the padding of the last row.
    keep("no-padding.bmp", bmp(rows_of(words, 24), 24)[:-1], pixels)

    for name, masks, bits in (
        ("555", (0x7C00, 0x3E0, 0x1F), 16),
        ("565", (0xF800, 0x7E0, 0x1F), 16),
        ("444", (0xF00, 0xF0, 0xF), 16),
        ("bgr565", (0x1F, 0x7E0, 0xF800), 16),
        ("rgbx", (0xFF, 0xFF00, 0xFF0000), 32),
        ("1010", (0x3FF00000, 0xFFC00, 0x3FF), 32),
    ):
        values, stood = fields(pixels, masks)
        content = bmp(rows_of(values, bits), bits, compression=3, header=56, masks=(*masks, 0))
        keep(f"{name}.bmp", content, stood)
        # The same after a header without mask fields.
        if name == "565":
            behind = struct.pack("<3I", *masks)
            keep("565-behind.bmp", bmp(rows_of(values, 16), 16, compression=3, palette=behind), stood)
        if name == "555":
            keep("16.bmp", bmp(rows_of(values, 16), 16), stood)

    for bits, compression, palette in ((8, 1, eight), (4, 2, four)):
        data = runs(indices, bits)
        keep(f"runs{bits}.bmp", bmp(data, bits, compression=compression, palette=palette), shown)
        # Without the end of bitmap.
        keep(f"runs{bits}-no-end.bmp", bmp(data[:-2], bits, compression=compression, palette=palette), shown)
        data = runs(indices[::-1], bits)
        keep(f"runs{bits}-top-down.bmp", bmp(data, bits, compression=compression, palette=palette, height=-HEIGHT), shown)
    # A delta over two rows and four pixels, which keep colour 0. (Pillow reads the delta from the two
    # bytes after it.)
    data = runs(indices[-5:], 8)[:-2] + b"\0\0\0\2\4\2" + bytes([WIDTH - 4, 3]) + b"\0\0"
    data += runs(indices[:-8], 8)
    moved = shown.copy()
    moved[-8:-5] = filled[0]
    moved[-8, 4:] = filled[3]
    (DATA / "move.bmp").write_bytes(bmp(data, 8, compression=1, palette=eight))
    packed = struct.pack("<II", WIDTH, HEIGHT) + moved.astype(np.uint8).tobytes()
    (DATA / "move.bmp.rgb").write_bytes(zlib.compress(packed, 9))


# GIF


def make_gifs():
    palette = scene().quantize(64, dither=Image.Dither.NONE)
    content = encoded(palette, "GIF")
    shown = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    flags = content[10]
    start = 13 + (3 << (flags & 7) + 1)
    assert content[start] == 0x2C and content[-2:] == b"\0;"
    # Without the trailer, the block terminator before it, and the end code.
    blocks, at = [], start + 11
    while content[at]:
        blocks.append(content[at + 1 : at + 1 + content[at]])
        at += 1 + content[at]
    keep("no-end.gif", content[:at], shown)
    data = b"".join(blocks)[:-1]
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    keep("no-end-code.gif", content[: start + 11] + blocks + b"\0;", shown)
    keep("noise-behind.gif", content[:-1] + bytes(range(1, 200)), shown)
    keep("noise-before.gif", content[:start] + b"\1\2\3" + content[start:], shown)
    few = scene().quantize(13, dither=Image.Dither.NONE)
    content = encoded(few, "GIF")
    flags = content[10]
    start = 13 + (3 << (flags & 7) + 1)
    indices = np.asarray(Image.open(io.BytesIO(content)))
    grey = np.repeat(indices[..., None], 3, 2)
    keep("no-palette.gif", content[:10] + bytes([flags & 0x70]) + content[11:13] + content[start:], grey)
    # A palette of 8 colours for indices up to 12.
    short = content[:10] + bytes([flags & 0xF8 | 2]) + content[11 : 13 + 3 * 8] + content[start:]
    shown = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    keep("short-palette.gif", short, np.where((indices < 8)[..., None], shown, 0))


# TIFF


def tiff(entries, data, *, order="<", tail=b"\0\0\0\0"):
    """A file with tags (number, type, values) and strips. Adds the tags of the strips."""
    letters = {1: "B", 3: "H", 4: "I", 5: "I", 7: "B"}
    at, starts = 8, []
    for part in data:
        starts.append(at)
        at += len(part)
    given = {number for number, _, _ in entries}
    entries = list(entries)
    if not given & {273, 324}:
        entries += [(273, 4, starts), (279, 4, [len(part) for part in data])]
    body = b"".join(data)
    fixed = []
    for number, kind, values in sorted(entries):
        packed = struct.pack(f"{order}{len(values)}{letters[kind]}", *values)
        if len(packed) > 4:
            packed, body = struct.pack(order + "I", 8 + len(body)), body + packed
        # A rational has two numbers.
        count = len(values) // 2 if kind == 5 else len(values)
        fixed.append(struct.pack(order + "HHI", number, kind, count) + packed.ljust(4, b"\0"))
    directory = struct.pack(order + "H", len(fixed)) + b"".join(fixed) + tail
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(order + "I", 8 + len(body)) + body + directory


def page(bits, samples, photometric, compression, *more):
    return [
        (256, 3, [WIDTH]), (257, 3, [HEIGHT]), (258, 3, [bits] * samples), (259, 3, [compression]),
        (262, 3, [photometric]), (277, 3, [samples]), *more,
    ]


def make_tiffs():
    rgb = scene()
    pixels = np.asarray(rgb)
    bit = rgb.convert("1")
    black_and_white = np.repeat(np.asarray(bit)[..., None], 3, 2) * np.uint8(255)
    for name, compression, options in (
        ("runs", "tiff_ccitt", {}),
        ("group3", "group3", {}),
        ("group3-2d", "group3", {292: 1}),
        ("group3-filled", "group3", {292: 5}),
        ("group4", "group4", {}),
        ("lowest-first", "group3", {266: 2}),
        ("strips", "group4", {278: 7}),
    ):
        content = encoded(bit, "TIFF", compression=compression, tiffinfo=options)
        keep(f"{name}.tiff", content, black_and_white)

    parts = [pixels[y : y + STRIP_ROWS] for y in range(0, HEIGHT, STRIP_ROWS)]
    plain = page(8, 3, 2, 1, (278, 3, [STRIP_ROWS]))
    content = tiff(plain, [part.tobytes() for part in parts])
    # The file ends with the tags.
    keep("no-next-page.tiff", content[:-4], pixels)
    row = pixels.tobytes()
    start = [(273, 4, [8]), (279, 4, [len(row) + 100_000])]
    keep("long-strip.tiff", tiff(page(8, 3, 2, 1, (278, 3, [HEIGHT]), *start), [row]), pixels)

    def jpeg(part, sampling):
        content = encoded(Image.fromarray(part), "JPEG", quality=85, subsampling=sampling)
        # Without the JFIF marker, as in TIFF.
        assert content[2:4] == b"\xff\xe0"
        return content[:2] + content[4 + int.from_bytes(content[4:6], "big") :]

    def tables_apart(content):
        tables, rest, at = b"", b"", 2
        while content[at + 1] != 0xDA:
            end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
            if content[at + 1] in (0xDB, 0xC4):
                tables += content[at:end]
            else:
                rest += content[at:end]
            at = end
        return b"\xff\xd8" + tables + b"\xff\xd9", b"\xff\xd8" + rest + content[at:]

    for name, sampling, factors in (("420", 2, [2, 2]), ("422", 1, [2, 1]), ("444", 0, [1, 1])):
        streams = [jpeg(part, sampling) for part in parts]
        tags = page(8, 3, 6, 7, (278, 3, [STRIP_ROWS]), (530, 3, factors))
        keep(f"jpeg-{name}.tiff", tiff(tags, streams))
        apart = [tables_apart(stream) for stream in streams]
        tags.append((347, 7, list(apart[0][0])))
        keep(f"jpeg-{name}-tables.tiff", tiff(tags, [rest for _, rest in apart], order=">"))
    # Without APP markers, for every photometric interpretation.
    for name, photometric, source, samples in (
        ("rgb", 2, rgb, 3),
        ("grey", 1, rgb.convert("L"), 1),
        ("white-is-zero", 0, rgb.convert("L"), 1),
    ):
        streams = []
        for part in [np.asarray(source)[y : y + STRIP_ROWS] for y in range(0, HEIGHT, STRIP_ROWS)]:
            # libjpeg-turbo keeps RGB components unconverted.
            kept = {"keep_rgb": True} if samples == 3 else {}
            stream = encoded(Image.fromarray(part), "JPEG", quality=85, **kept)
            at = 2
            while stream[at + 1] & 0xF0 == 0xE0:
                at += 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
            streams.append(stream[:2] + stream[at:])
        keep(f"jpeg-{name}.tiff", tiff(page(8, samples, photometric, 7, (278, 3, [STRIP_ROWS])), streams))
    # CMYK is not inverted, unlike in a standalone JPEG. Expected pixels by libtiff.
    inks = Image.open(COMMON / "cmyk.jpg")
    keep("jpeg-cmyk.tiff", encoded(inks, "TIFF", compression="jpeg", tiffinfo={278: STRIP_ROWS}))
    # Tiles, the last ones padded.
    tiles = [(left, top) for top in range(0, HEIGHT, 16) for left in range(0, WIDTH, 16)]
    filled = np.pad(pixels, ((0, 32 - HEIGHT), (0, 48 - WIDTH), (0, 0)), mode="edge")
    streams = [jpeg(filled[top : top + 16, left : left + 16], 2) for left, top in tiles]
    starts = [8 + sum(map(len, streams[:number])) for number in range(len(streams))]
    places = [(324, 4, starts), (325, 4, [len(stream) for stream in streams])]
    tags = page(8, 3, 6, 7, (322, 3, [16]), (323, 3, [16]), (530, 3, [2, 2]), *places)
    keep("jpeg-tiles.tiff", tiff(tags, streams))

    # Packed YCbCr, which Pillow decodes by libtiff.
    luma = np.asarray(rgb.convert("YCbCr"))
    for name, more in (
        ("", []),
        ("-709", [(529, 5, [2126, 10000, 7152, 10000, 722, 10000])]),
        ("-video", [(532, 5, [16, 1, 235, 1, 128, 1, 240, 1, 128, 1, 240, 1])]),
    ):
        tags = page(8, 3, 6, 8, (278, 3, [STRIP_ROWS]), (530, 3, [1, 1]), *more)
        strips = [zlib.compress(luma[y : y + STRIP_ROWS].tobytes()) for y in range(0, HEIGHT, STRIP_ROWS)]
        keep(f"luma{name}.tiff", tiff(tags, strips))
    # Old-style JPEG: two tags hold the position of a JPEG file.
    stream = jpeg(pixels, 0)
    scan = stream.index(b"\xff\xda") + 14
    old = [(278, 3, [HEIGHT]), (530, 3, [1, 1]), (513, 4, [8]), (514, 4, [len(stream)])]
    place = [(273, 4, [8 + scan]), (279, 4, [len(stream) - scan])]
    keep("old-jpeg.tiff", tiff(page(8, 3, 6, 6, *old, *place), [stream]))


def reversed_bits(data):
    return bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)


def pack_bits(data):
    """Runs and literals, and a byte without an effect."""
    out, at = b"\x80", 0
    while at < len(data):
        end = at + 1
        while end < len(data) and data[end] == data[at] and end - at < 128:
            end += 1
        if end - at > 2:
            out += bytes([257 - (end - at), data[at]])
        else:
            end = min(at + 7, len(data))
            out += bytes([end - at - 1]) + data[at:end]
        at = end
    return out


def lzw(data, *, old=False):
    """LZW codes; in files of before TIFF 5.0, from the lowest bit, and one code later longer."""
    codes, clear, end = [], 256, 257
    table, width, word = {bytes([byte]): byte for byte in range(256)}, 9, b""
    count, codes = 258, [(clear, 9)]
    for byte in data:
        longer = word + bytes([byte])
        if longer in table:
            word = longer
            continue
        codes.append((table[word], width))
        table[longer], count = count, count + 1
        word = bytes([byte])
        # The decoder is one entry behind.
        if count - 1 + (not old) >= 1 << width:
            width += 1
        if count >= 4093:
            codes.append((table[word], width))
            codes.append((clear, width))
            table, width, word = {bytes([byte]): byte for byte in range(256)}, 9, b""
            count = 258
    if word:
        codes.append((table[word], width))
        if count + (not old) >= 1 << width:
            width += 1
    codes.append((end, width))
    if old:
        total, at = 0, 0
        for code, width in codes:
            total, at = total | code << at, at + width
        return total.to_bytes(-(-at // 8), "little")
    text = "".join(f"{code:0{width}b}" for code, width in codes)
    return int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")


def packed(values, bits, order="<"):
    """Rows of numbers, each at a byte boundary."""
    if bits >= 8:
        return np.asarray(values).astype(f"{order}u{bits // 8}").tobytes()
    rows = []
    for row in values:
        text = "".join(f"{int(value):0{bits}b}" for value in np.ravel(row))
        text = text.ljust(-(-len(text) // 8) * 8, "0")
        rows.append(int(text, 2).to_bytes(len(text) // 8, "big"))
    return b"".join(rows)


def differences(values):
    """The horizontal predictor."""
    before = np.concatenate([np.zeros_like(values[:, :1]), values[:, :-1]], 1)
    return values - before


def tiles_of(values, width, height):
    rows, columns = values.shape[:2]
    more = [(0, -rows % height), (0, -columns % width)] + [(0, 0)] * (values.ndim - 2)
    filled = np.pad(values, more, mode="edge")
    return [
        filled[top : top + height, left : left + width]
        for top in range(0, filled.shape[0], height)
        for left in range(0, filled.shape[1], width)
    ]


def tiled(parts, width, height):
    """Tags of the tiles that `tiff` stores one after the other."""
    starts = [8 + sum(map(len, parts[:number])) for number in range(len(parts))]
    return [(322, 3, [width]), (323, 3, [height]), (324, 4, starts), (325, 4, [len(part) for part in parts])]


def big_tiff(entries, data):
    letters = {3: "H", 4: "I", 16: "Q"}
    entries = sorted([*entries, (273, 16, [16]), (279, 16, [len(data)])])
    directory = struct.pack("<Q", len(entries))
    body = data
    for number, kind, values in entries:
        content = struct.pack(f"<{len(values)}{letters[kind]}", *values)
        if len(content) > 8:
            content, body = struct.pack("<Q", 16 + len(body)), body + content
        directory += struct.pack("<HHQ", number, kind, len(values)) + content.ljust(8, b"\0")
    return b"II+\0\x08\0\0\0" + struct.pack("<Q", 16 + len(body)) + body + directory + bytes(8)


def make_tiff_layouts():
    """Layouts of samples, of strips and of tiles."""
    rgb = scene()
    pixels = np.asarray(rgb)
    grey = np.asarray(rgb.convert("L"))
    few = rgb.quantize(13, dither=Image.Dither.NONE)
    indices = np.asarray(few)
    colors = np.zeros((256, 3), np.uint16)
    colors[:13] = np.asarray(few.getpalette()[: 13 * 3], np.uint16).reshape(-1, 3) * 257
    shown = (colors[indices] >> 8).astype(np.uint8)
    one_strip = (278, 3, [HEIGHT])

    def repeated(values):
        return np.repeat(np.asarray(values)[..., None], 3, 2)

    def color_map(bits):
        return (320, 3, [int(value) for value in colors[: 1 << bits].T.ravel()])

    def grey_page(bits, compression, *more, samples=1):
        return page(bits, samples, 1, compression, one_strip, *more)

    # Channels in separate planes.
    planes = [pixels[..., channel] for channel in range(3)]
    separate = (284, 3, [2])
    parts = [tile.tobytes() for plane in planes for tile in tiles_of(plane, 16, 16)]
    keep("planar-tiles.tiff", tiff(page(8, 3, 2, 1, separate, *tiled(parts, 16, 16)), parts), pixels)
    parts = [lzw(differences(tile).tobytes()) for plane in planes for tile in tiles_of(plane, 16, 16)]
    tags = page(8, 3, 2, 5, separate, (317, 3, [2]), *tiled(parts, 16, 16))
    keep("planar-tiles-lzw.tiff", tiff(tags, parts), pixels)
    tops = range(0, HEIGHT, STRIP_ROWS)
    parts = [zlib.compress(plane[top : top + STRIP_ROWS].tobytes()) for plane in planes for top in tops]
    keep("planar-strips.tiff", tiff(page(8, 3, 2, 8, separate, (278, 3, [STRIP_ROWS])), parts), pixels)
    # Pillow reads uncompressed 16-bit planes as planes of bytes, so these are compressed.
    wide = pixels.astype(np.uint16) << 8 | pixels[..., ::-1]
    parts = [lzw(packed(differences(wide[..., channel]), 16, ">")) for channel in range(3)]
    tags = page(16, 3, 2, 5, separate, one_strip, (317, 3, [2]))
    keep("planar-16.tiff", tiff(tags, parts, order=">"), pixels)
    alpha = np.full((HEIGHT, WIDTH, 1), 77, np.uint8)
    inks = np.asarray(rgb.convert("CMYK"))
    parts = [inks[..., channel].tobytes() for channel in range(4)]
    keep("planar-cmyk.tiff", tiff(page(8, 4, 5, 1, separate, one_strip), parts))

    # The lowest bit of a byte is the first.
    for bits in (1, 2, 4, 8):
        values = grey >> (8 - bits)
        content = packed(values, bits)
        expected = repeated(values.astype(np.uint16) * 255 // ((1 << bits) - 1))
        order = (266, 3, [2])
        for name, compression, data in (
            ("", 1, content),
            ("-packbits", 32773, pack_bits(content)),
            ("-lzw", 5, lzw(content)),
            ("-deflate", 8, zlib.compress(content)),
        ):
            if name and bits in (1, 8):
                continue
            tags = grey_page(bits, compression, order)
            keep(f"reversed-{bits}{name}.tiff", tiff(tags, [reversed_bits(data)]), expected)
        inverted = packed((1 << bits) - 1 - values, bits)
        tags = page(bits, 1, 0, 1, one_strip)
        keep(f"white-is-zero-{bits}.tiff", tiff(tags, [inverted]), expected)
        keep(f"reversed-white-is-zero-{bits}.tiff", tiff([*tags, order], [reversed_bits(inverted)]), expected)
    for bits in (2, 4, 8):
        values = np.minimum(indices, (1 << bits) - 1)
        expected = (colors[values] >> 8).astype(np.uint8)
        tags = page(bits, 1, 3, 1, one_strip, color_map(bits), (266, 3, [2]))
        keep(f"reversed-palette-{bits}.tiff", tiff(tags, [reversed_bits(packed(values, bits))]), expected)
    tags = page(8, 3, 2, 32773, one_strip, (266, 3, [2]))
    keep("reversed-rgb.tiff", tiff(tags, [reversed_bits(pack_bits(pixels.tobytes()))]), pixels)

    # Extra samples.
    with_alpha = np.stack([indices, alpha[..., 0]], -1)
    for name, kind in (("unspecified", 0), ("alpha", 2)):
        tags = page(8, 2, 3, 1, one_strip, color_map(8), (338, 3, [kind]))
        keep(f"palette-{name}.tiff", tiff(tags, [with_alpha.tobytes()]), shown)
        tags[3] = (259, 3, [5])
        keep(f"palette-{name}-lzw.tiff", tiff(tags, [lzw(with_alpha.tobytes())]), shown)
        content = np.stack([grey, alpha[..., 0]], -1).tobytes()
        keep(f"grey-{name}.tiff", tiff(grey_page(8, 1, (338, 3, [kind]), samples=2), [content]), repeated(grey))
    parts = [indices.tobytes(), alpha.tobytes()]
    tags = page(8, 2, 3, 1, one_strip, separate, color_map(8), (338, 3, [0]))
    keep("palette-planar-extra.tiff", tiff(tags, parts), shown)
    extra = np.concatenate([pixels, alpha, alpha], -1)
    tags = page(8, 5, 2, 5, one_strip, (317, 3, [2]), (338, 3, [0, 0]))
    keep("rgb-two-extra.tiff", tiff(tags, [lzw(differences(extra).tobytes())]), pixels)
    alpha = (np.arange(WIDTH * HEIGHT) % 256).reshape(HEIGHT, WIDTH, 1).astype(np.uint8)
    multiplied = (pixels.astype(np.uint16) * alpha // 255).astype(np.uint8)
    tags = page(8, 4, 2, 1, one_strip, (338, 3, [1]))
    keep("premultiplied.tiff", tiff(tags, [np.concatenate([multiplied, alpha], -1).tobytes()]))

    # Strips, their tags, and other directories.
    tags = page(8, 3, 2, 1, (278, 4, [2**32 - 1]))
    keep("endless-rows.tiff", tiff(tags, [pixels.tobytes()]), pixels)
    tags = page(8, 3, 2, 5, (278, 4, [2**32 - 1]), separate)
    keep("endless-rows-planar.tiff", tiff(tags, [lzw(plane.tobytes()) for plane in planes]), pixels)
    keep("no-rows.tiff", tiff(page(8, 3, 2, 8), [zlib.compress(pixels.tobytes())]), pixels)
    content = tiff(page(8, 3, 2, 1, one_strip), [pixels.tobytes()])
    keep("loop.tiff", content[:-4] + content[4:8], pixels)
    keep("no-lengths.tiff", tiff(page(8, 3, 2, 1, one_strip, (273, 4, [8])), [pixels.tobytes()]), pixels)
    keep("big.tiff", big_tiff(page(8, 3, 2, 5, one_strip), lzw(pixels.tobytes())), pixels)

    # LZW of before TIFF 5.0, with codes of 9 to 12 bits and a new table.
    noise = np.random.default_rng(3).integers(0, 200, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    for name, values in (("old-lzw", pixels), ("old-lzw-noise", noise)):
        keep(f"{name}.tiff", tiff(page(8, 3, 2, 5, one_strip), [lzw(values.tobytes(), old=True)]), values)
    keep("lzw-noise.tiff", tiff(page(8, 3, 2, 5, one_strip), [lzw(noise.tobytes())]), noise)
    tags = page(8, 3, 2, 5, one_strip, (317, 3, [2]))
    keep("old-lzw-predictor.tiff", tiff(tags, [lzw(differences(pixels).tobytes(), old=True)]), pixels)

    # Predictors. libtiff ignores the tag for compressions without a predictor.
    for name, compression, data in (("none", 1, pixels.tobytes()), ("packbits", 32773, pack_bits(pixels.tobytes()))):
        tags = page(8, 3, 2, compression, one_strip, (317, 3, [2]))
        keep(f"predictor-{name}.tiff", tiff(tags, [data]), pixels)
    for order, name in (("<", "little"), (">", "big")):
        parts = [lzw(packed(differences(tile), 16, order)) for tile in tiles_of(wide, 16, 32)]
        tags = page(16, 3, 2, 5, (317, 3, [2]), *tiled(parts, 16, 32))
        keep(f"predictor-16-{name}.tiff", tiff(tags, parts, order=order), pixels)
        # Each byte of a float in a separate plane, the most significant first.
        floats = (grey.astype(np.float32) * 1.25 - 20).astype(np.float32)
        expected = repeated(np.clip(np.trunc(floats), 0, 255))
        parts = []
        for tile in tiles_of(floats, 16, 16):
            planes_of_bytes = tile.astype(">f4").view(np.uint8).reshape(16, 16, 4).transpose(0, 2, 1)
            parts.append(zlib.compress(differences(planes_of_bytes.reshape(16, 64)).tobytes()))
        tags = page(32, 1, 1, 8, (317, 3, [3]), (339, 3, [3]), *tiled(parts, 16, 16))
        # Pillow swaps the bytes of big-endian floats, which libtiff has already swapped.
        keep(f"predictor-float-{name}.tiff", tiff(tags, parts, order=order), expected, ask_pillow=name == "little")
        tags = grey_page(32, 1, (339, 3, [3]))
        keep(f"float-{name}.tiff", tiff(tags, [floats.astype(f"{order}f4").tobytes()], order=order), expected)
    wide_grey = grey.astype(np.uint16) * 3
    keep("grey-16.tiff", tiff(grey_page(16, 1), [packed(wide_grey, 16)]), repeated(np.minimum(wide_grey, 255)))
    tags = page(16, 1, 0, 1, one_strip)
    keep("white-is-zero-16.tiff", tiff(tags, [packed(wide_grey, 16)]), repeated(np.minimum(wide_grey, 255)))


def main():
    DATA.mkdir(exist_ok=True)
    for old in DATA.iterdir():
        old.unlink()
    program = sys.argv[1]
    for name, source, *options in (
        ("arithmetic.jpg", "420.jpg"),
        ("arithmetic-422.jpg", "422.jpg"),
        ("arithmetic-grey.jpg", "grey.jpg"),
        ("arithmetic-cmyk.jpg", "cmyk.jpg"),
        ("arithmetic-sharp.jpg", "optimized.jpg"),
        ("arithmetic-restarts.jpg", "420.jpg", "-restart", "2B"),
        ("arithmetic-progressive.jpg", "420.jpg", "-progressive"),
        ("arithmetic-progressive-sharp.jpg", "optimized.jpg", "-progressive"),
        ("arithmetic-progressive-restarts.jpg", "420.jpg", "-progressive", "-restart", "1"),
    ):
        jpegtran(program, name, source, "-arithmetic", *options)
    with tempfile.NamedTemporaryFile("w") as script:
        script.write(STEPS)
        script.flush()
        jpegtran(program, "progressive-steps.jpg", "420.jpg", "-scans", script.name)
        jpegtran(program, "arithmetic-progressive-steps.jpg", "420.jpg", "-arithmetic", "-scans", script.name)
    make_many_steps(program)
    make_incomplete_jpegs()
    make_bmps()
    make_gifs()
    make_tiffs()
    make_tiff_layouts()


if __name__ == "__main__":
    main()
