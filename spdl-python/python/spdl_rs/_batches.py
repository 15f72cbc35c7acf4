"""The iterators over one epoch of a loader."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex, TypeVar

from . import _functions, _loader_state, _spdl_rs
from ._statistics import Dropped, Statistics

if TYPE_CHECKING:
    from typing_extensions import Self

# `atexit` calls this function after all functions that are registered later, so after pipelines have
# stopped. Daemon threads that still wait for batches must not acquire the GIL during finalization.
atexit.register(_functions.end_python)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spdl_rs.Workers.has_forked)


B = TypeVar("B")


class Batches(_spdl_rs.BatchIterator, Iterator[B]):
    """The batches of one epoch, created by `iter(loader)`.

    Several threads may take batches from one iterator.

    A batch counts as delivered once a `for` loop has received it. If Ctrl-C prevents the delivery, a
    loader that resumes from the state delivers the batch. (Direct calls of `next` have no such guarantee:
    Python may handle a signal between the return of `next` and the assignment of its result.)

    Calling `close` or dropping the iterator stops loading. The iterator is also a context manager:

    >>> loader = ImageLoader("photos", batch_size=2, size=32)
    >>> with iter(loader) as batches:
    ...     images, labels = next(batches)
    >>> list(batches)
    []
    """

    _LOADER: ClassVar[str] = "Loader"
    _number: int
    _run: _spdl_rs.Epoch
    _monitor: _spdl_rs.Monitor

    def __new__(
        cls,
        samples: _spdl_rs.Samples,
        settings: _spdl_rs.Settings,
        epoch: int,
        state: str | None = None,
        functions: _functions.Functions | None = None,
        *,
        is_frozen: bool = True,
    ) -> Self:
        run = _spdl_rs.Epoch(samples, settings, epoch, state, functions, is_frozen=is_frozen)
        batches = super().__new__(cls, run)
        batches._number, batches._run, batches._monitor = epoch, run, run.monitor
        return batches

    if TYPE_CHECKING:
        # Native, so that a loop calls no Python function for the next batch.
        def __next__(self) -> B: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "an epoch in progress cannot be pickled or copied; pickle its state_dict() and load it into "
            f"another {self._LOADER}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(epoch={self._number})"

    @property
    def epoch(self) -> int:
        """The number of this epoch."""
        return self._number

    def close(self) -> None:
        """Stops loading. Batches that were not taken are lost; arrays that you hold stay valid."""
        self._run.close()

    def take_dropped(self) -> list[Dropped]:
        """Returns the samples that `on_error` dropped from the batch that was delivered last.

        These are the samples whose positions in the epoch precede the last sample of the batch, without those
        of earlier calls. So calls after each batch return each dropped sample once. After the last batch, a
        call returns the remaining dropped samples. The lists do not depend on timing. At most 100,000 samples are
        kept for the next call; `stats()["dropped_total"]` counts all.

        >>> loader = ImageLoader("photos", batch_size=2, size=32, on_error="skip")
        >>> batches = iter(loader)
        >>> for images, labels in batches:
        ...     print(len(images), "images;", len(batches.take_dropped()), "dropped")
        2 images; 0 dropped
        2 images; 0 dropped
        """
        return self._run.take_dropped()

    def stats(self) -> Statistics:
        """Like `ImageLoader.stats`, for this epoch."""
        return self._monitor.statistics()

    def diagnose(self) -> str:
        """Like `ImageLoader.diagnose`, for this epoch."""
        return self._monitor.statistics()["diagnosis"]

    def state_dict(self) -> dict[str, Any]:
        """Like `ImageLoader.state_dict`, for this epoch."""
        return _loader_state.to_dict(self._LOADER, self._monitor.state())


class ImageBatches(Batches["tuple[Any, Any]"]):
    """The batches of one epoch of an `ImageLoader`, created by `iter(loader)`.

    Images and labels are NumPy arrays, or `spdl_rs.cuda.DeviceArray`s if the loader's `device` is a CUDA
    device. See `Batches`.
    """

    _LOADER = "ImageLoader"


def import_numpy() -> None:
    """Imports NumPy before the first epoch of a loader, because batches are NumPy arrays.

    The import takes about as long as loading a few batches.
    """
    if "numpy" not in sys.modules:
        # If Ctrl-C interrupts the import, NumPy raises ImportError and cannot be imported again.
        _spdl_rs.uninterrupted(functools.partial(importlib.import_module, "numpy"))
