"""What views of a loader as data sets of other libraries share."""

from __future__ import annotations

import sys
from typing import Any

from . import _arguments as check
from ._batch_loader import BatchLoader


def checked_loader(loader: Any) -> BatchLoader[Any]:
    """Returns the loader.

    Raises:
        TypeError: `loader` is not a loader of batches.
    """
    if not isinstance(loader, BatchLoader):
        raise TypeError(f"loader must be an ImageLoader or a Loader, not {check.shown(loader)}")
    return loader


def refuse_worker_process() -> None:
    """Raises `RuntimeError` in a worker process of PyTorch's `DataLoader`."""
    # There is no worker process if PyTorch is not imported.
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise RuntimeError(
            "each worker process of PyTorch would load all samples: use num_workers=0; the threads of the "
            "loader work in the background"
        )
