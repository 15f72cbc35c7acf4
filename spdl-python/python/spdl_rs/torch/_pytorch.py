"""All calls of PyTorch, which is an optional dependency."""

from __future__ import annotations

import functools
import secrets
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any


@functools.cache
def pytorch() -> ModuleType | None:
    """Returns the module `torch`, or `None` if it is not installed."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    import torch.utils.data  # pyright: ignore[reportMissingImports]

    return torch


def needed_for(what: str) -> ModuleType:
    """Returns the module `torch`. `what` names the feature in the error message.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
    """
    torch = pytorch()
    if torch is None:
        message = f"{what} requires PyTorch, which is not installed"
        raise ModuleNotFoundError(message, name="torch")
    return torch


def is_iterable_style(dataset: Any) -> bool:
    """Returns true if a data set is iterated instead of indexed."""
    # An `IterableDataset` exists only if PyTorch is imported.
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def default_collate_fn(batched: bool) -> Callable[[Any], Any]:
    """Returns the default `collate_fn`, as PyTorch chooses it.

    Without PyTorch, samples that are not batched stay unchanged.

    Raises:
        ModuleNotFoundError: `batched` is true, and PyTorch is not installed.
    """
    if not batched and pytorch() is None:
        return _unchanged
    data = needed_for("batching without collate_fn").utils.data
    return data.default_collate if batched else data.default_convert


def _unchanged(sample: Any) -> Any:
    return sample


def draw_seed(generator: Any) -> int:
    """Returns the base seed of an epoch's workers, from the same draw as in PyTorch's loader."""
    torch = pytorch()
    if torch is None:
        return secrets.randbits(63)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def pin_function() -> Callable[[Any], Any] | None:
    """Returns a function that copies tensors to pinned memory, or `None` without accelerator."""
    torch = needed_for("pin_memory=True")
    from torch.utils.data._utils.pin_memory import (  # pyright: ignore[reportMissingImports]
        pin_memory,
    )

    accelerator = getattr(torch, "accelerator", torch.cuda)
    if not accelerator.is_available():
        warnings.warn(
            "pin_memory=True has no effect: PyTorch found no accelerator", UserWarning, stacklevel=4
        )
        return None
    if not torch.cuda.is_available():
        return pin_memory
    # Each thread has its own current device.
    device = torch.cuda.current_device()

    def pin(batch: Any) -> Any:
        torch.cuda.set_device(device)
        return pin_memory(batch)

    return pin
