"""Aggregators, which combine several items into one item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from ..._arguments import whole

T = TypeVar("T")


class Aggregator(ABC):
    """Base class of custom aggregators, which combine several items into one.

    A pipeline uses a new copy (`copy.deepcopy`) of the aggregator for each epoch. So state never leaks between
    epochs or pipelines, and the object itself stays unchanged. Define `__deepcopy__` if the default does
    not work.

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
        """Adds an item. Returns an aggregate if one is complete, else `None`."""

    @abstractmethod
    def flush(self) -> Any | None:
        """Returns the remaining items at the end of an epoch, or `None`."""


class Collate(Aggregator, Generic[T]):
    """Makes lists of `n` items.

    Args:
        n: Items per list, at least 1.

    Raises:
        TypeError: `n` is not an integer.
        ValueError: `n` is less than 1.

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
