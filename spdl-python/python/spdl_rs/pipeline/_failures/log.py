"""How failures are logged: with a traceback, or in one line where it tells nothing new."""

from __future__ import annotations

import logging
import os
import traceback
from collections import OrderedDict
from typing import TypeAlias

from ..._locks import ForkSafeLock
from .environment import is_set

_LOGGER = logging.getLogger("spdl_rs.pipeline")

_VARIABLE = "SPDL_PIPELINE_COMPACT_LOG"
_INNERMOST = 3
# How many failures of one kind are logged with their tracebacks, and of how many kinds that is known.
_WITH_TRACEBACK = 3
_MOST_KINDS = 1024

_Kind: TypeAlias = "tuple[str, type[BaseException], tuple[str, int] | None]"
_counts: OrderedDict[_Kind, int] = OrderedDict()
_counts_lock = ForkSafeLock()

_compact: bool | None = None


def set_compact_log(value: bool | None) -> None:
    """Sets whether failures are logged in one line each, without a traceback.

    Args:
        value: `None` is as the environment variable `SPDL_PIPELINE_COMPACT_LOG` says, 1 or 0;
            where it is not set, with a traceback.
    """
    global _compact
    _compact = value


def is_compact() -> bool:
    """Whether failures are logged in one line each."""
    return is_set(_VARIABLE) if _compact is None else _compact


def log_failure(what: str, error: BaseException, on: str = "") -> None:
    """Logs that something failed: `what` failed, maybe `on` something.

    Where that is one item after the other, the first few have their tracebacks; those that follow
    with the same type from the same place are logged in one line each, and in full at DEBUG.
    """
    count = _counted(what, error) if on else 1
    on = f" on {on}" if on else ""
    if is_compact():
        _LOGGER.error("%s failed%s: %s", what, on, _in_one_line(error))
    elif count <= _WITH_TRACEBACK:
        _LOGGER.error("%s failed%s", what, on, exc_info=error)
    else:
        told = "%s failed%s: %s; number %d of its kind, its traceback is logged at DEBUG"
        _LOGGER.error(told, what, on, _in_one_line(error), count)
        _LOGGER.debug("%s failed%s", what, on, exc_info=error)


def log_warning(what: str) -> None:
    """Logs what users should know of, though nothing has failed."""
    _LOGGER.warning("%s", what)


def _counted(what: str, error: BaseException) -> int:
    """How often this has failed with an exception of this type in this place."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = frame.f_code.co_filename, line
    kind = (what, type(error), place)
    with _counts_lock.held():
        count = _counts.pop(kind, 0) + 1
        _counts[kind] = count
        if len(_counts) > _MOST_KINDS:
            _counts.popitem(last=False)
    return count


def _in_one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words} ({_where(error)})"


def _where(error: BaseException) -> str:
    """The innermost frames, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_INNERMOST:]
    places = [f"{os.path.basename(at.filename)}:{at.lineno}:{at.name}" for at in reversed(frames)]
    return " < ".join(places) or "no traceback"
