"""Measures the cost per item of a pipeline of three empty functions (`spdl_rs` or upstream)."""

import argparse
import importlib
import json
import resource
import statistics
import time


def identity(item):
    return item


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package", choices=["spdl_rs", "spdl"])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--passes", type=int, default=5)
    options = parser.parse_args()
    builder = importlib.import_module(f"{options.package}.pipeline").PipelineBuilder
    cpu, lasted, firsts = cpu_seconds(), [], []
    for _ in range(options.passes):
        start = time.perf_counter()
        pipeline = builder().add_source(range(options.items))
        for _ in range(3):
            pipeline = pipeline.pipe(identity, concurrency=2)
        pipeline = pipeline.add_sink(64).build(num_threads=6)
        count, total, first = 0, 0, None
        with pipeline.auto_stop():
            for item in pipeline:
                if first is None:
                    first = time.perf_counter() - start
                count, total = count + 1, total + item
        lasted.append(time.perf_counter() - start)
        firsts.append(first)
        assert count == options.items and total == count * (count - 1) // 2
    report = {
        "samples": options.items,
        "seconds": statistics.median(lasted),
        "cpu_s_per_1000": (cpu_seconds() - cpu) * 1000 / (options.items * options.passes),
        "first_batch_ms": 1000 * statistics.median(firsts),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
