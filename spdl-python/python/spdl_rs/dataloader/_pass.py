"""One pass of a loader, which several threads may share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from .._errors import interrupted
from .._locks import ForkSafeLock
from ..pipeline import Pipeline, PipelineFailure
from ._progress import Progress, joined

U = TypeVar("U")


class Pass(Generic[U]):
    """Gives the batches of one pass, each to one of the threads that ask. It begins with the first.

    Who leaves it, by `break` or Ctrl-C say, does not wait for the functions that are under way. A
    batch that Ctrl-C keeps from a loop is not counted as given; the pass is over then, and says so.

    Args:
        begin: Makes its pipeline, and what is told of how far it comes.
        timeout: How many seconds to wait for a batch; `None`: as many as it takes.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Pipeline[Any], Progress | None]],
        timeout: float | None,
    ) -> None:
        self._begin = begin
        self._timeout = timeout
        self._pipeline: Pipeline[Any] | None = None
        self._progress: Progress | None = None
        self._items: Iterator[Any] = iter(())
        self._is_left = False
        self._has_ended = False
        self._is_interrupted = False
        self._beginning = ForkSafeLock()

    def __iter__(self) -> Pass[U]:
        return self

    def __next__(self) -> U:
        """Waits for the next batch.

        Raises:
            TimeoutError: It was not ready in time. The pass is over then.
            PipelineFailure: The source raised.
            StoppedError: It was left by Ctrl-C before.
        """
        try:
            pipeline = self._begun()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        progress = self._progress
        try:
            if progress is None:
                return next(self._items)
            progress.count()
            item = joined(next(self._items))
            place = next(progress.places)
            # Python hears signals behind calls. There is none from here to the loop.
            progress.just_given[place] = item.numbers
            return item.value
        except StopIteration:
            if self._is_interrupted:
                raise interrupted() from None
            if not self._is_left and pipeline is not None:
                self._has_ended = True
                pipeline.stop()
                if progress is not None:
                    progress.end()
            raise
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except BaseException:
            self._is_left = True
            if pipeline is not None:
                pipeline.stop()
            raise

    def _interrupt(self) -> None:
        self._is_interrupted = not self._has_ended
        with contextlib.suppress(PipelineFailure):
            self.close()

    def close(self) -> None:
        """Ends the pass. Functions that are under way are not waited for.

        Raises:
            PipelineFailure: The source has raised, and nobody has been told yet.
        """
        with self._beginning.held():
            self._is_left = True
        if self._pipeline is not None:
            with contextlib.suppress(TimeoutError):
                self._pipeline.stop(timeout=0)

    def __del__(self) -> None:
        # Nobody is there to be told.
        with contextlib.suppress(PipelineFailure):
            self.close()

    def _begun(self) -> Pipeline[Any] | None:
        """`None` where it was left before it began."""
        with self._beginning.held():
            if self._pipeline is None and not self._is_left:
                # Where it does not begin, it never does: the loader has the state.
                self._is_left = True
                try:
                    pipeline, self._progress = self._begin()
                except Exception:
                    self._is_left = False
                    raise
                self._items = pipeline.get_iterator(timeout=self._timeout)
                self._pipeline, self._is_left = pipeline, False
            return self._pipeline
