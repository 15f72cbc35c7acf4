"""Checkpoint states of `ImageLoader`: JSON in the native module, `dict` for users."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from . import _spdl_rs

_LOADER = "spdl_rs.ImageLoader"


def to_dict(text: str | None) -> dict[str, Any]:
    """Converts a state of the native module to a `dict` that names its loader class."""
    if text is None:
        raise RuntimeError("the epoch has not started, so it has no state")
    return {"loader": _LOADER, **json.loads(text)}


def combined(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combines the states of all ranks into one state."""
    return to_dict(_spdl_rs.Epoch.combined([to_text(state) for state in states]))


def to_text(state: Mapping[str, Any]) -> str:
    """Converts a state from a `dict` to the JSON of the native module."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be the dict that state_dict() returns, not {type(state).__name__}"
        )
    loader = state.get("loader")
    if loader != _LOADER:
        raise ValueError(f"not a state of an ImageLoader: the value of its key 'loader' is {loader!r}")
    try:
        return json.dumps({name: value for name, value in state.items() if name != "loader"})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a state of an ImageLoader: {error}") from None
