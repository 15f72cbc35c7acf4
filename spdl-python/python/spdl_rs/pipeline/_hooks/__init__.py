"""Extension points: classes that users subclass, and helpers for coroutines.

| file | content |
|---|---|
| `task_hooks` | `TaskHook`, `TaskStatsHook`; checks of hooks when a pipeline is built |
| `queues` | `AsyncQueue`, `StatsQueue` |
| `markers` | end-of-data and end-of-epoch markers in queues |
| `background` | `BackgroundTask` |
| `process_group` | `ProcessGroupStatsMonitor`, and resource usage read from `/proc` |
| `profile_hook` | `ProfileHook` |
| `tasks` | `create_task`, and a coroutine that is called periodically |
| `durations` | a log-linear histogram of durations |

`queues`, `process_group` and `tasks` need asyncio; `spdl_rs.pipeline` imports them lazily.
May import: `_failures`, `defs`.
"""
