"""Worker processes, and the transfer of items and exceptions between processes.

| file | content |
|---|---|
| `worker_process` | a child process with a duplex pipe; either process notices the end of the other |
| `iterate` | `iterate_in_subprocess` |
| `priority_executor` | executors that several stages share, with priorities |
| `arena` | shared memory for large items: a ring buffer, a segment pool |
| `shared_memory` | anonymous memory that two processes share |
| `payloads` | pickling of items without their large buffers |
| `remote_errors` | exceptions with their types and tracebacks, sent between processes |
| `random_state` | states of random number generators, sent to child processes |
| `exit` | the end of this process: stops pipelines before the interpreter finalizes |
| `suspend` | suspends threads whose functions still run at the end of the process |

Except for `exit`, no file depends on pipelines. May import: `_failures`, `_hooks`, `defs`.
"""
