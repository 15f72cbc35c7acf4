"""What users are told of failures: the log, notes on exceptions, and `PipelineFailure`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..._errors import StoppedError
from .child_process import START_UNDER_GUARD
from .item_text import describe
from .log import log_failure
from .stage_names import of_pipeline
from .tracebacks import shorten

_STAGE = "Pipeline stage: "
_WHY_BROKEN = f"What a process of the executor printed may say why. ({START_UNDER_GUARD})"

if sys.version_info >= (3, 11):

    class PipelineFailure(ExceptionGroup[Exception]):  # noqa: F821
        """One or several stages failed for good.

        `exceptions` are what was raised, of the types they had; their notes name the stage and
        the item. `except*` works with it.

        On Python 3.10 this is a `RuntimeError`, with `exceptions` all the same.

        Args:
            errs: Pairs of the name of a stage and its exception.

        >>> from spdl_rs.pipeline import PipelineFailure
        >>> failure = PipelineFailure([("0:1:decode", ValueError("no image"))])
        >>> failure.exceptions
        (ValueError('no image'),)
        """

        _stages: list[str]
        _is_of_a_part = False

        if TYPE_CHECKING:
            # That of the class above takes what `__new__` gives to it.
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
        """One or several stages failed for good.

        `exceptions` are what was raised, of the types they had; their notes name the stage and
        the item. From Python 3.11 on this is an `ExceptionGroup`.

        Args:
            errs: Pairs of the name of a stage and its exception.
        """

        exceptions: tuple[Exception, ...]
        _stages: list[str]
        _is_of_a_part = False

        def __init__(self, errs: Sequence[tuple[str, Exception]]) -> None:
            super().__init__(errs)
            self.exceptions = tuple(_noted(errs))
            self._stages = [stage for stage, _ in errs]
            self.__cause__ = self.exceptions[0]

        def __str__(self) -> str:
            return _message(self.args[0])


PipelineFailure.__module__ = "spdl_rs.pipeline"


def mark_as_of_a_part(failure: PipelineFailure) -> None:
    """Says that a failure is that of a part of a pipeline, of which users know nothing."""
    failure._is_of_a_part = True


def stages_of(failure: PipelineFailure) -> list[str]:
    """The stages in which the exceptions of a failure were raised, each `""` where unknown."""
    return failure._stages


def _message(errs: Sequence[tuple[str, Exception]]) -> str:
    stages = dict.fromkeys(stage for stage, _ in errs if stage)
    return f"the pipeline failed in {', '.join(stages)}" if stages else "the pipeline failed"


def _noted(errs: Sequence[tuple[str, Exception]]) -> list[Exception]:
    for stage, error in errs:
        _note(error, stage)
    return [error for _, error in errs]


def _note(error: BaseException, stage: str, *more: str) -> None:
    """Notes the stage on an exception, once: it may be raised again and again."""
    notes: list[str] = getattr(error, "__notes__", [])
    if stage and not any(note.startswith(_STAGE) for note in notes):
        _add_notes(error, f"{_STAGE}{stage}", *more)


def _add_notes(error: BaseException, *notes: str) -> None:
    # `add_note` came with Python 3.11; an exception with slots takes no notes before.
    try:
        error.__notes__ = [*getattr(error, "__notes__", []), *notes]  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        pass


class Cancelled(StoppedError):
    """The pipeline was stopped before the executor began with this."""


class EndsPipeline(Exception):
    """What a stage raises instead of `error`, where that ends the pipeline whatever its budget.
    Whoever raises it has it logged."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(stage, error)
        self.stage = stage
        self.error = error


def as_exception(error: BaseException) -> Exception:
    """What a `PipelineFailure` can hold: the exception, or one that says what else was raised."""
    if isinstance(error, Exception):
        return error
    told = RuntimeError(f"the code raised {type(error).__name__}, which is no Exception")
    told.__cause__ = error
    return told


Watch: TypeAlias = Callable[[BaseException, str, str], None]
_watches: dict[str, Watch] = {}


@contextlib.contextmanager
def watched(number: int, watch: Watch) -> Iterator[None]:
    """Tells of failed items of the pipeline with a number, instead of logging them.

    `watch` is given the exception, the stage's name without the number, and the item as a text.
    """
    _watches[str(number)] = watch
    try:
        yield
    finally:
        del _watches[str(number)]


def item_failed(error: BaseException, stage: str, item: object) -> bool:
    """Says that a stage failed on an item. The native module calls this.

    Returns:
        Whether the pipeline ends with it.
    """
    if isinstance(error, EndsPipeline):
        return True
    if isinstance(error, Cancelled):
        return False
    shorten(error)
    number, local = of_pipeline(stage)
    watch = _watches.get(number)
    if watch is None:
        tell_item_failed(error, stage, describe(item))
    else:
        watch(error, local, describe(item))
    return False


def tell_item_failed(error: BaseException, stage: str, item: str) -> None:
    """Notes and logs that a stage failed on an item, of which `item` tells."""
    _note(error, stage, f"Item: {item}", *_advice(error))
    log_failure(stage, error, item)


def _advice(error: BaseException) -> list[str]:
    """What to do about a pool of processes that has broken."""
    # Whoever has such a pool has imported it.
    pools = sys.modules.get("concurrent.futures.process")
    return [_WHY_BROKEN] if pools and isinstance(error, pools.BrokenProcessPool) else []


def stage_failed(error: BaseException, stage: str) -> None:
    """Says that a source, a router or the end of an epoch failed. The native module calls this."""
    if isinstance(error, (Cancelled, EndsPipeline)):
        return
    if isinstance(error, PipelineFailure) and error._is_of_a_part:
        # It has been told already.
        return
    shorten(error)
    _note(error, stage)
    log_failure(stage, error)


def _unwrapped(stage: str, error: Exception) -> tuple[str, Exception]:
    return (error.stage, error.error) if isinstance(error, EndsPipeline) else (stage, error)


def from_native(errors: list[tuple[str | None, Exception, str]]) -> PipelineFailure:
    """Makes the failure of a pipeline: of stages, exceptions, and what the engine says of each."""
    for _, error, said in errors:
        # The native module has given it the traceback that it had at first.
        shorten(error)
        budget, over, _ = said.partition("; the last: ")
        if over:
            _add_notes(error, f"Why the pipeline ends: {budget}")
    return PipelineFailure(_flat([_unwrapped(stage or "", error) for stage, error, _ in errors]))


def _flat(errs: list[tuple[str, Exception]]) -> list[tuple[str, Exception]]:
    """With what failed in parts of the pipeline in place of the parts' failures."""
    flat: list[tuple[str, Exception]] = []
    for stage, error in errs:
        if isinstance(error, PipelineFailure) and error._is_of_a_part:
            flat.extend(stages_and_errors(error))
        else:
            flat.append((stage, error))
    return flat


def with_others(
    failure: PipelineFailure | None, others: Sequence[tuple[str, Exception]]
) -> PipelineFailure | None:
    """The failure of a pipeline, with what failed beside its stages."""
    known = [] if failure is None else list(failure.exceptions)
    more = [pair for pair in others if not any(pair[1] is error for error in known)]
    if not more:
        return failure
    return PipelineFailure([*([] if failure is None else stages_and_errors(failure)), *more])


def stages_and_errors(failure: PipelineFailure) -> list[tuple[str, Exception]]:
    """What `PipelineFailure` was made of."""
    return list(zip(stages_of(failure), failure.exceptions, strict=True))


def add_context(error: BaseException, note: str) -> None:
    """Notes something on an exception that is raised while a pipeline is built."""
    _add_notes(error, note)
