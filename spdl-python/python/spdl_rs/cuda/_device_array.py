"""Arrays in the memory of a CUDA device."""

from __future__ import annotations

import importlib
import math
import operator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy
import numpy.typing

from .. import _spdl_rs

if TYPE_CHECKING:
    import jax  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

_CPU = 1
_CUDA = 2
# Kinds of elements as DLPack counts them.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT16 = "bfloat16"
_BFLOAT_CODE = 4
# The stream on which a library works that was told nothing else.
_LEGACY_DEFAULT = 1
_NO_STREAM = -1


class DeviceArray(_spdl_rs.PlacedArray):
    """An array in the memory of a CUDA device, or on its way there; its last index changes fastest.

    PyTorch, JAX, CuPy and others take it as it is, by DLPack or by the CUDA array interface:
    `torch.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)`, `cupy.asarray(array)`. The stream on
    which such a library works waits for the copy; the host does not. Whoever has taken it keeps it
    alive; with the last of them the memory goes back, and is written again only when all that those
    streams were told by then is done.

    It is not made by calling it: `ImageLoader(..., device="cuda")` and `spdl_rs.io.transfer_tensor`
    give it.
    """

    __slots__ = ("__weakref__",)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension."""
        return self._shape

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self._shape)

    @property
    def dtype(self) -> str:
        """The name of the type of its elements, as NumPy has it, or `bfloat16`."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.size * _bits(self._dtype) // 8

    @property
    def device(self) -> str:
        """Where it is: `cuda:0`, say."""
        return f"cuda:{self._memory.ordinal}"

    @property
    def device_index(self) -> int:
        """The number of the device on which it is."""
        return self._memory.ordinal

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("an array without dimensions has no length")
        return self._shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self._dtype} {list(self._shape)} on {self.device})"

    def __array__(self, *_: object, **__: object) -> NoReturn:
        # Without it, NumPy would make an array of one object.
        raise TypeError("a DeviceArray is not on the host: to_host() copies it there")

    def is_ready(self) -> bool:
        """Whether the copy to the device is done, without waiting.

        Raises:
            CudaError: The copy failed.
        """
        return self._memory.is_ready()

    def wait(self) -> None:
        """Waits on the host until the copy to the device is done. There is seldom a need to.

        Raises:
            CudaError: The copy failed.
        """
        self._memory.wait()

    def record_stream(self, stream: int | Any) -> None:
        """Says that a stream uses the memory, beside those for which it was taken.

        The memory is not written again before all is done that the stream was told by the time the
        array, and all that was made of it, is let go of. The stream has to exist until then.

        Args:
            stream: A number as in `__dlpack__`, or a stream of PyTorch's or CuPy's.

        Raises:
            TypeError: `stream` is neither.
            ValueError: It is a number that is no stream.
        """
        self._memory.record_stream(stream_number(stream))

    def to_host(
        self, *, stream: int | Any | None = None, producer_event: int | Any | None = None
    ) -> numpy.typing.NDArray[Any]:
        """A copy on the host, behind all that `stream` was told so far. This waits, without the GIL, and
        hears Ctrl-C.

        NumPy has no `bfloat16`: elements of that type are bytes (`V2`).

        Args:
            stream: As of `record_stream`; `None` is the default stream, and none where there is a
                `producer_event`.
            producer_event: An event of PyTorch's or CuPy's, or its number: the copy comes behind all that
                was told before it was recorded.

        Raises:
            InvalidArgumentError: `stream` is captured into a CUDA graph.
            CudaError: The copy failed.
            TypeError, ValueError: `stream` is no stream, or `producer_event` no event.
        """
        event = event_number(producer_event)
        if stream is None and producer_event is not None:
            stream = _NO_STREAM
        copied = self._memory.download(self._offset, self.nbytes, stream_number(stream), event)
        dtype = "V2" if self._dtype == _BFLOAT16 else self._dtype
        return numpy.asarray(copied).view(dtype).reshape(self._shape)

    def to_torch(self) -> torch.Tensor:  # pyright: ignore[reportAttributeAccessIssue]
        """The same memory as a tensor of PyTorch, for its current stream.

        Raises:
            ImportError: PyTorch is not installed.
        """
        return importlib.import_module("torch").from_dlpack(self)

    def to_jax(self) -> jax.Array:
        """The same memory as an array of JAX.

        Raises:
            ImportError: JAX is not installed.
        """
        return importlib.import_module("jax.dlpack").from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where it is, for DLPack: CUDA, and the number of the device."""
        return _CUDA, self._memory.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of DLPack: what `from_dlpack` of other libraries asks for.

        With `stream=-1` no stream waits for the copy, and none but the legacy default one is known to use
        the memory. Who works on another stream calls `record_stream` for it, lest the memory be written
        again too early, and reads only when `is_ready` or `wait` has said that the copy is done.

        Args:
            stream: The stream that is to wait for the copy, as the array API standard numbers it: `None`
                and 1 are the legacy default stream, 2 the default stream of this thread, -1 none, larger
                numbers streams. 0 is refused, as it may mean either default stream.
            max_version: The latest version that the consumer takes. `None`, or below 1.0: a capsule
                without a version.
            dl_device: Where the consumer wants it: as it is, or `(1, 0)`, which copies to the host.
            copy: `False` to never copy. `True`, a copy on the device, is refused.

        Raises:
            BufferError: The consumer wants it in another way than those.
            ValueError: `stream` is no stream.
            InvalidArgumentError: `stream` is captured into a CUDA graph.
            CudaError: The driver refused.
        """
        number = stream_number(stream)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if tuple(dl_device) != (_CPU, 0):
                raise BufferError(f"{self!r} cannot be brought to device {tuple(dl_device)}")
            if copy is False:
                raise BufferError(f"{self!r} cannot be brought to the host without a copy")
            return _host_capsule(self.to_host(stream=number), max_version)
        if copy:
            raise BufferError("a DeviceArray is not copied on its device; copy what is made of it")
        self._memory.wait_on(number)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        return self._memory.dlpack(self._offset, self._shape, _element(self._dtype), versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3. Its stream is the legacy default one, which waits for the
        copy, and whose work is waited for before the memory is written again.

        Who uses the memory on another stream lets that wait for the legacy default one first, and calls
        `record_stream` for it: nothing tells of it otherwise.
        """
        if self._dtype == _BFLOAT16:
            raise AttributeError("the CUDA array interface has no bfloat16; use DLPack")
        self._memory.wait_on(_LEGACY_DEFAULT)
        address = self._memory.address + self._offset if self.size else 0
        return {
            "version": 3,
            "shape": self._shape,
            "typestr": numpy.dtype(self._dtype).str,
            "data": (address, False),
            "strides": None,
            "stream": _LEGACY_DEFAULT,
        }


def stream_number(stream: int | Any | None) -> int | None:
    """A stream as the array API numbers it, or what has such a number."""
    if stream is None:
        return None
    # `torch.cuda.Stream`, and then CuPy's. Their 0 is the legacy default stream.
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number or _LEGACY_DEFAULT
    if isinstance(stream, bool):
        raise TypeError(f"stream must be a number or a stream, not {stream!r}")
    try:
        number = operator.index(stream)
    except TypeError:
        raise TypeError(f"stream must be a number or a stream, not {stream!r}") from None
    if not -1 <= number < 2**63 or number == 0:
        raise ValueError(
            f"{number} is no CUDA stream: 1 is the legacy default stream, 2 that of this thread, "
            "-1 none"
        )
    return number


def event_number(event: int | Any | None) -> int | None:
    """The number of an event; none of one that was never recorded, behind which there is nothing."""
    if event is None:
        return None
    # `torch.cuda.Event`, and then CuPy's.
    for name in ("cuda_event", "ptr"):
        number = getattr(event, name, None)
        if isinstance(number, int):
            return number or None
    if isinstance(event, bool):
        raise TypeError(f"producer_event must be a number or an event, not {event!r}")
    try:
        number = operator.index(event)
    except TypeError:
        raise TypeError(f"producer_event must be a number or an event, not {event!r}") from None
    if not 0 < number < 2**63:
        raise ValueError(f"{number} is no CUDA event")
    return number


def _element(dtype: str) -> tuple[int, int]:
    """The kind and the bits of an element, as DLPack has them."""
    if dtype == _BFLOAT16:
        return _BFLOAT_CODE, 16
    return _CODES[numpy.dtype(dtype).kind], _bits(dtype)


def _bits(dtype: str) -> int:
    return 16 if dtype == _BFLOAT16 else 8 * numpy.dtype(dtype).itemsize


def _host_capsule(array: numpy.typing.NDArray[Any], max_version: tuple[int, int] | None) -> object:
    if max_version is None:
        return array.__dlpack__()
    try:
        return array.__dlpack__(max_version=max_version)
    except TypeError:
        # Before 2.1, NumPy knows no versions: a capsule without one is what it may give.
        return array.__dlpack__()
