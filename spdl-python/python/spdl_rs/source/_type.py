"""Protocols of sources, for type checkers and `isinstance`."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol, TypeVar, runtime_checkable

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class IterableWithShuffle(Iterable[T_co], Protocol[T_co]):
    """An iterable whose order can be changed between epochs.

    >>> from spdl_rs.source import DistributedRandomSampler, IterableWithShuffle
    >>> isinstance(DistributedRandomSampler(9, rank=0, world_size=3), IterableWithShuffle)
    True
    >>> isinstance([1, 2, 3], IterableWithShuffle)
    False
    """

    def shuffle(self, seed: int) -> None:
        """Sets the order of the next epoch."""
        ...


@runtime_checkable
class SizedIterable(Sized, Iterable[T_co], Protocol[T_co]):
    """An iterable with a known number of items per epoch.

    >>> from spdl_rs.source import SizedIterable
    >>> isinstance([1, 2, 3], SizedIterable), isinstance(iter([1, 2, 3]), SizedIterable)
    (True, False)
    """


@runtime_checkable
class SizedIterableWithShuffle(SizedIterable[T_co], Protocol[T_co]):
    """An iterable with a known length whose order can be changed between epochs."""

    def shuffle(self, seed: int) -> None:
        """Sets the order of the next epoch. The order may be computed when that epoch starts."""
        ...
