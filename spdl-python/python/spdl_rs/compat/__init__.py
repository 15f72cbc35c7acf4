"""Programs written for SPDL run as they are: `import spdl` gives this package.

```python
import spdl_rs.compat

spdl_rs.compat.install()

from spdl.pipeline import PipelineBuilder  # that of spdl_rs
```

Or from outside, with the program untouched: `python -m spdl_rs.compat train.py --epochs 3`.

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

It holds for the process that calls it, and for those it forks. One that is spawned imports the
program's main module anew: what it imports must call `install`, too.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

__all__ = ["install", "is_installed", "uninstall"]

_UPSTREAM = "spdl"
_OURS = "spdl_rs"

_lock = threading.Lock()
# What `install(force=True)` has put aside.
_set_aside: dict[str, ModuleType] = {}


def install(*, force: bool = False) -> None:
    """Makes `import spdl`, `import spdl.pipeline` and so on give the modules of `spdl_rs`.

    They are the same modules, so that their classes are the same, too. Calling it again changes
    nothing.

    Args:
        force: Whether to do it also where SPDL itself is installed or was imported. Modules that
            have imported it keep what they have.

    Raises:
        RuntimeError: SPDL is installed or was imported, and `force` is not set.
    """
    with _lock:
        if is_installed():
            return
        theirs = {name: module for name, module in sys.modules.items() if _is_below(name)}
        if not force:
            _refuse(theirs)
        for name in theirs:
            del sys.modules[name]
        _set_aside.update(theirs)
        sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Undoes `install`: `import spdl` gives what it would give without. Names that were imported
    stay. Does nothing where it was not called.
    """
    with _lock:
        if not is_installed():
            return
        sys.meta_path.remove(_FINDER)
        for name in [name for name in sys.modules if _is_below(name)]:
            del sys.modules[name]
        sys.modules.update(_set_aside)
        _set_aside.clear()


def is_installed() -> bool:
    """Whether `import spdl` gives this package.

    >>> import spdl_rs.compat
    >>> spdl_rs.compat.is_installed()
    False
    """
    return _FINDER in sys.meta_path


def _is_below(name: str) -> bool:
    return name == _UPSTREAM or name.startswith(f"{_UPSTREAM}.")


def _refuse(imported: dict[str, ModuleType]) -> None:
    if imported:
        raise RuntimeError(
            f"SPDL itself was imported ({', '.join(sorted(imported)[:3])}); install() comes before "
            "that, or takes its place with force=True"
        )
    spec = importlib.util.find_spec(_UPSTREAM)
    if spec is not None:
        at = spec.origin or ", ".join(spec.submodule_search_locations or ()) or "an import hook"
        raise RuntimeError(
            f"SPDL itself is installed ({at}); uninstall it, or put spdl_rs in its place with "
            "force=True"
        )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `spdl.…`, and loads `spdl_rs.…` for it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not _is_below(fullname):
            return None
        ours = _OURS + fullname[len(_UPSTREAM) :]
        spec = importlib.util.find_spec(ours)
        if spec is None:
            # Programs ask for modules that there may be; importing one that there is not fails.
            return None
        is_package = spec.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, origin=ours, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None and spec.origin is not None, "find_spec has made it"
        # Whoever imports takes what stands here.
        sys.modules[spec.name] = importlib.import_module(spec.origin)


_FINDER = _Finder()
