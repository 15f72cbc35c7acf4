"""Exceptions sent between processes, with their types and tracebacks."""

from __future__ import annotations

import contextlib
import functools
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from .._failures.failure import PipelineFailure, stages_of
from .._failures.tracebacks import shorten


class RemoteTraceback(Exception):
    """The traceback of an exception in another process: the `__cause__` of the exception raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return f"\n{self._text.rstrip()}"


class WorkerError(RuntimeError):
    """A worker process has ended or cannot continue."""

    _traceback_is_redundant = True


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker process did not respond in time."""


for _error in (RemoteTraceback, WorkerError, WorkerTimeoutError):
    _error.__module__ = "spdl_rs.pipeline"


def pickled_message(what: Any) -> bytes:
    """Pickles a message for another process.

    Raises:
        TypeError: The message cannot be pickled.
    """
    try:
        return pickle.dumps(what, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise pickling_error(error) from error


def pickling_error(error: Exception) -> TypeError:
    """The exception for an item that cannot be pickled."""
    return TypeError(f"an item cannot be pickled for transfer to another process: {error}")


class ExceptionWrapper:
    """A pickled exception.

    If the exception cannot be pickled or unpickled, it becomes a `RuntimeError` with its type and message.
    """

    def __init__(self, error: BaseException) -> None:
        shorten(error)
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if isinstance(error, PipelineFailure):
            # Each exception is wrapped separately, so that an unpicklable exception affects only itself.
            parts = zip(stages_of(error), error.exceptions, strict=True)
            self._parts = [(stage, ExceptionWrapper(part)) for stage, part in parts]
            self._pickled = b""
        else:
            self._parts = []
            self._pickled = _pickled(error)
        self._text = text
        try:
            self._message = f"{_name(type(error))}: {error}"
        except Exception:
            self._message = f"{_name(type(error))}, whose message is not available"

    def unwrap(self) -> BaseException:
        """Returns the exception, with the remote traceback as its cause."""
        error: BaseException
        if self._parts:
            error = PipelineFailure([(stage, _exception(part)) for stage, part in self._parts])
        else:
            try:
                error = (
                    pickle.loads(self._pickled) if self._pickled else RuntimeError(self._message)
                )
            except Exception:
                # The class is not importable here, or its constructor has other parameters.
                error = RuntimeError(self._message)
        error.__cause__ = RemoteTraceback(self._text)
        return error


def as_runtime_error(error: Exception) -> Exception:
    """Returns an exception that is a `RuntimeError` and has also the type of `error`.

    SPDL raises a `RuntimeError` for any failure of a worker process; programs for SPDL catch this type.
    """
    if isinstance(error, RuntimeError):
        return error
    with contextlib.suppress(Exception):
        if isinstance(error, PipelineFailure):
            failures = list(zip(stages_of(error), error.exceptions, strict=True))
            converted = _also_runtime_error(type(error))(failures)
        else:
            # As `pickle` does, which has already copied the exception from the worker process.
            _, arguments, *_ = error.__reduce__()
            converted = _also_runtime_error(type(error))(*arguments)
        converted.__dict__.update(error.__dict__)
        converted.__cause__ = error.__cause__
        return converted
    # The type cannot be derived from, or its constructor has other parameters.
    return error


@functools.cache
def _also_runtime_error(kind: type[Exception]) -> Callable[..., Exception]:
    # Tracebacks show the name of the original type, and pickles contain that type.
    bases: Any = (kind, RuntimeError)
    return type(
        kind.__name__,
        bases,
        {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__reduce__": lambda error: (kind, *kind.__reduce__(error)[1:]),
        },
    )


def _exception(part: ExceptionWrapper) -> Exception:
    error = part.unwrap()
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def _pickled(error: BaseException) -> bytes:
    """Returns the pickled exception, or `b""` if it cannot be pickled."""
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
