"""One epoch of an `ImageLoader`."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from . import _loader_state, _spdl_rs
from ._statistics import Statistics

# Daemon threads that wait for batches then stay where they are. This is called after whatever is
# registered later, the end of all pipelines included.
atexit.register(_spdl_rs.Workers.forbid_python)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spdl_rs.Workers.has_forked)


class ImageBatches(_spdl_rs.BatchIterator, Iterator["tuple[Any, Any]"]):
    """One epoch of an `ImageLoader`, made by `iter(loader)`. Any thread may take batches from it.

    Images and labels are arrays of NumPy, or `spdl_rs.cuda.DeviceArray`s, as the loader's `device` says.

    A batch counts as given once a `for` loop has it: what Ctrl-C keeps from the loop is given by
    whoever goes on from the state. (Called by hand, `next` may be interrupted between its return and
    what becomes of the batch; Python hears signals there.)

    Dropping it ends the work, and so does `close`. It is a context manager too:

    >>> loader = ImageLoader("photos", batch_size=2, size=32)
    >>> with iter(loader) as batches:
    ...     images, labels = next(batches)
    >>> list(batches)
    []
    """

    _number: int
    _run: _spdl_rs.Epoch
    _monitor: _spdl_rs.Monitor

    def __new__(
        cls,
        images: _spdl_rs.Images,
        settings: _spdl_rs.Settings,
        epoch: int,
        state: str | None = None,
    ) -> ImageBatches:
        run = _spdl_rs.Epoch(images, settings, epoch, state)
        batches = super().__new__(cls, run)
        batches._number, batches._run, batches._monitor = epoch, run, run.monitor
        return batches

    if TYPE_CHECKING:
        # It is native: a loop calls no function of Python's for its next batch.
        def __next__(self) -> tuple[Any, Any]: ...

    def __enter__(self) -> ImageBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "an epoch that is under way cannot be pickled or copied; pickle its state_dict(), and load "
            "it into another ImageLoader"
        )

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


def import_numpy() -> None:
    """Imports what the arrays of batches are made by. It takes as long as a few batches do, so a loader
    does that before its first epoch."""
    if "numpy" not in sys.modules:
        # Where Ctrl-C comes amid that, NumPy raises an ImportError, and cannot be imported again.
        _spdl_rs.uninterrupted(functools.partial(importlib.import_module, "numpy"))
