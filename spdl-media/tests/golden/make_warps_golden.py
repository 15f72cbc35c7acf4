"""Makes warps.json: boxes, key points and masks after torchvision's rotations, affine and perspective transforms.

    python -m venv venv && venv/bin/pip install torch==2.15.0 torchvision==0.29.2
    venv/bin/python spdl-media/tests/golden/make_warps_golden.py

Run with these versions, Python 3.11 on x86-64.
"""

import json
import random
from pathlib import Path

import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).resolve().parent
OUTSIDE = 200
draw = random.Random(7)


def rounded(value):
    return round(value, 3)


def operation(width, height):
    """The name of a function, and its arguments."""
    center = [rounded(draw.uniform(0, width)), rounded(draw.uniform(0, height))]
    center = draw.choice([None, center])
    kind = draw.choice(["rotate", "affine", "perspective"])
    if kind == "rotate":
        angle = draw.choice([rounded(draw.uniform(-180, 180)), 90.0, 180.0, -90.0])
        return kind, {"angle": angle, "center": center}
    if kind == "affine":
        return kind, {
            "angle": rounded(draw.uniform(-60, 60)),
            "translate": [draw.randint(-4, 4), draw.randint(-4, 4)],
            "scale": rounded(draw.uniform(0.6, 1.6)),
            "shear": [rounded(draw.uniform(-25, 25)), rounded(draw.uniform(-25, 25))],
            "center": center,
        }
    right, bottom = width - 1, height - 1
    x, y = [[draw.randint(0, side // 4) for _ in range(4)] for side in (width, height)]
    return kind, {
        "startpoints": [[0, 0], [right, 0], [right, bottom], [0, bottom]],
        "endpoints": [
            [x[0], y[0]],
            [right - x[1], y[1]],
            [right - x[2], bottom - y[2]],
            [x[3], bottom - y[3]],
        ],
    }


def has_area(box):
    left, top, right, bottom = box
    return right > left and bottom > top


def case(number):
    width, height = draw.randint(16, 40), draw.randint(16, 40)
    if number % 4 == 0:
        height = width
    operations = [operation(width, height) for _ in range(1 + number % 3)]

    def steps(value):
        for kind, arguments in operations:
            fill = {"fill": OUTSIDE} if isinstance(value, tv_tensors.Mask) else {}
            value = getattr(F, kind)(value, **arguments, **fill)
            yield value

    def moved(value):
        *_, last = steps(value)
        return last

    canvas = {"canvas_size": (height, width), "dtype": torch.float64}
    boxes = []
    for _ in range(6):
        x, y = draw.uniform(0, width - 3), draw.uniform(0, height - 3)
        boxes.append([x, y, draw.uniform(x + 1, width), draw.uniform(y + 1, height)])
    found = [step.tolist() for step in steps(tv_tensors.BoundingBoxes(boxes, format="XYXY", **canvas))]
    # A box that one operation moves out of the image is gone. torchvision keeps it as a line at the edge, and
    # the next rotation makes a box of the line.
    kept = [row for row in range(len(boxes)) if all(map(has_area, (step[row] for step in found)))]
    points = [[draw.uniform(0, width), draw.uniform(0, height)] for _ in range(5)]
    generator = torch.Generator().manual_seed(number)
    mask = torch.randint(0, 200, (height, width), generator=generator).byte()
    return {
        "size": [width, height],
        "operations": operations,
        "boxes": boxes,
        "kept": kept,
        "moved_boxes": [found[-1][row] for row in kept],
        "points": points,
        "moved_points": moved(tv_tensors.KeyPoints(points, **canvas)).tolist(),
        "mask": mask.numpy().tobytes().hex(),
        "moved_mask": moved(tv_tensors.Mask(mask)).numpy().tobytes().hex(),
    }


cases = [case(number) for number in range(36)]
text = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
(HERE / "warps.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
