"""Checkpoint states of the loaders: JSON in the native module, `dict` for users."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from . import _arguments as check
from . import _spdl_rs


def to_dict(loader: str, text: str | None) -> dict[str, Any]:
    """Converts a state of the native module to a `dict` that names its loader class."""
    if text is None:
        raise RuntimeError("the epoch has not started, so it has no state")
    return {"loader": f"spdl_rs.{loader}", **json.loads(text)}


def combined(
    loader: str, states: Iterable[Mapping[str, Any]], repeat_parts: bool
) -> dict[str, Any]:
    """Combines the states of all ranks into one state."""
    texts = [to_text(loader, state) for state in states]
    return to_dict(loader, _spdl_rs.Epoch.combined(texts, loader, check.flag("repeat_parts", repeat_parts)))


def to_text(loader: str, state: Mapping[str, Any]) -> str:
    """Converts a state from a `dict` to the JSON of the native module."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be the dict that state_dict() returns, not {type(state).__name__}"
        )
    found = state.get("loader")
    if found != f"spdl_rs.{loader}":
        raise ValueError(
            f"not a state of {with_article(loader)}: the value of its key 'loader' is {found!r}"
        )
    try:
        return json.dumps({name: value for name, value in state.items() if name != "loader"})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a state of {with_article(loader)}: {error}") from None


def with_article(loader: str) -> str:
    """Returns the name of a class with its indefinite article."""
    return f"{'an' if loader[0] in 'AEIOU' else 'a'} {loader}"
