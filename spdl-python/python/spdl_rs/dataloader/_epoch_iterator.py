"""The iterator over one epoch of a `DataLoader`. Threads may share the iterator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from .._errors import interrupted
from .._locks import ForkSafeLock
from ..pipeline import Pipeline, PipelineFailure
from ._progress import Progress, merged

U = TypeVar("U")


class EpochIterator(Generic[U]):
    """Delivers the batches of one epoch, each to one of the calling threads.

    The pipeline starts with the first request. Leaving the iteration, for example by `break` or Ctrl-C,
    does not wait for running functions. A batch that was lost because of Ctrl-C does not count as
    delivered; the iterator then raises `StoppedError`.

    Args:
        begin: Creates the pipeline, and the progress of the epoch if the source has a state.
        timeout: The longest wait for a batch in seconds; `None`: no limit.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Pipeline[Any], Progress | None]],
        timeout: float | None,
    ) -> None:
        self._begin = begin
        self._has_delivered = False
        self._timeout = timeout
        self._pipeline: Pipeline[Any] | None = None
        self._progress: Progress | None = None
        self._items: Iterator[Any] = iter(())
        self._is_left = False
        self._has_ended = False
        self._is_interrupted = False
        self._begin_lock = ForkSafeLock()

    def __iter__(self) -> EpochIterator[U]:
        return self

    def __next__(self) -> U:
        """Waits for the next batch.

        Raises:
            TimeoutError: The batch was not ready in time. The iterator is closed, and running functions have
                returned.
            PipelineFailure: The source raised an exception, more items failed than the failure policy allows,
                or all items failed.
            StoppedError: Ctrl-C has interrupted an earlier call.
        """
        try:
            pipeline = self._begun()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        progress = self._progress
        try:
            if progress is None:
                value = next(self._items)
                self._has_delivered = True
                return value
            progress.count()
            item = merged(next(self._items))
            place = next(progress.places)
            # Python handles signals after calls. There is no call from here until the loop has the batch.
            self._has_delivered = True
            progress.delivered[place] = item.numbers
            return item.value
        except StopIteration:
            if self._is_interrupted:
                raise interrupted() from None
            if not self._is_left and pipeline is not None:
                self._has_ended = True
                pipeline.stop()
                if progress is not None:
                    progress.end()
                self._check_total_loss(pipeline)
            raise
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except BaseException:
            self._is_left = True
            if pipeline is not None:
                pipeline.stop()
            raise

    def _check_total_loss(self, pipeline: Pipeline[Any]) -> None:
        """Raises `PipelineFailure` if items failed and the epoch delivered no batch."""
        if self._has_delivered or (self._progress is not None and self._progress.resumes):
            return
        statistics = pipeline.stats()
        if not statistics["dropped_total"]:
            return
        first, number = statistics["dropped"][0], statistics["dropped_total"]
        items = "1 item" if number == 1 else f"{number} items"
        error = RuntimeError(
            f"the epoch delivered no batch, and {items} failed; the first failure: {first['reason']}"
        )
        raise PipelineFailure([(first["stage"], error)]) from None

    def _interrupt(self) -> None:
        self._is_interrupted = not self._has_ended
        with contextlib.suppress(PipelineFailure):
            self.close()

    def close(self) -> None:
        """Stops the pipeline without waiting for running functions.

        Raises:
            PipelineFailure: The source has raised an exception that was not reported yet.
        """
        with self._begin_lock.held():
            self._is_left = True
        if self._pipeline is not None:
            with contextlib.suppress(TimeoutError):
                self._pipeline.stop(timeout=0)

    def __del__(self) -> None:
        # A finalizer cannot report failures.
        with contextlib.suppress(PipelineFailure):
            self.close()

    def _begun(self) -> Pipeline[Any] | None:
        """Returns the pipeline. `None` if the iterator was closed before it started."""
        with self._begin_lock.held():
            if self._pipeline is None and not self._is_left:
                # If Ctrl-C interrupts the start, the iterator stays closed; the loader keeps the state.
                self._is_left = True
                try:
                    pipeline, self._progress = self._begin()
                except Exception:
                    self._is_left = False
                    raise
                self._items = pipeline.get_iterator(timeout=self._timeout)
                self._pipeline, self._is_left = pipeline, False
            return self._pipeline
