"""Anonymous shared memory of two processes.

The operating system frees the memory when both processes have released it, even if they are killed.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy
import numpy.typing

_numbers = itertools.count()


class SharedMemory:
    """Memory shared with a process that receives this object at its start.

    Args:
        size: The size in bytes, at least 1.
        kind: A part of the name in `/proc/<pid>/maps`.
    """

    def __init__(self, size: int, kind: str) -> None:
        self.name = f"spdl-{kind}-{os.getpid()}-{next(_numbers)}"
        if hasattr(os, "memfd_create"):
            self._open(os.memfd_create(self.name), size)
            os.ftruncate(self._file_descriptor, size)
        else:
            with tempfile.TemporaryFile() as file:
                file.truncate(size)
                self._open(os.dup(file.fileno()), size)
        self._map()

    def bytes(self, start: int, size: int) -> numpy.typing.NDArray[numpy.uint8]:
        """Returns a view of a range of bytes. Views keep the memory alive."""
        return numpy.frombuffer(self._mapped, numpy.uint8, size, start)

    def reserve(self, size: int) -> None:
        """Makes the memory at least `size` bytes large. The other process must call `reserve` before it uses a
        larger range."""
        if size > self._size:
            # The number of mappings stays small.
            self._size = 1 << (size - 1).bit_length()
            if os.fstat(self._file_descriptor).st_size < self._size:
                os.ftruncate(self._file_descriptor, self._size)
            self._map()

    def close(self) -> None:
        """Releases the memory once no view refers to it."""
        self._close_file(os.close)
        # `BufferError` is raised if views exist.
        with contextlib.suppress(BufferError):
            self._mapped.close()

    def _open(self, file_descriptor: int, size: int) -> None:
        self._file_descriptor, self._size = file_descriptor, size

    def _map(self) -> None:
        self._mapped = mmap.mmap(self._file_descriptor, self._size)

    def _close_file(self, close: Callable[[int], None]) -> None:
        # `dict.pop` is atomic, so only one thread closes the file.
        file_descriptor = vars(self).pop("_file_descriptor", -1)
        if file_descriptor >= 0:
            close(file_descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is a default argument, because the module `os` may be gone during finalization.
        self._close_file(close)

    def __reduce__(self) -> tuple[Any, ...]:
        # This module is imported lazily, because only processes that start other processes need it.
        import multiprocessing.reduction

        handle = multiprocessing.reduction.DupFd(self._file_descriptor)
        return _restore, (handle, self._size, self.name)


def _restore(handle: Any, size: int, name: str) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory.name = name
    memory._open(handle.detach(), size)
    memory._map()
    return memory
