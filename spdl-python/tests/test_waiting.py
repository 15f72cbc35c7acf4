"""Waits and endings: signals, the GIL, threads, forks, process exit."""

import contextlib
import fcntl
import functools
import gc
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest
import spdl_rs

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="these tests count threads in /proc"
)


@pytest.fixture
def stuck(photos, tmp_path):
    """A file whose open blocks until `stuck.release()`, as on an unreachable network share.

    The open of a file waits while another opener holds a lease on it.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        pytest.skip("only Linux has leases on files")
    path = tmp_path / "stuck.png"
    path.write_bytes((photos / "cat" / "1.png").read_bytes())
    # The kernel signals the holder of the lease when another process opens the file.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)

    held = [os.open(path, os.O_RDWR)]

    class Stuck(type(path)):
        def release(self):
            while held:
                os.close(held.pop())

    stuck = Stuck(path)
    try:
        try:
            fcntl.fcntl(held[0], fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"this file system grants no leases: {error}")
        yield stuck
    finally:
        stuck.release()
        signal.signal(signal.SIGIO, before)


def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            names.append(pathlib.Path("/proc/self/task", task, "comm").read_text().strip())
    return sorted(name for name in names if name.startswith("spdl"))


def descriptors():
    """Open files of this process, without those of unreachable objects of other tests."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def assert_no_threads(within_s=2.0):
    """Allows a short delay: the system may list a joined thread for a moment."""
    deadline = time.monotonic() + within_s
    while threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threads() == []


@contextlib.contextmanager
def running(script, *arguments):
    """Runs a script in a separate Python process, which is killed at the end of the test."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Background programs start with SIGINT ignored, and child processes inherit that.
    hears_signals = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, **pipes, preexec_fn=hears_signals) as process:
        try:
            yield process
        finally:
            process.kill()


def assert_ends_well(script, *arguments, within_s=60):
    with running(script, *arguments) as process:
        assert process.communicate(timeout=within_s) == ("", "")
        assert process.returncode == 0


INTERRUPTED = """
    import sys, time, spdl_rs
    batches = iter(spdl_rs.ImageLoader([sys.argv[1]], batch_size=1))
    print("waiting", flush=True)
    try:
        next(batches)
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
        raise
"""


def test_ctrl_c_is_handled_within_100_ms_while_a_read_hangs(stuck):
    handled = []
    for _ in range(3):
        with running(INTERRUPTED, stuck) as process:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.2)
            pressed = time.monotonic()
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
            ended = time.monotonic()
        assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
        handled.append(float(output) - pressed)
        assert 0 < handled[-1] and ended - pressed < 2
    assert statistics.median(handled) < 0.1, handled


def test_a_file_is_read_without_the_gil_and_ctrl_c_is_handled(stuck):
    def handler(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    started = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            spdl_rs.io.Fetch()(stuck)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # If the GIL were held, no thread could release the file, and the wait would take 45 s.
    releaser = threading.Timer(0.2, stuck.release)
    releaser.start()
    assert len(numpy.asarray(spdl_rs.io.Fetch()(stuck))) == stuck.stat().st_size
    assert time.monotonic() - started < 20
    releaser.join()


def test_ctrl_c_ends_a_process_that_computes(photos):
    script = """
        import sys, spdl_rs
        loader = spdl_rs.ImageLoader([sys.argv[1]] * 1_000_000, batch_size=100_000, size=64)
        print("waiting", flush=True)
        for batch in loader:
            pass
    """
    with running(script, photos / "cat" / "1.png") as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        _, errors = process.communicate(timeout=30)
        # About 0.1 s on an idle machine; the batch takes 10 s and more.
        assert time.monotonic() - pressed < 4
        assert "KeyboardInterrupt" in errors


def test_an_exception_of_a_signal_handler_is_raised_and_ends_the_epoch(stuck):
    def handler(*_):
        raise LookupError("time is up")

    before = signal.signal(signal.SIGALRM, handler)
    batches = iter(spdl_rs.ImageLoader([stuck], batch_size=1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(LookupError, match="time is up"):
            next(batches)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert list(batches) == []
    stuck.release()
    assert_no_threads()


def test_other_threads_run_while_the_loader_waits(stuck):
    # If the GIL were held, no thread could release the file, and the wait would take 45 s.
    releaser = threading.Timer(0.2, stuck.release)
    releaser.start()
    started = time.monotonic()
    ((images, _),) = spdl_rs.ImageLoader([stuck], batch_size=1, size=16)
    assert 0.1 < time.monotonic() - started < 20
    assert images.shape == (1, 16, 16, 3)
    releaser.join()


def test_a_hanging_read_blocks_neither_close_nor_drop(stuck):
    started = time.monotonic()
    closed = iter(spdl_rs.ImageLoader([stuck], batch_size=1))
    dropped = iter(spdl_rs.ImageLoader([stuck], batch_size=1))
    # Wait until the reads are in flight.
    while threads().count("spdl-io-0") < 2:
        time.sleep(0.001)
    closed.close()
    del dropped
    gc.collect()
    assert time.monotonic() - started < 5
    stuck.release()
    assert_no_threads(within_s=10)


def drop_at_once(loader):
    iter(loader)


def take_one_and_drop(loader):
    next(iter(loader))


def leave_the_loop(loader):
    for _ in loader:
        break


def raise_in_the_loop(loader):
    with contextlib.suppress(LookupError):
        for _ in loader:
            raise LookupError


def take_all(loader):
    assert len(list(loader)) == len(loader)


def close_twice(loader):
    batches = iter(loader)
    next(batches)
    batches.close()
    batches.close()
    assert next(batches, None) is None


def leave_a_context(loader):
    with iter(loader) as batches:
        next(batches)


def hide_in_a_cycle(loader):
    cycle = [iter(loader)]
    cycle.append(cycle)
    del cycle
    gc.collect()


ENDINGS = [
    drop_at_once,
    take_one_and_drop,
    leave_the_loop,
    raise_in_the_loop,
    take_all,
    close_twice,
    leave_a_context,
    hide_in_a_cycle,
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_ending_leaves_a_thread_or_a_file(many, ending):
    loader = spdl_rs.ImageLoader(many, batch_size=4, size=32, train=True, threads=3)
    assert_no_threads()
    files = descriptors()
    for _ in range(25):
        ending(loader)
        assert_no_threads()
    assert descriptors() == files


def test_a_failure_leaves_no_thread(damaged):
    folder, _ = damaged
    files = descriptors()
    for _ in range(10):
        with pytest.raises(spdl_rs.DataError):
            list(spdl_rs.ImageLoader(folder, batch_size=4, size=32))
        assert_no_threads()
    assert descriptors() == files


def test_an_iterator_ends_quickly(many):
    loader = spdl_rs.ImageLoader(many, batch_size=4, size=32)
    times = []
    for _ in range(20):
        batches = iter(loader)
        next(batches)
        started = time.perf_counter()
        batches.close()
        times.append(time.perf_counter() - started)
    assert sorted(times)[10] < 0.05, times


def test_threads_may_share_an_iterator(photos):
    paths = [photos / "cat" / "1.png"] * 300
    batches = iter(spdl_rs.ImageLoader(paths, labels=range(300), batch_size=2, size=8))
    taken = [[] for _ in range(4)]

    def take(into):
        for _, labels in batches:
            into.extend(labels.tolist())

    takers = [threading.Thread(target=take, args=(into,)) for into in taken]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(label for labels in taken for label in labels) == list(range(300))


def test_statistics_are_available_while_another_thread_waits(stuck):
    batches = iter(spdl_rs.ImageLoader([stuck], batch_size=1))
    taker = threading.Thread(target=list, args=(batches,))
    taker.start()
    started = time.monotonic()
    while batches.stats()["stages"][0]["items"] == 0:
        assert time.monotonic() - started < 20
    assert batches.stats()["consumer"]["items"] == 0
    stuck.release()
    taker.join()
    assert batches.stats()["consumer"]["items"] == 1


# promise: R8
def test_a_fork_gets_an_error_for_the_old_iterator_and_can_make_new_ones(many):
    script = """
        import os, sys, warnings, spdl_rs
        warnings.simplefilter("ignore")
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16)
        unused = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16)
        ended = iter(loader)
        list(ended)
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            for ask in (lambda: next(batches), batches.stats, loader.stats):
                try:
                    ask()
                except RuntimeError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(3)
            assert ended.stats()["consumer"]["items"] == 10
            assert unused.stats()["stages"] == []
            batches.close()
            assert len(list(loader)) == 10
            assert loader.stats()["consumer"]["items"] == 10
            del batches
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert len(list(batches)) == 9
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    assert_ends_well(script, many)


@pytest.mark.parametrize(
    "ending",
    [
        "batches = iter(loader)",
        "batches = iter(loader); next(batches)",
        "batches = iter(loader); cycle = [batches]; cycle.append(cycle)",
        "batches = iter(loader); sys.exit(0)",
        "batches = iter(loader); threading.Thread(target=list, args=(batches,)).start()",
        "batches = iter(loader); list(batches); held = next(iter(loader))",
        "spdl_rs.keep = iter(loader); next(spdl_rs.keep)",
        "import atexit; batches = iter(loader); atexit.register(lambda: next(batches))",
    ],
)
def test_a_process_may_exit_at_any_time(many, ending):
    script = "import sys, threading, spdl_rs\n"
    script += "loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=32)\n" + ending
    assert_ends_well(script, many)


def test_a_process_may_exit_while_a_daemon_thread_waits_for_a_hanging_read(stuck):
    script = """
        import sys, threading, time, spdl_rs
        batches = iter(spdl_rs.ImageLoader([sys.argv[1]], batch_size=1))
        threading.Thread(target=list, args=(batches,), daemon=True).start()
        time.sleep(0.2)
    """
    assert_ends_well(script, stuck, within_s=20)
