"""Opens an Arrow file of 1,000,000 rows with `Loader`, and measures the times, the rate and the copied bytes."""

import argparse
import json
import os
import resource
import time
from pathlib import Path

import pyarrow
import spdl_rs
from pyarrow import ipc

ROWS, BYTES, BATCH, BATCHES = 1_000_000, 200, 256, 400


def write(path):
    """Writes a column of `BYTES` bytes and a column of numbers in record batches of 10,000 rows."""
    payload = os.urandom(BYTES)
    schema = pyarrow.schema([("data", pyarrow.binary()), ("label", pyarrow.int64())])
    part = path.with_suffix(".part")
    with ipc.new_file(part, schema) as file:
        for start in range(0, ROWS, 10_000):
            rows = range(start, start + 10_000)
            data = pyarrow.array([row.to_bytes(8, "little") + payload[8:] for row in rows])
            file.write(pyarrow.record_batch([data, pyarrow.array(rows)], schema))
    part.rename(path)


def resident_bytes():
    """Anonymous memory: pages of the mapped file do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    path = options.folder / f"table-{ROWS}.arrow"
    if not path.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        write(path)
    fields = {"data": spdl_rs.fields.Bytes(), "label": spdl_rs.fields.Number(dtype="int64")}
    start = time.perf_counter()
    table = ipc.open_file(pyarrow.memory_map(str(path))).read_all()
    arrow, before, cpu = time.perf_counter() - start, resident_bytes(), cpu_seconds()
    start = time.perf_counter()
    loader = spdl_rs.Loader(table, fields, batch_size=BATCH, shuffle=True)
    opened = time.perf_counter() - start
    first, rows, total = None, 0, 0
    for batch, _ in zip(loader, range(BATCHES)):
        if first is None:
            first, after = time.perf_counter() - start, resident_bytes()
        for data, label in zip(batch["data"], batch["label"]):
            assert len(data) == BYTES and int.from_bytes(data[:8], "little") == label
            total += int(label)
        rows += len(batch["label"])
    seconds = time.perf_counter() - start - opened
    report = {
        "images": rows,
        "seconds": seconds,
        "cpu_s_per_1000": (cpu_seconds() - cpu) * 1000 / rows,
        "first_batch_ms": 1000 * first,
        "open_ms": 1000 * opened,
        "arrow_open_ms": 1000 * arrow,
        "copied_mb": max(after - before, 0) / 1e6,
        "mean_centre": total / rows,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
