"""Writes the samples of the task `packing` of `cargo xtask bench recipes`: lists of tokens of log-normal lengths.

Usage: token_data.py OUT. `OUT/tokens.arrow` has one column, `tokens`: `int32` from 1 to 49,999.
"""

import os
import sys

import numpy as np
import pyarrow

import common

SAMPLES = 50_000
MEDIAN = 192


def main(out):
    path = os.path.join(out, "tokens.arrow")
    if os.path.exists(path):
        return
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(MEDIAN), 1, SAMPLES), 1, common.CAPACITY).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = draw.integers(1, 50_000, offsets[-1], dtype=np.int32)
    table = pyarrow.table({"tokens": pyarrow.ListArray.from_arrays(offsets, tokens)})
    os.makedirs(out, exist_ok=True)
    with pyarrow.ipc.new_file(path + ".partial", table.schema) as file:
        file.write_table(table)
    os.replace(path + ".partial", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
