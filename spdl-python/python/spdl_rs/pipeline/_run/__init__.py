"""A pipeline that runs in this process.

| file | content |
|---|---|
| `pipeline` | `Pipeline`: start, iteration, stop |
| `options` | checked build options, and the defaults of this process |
| `assembly` | the native graph of a pipeline, and the threads that it needs |
| `executors` | stages on a `concurrent.futures.Executor` |
| `items` | iterators over items and epochs |
| `segments` | pipelines divided at Python queues: custom queues and merge functions |
| `instrumentation` | hooks, queues and reports of one pipeline |
| `reporting` | periodic statistics for the log and for `StatsQueue` |
| `results` | checks of the results of functions |
| `supervised_run` | a run that ends together with its event loop |

May import: `_failures`, `defs`, `_hooks`, `_processes`, `_event_loop`.
"""
