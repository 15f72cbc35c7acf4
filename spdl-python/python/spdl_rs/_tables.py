"""Sources that are tables: the Arrow PyCapsule interface, Hugging Face's data sets, and Arrow files."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from . import _spdl_rs
from ._errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._arguments import Path
    from ._items import MapDataset
    from .sources import Curriculum, Mixture
    from .sources import Source as Chosen


class ArrowStream(Protocol):
    """A table, such as `polars.DataFrame`, `pyarrow.Table`, or a relation of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """A part of a table, such as `pyarrow.RecordBatch`."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


Source: TypeAlias = (
    "Path | Iterable[Path] | ArrowStream | ArrowArray | MapDataset | Chosen | Mixture | Curriculum"
)
"""What loaders accept as `source`."""

_ARROW_ENDINGS = (".arrow", ".feather", ".ipc")


def table_of(source: Any) -> _spdl_rs.ArrowTable | None:
    """Returns the table if `source` is one."""
    name = type(source).__name__
    # Attributes of classes are no interfaces of the class objects themselves.
    if any(hasattr(type(source), f"__arrow_c_{kind}__") for kind in ("array", "stream")):
        return _spdl_rs.ArrowTable.imported(source, None, name)
    # Data sets of Hugging Face hold a table, and the positions of the rows that `select`, `shuffle` and so on
    # have chosen.
    if _is_hugging_face(source, "Dataset"):
        order = source._indices
        return _spdl_rs.ArrowTable.imported(
            source.data.table, None if order is None else order.table, name
        )
    if _is_hugging_face(source, "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(repr(split) for split in source)
        raise TypeError(f"source must be one split of the {name}: one of {splits}")
    if _is_hugging_face(source, "IterableDataset"):
        raise TypeError(
            "source is a streaming data set of Hugging Face, but epochs are shuffled, divided among ranks and "
            "resumed by positions; load the data set without streaming=True, or pass the addresses of its "
            "Parquet files"
        )
    if files := _arrow_files(source):
        return _spdl_rs.ArrowTable.imported(_mapped(files), None, "Arrow file")
    return None


def _arrow_files(source: Any) -> list[str]:
    """The local paths of a source that consists of Arrow files."""
    entries = source if isinstance(source, (list, tuple)) else [source]
    if not all(isinstance(entry, (str, os.PathLike)) for entry in entries):
        return []
    paths = [os.fsdecode(entry) for entry in entries]
    are_files = all(path.lower().endswith(_ARROW_ENDINGS) and "://" not in path for path in paths)
    return paths if are_files else []


def _mapped(paths: list[str]) -> Any:
    """The table of Arrow IPC files (Feather) or streams, which stay on disk."""
    try:
        # By name, because type checkers need not find this optional package.
        pyarrow = importlib.import_module("pyarrow")
        ipc = importlib.import_module("pyarrow.ipc")
    except ImportError as error:
        raise ImportError(
            f"{paths[0]}: Arrow files need the package pyarrow: pip install pyarrow"
        ) from error
    tables = []
    for path in paths:
        try:
            file = pyarrow.memory_map(path)
        except FileNotFoundError as error:
            raise NotFoundError(f"file not found: {path}") from error
        try:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            reader = ipc.open_file(file) if is_file else ipc.open_stream(file)
            tables.append(reader.read_all())
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise CorruptError(f"{path}: not a whole Arrow file: {error}") from error
    try:
        return pyarrow.concat_tables(tables)
    except pyarrow.ArrowInvalid as error:
        raise CorruptError(f"{paths[0]} and other Arrow files: {error}") from error


def _is_hugging_face(source: Any, *classes: str) -> bool:
    """Whether `source` is an instance of these classes of the package `datasets`, not of another such module."""
    module = sys.modules.get("datasets")
    found = [getattr(module, name, None) for name in classes]
    types = tuple(one for one in found if isinstance(one, type))
    # A module of the caller may have the same name, but hardly also a class `Features`.
    return isinstance(source, types) and hasattr(module, "Features")
