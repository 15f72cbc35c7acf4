"""Generates upstream_dataloader.json: the results of upstream's DataLoader.

    python -m venv venv && venv/bin/pip install spdl==0.8.0
    venv/bin/python spdl-python/tests/golden/make_upstream_dataloader.py

Run with spdl 0.8.0, Python 3.11. The tests import `loader`, and call it with this package's class.
"""

import functools
import itertools
import json
import logging
import operator
import pathlib

from spdl.dataloader import DataLoader

HERE = pathlib.Path(__file__).parent

ARGUMENTS = {
    "items": [0, 1, 7, 12],
    "batch_size": [None, 1, 3],
    "drop_last": [False, True],
    "preprocessor": [None, "divide", "filter"],
    "aggregator": [False, True],
    "transfer_fn": [False, True],
}


def divide(number):
    return 12 // (number - 5)


def keep_odd(number):
    return number if number % 2 else None


def text(batch):
    # Upstream treats `str` itself as indexable.
    return str(batch)


def loader(load, items, preprocessor, aggregator, transfer_fn, **arguments):
    functions = {None: None, "divide": divide, "filter": keep_odd}
    return load(
        list(range(items)),
        preprocessor=functions[preprocessor],
        aggregator=text if aggregator else None,
        transfer_fn=functools.partial(operator.mul, 2) if transfer_fn else None,
        num_threads=2,
        output_order="input",
        **arguments,
    )


if __name__ == "__main__":
    logging.disable()
    rows = []
    for values in itertools.product(*ARGUMENTS.values()):
        arguments = dict(zip(ARGUMENTS, values, strict=True))
        rows.append({"arguments": arguments, "batches": list(loader(DataLoader, **arguments))})
    text = ",\n".join(json.dumps(row) for row in rows)
    (HERE / "upstream_dataloader.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
