"""One epoch of an `ImageLoader`."""

from __future__ import annotations

import atexit
import collections
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy
import numpy.typing

from . import _loader_state, _spdl_rs
from ._statistics import Statistics

Images: TypeAlias = "numpy.typing.NDArray[numpy.uint8] | numpy.typing.NDArray[numpy.float32]"
Labels: TypeAlias = "numpy.typing.NDArray[numpy.int64]"

# Daemon threads that wait for batches then stay where they are. This is called after whatever is
# registered later, the end of all pipelines included.
atexit.register(_spdl_rs.Workers.forbid_python)

# So many batches are looked back at to show how the rate was.
_REMEMBERED = 1000


class ImageBatches(Iterator["tuple[Images, Labels]"]):
    """One epoch of an `ImageLoader`, made by `iter(loader)`. Any thread may take batches from it.

    Dropping it ends the work, and so does `close`. It is a context manager too:

    >>> loader = ImageLoader("photos", batch_size=2, size=32)
    >>> with iter(loader) as batches:
    ...     images, labels = next(batches)
    >>> list(batches)
    []
    """

    def __init__(
        self,
        images: _spdl_rs.Images,
        settings: _spdl_rs.Settings,
        epoch: int,
        state: str | None = None,
    ) -> None:
        self._number = epoch
        self._run = _spdl_rs.Epoch(images, settings, epoch, state)
        self._monitor = self._run.monitor
        self._moments: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)

    def __next__(self) -> tuple[Images, Labels]:
        batch = self._run.next()
        if batch is None:
            raise StopIteration
        self._moments.append(time.perf_counter())
        images, labels = batch
        # Each keeps its native array as its base, and with it the memory.
        return numpy.asarray(images), numpy.asarray(labels)

    def __enter__(self) -> ImageBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ImageBatches(epoch={self._number})"

    @property
    def epoch(self) -> int:
        """The number of this epoch."""
        return self._number

    def close(self) -> None:
        """Ends the work. Batches that were not taken are lost; arrays that you hold are not."""
        self._run.close()

    def stats(self) -> Statistics:
        """As `ImageLoader.stats`, for this epoch."""
        return self._monitor.statistics()

    def diagnose(self) -> str:
        """As `ImageLoader.diagnose`, for this epoch."""
        return self._monitor.statistics()["diagnosis"]

    def state_dict(self) -> dict[str, Any]:
        """As `ImageLoader.state_dict`, for this epoch."""
        return _loader_state.to_dict(self._monitor.state())
