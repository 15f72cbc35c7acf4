"""Profiling: the throughput of each stage at several concurrencies.

| file | content |
|---|---|
| `profile` | `profile_pipeline` |
| `result` | `ProfileReport`, `ProfileResult`, and the advice that follows from them |
| `page` | HTML tables and plots for notebooks |
| `machine_load` | CPU load of this machine |
| `diagnostic` | the diagnostic mode, which profiles pipelines instead of running them |

May import: `_failures`, `defs`, `_hooks`, `_processes`, `_event_loop`, `_run`.
"""
