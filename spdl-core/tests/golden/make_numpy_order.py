"""Generates numpy_order.tsv: the items that NumPy's Generator draws.

    python -m venv venv && venv/bin/pip install numpy==2.4.6
    venv/bin/python spdl-core/tests/golden/make_numpy_order.py

Run with NumPy 2.4.6, Python 3.11 on x86-64 with AVX-512.

Each line is a draw: permutation or choice, seed, items, draws, weights (`none` or a key of WEIGHTS),
replacement, the FNV-1a hash of all items as 64-bit words, and the first items.
Lines `sum` contain the bits of np.sum of the weights instead of the hash.
"""

from pathlib import Path

import numpy as np

WEIGHTS = {
    "none": lambda n: None,
    "integer": lambda n: np.array([i * 7919 % 101 for i in range(n)], dtype=np.float64),
    "harmonic": lambda n: np.array([1 / (1 + i) for i in range(n)], dtype=np.float64),
    "sparse": lambda n: np.array([float(i % 3 == 1) * (1 + i % 5) for i in range(n)]),
}


def line(kind, seed, items, draws, weights, replace):
    generator = np.random.default_rng(seed)
    if kind == "permutation":
        drawn = generator.permutation(items)
    else:
        p = WEIGHTS[weights](items)
        if p is not None:
            p /= np.sum(p)
        drawn = generator.choice(items, draws, replace=replace, p=p)
    assert len(drawn) == draws
    fnv = 0xCBF29CE484222325
    for item in drawn.tolist():
        fnv = (fnv ^ item) * 0x100000001B3 % 2**64
    first = ",".join(map(str, drawn[:8].tolist()))
    return f"{kind}\t{seed}\t{items}\t{draws}\t{weights}\t{replace}\t{fnv:016x}\t{first}"


lines = []
for seed in [0, 1, 42, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]:
    lines.append(line("permutation", seed, 257, 257, "none", False))
    lines.append(line("choice", seed, 100, 100, "none", False))
for items in [1, 2, 3, 10, 1000, 70_000]:
    lines.append(line("permutation", 7, items, items, "none", False))
    lines.append(line("choice", 7, items, items, "none", False))
    lines.append(line("choice", 7, items, 300, "none", True))
# Without replacement: Floyd's algorithm for at most 10,000 items or 2 %, otherwise a partial shuffle.
for items, draws in [
    (10_000, 10_000),
    (10_001, 200),
    (10_001, 201),
    (10_001, 10_001),
    (10_001, 10_000),
    (1_000_003, 20_000),
    (1_000_003, 20_001),
    (2**32 + 100, 300),
    (2**32, 300),
    (2**62, 300),
    (500, 0),
    (5, 4),
]:
    lines.append(line("choice", 11, items, draws, "none", False))
for items in [2**31 + 5, 2**32, 2**32 + 1, 2**40 + 12345, 2**63 - 1]:
    lines.append(line("choice", 12, items, 300, "none", True))
for weights in ["integer", "harmonic", "sparse"]:
    for items in [2, 5, 9, 64, 129, 1000, 4099]:
        lines.append(line("choice", 13, items, 2000, weights, True))
        positive = int(np.count_nonzero(WEIGHTS[weights](items)))
        for draws in {positive, positive // 2, positive // 7}:
            lines.append(line("choice", 14, items, draws, weights, False))

for weights in ["integer", "harmonic", "sparse"]:
    for items in [1, 7, 8, 9, 15, 20, 127, 128, 129, 135, 200, 263, 1003, 5005]:
        total = np.sum(WEIGHTS[weights](items)).view(np.uint64)
        lines.append(f"sum\t0\t{items}\t0\t{weights}\tFalse\t{int(total):016x}\t")

out = Path(__file__).resolve().parent / "numpy_order.tsv"
out.write_text("\n".join(lines) + "\n")
