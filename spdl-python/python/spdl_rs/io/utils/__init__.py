"""Tracing, and the versions of FFmpeg. Tracing records when and on which thread each item and event ran, for viewers such as Perfetto.

>>> import json
>>> from spdl_rs.io.utils import trace_event, tracing
>>> with tracing("trace.json"):
...     with trace_event("step"):
...         pass
>>> with open("trace.json") as file:
...     print([event["name"] for event in json.load(file) if event["ph"] == "X"])
['step']
"""

from typing import TYPE_CHECKING

from ... import _spdl_rs
from .. import _missing_names
from ._tracing import trace_counter, trace_event, trace_gc, tracing

__all__ = ["get_ffmpeg_versions", "trace_counter", "trace_event", "trace_gc", "tracing"]


def get_ffmpeg_versions() -> dict[str, tuple[int, int, int]]:
    """The versions of the linked libraries of FFmpeg by name; empty if `spdl_rs` was built without FFmpeg.

    Without FFmpeg, videos cannot be decoded: see `fields.Video`.

    >>> from spdl_rs.io.utils import get_ffmpeg_versions
    >>> versions = get_ffmpeg_versions()
    >>> not versions or versions["libavcodec"] >= (59, 0, 0)
    True
    """
    return dict(_spdl_rs.ffmpeg_versions())

if not TYPE_CHECKING:

    def __getattr__(name):
        _missing_names.refuse(__name__, name, _missing_names.UTILITIES)
