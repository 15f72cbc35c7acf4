"""Arrays in NumPy's file formats, `.npy` and `.npz`."""

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

# The offset of the format version in a `.npy` file.
_VERSION_OFFSET = 6


class UnsupportedTypeError(UnsupportedError, TypeError):
    """The element type of an array is not supported."""


# Tracebacks show the public name, by which users catch the exception.
UnsupportedTypeError.__module__ = "spdl_rs.io"


def load_npy(data: Buffer, *, copy: bool = False) -> numpy.typing.NDArray[Any]:
    """Returns the array in a `.npy` file, as `numpy.save` writes it.

    Element type, byte order and Fortran order are preserved, as by `numpy.load`. Arrays of Python objects
    are rejected, because unpickling can execute code from the file. Arrays of records are rejected too.

    Args:
        data: The file: `bytes` or another object with the buffer protocol. Bytes after the array are
            ignored.
        copy: Whether to copy the array. If `False`, the array is a view that keeps `data` alive and is
            writable if `data` is.

    Raises:
        TruncatedError: The file is truncated.
        CorruptError: The data are not a `.npy` file, or the header is malformed.
        UnsupportedTypeError: The elements are objects or records. This exception is a `TypeError`.
        UnsupportedError: The format version is later than 3.
        LimitExceededError: The header exceeds 64 KiB, or the array has more than 64 dimensions.
        TypeError: `data` does not support the buffer protocol.
        ValueError: `data` is not contiguous. All errors about data are subclasses of `ValueError`.

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
        # The array keeps a `memoryview` of the data, so that a `bytearray` cannot be resized.
        flat = numpy.frombuffer(view_of(data), dtype, math.prod(shape), header.offset)
        array = flat.reshape(shape, order=header.order)
    except ValueError as error:
        # Too many dimensions for this NumPy version, or an empty array with a dimension that is too large.
        message = f"NumPy does not support arrays of shape {shape}: {error}"
        raise CorruptError(message, kind="corrupt") from error
    return array.copy(order="K") if copy else array


def _dtype(descr: str) -> numpy.dtype[Any]:
    try:
        return numpy.dtype(descr)
    except TypeError as error:
        # An invalid unit of time, or a number format that this machine does not have.
        message = f"unsupported element type {descr!r}: {error}"
        raise UnsupportedTypeError(message, kind="unsupported") from error


class NpzFile(Mapping[str, "numpy.typing.NDArray[Any]"]):
    """The arrays in a `.npz` file by name, as `numpy.savez` and `numpy.savez_compressed` write it.

    A mapping that reads each array on access. Names may omit the suffix `.npy`. An uncompressed array is a
    view that keeps `data` alive; a compressed array is decompressed into new memory on each access. CRC-32
    checksums are verified. Reads release the GIL and are thread-safe.

    Args:
        data: The file: `bytes` or another object with the buffer protocol.
        max_uncompressed_bytes: The limit of the total size of all compressed arrays after decompression,
            according to the archive. Default: 1 GiB.

    Raises:
        TruncatedError: The file is truncated, or not a zip archive.
        CorruptError: The central directory is corrupt.
        LimitExceededError: The archive exceeds `max_uncompressed_bytes`.
        TypeError: `data` does not support the buffer protocol.
        ValueError: `data` is not contiguous. All errors about data are subclasses of `ValueError`.

    Access raises `KeyError` if there is no array of that name, and `CorruptError` if the checksum does not
    match. Access also raises `UnsupportedError` if the array is encrypted or its compression method is not
    DEFLATE, and the exceptions of `load_npy`.

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
    """The names, without the suffix `.npy`."""

    def __init__(self, data: Buffer, *, max_uncompressed_bytes: int = 1 << 30) -> None:
        self._directory = opened(data, max_uncompressed_bytes, "arrays")
        # The archive is never empty, so `cast` succeeds.
        self._data = view_of(data).cast("B")
        # If a name is repeated, the directory returns the last member.
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
        """Returns the name of the member, if it exists."""
        for name in (key, f"{key}.npy"):
            if name in self._names:
                return name
        return None


def load_npz(data: Buffer, *, max_uncompressed_bytes: int = 1 << 30) -> NpzFile:
    """Returns the arrays in a `.npz` file by name: see `NpzFile` for arguments and exceptions.

    >>> import io, numpy
    >>> file = io.BytesIO()
    >>> numpy.savez(file, x=numpy.arange(3))
    >>> load_npz(file.getvalue())["x"]
    array([0, 1, 2])
    """
    return NpzFile(data, max_uncompressed_bytes=max_uncompressed_bytes)
