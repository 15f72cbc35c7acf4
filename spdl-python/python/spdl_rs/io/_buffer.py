"""Objects with the buffer protocol."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    import numpy.typing

# `collections.abc.Buffer` requires Python 3.12.
Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap.mmap | numpy.typing.NDArray[Any]"


def view_of(data: Buffer) -> memoryview:
    """Returns a view of the memory of `data`, in its shape."""
    # NumPy's type hints declare the buffer protocol from Python 3.12 on.
    return memoryview(cast("bytes", data))
