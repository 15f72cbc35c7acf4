"""Makes the arrays tests/data/array-*, which NumPy writes.

    python -m venv venv && venv/bin/pip install numpy
    venv/bin/python spdl-media/tests/golden/make_arrays.py

Run with NumPy 2.4, Python 3.11.
"""

from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "data"
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3) / 4 - 0.5


def main():
    np.save(DATA / "array-matrix.npy", MATRIX)
    np.save(DATA / "array-big-endian.npy", MATRIX.astype(">f8"))
    np.save(DATA / "array-halves.npy", MATRIX.astype(np.float16))
    np.save(DATA / "array-complex.npy", MATRIX.astype(np.complex64))
    np.savez(DATA / "array-one.npz", matrix=MATRIX)
    np.savez_compressed(DATA / "array-several.npz", matrix=MATRIX, ids=np.arange(5, dtype=np.uint16))


if __name__ == "__main__":
    main()
