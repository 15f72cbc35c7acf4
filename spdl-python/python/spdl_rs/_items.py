"""Sources that are map-style data sets: objects with `__len__` and `__getitem__`."""

from __future__ import annotations

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
            item = self._function(index)
            if isinstance(item, Mapping):
                return item if type(item) is dict else dict(item)
            if isinstance(item, tuple):
                names = getattr(item, "_fields", None) or map(str, range(len(item)))
                return dict(zip(names, item))
            raise TypeError(
                f"the items of source must be dicts or tuples of fields, not {check.shown(item)}"
            )
        except Exception as error:
            note(error, f"item {index} of {self.name}")
            raise


def items_of(source: Any) -> GetItem | None:
    """Returns the function for the items if `source` is a map-style data set, not a list of paths."""
    kind = type(source)
    if isinstance(source, (str, bytes, os.PathLike, Mapping)) or isinstance(source, type):
        return None
    if not (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")) or len(source) == 0:
        return None
    can_iterate = hasattr(kind, "__iter__")
    try:
        first = source[0]
    except Exception:
        # Without `__iter__`, it is no list; the epoch reports the failed sample. With it, the keys may be others.
        return None if can_iterate else GetItem(source)
    if isinstance(first, (Mapping, tuple)):
        return GetItem(source)
    if can_iterate or isinstance(first, (str, bytes, os.PathLike)):
        return None
    raise TypeError(
        f"the items of source must be dicts or tuples of fields, or paths, not {check.shown(first)}"
    )
