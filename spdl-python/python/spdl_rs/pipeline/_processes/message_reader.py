"""Reads the messages of a pipe so that a signal handler that raises an exception loses no bytes."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection

_SIZE = struct.Struct("!i")
"""Precedes a message of `multiprocessing`; -1 for a message above 2 GiB, whose `_LONG_SIZE` follows."""
_LONG_SIZE = struct.Struct("!Q")


class MessageReader:
    """Reads the messages of a connection, as `Connection.recv_bytes` does.

    If a signal handler raises an exception within a message, the next `read` continues the message.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        """What has been read of the current message."""

    def read(self) -> memoryview:
        """Waits for the whole message.

        Raises:
            EOFError: The other end is closed.
            OSError: The message cannot be read.
        """
        chunks = self._chunks
        start, end = _content(chunks)
        while missing := end - sum(map(len, chunks)):
            # Signal handlers run between two instructions of Python. No instruction is between the read and
            # the append, so each byte that was read is in the list.
            chunks.extend(map(os.read, (self._connection.fileno(),), (missing,)))
            if not chunks[-1]:
                raise EOFError
            start, end = _content(chunks)
        message = memoryview(b"".join(chunks))[start:]
        self._chunks = []
        return message


def _content(chunks: Sequence[bytes]) -> tuple[int, int]:
    """Where the content of a message starts and ends, as far as its first bytes show."""
    head = bytes(itertools.islice(itertools.chain.from_iterable(chunks), _SIZE.size + _LONG_SIZE.size))
    start = _SIZE.size
    if len(head) < start:
        return start, start
    (size,) = _SIZE.unpack_from(head)
    if size < 0:
        start += _LONG_SIZE.size
        if len(head) < start:
            return start, start
        (size,) = _LONG_SIZE.unpack_from(head, _SIZE.size)
    return start, start + size
