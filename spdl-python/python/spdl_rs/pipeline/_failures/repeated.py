"""The failure of a pipeline, for those who ask after somebody was told."""

from __future__ import annotations

from .failure import PipelineFailure, add_context, stages_and_errors

_TOLD_BEFORE = "Told before, with its traceback, to whoever asked first."


class RepeatedFailure:
    """Makes exceptions that say what one says, and holds nothing of that but types and words: its
    traceback holds whatever the frames hold in which it was raised.

    Args:
        failure: A `PipelineFailure`, or what is no `Exception`.

    >>> told = PipelineFailure([("0:1:decode", ValueError("no image"))])
    >>> RepeatedFailure(told)().exceptions
    (ValueError('no image'),)
    """

    def __init__(self, failure: BaseException) -> None:
        self._is_group = isinstance(failure, PipelineFailure)
        errors = stages_and_errors(failure) if isinstance(failure, PipelineFailure) else []
        self._errors = [(stage, _Remembered(error)) for stage, error in errors]
        self._itself = _Remembered(failure)

    def __call__(self) -> BaseException:
        if not self._is_group:
            return self._itself.again()
        errs: list[tuple[str, Exception]] = []
        for stage, remembered in self._errors:
            error = remembered.again()
            errs.append((stage, error if isinstance(error, Exception) else RuntimeError(error)))
        return PipelineFailure(errs)


class _Remembered:
    """Of which type an exception was, and what it said."""

    def __init__(self, error: BaseException) -> None:
        self._type = type(error)
        self._words = _words(error)
        # Those that are no texts may hold anything.
        notes = getattr(error, "__notes__", ())
        self._notes = [note for note in notes if type(note) is str]

    def again(self) -> BaseException:
        error = self._of_its_type()
        if error is None:
            error = RuntimeError(f"{self._type.__name__}: {self._words}")
        for note in (*self._notes, _TOLD_BEFORE):
            add_context(error, note)
        return error

    def _of_its_type(self) -> BaseException | None:
        """`None` where that cannot be made of words."""
        try:
            error = self._type.__new__(self._type, *([self._words] if self._words else []))
            return error if self._words in str(error) else None
        except Exception:
            return None


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
