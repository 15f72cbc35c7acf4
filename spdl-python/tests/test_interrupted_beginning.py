"""Ctrl-C at each step of a loader's start and stop: no thread is left.

Python runs signal handlers after a call or at the start of a function. A profile function is
called at these places as well, so the tests raise KeyboardInterrupt there, one place at a time.
"""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import spdl_rs
from conftest import picture, write_png
from pipelines import assert_no_threads, identity_async, source, threads, wait_until
from spdl_rs import _spdl_rs
from spdl_rs._locks import Latch
from spdl_rs.dataloader import DataLoader, get_pytorch_dataloader
from spdl_rs.pipeline._processes import exit as _ending
from spdl_rs.pipeline._run.assembly import Assembly
from spdl_rs.torch import DataLoader as TorchDataLoader
from torch_datasets import Stream


def interrupted_at(place, work, first):
    """Runs `work` with a KeyboardInterrupt at the given place after the call of `first`.

    Returns whether the place was reached.
    """
    left = None

    def hear(frame, event, _):
        nonlocal left
        if left is None and event == "call" and frame.f_code is first.__code__:
            left = place
        if left is not None and left >= 0:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    try:
        sys.setprofile(hear)
        try:
            work()
        finally:
            sys.setprofile(None)
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:
        # An interrupt inside Python's `Condition` may raise this error instead.
        assert str(error) in ("release unlocked lock", "cannot release un-acquired lock"), error
    return left is not None and left < 0


def take_first(loader):
    next(iter(loader))


def pipeline(op=int, **options):
    return source(range(20)).pipe(op, **options).add_sink(3).build(num_threads=1)


def in_auto_stop():
    here = pipeline()
    with here.auto_stop():
        here.get_item()


def in_start_and_stop():
    here = pipeline(concurrency=2)
    here.start()
    here.get_item()
    here.stop()


def first_batch_of(**options):
    take_first(TorchDataLoader(range(20), 2, collate_fn=list, **options))


@functools.cache
def image_loader():
    """An image loader over temporary files that exist until the process ends."""
    folder = tempfile.TemporaryDirectory()
    paths = [f"{folder.name}/{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        write_png(path, picture(number))
    return folder, spdl_rs.ImageLoader(paths, batch_size=2, size=8, labels=range(4), threads=2)


BEGINNINGS = {
    "torch, map": lambda: first_batch_of(num_workers=2),
    "torch, iterable": lambda: take_first(
        TorchDataLoader(Stream(9), 2, collate_fn=list, num_workers=1)
    ),
    "as PyTorch's": lambda: take_first(
        get_pytorch_dataloader(range(20), 2, collate_fn=list, num_workers=2)
    ),
    "of SPDL": lambda: take_first(DataLoader(range(20), preprocessor=int, num_threads=2)),
    "pipeline, by its first item": lambda: take_first(pipeline()),
    "pipeline, started and stopped": in_start_and_stop,
    "pipeline, auto_stop": in_auto_stop,
    "pipeline, with coroutines": lambda: take_first(pipeline(identity_async)),
    "images": lambda: take_first(image_loader()[1]),
}


def native_threads():
    return len(os.listdir("/proc/self/task"))


def interrupt_everywhere(kind):
    """The main function of the test's process."""
    sys.unraisablehook = lambda _: None
    work = BEGINNINGS[kind]
    for _ in range(2):
        work()
    assert_no_threads()
    before = native_threads()
    first = spdl_rs.ImageLoader.__iter__ if kind == "images" else Assembly.begin
    place = 0
    while interrupted_at(place, work, first):
        wait_until(lambda: not threads(), within_s=5)
        place += 1
    wait_until(lambda: native_threads() <= before, within_s=5)
    assert place > 10, "too few places were interrupted"
    print(time.monotonic(), flush=True)


# promise: R5
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="requires /proc/self/task")
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_l10_ctrl_c_during_start_or_stop_leaves_no_thread(kind):
    # In another process, which must end promptly.
    code = f"import test_interrupted_beginning as t; t.interrupt_everywhere({kind!r})"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert time.monotonic() - float(ran.stdout) < 3


def test_a_latch_opens_after_an_interrupted_wait():
    place, interrupts = 0, 0
    came = True
    while came:
        latch = Latch()
        came = interrupted_at(place, lambda latch=latch: latch.wait(0.001), Latch.wait)
        opener = threading.Thread(target=latch.open, daemon=True)
        opener.start()
        opener.join(5)
        assert not opener.is_alive() and latch.wait(0)
        place, interrupts = place + 1, interrupts + came
    assert interrupts > 3


def test_a_latch_releases_all_waiting_threads():
    latch = Latch()
    assert not latch.wait(0) and not latch.wait(0.001)
    waiters = [threading.Thread(target=latch.wait, daemon=True) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    latch.open()
    latch.open()
    for waiter in waiters:
        waiter.join(20)
    assert latch.wait() and not any(waiter.is_alive() for waiter in waiters)


def test_uninterrupted_delays_signals_until_the_call_ends():
    done = []

    def work():
        assert threading.current_thread() is not threading.main_thread()
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        done.append(True)
        return 5

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _spdl_rs.uninterrupted(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True]
    assert _spdl_rs.uninterrupted(lambda: 6) == 6
    with pytest.raises(LookupError, match="no 7"):
        _spdl_rs.uninterrupted(refuse_7)


def refuse_7():
    raise LookupError("no 7")


# promise: R6
def test_exit_does_not_wait_for_unstarted_threads():
    assert _ending._wait_until([], [threading.Thread(target=int)], time.monotonic())


def test_a_task_queue_needs_no_source_thread():
    tasks = _spdl_rs.TaskQueue()
    # Without a pipeline, the item is dropped.
    tasks.put(0)
    items = source(tasks).pipe(str).add_sink(3).build(num_threads=1)
    items.start()
    assert threads() == ["spdl_worker_thread_0"]
    for number in range(300):
        tasks.put(number)
    assert [items.get_item(timeout=20) for _ in range(300)] == [str(n) for n in range(300)]
    del items
    assert_no_threads()
    tasks.put(0)
    with pytest.raises(TypeError, match="cannot iterate"):
        iter(tasks)
