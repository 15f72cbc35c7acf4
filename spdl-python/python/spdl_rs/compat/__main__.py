"""Command line: runs a program that is written for SPDL with `spdl_rs` instead."""

from __future__ import annotations

import os
import runpy
import sys

from . import install

_USAGE = """\
usage: python -m spdl_rs.compat [--force] PROGRAM.py [ARGUMENT …]
       python -m spdl_rs.compat [--force] -m MODULE [ARGUMENT …]

Runs a Python program in which `import spdl` returns the modules of spdl_rs.

  --force    replace SPDL even if it is installed
"""


def main(arguments: list[str]) -> int:
    force = arguments[:1] == ["--force"]
    arguments = arguments[1:] if force else arguments
    is_module = arguments[:1] == ["-m"]
    arguments = arguments[1:] if is_module else arguments
    if not arguments or arguments[0].startswith("-"):
        asked = arguments[:1] in (["-h"], ["--help"])
        print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        install(force=force)
    except RuntimeError as error:
        print(f"spdl_rs.compat: {error}", file=sys.stderr)
        return 1
    program = arguments[0]
    sys.argv = arguments
    if is_module:
        # `python -m` has already put the current folder at the front of `sys.path`.
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
