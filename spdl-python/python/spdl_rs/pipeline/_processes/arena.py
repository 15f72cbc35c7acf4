"""Memory by which the large parts of items get from one process to another.

The process that makes items copies their large parts there, and waits where there is no room. The
one that takes them tells it what is free again, by the pipe that joins the two.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy

from ..._arguments import whole
from . import payloads as _payloads
from .payloads import Description, Part
from .shared_memory import SharedMemory

Send: TypeAlias = Callable[[Any], None]
Wait: TypeAlias = Callable[[float], None]
"""Waits for what the other process says, for so many seconds at most."""
Ticket: TypeAlias = int | None
"""By which memory is given back; `None`: there is none."""
Places: TypeAlias = list[tuple[Description, int, int]]
"""The large parts of an item: what they are, where each begins, and how many bytes it has."""

# Parts begin at multiples of this many bytes.
_ALIGNMENT = 64
_SHUT_DOWN = -1


class Arena(ABC):
    """Memory for one iterable: `iterate_in_subprocess(..., arena=...)`."""

    def __init__(self, size: int, kind: str, acquire_timeout: float) -> None:
        if isinstance(acquire_timeout, bool) or not isinstance(acquire_timeout, (int, float)):
            raise TypeError(f"acquire_timeout must be a number, not {acquire_timeout!r}")
        if not acquire_timeout >= 0:
            raise ValueError(f"acquire_timeout must not be negative, not {acquire_timeout}")
        self._acquire_timeout = acquire_timeout
        self._memory = SharedMemory(size, kind)
        self._used = self._shut_down = False
        self._send: Send | None = None

    @property
    def name(self) -> str:
        """What the memory is called in the maps of a process. No file has this name."""
        return self._memory.name

    @property
    def acquire_timeout(self) -> float:
        """For how many seconds there may be no room."""
        return self._acquire_timeout

    def shutdown_arena(self) -> None:
        """Refuses memory from now on: where items are made, that is a `BufferError`."""
        self._shut_down = True
        if self._send is not None:
            self._send(("free", _SHUT_DOWN))

    def close(self) -> None:
        """Lets go of the memory. Items that lie in it keep it."""
        self._memory.close()

    def unlink(self) -> None:
        """Does nothing: the memory has no name in the file system that could be left over."""

    def writer(self) -> Writer:
        """What makes use of it in the process that makes items.

        Raises:
            ValueError: It has been used already, or was shut down.
        """
        if self._used or self._shut_down:
            raise ValueError("an arena serves one iterable only, and none once it is shut down")
        self._used = True
        return self._make_writer()

    @abstractmethod
    def reader(self, send: Send) -> Reader:
        """What makes use of it here. `send` tells the other process something, at any time."""

    @abstractmethod
    def _make_writer(self) -> Writer: ...


class SharedMemoryRingBuffer(Arena):
    """A ring of memory. The large parts of items are copied into it, and out of it.

    So items are as they were: nothing refers to the ring.

    Args:
        capacity: How many bytes: enough for the items that wait, `buffer_size + 2` of them.
        acquire_timeout: For how many seconds the ring may be full before that is an error; 0: not
            at all.

    Raises:
        ValueError: An argument is out of range.
        TypeError: `acquire_timeout` is no number.

    What travels by it: `bytes`, `bytearray`, `memoryview`, NumPy arrays and tensors of PyTorch on
    the CPU, of 4096 bytes or more, wherever they are within an item. Where there is no room in
    time, or never, the iterable raises a `BufferError`.

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
        """How many bytes it has."""
        return self._capacity

    @property
    def head(self) -> int:
        """How many bytes were ever taken, gaps included."""
        return int(_counters(self._memory)[0])

    @property
    def tail(self) -> int:
        """How many bytes were ever given back, gaps included. `head - tail` are in use."""
        return int(_counters(self._memory)[1])

    def reader(self, send: Send) -> Reader:
        self._send = send
        return RingReader(self._memory, send)

    def _make_writer(self) -> Writer:
        return RingWriter(self._memory, self._capacity, self._acquire_timeout)


class SharedMemorySegmentPool(Arena):
    """Segments of memory. The large parts of items are copied into them, and used where they are.

    The large parts of an item share a segment, which is free again when nothing refers to any of
    them any more. Whoever keeps items keeps segments, also over iterations; a fork of the process
    keeps none, and gives none back.

    Args:
        segment_size: How many bytes a segment has: enough for the large parts of an item, each
            rounded up to 64 bytes.
        count: How many segments: `buffer_size + 2`, and one for each item that you keep.
        acquire_timeout: For how many seconds there may be no free segment before that is an error;
            0: not at all.

    Raises:
        ValueError: An argument is out of range.
        TypeError: `acquire_timeout` is no number.

    What travels by it is the same as for `SharedMemoryRingBuffer`; but `bytes` and `bytearray` come
    as `memoryview`s.

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
        """How many bytes a segment has."""
        return self._segment_size

    @property
    def count(self) -> int:
        """How many segments there are."""
        return self._count

    def reader(self, send: Send) -> Reader:
        self._send = send
        return PoolReader(self._memory, self._distance, send)

    def _make_writer(self) -> Writer:
        return PoolWriter(
            self._memory, self._segment_size, self._distance, self._count, self._acquire_timeout
        )


class Writer(ABC):
    """Copies the large parts of items into an arena."""

    def __init__(self, memory: SharedMemory, most: int, what: str, timeout: float) -> None:
        self._memory = memory
        self._most = most
        self._what = what
        self._timeout = timeout
        self._shut_down = False

    def write(self, item: Any, wait: Wait) -> tuple[bytes, Places, Ticket]:
        """Puts an item there: what `Reader.read` needs.

        Args:
            item: The item.
            wait: Waits for what the reader says, and calls `free` with it.

        Raises:
            BufferError: There is no room for it.
            TypeError: The item cannot be pickled.
        """
        pickled, parts = _payloads.taken_apart(item)
        if not parts:
            return pickled, [], None
        size = sum(_aligned(part.size) for part in parts)
        if size > _aligned(self._most):
            raise BufferError(f"an item needs {size} bytes, more than {self._what}")
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
        """Takes back what the reader gives back."""
        if ticket == _SHUT_DOWN:
            self._shut_down = True
        else:
            self._take_back(ticket)

    def _copy(self, parts: list[Part], start: int) -> Places:
        places: Places = []
        for part in parts:
            part.copy_to(self._memory.bytes(start, part.size))
            places.append((part.description, start, part.size))
            start += _aligned(part.size)
        return places

    @abstractmethod
    def _room_for(self, size: int) -> tuple[int, int] | None:
        """Takes room, if there is any: where it begins, and the ticket."""

    @abstractmethod
    def _take_back(self, ticket: int) -> None: ...


class RingWriter(Writer):
    """A ticket says how far the ring is free once it is given back."""

    def __init__(self, memory: SharedMemory, capacity: int, timeout: float) -> None:
        super().__init__(memory, capacity, f"the ring of {capacity} bytes", timeout)
        self._capacity = capacity // _ALIGNMENT * _ALIGNMENT
        self._most = self._capacity
        self._head = self._tail = 0

    def _room_for(self, size: int) -> tuple[int, int] | None:
        at = self._head % self._capacity
        # A part is never cut; so what is left at the end may stay empty.
        gap = self._capacity - at if at + size > self._capacity else 0
        if self._head == self._tail:
            self._head = self._tail = self._head + gap
            gap = 0
        if self._head + gap + size - self._tail > self._capacity:
            return None
        self._head += gap
        start = self._head % self._capacity
        self._head += size
        self._tell()
        return _ALIGNMENT + start, self._head

    def _take_back(self, ticket: int) -> None:
        self._tail = ticket
        self._tell()

    def _tell(self) -> None:
        _counters(self._memory)[:] = self._head, self._tail


class PoolWriter(Writer):
    """A ticket is the number of a segment."""

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

    def _take_back(self, ticket: int) -> None:
        self._free.append(ticket)


class Reader(ABC):
    """Puts items together again whose large parts lie in an arena."""

    def __init__(self, memory: SharedMemory, send: Send) -> None:
        self._memory = memory
        self._send = send

    @abstractmethod
    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        """The item."""


class RingReader(Reader):
    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        parts = [(what, self._memory.bytes(start, size)) for what, start, size in places]
        try:
            return _payloads.put_together(pickled, parts, copy=True)
        finally:
            if ticket is not None:
                self._send(("free", ticket))


class PoolReader(Reader):
    def __init__(self, memory: SharedMemory, distance: int, send: Send) -> None:
        super().__init__(memory, send)
        self._distance = distance

    def read(self, pickled: bytes, places: Places, ticket: Ticket) -> Any:
        if ticket is None:
            return _payloads.put_together(pickled, [], copy=True)
        begin = ticket * self._distance
        segment = self._memory.bytes(begin, self._distance)
        # Whatever is made of it refers to this array, and to nothing below it.
        weakref.finalize(segment, self._send, ("free", ticket)).atexit = False
        parts = [
            (what, segment[start - begin : start - begin + size]) for what, start, size in places
        ]
        del segment
        return _payloads.put_together(pickled, parts, copy=False)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _counters(memory: SharedMemory) -> Any:
    """The head and the tail of a ring."""
    return memory.bytes(0, 16).view(numpy.uint64)
