"""Exceptions that travel from one process to another, with their type and their traceback."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from .._failures.failure import PipelineFailure, stages_of
from .._failures.tracebacks import shorten


class RemoteTraceback(Exception):
    """Where an exception was raised in another process: the cause of the exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return f"\n{self._text.rstrip()}"


class WorkerError(RuntimeError):
    """A process that works for this one has ended, or cannot go on."""

    tells_all = True


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A process that works for this one gave nothing in time."""


for _error in (RemoteTraceback, WorkerError, WorkerTimeoutError):
    _error.__module__ = "spdl_rs.pipeline"


def pickled_for_another_process(what: Any) -> bytes:
    """Pickles something that is to be sent.

    Raises:
        TypeError: It cannot be pickled.
    """
    try:
        return pickle.dumps(what, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise cannot_be_sent(error) from error


def cannot_be_sent(error: Exception) -> TypeError:
    """What is told of something that cannot be pickled."""
    return TypeError(f"an item cannot be pickled, and so not be sent to another process: {error}")


class ExceptionWrapper:
    """An exception as bytes.

    What cannot be pickled, or not be read back, arrives as a `RuntimeError` that says its type and
    its words.
    """

    def __init__(self, error: BaseException) -> None:
        shorten(error)
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if isinstance(error, PipelineFailure):
            # Of several exceptions, one that cannot travel takes no others with it.
            parts = zip(stages_of(error), error.exceptions, strict=True)
            self._parts = [(stage, ExceptionWrapper(part)) for stage, part in parts]
            self._pickled = b""
        else:
            self._parts = []
            self._pickled = _pickled(error)
        self._text = text
        try:
            self._words = f"{_name(type(error))}: {error}"
        except Exception:
            self._words = f"{_name(type(error))}, which cannot be told in words"

    def unwrap(self) -> BaseException:
        """The exception, with the traceback of the other process as its cause."""
        error: BaseException
        if self._parts:
            error = PipelineFailure([(stage, _exception(part)) for stage, part in self._parts])
        else:
            try:
                error = pickle.loads(self._pickled) if self._pickled else RuntimeError(self._words)
            except Exception:
                # Its class is not there in this process, or wants to be made in another way.
                error = RuntimeError(self._words)
        error.__cause__ = RemoteTraceback(self._text)
        return error


def _exception(part: ExceptionWrapper) -> Exception:
    error = part.unwrap()
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def _pickled(error: BaseException) -> bytes:
    """The exception as bytes, or nothing."""
    try:
        return pickle.dumps(error, protocol=5)
    except Exception:
        return b""


def _name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
