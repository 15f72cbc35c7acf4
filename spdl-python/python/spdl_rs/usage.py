"""A hook that reports which classes and functions of this package a program uses.

Nothing is recorded, written or sent anywhere unless you set a hook:

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
_reported: set[str] = set()


def set_hook(hook: Hook | None) -> None:
    """Sets a function that is called at the first use of each reported class or function.

    Args:
        hook: Called with a name, such as `spdl_rs.pipeline.PipelineBuilder`, and optional metadata
            (`str` or `None`). Exceptions that it raises are logged. `None` removes the hook and forgets
            which names were reported.
    """
    global _hook
    with _lock:
        _hook = hook
        _reported.clear()


def log_api_usage_once(name: str, *, metadata: str | None = None) -> None:
    """Calls the hook with `name`, if there is a hook and it has not seen `name` before."""
    if _hook is None:
        return
    with _lock:
        hook = _hook
        if hook is None or name in _reported:
            return
        _reported.add(name)
    try:
        hook(name, metadata)
    except Exception:
        _LOGGER.exception("the hook of spdl_rs.usage failed for %s", name)
