"""Tracing, and questions to FFmpeg. Tracing records when and on which thread each item and event ran, for viewers such as Perfetto.

>>> import json
>>> from spdl_rs.io.utils import trace_event, tracing
>>> with tracing("trace.json"):
...     with trace_event("step"):
...         pass
>>> with open("trace.json") as file:
...     print([event["name"] for event in json.load(file) if event["ph"] == "X"])
['step']
"""

from ... import _spdl_rs
from ._tracing import trace_counter, trace_event, trace_gc, tracing

__all__ = [
    "built_with_cuda",
    "built_with_nvcodec",
    "built_with_nvjpeg",
    "get_ffmpeg_filters",
    "get_ffmpeg_log_level",
    "get_ffmpeg_versions",
    "set_ffmpeg_log_level",
    "trace_counter",
    "trace_event",
    "trace_gc",
    "tracing",
]


def get_ffmpeg_versions() -> dict[str, tuple[int, int, int]]:
    """The versions of the linked libraries of FFmpeg by name; empty if `spdl_rs` was built without FFmpeg.

    Without FFmpeg, videos cannot be decoded: see `fields.Video`.

    >>> from spdl_rs.io.utils import get_ffmpeg_versions
    >>> versions = get_ffmpeg_versions()
    >>> not versions or versions["libavcodec"] >= (59, 0, 0)
    True
    """
    return dict(_spdl_rs.ffmpeg_versions())


def get_ffmpeg_filters() -> list[str]:
    """The names of the filters of the linked FFmpeg, sorted; empty if `spdl_rs` was built without FFmpeg.

    >>> from spdl_rs.io.utils import get_ffmpeg_filters
    >>> filters = get_ffmpeg_filters()
    >>> not filters or "scale" in filters
    True
    """
    return _spdl_rs.ffmpeg_filters()


def get_ffmpeg_log_level() -> int:
    """How much FFmpeg writes to standard error: from -8, nothing, which is the default, to 56, everything."""
    return _spdl_rs.ffmpeg_log_level()


def set_ffmpeg_log_level(val: int, /) -> None:
    """Changes how much FFmpeg writes to standard error, in all threads. Failures are raised in any case.

    Args:
        val: -8: nothing; 16: errors; 32: information; 48: details for debugging.
    """
    _spdl_rs.set_ffmpeg_log_level(val)


def built_with_cuda() -> bool:
    """Whether CUDA can be used: `True`, because its libraries are loaded when they are needed. See
    `spdl_rs.cuda.status` for this machine."""
    return True


def built_with_nvcodec() -> bool:
    """Whether NVDEC can be used: as `built_with_cuda`."""
    return True


def built_with_nvjpeg() -> bool:
    """Whether nvJPEG can be used: as `built_with_cuda`."""
    return True
