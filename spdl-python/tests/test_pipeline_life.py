"""Feature group L: start, stop, timeouts, garbage collection, process exit."""

import asyncio
import concurrent.futures
import copy
import functools
import gc
import os
import pickle
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
import unittest.mock
import weakref

import in_processes as work
import pytest
from pipelines import (
    assert_no_threads,
    build,
    identity,
    refuse,
    run,
    source,
    threads,
    wait_until,
)
from spdl_rs import _spdl_rs
from spdl_rs.pipeline import PipelineFailure, build_pipeline, iterate_in_subprocess
from spdl_rs.pipeline._failures.stage_names import in_plain_words
from spdl_rs.pipeline._processes import exit as _ending
from spdl_rs.pipeline.defs import Aggregator


def numbers_without_end():
    number = 0
    while True:
        yield number
        number += 1


def test_l01_a_pipeline_can_be_started_once():
    pipeline = build(source())
    pipeline.start()
    with pytest.raises(RuntimeError, match="already started"):
        pipeline.start()
    pipeline.stop()
    with pytest.raises(RuntimeError, match="already started"):
        pipeline.start()


def test_l01_ignored_arguments_cause_a_warning():
    pipeline = build(source())
    with pytest.warns(UserWarning, match="daemon"):
        pipeline.start(daemon=True)
    pipeline.stop()


def test_l02_stop_ends_every_thread_and_may_be_repeated():
    pipeline = build(source(numbers_without_end()).pipe(identity, concurrency=2))
    pipeline.stop()
    # Items arrive in completion order.
    assert pipeline.get_item(timeout=20) in (0, 1)
    assert len(threads()) == 3
    pipeline.stop()
    assert threads() == []
    pipeline.stop()
    with pytest.raises(EOFError):
        pipeline.get_item()


def test_l02_stop_waits_for_running_functions_until_the_timeout():
    entered, gate = threading.Event(), threading.Event()

    def slow(item):
        entered.set()
        assert gate.wait(20)
        return item

    pipeline = build(source().pipe(slow))
    pipeline.start()
    assert entered.wait(20)
    with pytest.raises(TimeoutError, match="still running"):
        pipeline.stop(timeout=0.05)
    gate.set()
    pipeline.stop(timeout=20)
    assert_no_threads()


def test_l02_stop_raises_an_unreported_failure():
    pipeline = build(source([1]).pipe(refuse), max_failures=0)
    pipeline.start()
    wait_until(lambda: pipeline.stats()["stages"][1]["failures"])
    with pytest.raises(PipelineFailure):
        pipeline.stop()
    pipeline.stop()


def test_l02_stop_does_not_flush_aggregators():
    ended = []

    class Listen(Aggregator):
        def accumulate(self, item):
            return None

        def flush(self):
            ended.append("flush")

    def numbers():
        yield from range(3)
        gate.wait(20)

    gate = threading.Event()
    pipeline = build(source(numbers()).pipe(identity).aggregate(Listen()))
    pipeline.start()
    wait_until(lambda: pipeline.stats()["stages"][-1]["items"] == 3)
    threading.Timer(0.1, gate.set).start()
    pipeline.stop()
    assert ended == []


def test_l03_auto_stop_stops_after_an_exception():
    pipeline = build(source(numbers_without_end()).pipe(identity))
    with pytest.raises(LookupError), pipeline.auto_stop():
        raise LookupError
    assert threads() == []


def test_l04_get_item_starts_the_pipeline_and_ends_with_eof():
    pipeline = build(source([1, 2]))
    assert [pipeline.get_item(), pipeline.get_item(timeout=20)] == [1, 2]
    for _ in range(2):
        with pytest.raises(EOFError):
            pipeline.get_item()
    assert_no_threads()


def test_l04_get_item_can_be_repeated_after_a_timeout():
    gate = threading.Event()
    pipeline = build(source([1]).pipe(lambda item: gate.wait(20) and item))
    with pipeline.auto_stop():
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="0.05 s"):
            pipeline.get_item(timeout=0.05)
        assert 0.05 <= time.monotonic() - started < 5
        gate.set()
        assert pipeline.get_item(timeout=20) == 1


def test_l04_a_negative_timeout_is_an_error():
    pipeline = build(source([1]))
    with pipeline.auto_stop():
        for wait in (pipeline.get_item, pipeline.get_iterator):
            with pytest.raises(ValueError, match=r"timeout must be at least 0, not -1\.0"):
                wait(timeout=-1)
        assert pipeline.get_item(timeout=20) == 1


def test_l04_a_failure_is_raised_after_finished_items_and_repeatedly():
    pipeline = build(source([2, 4, 1]).pipe(lambda n: refuse(n) if n == 1 else n), max_failures=0)
    assert [pipeline.get_item(), pipeline.get_item()] == [2, 4]
    for _ in range(2):
        with pytest.raises(PipelineFailure):
            pipeline.get_item()
    # `stop` does not report the failure again.
    pipeline.stop()


def test_l05_get_item_nowait_does_not_wait():
    gate = threading.Event()
    pipeline = build(source([1]).pipe(lambda item: gate.wait(20) and item))
    with pytest.raises(queue.Empty):
        pipeline.get_item_nowait()
    gate.set()
    items = []

    def is_there():
        try:
            items.append(pipeline.get_item_nowait())
        except queue.Empty:
            return False
        return True

    wait_until(is_there)
    assert items == [1]
    with pytest.raises(EOFError):
        pipeline.get_item()
    with pytest.raises(EOFError):
        pipeline.get_item_nowait()


def test_l06_a_loop_continues_after_a_break():
    pipeline = build(source(range(6)))
    for item in pipeline:
        if item == 2:
            break
    assert list(pipeline) == [3, 4, 5]
    with pytest.warns(UserWarning, match="has ended and has no items"):
        assert list(pipeline) == []


def test_l06_only_loops_over_an_ended_pipeline_warn(recwarn):
    pipeline = build(source(range(3)))
    # Left after the last item, without a request for the end.
    assert [item for _, item in zip(range(3), pipeline, strict=False)] == [0, 1, 2]
    assert list(pipeline) == []
    pipeline = build(source(range(2), continuous=True))
    with pipeline.auto_stop():
        assert [list(pipeline), list(pipeline)] == [[0, 1], [0, 1]]
    pipeline = build(source([1]).pipe(refuse), max_failures=0)
    for _ in range(2):
        with pytest.raises(PipelineFailure):
            list(pipeline)
    assert [str(warning.message) for warning in recwarn] == []


def test_l06_the_warning_refers_to_the_loop(recwarn):
    pipeline = build(source(range(3)))
    list(pipeline)
    for _ in pipeline:
        pass
    (warning,) = recwarn
    assert warning.filename == __file__ and "continuous=True" in str(warning.message)


def test_l06_an_iterator_has_a_timeout_for_each_item():
    gate = threading.Event()
    pipeline = build(source([1]).pipe(lambda item: gate.wait(20)))
    with pytest.raises(TimeoutError):
        next(pipeline.get_iterator(timeout=0.05))
    gate.set()
    pipeline.stop()


def test_l07_a_dropped_pipeline_ends():
    def started(builder):
        pipeline = build(builder)
        pipeline.get_item(timeout=20)
        return pipeline

    async def double(item):
        return item * 2

    for op in (identity, double):
        pipeline = started(source(numbers_without_end()).pipe(op))
        assert threads()
        del pipeline
        assert_no_threads()
    for _ in source(numbers_without_end()).pipe(identity).add_sink().build(num_threads=1):
        break
    assert_no_threads()


def test_l07_an_iterator_keeps_its_pipeline_alive():
    iterator = iter(build(source(range(50)).pipe(identity)))
    gc.collect()
    assert list(iterator) == list(range(50))


def test_l07_items_and_functions_are_freed_with_the_pipeline():
    class Item:
        pass

    class Op:
        def __call__(self, item):
            return item

    op, held = Op(), []

    def items():
        while True:
            item = Item()
            held.append(weakref.ref(item))
            yield item

    op_held = weakref.ref(op)
    pipeline = build(source(items()).pipe(op))
    del op
    pipeline.get_item(timeout=20)
    pipeline.stop()
    del pipeline
    gc.collect()
    wait_until(lambda: op_held() is None and all(item() is None for item in held))


def is_freed(held):
    # Objects dropped without the GIL are freed when a thread next takes the GIL.
    gc.collect()
    return held() is None


def test_l07_a_pipeline_in_a_reference_cycle_is_freed():
    class Loader:
        def __init__(self, items):
            self.pipeline = build(source(items).pipe(self.load))

        def load(self, item):
            return item

    for items in ([], [1, 2]):
        loader = Loader(items)
        assert list(loader.pipeline) == items
        held = weakref.ref(loader)
        del loader
        gc.collect()
        wait_until(functools.partial(is_freed, held))


PREAMBLE = """
import asyncio, sys, threading, time
from spdl_rs.pipeline import PipelineBuilder
def numbers():
    while True:
        yield 1
def build(op, source=None, **options):
    builder = PipelineBuilder().add_source(source or numbers()).pipe(op, **options)
    return builder.add_sink().build(num_threads=2)
async def wait(item):
    await asyncio.sleep(0.001)
    return item
async def wait_long(item):
    await asyncio.sleep(1000)
def spin(item):
    for _ in range(1000):
        pass
    return item
"""


# Functions that block until the process logs that they are still running, without a delay.
STAY = """
import logging
from spdl_rs.pipeline._processes import exit as _ending
begun, over = threading.Semaphore(0), threading.Event()
def stay():
    begun.release()
    over.wait(50)
def wait_for(functions):
    for p in kept:
        p.start()
    for _ in range(functions):
        begun.acquire(timeout=50)
class RecordingHandler(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        over.set()
logging.getLogger().addHandler(RecordingHandler())
_ending.TIMEOUT_S = 0.0
"""


def script(text):
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Background processes start with SIGINT ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    "ending",
    [
        "p = build(spin); p.get_item()",
        "p = build(spin, concurrency=2); p.get_item(); sys.exit(0)",
        "p = build(wait, concurrency=8); p.get_item()",
        "p = build(wait_long, concurrency=8); p.start(); time.sleep(0.1)",
        "p = build(lambda item: time.sleep(0.2)); p.start(); time.sleep(0.1)",
        "p = build(spin); threading.Thread(target=list, args=(p,), daemon=True).start()",
        "p = build(spin); p.get_item(); c = [p]; c.append(c); del p",
        "p = build(spin, source=build(spin)); p.get_item()",
        "import atexit; p = build(spin); atexit.register(lambda: p.get_item())",
    ],
)
def test_l07_a_process_exits_cleanly_at_any_moment(ending):
    with script(ending) as process:
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("waiting", "pressed"),
    [
        ("while True: pass", False),
        ("while True: pass", True),
        ("time.sleep(0.35 + item / 50)", False),
        ("time.sleep(60)", False),
        ("time.sleep(60)", True),
    ],
)
def test_l07_a_process_exits_despite_endless_functions(waiting, pressed):
    text = f"""
from spdl_rs.pipeline._processes import exit as _ending
_ending.TIMEOUT_S, wait_until = {600 if pressed else 0.3}, _ending._wait_until
def wait_and_report(*arguments):
    print("waiting", flush=True)
    return wait_until(*arguments)
_ending._wait_until = wait_and_report
def work(item):
    {waiting}
builder = PipelineBuilder().add_source(range(9)).pipe(work, concurrency=2)
p = builder.add_sink().build(num_threads=1)
p.start()
time.sleep(0.1)
"""
    with script(text) as process:
        assert process.stdout.readline() == "waiting\n"
        if pressed:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    # Exit without a signal: unwinding threads during finalization would abort.
    assert (output, process.returncode) == ("", 0), errors
    lines = errors.splitlines()
    assert all("are still running: stage work, work at" in line for line in lines), errors
    # A short function may end in time.
    assert len(lines) == 1 or ("item" in waiting and not lines), errors


# promise: R6
def test_a_process_exits_soon_while_a_function_sleeps():
    text = """
p = build(lambda item: time.sleep(60), name="slow")
p.start()
time.sleep(0.1)
print(time.time(), flush=True)
sys.exit(7)
"""
    took = []
    for _ in range(5):
        with script(text) as process:
            output, errors = process.communicate(timeout=60)
        took.append(time.time() - float(output))
        assert process.returncode == 7
        assert "stage slow, <lambda> at <string>:" in errors and "stop the pipeline before" in errors
    # About 0.9 s, unless the machine is busy.
    assert statistics.median(took) < 2, took


# promise: R6
@pytest.mark.parametrize(
    "executor",
    [
        "concurrent.futures.ThreadPoolExecutor(2)",
        "concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context('fork'))",
        "PriorityThreadPoolExecutor(1).get_executor()",
    ],
)
def test_functions_for_which_python_waits_at_exit_are_named(executor):
    text = f"""
import concurrent.futures, multiprocessing, warnings
from spdl_rs.pipeline import PriorityThreadPoolExecutor
warnings.simplefilter("ignore")
def slow(item):
    time.sleep(2)
p = build(slow, executor={executor}, concurrency=2)
p.start()
time.sleep(0.2)
sys.exit(7)
"""
    with script(text) as process:
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("", 7), errors
    (line,) = errors.splitlines()
    assert "after these functions have returned" in line and "executors: slow at <string>:" in line


# promise: R6
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are suspended on Linux only")
@pytest.mark.parametrize("work", ["time.sleep(1.2)", "threading.Event().wait(1.2)"])
def test_a_function_that_returns_during_finalization_does_not_abort_the_process(work):
    text = f"""
class Slow:
    def __del__(self, sleep=time.sleep):
        print("finalizing", flush=True)
        sleep(1)
# The running function keeps the variables of the main module alive.
sys.modules["kept"] = type(sys)("kept")
sys.modules["kept"].slow = Slow()
p = build(lambda item: {work})
p.start()
time.sleep(0.1)
sys.exit(7)
"""
    with script(text) as process:
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("finalizing\n", 7), errors
    assert len(errors.splitlines()) == 1, errors


# promise: R8
def test_l07_a_forked_child_exits_cleanly():
    text = """
import os
from spdl_rs.pipeline._processes import exit as _ending
_ending.TIMEOUT_S = 0.3
p = build(lambda item: item)
p.get_item()
p.stop()
def work(item):
    while True:
        pass
child = os.fork()
if child == 0:
    p = build(work, concurrency=2)
    p.start()
    time.sleep(0.1)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    for _ in range(3):
        with script(text) as process:
            output, errors = process.communicate(timeout=60)
        assert (output, process.returncode) == ("7\n", 0), errors


def test_l07_no_thread_requests_the_gil_during_finalization():
    text = """
import atexit
from spdl_rs.pipeline._processes import exit as _ending
# As if `stop` had not been registered.
atexit.unregister(_ending._stop_all)
def compute(item):
    for _ in range(1_000_000):
        pass
p = build(compute, concurrency=2)
p.start()
time.sleep(0.1)
"""
    for _ in range(3):
        with script(text) as process:
            output, errors = process.communicate(timeout=60)
        assert (output, errors, process.returncode) == ("", "", 0)


def test_l07_the_exit_message_names_running_functions():
    text = """
def load(item):
    stay()
class Dataset:
    def __getitem__(self, item):
        stay()
def slow():
    yield stay()
kept = [build(load, name="slow"), build(Dataset(), concurrency=2), build(spin, source=slow())]
wait_for(4)
"""
    with script(STAY + text) as process:
        output, errors = process.communicate(timeout=60)
    assert output == "" and process.returncode == 0
    (line,) = errors.splitlines()
    assert line.startswith("the process exits while functions of pipelines are still running: ")
    assert "stage slow, load at <string>:" in line and "slow at <string>:" in line
    assert line.count("stage Dataset, __getitem__ at <string>:") == 2


def test_l07_the_exit_message_names_all_stages_of_a_function():
    text = """
def load(item):
    stay()
builder = PipelineBuilder().add_source([1, 2])
for name in ("first", "second", "first"):
    builder.pipe(lambda item: item, name="between").pipe(load, name=name)
kept = [builder.add_sink().build(num_threads=1)]
wait_for(1)
"""
    with script(STAY + text) as process:
        output, errors = process.communicate(timeout=60)
    assert output == "" and process.returncode == 0
    assert "stage first or second, load at <string>:" in errors


class RecordingRun:
    """A run that ends when it is stopped with a timeout, and records the calls."""

    def __init__(self, requested):
        self.requested = requested

    def stop(self, seconds):
        self.requested.append(seconds)
        return seconds > 0


def test_l07_pipelines_are_stopped_concurrently_at_exit(monkeypatch):
    requested = []
    runs = [RecordingRun(requested) for _ in range(5)]
    monkeypatch.setattr(_ending, "_runs", weakref.WeakSet(runs))
    monkeypatch.setattr(_ending, "_threads", weakref.WeakKeyDictionary())
    monkeypatch.setattr(_ending, "_exiting", threading.Event())
    monkeypatch.setattr(_ending, "TIMEOUT_S", 60.0)
    monkeypatch.setattr(_ending, "_spdl_rs", unittest.mock.Mock())
    _ending._stop_all()
    # All are stopped before the first wait, and all waits share one deadline.
    assert requested[:5] == [0] * 5 and len(requested) == 10
    assert 60 >= requested[5] and requested[5:] == sorted(requested[5:], reverse=True)
    assert requested[-1] > 0


@pytest.mark.parametrize("kind", ["ThreadPoolExecutor", "ProcessPoolExecutor"])
def test_l07_a_process_with_a_custom_executor_exits_silently(kind, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(f"""
import concurrent.futures, time
from spdl_rs.pipeline import PipelineBuilder
def numbers():
    while True:
        yield 1
def work(item):
    time.sleep(0.001)
    return item
if __name__ == "__main__":
    pool = concurrent.futures.{kind}(2)
    builder = PipelineBuilder().add_source(numbers()).pipe(work, executor=pool, concurrency=2)
    pipeline = builder.add_sink().build(num_threads=1)
    pipeline.get_item()
""")
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        # On a busy machine, a call may take longer than Python waits silently.
        slow = "the process exits after these functions have returned, because Python waits"
        errors = [line for line in done.stderr.splitlines() if not line.startswith(slow)]
        assert (done.stdout, errors, done.returncode) == ("", [], 0)


def test_an_exception_in_aclose_is_reported(monkeypatch, caplog):
    reported = []

    async def letters(item):
        try:
            while True:
                yield item
        finally:
            raise LookupError("not closed")

    monkeypatch.setattr(
        sys, "unraisablehook", lambda raised: reported.append(str(raised.exc_value))
    )
    pipeline = build(source(["a"]).pipe(letters))
    assert pipeline.get_item(timeout=20) == "a"
    pipeline.stop()
    # The stage closes the iterator; or asyncio does, if the stage is too late.
    wait_until(lambda: reported == ["not closed"] or "LookupError: not closed" in caplog.text)


def test_pickling_a_pipeline_is_an_error_with_advice():
    builder = source(range(3)).pipe(identity).add_sink()
    pipeline = builder.build(num_threads=1)
    for ask in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"PipelineBuilder.get_config\(\).*build_pipeline"):
            ask(pipeline)
    config = pickle.loads(pickle.dumps(builder.get_config()))
    assert list(build_pipeline(config, num_threads=1)) == [0, 1, 2]


def test_repr_does_not_wait_for_an_item():
    gate = threading.Event()
    pipeline = build(source([1]).pipe(lambda item: gate.wait(20)))
    taker = threading.Thread(target=list, args=(pipeline,))
    taker.start()
    wait_until(lambda: "running" in repr(pipeline))
    requested, deadline = 0, time.monotonic() + 3
    while requested < 1000 and time.monotonic() < deadline:
        assert "running" in repr(pipeline)
        requested += 1
    gate.set()
    taker.join()
    # Each wait holds the engine's lock for 20 ms; waiting for the lock would allow 300 calls.
    assert requested == 1000


# feature: S05
def test_a_slow_source_is_the_bottleneck():
    def slowly():
        for number in range(40):
            time.sleep(0.01)
            yield number

    async def slowly_async():
        for number in range(40):
            await asyncio.sleep(0.01)
            yield number

    in_process = iterate_in_subprocess(functools.partial(work.slow_numbers, 40))
    for items in (slowly(), slowly_async(), in_process):
        pipeline = build(source(items).pipe(identity))
        assert len(list(pipeline)) == 40
        src = pipeline.stats()["stages"][0]
        # The process works ahead, so the last items take less time.
        assert src["busy_s"] >= 0.3 and src["service_ms"]["p50"] >= 5
        shown = pipeline.diagnose()
        assert shown.startswith('The source is the bottleneck: "src" takes '), shown
    # A fast source is not named.
    pipeline = build(source(range(40)).pipe(nap))
    list(pipeline)
    assert pipeline.stats()["stages"][0]["busy_share"] < 0.2 and '"src"' not in pipeline.diagnose()


def nap(item):
    time.sleep(0.02)
    return item


def spin(item):
    # Longer than the interval after which Python passes the GIL on, also on a loaded machine.
    for _ in range(400_000):
        item += 1
    return item


# feature: S05
def test_stages_that_wait_are_answered_with_num_threads():
    pipeline = build(source(range(30)).pipe(nap, concurrency=4), num_threads=1)
    list(pipeline)
    shown = pipeline.diagnose()
    assert shown.startswith("The worker threads are the bottleneck: 1 thread on "), shown
    assert "instead of 1 threads (num_threads=" in shown and "uses a CPU for " in shown, shown
    (best, *_) = pipeline.stats()["bottleneck"]["helps"]
    assert best["change"]["setting"] == "threads" and best["gain"] > 0.5
    # An executor of the user has its own number of threads.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pipeline = build(source(range(30)).pipe(nap, executor=pool), num_threads=1)
        list(pipeline)
    assert "workers of its executor" in pipeline.diagnose(), pipeline.diagnose()


# feature: S05
def test_the_event_loop_is_the_bottleneck_of_coroutines_that_compute():
    async def compute(item):
        return spin(item)

    async def wait(item):
        await asyncio.sleep(0.02)
        return item

    shown = []
    for function in (compute, wait):
        pipeline = build(source(range(40)).pipe(function, concurrency=2), num_threads=2)
        list(pipeline)
        shown.append(pipeline.diagnose())
    assert "event loop" in shown[0] and '"compute"' in shown[0], shown
    assert "event loop" not in shown[1] and "instead of 2 items in flight" in shown[1], shown


# feature: S05
def test_a_stage_at_its_concurrency_is_named_although_another_takes_more_time():
    def fetch(item):
        time.sleep(0.1)
        return item

    stages = source(range(60)).pipe(fetch, concurrency=10).pipe(nap, concurrency=1)
    pipeline = build(stages, num_threads=11)
    list(pipeline)
    statistics = {stage["name"]: stage for stage in pipeline.stats()["stages"]}
    by_time = sorted(statistics, key=lambda name: statistics[name]["busy_s"])
    assert by_time[-1].endswith("fetch")
    shown = pipeline.diagnose()
    assert shown.startswith('Stage "nap" is the bottleneck: with a concurrency of 1, '), shown
    assert 'instead of 1 as the concurrency of "nap" (concurrency=' in shown, shown


# feature: S05
def test_the_gil_is_the_bottleneck_of_python_code():
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this Python has no GIL")
    pipeline = build(source(range(60)).pipe(spin, concurrency=4), num_threads=4)
    list(pipeline)
    shown = pipeline.diagnose()
    assert shown.startswith("The GIL is the bottleneck: the 4 worker threads"), shown
    assert "Python functions in processes (executor=ProcessPoolExecutor()) would " in shown, shown
    assert 'stage "spin"' in shown, shown
    assert "threads would give" not in shown, shown


def test_the_diagnosis_uses_stage_names_of_the_user():
    pipeline = build(source(range(4)).pipe(refuse, name="bad"))
    assert list(pipeline) == []
    shown = 'Nothing was delivered: 4 of 4 items failed in stage "bad".'
    assert pipeline.diagnose() == shown == pipeline.stats()["diagnosis"]
    assert shown in pipeline._repr_html_().replace("&quot;", '"')
    limit = {"kind": "all-failed", "stage": "bad", "items": 4}
    assert pipeline.stats()["bottleneck"]["limit"] == limit
    idle = build(source(range(4))).diagnose()
    assert idle == "The pipeline has not run long enough to find the bottleneck."


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["3:0:src", "3:1:load"], '"load"'),
        (["3:0:load", "3:1.2.0:load"], '"load (stage 1.2.0)"'),
        (["3:0:src", "3:1:Fetch/part0", "3:1:Fetch/part1"], '"Fetch"'),
        (["3:0:src", "3:1:a:b/part"], '"a:b/part"'),
        (["3:0:src", "3:1:load", "3:2:load/part1"], '"load/part1"'),
        (["3:0:src", "3:1:load/part1", "3:1:load/part1/part0"], '"load/part1"'),
        (["source", "fetch"], '"fetch"'),
    ],
)
def test_the_diagnosis_distinguishes_stages_of_equal_name(names, shown):
    reported = _spdl_rs.Monitor().statistics()
    reported["stages"] = [{"name": name} for name in names]
    reported["diagnosis"] = f'The stage "{names[-1]}" limits.'
    assert in_plain_words(reported)["diagnosis"] == f"The stage {shown} limits."


def test_l08_use_thread_output_queue_has_no_effect():
    pipeline = build(source(range(100)).pipe(identity), use_thread_output_queue=True)
    assert list(pipeline) == list(range(100))
    statistics = pipeline.stats()
    assert [stage["items"] for stage in statistics["stages"]] == [100, 100]
    assert statistics["consumer"]["items"] == 100
    assert 0 <= statistics["data_readiness"] <= 1


def test_l09_a_slow_consumer_causes_backpressure():
    made = []

    def numbers():
        for number in range(1000):
            made.append(number)
            yield number
            # Longer than the time for which the source is read ahead.
            time.sleep(0.001)

    pipeline = build(source(numbers()).pipe(identity), buffer_size=2)
    with pipeline.auto_stop():
        pipeline.get_item(timeout=20)
        wait_until(lambda: len(made) >= 5)
        time.sleep(0.3)
        assert len(made) < 20


# promise: R6
def test_l10_ctrl_c_is_handled_within_100_ms():
    handled = []
    for _ in range(5):
        text = """
p = build(lambda item: time.sleep(1.5))
p.start()
print("waiting", flush=True)
try:
    p.get_item()
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    raise
"""
        with script(text) as process:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.2)
            pressed = time.monotonic()
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
        assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
        handled.append(float(output) - pressed)
        assert handled[-1] > 0
    assert statistics.median(handled) < 0.1, handled


def test_l10_a_program_that_ignores_ctrl_c_receives_all_items():
    text = """
import signal
# As in a shell that starts the program with nohup or in the background.
signal.signal(signal.SIGINT, signal.SIG_IGN)
builder = PipelineBuilder().add_source(range(20)).pipe(lambda item: time.sleep(0.05) or item)
p = builder.add_sink().build(num_threads=1)
print("waiting", flush=True)
print(list(p) == list(range(20)))
"""
    with script(text) as process:
        assert process.stdout.readline() == "waiting\n"
        for _ in range(5):
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("True\n", "")
        assert process.returncode == 0


def test_l10_ctrl_c_stops_the_pipeline():
    def handler(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    pipeline = build(source(numbers_without_end()).pipe(lambda item: None))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            pipeline.get_item()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(EOFError):
        pipeline.get_item()
    assert_no_threads()


# promise: R8
def test_a_forked_child_gets_an_error_and_can_build_a_pipeline():
    text = """
import os, warnings
warnings.simplefilter("ignore")
p = build(spin)
p.get_item()
child = os.fork()
if child == 0:
    try:
        p.get_item()
    except RuntimeError as error:
        assert "fork" in str(error)
    else:
        os._exit(3)
    try:
        p.stats()
    except RuntimeError as error:
        assert "cannot read statistics in a forked child process" in str(error)
    else:
        os._exit(4)
    assert "ended" in repr(p)
    p.stop(timeout=1)
    assert build(spin).get_item() == 1
    del p
    sys.exit(0)
_, status = os.waitpid(child, 0)
p.get_item()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    with script(text) as process:
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0


def test_threads_may_share_a_pipeline():
    pipeline = build(source(range(300)).pipe(identity, concurrency=2))
    taken = [[] for _ in range(4)]
    takers = [threading.Thread(target=items.extend, args=(pipeline,)) for items in taken]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(60)
    assert sorted(sum(taken, [])) == list(range(300))


def test_start_and_stop_leak_no_threads_or_files():
    async def double(item):
        return item * 2

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    run(source([1]).pipe(double))
    before = descriptors()
    for cycle in range(24):
        pipeline = build(source(numbers_without_end()).pipe(identity).pipe(double))
        if cycle % 3:
            pipeline.get_item(timeout=20)
        if cycle % 2:
            pipeline.stop()
        del pipeline
    assert_no_threads()
    gc.collect()
    wait_until(lambda: descriptors() <= before)
