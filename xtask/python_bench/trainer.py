"""Measures how much a loader in the same process slows down a training loop.

Each step computes in pure Python for about 5 ms (a fixed number of operations), and then sleeps for
5 ms without the GIL, as if it waited for an accelerator. The argument `beside` selects what runs at
the same time: `nothing`; a `loader` in this process, whose batches a thread consumes continuously;
or a separate `process` (`spdl bench`), which does the same work but does not use the loop's GIL.
"""

import argparse
import json
import subprocess
import threading
import time

WAIT = 0.005
OPERATIONS = 180_000


def compute():
    total = 0
    for number in range(OPERATIONS):
        total += number & 3
    return total


def loader_beside(data, stop):
    import spdl_rs

    loader = spdl_rs.ImageLoader(data, batch_size=32, size=224, threads=1)
    started, batches = threading.Event(), [0]

    def take():
        while not stop.is_set():
            for _ in loader:
                started.set()
                batches[0] += 1
                if stop.is_set():
                    return

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    started.wait()
    return thread, batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("beside", choices=["nothing", "loader", "process"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--program", help="spdl, for the process")
    options = parser.parse_args()
    stop, process, thread, batches = threading.Event(), None, None, [0]
    if options.beside == "loader":
        thread, batches = loader_beside(options.data, stop)
    elif options.beside == "process":
        words = [options.program, "bench", options.data, "--threads", "1", "--epochs", "1000"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(words, **quiet)
        time.sleep(0.5)
    for _ in range(20):
        compute()
    before, cpu, start = batches[0], time.thread_time(), time.perf_counter()
    for _ in range(options.steps):
        compute()
        time.sleep(WAIT)
    seconds = time.perf_counter() - start
    cpu, taken = time.thread_time() - cpu, batches[0] - before
    stop.set()
    if process is not None:
        process.kill()
        process.wait()
    if thread is not None:
        thread.join(10)
    report = {
        "samples": options.steps,
        "seconds": seconds,
        "cpu_s_per_1000": cpu * 1000 / options.steps,
        "first_batch_ms": 0.0,
        "images_per_s": 32 * taken / seconds,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
