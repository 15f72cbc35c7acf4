"""Pipelines as data: configurations, and functions that create them.

| file | content |
|---|---|
| `_configs` | configurations of sources, stages, sinks and whole pipelines |
| `_factories` | `Pipe`, `Aggregate`, `Disaggregate`, `Merge`, `Zip`, `PathVariants` |
| `_aggregators` | `Aggregator`, `Collate`, `Bucket` |
| `_executors` | configurations of executors, and where stages run |
| `_retry` | `Retry` |
| `_native` | which stages run in Rust |
| `_ops` | kinds and names of functions |
| `_checks` | checks of arguments |
| `_stage_info` | `StageInfo` |

>>> from spdl_rs.pipeline import build_pipeline
>>> from spdl_rs.pipeline.defs import Aggregate, Merge, Pipe, PipelineConfig
>>> from spdl_rs.pipeline.defs import SinkConfig, SourceConfig
>>> def numbers(*source):
...     return PipelineConfig(SourceConfig(source), [Pipe(str)], SinkConfig(2))
>>> config = PipelineConfig(Merge([numbers(1), numbers(2)]), [Aggregate(2)], SinkConfig(1))
>>> print(config)
PipelineConfig
 - Source: MergeConfig(
     Pipeline 1:
       PipelineConfig
        - Source: SourceConfig(source=(1,))
        - Pipes:
          - str(concurrency=1)
        - Sink: SinkConfig(buffer_size=2)
     Pipeline 2:
       PipelineConfig
        - Source: SourceConfig(source=(2,))
        - Pipes:
          - str(concurrency=1)
        - Sink: SinkConfig(buffer_size=2)
   )
 - Pipes:
   - aggregate(Collate(2))
 - Sink: SinkConfig(buffer_size=1)
>>> [sorted(batch) for batch in build_pipeline(config, num_threads=1)]
[['1', '2']]
"""

from ._aggregators import Aggregator, Bucket, Collate
from ._configs import (
    AggregateConfig,
    DisaggregateConfig,
    MergeConfig,
    PathVariantsConfig,
    PipeConfig,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
    ZipConfig,
)
from ._executors import (
    MAIN_PROCESS,
    ExecutorConfig,
    _MainProcess,  # noqa: F401  (programs for SPDL import the type of MAIN_PROCESS)
    InterpreterPoolExecutorConfig,
    PlacementConfig,
    ProcessPoolExecutorConfig,
)
from ._factories import Aggregate, Disaggregate, Merge, PathVariants, Pipe, Zip
from ._retry import Retry

__all__ = [
    "MAIN_PROCESS",
    "Aggregate",
    "AggregateConfig",
    "Aggregator",
    "Bucket",
    "Collate",
    "Disaggregate",
    "DisaggregateConfig",
    "ExecutorConfig",
    "InterpreterPoolExecutorConfig",
    "Merge",
    "MergeConfig",
    "PathVariants",
    "PathVariantsConfig",
    "Pipe",
    "PipeConfig",
    "PipelineConfig",
    "PlacementConfig",
    "ProcessPoolExecutorConfig",
    "Retry",
    "SinkConfig",
    "SourceConfig",
    "Zip",
    "ZipConfig",
]
