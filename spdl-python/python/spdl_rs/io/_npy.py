"""Arrays that NumPy saved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import numpy.typing

from .. import _spdl_rs
from .._errors import CorruptError, UnsupportedError
from ._buffer import Buffer, view_of
from ._zip import member, opened

# Where a `.npy` file says of which version it is.
_VERSION_OFFSET = 6


class UnsupportedTypeError(UnsupportedError, TypeError):
    """Arrays of such elements are not read."""


# Tracebacks shall show the name by which users catch it.
UnsupportedTypeError.__module__ = "spdl_rs.io"


def load_npy(data: Buffer, *, copy: bool = False) -> numpy.typing.NDArray[Any]:
    """The array in a `.npy` file, as `numpy.save` writes it.

    Types, byte order and the order of Fortran are as `numpy.load` gives them. Arrays of Python objects
    are refused, as reading them would run code of the file; and so are those of records.

    Args:
        data: The file: `bytes` or anything else that shows its memory. What is behind the array is
            not looked at.
        copy: Whether the array gets memory of its own. If not, it is a view of `data`, which it keeps
            alive, and may be written to where `data` may.

    Raises:
        TruncatedError: The file is cut, be it in the elements.
        CorruptError: It is no `.npy` file, or its header is malformed.
        UnsupportedTypeError: The elements are objects or records. It is a `TypeError`, too.
        UnsupportedError: The version is later than 3.
        LimitExceededError: The header has more than 64 KiB, or 64 dimensions.
        TypeError: `data` does not show its memory.
        ValueError: That is not in one piece. The errors about data are of this type, too.

    >>> import io, numpy
    >>> file = io.BytesIO()
    >>> numpy.save(file, numpy.arange(6, dtype="f4").reshape(2, 3))
    >>> array = load_npy(file.getvalue())
    >>> array.shape, array.dtype, array.flags.writeable
    ((2, 3), dtype('float32'), False)
    """
    try:
        header = _spdl_rs.NpyHeader(data)
    except UnsupportedError as error:
        if error.offset == _VERSION_OFFSET:
            raise
        raise UnsupportedTypeError(str(error), kind=error.kind, offset=error.offset) from None
    shape, dtype = header.shape, _dtype(header.dtype)
    try:
        # This keeps a `memoryview` of the data, so that a `bytearray` cannot move it.
        flat = numpy.frombuffer(view_of(data), dtype, math.prod(shape), header.offset)
        array = flat.reshape(shape, order=header.order)
    except ValueError as error:
        # More dimensions than this NumPy has, or empty and too large in another.
        raise CorruptError(f"NumPy has no arrays of {shape}: {error}", kind="corrupt") from error
    return array.copy(order="K") if copy else array


def _dtype(descr: str) -> numpy.dtype[Any]:
    try:
        return numpy.dtype(descr)
    except TypeError as error:
        # A unit of time that there is not, or a number that this machine does not have.
        message = f"elements of type {descr!r}: {error}"
        raise UnsupportedTypeError(message, kind="unsupported") from error


class NpzFile(Mapping[str, "numpy.typing.NDArray[Any]"]):
    """The arrays in a `.npz` file by name, as `numpy.savez` and `numpy.savez_compressed` write it.

    A mapping that reads an array when it is asked for it. Names are with or without their `.npy`.
    Of an array that is stored as it is, this gives a view of `data`, which it keeps alive; one that
    is compressed gets memory of its own each time. Both are compared with their checksums. Other
    threads may run meanwhile, and ask for arrays too.

    Args:
        data: The file: `bytes` or anything else that shows its memory.
        max_uncompressed_bytes: The most that all compressed arrays together may be once they are
            decompressed, by what the file says. Default: 1 GiB.

    Raises:
        TruncatedError: The file is cut, or no zip archive.
        CorruptError: Its list of arrays is damaged.
        LimitExceededError: There is more in it than `max_uncompressed_bytes`.
        TypeError: `data` does not show its memory.
        ValueError: That is not in one piece. The errors about data are of this type, too.

    Asking for an array raises `KeyError` where there is none of that name, and else what `load_npy`
    does; `CorruptError` where it contradicts its checksum; and `UnsupportedError` where it is
    compressed by something else than DEFLATE, or encrypted.

    >>> import io, numpy
    >>> file = io.BytesIO()
    >>> numpy.savez_compressed(file, first=numpy.arange(3), second=numpy.zeros((2, 2)))
    >>> arrays = NpzFile(file.getvalue())
    >>> arrays
    NpzFile(2 arrays)
    >>> "first" in arrays, "first.npy" in arrays, list(arrays)
    (True, True, ['first', 'second'])
    >>> arrays["first"]
    array([0, 1, 2])
    """

    files: list[str]
    """The names, without their `.npy`."""

    def __init__(self, data: Buffer, *, max_uncompressed_bytes: int = 1 << 30) -> None:
        self._directory = opened(data, max_uncompressed_bytes, "arrays")
        # An archive is not empty, so that this can be done.
        self._data = view_of(data).cast("B")
        # Of several with the same name the directory gives the last.
        self._names = set(self._directory.names())
        self.files = [name.removesuffix(".npy") for name in dict.fromkeys(self._directory.names())]

    def __getitem__(self, key: str) -> numpy.typing.NDArray[Any]:
        name = self._name(key)
        if name is None:
            raise KeyError(key)
        return load_npy(member(self._directory, self._data, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._name(key) is not None

    def __repr__(self) -> str:
        return f"NpzFile({len(self)} arrays)"

    def _name(self, key: str) -> str | None:
        """The name in the archive, if there is one."""
        for name in (key, f"{key}.npy"):
            if name in self._names:
                return name
        return None


def load_npz(data: Buffer, *, max_uncompressed_bytes: int = 1 << 30) -> NpzFile:
    """The arrays in a `.npz` file, by name: `NpzFile(data)`, which see for arguments and errors.

    >>> import io, numpy
    >>> file = io.BytesIO()
    >>> numpy.savez(file, x=numpy.arange(3))
    >>> load_npz(file.getvalue())["x"]
    array([0, 1, 2])
    """
    return NpzFile(data, max_uncompressed_bytes=max_uncompressed_bytes)
