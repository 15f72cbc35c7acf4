"""Markers in queues: end of data, end of an epoch."""

from __future__ import annotations

from typing import Any


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        # Markers are pickled by name, so that unpickling returns the same object.
        return self._name


_EOF = _Marker("_EOF")
_EPOCH_END = _Marker("_EPOCH_END")


def is_eof(item: Any) -> bool:
    """Returns whether an item of a queue marks the end of data. Pipelines never deliver markers.

    >>> from spdl_rs.pipeline import is_eof
    >>> is_eof(None)
    False
    """
    return item is _EOF


def is_epoch_end(item: Any) -> bool:
    """Returns whether an item of a queue marks the end of an epoch. Pipelines never deliver markers.

    >>> from spdl_rs.pipeline import is_epoch_end
    >>> is_epoch_end(0)
    False
    """
    return item is _EPOCH_END
