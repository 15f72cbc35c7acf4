"""Makes canvas.json: the parameters and results of torchvision's RandomZoomOut and RandomIoUCrop, before a resize.

    python -m venv venv && venv/bin/pip install torch==2.15.0 torchvision==0.29.2 pillow==13.0.0
    venv/bin/python spdl-media/tests/golden/make_canvas_golden.py

Run with these versions, Python 3.11 on x86-64. Masks are resized with NEAREST_EXACT: see make_targets_golden.py.
"""

import io
import json
import random
from pathlib import Path
from unittest import mock

import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).resolve().parent
OUTSIDE, FILL = 200, 114
OPTIONS = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
draw = random.Random(11)


def parameters(transform, inputs, option=0):
    """The parameters that a transform draws, and the random numbers that it used."""
    used = []

    def rand(count):
        numbers = [draw.random() for _ in range(count if isinstance(count, int) else count[0])]
        used.extend(numbers)
        return torch.tensor(numbers, dtype=torch.float64)

    chosen = torch.tensor([option])
    with mock.patch("torch.rand", rand), mock.patch("torch.randint", lambda **_: chosen):
        return transform.make_params(inputs), used


def case(number):
    width, height = draw.randint(14, 28), draw.randint(14, 28)
    size = [draw.randint(6, 24), draw.randint(6, 24)]
    mirrored, upended = number % 4 == 1, number % 4 == 2
    has_zoom, has_crop = number % 3 != 1, number % 3 != 0
    boxes = []
    for _ in range(6):
        x, y = draw.uniform(0, width - 4), draw.uniform(0, height - 4)
        boxes.append([x, y, draw.uniform(x + 2, width), draw.uniform(y + 2, height)])
    boxes.append([width / 5, height / 5, 0.9 * width, 0.85 * height])
    canvas = {"canvas_size": (height, width), "dtype": torch.float64}
    boxes_in = tv_tensors.BoundingBoxes(boxes, format="XYXY", **canvas)
    points = [[draw.uniform(0, width), draw.uniform(0, height)] for _ in range(5)]
    points_in = tv_tensors.KeyPoints(points, **canvas)
    mask = torch.randint(0, 200, (height, width), generator=torch.Generator().manual_seed(number)).byte()

    padding, zoom = [0, 0, 0, 0], []
    if has_zoom:
        found, zoom = parameters(v2.RandomZoomOut(), [boxes_in])
        padding = found["padding"]
    on_canvas = F.pad(boxes_in, padding)
    crop, trials, option = {}, [], 0
    if has_crop:
        # On a canvas, the overlap of all parts may be small.
        option = 0 if has_zoom else number // 3 % 4
        crop, trials = parameters(v2.RandomIoUCrop(trials=10**6), [on_canvas], option)

    def moved(value, fill=None, **resize):
        value = F.pad(value, padding, **({} if fill is None else {"fill": fill}))
        if crop:
            value = F.crop(value, crop["top"], crop["left"], crop["height"], crop["width"])
        return F.resize(value, size[::-1], **resize)

    def flipped(value):
        value = F.horizontal_flip(value) if mirrored else value
        return F.vertical_flip(value) if upended else value

    found = flipped(moved(boxes_in)).tolist()
    inside = crop["is_within_crop_area"].tolist() if crop else [True] * len(boxes)
    kept = [
        row
        for row, (left, top, right, bottom) in enumerate(found)
        if inside[row] and right > left and bottom > top
    ]
    # Points that are cropped are clamped by torchvision, and points at the edge are flipped as pixels: only points
    # inside are compared, before flips.
    cropped = moved(points_in)
    part = (crop["left"] - padding[0], crop["top"] - padding[1], crop["width"], crop["height"]) if crop else None
    shown = [
        part is None or (part[0] < x < part[0] + part[2] and part[1] < y < part[1] + part[3])
        for x, y in points
    ]
    exact = moved(mask[None], OUTSIDE, interpolation=InterpolationMode.NEAREST_EXACT)
    png = io.BytesIO()
    Image.fromarray(mask.numpy()).save(png, "PNG")
    total = (width + padding[0] + padding[2], height + padding[1] + padding[3])
    return {
        "image": [width, height],
        "zoom": zoom,
        "trials": trials,
        "overlap": OPTIONS[option],
        "part": list(part or (-padding[0], -padding[1], *total)),
        "size": size,
        "mirrored": mirrored,
        "upended": upended,
        "boxes": boxes,
        "kept": kept,
        "moved_boxes": [found[row] for row in kept],
        "points": points,
        "moved_points": [point if is_shown else None for point, is_shown in zip(cropped.tolist(), shown)],
        "mask": png.getvalue().hex(),
        "moved_mask": flipped(exact).flatten().tolist(),
        "moved_image": moved(mask[None], FILL, antialias=True).flatten().tolist(),
    }


cases = [case(number) for number in range(36)]
text = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
(HERE / "canvas.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
