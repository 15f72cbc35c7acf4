"""Recording of traces in the Trace Event Format, which Perfetto opens."""

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

from ... import _spdl_rs, _worker_traces
from ..._arguments import whole

_LOGGER = logging.getLogger("spdl_rs.io")

Output: TypeAlias = "int | str | bytes | os.PathLike[str] | os.PathLike[bytes]"

_COUNTERS = 8
_MAX_BUFFER_KIB = 1 << 22
_RETRY_INTERVAL_S = 0.01


@contextlib.contextmanager
def tracing(
    output: Output,
    buffer_size: SupportsIndex = 4096,
    process_name: str | None = None,
    enable: bool = True,
) -> Iterator[None]:
    """Records a trace of this process and its worker processes while the `with` block runs.

    A trace contains each item of each stage of pipelines and loaders, and the events of `trace_event`,
    `trace_counter` and `trace_gc`. A trace also contains the time that sources take per item, and the waits
    of consumers. Pipelines that were started earlier are included. Without a recording, trace points cost
    almost nothing.

    The file is JSON in the Trace Event Format, for [Perfetto](https://ui.perfetto.dev) and
    `chrome://tracing`. If the process is killed, events of about the last second are missing; Perfetto
    opens the file despite the missing closing bracket. Worker processes of pipelines and loaders are included, also
    those that run already; their events are added at the end.

    Args:
        output: A path, whose file is overwritten; or the descriptor of an open file, which stays open.
        buffer_size: The size of the buffer for unwritten events in KiB, 1 to 2**22. Events that do not fit
            are dropped; their number is logged at the end.
        process_name: The name of the process in the trace. Default: the program (`sys.argv[0]`).
        enable: `False`: nothing is recorded, and `output` is not touched.

    Raises:
        RuntimeError: A trace is already being recorded.
        OSError: `output` cannot be written. Errors during the recording are raised at its end.
        TypeError, ValueError: `buffer_size` is not an integer or out of range.

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
    size = whole("buffer_size", buffer_size, 1, _MAX_BUFFER_KIB)
    program = sys.argv[0] if sys.argv else ""
    recording = Recording(output, size * 1024, process_name or program or "python")
    try:
        recording.include_workers()
        yield
    finally:
        recording.end()


class trace_event(contextlib.ContextDecorator):
    """Records a `with` block, or calls of a decorated function, as an event of the trace.

    In coroutines the block may contain `await`; events of other coroutines are shown separately.

    Args:
        name: The name of the event.

    Raises:
        TypeError: `name` is not a `str`.

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
        # Events that other coroutines have entered since then are not nested in this event.
        nested = bool(entered) and entered[-1] is self
        with contextlib.suppress(ValueError):
            entered.remove(self)
        _spdl_rs.Trace.span(self._name, self._began, nested, [])

    def _recreate_cm(self) -> trace_event:
        # Each call of a decorated function is a separate event.
        return trace_event(self._name)


def trace_counter(i: SupportsIndex, val: int | float) -> None:
    """Records the value of a counter, which viewers show as a curve over time.

    Args:
        i: The number of the counter, 0 to 7.
        val: The value. NaN and infinite values are ignored.

    Raises:
        ValueError: `i` is out of range.
        TypeError: `i` is not an integer, or `val` is not a number.

    >>> from spdl_rs.io.utils import trace_counter
    >>> trace_counter(0, 2.5)
    """
    _spdl_rs.Trace.counter(f"counter {whole('i', i, 0, _COUNTERS - 1)}", val)


def trace_gc() -> None:
    """Records runs of Python's garbage collector in all traces from now on. Repeated calls have no effect."""
    if _collected not in gc.callbacks:
        gc.callbacks.append(_collected)


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.events: list[trace_event] = []
        self.collecting: int | None = None


_local = _ThreadState()


def _entered() -> list[trace_event]:
    """Returns the open events of this thread, the innermost last."""
    return _local.events


def _collected(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _local.collecting = _spdl_rs.Trace.now()
    elif _local.collecting is not None:
        began, _local.collecting = _local.collecting, None
        _spdl_rs.Trace.span("gc", began, True, sorted(info.items()))


class Recording:
    """A recording in progress, and its writer thread.

    Args:
        output, process_name: See `tracing`.
        capacity: The size of the buffer in bytes.
        began_ns: The zero of the timestamps, in the clock of `time.monotonic_ns`. Default: that of this process.
    """

    def __init__(
        self, output: Output, capacity: int, process_name: str, began_ns: int | None = None
    ) -> None:
        # This line comes first, because it raises if another recording is in progress. Later lines
        # truncate the file.
        elapsed = None if began_ns is None else time.monotonic_ns() - began_ns
        self._trace = _spdl_rs.Trace(process_name, capacity, elapsed)
        self._capacity = capacity
        self._workers: _worker_traces.WorkerTraces | None = None
        self._process = os.getpid()
        self._failure: OSError | None = None
        self._ended = False
        try:
            is_descriptor = isinstance(output, int)
            # The file is unbuffered, so that a forked child has no unwritten data.
            self._file = open(output, "wb", buffering=0, closefd=not is_descriptor)  # noqa: SIM115
            self._thread = threading.Thread(target=self._write, name="spdl_trace", daemon=True)
            self._thread.start()
        except BaseException:
            self._trace.close()
            raise
        atexit.register(self.end)

    def include_workers(self) -> None:
        """Records also the worker processes of this process, from now on."""
        began_ns = time.monotonic_ns() - (_spdl_rs.Trace.now() or 0)
        self._workers = _worker_traces.active = _worker_traces.WorkerTraces(began_ns, self._capacity)

    def end(self) -> None:
        """Ends the recording and writes the remaining events.

        Raises:
            OSError: A write failed.
        """
        if self._process != os.getpid() or self._ended:
            return
        self._ended = True
        atexit.unregister(self.end)
        self._trace.stop()
        try:
            self._thread.join()
        finally:
            # The file is completed even if Ctrl-C interrupts the wait.
            dropped = self._trace.close()
            with self._file:
                self._add_workers()
                self._put(b"\n]\n")
        if dropped:
            _LOGGER.warning(
                "the trace lacks %d events, because the buffer was full; increase buffer_size of "
                "tracing",
                dropped,
            )
        if self._failure is not None:
            raise self._failure

    def _add_workers(self) -> None:
        workers, self._workers = self._workers, None
        if workers is None:
            return
        if _worker_traces.active is workers:
            _worker_traces.active = None
        for events in workers.end():
            self._put(b",")
            self._put(events)

    def _write(self) -> None:
        while (lines := self._trace.next()) is not None:
            self._put(lines)

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._failure is None:
                written = self._file.write(rest)
                if written is None:
                    # A non-blocking descriptor cannot take more data at the moment.
                    time.sleep(_RETRY_INTERVAL_S)
                else:
                    rest = rest[written:]
        except OSError as error:
            self._failure = error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spdl_rs.Trace.forget)
