"""Generate torch.tsv and torch.bin: samples of noise that PyTorch has resized.

    python -m venv venv && venv/bin/pip install torch==2.15.0
    venv/bin/python spdl-cuda/tests/kernels/golden/make_golden.py

Generated with PyTorch 2.15.0 on a CPU and Python 3.11. Each line of torch.tsv has the filter, the type
(`u8`, or `f32` from 0 to 1), width and height of the noise, width and height of the result, and its
offset and length in torch.bin, in bytes. A result is rows of interleaved pixels.
"""

from pathlib import Path

import torch
from torch.nn.functional import interpolate

HERE = Path(__file__).resolve().parent
CASES = [
    ((1, 1), (5, 3)),
    ((7, 5), (3, 4)),
    ((7, 5), (15, 11)),
    ((321, 241), (40, 30)),
    ((321, 241), (60, 7)),
]
MASK = 0xFFFFFFFF


def noise(x: int, y: int, component: int) -> int:
    """Return the sample of `Picture::noise` in `picture.rs`."""
    value = (x * 1103515245 + y * 2654435761 + component * 40503) & MASK
    for _ in range(2):
        value = ((value ^ (value >> 15)) * 2246822519) & MASK
    value ^= value >> 13
    return value >> 24 if value % 2 == 0 else (value >> 1 & 1) * 255


def main() -> None:
    lines, content = [], b""
    for size, target in CASES:
        rows = [
            [[noise(x, y, component) for x in range(size[0])] for y in range(size[1])]
            for component in range(3)
        ]
        # Channels last, because PyTorch resizes bytes in planes by another algorithm.
        image = torch.tensor(rows, dtype=torch.uint8)[None]
        image = image.contiguous(memory_format=torch.channels_last)
        for mode in ("bilinear", "bicubic"):
            for name, source in (("u8", image), ("f32", image.float() / 255)):
                result = interpolate(
                    source, size=(target[1], target[0]), mode=mode, antialias=True
                )
                values = result[0].permute(1, 2, 0).contiguous().numpy().tobytes()
                fields = (mode, name, *size, *target, len(content), len(values))
                lines.append("\t".join(map(str, fields)))
                content += values
    (HERE / "torch.tsv").write_text("\n".join(lines) + "\n")
    (HERE / "torch.bin").write_bytes(content)
    print(len(lines), "expectations,", len(content), "bytes")


if __name__ == "__main__":
    main()
