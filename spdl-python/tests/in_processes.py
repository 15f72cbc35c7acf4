"""Functions that tests run in other processes, in a module that is imported quickly."""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import random
import signal
import sys
import time

import numpy


class Odd(Exception):
    """An exception with state and with a constructor that has a keyword argument."""

    def __init__(self, a, b=0):
        super().__init__(a)
        self.b = b


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Disk:
    """An iterable that can be iterated repeatedly."""

    def __init__(self, items, marks=None):
        self.items, self.marks = items, marks

    def __iter__(self):
        try:
            yield from range(self.items)
        finally:
            if self.marks is not None:
                mark(self.marks, "closed")


def mark(folder, name):
    """Creates a file whose name the parent checks."""
    (pathlib.Path(folder) / name).touch()


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def numbers(count):
    return range(count)


def generated(count):
    yield from range(count)


def pids(count):
    return [os.getpid()] * count


def two_then_raise(error):
    yield 1
    yield 2
    raise error


def raise_unpicklable():
    yield 1
    raise UnpicklableError("this", "that")


def exit_with(code):
    yield 1
    os._exit(code)


def kill_oneself(*_):
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def kill_oneself_with_child(*_):
    # The child inherits all open file descriptors of this process.
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    yield child
    os.kill(os.getpid(), signal.SIGKILL)


def slow(seconds):
    yield os.getpid()
    time.sleep(seconds)
    yield "late"


def lambdas():
    yield lambda: None


def draws(_=None):
    return [random.random(), numpy.random.random(), random.random()]


def draw(item):
    return item, random.random(), float(numpy.random.random())


def arguments():
    return sys.argv


def double(item):
    return 2 * item


class FailingStrError(Exception):
    def __str__(self):
        raise KeyError("no words")


def raise_failing_str_at_3(item):
    if item == 3:
        raise FailingStrError
    return item


def refuse_3(item):
    if item == 3:
        raise LookupError(f"no {item}")
    return item


def process_and(item):
    return os.getpid(), item


def raise_here(error):
    raise error


def meet(folder, count):
    """Waits until `count` processes have called this function."""
    mark(folder, str(os.getpid()))
    deadline = time.monotonic() + 30
    while len(list(pathlib.Path(folder).iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sleep_long(item):
    time.sleep(60)
    return item


def sleep_after_3(samples):
    if samples[0] > 3:
        time.sleep(60)
    return samples[0]


def kill_oneself_at_3(item):
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def note_process(folder):
    mark(folder, str(os.getpid()))


def parity(item):
    return item % 2


def only_odd(item):
    return item if item % 2 else None


async def double_async(item):
    return 2 * item


def load_missing(item):
    import spdl_rs.io

    return spdl_rs.io.encode_image(item)


def import_missing(item):
    from spdl_rs.io import encode_image

    return encode_image(item)


async def load_missing_async(item):
    return load_missing(item)


def refuse_9(item):
    if item == 9:
        raise LookupError("no 9")
    return item


def process_and_draws(item):
    return os.getpid(), random.random(), float(numpy.random.random())


@dataclasses.dataclass
class Sample:
    pixels: object
    fields: dict


def samples(count, size):
    """Deterministic samples, which the tests create as well."""
    for number in range(count):
        pixels = numpy.full((size // 100, 100), number, numpy.uint8)
        yield Sample(pixels, {"name": f"{number}", "raw": [bytes([number]) * size]})


class Samples:
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __iter__(self):
        yield from samples(self.count, self.size)


def payloads(large):
    """Payloads of all types, all large or all small."""
    count = 10_000 if large else 10
    base = numpy.arange(count, dtype=numpy.float32)
    twice = bytes(range(250)) * (count // 250 + 1)
    return [
        {
            "bytes": twice,
            "bytearray": bytearray(twice),
            "memoryview": memoryview(twice),
            "strided view": memoryview(twice)[::2],
            "array": base,
            "2-D": base.reshape(2, -1),
            "fortran": numpy.asfortranarray(base.reshape(2, -1)),
            "strided": base[::2],
            "big endian": base.astype(">i8"),
            "structured": numpy.zeros(count, [("a", "i4"), ("b", "f8")]),
            "objects": numpy.array([None, {}] * count),
            "text": "x" * count,
            "tuple": (twice, (base, base)),
        }
    ]


def packets(paths):
    """Packets of the best streams of files, each in two forms."""
    from spdl_rs.io import demux_audio, demux_image, demux_video

    demux = {"audio": demux_audio, "image": demux_image, "video": demux_video}
    for kind, path in paths:
        yield {kind: demux[kind](path), "again": [demux[kind](path)]}


def alike(first, second):
    if isinstance(first, numpy.ndarray):
        return first.dtype == second.dtype and numpy.array_equal(first, second)
    if isinstance(first, tuple):
        return all(map(alike, first, second))
    return bytes(first) == bytes(second) if not isinstance(first, str) else first == second


def tensors():
    import torch

    return [torch.arange(5000.0).reshape(50, 100), torch.ones(5000, dtype=torch.bfloat16)]


def sample_then_kill_oneself(size):
    yield from samples(1, size)
    os.kill(os.getpid(), signal.SIGKILL)


def hooks_that_append(path, info):
    """Hooks that append their calls and process ID to a file."""
    from spdl_rs.pipeline import TaskHook

    class Appending(TaskHook):
        @contextlib.asynccontextmanager
        async def stage_hook(self):
            append(path, f"{os.getpid()} {info.stage_name} begins\n")
            yield
            append(path, f"{os.getpid()} {info.stage_name} ends\n")

        @contextlib.asynccontextmanager
        async def task_hook(self, input_item=None):
            yield
            append(path, f"{os.getpid()} {info.stage_name} {input_item}\n")

    return [Appending()]


def queue_that_appends(path, info, *, buffer_size=1):
    """A queue that appends its item counts and process ID to a file."""
    from spdl_rs.pipeline import StatsQueue

    class Appending(StatsQueue):
        async def interval_stats_callback(self, stats):
            append(path, f"{os.getpid()} {info.stage_name} {stats.num_items}\n")

    return Appending(info, buffer_size=buffer_size)


def run_new_pipeline(count=5):
    """Ends this process with an error if a new pipeline does not deliver its items."""
    from spdl_rs.pipeline import PipelineBuilder

    pipeline = PipelineBuilder().add_source(range(count)).pipe(double).add_sink().build(num_threads=1)
    assert sorted(pipeline) == [2 * item for item in range(count)]


def doubled_in_processes(method, op):
    """A pipeline with a region of two processes, without an end."""
    from spdl_rs.pipeline import PipelineBuilder
    from spdl_rs.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

    builder = PipelineBuilder().add_source(range(1000), continuous=True)
    builder = builder.to(ProcessPoolExecutorConfig(2, mp_context=method)).pipe(op)
    return builder.to(MAIN_PROCESS).add_sink(4)


HELD = {}


def leave_a_region_running(method, op, folder):
    """Begins to iterate a pipeline with a region, and neither ends nor drops the pipeline. Prints the time."""
    HELD["pipeline"] = pipeline = doubled_in_processes(method, op).build(num_threads=2)
    pipeline.start()
    if op is double:
        for _ in range(10):
            pipeline.get_item(timeout=60)
    else:
        wait_for_files(folder, 2)
    print(time.time(), flush=True)


def wait_for_files(folder, count):
    deadline = time.monotonic() + 60
    while len(list(pathlib.Path(folder).iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Sleep:
    """A function that creates a file and sleeps for a long time."""

    __name__ = "sleep"

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, item):
        mark(self.folder, str(os.getpid()))
        time.sleep(60)
        return item


class HoldGil(Sleep):
    """A function that holds the GIL for a long time."""

    def __call__(self, item):
        mark(self.folder, str(os.getpid()))
        ctypes.PyDLL(None).sleep(30)
        return item


def region_of_two(method, op):
    return doubled_in_processes(method, op).get_config()


class LargeItems:
    """An iterable without an end, whose items do not fit into a pipe."""

    def __init__(self, marks):
        self.marks = marks

    def __iter__(self):
        try:
            while True:
                yield bytes(1 << 22)
        finally:
            mark(self.marks, "closed")


def torch_draws():
    import torch

    return torch.rand(3).tolist()


def torch_draw(_):
    return torch_draws()[0]


def slow_numbers(count):
    for number in range(count):
        time.sleep(0.01)
        yield number
