"""Explanations for failures of child processes: imports of the main module, exit codes."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from typing import Any

START_UNDER_GUARD = 'scripts must start processes under `if __name__ == "__main__":`'


def check_can_be_imported(context: Any) -> None:
    """Checks that child processes of this context can start.

    With all start methods except `fork`, child processes import the main module.

    Raises:
        RuntimeError: The main module was read from standard input, so it cannot be imported.
    """
    if getattr(context, "get_start_method", lambda: None)() in (None, "fork"):
        return
    # Without the attribute, as in a notebook, child processes do not import the main module.
    if getattr(sys.modules.get("__main__"), "__file__", None) == "<stdin>":
        raise RuntimeError(
            "child processes cannot import this program, because it is read from standard input; save it "
            "to a file and run the file"
        )


def with_advice(error: AttributeError) -> AttributeError:
    """Adds advice to an error of unpickling, if the name was expected in the main module."""
    words = str(error)
    if "__main__" not in words and "__mp_main__" not in words:
        return error
    # `multiprocessing` imports the main module under this name if it is a file.
    if "__mp_main__" in words:
        why = (
            'this process imported the main module without the code under `if __name__ == "__main__":`; '
            "define functions and classes above that line, or in another module"
        )
    else:
        why = (
            "this process cannot import a main module that is not a file (notebook, prompt, python -c); "
            "define functions and classes in a module and import it"
        )
    return AttributeError(f"{words}: {why}")


def exit_code_of(process: Any, timeout: float) -> int | None:
    """Waits for the end of a process. Returns its exit code, or `None` after a timeout.

    Another thread may wait for the same process: `join` then returns before the exit code is known.
    """
    deadline = time.monotonic() + timeout
    process.join(timeout)
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)
    code: int | None = process.exitcode
    return code


def exit_code_in_words(code: int, *, at_start: bool = False) -> str:
    """Describes how a process ended, for example `was killed by SIGKILL`.

    Args:
        code: The exit code of `multiprocessing`: signals are negative numbers.
        at_start: Whether the process has not sent anything yet.

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
        how += f" before its first result; its output may contain the reason. ({START_UNDER_GUARD})"
    return how
