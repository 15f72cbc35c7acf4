"""From a configuration to a pipeline: in this process, in regions, or in a subprocess.

| file | content |
|---|---|
| `builder` | `PipelineBuilder` |
| `build` | `build_pipeline` |
| `subprocess` | `run_pipeline_in_subprocess` |
| `executor_transfer` | replaces executors by ones that another process creates |

The highest module of `spdl_rs.pipeline`. May import all its other modules.
"""
