"""The state of an `ImageLoader`: JSON to the native module, a `dict` to users."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from . import _spdl_rs

_LOADER = "spdl_rs.ImageLoader"


def to_dict(text: str | None) -> dict[str, Any]:
    """What the native module tells, and whose it is."""
    if text is None:
        raise RuntimeError("this epoch was not begun, and so has no state")
    return {"loader": _LOADER, **json.loads(text)}


def combined(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of those of all ranks."""
    return to_dict(_spdl_rs.Epoch.combined([to_text(state) for state in states]))


def to_text(state: Mapping[str, Any]) -> str:
    """What the native module takes."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be the dict that state_dict() gives, not {type(state).__name__}"
        )
    loader = state.get("loader")
    if loader != _LOADER:
        raise ValueError(f"this is no state of an ImageLoader: its loader is {loader!r}")
    try:
        return json.dumps({name: value for name, value in state.items() if name != "loader"})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is no state of an ImageLoader: {error}") from None
