"""States of random number generators, for child processes."""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
from typing import Any

import numpy


class RandomState:
    """The states of the generators of `random`, NumPy (legacy) and PyTorch (CPU).

    PyTorch's state is included if PyTorch is imported.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = numpy.random.get_state()
        torch: Any = sys.modules.get("torch")
        self._torch: bytes | None = None
        if torch is not None:
            self._torch = torch.get_rng_state().numpy().tobytes()

    def restore(self) -> None:
        """Sets the generators of this process to the states."""
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        if self._torch is not None:
            torch: Any = importlib.import_module("torch")
            state = torch.frombuffer(bytearray(self._torch), dtype=torch.uint8)
            torch.set_rng_state(state)

    def restore_for(self, worker: int) -> None:
        """Seeds the generators of this process from the states and the number of a worker.

        Workers draw different numbers, and seeded programs are reproducible.
        """
        state = repr((self._python, self._numpy, self._torch, worker)).encode()
        seed = int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big")
        random.seed(seed)
        numpy.random.seed(seed & 0xFFFFFFFF)
        if self._torch is not None:
            torch: Any = importlib.import_module("torch")
            torch.manual_seed(seed)
