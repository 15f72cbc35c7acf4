"""Trace sessions: start, end and output."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from pipelines import refuse, source, wait_until
from spdl_rs import _spdl_rs
from spdl_rs.io.utils import trace_counter, trace_event, tracing
from traces import named, read, thread_names


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture(autouse=True)
def no_session_is_left():
    yield
    assert _spdl_rs.Trace.now() is None


def test_t06_a_process_starts_without_a_session():
    program = "from spdl_rs import _spdl_rs; print(_spdl_rs.Trace.now())"
    assert run(program).stdout == "None\n"


def test_t06_without_a_session_nothing_is_recorded(path):
    assert _spdl_rs.Trace.now() is None
    pipeline = source(range(100)).pipe(abs).add_sink().build(num_threads=1)
    with trace_event("before"):
        list(pipeline)
    trace_counter(0, 1)
    with tracing(path):
        pass
    with trace_event("after"):
        pass
    assert [event["name"] for event in read(path)] == ["process_name"]


def test_t06_only_one_session_can_be_active(path, tmp_path):
    with tracing(path):
        with pytest.raises(RuntimeError, match="another trace is active"):
            # Nor is the same file truncated.
            with tracing(path):
                raise AssertionError("entered")
        with (
            pytest.raises(RuntimeError, match="another trace is active"),
            tracing(tmp_path / "other"),
        ):
            raise AssertionError("entered")
        with trace_event("on it goes"):
            pass
    assert named(read(path), "on it goes") and not (tmp_path / "other").exists()
    with tracing(path):
        pass
    assert not named(read(path), "on it goes")


def test_t06_an_exception_ends_the_session_and_propagates(path):
    with pytest.raises(ValueError, match="no 1"), tracing(path):
        with trace_event("fails"):
            refuse(1)
    assert len(named(read(path), "fails")) == 1


def test_t06_a_disabled_session_writes_no_file(path):
    with tracing(path, enable=False):
        assert _spdl_rs.Trace.now() is None
        with tracing(path), trace_event("inner"):
            pass
    assert named(read(path), "inner")


def test_t06_a_descriptor_is_written_to_and_stays_open(path):
    with open(path, "w+b") as file:
        with tracing(file.fileno()), trace_event("here"):
            pass
        file.seek(0)
        assert b"here" in file.read()
    assert named(read(path), "here")
    reader, writer = os.pipe()
    with tracing(writer), trace_event("piped"):
        pass
    os.close(writer)
    with open(reader, "rb") as file:
        assert [event["name"] for event in json.load(file) if event["ph"] == "X"] == ["piped"]


def test_t06_outputs_that_cannot_be_written_raise(tmp_path, path):
    with pytest.raises(FileNotFoundError), tracing(tmp_path / "no" / "trace.json"):
        raise AssertionError("entered")
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match="No space left"), tracing("/dev/full"):
            pass
    with pytest.raises(TypeError, match="buffer_size must be a whole number"):
        with tracing(path, buffer_size=1.5):
            raise AssertionError("entered")
    with pytest.raises(ValueError, match="buffer_size must be 1 to"), tracing(path, 0):
        raise AssertionError("entered")
    assert not path.exists()
    with tracing(path):
        pass


def test_t06_the_process_name_is_an_argument_or_the_program_name(path):
    with tracing(path, process_name='the "loader"\n\\\x01é'):
        pass
    assert read(path)[0]["args"]["name"] == 'the "loader"\n\\\x01é'
    with tracing(path):
        pass
    assert read(path)[0]["args"]["name"] == sys.argv[0]


def test_t06_memory_is_bounded_and_dropped_events_are_counted(path, caplog):
    with caplog.at_level(logging.WARNING, "spdl_rs.io"):
        with tracing(path, buffer_size=1):
            for _ in range(3):
                # No event fits.
                with trace_event("x" * 2000):
                    pass
            with trace_event("small"):
                pass
    assert "the trace lacks 3 events" in caplog.text
    events = read(path)
    assert named(events, "small") and len(events) == 3
    assert set(thread_names(events).values()) == {"MainThread"}


def test_t06_a_long_trace_is_written_while_it_is_recorded(path):
    with tracing(path, buffer_size=64):
        for _ in range(20):
            written = path.stat().st_size
            for _ in range(250):
                with trace_event("step"):
                    pass
            # These events fill more than a quarter of the buffer, and are written soon. Wait, so that no
            # event is dropped.
            wait_until(lambda: path.stat().st_size > written)
        assert path.stat().st_size > 100_000
        # Small amounts are written after a second.
        trace_counter(1, 77)
        wait_until(lambda: b'"value":77' in path.read_bytes())
    assert len(named(read(path), "step")) == 5000


def test_t06_many_threads_record_concurrently(path):
    def work():
        for _ in range(500):
            with trace_event("outer"), trace_event("inner"):
                pass

    with tracing(path, buffer_size=1 << 14):
        workers = [threading.Thread(target=work, name=f"worker {n}") for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    events = read(path)
    assert len(named(events, "outer")) == len(named(events, "inner")) == 4000
    names = thread_names(events)
    assert sorted(names.values()) == [f"worker {n}" for n in range(8)]


def run(program, *arguments):
    # Newer Python versions warn about a fork of a process with threads.
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        program,
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_t06_a_program_that_exits_within_a_session_leaves_a_complete_trace(path):
    program = """
import contextlib, sys
from spdl_rs.io.utils import trace_event, tracing
stack = contextlib.ExitStack()
stack.enter_context(tracing(sys.argv[1]))
with trace_event("last words"):
    pass
"""
    ran = run(program, path)
    assert (ran.returncode, ran.stderr) == (0, "")
    events = json.loads(path.read_text())
    assert [event["name"] for event in events if event["ph"] == "X"] == ["last words"]


@pytest.mark.skipif(not hasattr(os, "kill"), reason="processes cannot be killed here")
def test_t06_a_killed_process_loses_only_the_last_second_of_its_trace(path):
    program = """
import os, pathlib, signal, sys, time
from spdl_rs.io.utils import trace_event, tracing
with tracing(sys.argv[1]):
    with trace_event("last words"):
        pass
    while "last words" not in pathlib.Path(sys.argv[1]).read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(program, path).returncode == -signal.SIGKILL
    events = json.loads(path.read_text() + "]")
    assert [event["name"] for event in events if event["ph"] == "X"] == ["last words"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_t06_a_fork_records_nothing_and_may_start_a_separate_trace(path, tmp_path):
    program = """
import os, sys
from spdl_rs import _spdl_rs
from spdl_rs.io.utils import trace_event, tracing
def say(name):
    with trace_event(name):
        pass
with tracing(sys.argv[1]):
    say("before")
    if os.fork() == 0:
        assert _spdl_rs.Trace.now() is None
        say("in the fork")
        with tracing(sys.argv[2]):
            say("child")
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
    say("after")
"""
    ran = run(program, path, tmp_path / "fork.json")
    assert (ran.returncode, ran.stderr) == (0, "")

    def spans(path):
        events = json.loads(path.read_text())
        return {event["pid"] for event in events}, [e["name"] for e in events if e["ph"] == "X"]

    (parent,), names = spans(path)
    assert names == ["before", "after"]
    (child,), names = spans(tmp_path / "fork.json")
    assert names == ["child"] and child != parent
