"""What makes one item of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from ..._arguments import whole

T = TypeVar("T")


class Aggregator(ABC):
    """Makes one item of several, in a way of your own.

    A pipeline works on a copy (`copy.deepcopy`) of it, a fresh one for each epoch: nothing of one
    epoch, or of one pipeline, gets into the next. So the object itself stays as it was made. One
    that cannot be copied says how by `__deepcopy__`.

    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> from spdl_rs.pipeline.defs import Aggregator
    >>> class UpTo(Aggregator):
    ...     def __init__(self, most):
    ...         self.most, self.sum = most, 0
    ...     def accumulate(self, item):
    ...         self.sum += item
    ...         return self.flush() if self.sum >= self.most else None
    ...     def flush(self):
    ...         sum, self.sum = self.sum, 0
    ...         return sum or None
    >>> builder = PipelineBuilder().add_source([4, 5, 6, 7]).aggregate(UpTo(8)).add_sink()
    >>> list(builder.build(num_threads=1))
    [9, 13]
    """

    @abstractmethod
    def accumulate(self, item: Any) -> Any | None:
        """Takes an item in. Returns an aggregate where one is complete, else `None`."""

    @abstractmethod
    def flush(self) -> Any | None:
        """Returns what is held at the end of an epoch, if anything, else `None`."""


class Collate(Aggregator, Generic[T]):
    """Makes lists of `n` items.

    Args:
        n: Items per list, at least 1.

    Raises:
        TypeError: `n` is no whole number.
        ValueError: It is less than 1.

    >>> from spdl_rs.pipeline.defs import Collate
    >>> collate = Collate(2)
    >>> collate.accumulate("a"), collate.accumulate("b"), collate.accumulate("c")
    (None, ['a', 'b'], None)
    >>> collate.flush(), collate.flush()
    (['c'], None)
    """

    def __init__(self, n: int) -> None:
        self._n = whole("n", n)
        self._items: list[T] = []

    @property
    def n(self) -> int:
        """Items per list."""
        return self._n

    def accumulate(self, item: T) -> list[T] | None:
        self._items.append(item)
        return self.flush() if len(self._items) >= self._n else None

    def flush(self) -> list[T] | None:
        items, self._items = self._items, []
        return items or None

    def __repr__(self) -> str:
        return f"Collate({self._n})"
