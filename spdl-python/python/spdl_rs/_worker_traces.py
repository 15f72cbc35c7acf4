"""Traces of worker processes, as part of the trace of their parent.

    trace of the parent ──start, stop──► each worker records to a separate file ──► appended to the parent's file

The messages arrive in the thread of the worker that reads messages, so that a trace can start and end at any time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .io.utils._tracing import Recording
    from .pipeline._processes.worker_process import WorkerProcess

START = "trace"
"""The message that starts a recording in a worker: path, start of the trace, size of the buffer."""
STOP = "trace end"
"""The message that ends it."""

_END_OF_FILE = b"\n]\n"
# How long a worker may take to write its last events.
_GRACE_S = 1.0
_POLL_S = 0.005

active: WorkerTraces | None = None
"""The traces of the workers of this process, while this process records a trace."""


class WorkerTraces:
    """The recordings of all workers that this process has, or starts later.

    Args:
        began_ns: The zero of the timestamps, in the clock of `time.monotonic_ns`, which all processes share.
        capacity: The size of the buffer of each worker in bytes.
    """

    def __init__(self, began_ns: int, capacity: int) -> None:
        self._began_ns, self._capacity = began_ns, capacity
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._files: list[tuple[str, weakref.ref[WorkerProcess]]] = []
        # The module is imported only with the first worker.
        processes = sys.modules.get("spdl_rs.pipeline._processes.worker_process")
        for worker in () if processes is None else processes.live_workers():
            self.include(worker)

    def include(self, worker: WorkerProcess) -> None:
        """Starts the recording of a worker."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="spdl-trace-")
            path = os.path.join(self._folder, str(len(self._files)))
            self._files.append((path, weakref.ref(worker)))
        worker.send_soon((START, path, self._began_ns, self._capacity))

    def end(self) -> Iterator[bytes]:
        """Ends all recordings, and yields the events of each worker as elements of a JSON array."""
        if self._folder is None:
            return
        try:
            workers = [worker for _, reference in self._files if (worker := reference()) is not None]
            for worker in workers:
                worker.send_soon((STOP,))
            del workers
            deadline = time.monotonic() + _GRACE_S
            for path, reference in self._files:
                while not _is_complete(path) and time.monotonic() < deadline and _runs(reference()):
                    time.sleep(_POLL_S)
                if events := _events(path):
                    yield events
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _runs(worker: WorkerProcess | None) -> bool:
    return worker is not None and worker.runs


def _is_complete(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-len(_END_OF_FILE), os.SEEK_END)
            return file.read() == _END_OF_FILE
    except OSError:
        # The worker has not created the file, or has written nothing.
        return False


def _events(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return b""
    if text.endswith(_END_OF_FILE):
        text = text[: -len(_END_OF_FILE)]
    else:
        # The last event of a killed worker may be incomplete.
        text = text.rpartition(b",\n")[0]
    return text.removeprefix(b"[")


_recording: Recording | None = None
"""The recording in a worker."""


def handle(message: tuple[Any, ...]) -> bool:
    """Starts or ends the recording of this worker. Returns whether the message is `START` or `STOP`."""
    global _recording
    if message[0] == START:
        # Imported lazily: workers of programs that record no trace need no tracing.
        from .io.utils._tracing import Recording

        _, path, began_ns, capacity = message
        name = multiprocessing.current_process().name
        # The worker may record a separate trace, or have no permission for the folder.
        with contextlib.suppress(OSError, RuntimeError):
            _recording = Recording(path, capacity, name, began_ns=began_ns)
        return True
    if message[0] == STOP:
        end()
        return True
    return False


def end() -> None:
    """Ends the recording of this worker, if there is one."""
    global _recording
    recording, _recording = _recording, None
    if recording is not None:
        with contextlib.suppress(OSError):
            recording.end()
