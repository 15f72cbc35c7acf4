"""Sources that are tables: the Arrow PyCapsule interface, Hugging Face's data sets, and Arrow files."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from . import _spdl_rs
from ._errors import CorruptError, IoError, NotFoundError, PermissionDeniedError, SpdlError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


Source: TypeAlias = "Path | Iterable[Path] | ArrowStream | ArrowArray | MapDataset | Iterable[Mapping[str, Any] | tuple[Any, ...]] | Chosen | Mixture | Curriculum"
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
    if is_hugging_face(source, "Dataset"):
        order = source._indices
        return _spdl_rs.ArrowTable.imported(
            source.data.table, None if order is None else order.table, name
        )
    if is_hugging_face(source, "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(repr(split) for split in source)
        raise TypeError(f"source must be one split of the {name}: one of {splits}")
    if files := _arrow_files(source):
        return _of_files(files)
    return None


def _arrow_files(source: Any) -> list[str]:
    """The local paths of a source that consists of Arrow files."""
    entries = source if isinstance(source, (list, tuple)) else [source]
    if not all(isinstance(entry, (str, bytes, os.PathLike)) for entry in entries):
        return []
    paths = [os.fsdecode(entry) for entry in entries]
    are_files = all(path.lower().endswith(_ARROW_ENDINGS) and "://" not in path for path in paths)
    return [file for path in paths for file in _spdl_rs.ArrowTable.files(path)] if are_files else []


def _of_files(paths: list[str]) -> _spdl_rs.ArrowTable:
    """The table of Arrow IPC files (Feather) or streams. Columns that are not compressed stay on disk."""
    try:
        # By name, because type checkers need not find this optional package.
        pyarrow = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.ipc")
    except ImportError as error:
        raise ImportError(
            f"{paths[0]}: Arrow files need the package pyarrow: pip install pyarrow"
        ) from error
    tables: list[Any] = []
    sizes: list[int] = []
    for path in paths:
        content, size = _read(pyarrow, path)
        tables.append(_spdl_rs.ArrowTable.imported(content, None, path))
        sizes.append(size)
    warning = None
    if any(sizes):
        warning = (
            f"{sum(map(bool, sizes))} of {len(paths)} Arrow files are compressed, so columns take "
            f"{sum(sizes) / 1e6:.1f} MB of memory; only files that are written without compression are mapped into "
            'memory, such as by pyarrow.feather.write_feather(table, path, compression="uncompressed")'
        )
    return _spdl_rs.ArrowTable.concatenated(tables, warning)


def _read(pyarrow: Any, path: str) -> tuple[Any, int]:
    """The table of a file, and the bytes of its columns that are not mapped."""
    shown = os.fsencode(path).decode(errors="backslashreplace")

    def failed(of: type[SpdlError], kind: str, error: Exception, message: str) -> SpdlError:
        number = getattr(error, "errno", None)
        reason = error if number is None else os.strerror(number)
        return of(f"{shown}: {message}: {reason}", kind=kind, key=shown, errno=number)

    try:
        whole = pyarrow.memory_map(os.fsencode(path)).read_buffer()
    except FileNotFoundError as error:
        raise failed(NotFoundError, "not-found", error, "cannot open the file") from error
    except PermissionError as error:
        raise failed(PermissionDeniedError, "permission-denied", error, "cannot open the file") from error
    except OSError as error:
        raise failed(IoError, "io", error, "cannot open the file") from error
    try:
        is_file = whole[:6].to_pybytes() == b"ARROW1"
        reader = pyarrow.ipc.open_file(whole) if is_file else pyarrow.ipc.open_stream(whole)
        table = reader.read_all()
    except (pyarrow.ArrowInvalid, OSError) as error:
        # pyarrow raises an OSError without a number for invalid content.
        if getattr(error, "errno", None) is not None:
            raise failed(IoError, "io", error, "cannot read the file") from error
        raise failed(CorruptError, "corrupt", error, "not an Arrow file, or truncated") from error
    mapped = range(whole.address, whole.address + whole.size)
    buffers = (one for column in table.columns for part in column.chunks for one in part.buffers())
    return table, sum(one.size for one in buffers if one is not None and one.address not in mapped)


def is_hugging_face(source: Any, *classes: str) -> bool:
    """Whether `source` is an instance of these classes of the package `datasets`, not of another such module."""
    module = sys.modules.get("datasets")
    found = [getattr(module, name, None) for name in classes]
    types = tuple(one for one in found if isinstance(one, type))
    # A module of the caller may have the same name, but hardly also a class `Features`.
    return isinstance(source, types) and hasattr(module, "Features")
