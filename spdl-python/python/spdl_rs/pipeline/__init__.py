"""Pipelines of Python functions, run by Rust threads.

>>> from spdl_rs.pipeline import PipelineBuilder
>>> pipeline = (
...     PipelineBuilder()
...     .add_source(range(7))
...     .pipe(lambda number: number * number, output_order="input", concurrency=2)
...     .aggregate(3)
...     .add_sink()
...     .build(num_threads=2)
... )
>>> with pipeline.auto_stop():
...     for batch in pipeline:
...         print(batch)
[0, 1, 4]
[9, 16, 25]
[36]

The interface is that of SPDL. The GIL is held only inside functions of Python; every wait can be
interrupted by Ctrl-C.
"""

from .._cache_iterator import cache_iterator
from ._build import build_pipeline
from ._builder import PipelineBuilder
from ._failure import PipelineFailure
from ._markers import is_eof, is_epoch_end
from ._pipeline import Pipeline

__all__ = [
    "Pipeline",
    "PipelineBuilder",
    "PipelineFailure",
    "build_pipeline",
    "cache_iterator",
    "is_eof",
    "is_epoch_end",
]
