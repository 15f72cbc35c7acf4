"""Eight threads share one loader, pipeline, array, cache or operator.

The interpreter switches threads every microsecond, so that non-atomic operations fail with a GIL, too. On a
free-threaded Python, the same tests run on all CPUs.
"""

import collections
import concurrent.futures
import gc
import io
import os
import subprocess
import sys
import tarfile
import textwrap
import threading

import numpy
import pytest
import spdl_rs
import spdl_rs.torch
from pipelines import assert_no_threads, build, identity, refuse_odd, source
from spdl_rs.dataloader import DataLoader
from spdl_rs.dataloader import _progress as passes
from spdl_rs.io import Array, DecodeImage, iter_tarfile
from spdl_rs.pipeline import (
    BackgroundTask,
    PipelineFailure,
    PriorityThreadPoolExecutor,
    TaskStatsHook,
)
from spdl_rs.pipeline._processes.shared_memory import SharedMemory
from spdl_rs.pipeline._run import supervised_run as _supervised_run
from spdl_rs.source import DistributedRandomSampler
from spdl_rs.torch._map_style import Progress

THREADS = 8
WITHIN_S = 120


@pytest.fixture(autouse=True)
def often_in_turn():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def at_once(function):
    """Returns the results of 8 concurrent calls of a function with the numbers 0 to 7."""
    barrier = threading.Barrier(THREADS)

    def called(number):
        barrier.wait(WITHIN_S)
        return function(number)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(called, number) for number in range(THREADS)]
        return [future.result(WITHIN_S) for future in futures]


def joined(lists):
    return [item for each in lists for item in each]


def bytes_of(batches):
    return [(images.tobytes(), labels.tobytes()) for images, labels in batches]


def taken_from(iterator):
    """Returns the items that one thread receives from a shared iterator."""
    return [item for item in iterator]


# Loaders


def test_each_iter_of_a_shared_loader_is_a_separate_epoch(photos):
    loader = spdl_rs.ImageLoader(photos, batch_size=2, size=8, train=True)
    epochs = at_once(lambda number: [iter(loader) for _ in range(3)])
    batches = {one.epoch: one for one in joined(epochs)}
    assert sorted(batches) == list(range(3 * THREADS)) and loader.epoch == 3 * THREADS
    alone = spdl_rs.ImageLoader(photos, batch_size=2, size=8, train=True)
    for number in (0, THREADS, 3 * THREADS - 1):
        alone.set_epoch(number)
        assert bytes_of(batches[number]) == bytes_of(alone)


def test_a_loaded_state_is_resumed_once(photos):
    loader = spdl_rs.ImageLoader(photos, batch_size=1, size=8)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    passes = at_once(lambda number: len(list(loader)))
    assert sorted(passes) == [3] + [4] * (THREADS - 1)


def test_each_batch_of_a_shared_epoch_goes_to_one_thread(many):
    loader = spdl_rs.ImageLoader(many, batch_size=1, size=8, train=True)
    expected = collections.Counter(bytes_of(loader))
    loader.set_epoch(0)
    batches = iter(loader)
    taken = joined(at_once(lambda number: taken_from(batches)))
    assert collections.Counter(bytes_of(taken)) == expected


def test_the_shared_memory_file_is_closed_once():
    memory, closed = SharedMemory(1 << 12, "test"), []
    file_descriptor = memory._file_descriptor

    def close(number):
        closed.append(number)
        # As another thread might do during `close`. The number may already be that of another file.
        memory._close_file(close)

    memory._close_file(close)
    memory.close()
    assert closed == [file_descriptor]
    os.close(file_descriptor)


def test_a_loader_reports_statistics_while_others_iterate(many):
    loader = spdl_rs.ImageLoader(many, batch_size=1, size=8)
    batches = iter(loader)
    seen = []

    def use(number):
        if number % 2:
            return len(taken_from(batches))
        steps = []
        for _ in range(20):
            state = loader.state_dict()
            steps.append((state["epoch"], state["steps_in_epoch"]))
            assert "ImageLoader" in loader._repr_html_() and loader.diagnose()
            seen.append(batches.stats()["consumer"]["items"])
        assert steps == sorted(steps)
        return 0

    assert sum(at_once(use)) == 40 and max(seen) <= 40


def test_loaders_share_a_cache_folder(many, tmp_path):
    plain = bytes_of(spdl_rs.ImageLoader(many, batch_size=8, size=16))

    def use(number):
        loader = spdl_rs.ImageLoader(
            many, batch_size=8, size=16, cache=tmp_path / "cache", cache_memory=10_000
        )
        return [bytes_of(loader), bytes_of(loader)]

    assert all(epoch == plain for epoch in joined(at_once(use)))


# PyTorch-like loaders


class Squares:
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return index * index


class Countdown:
    def __iter__(self):
        return iter(range(200))


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("dataset", [Squares, Countdown])
def test_each_batch_of_a_shared_torch_epoch_goes_to_one_thread(dataset, workers):
    loader = spdl_rs.torch.DataLoader(
        dataset(), batch_size=None, num_workers=workers, collate_fn=int
    )
    copies = workers if dataset is Countdown and workers else 1
    batches = iter(loader)
    taken = joined(at_once(lambda number: taken_from(batches)))
    numbers = range(200) if dataset is Countdown else [number * number for number in range(200)]
    assert sorted(taken) == sorted(list(numbers) * copies)


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_share_a_torch_loader_and_one_resumes_a_state(workers):
    loader = spdl_rs.torch.DataLoader(
        Squares(), batch_size=None, num_workers=workers, collate_fn=int
    )
    batches = iter(loader)
    for _ in range(150):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    passes = at_once(lambda number: len(list(loader)))
    assert sorted(passes) == [50] + [200] * (THREADS - 1)
    del batches
    assert_no_threads()


def test_the_state_of_a_torch_loader_is_consistent_while_others_iterate():
    loader = spdl_rs.torch.DataLoader(
        Squares(), batch_size=None, num_workers=2, in_order=False, collate_fn=int
    )
    batches = iter(loader)
    taken = []

    def use(number):
        if number % 2:
            taken.extend(batches)
            return
        for _ in range(200):
            before = len(taken)
            state = loader.state_dict()
            # Numbers beyond are larger than the first missing one.
            assert all(number > state["_num_yielded"] for number in state["_yielded_beyond"])
            assert state["_num_yielded"] + len(state["_yielded_beyond"]) >= before

    at_once(use)
    assert sorted(taken) == [number * number for number in range(200)]


def test_the_state_of_a_torch_loader_is_taken_atomically():
    progress = Progress()
    others = []

    def gave(number):
        progress.uncounted[number] = None
        progress.count()

    class Interrupted(set):
        def __iter__(self):
            # While the state is taken, another thread reports that the first batch was delivered.
            others.append(threading.Thread(target=gave, args=(0,)))
            others[0].start()
            others[0].join(0.2)
            return super().__iter__()

    gave(1)
    progress.beyond = Interrupted(progress.beyond)
    state = progress.state()
    assert (state["_num_yielded"], state["_yielded_beyond"]) == (0, [1])
    others[0].join(WITHIN_S)
    assert progress.given == 2


def test_threads_share_a_data_loader_of_spdl():
    loader = DataLoader(range(100), preprocessor=str, batch_size=7, num_threads=2)
    passes = at_once(lambda number: sorted(joined(loader), key=int))
    assert passes == [[str(number) for number in range(100)]] * THREADS


def test_each_batch_of_a_shared_data_loader_epoch_goes_to_one_thread():
    loader = DataLoader(range(300), preprocessor=identity, num_threads=2)
    batches = iter(loader)
    assert sorted(joined(at_once(lambda number: taken_from(batches)))) == list(range(300))


def test_an_epoch_may_end_before_a_thread_receives_its_item():
    progress = passes.Progress(DistributedRandomSampler(3, rank=0, world_size=1))
    late, *others = progress.source()
    for item in others:
        progress.done(item.numbers)
    progress.end()
    state = progress.state_dict()
    assert state["ended"] and late.value in range(3)
    progress.done(late.numbers)
    assert progress.state_dict() == state


def test_threads_share_the_indices_of_a_sampler():
    indices = iter(DistributedRandomSampler(10_000, rank=0, world_size=1))
    assert sorted(joined(at_once(lambda number: taken_from(indices)))) == list(range(10_000))


# Pipelines


class Nothing(BackgroundTask):
    async def run(self):
        pass


@pytest.mark.parametrize("beside", [[], [Nothing]], ids=["alone", "with a task beside"])
@pytest.mark.parametrize("way", ["get_item", "iterate"])
def test_threads_share_a_pipeline_that_starts_once(way, beside):
    calls = collections.Counter()

    def items():
        calls["source"] += 1
        yield from range(300)

    for _ in range(5):
        calls.clear()
        pipeline = build(source(items()).pipe(identity, concurrency=2), background_tasks=beside)

        def use(number, pipeline=pipeline):
            if way == "iterate":
                return taken_from(pipeline)
            taken = []
            while True:
                try:
                    taken.append(pipeline.get_item(timeout=WITHIN_S))
                except EOFError:
                    return taken

        assert sorted(joined(at_once(use))) == list(range(300)) and calls["source"] == 1
        pipeline.stop()
    assert_no_threads()


@pytest.mark.parametrize("beside", [[], [Nothing]], ids=["alone", "with a task beside"])
def test_each_item_of_a_shared_iterator_goes_to_one_thread(beside):
    items = iter(build(source(range(300)).pipe(identity), background_tasks=beside))
    assert sorted(joined(at_once(lambda number: taken_from(items)))) == list(range(300))
    assert next(items, "end") == "end"


@pytest.mark.parametrize("beside", [[], [Nothing]], ids=["alone", "with a task beside"])
def test_an_iterator_does_not_continue_with_the_next_epoch(beside):
    pipeline = build(source("ab", continuous=True), background_tasks=beside)
    with pipeline.auto_stop():
        items = iter(pipeline)
        assert list(items) == ["a", "b"] and list(items) == [] and list(pipeline) == ["a", "b"]


@pytest.mark.parametrize("beside", [[], [Nothing]], ids=["alone", "with a task beside"])
def test_every_thread_gets_the_failure(beside):
    for _ in range(5):
        pipeline = build(
            source(range(100)).pipe(refuse_odd, max_failures=0), background_tasks=beside
        )

        def use(number, pipeline=pipeline):
            with pytest.raises(PipelineFailure, match="refuse_odd"):
                taken_from(pipeline)

        at_once(use)


def test_no_thread_sees_a_partly_started_pipeline(monkeypatch):
    seen = []

    class Seen(_supervised_run.SupervisedRun):
        def __init__(self, *arguments):
            seen.append(pipeline._run)
            super().__init__(*arguments)

    monkeypatch.setattr(_supervised_run, "SupervisedRun", Seen)
    pipeline = build(source([1]).pipe(identity), background_tasks=[Nothing])
    assert list(pipeline) == [1] and type(pipeline._run) is Seen
    assert seen == [None]


def test_pipelines_are_built_run_and_stopped_by_many_threads():
    def use(number):
        for _ in range(5):
            pipeline = build(source(range(20)).pipe(identity).aggregate(3))
            with pipeline.auto_stop():
                assert joined(pipeline) == list(range(20))
        return number

    assert at_once(use) == list(range(THREADS))
    assert_no_threads()


def test_a_pipeline_is_stopped_while_others_request_items():
    for _ in range(5):
        pipeline = build(source(iter(int, 1)).pipe(identity, concurrency=2))

        def use(number, pipeline=pipeline):
            if number < 2:
                for _ in range(20):
                    pipeline.stats()
                pipeline.stop()
                return "stopped"
            try:
                while True:
                    pipeline.get_item(timeout=WITHIN_S)
            except EOFError:
                return "end"

        pipeline.start()
        assert at_once(use) == ["stopped"] * 2 + ["end"] * (THREADS - 2)
    assert_no_threads()


def test_hooks_count_every_item():
    hooks = []

    def make(info):
        hooks.append(TaskStatsHook(info))
        return hooks[-1:]

    pipeline = build(
        source(range(400)).pipe(identity, concurrency=THREADS),
        num_threads=THREADS,
        task_hook_factory=make,
    )
    assert len(joined(at_once(lambda number: taken_from(pipeline)))) == 400
    assert [(hook.num_tasks, hook.num_success) for hook in hooks] == [(400, 400)]


def test_every_call_of_a_shared_executor_is_made_once():
    calls = collections.deque()
    with PriorityThreadPoolExecutor(3) as pool:

        def use(number):
            entry = pool.get_executor()
            futures = [entry.submit(calls.append, (number, at)) for at in range(100)]
            return [future.result(WITHIN_S) for future in futures]

        at_once(use)
    assert sorted(calls) == [(number, at) for number in range(THREADS) for at in range(100)]


def test_python_exits_while_threads_start_pipelines():
    program = """
        import sys, threading, time
        from spdl_rs.pipeline import PipelineBuilder
        sys.setswitchinterval(1e-6)
        def start():
            kept = []
            while True:
                builder = PipelineBuilder().add_source(range(9)).pipe(str).add_sink()
                kept.append(builder.build(num_threads=1))
                kept[-1].start()
                del kept[:-3]
        for _ in range(8):
            threading.Thread(target=start, daemon=True).start()
        time.sleep(0.3)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        timeout=WITHIN_S,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Running threads may log errors about finalization; functions at exit may not.
    assert "atexit" not in ended.stderr, ended.stderr
    # Before 3.14, Python unwinds threads that return too late, which Rust reports as an error.
    if sys.version_info >= (3, 14):
        assert ended.returncode == 0, ended.stderr


# Arrays and operators


def test_threads_share_an_array():
    array = Array((64, 64), "float32")

    def use(number):
        for _ in range(100):
            view = numpy.asarray(array)
            view[number] += 1
            taken = numpy.from_dlpack(array) if hasattr(numpy, "from_dlpack") else view
            assert numpy.shares_memory(taken, view) and repr(array) and array.shape == (64, 64)

    at_once(use)
    assert numpy.asarray(array)[:THREADS].tolist() == [[100.0] * 64] * THREADS


def test_memory_is_recycled_from_any_thread(many):
    batches = iter(spdl_rs.ImageLoader(many, batch_size=2, size=16))
    held = list(batches)

    def let_go(number):
        while True:
            try:
                held.pop()
            except IndexError:
                return

    running = iter(spdl_rs.ImageLoader(many, batch_size=2, size=16))
    held += [next(running) for _ in range(10)]
    at_once(let_go)
    gc.collect()
    assert running.stats()["buffers"]["live_bytes"] <= 20 * 2 * (16 * 16 * 3 + 8)
    running.close()


def test_threads_share_an_operator(photos):
    files = [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    decode = DecodeImage(32)
    alone = [decode(file).tobytes() for file in files]

    def use(number):
        return [decode(file).tobytes() for _ in range(20) for file in files]

    assert at_once(use) == [alone * 20] * THREADS


class Slow(io.BytesIO):
    """One thread reads it for as long as a test wants."""

    def __init__(self, data):
        super().__init__(data)
        self.is_read, self.go_on = threading.Event(), threading.Event()

    def read(self, size=-1):
        self.is_read.set()
        assert self.go_on.wait(WITHIN_S)
        return super().read(size)


def test_an_archive_in_use_by_another_thread_raises():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("cat/1.txt")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"meow"))
    slow = Slow(file.getvalue())
    files = iter_tarfile(slow)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, files)
        assert slow.is_read.wait(WITHIN_S)
        assert iter(files) is files
        with pytest.raises(RuntimeError, match="another thread is reading"):
            next(files)
        slow.go_on.set()
        assert first.result(WITHIN_S) == ("cat/1.txt", b"meow")
    assert list(files) == []


# The build


def test_the_native_module_does_not_enable_the_gil():
    if not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled():
        pytest.skip(
            "this Python has a GIL, or it is enabled; free-threaded ones from 3.14 on do not"
        )
    program = "import sys, spdl_rs; sys.exit(sys._is_gil_enabled())"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0
