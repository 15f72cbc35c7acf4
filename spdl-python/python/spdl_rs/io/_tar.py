"""Iteration over the members of tar archives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, overload

from .. import _spdl_rs
from ._buffer import Buffer


class SupportsRead(Protocol):
    """An object with a method `read` that returns at most `size` bytes, and `b""` at the end."""

    def read(self, size: int, /) -> bytes: ...


@overload
def iter_tarfile(
    src: Buffer, *, accept_missing_end: bool = False
) -> Iterator[tuple[str, memoryview]]: ...
@overload
def iter_tarfile(
    src: SupportsRead, *, accept_missing_end: bool = False
) -> Iterator[tuple[str, bytes]]: ...
def iter_tarfile(
    src: Buffer | SupportsRead, *, accept_missing_end: bool = False
) -> Iterator[tuple[str, memoryview]] | Iterator[tuple[str, bytes]]:
    """Yields the files of a tar archive in order, as pairs of name and contents.

    Directories, symbolic links, devices and FIFOs are skipped. Old tar, ustar, GNU and pax formats are
    supported, with long names and large sizes. Compressed archives are not supported directly; pass a
    decompressing file object, such as `gzip.open(...)`.

    Args:
        src: The archive. For `bytes` and other objects with the buffer protocol (`bytearray`,
            `memoryview`, `mmap`, NumPy arrays), contents are `memoryview`s that keep the archive
            alive, without copies. For an object with a method `read`, contents are `bytes`; the object is read
            sequentially to its end and need not support seeking.
        accept_missing_end: Whether the archive may lack the end-of-archive marker, which some programs do
            not write. If `False`, a missing marker raises `TruncatedError` after the last file, because
            the archive may be truncated.

    Names are decoded as `os.fsdecode` does. Treat them as data, not as paths: they may be absolute or contain
    `..`.

    Raises:
        TruncatedError: The archive is truncated. Earlier files have been yielded.
        CorruptError: The archive is corrupt, or not a tar archive. Earlier files have been yielded.
        UnsupportedError: A member is a hard link or a sparse file. The next call of `next` returns the
            following file.
        TypeError: `src` has another type, or its `read` does not return `bytes`.
        ValueError: The memory of `src` is not contiguous. All errors about data are subclasses of
            `ValueError`.

    Exceptions of `read` are propagated.

    >>> import io, tarfile
    >>> file = io.BytesIO()
    >>> with tarfile.open(fileobj=file, mode="w") as archive:
    ...     member = tarfile.TarInfo("cat/1.txt")
    ...     member.size = 4
    ...     archive.addfile(member, io.BytesIO(b"meow"))
    >>> for name, contents in iter_tarfile(file.getvalue()):
    ...     print(name, bytes(contents))
    cat/1.txt b'meow'
    """
    return _spdl_rs.TarFiles(src, accept_missing_end)
