"""The same few items again and again: how fast would training be if loading cost nothing?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import SupportsIndex, TypeVar

from ._arguments import flag, whole

T = TypeVar("T")

_MOST = 2**63 - 1


def cache_iterator(
    src: Iterable[T],
    num_caches: SupportsIndex,
    *,
    return_caches_after: SupportsIndex | None = None,
    stop_after: SupportsIndex | None = None,
    delete_src: bool = True,
) -> Iterator[T]:
    """Gives items of a source, keeps the first of them, and then gives those again and again.

    Put it around a loader in a training loop: what the loop gains once the kept items come is what
    a faster loader could gain at most. The items are not copied, so they must not be changed.

    A source that ends early is followed by what was kept of it; an empty one by nothing.

    Args:
        src: The source, a loader mostly.
        num_caches: How many items are kept, at least 1.
        return_caches_after: How many items come from the source, at least `num_caches`, which is
            the default too.
        stop_after: How many items come in all, at least `num_caches` and `return_caches_after`;
            `None`: it does not end.
        delete_src: Whether the source is let go as soon as the kept items come, so that what it
            holds is free where nobody else refers to it.

    Raises:
        ValueError: A number is less than it may be.
        TypeError: An argument is of the wrong type.

    >>> list(cache_iterator("abcdef", 2, return_caches_after=4, stop_after=9))
    ['a', 'b', 'c', 'd', 'a', 'b', 'a', 'b', 'a']
    """
    kept, fresh, total = _checked(num_caches, return_caches_after, stop_after)
    items = _cached(src, kept, fresh, keep_source=not flag("delete_src", delete_src))
    return items if total is None else islice(items, total)


def _checked(
    num_caches: SupportsIndex,
    return_caches_after: SupportsIndex | None,
    stop_after: SupportsIndex | None,
) -> tuple[int, int, int | None]:
    kept = whole("num_caches", num_caches, 1, _MOST)
    fresh = kept
    if return_caches_after is not None:
        fresh = whole("return_caches_after", return_caches_after, kept, _MOST)
    total = None
    if stop_after is not None:
        total = whole("stop_after", stop_after, fresh, _MOST)
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
