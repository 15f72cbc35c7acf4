"""A loader that gives the same few batches after a while, to see what loading costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Generic, SupportsIndex, TypeVar

from .._cache_iterator import _checked, cache_iterator
from ..usage import log_api_usage_once

T = TypeVar("T")


class CacheDataLoader(Generic[T]):
    """Stands for a loader in a training loop, and gives its first batches again after a while.

    If the loop is faster from then on, loading holds it up. Each pass begins with the loader anew;
    see `spdl_rs.pipeline.cache_iterator` for what comes. `len` and all other attributes are those
    of the loader.

    Args:
        dl: The loader.
        num_caches: How many batches are kept, at least 1.
        return_caches_after: After how many batches of a pass the kept ones come, at least
            `num_caches`.
        stop_after: How many batches a pass has, at least `return_caches_after`; `None`: it does
            not end.

    Raises:
        ValueError: A number is less than it may be.
        TypeError: One is no whole number.

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
        numbers = _checked(num_caches, return_caches_after, stop_after)
        self.dl = dl
        self.num_caches, self.return_caches_after, self.stop_after = numbers

    def __iter__(self) -> Iterator[T]:
        """Begins a pass: fresh batches first, then the kept ones."""
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
        # Python asks for `__setstate__` and the like before there is a loader.
        if name == "dl" or name.startswith("__"):
            raise AttributeError(f"CacheDataLoader has no {name}")
        return getattr(self.dl, name)
