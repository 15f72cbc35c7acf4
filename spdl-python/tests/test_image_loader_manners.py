"""Waits, interrupts and shutdown while a server does not respond."""

import gc
import os
import signal
import statistics
import threading
import time

import pytest
import spdl_rs
from dataset_files import write_litdata, write_mds, write_tar, write_zip
from servers import serving
from test_waiting import assert_ends_well, assert_no_threads, descriptors, running

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="these tests count threads in /proc"
)


@pytest.fixture
def server(many, tmp_path):
    paths = sorted(many.glob("*/*.png"))
    samples = [(path.stem, path.read_bytes(), 1) for path in paths]
    write_tar(tmp_path / "a.tar", samples)
    write_mds(tmp_path / "mds", samples)
    write_litdata(tmp_path / "litdata", samples)
    members = [(f"{name}.png", image) for name, image, _ in samples]
    write_zip(tmp_path / "a.zip", [*members, *((f"{name}.cls", b"1") for name, _, _ in samples)])
    for path in paths:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with serving(tmp_path) as server:
        server.names = [path.name for path in paths]
        yield server


INTERRUPTED = """
    import sys, time, spdl_rs
    batches = None
    try:
        if sys.argv[2] == "open":
            print("waiting", flush=True)
            spdl_rs.ImageLoader(sys.argv[1], batch_size=1)
        else:
            batches = iter(spdl_rs.ImageLoader([sys.argv[1]], batch_size=1))
            print("waiting", flush=True)
            next(batches)
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
        raise
"""


@pytest.mark.parametrize(("what", "name"), [("open", "a.tar"), ("read", "00.png")])
def test_ctrl_c_is_handled_within_100_ms_without_a_response(server, what, name):
    server.stuck.add(name)
    handled = []
    for _ in range(3):
        with running(INTERRUPTED, f"{server.address}/{name}", what) as process:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            pressed = time.monotonic()
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
            ended = time.monotonic()
        assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
        handled.append(float(output) - pressed)
        assert ended - pressed < 3
    assert statistics.median(handled) < 0.1, handled


def test_a_state_after_ctrl_c_resumes_exactly(server):
    server.stuck.add(server.names[3])
    loader = spdl_rs.ImageLoader(
        [f"{server.address}/{name}" for name in server.names],
        batch_size=1,
        size=16,
        labels=range(40),
    )
    found = []

    def handler(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            for _, labels in loader:
                found.extend(labels.tolist())
                if len(found) == 3:
                    signal.setitimer(signal.ITIMER_REAL, 0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    state = loader.state_dict()
    assert found == [0, 1, 2] and state["steps_in_epoch"] == 3
    server.stuck.clear()
    server.released.set()
    loader.load_state_dict(state)
    assert [label for _, labels in loader for label in labels.tolist()] == list(range(3, 40))


def test_close_and_drop_do_not_wait_for_a_response(server):
    server.stuck.add(server.names[0])
    source = [f"{server.address}/{server.names[0]}"]
    started = time.monotonic()
    loader = spdl_rs.ImageLoader(source, batch_size=1)
    closed, dropped = iter(loader), iter(loader)
    while len(server.requested) < 2:
        time.sleep(0.001)
    closed.close()
    del dropped, loader
    gc.collect()
    assert time.monotonic() - started < 5
    assert_no_threads(within_s=10)


def test_other_threads_run_while_the_loader_waits_for_a_server(server):
    server.stuck.add(server.names[0])
    ran = []

    def release():
        ran.append(time.monotonic())
        server.stuck.clear()
        server.released.set()

    timer = threading.Timer(0.3, release)
    timer.start()
    source = [f"{server.address}/{server.names[0]}"]
    # The reset connection is retried, and then gets a response.
    ((images, _),) = spdl_rs.ImageLoader(source, batch_size=1, size=16)
    assert ran and images.shape == (1, 16, 16, 3)
    timer.join()


@pytest.mark.parametrize("name", ["a.tar", "mds/index.json", "a.zip"])
def test_loaders_and_epochs_leak_no_threads_or_files(server, name):
    def once():
        loader = spdl_rs.ImageLoader(f"{server.address}/{name}", batch_size=4, size=32)
        for _ in loader:
            break
        assert len(list(loader)) == 10
        iter(loader)

    once()
    gc.collect()
    # Threads that decompress parts end some seconds after their last use.
    assert_no_threads(within_s=10)
    files = descriptors()
    for _ in range(5):
        once()
    assert_no_threads(within_s=10)
    # The server in this process closes its sockets after the client does.
    deadline = time.monotonic() + 10
    while descriptors() > files and time.monotonic() < deadline:
        time.sleep(0.01)
    assert descriptors() <= files


# promise: R8
@pytest.mark.parametrize("name", ["a.tar", "mds/index.json", "litdata/index.json", "a.zip"])
@pytest.mark.parametrize("cache", ["None", "sys.argv[2]"])
def test_a_forked_child_runs_new_epochs_of_a_loader(server, tmp_path, name, cache):
    script = f"""
        import os, sys, warnings, spdl_rs
        warnings.simplefilter("ignore")
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16, train=True, cache={cache})
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            for ask in (lambda: next(batches), loader.stats, loader.state_dict):
                try:
                    ask()
                except RuntimeError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(3)
            loader.set_epoch(0)
            assert len(list(loader)) == 10
            assert loader.state_dict()["epoch"] == 1
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert len(list(batches)) == 9
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    assert_ends_well(script, f"{server.address}/{name}", tmp_path / "cache")


# promise: R8
def test_a_forked_child_opens_new_connections_for_a_list(server, tmp_path):
    rows = "".join(f"{server.address}/{name}?width=5,7\n" for name in server.names)
    (tmp_path / "list.csv").write_text(rows)
    script = """
        import os, sys, warnings, spdl_rs
        warnings.simplefilter("ignore")
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=1, size=16)
        expected = [images.tobytes() for images, _ in loader]
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            found = [(images.tobytes(), labels[0]) for images, labels in loader]
            assert found == [(image, 7) for image in expected]
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert [images.tobytes() for images, _ in batches] == expected[1:]
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    assert_ends_well(script, tmp_path / "list.csv")


# promise: R8
def test_a_forked_child_may_drop_an_inherited_loader(server):
    script = """
        import os, sys, warnings, spdl_rs
        warnings.simplefilter("ignore")
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16)
        child = os.fork()
        del loader
        if child == 0:
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    assert_ends_well(script, f"{server.address}/a.tar", within_s=30)


@pytest.mark.parametrize(
    "ending",
    [
        "batches = iter(loader)",
        "batches = iter(loader); next(batches)",
        "batches = iter(loader); cycle = [batches, loader]; cycle.append(cycle)",
        "batches = iter(loader); sys.exit(0)",
        "batches = iter(loader); threading.Thread(target=list, args=(batches,)).start()",
        "spdl_rs.keep = loader; spdl_rs.keep_too = iter(loader); next(spdl_rs.keep_too)",
        "import atexit; batches = iter(loader); atexit.register(lambda: next(batches))",
        "loader.state_dict(); del loader",
    ],
)
@pytest.mark.parametrize("name", ["a.tar", "mds/index.json", "a.zip"])
def test_a_process_exits_cleanly_during_a_remote_epoch(server, name, ending):
    script = "import sys, threading, spdl_rs\n"
    script += "loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=32)\n" + ending
    assert_ends_well(script, f"{server.address}/{name}")


def test_a_process_exits_while_a_daemon_thread_waits_for_a_response(server):
    server.stuck.add(server.names[0])
    script = """
        import sys, threading, time, spdl_rs
        batches = iter(spdl_rs.ImageLoader([sys.argv[1]], batch_size=1))
        threading.Thread(target=list, args=(batches,), daemon=True).start()
        time.sleep(0.2)
    """
    assert_ends_well(script, f"{server.address}/{server.names[0]}", within_s=20)
