"""Log lines of failures: with a traceback, or in one line if repeated."""

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
_INNERMOST_FRAMES = 3
# The number of failures of one kind that are logged with tracebacks, and the number of known kinds.
_MAX_TRACEBACKS = 3
_MAX_KINDS = 1024

_Kind: TypeAlias = "tuple[str, type[BaseException], tuple[str, int] | None]"
_counts: OrderedDict[_Kind, int] = OrderedDict()
_counts_lock = ForkSafeLock()

_compact: bool | None = None


def set_compact_log(value: bool | None) -> None:
    """Sets whether each failure is logged in one line, without a traceback.

    Args:
        value: `None`: the environment variable `SPDL_PIPELINE_COMPACT_LOG` decides (1 or 0); if the
            variable is not set, failures are logged with tracebacks.
    """
    global _compact
    _compact = value


def is_compact() -> bool:
    """Returns whether each failure is logged in one line."""
    return is_set(_VARIABLE) if _compact is None else _compact


def log_failure(what: str, error: BaseException, on: str = "") -> None:
    """Logs that `what` failed, optionally `on` an item.

    With the compact log, each failure is logged in one line. Otherwise, the first 3 failures on items with the
    same `what`, type and line of code are logged with tracebacks. Later ones are logged in one line, and with
    tracebacks at level DEBUG. Failures without an item are always logged with tracebacks.
    """
    count = _counted(what, error) if on else 1
    on = f" on {on}" if on else ""
    if is_compact():
        _LOGGER.error("%s failed%s: %s", what, on, f"{in_one_line(error)} ({_where(error)})")
    elif count <= _MAX_TRACEBACKS:
        _LOGGER.error("%s failed%s", what, on, exc_info=error)
    else:
        message = "%s failed%s: %s; failure %d of this kind, traceback at level DEBUG"
        _LOGGER.error(message, what, on, f"{in_one_line(error)} ({_where(error)})", count)
        _LOGGER.debug("%s failed%s", what, on, exc_info=error)


def log_warning(message: str) -> None:
    """Logs a warning."""
    _LOGGER.warning("%s", message)


def _counted(what: str, error: BaseException) -> int:
    """Counts failures by stage, type, and line at which the exception was raised."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = frame.f_code.co_filename, line
    kind = (what, type(error), place)
    with _counts_lock.held():
        count = _counts.pop(kind, 0) + 1
        _counts[kind] = count
        if len(_counts) > _MAX_KINDS:
            _counts.popitem(last=False)
    return count


def in_one_line(error: BaseException) -> str:
    """Returns the type and the message of an exception in one line."""
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"
    return " ".join(f"{type(error).__name__}: {text}".split())


def _where(error: BaseException) -> str:
    """Returns the innermost frames, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_INNERMOST_FRAMES:]
    places = [f"{os.path.basename(at.filename)}:{at.lineno}:{at.name}" for at in reversed(frames)]
    return " < ".join(places) or "no traceback"
