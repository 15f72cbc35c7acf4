"""Context managers that close iterators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar

R = TypeVar("R", bound=Iterator[Any])
A = TypeVar("A", bound=AsyncIterator[Any])


class closing(Generic[R]):
    """Calls `close()` of an iterator, if it has this method, at the end of the block."""

    def __init__(self, results: R) -> None:
        self._results = results

    def __enter__(self) -> R:
        return self._results

    def __exit__(self, *_: object) -> None:
        close = getattr(self._results, "close", None)
        if close is not None:
            close()


class aclosing(Generic[A]):
    """Calls `aclose()` of an async iterator, if it has this method, at the end of the block."""

    def __init__(self, results: A) -> None:
        self._results = results

    async def __aenter__(self) -> A:
        return self._results

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._results, "aclose", None)
        if close is not None:
            await close()
