"""Helpers that upstream SPDL keeps in its module of the same name."""

from .usage import log_api_usage_once

__all__ = ["log_api_usage_once"]
