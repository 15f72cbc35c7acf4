"""Tar archives, file by file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, overload

from .. import _spdl_rs
from ._buffer import Buffer


class SupportsRead(Protocol):
    """What has a method `read`: at most so many bytes, and none at the end."""

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
    """The files of a tar archive, in their order: pairs of a name and the contents.

    Folders, symbolic links, devices and pipes are passed over. Old and new archives are read, with
    the long names and large sizes of ustar, GNU and pax; compressed ones are not, but what
    decompresses them (`gzip.open`) can be given as `src`.

    Args:
        src: The archive. Of `bytes`, and of all that shows its memory as they do (`bytearray`,
            `memoryview`, `mmap`, arrays of NumPy), the contents are views, `memoryview`, that keep
            it alive; nothing is copied. Of an object with a method `read`, which is called for a
            few bytes at a time, they are `bytes`; it need not be able to seek, and is read to its
            end.
        accept_missing_end: Whether the archive may end without its end marker, as some programs
            write it. If not, that is a `TruncatedError` behind the last file: the archive may have
            been cut there.

    Names are text; bytes in them that are no UTF-8 are kept as `os.fsdecode` does. They are data, and
    no paths: one may be absolute, or climb with `..`.

    Raises:
        TruncatedError: The archive is cut. What is before that was given.
        CorruptError: It is damaged, or no tar archive. What is before that was given.
        UnsupportedError: A hard link or a sparse file, whose contents are elsewhere or not in one
            piece. The next call of `next` gives the file behind it.
        TypeError: `src` is neither of the two, or its `read` gives no `bytes`.
        ValueError: The memory of `src` is not in one piece. The errors about data are of this type,
            too.

    What `read` raises comes through.

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
