"""Command line: runs a program that is written for SPDL with `spdl_rs` instead."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import sysconfig

from . import _PATH, _remove_path, install

_USAGE = """\
usage: python -m spdl_rs.compat [--force] PROGRAM.py [ARGUMENT …]
       python -m spdl_rs.compat [--force] -m MODULE [ARGUMENT …]
       python -m spdl_rs.compat [--force] --site
       python -m spdl_rs.compat --remove

Runs a Python program in which `import spdl` returns the modules of spdl_rs. This holds also in the
processes that the program starts by multiprocessing.

  --site     write spdl_rs_compat.pth into the site-packages of this Python environment, so that
             `import spdl` works in each of its processes without this command
  --remove   remove that file
  --force    replace SPDL even if it is installed

Examples:
  python -m spdl_rs.compat train.py --epochs 3
  python -m spdl_rs.compat -m pytest tests/
  python -m spdl_rs.compat --site && torchrun --nproc-per-node 8 train.py
"""


def main(arguments: list[str]) -> int:
    force = arguments[:1] == ["--force"]
    arguments = arguments[1:] if force else arguments
    if arguments == ["--site"]:
        return _write_site_file(force)
    if arguments == ["--remove"] and not force:
        return _remove_site_file()
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


def _write_site_file(force: bool) -> int:
    # The current folder, which `python -m` puts into `sys.path`, does not belong to the environment.
    del sys.path[0]
    _remove_path()
    spec = importlib.util.find_spec("spdl")
    if spec is not None and not force:
        print(
            f"spdl_rs.compat: SPDL is installed ({spec.origin}); uninstall SPDL, or pass --force to replace "
            "SPDL in each process of this Python environment",
            file=sys.stderr,
        )
        return 1
    # Entries of `.pth` files follow site-packages, so an installed SPDL comes first without `--force`.
    line = f"import sys; sys.path.insert(0, {_PATH!r})" if force else _PATH
    path = _site_file()
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        print(f"spdl_rs.compat: cannot write {path!r}: {error}", file=sys.stderr)
        return 1
    print(
        f"wrote {path}\n`import spdl` returns the modules of spdl_rs in each new process of this Python "
        "environment; `python -m spdl_rs.compat --remove` reverts this"
    )
    return 0


def _remove_site_file() -> int:
    path = _site_file()
    try:
        os.remove(path)
    except FileNotFoundError:
        print(f"{path} does not exist: nothing to remove")
        return 0
    except OSError as error:
        print(f"spdl_rs.compat: cannot remove {path!r}: {error}", file=sys.stderr)
        return 1
    print(f"removed {path}")
    return 0


def _site_file() -> str:
    return os.path.join(sysconfig.get_path("purelib"), "spdl_rs_compat.pth")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
