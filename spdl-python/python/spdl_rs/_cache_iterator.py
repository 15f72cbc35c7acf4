"""An iterator that repeats cached items, to measure how much data loading slows training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import SupportsIndex, TypeVar

from ._arguments import flag, whole

T = TypeVar("T")

_MAX = 2**63 - 1


def cache_iterator(
    src: Iterable[T],
    num_caches: SupportsIndex,
    *,
    return_caches_after: SupportsIndex | None = None,
    stop_after: SupportsIndex | None = None,
    delete_src: bool = True,
) -> Iterator[T]:
    """Yields items of a source, caches the first items, and then repeats the cached items.

    Wrap a loader with this function in a training loop. Once cached items are repeated, the loop runs as
    fast as with an infinitely fast loader. Items are not copied, so do not modify them.

    If the source ends early, the items cached so far are repeated. An empty source yields nothing.

    Args:
        src: The source, typically a loader.
        num_caches: How many items to cache, at least 1.
        return_caches_after: The number of source items after which the cached items are repeated, at
            least `num_caches`. Default: `num_caches`.
        stop_after: How many items to yield in total, at least `num_caches` and `return_caches_after`.
            `None`: no limit.
        delete_src: Whether to drop the reference to the source once cached items are repeated, so that
            its memory can be freed.

    Raises:
        ValueError: A number is out of range.
        TypeError: An argument has the wrong type.

    >>> list(cache_iterator("abcdef", 2, return_caches_after=4, stop_after=9))
    ['a', 'b', 'c', 'd', 'a', 'b', 'a', 'b', 'a']
    """
    kept, fresh, total = _check_numbers(num_caches, return_caches_after, stop_after)
    items = _cached(src, kept, fresh, keep_source=not flag("delete_src", delete_src))
    return items if total is None else islice(items, total)


def _check_numbers(
    num_caches: SupportsIndex,
    return_caches_after: SupportsIndex | None,
    stop_after: SupportsIndex | None,
) -> tuple[int, int, int | None]:
    kept = whole("num_caches", num_caches, 1, _MAX)
    fresh = kept
    if return_caches_after is not None:
        fresh = whole("return_caches_after", return_caches_after, kept, _MAX)
    total = None
    if stop_after is not None:
        total = whole("stop_after", stop_after, fresh, _MAX)
    return kept, fresh, total


def _cached(src: Iterable[T], kept: int, fresh: int, *, keep_source: bool) -> Iterator[T]:
    cache: list[T] = []
    for item in islice(src, fresh):
        if len(cache) < kept:
            cache.append(item)
        yield item
    if not keep_source:
        del src
    yield from cycle(cache)
