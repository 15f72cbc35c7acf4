"""Items whose large parts travel beside them: bytes, arrays and tensors, wherever they are within.

An item is pickled; for its large parts the pickle says only the number of the part.
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

from .remote_errors import cannot_be_sent

LEAST_BYTES = 4096
"""Parts of fewer bytes are pickled with the item."""

Bytes: TypeAlias = numpy.typing.NDArray[numpy.uint8]
Description: TypeAlias = tuple[str, Any]
"""What is to be made of the bytes of a part."""


class Part:
    """A large part of an item."""

    def __init__(
        self, description: Description, size: int, copy_to: Callable[[Bytes], None]
    ) -> None:
        self.description = description
        self.size = size
        self.copy_to = copy_to


def taken_apart(item: Any) -> tuple[bytes, list[Part]]:
    """The pickle of an item without its large parts, and these.

    Raises:
        TypeError: It cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=5)
    try:
        pickler.dump(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise cannot_be_sent(error) from error
    return file.getvalue(), pickler.parts


def put_together(pickled: bytes, parts: list[tuple[Description, Bytes]], *, copy: bool) -> Any:
    """The item again.

    Args:
        pickled: The item without its large parts.
        parts: The large parts.
        copy: Whether these are copied. Else they are views; `bytes` and `bytearray` become
            `memoryview`s.
    """
    return _Unpickler(io.BytesIO(pickled), parts, copy).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.parts: list[Part] = []
        self._numbers: dict[int, int] = {}
        self._tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is bytes or kind is bytearray:
            if len(obj) >= LEAST_BYTES:
                return self._number(obj, _part_of_bytes)
        elif kind is numpy.ndarray:
            if obj.nbytes >= LEAST_BYTES and not obj.dtype.hasobject:
                return self._number(obj, _part_of_array)
        elif kind is memoryview:
            # They cannot be pickled, however small.
            return self._number(obj, _part_of_view) if obj.nbytes >= LEAST_BYTES else bytes(obj)
        elif kind is self._tensor and _is_plain(obj):
            return self._number(obj, _part_of_tensor)
        return None

    def _number(self, obj: Any, part_of: Callable[[Any], Part]) -> int:
        """What is in an item twice travels once."""
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.parts)
            self.parts.append(part_of(obj))
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, parts: list[tuple[Description, Bytes]], copy: bool
    ) -> None:
        super().__init__(file)
        self._parts, self._copy = parts, copy
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, bytes):
            return memoryview(pid)
        if pid not in self._made:
            (kind, details), data = self._parts[pid]
            self._made[pid] = _MAKE[kind](data, details, self._copy)
        return self._made[pid]


def _part_of_bytes(data: bytes | bytearray) -> Part:
    source = numpy.frombuffer(data, numpy.uint8)
    return Part((type(data).__name__, None), len(data), lambda to: numpy.copyto(to, source))


def _part_of_view(view: memoryview) -> Part:
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    source = numpy.frombuffer(view.cast("B"), numpy.uint8)
    return Part(("memoryview", None), source.nbytes, lambda to: numpy.copyto(to, source))


def _part_of_array(array: numpy.typing.NDArray[Any]) -> Part:
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    details = (array.dtype, array.shape, order)

    def copy_to(data: Bytes) -> None:
        numpy.copyto(_array(data, details), array)

    return Part(("array", details), array.nbytes, copy_to)


def _part_of_tensor(tensor: Any) -> Part:
    torch: Any = sys.modules["torch"]
    source = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    details = (tensor.dtype, tuple(tensor.shape))
    return Part(("tensor", details), source.nbytes, lambda to: numpy.copyto(to, source))


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor is nothing but numbers in the memory of this machine."""
    torch: Any = sys.modules["torch"]
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and tensor.dim() > 0
        # PyTorch 1 has no `nbytes`.
        and tensor.numel() * tensor.element_size() >= LEAST_BYTES
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
