"""Generates upstream_cache.json: the results of upstream's cache_iterator.

    python -m venv venv && venv/bin/pip install spdl==0.8.0
    venv/bin/python spdl-python/tests/golden/make_upstream_cache.py

Run with spdl 0.8.0, Python 3.11. The file contains the first 20 items of each pass.
"""

import itertools
import json
from pathlib import Path

from spdl.pipeline import cache_iterator

cached = []
for source, num_caches, after, stop in itertools.product(
    [0, 1, 3, 10], [1, 3, 4], [None, 3, 4, 6], [None, 3, 4, 6, 17]
):
    arguments = {}
    if after is not None:
        arguments["return_caches_after"] = after
    if stop is not None:
        arguments["stop_after"] = stop
    if (after or num_caches) < num_caches or (stop or 99) < (after or num_caches):
        continue
    items = list(itertools.islice(cache_iterator(range(source), num_caches, **arguments), 20))
    row = {"source": source, "num_caches": num_caches, "arguments": arguments, "items": items}
    cached.append(row)

refused = [
    [0, {}],
    [-1, {}],
    [3, {"return_caches_after": 2}],
    [3, {"stop_after": 2}],
    [3, {"return_caches_after": 5, "stop_after": 4}],
]
for num_caches, arguments in refused:
    try:
        # Upstream validates the arguments when the first item is requested.
        next(cache_iterator(range(9), num_caches, **arguments))
    except ValueError:
        continue
    raise AssertionError(arguments)

out = Path(__file__).resolve().parent / "upstream_cache.json"
lines = ",\n  ".join(json.dumps(row) for row in cached)
out.write_text(f'{{\n"cached": [\n  {lines}\n],\n"refused": {json.dumps(refused)}\n}}\n')
