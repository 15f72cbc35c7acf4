"""Regions: stages of a pipeline that run in worker processes (`PipelineBuilder.to`).

| file | content |
|---|---|
| `regions` | divides a pipeline at its regions; exchanges items with the worker processes |
| `worker` | what a worker process runs |
| `failure_budget` | one failure budget for all parts of a pipeline |

May import: `_failures`, `defs`, `_hooks`, `_processes`, `_event_loop`, `_run`.
"""
