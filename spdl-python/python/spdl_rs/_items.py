"""Sources that are map-style data sets: objects with `__len__` and `__getitem__`."""

from __future__ import annotations

import bisect
import os
from collections.abc import Mapping
from typing import Any, Protocol

from . import _arguments as check
from ._functions import Function, note


class MapDataset(Protocol):
    """A data set with positions, such as a list of `dict`, or a `torch.utils.data.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class GetItem(Function):
    """Returns the sample at a position of a data set as a `dict`."""

    def __init__(self, source: MapDataset) -> None:
        super().__init__("source", source.__getitem__)
        self.name = type(source).__name__
        self.len = len(source)

    def _apply(self, index: int, seeds: list[int]) -> dict[str, Any]:
        try:
            return fields_of(self._function(index))
        except Exception as error:
            note(error, f"item {index} of {self.name}")
            raise


def fields_of(item: Any) -> dict[str, Any]:
    """Returns the fields of a sample that is a mapping or a tuple.

    Raises:
        TypeError: The item is neither.
    """
    if isinstance(item, Mapping):
        return item if type(item) is dict else dict(item)
    if isinstance(item, tuple):
        names = getattr(item, "_fields", None) or map(str, range(len(item)))
        return dict(zip(names, item))
    raise TypeError(f"the items of source must be dicts or tuples of fields, not {check.shown(item)}")


def items_of(source: Any) -> GetItem | None:
    """Returns the function for the items if `source` is a map-style data set, not a list of paths."""
    kind = type(source)
    if isinstance(source, (str, bytes, os.PathLike, Mapping)) or isinstance(source, type):
        return None
    if not (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")):
        return None
    can_iterate = hasattr(kind, "__iter__")
    try:
        if len(source) == 0:
            return None
        first = source[0]
    except Exception:
        # Without `__iter__`, it is no list; the epoch reports the failed sample. With it, the keys may be others.
        return None if can_iterate else GetItem(source)
    if isinstance(first, (Mapping, tuple)):
        return GetItem(source)
    if can_iterate:
        return None
    raise TypeError(
        f"the items of source must be dicts or tuples of fields, such as {{'image': data}}, not {check.shown(first)}; "
        "pass paths as a list"
    )


class AllItems:
    """Returns the samples of several data sets, whose positions follow each other."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._items: list[GetItem] = []

    def add(self, items: GetItem) -> int:
        """Adds a data set, and returns its first position."""
        first = self._firsts[-1] + self._items[-1].len if self._items else 0
        # In this order, because a running epoch may search the positions.
        self._items.append(items)
        self._firsts.append(first)
        return first

    def __call__(self, position: int, seeds: list[list[int]]) -> dict[str, Any]:
        at = bisect.bisect_right(self._firsts, position) - 1
        return self._items[at](position - self._firsts[at], seeds)


def added(others: Any, items: GetItem) -> tuple[AllItems, int]:
    """Adds a data set to others, if there are any, and returns its first position."""
    all_items = others if isinstance(others, AllItems) else AllItems()
    return all_items, all_items.add(items)
