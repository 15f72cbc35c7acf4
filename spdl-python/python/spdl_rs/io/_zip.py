"""Zip archives, file by file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy

from .. import _spdl_rs
from .._errors import CorruptError, LimitExceededError
from ._buffer import Buffer, view_of


def iter_zipfile(
    src: Buffer, *, max_uncompressed_bytes: int = 1 << 30
) -> Iterator[tuple[str, memoryview]]:
    """The files of a zip archive, in the order of its directory: pairs of a name and the contents.

    Folders are passed over. Of several files with one name there is the last. Names are data, and no
    paths: one may be absolute, or climb with `..`.

    Args:
        src: The archive: `bytes` or anything else that shows its memory. Contents that are stored as
            they are are views that keep it alive; nothing is copied.
        max_uncompressed_bytes: The most that all compressed files together may be once they are
            decompressed, by what the archive says. Default: 1 GiB.

    Raises:
        TruncatedError: The archive is cut, or none.
        CorruptError: It is damaged, or a file contradicts its checksum. What is before that was given.
        UnsupportedError: A file is compressed by something else than DEFLATE, or encrypted.
        LimitExceededError: There is more in it than `max_uncompressed_bytes`.
        TypeError: `src` does not show its memory.
        ValueError: That is not in one piece. The errors about data are of this type, too.

    >>> import io, zipfile
    >>> file = io.BytesIO()
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("cat/1.txt", "meow")
    >>> for name, contents in iter_zipfile(file.getvalue()):
    ...     print(name, bytes(contents))
    cat/1.txt b'meow'
    """
    directory = opened(src, max_uncompressed_bytes, "files")
    # An archive is not empty, so that this can be done.
    data = view_of(src).cast("B")
    names = dict.fromkeys(directory.names())
    return ((name, member(directory, data, name)) for name in names)


def opened(data: Buffer, max_uncompressed_bytes: int, kind: str) -> _spdl_rs.ZipDirectory:
    """The directory of an archive that is not larger than is allowed."""
    if max_uncompressed_bytes < 0:
        raise ValueError(f"max_uncompressed_bytes must not be negative: {max_uncompressed_bytes}")
    directory = _spdl_rs.ZipDirectory(data)
    claimed = directory.inflated_bytes()
    if claimed > max_uncompressed_bytes:
        raise LimitExceededError(
            f"the compressed {kind} hold {claimed} bytes, and max_uncompressed_bytes allows "
            f"{max_uncompressed_bytes}",
            kind="limit-exceeded",
        )
    return directory


def member(directory: _spdl_rs.ZipDirectory, data: memoryview, name: str) -> memoryview:
    """The contents of a file of this name: a view of the archive's bytes, or of memory of its own."""
    stored = directory.stored(name)
    if stored is None:
        return view_of(numpy.asarray(directory.inflated(name)))
    start, end, checksum = stored
    contents = data[start:end]
    if zlib.crc32(contents) != checksum:
        raise CorruptError(
            f"{name}: its checksum is not {checksum:08x}, as it should be",
            kind="corrupt",
            key=name,
            offset=start,
        )
    return contents
