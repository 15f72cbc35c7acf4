"""Pickling with out-of-band buffers: `bytes`, arrays and tensors anywhere within an item.

In place of its large buffers, the pickle of an item contains their numbers.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
import numpy.typing

from .remote_errors import pickling_error

MIN_BYTES = 4096
"""Smaller buffers are pickled with the item."""

Bytes: TypeAlias = numpy.typing.NDArray[numpy.uint8]
Description: TypeAlias = tuple[str, Any]
"""How to restore an object from the bytes of a buffer."""


class LargeBuffer:
    """A large buffer of an item."""

    def __init__(
        self, description: Description, size: int, copy_to: Callable[[Bytes], None]
    ) -> None:
        self.description = description
        self.size = size
        self.copy_to = copy_to


def split_buffers(item: Any) -> tuple[bytes, list[LargeBuffer]]:
    """Pickles an item without its large buffers. Returns the pickle and the buffers.

    Raises:
        TypeError: The item cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=5)
    try:
        pickler.dump(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise pickling_error(error) from error
    return file.getvalue(), pickler.buffers


def join_buffers(pickled: bytes, buffers: list[tuple[Description, Bytes]], *, copy: bool) -> Any:
    """Restores an item.

    Args:
        pickled: The pickle without large buffers.
        buffers: The large buffers.
        copy: Whether to copy the buffers. If `False`, objects are views, and `bytes` and `bytearray`
            become `memoryview`s.
    """
    return _Unpickler(io.BytesIO(pickled), buffers, copy).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.buffers: list[LargeBuffer] = []
        self._numbers: dict[int, int] = {}
        self._tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is bytes or kind is bytearray:
            if len(obj) >= MIN_BYTES:
                return self._number(obj, _buffer_of_bytes)
        elif kind is numpy.ndarray:
            if obj.nbytes >= MIN_BYTES and not obj.dtype.hasobject:
                return self._number(obj, _buffer_of_array)
        elif kind is memoryview:
            # `memoryview` does not support pickling.
            return self._number(obj, _buffer_of_view) if obj.nbytes >= MIN_BYTES else bytes(obj)
        elif kind is self._tensor and _is_plain(obj):
            return self._number(obj, _buffer_of_tensor)
        return None

    def _number(self, obj: Any, buffer_of: Callable[[Any], LargeBuffer]) -> int:
        """Returns the number of a buffer. A repeated object gets the same number."""
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.buffers)
            self.buffers.append(buffer_of(obj))
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, buffers: list[tuple[Description, Bytes]], copy: bool
    ) -> None:
        super().__init__(file)
        self._buffers, self._copy = buffers, copy
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, bytes):
            return memoryview(pid)
        if pid not in self._made:
            (kind, details), data = self._buffers[pid]
            self._made[pid] = _MAKE[kind](data, details, self._copy)
        return self._made[pid]


def _buffer_of_bytes(data: bytes | bytearray) -> LargeBuffer:
    source = numpy.frombuffer(data, numpy.uint8)
    return LargeBuffer((type(data).__name__, None), len(data), lambda to: numpy.copyto(to, source))


def _buffer_of_view(view: memoryview) -> LargeBuffer:
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    source = numpy.frombuffer(view.cast("B"), numpy.uint8)
    return LargeBuffer(("memoryview", None), source.nbytes, lambda to: numpy.copyto(to, source))


def _buffer_of_array(array: numpy.typing.NDArray[Any]) -> LargeBuffer:
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    details = (array.dtype, array.shape, order)

    def copy_to(data: Bytes) -> None:
        numpy.copyto(_array(data, details), array)

    return LargeBuffer(("array", details), array.nbytes, copy_to)


def _buffer_of_tensor(tensor: Any) -> LargeBuffer:
    torch: Any = sys.modules["torch"]
    source = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    details = (tensor.dtype, tuple(tensor.shape))
    return LargeBuffer(("tensor", details), source.nbytes, lambda to: numpy.copyto(to, source))


def _is_plain(tensor: Any) -> bool:
    """Returns whether a tensor is a plain strided tensor on the CPU."""
    torch: Any = sys.modules["torch"]
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and tensor.dim() > 0
        # PyTorch 1 has no `nbytes`.
        and tensor.numel() * tensor.element_size() >= MIN_BYTES
    )


def _make_bytes(data: Any, _: None, copy: bool) -> Any:
    return data.tobytes() if copy else memoryview(data).toreadonly()


def _make_bytearray(data: Any, _: None, copy: bool) -> Any:
    return bytearray(data) if copy else memoryview(data)


def _make_view(data: Any, _: None, copy: bool) -> memoryview:
    return memoryview(data.tobytes()) if copy else memoryview(data)


def _make_array(data: Bytes, details: Any, copy: bool) -> Any:
    return _array(data.copy() if copy else data, details)


def _make_tensor(data: Bytes, details: Any, copy: bool) -> Any:
    torch: Any = importlib.import_module("torch")
    dtype, shape = details
    return torch.from_numpy(data.copy() if copy else data).view(dtype).reshape(shape)


def _array(data: Bytes, details: Any) -> numpy.typing.NDArray[Any]:
    dtype, shape, order = details
    return data.view(dtype).reshape(shape, order=order)


_MAKE: dict[str, Callable[[Bytes, Any, bool], Any]] = {
    "array": _make_array,
    "bytearray": _make_bytearray,
    "bytes": _make_bytes,
    "memoryview": _make_view,
    "tensor": _make_tensor,
}
