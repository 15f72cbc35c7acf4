"""Worker processes in traces."""

import os
import signal
import time

import pytest
from pipelines import source
from spdl_rs import Loader, _spdl_rs, fields
from spdl_rs.io.utils import tracing
from spdl_rs.pipeline import iterate_in_subprocess
from traces import named, read


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture(autouse=True)
def no_session_is_left():
    yield
    assert _spdl_rs.Trace.now() is None


def double(number):
    time.sleep(0.005)
    return 2 * number


def doubled():
    return source(range(20)).pipe(double).add_sink().build(num_threads=1)


def brighter(sample):
    time.sleep(0.01)
    return {"number": sample["number"] + 1}


def of_workers(events):
    return [event for event in events if event["pid"] != os.getpid()]


def processes(events):
    return {event["pid"]: event["args"]["name"] for event in named(events, "process_name", "M")}


def test_a_pipeline_in_a_subprocess_is_recorded_on_the_same_clock(path):
    with tracing(path, process_name="parent"):
        began = _spdl_rs.Trace.now()
        assert sorted(iterate_in_subprocess(doubled)) == list(range(0, 40, 2))
        ended = _spdl_rs.Trace.now()
    events = read(path, has_workers=True)
    names = processes(events)
    assert len(names) == 2 and names[os.getpid()] == "parent"
    spans = named(of_workers(events), "double")
    assert len(spans) == 20
    for span in spans:
        assert began / 1e3 <= span["ts"] and span["ts"] + span["dur"] <= ended / 1e3
        assert span["dur"] >= 5000


def test_processes_that_run_already_are_recorded_until_the_end_of_the_trace(path):
    samples = [{"number": number} for number in range(12)]
    loader = Loader(
        samples, batch_size=2, number=fields.Number(), map=brighter, executor="processes", processes=2
    )
    assert len(list(loader)) == 6
    with tracing(path):
        assert len(list(loader)) == 6
    events = read(path, has_workers=True)
    spans = named(of_workers(events), "functions")
    assert len(spans) == 6
    assert all("functions of a Loader" in processes(events)[span["pid"]] for span in spans)
    # The processes are used after the trace, and record the next one too.
    assert len(list(loader)) == 6
    with tracing(path):
        assert len(list(loader)) == 6
    assert len(named(of_workers(read(path, has_workers=True)), "functions")) == 6


def killed():
    for number in range(100):
        time.sleep(0.01)
        yield number
        if number == 50:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_a_valid_trace(path):
    with tracing(path), pytest.raises(Exception, match="SIGKILL|killed|signal"):
        list(iterate_in_subprocess(killed))
    assert read(path, has_workers=True)


def test_a_trace_without_workers_has_one_process(path):
    with tracing(path):
        assert len(list(doubled())) == 20
    assert list(processes(read(path))) == [os.getpid()]
