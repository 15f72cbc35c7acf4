"""Measures the rate of `ImageLoader` or `Loader` over a folder, and the time from import to first batch."""

import time

START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import resource  # noqa: E402

import spdl_rs  # noqa: E402

SIZE, BATCH = 224, 32


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def make(kind, data):
    if kind == "ImageLoader":
        return spdl_rs.ImageLoader(data, batch_size=BATCH, size=SIZE)
    # Functions that do nothing.
    functions = {"map": {"map": lambda sample: sample}, "batch_map": {"batch_map": lambda batch: batch}}
    image, label = spdl_rs.fields.Image(SIZE), spdl_rs.fields.Label()
    given = functions.get(kind, {})
    return spdl_rs.Loader(
        data, batch_size=BATCH, output="tuple", image=image, label=label, **given
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--loader", choices=["ImageLoader", "Loader", "batch_map", "map"], default="ImageLoader")
    options = parser.parse_args()
    loader = make(options.loader, options.data)
    since_start, first, images, total = None, None, 0, 0
    cpu, own, start = cpu_seconds(), time.thread_time(), time.perf_counter()
    for _ in range(options.epochs):
        for batch, labels in loader:
            if first is None:
                first, since_start = time.perf_counter() - start, time.perf_counter() - START
            assert batch.shape[1:] == (SIZE, SIZE, 3) and len(labels) == len(batch)
            images += len(batch)
            # Reads one pixel of each image as a cheap check.
            total += int(batch[:, SIZE // 2, SIZE // 2].sum())
    seconds, own = time.perf_counter() - start, time.thread_time() - own
    report = {
        "images": images,
        "seconds": seconds,
        "cpu_s_per_1000": (cpu_seconds() - cpu) * 1000 / images,
        "first_batch_ms": 1000 * first,
        "main_thread_us": own * 1e6 / images,
        "import_to_first_batch_ms": 1000 * since_start,
        "mean_centre": total / (3 * images),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
