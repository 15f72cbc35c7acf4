"""Memory that two processes share, without a name.

It is gone when both have let go of it, however they ended: there is nothing to clean up.
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
    """Bytes that another process sees too, if it is given this as it is started.

    Args:
        size: How many bytes, at least 1.
        kind: A word for its name in the maps of the process.
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
        """A stretch of the bytes, without a copy. What is made of it keeps the memory."""
        return numpy.frombuffer(self._mapped, numpy.uint8, size, start)

    def close(self) -> None:
        """Lets go of the memory, as soon as nothing refers to it any more."""
        self._close_file(os.close)
        # Views keep it.
        with contextlib.suppress(BufferError):
            self._mapped.close()

    def _open(self, file_descriptor: int, size: int) -> None:
        self._file_descriptor, self._size = file_descriptor, size

    def _map(self) -> None:
        self._mapped = mmap.mmap(self._file_descriptor, self._size)

    def _close_file(self, close: Callable[[int], None]) -> None:
        # Taken out in one step: of several threads one closes it.
        file_descriptor = vars(self).pop("_file_descriptor", -1)
        if file_descriptor >= 0:
            close(file_descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Given by default, since at Python's end the module may be gone before this.
        self._close_file(close)

    def __reduce__(self) -> tuple[Any, ...]:
        # Imported only where processes are started anyway.
        import multiprocessing.reduction

        handle = multiprocessing.reduction.DupFd(self._file_descriptor)
        return _arrived, (handle, self._size, self.name)


def _arrived(handle: Any, size: int, name: str) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory.name = name
    memory._open(handle.detach(), size)
    memory._map()
    return memory
