"""Failures as users see them: exceptions, log lines, and the names of stages in them.

| file | content |
|---|---|
| `failure` | `PipelineFailure`; notes on exceptions; what the native module calls if an item fails |
| `log` | log lines of failures: with a traceback, or compact |
| `dropped` | counts of dropped items by reason, and the warning at the end of an epoch |
| `repeated` | copies of a failure for callers after the first one |
| `tracebacks` | removal of this package's frames from tracebacks |
| `stage_names` | full and plain names of stages |
| `item_text` | a short description of an item |
| `child_process` | explanations for child processes that cannot start or that ended |
| `environment` | settings from environment variables |

The lowest module of `spdl_rs.pipeline`. May import: modules of `spdl_rs` outside `pipeline`.
"""
