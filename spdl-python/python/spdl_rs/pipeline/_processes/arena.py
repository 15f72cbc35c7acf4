"""Shared memory for large items of `iterate_in_subprocess`: a ring buffer and a segment pool.

The producer process copies large buffers of items into the arena, and waits if there is no room. The consumer
process reports freed memory through the pipe between the processes.
"""

from __future__ import annotations

import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy

from ..._arguments import whole
from . import payloads as _payloads
from .payloads import Description, LargeBuffer
from .shared_memory import SharedMemory

Send: TypeAlias = Callable[[Any], None]
Wait: TypeAlias = Callable[[float], None]
"""Waits for messages of the other process. The argument is the maximum wait in seconds."""
Ticket: TypeAlias = int | None
"""Identifies the memory of an item, to free it; `None` if the item uses no memory of the arena."""
Places: TypeAlias = list[tuple[Description, int, int]]
"""The large buffers of an item: description, start and size in bytes."""

# The alignment of buffers in bytes.
_ALIGNMENT = 64
_SHUT_DOWN = -1


class Arena(ABC):
    """Shared memory for one iterable: `iterate_in_subprocess(..., arena=...)`."""

    def __init__(self, size: int, kind: str, acquire_timeout: float) -> None:
        if isinstance(acquire_timeout, bool) or not isinstance(acquire_timeout, (int, float)):
            raise TypeError(f"acquire_timeout must be a number, not {acquire_timeout!r}")
        if not acquire_timeout >= 0:
            raise ValueError(f"acquire_timeout must be at least 0, not {acquire_timeout}")
        self._acquire_timeout = acquire_timeout
        self._memory = SharedMemory(size, kind)
        self._used = self._shut_down = False
        self._send: Send | None = None

    @property
    def name(self) -> str:
        """The name of the memory in `/proc/<pid>/maps`. No file has this name."""
        return self._memory.name

    @property
    def acquire_timeout(self) -> float:
        """How long the producer may wait for room, in seconds."""
        return self._acquire_timeout

    def shutdown_arena(self) -> None:
        """Refuses further allocations: the producer gets a `BufferError`."""
        self._shut_down = True
        if self._send is not None:
            self._send(("free", _SHUT_DOWN))

    def close(self) -> None:
        """Releases the memory. Items that use the memory keep it alive."""
        self._memory.close()

    def unlink(self) -> None:
        """Has no effect: the memory has no name in the file system."""

    def writer(self) -> Writer:
        """Returns the allocator for the producer process.

        Raises:
            ValueError: The arena was already used, or shut down.
        """
        if self._used or self._shut_down:
            raise ValueError("an arena can be used for one iterable only, and not after a shutdown")
        self._used = True
        return self._make_writer()

    @abstractmethod
    def reader(self, send: Send) -> Reader:
        """Returns the reader for the consumer process. `send` sends a message to the producer."""

    @abstractmethod
    def _make_writer(self) -> Writer: ...


class SharedMemoryRingBuffer(Arena):
    """A ring buffer in shared memory.

    Buffers of 4096 bytes or more inside an item are copied into and out of the ring buffer.
    The received items have the same types, and do not refer to the ring buffer.

    Args:
        capacity: The size in bytes: enough for `buffer_size + 2` items.
        acquire_timeout: How many seconds the ring buffer may be full before an error; 0: no wait.

    Raises:
        ValueError: An argument is out of range.
        TypeError: `acquire_timeout` is not a number.

    The arena transfers `bytes`, `bytearray`, `memoryview`, NumPy arrays (not of Python objects) and PyTorch tensors on
    the CPU, of 4096 bytes or more, anywhere within an item. Smaller and other objects are pickled. If there is no room
    in time, or the capacity is too small, the iterable raises `BufferError`.

    >>> import functools
    >>> from spdl_rs.pipeline import SharedMemoryRingBuffer, iterate_in_subprocess
    >>> ring = SharedMemoryRingBuffer(1 << 20)
    >>> files = iterate_in_subprocess(functools.partial(list, [bytes(9000)]), arena=ring)
    >>> [len(data) for data in files]
    [9000]
    """

    def __init__(self, capacity: int, *, acquire_timeout: float = 60.0) -> None:
        self._capacity = whole("capacity", capacity, wrong_type=ValueError)
        super().__init__(_ALIGNMENT + self._capacity, "ring", acquire_timeout)

    @property
    def capacity(self) -> int:
        """The size in bytes."""
        return self._capacity

    @property
    def head(self) -> int:
        """The number of bytes ever allocated, gaps included."""
        return int(_counters(self._memory)[0])

    @property
    def tail(self) -> int:
        """The number of bytes ever freed, gaps included. `head - tail` bytes are in use."""
        return int(_counters(self._memory)[1])

    def reader(self, send: Send) -> Reader:
        self._send = send
        return RingReader(self._memory, send)

    def _make_writer(self) -> Writer:
        return RingWriter(self._memory, self._capacity, self._acquire_timeout)


class SharedMemorySegmentPool(Arena):
    """A pool of segments of shared memory, in which the consumer uses items without a copy.

    Buffers of 4096 bytes or more inside an item are copied into a segment and used there.
    All large buffers of an item share one segment, which is free again once no reference to any of these
    buffers exists. Items that you keep occupy their segments, also across iterations. A forked child neither
    keeps nor frees segments.

    Args:
        segment_size: The size of a segment in bytes: enough for the large buffers of an item, each rounded up
            to 64 bytes.
        count: The number of segments: `buffer_size + 2`, plus one segment for each item that you keep.
        acquire_timeout: How many seconds to wait for a free segment before an error; 0: no wait.

    Raises:
        ValueError: An argument is out of range.
        TypeError: `acquire_timeout` is not a number.

    The arena transfers the same types as `SharedMemoryRingBuffer`, but `bytes` and `bytearray` become
    `memoryview`s.

    >>> import functools
    >>> from spdl_rs.pipeline import SharedMemorySegmentPool, iterate_in_subprocess
    >>> pool = SharedMemorySegmentPool(1 << 16, 5)
    >>> files = iterate_in_subprocess(functools.partial(list, [bytes(9000)]), arena=pool)
    >>> [type(data) for data in files]
    [<class 'memoryview'>]
    """

    def __init__(self, segment_size: int, count: int, *, acquire_timeout: float = 60.0) -> None:
        self._segment_size = whole("segment_size", segment_size, wrong_type=ValueError)
        self._count = whole("count", count, wrong_type=ValueError)
        self._distance = _aligned(self._segment_size)
        super().__init__(self._distance * self._count, "pool", acquire_timeout)

    @property
    def segment_size(self) -> int:
        """The size of a segment in bytes."""
        return self._segment_size

    @property
    def count(self) -> int:
        """The number of segments."""
        return self._count

    def reader(self, send: Send) -> Reader:
        self._send = send
        return PoolReader(self._memory, self._distance, send)

    def _make_writer(self) -> Writer:
        return PoolWriter(
            self._memory, self._segment_size, self._distance, self._count, self._acquire_timeout
        )


class Writer(ABC):
    """Copies large buffers of items into an arena."""

    def __init__(self, memory: SharedMemory, most: int, what: str, timeout: float) -> None:
        self._memory = memory
        self._most = most
        self._what = what
        self._timeout = timeout
        self._shut_down = False

    def write(self, item: Any, wait: Wait) -> tuple[bytes, Places, Ticket]:
        """Copies an item into the arena. Returns the arguments of `Reader.read`.

        Args:
            item: The item.
            wait: Waits for messages of the reader, and calls `free` for each message.

        Raises:
            BufferError: There is no room.
            TypeError: The item cannot be pickled.
        """
        pickled, parts = _payloads.split_buffers(item)
        if not parts:
            return pickled, [], None
        size = sum(_aligned(part.size) for part in parts)
        if size > _aligned(self._most):
            raise BufferError(
                f"an item needs {size} bytes, more than the limit of {self._most} bytes ({self._what})"
            )
        deadline = time.monotonic() + self._timeout
        while (room := self._room_for(size)) is None and not self._shut_down:
            left = deadline - time.monotonic()
            wait(max(0.0, left))
            if left <= 0 and self._room_for(size) is None:
                raise BufferError(
                    f"{self._what} had no room for {size} bytes within {self._timeout} s"
                )
        if room is None or self._shut_down:
            raise BufferError("the arena was shut down")
        start, ticket = room
        return pickled, self._copy(parts, start), ticket

    def free(self, ticket: int) -> None:
        """Frees memory that the reader has released."""
        if ticket == _SHUT_DOWN:
            self._shut_down = True
        else:
            self._release(ticket)

    def _copy(self, parts: list[LargeBuffer], start: int) -> Places:
        places: Places = []
        for part in parts:
            part.copy_to(self._memory.bytes(start, part.size))
            places.append((part.description, start, part.size))
            start += _aligned(part.size)
        return places

    @abstractmethod
    def _room_for(self, size: int) -> tuple[int, int] | None:
        """Allocates memory if there is room. Returns the start of the memory and the ticket."""

    @abstractmethod
    def _release(self, ticket: int) -> None: ...


class RingWriter(Writer):
    """Allocates from a ring buffer. A ticket is the tail position after the item is freed."""

    def __init__(self, memory: SharedMemory, capacity: int, timeout: float) -> None:
        super().__init__(memory, capacity, f"the ring of {capacity} bytes", timeout)
        self._capacity = capacity // _ALIGNMENT * _ALIGNMENT
        self._most = self._capacity
        self._head = self._tail = 0

    def _room_for(self, size: int) -> tuple[int, int] | None:
        at = self._head % self._capacity
        # Buffers are contiguous, so a gap may remain at the end.
        gap = self._capacity - at if at + size > self._capacity else 0
        if self._head == self._tail:
            self._head = self._tail = self._head + gap
            gap = 0
        if self._head + gap + size - self._tail > self._capacity:
            return None
        self._head += gap
        start = self._head % self._capacity
        self._head += size
        self._publish()
        return _ALIGNMENT + start, self._head

    def _release(self, ticket: int) -> None:
        self._tail = ticket
        self._publish()

    def _publish(self) -> None:
        _counters(self._memory)[:] = self._head, self._tail


class PoolWriter(Writer):
    """Allocates from a segment pool. A ticket is the number of a segment."""

    def __init__(
        self, memory: SharedMemory, segment_size: int, distance: int, count: int, timeout: float
    ) -> None:
        what = f"a segment of {segment_size} bytes"
        super().__init__(memory, segment_size, what, timeout)
        self._what = f"a pool of {count} segments of {segment_size} bytes"
        self._distance = distance
        self._free = list(range(count))

    def _room_for(self, size: int) -> tuple[int, int] | None:
        if not self._free:
            return None
        segment = self._free.pop()
        return segment * self._distance, segment

    def _release(self, ticket: int) -> None:
        self._free.append(ticket)


class CallWriter(Writer):
    """Writes one item at a time. The memory grows with the largest item.

    The reader must have read an item before the next one is written.
    """

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__(memory, sys.maxsize, "the memory of a call", 0.0)

    def _room_for(self, size: int) -> tuple[int, int] | None:
        self._memory.reserve(size)
        return 0, 0

    def _release(self, ticket: int) -> None:
        pass


class Reader(ABC):
    """Restores items from an arena."""

    def __init__(self, memory: SharedMemory, send: Send) -> None:
        self._memory = memory
        self._send = send

    @abstractmethod
    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        """Restores an item."""


class RingReader(Reader):
    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        parts = [(what, self._memory.bytes(start, size)) for what, start, size in places]
        try:
            return _payloads.join_buffers(pickled, parts, copy=True)
        finally:
            if ticket is not None:
                self._send(("free", ticket))


class CallReader(RingReader):
    """Restores the items of a `CallWriter`. They do not refer to the shared memory."""

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__(memory, lambda message: None)

    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        self._memory.reserve(max((start + size for _, start, size in places), default=0))
        return super().read(pickled, places, None)


class PoolReader(Reader):
    def __init__(self, memory: SharedMemory, distance: int, send: Send) -> None:
        super().__init__(memory, send)
        self._distance = distance

    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        if ticket is None:
            return _payloads.join_buffers(pickled, [], copy=True)
        begin = ticket * self._distance
        segment = self._memory.bytes(begin, self._distance)
        # All views refer to this array, so the array is finalized after the last view.
        weakref.finalize(segment, self._send, ("free", ticket)).atexit = False
        parts = [
            (what, segment[start - begin : start - begin + size]) for what, start, size in places
        ]
        del segment
        return _payloads.join_buffers(pickled, parts, copy=False)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _counters(memory: SharedMemory) -> Any:
    """Returns a view of the head and the tail of a ring buffer."""
    return memory.bytes(0, 16).view(numpy.uint64)
