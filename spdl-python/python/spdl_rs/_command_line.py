"""The command `spdl` of the package, which is also `python -m spdl_rs`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from . import _spdl_rs


def main() -> NoReturn:
    """Runs the program with the arguments of `sys.argv`, and exits with its code."""
    settings = dict(_spdl_rs.allocator_settings())
    if settings:
        # The allocator reads them only at the start of a process.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **settings})
    # Ctrl-C ends the program immediately.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_spdl_rs.run_command_line([os.fsencode(text) for text in ["spdl", *sys.argv[1:]]]))
