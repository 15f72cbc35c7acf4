"""Makes augment.tsv and augment.bin: results of torchvision's v2 transforms on small images.

    python -m venv venv && venv/bin/pip install torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
    venv/bin/python spdl-media/tests/golden/make_augment_golden.py

Run with torch 2.14.1, torchvision 0.29.1, Python 3.11 on x86-64 with AVX-512.

augment.tsv has one line per expectation: function, arguments (comma-separated), image, CRC-32 of the
resulting bytes (rows of interleaved RGB), and the number of its bytes in augment.bin, which is a zlib
stream (0 if only the CRC-32 is stored). Lines `image` contain the images, with width and height as
arguments. Lines `magnitudes` and `coefficients` end in numbers instead of a CRC-32. A line `operation`
has several arguments, and a CRC-32 for each.
"""

import math
import random
import zlib
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms import v2
from torchvision.transforms.functional import _get_perspective_coeffs
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).resolve().parent
torch.set_num_threads(1)
rng = np.random.default_rng(20)
draws = random.Random(7)
lines: list[str] = []
kept = bytearray()


def picture(width, height, kind):
    y, x = np.mgrid[0:height, 0:width].astype(float)
    if kind == "photo":
        red = 128 + 120 * np.sin(x / 5) * np.cos(y / 7)
        green = 255 * x / max(width - 1, 1)
        blue = 20 + 200 * ((x - width / 2) ** 2 + (y - height / 3) ** 2 < (height / 3) ** 2)
        image = np.stack([red, green, blue], -1) + rng.normal(0, 12, (height, width, 3))
        image[: height // 4, : width // 4] = 255
        image[-(height // 4) :, : width // 5] = 0
        image[height // 3 : height // 2, -(width // 4) :] = 77
    elif kind == "noise":
        image = rng.integers(0, 256, (height, width, 3)).astype(float)
    elif kind == "dull":
        image = rng.integers(90, 131, (height, width, 3)).astype(float)
        image[..., 1] = 60
    return np.clip(image, 0, 255).astype(np.uint8)


def line(*fields):
    lines.append("\t".join(str(field) for field in fields))


def numbers(values):
    return ",".join(repr(float(value)) for value in values)


def keep(what, arguments, name, result, pixels):
    data = np.ascontiguousarray(result).tobytes()
    if pixels:
        kept.extend(data)
    line(what, numbers(arguments), name, zlib.crc32(data), len(data) if pixels else 0)


images = {}
for name, width, height, kind in [
    ("photo", 64, 48, "photo"),
    ("small", 24, 20, "photo"),
    ("square", 32, 32, "noise"),
    ("dull", 31, 27, "dull"),
    ("tiny", 2, 5, "noise"),
    ("dot", 1, 1, "noise"),
]:
    images[name] = picture(width, height, kind)
    keep("image", (width, height), name, images[name], True)


def expect(what, arguments, name, function, pixels=None):
    """`pixels`: whether the pixels are stored; default: for the small image."""
    tensor = torch.from_numpy(images[name].copy()).permute(2, 0, 1).contiguous()
    result = function(tensor).permute(1, 2, 0).numpy()
    keep(what, arguments, name, result, name == "small" if pixels is None else pixels)


every = list(images)
factors = [0.0, 0.1, 0.4, 0.73, 0.9, 1.0, 1.1, 1.37, 1.99, 3.5]
for name in every:
    for factor in factors:
        small = factor in (0.4, 1.37) and name == "small"
        expect("brightness", [factor], name, lambda t: F.adjust_brightness(t, factor), small)
        expect("contrast", [factor], name, lambda t: F.adjust_contrast(t, factor), small)
        expect("saturation", [factor], name, lambda t: F.adjust_saturation(t, factor), small)
        expect("sharpness", [factor], name, lambda t: F.adjust_sharpness(t, factor), small)
    for factor in [-0.5, -0.31, -0.1, 0.0, 0.05, 0.25, 0.4999, 0.5]:
        expect("hue", [factor], name, lambda t: F.adjust_hue(t, factor), name == "small" and factor == 0.25)
    expect("grayscale", [], name, lambda t: F.rgb_to_grayscale(t, num_output_channels=3), False)
    expect("invert", [], name, F.invert, False)
    expect("autocontrast", [], name, F.autocontrast)
    expect("equalize", [], name, F.equalize)
    for bits in range(9):
        expect("posterize", [bits], name, lambda t: F.posterize(t, bits), False)
    for threshold in [-3.0, 0.0, 0.5, 100.0, 127.5, 128.0, 254.2, 255.0]:
        expect("solarize", [threshold], name, lambda t: F.solarize(t, threshold), False)

# A grid of colours, for hue, saturation and grey.
levels = list(range(0, 256, 15)) + [1, 127, 254]
images["colors"] = np.array(
    [[r, g, b] for r in levels for g in levels for b in levels], np.uint8
).reshape(len(levels) ** 2, len(levels), 3)
for factor in [-0.37, 0.0, 0.11, 0.5]:
    expect("hue", [factor], "colors", lambda t: F.adjust_hue(t, factor), False)
for factor in [0.0, 0.37, 1.63]:
    expect("saturation", [factor], "colors", lambda t: F.adjust_saturation(t, factor), False)
    expect("contrast", [factor], "colors", lambda t: F.adjust_contrast(t, factor), False)
expect("grayscale", [], "colors", lambda t: F.rgb_to_grayscale(t, num_output_channels=3), False)

for name in ["photo", "small", "square"]:
    for width, height, across, down in [
        (3, 3, 0.8, 0.8), (5, 3, 0.1, 2.0), (1, 7, 1.0, 1.4), (9, 9, 2.0, 2.0), (23, 23, 1.3, 1.3),
    ]:  # fmt: skip
        blurred = lambda t: F.gaussian_blur(t, [width, height], [across, down])
        expect("blur", [width, height, across, down], name, blurred, name != "photo" or width == 5)

nan = math.nan
modes = {0: v2.InterpolationMode.NEAREST, 1: v2.InterpolationMode.BILINEAR}
fills = [None, [0.0], [124.0, 116.0, 104.0]]


def wide(fill):
    """A fill as three numbers; NaN without fill."""
    return [nan] * 3 if fill is None else fill * (3 // len(fill))


def affine_case(name, angle, translate, scale, shear, mode, fill, center):
    expect(
        "affine",
        [angle, *translate, scale, *shear, mode, *wide(fill), *(center or [nan] * 2)],
        name,
        lambda t: F.affine(t, angle, list(translate), scale, list(shear), modes[mode], fill, center),
        name == "small" and mode == 1 and fill != [0.0],
    )


for mode in modes:
    for fill in fills:
        affine_case("photo", 0.0, (0, 0), 1.0, (0.0, 0.0), mode, fill, None)
        affine_case("small", 30.0, (0, 0), 1.0, (0.0, 0.0), mode, fill, None)
        affine_case("small", -17.3, (3, -2), 1.3, (10.0, 0.0), mode, fill, None)
        affine_case("photo", 211.0, (-5, 7), 0.6, (-20.0, 12.0), mode, fill, None)
        affine_case("photo", 5.0, (0, 0), 0.2, (0.0, 0.0), mode, fill, [0.0, 0.0])
        affine_case("square", 45.0, (0, 0), 1.0, (0.0, 0.0), mode, fill, [10.5, 3.0])
        affine_case("dull", 12.0, (1000, 0), 1.0, (0.0, 0.0), mode, fill, None)
        affine_case("tiny", 77.0, (0, 1), 1.5, (0.0, 5.0), mode, fill, None)
        affine_case("dot", 77.0, (0, 0), 1.5, (0.0, 5.0), mode, fill, None)
        for angle in [0.0, 360.0, 90.0, 180.0, -90.0, 450.0, 13.0, -101.5, 270.0, 45.0]:
            for name in ["small", "square", "tiny"]:
                for center in [None, [3.0, 7.5]]:
                    expect(
                        "rotate",
                        [angle, mode, *wide(fill), *(center or [nan] * 2)],
                        name,
                        lambda t: F.rotate(t, angle, modes[mode], False, center, fill),
                        False,
                    )
        for name in ["photo", "small", "square", "dull"]:
            height, width = images[name].shape[:2]
            for _ in range(3):
                torch.manual_seed(draws.randrange(1 << 30))
                transform = v2.RandomPerspective(0.6, p=1.0)
                tensor = torch.from_numpy(images[name]).permute(2, 0, 1)
                coefficients = transform.make_params([tensor])["coefficients"]
                expect(
                    "perspective",
                    [*coefficients, mode, *wide(fill)],
                    name,
                    lambda t: F.perspective(
                        t, None, None, modes[mode], fill, coefficients=coefficients
                    ),
                    False,
                )
for _ in range(40):
    affine_case(
        draws.choice(["photo", "square", "dull"]),
        draws.uniform(-180, 180),
        (draws.randrange(-9, 10), draws.randrange(-9, 10)),
        draws.uniform(0.5, 1.5),
        (draws.uniform(-30, 30), draws.uniform(-30, 30)),
        draws.randrange(2),
        draws.choice(fills),
        draws.choice([None, [draws.uniform(0, 40), draws.uniform(0, 30)]]),
    )
for _ in range(12):
    width, height = draws.randrange(8, 400), draws.randrange(8, 400)
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    end = [[abs(x - draws.randrange(width // 3)), abs(y - draws.randrange(height // 3))] for x, y in start]
    flat = [value for corner in end for value in corner]
    line("coefficients", numbers([width, height, *flat]), "", numbers(_get_perspective_coeffs(start, end)), 0)

policies = {
    "RandAugment": (v2.RandAugment(), v2.RandAugment._AUGMENTATION_SPACE, [31, 11]),
    "TrivialAugmentWide": (v2.TrivialAugmentWide(), v2.TrivialAugmentWide._AUGMENTATION_SPACE, [31, 12]),
    "AutoAugment": (v2.AutoAugment(), v2.AutoAugment._AUGMENTATION_SPACE, [10]),
    "AugMix": (v2.AugMix(), v2.AugMix._AUGMENTATION_SPACE, [10]),
}
for policy, (transform, space, bin_counts) in policies.items():
    for operation, (magnitudes, signed) in space.items():
        for bins in bin_counts:
            for width, height in [(224, 224), (64, 48), (331, 97)]:
                values = magnitudes(bins, height, width)
                what = [f"magnitudes\t{width},{height},{bins},{int(signed)}\t{policy} {operation}"]
                line(*what, "" if values is None else numbers(values.tolist()), 0)
        bins = bin_counts[0]
        height, width = images["photo"].shape[:2]
        values = magnitudes(bins, height, width)
        cases = [0.0] if values is None else [float(value) for value in values]
        cases += [-case for case in cases] if signed else []
        mode = modes[1 if policy == "AugMix" else 0]
        tensor = torch.from_numpy(images["photo"].copy()).permute(2, 0, 1).contiguous()
        checksums = []
        for magnitude in cases:
            result = transform._apply_image_or_video_transform(
                tensor, operation, magnitude, interpolation=mode, fill=transform._fill
            )
            checksums.append(zlib.crc32(np.ascontiguousarray(result.permute(1, 2, 0).numpy()).tobytes()))
        line(f"operation {policy} {operation}", numbers(cases), "photo", ",".join(map(str, checksums)), 0)

for index, ((first, chance, bin), (second, second_chance, second_bin)) in enumerate(v2.AutoAugment()._policies):
    number = lambda value: -1 if value is None else value
    line("policy", numbers([index, chance, number(bin), second_chance, number(second_bin)]), f"{first} {second}", "", 0)


class FixedAugMix(v2.AugMix):
    """AugMix with fixed weights and one fixed operation per chain."""

    def __init__(self, weights, chains):
        super().__init__(mixture_width=len(chains), chain_depth=1)
        self.weights, self.chains = list(weights), list(chains)

    def _sample_dirichlet(self, params):
        return torch.tensor([self.weights.pop(0)])

    def _get_random_item(self, space):
        operation, magnitude = self.chains.pop(0)
        return operation, (lambda bins, height, width: torch.full((bins,), magnitude), False)


for share in [0.0, 0.25, 0.61, 1.0]:
    for name in ["photo", "small"]:
        shares = [share, 1.0 - share]
        mixture = [0.2, 0.7, 0.1]
        chains = [("Rotate", 12.5), ("Posterize", 3.0), ("Color", -0.4)]
        expect("augmix", [*shares, *mixture], name, FixedAugMix([shares, mixture], chains), share == 0.61)

for size in [(224, 224), (31, 97)]:
    width, height = size
    for portion in [0.0, 0.1, 0.37, 0.5, 0.93, 1.0]:
        for column, row in [(0, 0), (width // 2, height // 3), (width - 1, height - 1)]:
            cutmix = v2.CutMix(num_classes=2)
            cutmix._dist = type("Beta", (), {"sample": staticmethod(lambda shape: portion)})
            drawn = [torch.tensor([column]), torch.tensor([row])]
            original, torch.randint = torch.randint, lambda *a, **k: drawn.pop(0)
            parameters = cutmix.make_params([torch.zeros(2, 3, height, width)])
            torch.randint = original
            values = [*parameters["box"], parameters["lam_adjusted"]]
            line("cut", numbers([width, height, portion, column, row]), "", numbers(values), 0)

for portion in [0.0, 0.3, 0.77, 1.0]:
    mixup = v2.MixUp(num_classes=5)
    mixup._dist = type("Beta", (), {"sample": staticmethod(lambda shape: portion)})
    floats = torch.from_numpy(np.stack([images["square"], images["square"][::-1], images["square"][:, ::-1]]))
    mixed, labels = mixup(floats.permute(0, 3, 1, 2).float().div(64).sub(1.5), torch.tensor([3, 0, 3]))
    keep("mixup", [portion], "square", mixed.numpy(), False)
    line("soft", numbers([portion]), "", numbers(labels.flatten().tolist()), 0)

(HERE / "augment.tsv").write_text("\n".join(lines) + "\n")
(HERE / "augment.bin").write_bytes(zlib.compress(bytes(kept), 9))
