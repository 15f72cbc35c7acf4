"""PyTorch, where it is installed. Everything that depends on it is asked for here."""

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
    """The module `torch`, or `None`."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    import torch.utils.data  # pyright: ignore[reportMissingImports]

    return torch


def needed_for(what: str) -> ModuleType:
    """The module `torch`.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    torch = pytorch()
    if torch is None:
        raise ModuleNotFoundError(f"{what} needs PyTorch, which is not installed", name="torch")
    return torch


def is_iterable_style(dataset: Any) -> bool:
    """Whether a data set is iterated, and not indexed."""
    # Who has made a data set of PyTorch's has imported it.
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def default_collate_fn(batched: bool) -> Callable[[Any], Any]:
    """What puts samples together, or converts one, where the user does not say."""
    if not batched and pytorch() is None:
        return _as_it_is
    data = needed_for("batching without collate_fn").utils.data
    return data.default_collate if batched else data.default_convert


def _as_it_is(sample: Any) -> Any:
    return sample


def draw_seed(generator: Any) -> int:
    """The seed of an epoch's workers: the same draw that PyTorch's loader makes."""
    torch = pytorch()
    if torch is None:
        return secrets.randbits(63)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def pinning() -> Callable[[Any], Any] | None:
    """A function that moves tensors to pinned memory, or `None` where there is no accelerator."""
    torch = needed_for("pin_memory=True")
    from torch.utils.data._utils.pin_memory import (  # pyright: ignore[reportMissingImports]
        pin_memory,
    )

    accelerator = getattr(torch, "accelerator", torch.cuda)
    if not accelerator.is_available():
        warnings.warn(
            "pin_memory=True has no effect: PyTorch finds no accelerator", UserWarning, stacklevel=4
        )
        return None
    if not torch.cuda.is_available():
        return pin_memory
    # The current device is one of each thread's.
    device = torch.cuda.current_device()

    def pin(batch: Any) -> Any:
        torch.cuda.set_device(device)
        return pin_memory(batch)

    return pin
