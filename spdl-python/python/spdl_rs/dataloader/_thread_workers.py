"""Batches made by threads, with the orders of SPDL."""

from __future__ import annotations

import secrets
from typing import Any

from ..torch._loader import DataLoader


class ThreadDataLoader(DataLoader[Any]):
    """PyTorch's loader, but for one random number.

    At the start of each epoch PyTorch's draws one from the generator that orders are drawn from,
    and SPDL's does not.
    """

    def _draw_seed(self) -> int:
        return secrets.randbits(63)
