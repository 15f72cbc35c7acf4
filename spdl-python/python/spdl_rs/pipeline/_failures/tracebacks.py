"""Removal of this package's frames from tracebacks."""

from __future__ import annotations

import os
import sysconfig
import types

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Parts of the package that call functions of users. Users call the other parts.
_CALLERS = tuple(
    os.path.join(_PACKAGE, part) + os.sep for part in ("pipeline", "dataloader", "torch")
)
_STANDARD = sysconfig.get_path("stdlib")
# Parts of the standard library that the parts above use.
_BETWEEN = tuple(
    os.path.join(_STANDARD, part)
    for part in ("concurrent" + os.sep, "asyncio" + os.sep, "contextlib.py")
)


def shorten(error: BaseException) -> None:
    """Removes frames of this package, and of its executors and event loops, from a traceback.

    The result starts in a function of the user. A traceback that contains only frames of this package is kept,
    unless the exception has a cause with a traceback or the attribute `_traceback_is_redundant`.
    """
    first = _first_user_frame(error.__traceback__)
    if first is not None or error.__cause__ is not None or getattr(error, "_traceback_is_redundant", False):
        error.__traceback__ = first


def _first_user_frame(traceback: types.TracebackType | None) -> types.TracebackType | None:
    in_package = False
    while traceback is not None:
        place = traceback.tb_frame.f_code.co_filename
        # Standard library frames before the package's first frame belong to the caller.
        if place.startswith(_CALLERS):
            in_package = True
        elif not (in_package and place.startswith(_BETWEEN)):
            return traceback
        traceback = traceback.tb_next
    return None
