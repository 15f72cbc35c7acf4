"""The event loop of a pipeline: coroutines of stages, hooks, queues and background tasks.

| file | content |
|---|---|
| `loop` | the thread that runs the event loop |
| `supervisor` | lifespans of hooks and queues, background tasks, coroutines submitted by threads |
| `hooked_stage` | calls of a stage's function within its hooks |

Imported lazily: a pipeline without coroutines and hooks never imports asyncio.
May import: `_failures`, `defs`, `_hooks`, `_processes`.
"""
