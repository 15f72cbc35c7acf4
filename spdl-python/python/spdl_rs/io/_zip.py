"""Iteration over the members of zip archives."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from .. import _spdl_rs
from .._errors import CorruptError, LimitExceededError, SpdlError, of_media
from ._buffer import Buffer, view_of


def iter_zipfile(
    src: Buffer, *, max_uncompressed_bytes: int = 1 << 30
) -> Iterator[tuple[str, memoryview]]:
    """Yields the files of a zip archive in the order of its central directory, as pairs of name and contents.

    Directories are skipped. If a name is repeated, only the last member counts. Treat names as data, not as
    paths: they may be absolute or contain `..`.

    Args:
        src: The archive: `bytes` or another object with the buffer protocol. Contents of uncompressed
            members are views that keep the archive alive, without copies.
        max_uncompressed_bytes: The limit of the total size of all compressed files after decompression,
            according to the archive. Default: 1 GiB.

    Raises:
        TruncatedError: The archive is truncated, or not a zip archive.
        CorruptError: The archive is corrupt, or a checksum does not match. Earlier files have been yielded.
        UnsupportedError: A file is encrypted, or not compressed with DEFLATE.
        LimitExceededError: The archive exceeds `max_uncompressed_bytes`.
        TypeError: `src` does not support the buffer protocol.
        ValueError: `src` is not contiguous. All errors about data are subclasses of `ValueError`, and of `RuntimeError`
            as in SPDL.

    >>> import io, zipfile
    >>> file = io.BytesIO()
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("cat/1.txt", "meow")
    >>> for name, contents in iter_zipfile(file.getvalue()):
    ...     print(name, bytes(contents))
    cat/1.txt b'meow'
    """
    directory = _checked(opened, src, max_uncompressed_bytes, "files")
    # The archive is never empty, so `cast` succeeds.
    data = view_of(src).cast("B")
    names = dict.fromkeys(directory.names())
    return ((name, _checked(member, directory, data, name)) for name in names)


def _checked(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function whose errors become `RuntimeError`s of the same kind."""
    try:
        return function(*arguments)
    except SpdlError as error:
        raise of_media(error) from None


def opened(data: Buffer, max_uncompressed_bytes: int, kind: str) -> _spdl_rs.ZipDirectory:
    """Opens the central directory of an archive within the size limit."""
    if max_uncompressed_bytes < 0:
        raise ValueError(
            f"max_uncompressed_bytes must be at least 0, not {max_uncompressed_bytes}"
        )
    directory = _spdl_rs.ZipDirectory(data)
    claimed = directory.inflated_bytes()
    if claimed > max_uncompressed_bytes:
        raise LimitExceededError(
            f"the compressed {kind} expand to {claimed} bytes, more than "
            f"max_uncompressed_bytes={max_uncompressed_bytes}",
            kind="limit-exceeded",
        )
    return directory


def member(directory: _spdl_rs.ZipDirectory, data: memoryview, name: str) -> memoryview:
    """Returns the contents of a member: a view of the archive, or decompressed bytes."""
    stored = directory.stored(name)
    if stored is None:
        return view_of(numpy.asarray(directory.inflated(name)))
    start, end, checksum = stored
    contents = data[start:end]
    if zlib.crc32(contents) != checksum:
        raise CorruptError(
            f"{name}: checksum mismatch: the archive specifies {checksum:08x}",
            kind="corrupt",
            key=name,
            offset=start,
        )
    return contents
