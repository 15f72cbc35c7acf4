"""Compares default settings, tuned settings and the best settings of a grid, on one workload.

Usage: tune.py WORKLOAD DATA [--server PROGRAM] [--seconds S] [--grid-seconds S] [--rounds N]

Each run takes batches without training steps, from one long epoch. Prints a JSON object: the rates of the runs in
samples per second, after `settled_s` seconds of the run. All times are in seconds.
"""

import argparse
import bisect
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time

import spdl_rs
from spdl_rs import fields, sources

# The tuner should have found its settings after this time.
SETTLED = 10.0
# The length of the interval after a time, in which the rate must be reached.
INTERVAL = 2.0
REACHED = 0.95
# Samples of an epoch: more than any run takes.
EPOCH = 500_000
SLOW_MS, FAST_MS = 80, 5
# A throttled disk: 25 MB/s, 4 ms per read.
DISK = "4 25000000"
WAIT = 0.005


class Store:
    """A server on loopback with latency, of a folder."""

    def __init__(self, program, folder, limits):
        command = [program, folder, "bucket", limits.split()[0], "0"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        os.environ |= {
            "AWS_ENDPOINT_URL": self.process.stdout.readline().strip(),
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "example",
            "AWS_SECRET_ACCESS_KEY": "nothing secret",
            "AWS_REGION": "nowhere-1",
        }
        self.limit(limits)

    def limit(self, limits):
        """Sets the latency in milliseconds, and optionally the bandwidth in bytes per second."""
        print(limits, file=self.process.stdin, flush=True)

    def close(self):
        self.process.kill()
        self.process.wait()


class Waiting:
    """Samples without files."""

    def __len__(self):
        return EPOCH

    def __getitem__(self, number):
        return {"number": number}


def wait(sample):
    time.sleep(WAIT)
    return sample


def repeated(data):
    """A source that repeats the samples of a data set."""
    count = len(spdl_rs.ImageLoader(data, batch_size=1))
    positions = list(range(count)) * (EPOCH // count)
    return sources.Source(data).where(positions[:EPOCH])


def images(source):
    return lambda **options: spdl_rs.ImageLoader(source, batch_size=16, size=224, train=True, seed=1, **options)


def videos(data):
    clip = fields.Video(112, frames=8, every=4, random=True)
    folders = [os.path.join(data, size) for size in ("360p", "1080p")]
    paths = [os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder))]
    source = sources.Source(paths).where((list(range(len(paths))) * (EPOCH // len(paths)))[: EPOCH // 10])
    return lambda **options: spdl_rs.Loader(source, batch_size=4, shuffle=True, video=clip, **options)


def functions(_):
    return lambda **options: spdl_rs.Loader(
        Waiting(), batch_size=16, number=fields.Number(), map=wait, **options
    )


# Name: the loader, the limits of the server, values of the number of threads, and of samples that are read at the same
# time; `None` is the default.
WORKLOADS = {
    "jpeg": (lambda data: images(repeated(data)), None, (1, 2, 3, 4, 8), (None, 2)),
    "store": (lambda _: images(repeated("s3://bucket/")), f"{SLOW_MS}", (1, 2, 4), (16, 32, 64, 128, 256)),
    "tar": (lambda _: images(repeated("s3://bucket/*.tar")), DISK, (1, 2, 4), (2, 8, 32)),
    "function": (functions, None, (2, 4, 8, 16, 24, 32), (None,)),
    "video": (videos, None, (1, 2, 3, 4), (None, 2)),
}


class Run:
    """The deliveries of one run: the time since its start, and the number of samples so far."""

    def __init__(self, make, seconds, at=None, then=None):
        """Calls `then` after `at` seconds."""
        self.times, self.samples, self.jumped = [0.0], [0], None
        loader = make()
        start = time.perf_counter()
        with contextlib.closing(iter(loader)) as batches:
            for batch in batches:
                now = time.perf_counter() - start
                first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
                self.times.append(now)
                self.samples.append(self.samples[-1] + len(first))
                if at is not None and self.jumped is None and now >= at:
                    then()
                    self.jumped = now
                if now >= seconds:
                    break
            self.decisions = [str(one) for one in map(shown, loader.stats()["decisions"])]

    def rate(self, begin, end):
        """Samples per second from one time to another one, both rounded to deliveries."""
        first = bisect.bisect_left(self.times, begin)
        last = min(bisect.bisect_left(self.times, end), len(self.times) - 1)
        if last <= first:
            return 0.0
        return (self.samples[last] - self.samples[first]) / (self.times[last] - self.times[first])

    def reaches(self, rate, begin=0.0):
        """The time after `begin` from which on the rate of an interval is at least `rate`; `None` if never."""
        after = [it for it in self.times if begin <= it <= self.times[-1] - INTERVAL]
        reached = (it for it in after if self.rate(it, it + INTERVAL) >= rate)
        return next((it - begin for it in reached), None)


def shown(decision):
    stage = f" of {decision['stage']}" if decision["stage"] else ""
    end = {True: "kept", False: "reset", None: "not finished"}[decision["kept"]]
    return (
        f"{decision['time_s']:.1f} s: {decision['setting']}{stage} {decision['from']} -> {decision['to']}, "
        f"{end}: {decision['reason']}"
    )


def with_settings(default, threads, in_flight):
    """The static settings of a grid point."""
    settings = json.loads(json.dumps(default))
    for name, stage in settings["stages"].items():
        if name == "fetch" and in_flight is not None:
            stage["concurrency"], stage["queue"] = in_flight, max(2 * in_flight, stage["queue"])
        elif stage.get("concurrency") == settings["threads"] and name != "fetch":
            # Each item in progress has a place in the queue.
            stage["concurrency"], stage["queue"] = threads, max(threads, stage["queue"])
    settings["threads"] = threads
    return settings


@contextlib.contextmanager
def watched(path):
    """Reads the monitor socket, as `spdl top` does."""

    def read():
        while not ended.wait(0.05):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                while connection.recv(1 << 16):
                    pass

    ended = threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(options, folder):
    loader, limits, threads, in_flight = WORKLOADS[options.workload]
    store = Store(options.server, options.data, limits) if limits else None
    make = loader(options.data)
    path = os.path.join(folder, "settings.json")

    def plain():
        return make(tune=False)

    def tuned():
        return make(tune=True)

    def static():
        return make(tune=path)

    def write(settings):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(settings, file)

    probe = plain()
    with contextlib.closing(iter(probe)) as batches:
        next(batches)
        probe.freeze(path)
    with open(path, encoding="utf-8") as file:
        default = json.load(file)

    grid = []
    for point in itertools.product(threads, in_flight):
        write(with_settings(default, *point))
        end = options.grid_seconds
        grid.append([*point, Run(static, end).rate(end / 3, end)])
    best = max(grid, key=lambda point: point[2])
    write(with_settings(default, *best[:2]))

    makes = {"off": plain, "default": make, "tuned": tuned, "best": static}
    if options.workload == "jpeg":
        monitor = os.path.join(folder, "monitor")
        makes["watched"] = lambda: make(tune=True, monitor=monitor)
    runs = {name: [] for name in makes}
    for number in range(options.rounds):
        names = list(makes)
        for name in names if number % 2 == 0 else names[::-1]:
            with watched(monitor) if name == "watched" else contextlib.nullcontext():
                runs[name].append(Run(makes[name], options.seconds))
    rates = {name: [run.rate(SETTLED, options.seconds) for run in of] for name, of in runs.items()}
    needed = REACHED * statistics.median(rates["best"])
    recovered = []
    for _ in range(options.rounds if options.workload == "store" else 0):
        store.limit(f"{FAST_MS}")
        slow = lambda: store.limit(f"{SLOW_MS}")  # noqa: E731
        run = Run(tuned, SETTLED + options.seconds, SETTLED, slow)
        recovered.append(run.reaches(needed, run.jumped))
    if store is not None:
        store.close()
    return {
        "workload": options.workload,
        "settled_s": SETTLED,
        "grid": grid,
        "best": best,
        "rates": rates,
        "reached_s": [run.reaches(needed) for run in runs["tuned"]],
        "recovered_s": recovered,
        "decisions": runs["tuned"][-1].decisions,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("data")
    parser.add_argument("--server")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--grid-seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(parser.parse_args(), folder)))


if __name__ == "__main__":
    main()
