"""Internal helpers, in a module with the same name as in SPDL."""

from .usage import log_api_usage_once

__all__ = ["log_api_usage_once"]
