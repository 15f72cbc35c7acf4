"""What SPDL's own modules share, under its name there."""

from .usage import log_api_usage_once

__all__ = ["log_api_usage_once"]
