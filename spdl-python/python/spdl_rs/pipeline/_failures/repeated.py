"""Copies of the failure of a pipeline, for callers after the first caller."""

from __future__ import annotations

from .failure import PipelineFailure, add_context, stages_and_errors

_REPEATED = "Reported before: the first caller received this exception with its traceback."


class RepeatedFailure:
    """Makes copies of an exception, without keeping the exception itself.

    Tracebacks keep frames alive, and frames keep the pipeline alive. So only types and messages are stored.

    Args:
        failure: A `PipelineFailure`, or an exception that is not an `Exception`.

    >>> failure = PipelineFailure([("0:1:decode", ValueError("no image"))])
    >>> RepeatedFailure(failure)().exceptions
    (ValueError('no image'),)
    """

    def __init__(self, failure: BaseException) -> None:
        self._is_group = isinstance(failure, PipelineFailure)
        errors = stages_and_errors(failure) if isinstance(failure, PipelineFailure) else []
        self._errors = [(stage, _StoredException(error)) for stage, error in errors]
        self._failure = _StoredException(failure)

    def __call__(self) -> BaseException:
        if not self._is_group:
            return self._failure.copy()
        errs: list[tuple[str, Exception]] = []
        for stage, stored in self._errors:
            error = stored.copy()
            errs.append((stage, error if isinstance(error, Exception) else RuntimeError(error)))
        return PipelineFailure(errs)


class _StoredException:
    """The type, the message and the notes of an exception."""

    def __init__(self, error: BaseException) -> None:
        self._type = type(error)
        self._message = _message(error)
        # Notes of other types may keep other objects alive.
        notes = getattr(error, "__notes__", ())
        self._notes = [note for note in notes if type(note) is str]

    def copy(self) -> BaseException:
        error = self._of_same_type()
        if error is None:
            error = RuntimeError(f"{self._type.__name__}: {self._message}")
        for note in (*self._notes, _REPEATED):
            add_context(error, note)
        return error

    def _of_same_type(self) -> BaseException | None:
        """Returns `None` if the type cannot be created from a message."""
        try:
            error = self._type.__new__(self._type, *([self._message] if self._message else []))
            return error if self._message in str(error) else None
        except Exception:
            return None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
