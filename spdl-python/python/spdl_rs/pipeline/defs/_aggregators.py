"""Aggregators, which combine several items into one item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from ... import _spdl_rs
from ..._arguments import function, real, whole

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


class Bucket(Aggregator):
    """Makes lists of items of similar length, so that batches need less padding: `aggregate(Bucket(...))`.

    Each bucket collects the items of a range of lengths. When a bucket is full, its items form a list. At the end of an
    epoch, the remaining items of each bucket form shorter lists, in the order of the buckets. An item whose length is
    negative or not finite, or exceeds `max_padded`, fails.

    Args:
        boundaries: The longest length of each bucket but the last, in ascending order. One more bucket has all longer
            items.
        batch_size: Items per list, at least 1: one number, or one for each bucket.
        length: Returns the length of an item.
        max_padded: The most elements of a padded list, that is, its longest length × its number of items. Default: no
            limit.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.

    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> from spdl_rs.pipeline.defs import Bucket
    >>> words = ["a", "longer", "be", "longest", "c"]
    >>> builder = PipelineBuilder().add_source(words).aggregate(Bucket([4], 2)).add_sink()
    >>> list(builder.build(num_threads=1))
    [['a', 'be'], ['longer', 'longest'], ['c']]
    """

    def __init__(
        self,
        boundaries: Iterable[float],
        batch_size: int | Sequence[int],
        *,
        length: Callable[[Any], float] = len,
        max_padded: int | None = None,
    ) -> None:
        self.boundaries = tuple(real("boundaries", one) for one in boundaries)
        sizes = batch_size if isinstance(batch_size, Sequence) else (batch_size,)
        self.batch_sizes = [whole("batch_size", size) for size in sizes]
        function("length", length)
        self.length = length
        self.max_padded = None if max_padded is None else whole("max_padded", max_padded)
        # Checks the combination of settings.
        self._native("bucket", False, False)

    def _native(self, name: str, drop_last: bool, releases: bool) -> _spdl_rs.Stage:
        return _spdl_rs.Stage.bucket(
            name,
            self.length,
            list(self.boundaries),
            self.batch_sizes,
            self.max_padded,
            drop_last,
            releases,
        )

    def accumulate(self, item: Any) -> NoReturn:
        raise NotImplementedError("pipelines run a Bucket in Rust; it has no methods to call")

    def flush(self) -> NoReturn:
        raise NotImplementedError("pipelines run a Bucket in Rust; it has no methods to call")

    def __repr__(self) -> str:
        sizes = self.batch_sizes if len(self.batch_sizes) > 1 else self.batch_sizes[0]
        return f"Bucket({list(self.boundaries)}, {sizes})"


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
