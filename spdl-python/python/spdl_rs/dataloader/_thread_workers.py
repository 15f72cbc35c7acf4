"""Batches loaded by threads, with SPDL's random orders."""

from __future__ import annotations

import secrets
from typing import Any

from ..torch._loader import DataLoader


class ThreadDataLoader(DataLoader[Any]):
    """`spdl_rs.torch.DataLoader` without PyTorch's base seed.

    At the start of each epoch PyTorch draws one number from the generator that random orders are drawn
    from. SPDL does not draw this number, so its orders differ.
    """

    def _draw_seed(self) -> int:
        return secrets.randbits(63)
