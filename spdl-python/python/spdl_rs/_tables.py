"""Sources that are tables: anything with the Arrow PyCapsule interface, and Hugging Face's data sets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from . import _spdl_rs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._arguments import Path
    from ._items import MapDataset


class ArrowStream(Protocol):
    """A table, such as `polars.DataFrame`, `pyarrow.Table`, or a relation of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """A part of a table, such as `pyarrow.RecordBatch`."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


Source: TypeAlias = "Path | Iterable[Path] | ArrowStream | ArrowArray | MapDataset"
"""What loaders accept as `source`."""


def table_of(source: Any) -> _spdl_rs.ArrowTable | None:
    """Returns the table if `source` is one."""
    name = type(source).__name__
    # Attributes of classes are no interfaces of the class objects themselves.
    if any(hasattr(type(source), f"__arrow_c_{kind}__") for kind in ("array", "stream")):
        return _spdl_rs.ArrowTable.imported(source, None, name)
    # Data sets of Hugging Face hold a table, and the positions of the rows that `select`, `shuffle` and so on
    # have chosen.
    datasets = sys.modules.get("datasets")
    if datasets is None:
        return None
    if isinstance(source, datasets.Dataset):
        order = source._indices
        return _spdl_rs.ArrowTable.imported(
            source.data.table, None if order is None else order.table, name
        )
    if isinstance(source, dict) and isinstance(source, datasets.DatasetDict):
        splits = ", ".join(repr(split) for split in source)
        raise TypeError(f"source must be one split of the DatasetDict: one of {splits}")
    return None
