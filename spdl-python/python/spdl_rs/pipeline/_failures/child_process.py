"""What another process does not find of the program's main module, and what to do about it."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any

START_UNDER_GUARD = 'a script must start processes under `if __name__ == "__main__":`'


def check_can_be_imported(context: Any) -> None:
    """Checks that processes of this context can begin: all but forks import the program anew.

    Raises:
        RuntimeError: It is no file, though Python says so: it comes from standard input.
    """
    if getattr(context, "get_start_method", lambda: None)() in (None, "fork"):
        return
    # Of what has no file at all, as of a notebook, they import nothing.
    if getattr(sys.modules.get("__main__"), "__file__", None) == "<stdin>":
        raise RuntimeError(
            "this program is read from standard input, and the processes that it starts would have to "
            "import it: put it into a file, and run that"
        )


def with_advice(error: AttributeError) -> AttributeError:
    """What pickle raises where something is not defined here, with advice where that was to be in the
    main module."""
    words = str(error)
    if "__main__" not in words and "__mp_main__" not in words:
        return error
    # By this name `multiprocessing` imports the program, if it has a file.
    if "__mp_main__" in words:
        why = (
            "this process has imported the program without what stands under "
            '`if __name__ == "__main__":`; define functions and classes above that, or in a module'
        )
    else:
        why = (
            "this process cannot import a program that is no file: a notebook, a prompt, python -c; "
            "define functions and classes in a module, and import it"
        )
    return AttributeError(f"{words}: {why}")


def exit_code_in_words(code: int, *, at_start: bool = False) -> str:
    """How a process ended: `was killed by SIGKILL`.

    Args:
        code: As `multiprocessing` has it: that of a signal is negative.
        at_start: Whether nothing came from it before.

    >>> exit_code_in_words(-9)
    'was killed by SIGKILL'
    >>> exit_code_in_words(3)
    'ended unexpectedly with exit code 3'
    """
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    how = f"ended unexpectedly with exit code {code}"
    if code == 1 and at_start:
        how += f", before it gave anything; what it printed says why. ({START_UNDER_GUARD})"
    return how
