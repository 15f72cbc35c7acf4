"""`PipelineFailure`, notes on exceptions, and reports of failed items and stages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..._errors import StoppedError, TooManyFailuresError
from .child_process import START_UNDER_GUARD
from .dropped import count_dropped
from .item_text import describe
from .log import log_failure
from .stage_names import of_pipeline
from .tracebacks import shorten

_STAGE = "Pipeline stage: "
_BROKEN_POOL = f"The output of the worker processes may contain the reason. ({START_UNDER_GUARD})"

if sys.version_info >= (3, 11):

    class PipelineFailure(ExceptionGroup[Exception]):  # noqa: F821
        """One or more stages failed and ended the pipeline.

        `exceptions` are the original exceptions. Their notes name the stage and the item. `except*`
        matches them.

        On Python 3.10 the class is a `RuntimeError` with the attribute `exceptions`.

        Args:
            errs: Pairs of a stage name and its exception.

        >>> from spdl_rs.pipeline import PipelineFailure
        >>> failure = PipelineFailure([("0:1:decode", ValueError("no image"))])
        >>> failure.exceptions
        (ValueError('no image'),)
        """

        _stages: list[str]
        _is_reported = False

        if TYPE_CHECKING:
            # The constructor of `ExceptionGroup` accepts the arguments of `__new__`.
            def __init__(self, errs: Sequence[tuple[str, Exception]]) -> None: ...

        def __new__(cls, errs: Sequence[tuple[str, Exception]]) -> PipelineFailure:
            failure = super().__new__(cls, _message(errs), _noted(errs))
            failure._stages = [stage for stage, _ in errs]
            return failure

        def derive(self, excs: Sequence[Exception]) -> PipelineFailure:  # pyright: ignore[reportIncompatibleMethodOverride]
            known = zip(self._stages, self.exceptions, strict=True)
            stages = {id(error): stage for stage, error in known}
            return PipelineFailure([(stages.get(id(error), ""), error) for error in excs])

else:

    class PipelineFailure(RuntimeError):
        """One or more stages failed and ended the pipeline.

        `exceptions` are the original exceptions. Their notes name the stage and the item. From Python
        3.11 on the class is an `ExceptionGroup`.

        Args:
            errs: Pairs of a stage name and its exception.
        """

        exceptions: tuple[Exception, ...]
        _stages: list[str]
        _is_reported = False

        def __init__(self, errs: Sequence[tuple[str, Exception]]) -> None:
            super().__init__(errs)
            self.exceptions = tuple(_noted(errs))
            self._stages = [stage for stage, _ in errs]
            self.__cause__ = self.exceptions[0]

        def __str__(self) -> str:
            return _message(self.args[0])


PipelineFailure.__module__ = "spdl_rs.pipeline"


def mark_as_reported(failure: PipelineFailure) -> None:
    """Marks a failure as logged, for example the failure of an internal part of a pipeline."""
    failure._is_reported = True


def stages_of(failure: PipelineFailure) -> list[str]:
    """Returns the stage of each exception of a failure; `""` if unknown."""
    return failure._stages


def _message(errs: Sequence[tuple[str, Exception]]) -> str:
    stages = dict.fromkeys(stage for stage, _ in errs if stage)
    return f"the pipeline failed in {', '.join(stages)}" if stages else "the pipeline failed"


def _noted(errs: Sequence[tuple[str, Exception]]) -> list[Exception]:
    for stage, error in errs:
        _note(error, stage)
    return [error for _, error in errs]


def _note(error: BaseException, stage: str, *more: str) -> None:
    """Adds notes with the stage to an exception, once: an exception object may be raised repeatedly."""
    notes: list[str] = getattr(error, "__notes__", [])
    if stage and not any(note.startswith(_STAGE) for note in notes):
        _add_notes(error, f"{_STAGE}{stage}", *more)


def _add_notes(error: BaseException, *notes: str) -> None:
    # `add_note` exists from Python 3.11 on. Before, exceptions with slots cannot have notes.
    try:
        error.__notes__ = [*getattr(error, "__notes__", []), *notes]  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        pass


class Cancelled(StoppedError):
    """Raised in calls and waits that end because the pipeline was stopped."""


class ProcessExit(SystemExit):
    """Raised in a function of a pipeline that still runs when the process exits. It is not logged."""


class FatalStageError(Exception):
    """Raised in a stage instead of `error`, to end the pipeline regardless of its failure budget.

    The code that raises this exception also logs `error`.
    """

    _ends_pipeline = True

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(stage, error)
        self.stage = stage
        self.error = error


def as_exception(error: BaseException) -> Exception:
    """Returns an exception that a `PipelineFailure` can contain.

    Other kinds of `BaseException` become the cause of a `RuntimeError`.
    """
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(
        f"a function or hook raised {type(error).__name__}, which is not a subclass of Exception"
    )
    wrapped.__cause__ = error
    return wrapped


FailureListener: TypeAlias = Callable[[BaseException, str, str], None]
_listeners: dict[str, FailureListener] = {}


@contextlib.contextmanager
def failures_reported_to(number: int, listener: FailureListener) -> Iterator[None]:
    """Reports failed items of the pipeline with that number to `listener` instead of the log.

    `listener` is called with the exception, the local name of the stage, and a description of the item.
    """
    _listeners[str(number)] = listener
    try:
        yield
    finally:
        del _listeners[str(number)]


def item_failed(error: BaseException, stage: str, item: object) -> bool:
    """Reports that a stage failed for an item. The native module calls this function.

    Returns:
        Whether the failure ends the pipeline.
    """
    if isinstance(error, FatalStageError):
        return True
    if isinstance(error, (Cancelled, ProcessExit)):
        return False
    shorten(error)
    number, local = of_pipeline(stage)
    listener = _listeners.get(number)
    if listener is None:
        report_item_failed(error, stage, describe(item))
    else:
        listener(error, local, describe(item))
    # Set for names of SPDL that this package lacks.
    return getattr(error, "_ends_pipeline", False)


def report_item_failed(
    error: BaseException, stage: str, item: str, epoch: int | None = None
) -> None:
    """Adds notes to the exception, logs it, and counts the item as dropped.

    `epoch` is the epoch of an item that another process dropped.
    """
    _note(error, stage, f"Item: {item}", *_advice(error))
    log_failure(stage, error, item)
    count_dropped(stage, error, item, epoch)


def _advice(error: BaseException) -> list[str]:
    """Returns advice for a broken process pool."""
    # The module is not imported here: this exception exists only if another module has imported it.
    pools = sys.modules.get("concurrent.futures.process")
    return [_BROKEN_POOL] if pools and isinstance(error, pools.BrokenProcessPool) else []


def stage_failed(error: BaseException, stage: str) -> None:
    """Reports that a source, a router or the end of an epoch failed. The native module calls this."""
    if isinstance(error, (Cancelled, ProcessExit, FatalStageError)):
        return
    if isinstance(error, PipelineFailure) and error._is_reported:
        return
    shorten(error)
    _note(error, stage)
    log_failure(stage, error)


def _unwrapped(stage: str, error: Exception) -> tuple[str, Exception]:
    return (error.stage, error.error) if isinstance(error, FatalStageError) else (stage, error)


def from_native(errors: list[tuple[str | None, Exception, str]]) -> PipelineFailure:
    """Makes the failure of a pipeline from stages, exceptions and the messages of the engine."""
    for _, error, message in errors:
        # The native module restored the traceback of each exception.
        shorten(error)
        budget, separator, _ = message.partition("; first failures: ")
        if separator and not isinstance(error, TooManyFailuresError):
            _add_notes(error, f"Why the pipeline ends: {budget}")
    return PipelineFailure(_flat([_unwrapped(stage or "", error) for stage, error, _ in errors]))


def _flat(errs: list[tuple[str, Exception]]) -> list[tuple[str, Exception]]:
    """Replaces failures of internal parts by the exceptions that they contain."""
    flat: list[tuple[str, Exception]] = []
    for stage, error in errs:
        if isinstance(error, PipelineFailure) and error._is_reported:
            flat.extend(stages_and_errors(error))
        else:
            flat.append((stage, error))
    return flat


def with_others(
    failure: PipelineFailure | None, others: Sequence[tuple[str, Exception]]
) -> PipelineFailure | None:
    """Adds exceptions of hooks, queues and background tasks to the failure of a pipeline."""
    known = [] if failure is None else list(failure.exceptions)
    more = [pair for pair in others if not any(pair[1] is error for error in known)]
    if not more:
        return failure
    return PipelineFailure([*([] if failure is None else stages_and_errors(failure)), *more])


def stages_and_errors(failure: PipelineFailure) -> list[tuple[str, Exception]]:
    """Returns the arguments from which a `PipelineFailure` was made."""
    return list(zip(stages_of(failure), failure.exceptions, strict=True))


def add_context(error: BaseException, note: str) -> None:
    """Adds a note to an exception."""
    _add_notes(error, note)
