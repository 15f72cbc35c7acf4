"""How failures are logged: with a traceback, or in one line."""

from __future__ import annotations

import logging
import os
import traceback

from ._environment import is_set

_LOGGER = logging.getLogger("spdl_rs.pipeline")

_VARIABLE = "SPDL_PIPELINE_COMPACT_LOG"
_INNERMOST = 3

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
    """Logs that something failed: `what` failed, maybe `on` something."""
    on = f" on {on}" if on else ""
    if is_compact():
        words = " ".join(str(error).split())
        name = type(error).__name__
        _LOGGER.error("%s failed%s: %s: %s (%s)", what, on, name, words, _where(error))
    else:
        _LOGGER.error("%s failed%s", what, on, exc_info=error)


def log_warning(what: str) -> None:
    """Logs what users should know of, though nothing has failed."""
    _LOGGER.warning("%s", what)


def _where(error: BaseException) -> str:
    """The innermost frames, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_INNERMOST:]
    places = [f"{os.path.basename(at.filename)}:{at.lineno}:{at.name}" for at in reversed(frames)]
    return " < ".join(places) or "no traceback"
