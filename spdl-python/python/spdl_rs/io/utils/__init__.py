"""Tracing: records when and on which thread each item and event ran, for viewers such as Perfetto.

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

from .. import _missing_names
from ._tracing import trace_counter, trace_event, trace_gc, tracing

__all__ = ["trace_counter", "trace_event", "trace_gc", "tracing"]

if not TYPE_CHECKING:

    def __getattr__(name):
        _missing_names.refuse(__name__, name, _missing_names.UTILITIES)
