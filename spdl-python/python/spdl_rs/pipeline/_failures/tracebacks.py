"""Tracebacks without the frames by which a pipeline gets to the user's functions."""

from __future__ import annotations

import os
import sysconfig
import types

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What runs functions of the user's. Other parts of the package are what they call.
_OURS = tuple(os.path.join(_PACKAGE, part) + os.sep for part in ("pipeline", "dataloader", "torch"))
_STANDARD = sysconfig.get_path("stdlib")
# What those use of the standard library.
_BETWEEN = tuple(
    os.path.join(_STANDARD, part)
    for part in ("concurrent" + os.sep, "asyncio" + os.sep, "contextlib.py")
)


def shorten(error: BaseException) -> None:
    """Takes the frames of this package, and of what it uses to wait, off the beginning of a traceback.

    What is left begins in a function of the user's. A traceback that is all ours stays as it is: then
    it is we who failed. But it goes where it tells nothing: where the cause has one that does, or
    where the exception says by `tells_all` that its words are enough.
    """
    first = _first_of_the_users(error.__traceback__)
    if first is not None or error.__cause__ is not None or getattr(error, "tells_all", False):
        error.__traceback__ = first


def _first_of_the_users(traceback: types.TracebackType | None) -> types.TracebackType | None:
    is_ours = False
    while traceback is not None:
        place = traceback.tb_frame.f_code.co_filename
        # Before the first frame of ours, the standard library's are not of our making.
        if place.startswith(_OURS):
            is_ours = True
        elif not (is_ours and place.startswith(_BETWEEN)):
            return traceback
        traceback = traceback.tb_next
    return None
