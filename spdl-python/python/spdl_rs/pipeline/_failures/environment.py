"""Settings from environment variables."""

from __future__ import annotations

import logging
import os

_LOGGER = logging.getLogger("spdl_rs.pipeline")

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no", ""})


def is_set(variable: str) -> bool:
    """Returns whether a variable is true. Logs a warning for values that are not boolean."""
    value = os.environ.get(variable, "").strip().lower()
    if value not in _TRUE | _FALSE:
        _LOGGER.warning("%s=%s is neither 1 nor 0; using 0", variable, value)
    return value in _TRUE


def number(variable: str, default: int) -> int:
    """Returns a variable as a positive integer, or `default`. Logs a warning for other values."""
    value = os.environ.get(variable, "").strip()
    if not value:
        return default
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    _LOGGER.warning("%s=%s is not a positive integer; using %d", variable, value, default)
    return default
