"""Traces in the trace event format: JSON that Perfetto shows."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import SupportsIndex, TypeAlias

from ... import _spdl_rs
from ..._arguments import whole

_LOGGER = logging.getLogger("spdl_rs.io")

Output: TypeAlias = "int | str | bytes | os.PathLike[str] | os.PathLike[bytes]"

_COUNTERS = 8
_MOST_KIB = 1 << 22
_PAUSE = 0.01


@contextlib.contextmanager
def tracing(
    output: Output,
    buffer_size: SupportsIndex = 4096,
    process_name: str | None = None,
    enable: bool = True,
) -> Iterator[None]:
    """Records what happens in this process while the `with` block runs.

    Recorded are each item of each stage of pipelines and loaders, how long sources take to make one
    and consumers wait for one, and what `trace_event`, `trace_counter` and `trace_gc` tell; also of
    pipelines that were started before. Where nothing is recorded, all of this costs next to nothing.

    The file is JSON in the trace event format, which [Perfetto](https://ui.perfetto.dev) and
    `chrome://tracing` open. Of a process that is killed, the file is there up to the last second, and
    Perfetto opens it, though its last bracket is missing. Worker processes are not recorded.

    Args:
        output: A path, whose file is written anew; or the descriptor of an open file, which stays
            open.
        buffer_size: How many KiB may wait to be written, 1 to 2**22. What finds no room is left out,
            and how much that was is logged at the end.
        process_name: What the process is called. Default: the program (`sys.argv[0]`).
        enable: `False`: nothing is recorded, and `output` not touched.

    Raises:
        RuntimeError: A trace is being recorded already.
        OSError: `output` cannot be written. Told at the end, where that happens in between.
        TypeError, ValueError: `buffer_size` is no whole number, or out of range.

    >>> from spdl_rs.io.utils import tracing
    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> pipeline = PipelineBuilder().add_source("ab").pipe(str.upper).add_sink().build(num_threads=1)
    >>> with tracing("trace.json"):
    ...     print(list(pipeline))
    ['A', 'B']
    """
    if not enable:
        yield
        return
    size = whole("buffer_size", buffer_size, 1, _MOST_KIB)
    program = sys.argv[0] if sys.argv else ""
    recording = _Recording(output, size * 1024, process_name or program or "python")
    try:
        yield
    finally:
        recording.end()


class trace_event(contextlib.ContextDecorator):
    """Tells a trace what runs in a `with` block, or in a function that it decorates.

    In coroutines it may reach over an `await`: what runs meanwhile is shown beside it.

    Args:
        name: What it is called.

    Raises:
        TypeError: `name` is no `str`.

    >>> from spdl_rs.io.utils import trace_event
    >>> with trace_event("forward"):
    ...     result = 1 + 1
    >>> @trace_event("double")
    ... def double(number):
    ...     return 2 * number
    >>> double(result)
    4
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of an event must be a str, not {name!r}")
        self._name = name
        self._began: int | None = None

    def __enter__(self) -> None:
        self._began = _spdl_rs.Trace.now()
        if self._began is not None:
            _entered().append(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._began is None:
            return
        entered = _entered()
        # One that was entered meanwhile, by another coroutine, and not left, is no part of this.
        nested = bool(entered) and entered[-1] is self
        with contextlib.suppress(ValueError):
            entered.remove(self)
        _spdl_rs.Trace.span(self._name, self._began, nested, [])

    def _recreate_cm(self) -> trace_event:
        # Each call of a decorated function is an event of its own.
        return trace_event(self._name)


def trace_counter(i: SupportsIndex, val: int | float) -> None:
    """Tells a trace the value of a counter, which is shown as a curve over time.

    Args:
        i: Which counter, 0 to 7.
        val: Its value. What is no number (NaN) or infinite is left out.

    Raises:
        ValueError: `i` is out of range.
        TypeError: `i` is no whole number, or `val` no number.

    >>> from spdl_rs.io.utils import trace_counter
    >>> trace_counter(0, 2.5)
    """
    _spdl_rs.Trace.counter(f"counter {whole('i', i, 0, _COUNTERS - 1)}", val)


def trace_gc() -> None:
    """Tells traces from now on when Python's garbage collector runs. Calling it again changes
    nothing."""
    if _collected not in gc.callbacks:
        gc.callbacks.append(_collected)


class _Entered(threading.local):
    def __init__(self) -> None:
        self.events: list[trace_event] = []
        self.collecting: int | None = None


_local = _Entered()


def _entered() -> list[trace_event]:
    """The events of this thread that are under way, the innermost last."""
    return _local.events


def _collected(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _local.collecting = _spdl_rs.Trace.now()
    elif _local.collecting is not None:
        began, _local.collecting = _local.collecting, None
        _spdl_rs.Trace.span("gc", began, True, sorted(info.items()))


class _Recording:
    """A trace that is being recorded, and the thread that writes it."""

    def __init__(self, output: Output, capacity: int, process_name: str) -> None:
        # First of all: another one may be writing to the same file.
        self._trace = _spdl_rs.Trace(process_name, capacity)
        self._process = os.getpid()
        self._failure: OSError | None = None
        self._ended = False
        try:
            is_descriptor = isinstance(output, int)
            # Without a buffer, a process that is forked meanwhile has nothing of it.
            self._file = open(output, "wb", buffering=0, closefd=not is_descriptor)  # noqa: SIM115
            self._thread = threading.Thread(target=self._write, name="spdl_trace", daemon=True)
            self._thread.start()
        except BaseException:
            self._trace.close()
            raise
        atexit.register(self.end)

    def end(self) -> None:
        """Writes the rest.

        Raises:
            OSError: Something could not be written.
        """
        if self._process != os.getpid() or self._ended:
            return
        self._ended = True
        atexit.unregister(self.end)
        self._trace.stop()
        try:
            self._thread.join()
        finally:
            # Also where somebody who is tired of waiting has pressed Ctrl-C.
            dropped = self._trace.close()
            with self._file:
                self._put(b"\n]\n")
        if dropped:
            _LOGGER.warning(
                "the trace lacks %d events, which came faster than they could be written: give "
                "tracing a larger buffer_size",
                dropped,
            )
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        while (lines := self._trace.next()) is not None:
            self._put(lines)

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._failure is None:
                written = self._file.write(rest)
                if written is None:
                    # A descriptor that does not block has no room.
                    time.sleep(_PAUSE)
                else:
                    rest = rest[written:]
        except OSError as error:
            self._failure = error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spdl_rs.Trace.forget)
