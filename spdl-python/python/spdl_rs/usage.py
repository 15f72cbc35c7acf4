"""Which parts of this package a program uses, for those who want to know it of their own programs.

Nothing is recorded, written or sent anywhere. A function of yours may be told:

>>> from spdl_rs import usage
>>> from spdl_rs.pipeline import PipelineBuilder
>>> usage.set_hook(lambda name, metadata: print("used:", name))
>>> builders = [PipelineBuilder(), PipelineBuilder()]
used: spdl_rs.pipeline.PipelineBuilder
>>> usage.set_hook(None)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Hook", "log_api_usage_once", "set_hook"]

Hook: TypeAlias = Callable[[str, "str | None"], object]

_LOGGER = logging.getLogger("spdl_rs")

_lock = threading.Lock()
_hook: Hook | None = None
_told: set[str] = set()


def set_hook(hook: Hook | None) -> None:
    """Sets what is told of each part that this process uses, the first time from now on.

    Args:
        hook: Is called with a name, such as `spdl_rs.pipeline.PipelineBuilder`, and what else there is
            to say of it, or `None`. What it raises is logged. `None`: nobody is told, and nothing is
            remembered.
    """
    global _hook
    with _lock:
        _hook = hook
        _told.clear()


def log_api_usage_once(name: str, *, metadata: str | None = None) -> None:
    """Tells the hook, where there is one, that a part is used, unless it has been told."""
    if _hook is None:
        return
    with _lock:
        hook = _hook
        if hook is None or name in _told:
            return
        _told.add(name)
    try:
        hook(name, metadata)
    except Exception:
        _LOGGER.exception("the hook of spdl_rs.usage failed on %s", name)
