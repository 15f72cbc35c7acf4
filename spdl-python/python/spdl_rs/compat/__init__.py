"""Compatibility with SPDL: `import spdl` returns the modules of `spdl_rs`.

Programs that are written for SPDL run without changes if they use only names that `spdl_rs` has.

```python
import spdl_rs.compat

spdl_rs.compat.install()

from spdl.pipeline import PipelineBuilder  # the class of spdl_rs
```

From the command line: `python -m spdl_rs.compat train.py --epochs 3`.

>>> import spdl_rs.compat
>>> spdl_rs.compat.install()
>>> import spdl.pipeline
>>> spdl.pipeline is spdl_rs.pipeline
True
>>> import spdl.pipeline.nothing
Traceback (most recent call last):
    ...
ModuleNotFoundError: No module named 'spdl.pipeline.nothing'
>>> spdl_rs.compat.uninstall()

`install` affects the calling process and the processes that it starts by `multiprocessing`, with each start
method. For other processes, such as those of `subprocess` or `torchrun`, run `python -m spdl_rs.compat --site`
once: `import spdl` then works in each process of the Python environment.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

__all__ = ["install", "is_installed", "uninstall"]

_UPSTREAM = "spdl"
_OURS = "spdl_rs"

# A folder with a package `spdl` that calls `install`. As an entry of `sys.path`, it reaches spawned processes.
_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_path")

_lock = threading.Lock()
# Modules of upstream that `install(force=True)` has removed from `sys.modules`.
_replaced: dict[str, ModuleType] = {}


def install(*, force: bool = False) -> None:
    """Makes `import spdl`, `import spdl.pipeline` and so on return the modules of `spdl_rs`.

    They are the same module objects, so classes are identical. Repeated calls have no effect.

    Args:
        force: Whether to replace SPDL even if it is installed or imported. Modules that have imported
            it keep their references.

    Raises:
        RuntimeError: SPDL is installed or imported, and `force` is `False`.
    """
    with _lock:
        if is_installed():
            return
        theirs = {name: module for name, module in sys.modules.items() if _is_below(name)}
        _remove_path()
        if not force:
            _refuse(theirs)
        for name in theirs:
            del sys.modules[name]
        _replaced.update(theirs)
        sys.meta_path.insert(0, _FINDER)
        sys.path.append(_PATH)


def uninstall() -> None:
    """Undoes `install`. Names that were imported stay bound. Has no effect without `install`."""
    with _lock:
        if not is_installed():
            return
        sys.meta_path.remove(_FINDER)
        _remove_path()
        for name in [name for name in sys.modules if _is_below(name)]:
            del sys.modules[name]
        sys.modules.update(_replaced)
        _replaced.clear()


def is_installed() -> bool:
    """Returns whether `import spdl` returns this package.

    >>> import spdl_rs.compat
    >>> spdl_rs.compat.is_installed()
    False
    """
    return _FINDER in sys.meta_path


def _remove_path() -> None:
    # In place, because other modules may have a reference to the list.
    sys.path[:] = [entry for entry in sys.path if entry != _PATH]


def _is_below(name: str) -> bool:
    return name == _UPSTREAM or name.startswith(f"{_UPSTREAM}.")


def _refuse(imported: dict[str, ModuleType]) -> None:
    if imported:
        raise RuntimeError(
            f"SPDL is already imported ({', '.join(sorted(imported)[:3])}); call install() before "
            "importing SPDL, or pass force=True to replace SPDL"
        )
    spec = importlib.util.find_spec(_UPSTREAM)
    if spec is not None:
        at = spec.origin or ", ".join(spec.submodule_search_locations or ()) or "an import hook"
        raise RuntimeError(f"SPDL is installed ({at}); uninstall SPDL, or pass force=True to replace SPDL")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `spdl.*` and loads `spdl_rs.*`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not _is_below(fullname):
            return None
        ours = _OURS + fullname[len(_UPSTREAM) :]
        spec = importlib.util.find_spec(ours)
        if spec is None:
            # The import then raises an ordinary ModuleNotFoundError.
            return None
        is_package = spec.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, origin=ours, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None and spec.origin is not None, "find_spec has made it"
        # The import system returns the entry of `sys.modules`.
        sys.modules[spec.name] = importlib.import_module(spec.origin)


_FINDER = _Finder()
