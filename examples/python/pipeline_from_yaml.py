"""Builds a pipeline from a YAML configuration with Hydra, so that settings change without code.

    python examples/python/pipeline_from_yaml.py
    python examples/python/pipeline_from_yaml.py workers=4 batch_size=3 pipeline.sink.buffer_size=8

Requires `spdl-rs` and `hydra-core`.

Each `_target_` names a class or function. `_partial_: true` passes the function itself, not its
result. Values such as `${batch_size}` refer to other settings. In a program with several
configurations, write the text below into files, and load it with `@hydra.main`.
"""

from __future__ import annotations

import argparse
import zlib

from hydra.utils import instantiate
from omegaconf import OmegaConf

CONFIGURATION = """
workers: 2
batch_size: 4
numbers: 10
pipeline:
  _target_: spdl_rs.pipeline.defs.PipelineConfig
  src:
    _target_: spdl_rs.pipeline.defs.SourceConfig
    source: {_target_: builtins.range, _args_: ["${numbers}"]}
  pipes:
    - _target_: spdl_rs.pipeline.defs.Pipe
      _args_: [{_target_: __main__.checksum, _partial_: true}]
      concurrency: ${workers}
      output_order: input
    - _target_: spdl_rs.pipeline.defs.Aggregate
      _args_: ["${batch_size}"]
  sink: {_target_: spdl_rs.pipeline.defs.SinkConfig, buffer_size: 2}
build:
  _target_: spdl_rs.pipeline.build_pipeline
  _args_: ["${pipeline}"]
  num_threads: ${workers}
"""


def checksum(number: int) -> int:
    return zlib.crc32(str(number).encode()) % 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("changes", nargs="*", help="settings, such as batch_size=3")
    changes = OmegaConf.from_dotlist(parser.parse_args().changes)
    settings = OmegaConf.merge(OmegaConf.create(CONFIGURATION), changes)
    pipeline = instantiate(settings.build, _convert_="all")
    print(pipeline)
    with pipeline.auto_stop():
        for batch in pipeline:
            print(batch)


if __name__ == "__main__":
    main()
