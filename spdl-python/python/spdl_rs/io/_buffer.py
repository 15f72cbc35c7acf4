"""What shows its memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    import numpy.typing

# `collections.abc.Buffer` is of Python 3.12.
Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap.mmap | numpy.typing.NDArray[Any]"


def view_of(data: Buffer) -> memoryview:
    """The memory of `data`, in its own shape."""
    # NumPy says in its types that its arrays show their memory from Python 3.12 on.
    return memoryview(cast("bytes", data))
