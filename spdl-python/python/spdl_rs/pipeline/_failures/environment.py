"""Settings by environment variables."""

from __future__ import annotations

import logging
import os

_LOGGER = logging.getLogger("spdl_rs.pipeline")

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no", ""})


def is_set(variable: str) -> bool:
    """Whether a variable says yes. What is neither yes nor no is told, and taken for no."""
    value = os.environ.get(variable, "").strip().lower()
    if value not in _TRUE | _FALSE:
        _LOGGER.warning("%s=%s is neither 1 nor 0, and taken for 0", variable, value)
    return value in _TRUE


def number(variable: str, default: int) -> int:
    """The number that a variable says, at least 1. What is none is told, and `default` taken."""
    value = os.environ.get(variable, "").strip()
    if not value:
        return default
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    _LOGGER.warning(
        "%s=%s is no number of at least 1, and %d is taken instead", variable, value, default
    )
    return default
