"""Makes targets.json: boxes, key points and masks after torchvision's crop, resize and flips.

    python -m venv venv && venv/bin/pip install torch==2.15.0 torchvision==0.29.2 pillow==13.0.0
    venv/bin/python spdl-media/tests/golden/make_targets_golden.py

Run with these versions, Python 3.11 on x86-64. Masks are resized with NEAREST_EXACT, because torchvision's
default for masks (NEAREST) takes pixels at the upper left of the true position.
"""

import io
import json
import random
from pathlib import Path

import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).resolve().parent
draw = random.Random(5)


def case(number):
    width, height = draw.randint(12, 30), draw.randint(12, 30)
    crop_width, crop_height = draw.randint(6, width), draw.randint(6, height)
    left, top = draw.randint(0, width - crop_width), draw.randint(0, height - crop_height)
    out = [draw.randint(5, 32), draw.randint(5, 32)]
    mirrored, upended = number % 2 == 1, number % 4 >= 2

    def flipped(value):
        value = F.horizontal_flip(value) if mirrored else value
        return F.vertical_flip(value) if upended else value

    def moved(value):
        return flipped(F.resized_crop(value, top, left, crop_height, crop_width, out[::-1]))

    boxes = []
    for _ in range(6):
        x, y = draw.uniform(0, width - 2), draw.uniform(0, height - 2)
        boxes.append([x, y, draw.uniform(x + 0.5, width), draw.uniform(y + 0.5, height)])
    canvas = (height, width)
    found = moved(
        tv_tensors.BoundingBoxes(
            boxes, format="XYXY", canvas_size=canvas, dtype=torch.float64
        )
    ).tolist()
    kept = [row for row, (x, y, right, bottom) in enumerate(found) if right > x and bottom > y]
    points = [
        [draw.uniform(left, left + crop_width), draw.uniform(top, top + crop_height)]
        for _ in range(5)
    ]
    moved_points = moved(
        tv_tensors.KeyPoints(points, canvas_size=canvas, dtype=torch.float64)
    )
    # torchvision flips key points as indices of pixels (width - 1 - x), but boxes as positions (width - x).
    # Here, key points are positions too.
    moved_points = (moved_points + torch.tensor([float(mirrored), float(upended)])).tolist()
    mask = torch.randint(0, 200, canvas, generator=torch.Generator().manual_seed(number)).byte()
    part = mask[None, top : top + crop_height, left : left + crop_width]
    resized = F.resize(part, out[::-1], interpolation=InterpolationMode.NEAREST_EXACT)
    png = io.BytesIO()
    Image.fromarray(mask.numpy()).save(png, "PNG")
    return {
        "image": [width, height],
        "crop": [left, top, crop_width, crop_height],
        "size": out,
        "mirrored": mirrored,
        "upended": upended,
        "boxes": boxes,
        "kept": kept,
        "moved_boxes": [found[row] for row in kept],
        "points": points,
        "moved_points": moved_points,
        "mask": png.getvalue().hex(),
        "moved_mask": flipped(resized).flatten().tolist(),
    }


torch.manual_seed(0)
cases = [case(number) for number in range(16)]
text = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
(HERE / "targets.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
