"""What the exit code of a process says."""

from __future__ import annotations

import contextlib
import signal

from ._main_module import START_UNDER_GUARD


def in_words(code: int, *, at_start: bool = False) -> str:
    """How a process ended: `was killed by SIGKILL`.

    Args:
        code: As `multiprocessing` has it: that of a signal is negative.
        at_start: Whether nothing came from it before.

    >>> in_words(-9)
    'was killed by SIGKILL'
    >>> in_words(3)
    'ended unexpectedly with exit code 3'
    """
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    how = f"ended unexpectedly with exit code {code}"
    if code == 1 and at_start:
        how += f", before it gave anything; what it printed says why. ({START_UNDER_GUARD})"
    return how
