"""Makes the expected pixels of tests/golden/resize.*: results of Pillow's filters.

    python -m venv venv && venv/bin/pip install pillow==13.0.0 numpy
    venv/bin/python spdl-media/tests/golden/make_resize_golden.py

Run with Pillow 13.0.0 (libjpeg-turbo 3.2.0), NumPy 2.4, Python 3.11. Reads assets/photos and
tests/data.

resize.tsv has one line per expectation: folder (data, photos), file name, `RGB` or `L`, filter name of
this project, action, width and height of the result. Actions are `stretch`, `crop LEFT TOP WIDTH
HEIGHT` (crop before the resize), and `covering WIDTH HEIGHT` (centre crop after the resize to cover
that size). resize.bin is a zlib stream of all pixels.
"""

import zlib
from pathlib import Path

from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent
PLACES = {"data": HERE.parent / "data", "photos": HERE.parents[2] / "assets" / "photos"}

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "area": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos3": Image.Resampling.LANCZOS,
}
CASES = [
    # Enlarged, reduced, both, and unchanged; odd sizes.
    ("data", "rgb.png", "stretch", (91, 53)),
    ("data", "rgb.png", "stretch", (17, 29)),
    ("data", "rgb.png", "stretch", (5, 67)),
    ("data", "rgb.png", "stretch", (1, 1)),
    ("data", "rgb.png", "crop 5 3 19 24", (24, 24)),
    ("data", "grey.png", "stretch", (23, 31)),
    ("data", "orientation-6.png", "stretch", (31, 18)),
    ("photos", "chelsea.jpg", "crop 33 21 300 251", (48, 40)),
    ("photos", "astronaut.jpg", "covering 55 55", (48, 48)),
    ("photos", "rocket.jpg", "stretch", (7, 9)),
    ("photos", "life.jpg", "covering 73 20", (61, 19)),
]


def covered(image, width, height):
    """The size of the resized image: same aspect ratio, truncated to whole pixels."""
    if width * image.height >= height * image.width:
        return width, width * image.height // image.width
    return height * image.width // image.height, height


def resized(image, size, resample):
    """Resizes the width first, as Pillow before 13.0. Pillow 13.0 resizes the height first if that is
    reduced much more. The order matters if filter results are clamped to black or white."""
    return image.resize((size[0], image.height), resample).resize(size, resample)


def result(image, action, size, resample):
    name, *numbers = action.split()
    numbers = [int(number) for number in numbers]
    if name == "crop":
        left, top, width, height = numbers
        image = image.crop((left, top, left + width, top + height))
    if name != "covering":
        return resized(image, size, resample)
    image = resized(image, covered(image, *numbers), resample)
    left, top = round((image.width - size[0]) / 2), round((image.height - size[1]) / 2)
    return image.crop((left, top, left + size[0], top + size[1]))


def main():
    lines, content = [], b""
    for place, name, action, size in CASES:
        image = ImageOps.exif_transpose(Image.open(PLACES[place] / name))
        modes = ("RGB", "L") if name == "grey.png" else ("RGB",)
        for mode in modes:
            for filter_name, resample in FILTERS.items():
                pixels = result(image.convert(mode), action, size, resample)
                lines.append("\t".join(map(str, (place, name, mode, filter_name, action, *size))))
                content += pixels.tobytes()
    (HERE / "resize.tsv").write_text("\n".join(lines) + "\n")
    (HERE / "resize.bin").write_bytes(zlib.compress(content, 9))
    print(len(lines), "expectations,", (HERE / "resize.bin").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
