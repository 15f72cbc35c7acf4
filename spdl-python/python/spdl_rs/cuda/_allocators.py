"""Allocators of device memory other than the driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

Allocate = Callable[[int, int, int], int]
Free = Callable[[int], object]
Allocator = tuple[Allocate, Free]
# What users may pass as `allocator`.
AllocatorLike = Literal["torch"] | Allocator

_FORMS = '"torch" or a pair of functions, (allocate(size, device, stream), free(address))'


def functions_of(allocator: AllocatorLike | None) -> Allocator | None:
    """Returns the two functions of an allocator, or `None` for the driver.

    Raises:
        ImportError: `"torch"` is requested, and PyTorch is not installed.
        TypeError, ValueError: `allocator` is not an allocator.
    """
    if allocator is None:
        return None
    if isinstance(allocator, str):
        if allocator != "torch":
            raise ValueError(f"allocator must be {_FORMS}, not {allocator!r}")
        try:
            cuda: Any = importlib.import_module("torch.cuda")
        except ImportError as error:
            raise ImportError(f'allocator="torch" requires PyTorch: {error}') from error
        return cuda.caching_allocator_alloc, cuda.caching_allocator_delete
    try:
        allocate, free = allocator
    except (TypeError, ValueError):
        raise TypeError(f"allocator must be {_FORMS}, not {allocator!r}") from None
    if not callable(allocate) or not callable(free):
        raise TypeError(f"allocator must be {_FORMS}, not {allocator!r}")
    return allocate, free
