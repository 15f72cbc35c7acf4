"""A loader that repeats cached batches, to measure how much data loading slows training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Generic, SupportsIndex, TypeVar

from .._cache_iterator import _check_numbers, cache_iterator
from ..usage import log_api_usage_once

T = TypeVar("T")


class CacheDataLoader(Generic[T]):
    """Wraps a loader, and repeats its first batches after a given number of batches.

    If the training loop is faster once batches are repeated, data loading is its bottleneck. Each epoch
    starts with fresh batches of the loader; see `spdl_rs.pipeline.cache_iterator`. `len` is the length
    of the loader. Attributes that a `CacheDataLoader` does not have are those of the loader, except special
    methods.

    Args:
        dl: The loader.
        num_caches: How many batches to cache, at least 1.
        return_caches_after: The number of batches of an epoch after which the cached batches are
            repeated, at least `num_caches`.
        stop_after: The number of batches per epoch, at least `return_caches_after`; `None`: no limit.

    Raises:
        ValueError: A number is out of range.
        TypeError: A number is not an integer.

    >>> loader = CacheDataLoader(["a", "b", "c"], 1, return_caches_after=2, stop_after=5)
    >>> list(loader), len(loader), loader.index("c")
    (['a', 'b', 'a', 'a', 'a'], 3, 2)
    """

    def __init__(
        self,
        dl: Iterable[T],
        num_caches: SupportsIndex,
        return_caches_after: SupportsIndex,
        stop_after: SupportsIndex | None = None,
    ) -> None:
        log_api_usage_once("spdl_rs.dataloader.CacheDataLoader")
        numbers = _check_numbers(num_caches, return_caches_after, stop_after)
        self.dl = dl
        self.num_caches, self.return_caches_after, self.stop_after = numbers

    def __iter__(self) -> Iterator[T]:
        """Starts an epoch: fresh batches first, then cached batches."""
        return cache_iterator(
            self.dl,
            self.num_caches,
            return_caches_after=self.return_caches_after,
            stop_after=self.stop_after,
        )

    def __len__(self) -> int:
        """The length of the loader."""
        if not isinstance(self.dl, Sized):
            raise TypeError(f"{type(self.dl).__name__} has no length")
        return len(self.dl)

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling look up special methods before `dl` exists.
        if name == "dl" or name.startswith("__"):
            raise AttributeError(f"CacheDataLoader has no attribute {name!r}")
        return getattr(self.dl, name)
