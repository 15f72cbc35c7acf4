"""Writes pillow_rgb.tsv: what Pillow makes of third-party images of other modes than RGB, as 8-bit RGB.

    python -m venv venv && venv/bin/pip install pillow==13.0.0
    venv/bin/python spdl-media/tests/make_pillow_rgb.py CORPORA

Run with Pillow 13.0.0, Python 3.11. The table ORACLE_pillow.tsv of the corpora has the pixels of such
files in several layouts. This table has, by SHA-256 of the file, the mode and the SHA-256 of
its first frame after `convert("RGB")`, which drops alpha, and clips 16-bit, 32-bit and floating-point samples.
"""

import hashlib
import sys
import warnings
from pathlib import Path

from PIL import Image

CORPORA = Path(sys.argv[1])
Image.MAX_IMAGE_PIXELS = None
warnings.simplefilter("ignore")


def table(name):
    return [line.split("\t") for line in (CORPORA / name).read_text().splitlines()[1:]]


oracle = {sha256: fields for sha256, *fields in table("ORACLE_pillow.tsv")}
lines = set()
for corpus, _, _, sha256, _, path in table("MANIFEST.tsv"):
    if sha256 not in oracle:
        continue
    _, result, _, _, mode, pixels = oracle[sha256]
    file = CORPORA / corpus / "files" / path
    if result != "ok" or mode == "RGB" or not file.exists():
        continue
    try:
        image = Image.open(file)
        image.load()
        # The table has palettes as RGBA, and some modes as RGB.
        modes = [image, *(image.convert(mode) for mode in ("RGB", "RGBA"))]
        assert pixels in {hashlib.sha256(each.tobytes()).hexdigest() for each in modes}
    except Exception as error:
        print(f"{file}: not as in ORACLE_pillow.tsv: {error!r}", file=sys.stderr)
        continue
    found = hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
    lines.add(f"{sha256}\t{mode}\t{found}\n")
out = Path(__file__).with_name("pillow_rgb.tsv")
out.write_text("".join(sorted(lines)))
print(f"{len(lines)} files")
