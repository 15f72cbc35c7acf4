"""Helpers for tests of pipelines."""

import asyncio
import contextlib
import os
import statistics
import threading
import time

import pytest
from spdl_rs.pipeline import PipelineBuilder


def source(items=range(5), **options):
    return PipelineBuilder().add_source(items, **options)


def build(builder, *, buffer_size=3, num_threads=2, **options):
    return builder.add_sink(buffer_size).build(num_threads=num_threads, **options)


def run(builder, **options):
    """Returns all items of a pipeline; each must arrive within 60 s."""
    pipeline = build(builder, **options)
    with pipeline.auto_stop():
        return list(pipeline.get_iterator(timeout=60))


def identity(item):
    return item


async def identity_async(item):
    await asyncio.sleep(0)
    return item


def twice(item):
    yield item
    yield item


async def twice_async(item):
    yield item
    yield item


def refuse(item):
    raise ValueError(f"no {item!r}")


def refuse_odd(item):
    return refuse(item) if item % 2 else item


def threads():
    # `enumerate` lists threads whose start was interrupted forever; they have no `ident`.
    there = (thread for thread in threading.enumerate() if thread.ident is not None)
    return sorted(thread.name for thread in there if "spdl" in thread.name)


def load_per_cpu():
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def soon_s():
    """Seconds within which processes end: 2.5, and more if other programs use the CPUs.

    The promise is 1 s, which `assert_median_end_within_1_s` checks. Processes that wait for the system's default
    time-outs need more than 2.5 s.
    """
    return 2.5 * min(4.0, max(1.0, load_per_cpu()))


def wait_until(condition, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# The name of the test, seconds, and load average per CPU of each end that `assert_soon_after` measured.
ENDS = []


def assert_soon_after(begin, what, within_s=None):
    """Checks that the Unix time `begin`, which any process may have printed, was at most `soon_s()` ago."""
    elapsed = time.time() - float(begin)
    ENDS.append((running_test().partition("[")[0], elapsed, load_per_cpu()))
    assert elapsed <= (within_s or soon_s()), f"{what} took {elapsed:.2f} s"


def running_test():
    """The file and name of the running test."""
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]


def assert_median_end_within_1_s():
    """Checks the median time of the ends that each earlier test of the running test's file measured.

    On a busy machine, the times are not those of this project: only ends at a load average below 1 per CPU count,
    unless SPDL_CHECK_TIMES is 1.
    """
    always, file = os.environ.get("SPDL_CHECK_TIMES") == "1", running_test().partition("::")[0]
    times = {}
    for test, seconds, load in ENDS:
        if test.startswith(file) and (always or load < 1):
            times.setdefault(test.partition("::")[2], []).append(seconds)
    if not times:
        pytest.skip("no process ended while the load average per CPU was below 1")
    for test, seconds in times.items():
        print(f"{test}: median {statistics.median(seconds):.3f} s, maximum {max(seconds):.3f} s of {len(seconds)}")
    late = {test: sorted(seconds) for test, seconds in times.items() if statistics.median(seconds) >= 1}
    assert not late, late


def assert_no_threads():
    wait_until(lambda: not threads())


class Counter:
    """Counts calls, and the maximum number of concurrent calls."""

    def __init__(self, seconds=0.0):
        self.seconds, self.now, self.most, self.calls = seconds, 0, 0, 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _counted(self):
        with self._lock:
            self.now, self.calls = self.now + 1, self.calls + 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1

    def __call__(self, item):
        with self._counted():
            time.sleep(self.seconds)
            return item
