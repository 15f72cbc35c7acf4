"""The content of traces."""

import asyncio
import contextlib
import doctest
import gc
import threading
import time

import pytest
import spdl_rs
from native import SIZE, files
from pipelines import refuse, source
from spdl_rs import _spdl_rs
from spdl_rs.io import BatchImages, DecodeImage, Fetch, utils
from spdl_rs.io.utils import _tracing, trace_counter, trace_event, trace_gc, tracing
from traces import named, read, thread_names


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture(autouse=True)
def no_session_is_left():
    yield
    assert _spdl_rs.Trace.now() is None
    with contextlib.suppress(ValueError):
        gc.callbacks.remove(_tracing._collected)


def test_t06_every_item_of_every_stage_has_an_event_with_its_thread(path):
    def double(number):
        time.sleep(0.001)
        return 2 * number

    builder = source(range(20)).pipe(double, concurrency=2).aggregate(5)
    with tracing(path):
        assert len(list(builder.add_sink().build(num_threads=2))) == 4
    events = read(path)
    doubles = named(events, "double")
    assert sorted(event["args"]["index"] for event in doubles) == list(range(20))
    assert all(event["dur"] >= 1000 and event["args"]["epoch"] == 0 for event in doubles)
    assert all(event["args"]["stage"].endswith(":double[2]") for event in doubles)
    assert {event["cat"] for event in doubles} == {"computes"}
    assert len(named(events, "aggregate")) == 20 and len(named(events, "source")) == 20
    names = thread_names(events)
    assert {names[event["tid"]].rstrip("01") for event in doubles} == {"spdl_worker_thread_"}
    assert {names[event["tid"]] for event in named(events, "source")} == {"spdl_sync_source"}
    waits = named(events, "wait")
    assert {names[event["tid"]] for event in waits} == {"MainThread"} and len(waits) == 5
    # The thread IDs are those of the operating system.
    assert {event["tid"] for event in waits} == {threading.get_native_id()}


def test_t06_events_of_native_stages_and_image_loaders_have_keys(many, path):
    paths = files(many)
    builder = source(paths).pipe(Fetch()).pipe(DecodeImage(SIZE)).aggregate(BatchImages(8))
    with tracing(path):
        list(builder.add_sink().build(num_threads=1))
    events = read(path)
    # One thread has many reads in flight, so their events overlap.
    assert len(named(events, "Fetch", "b")) == 40 and not named(events, "Fetch")
    assert len(named(events, "DecodeImage")) == 40
    assert {event["cat"] for event in named(events, "DecodeImage")} == {"fills batches"}

    loader = spdl_rs.ImageLoader(many, batch_size=8, size=SIZE, shuffle=False)
    with tracing(path):
        assert len(list(loader)) == 5
    events = read(path)
    decoded, fetched = named(events, "decode"), named(events, "fetch", "b")
    keys = {str(path.relative_to(many)) for path in many.glob("*/*.png")}
    for found in (decoded, fetched):
        assert len(found) == 40
        assert {key for key in keys if any(e["args"]["key"].endswith(key) for e in found)} == keys
    assert len(named(events, "wait")) == 6


def test_t06_failures_are_traced(path, caplog):
    with tracing(path):
        list(source(range(3)).pipe(refuse).add_sink().build(num_threads=1))
    assert [event["args"]["failed"] for event in named(read(path), "refuse")] == ["user"] * 3


def test_t06_events_of_coroutines_overlap(path):
    async def nap(item):
        with trace_event(f"nap {item}"):
            await asyncio.sleep(0.01 * (1 + item))
        return item

    with tracing(path):
        list(source(range(4)).pipe(nap, concurrency=4).add_sink().build(num_threads=1))
    events = read(path)
    assert len(named(events, "nap", "b")) == 4
    # The last coroutine outlives the others, which end while it runs.
    kinds = [
        (len(named(events, f"nap {n}")), len(named(events, f"nap {n}", "b"))) for n in range(4)
    ]
    assert kinds == [(0, 1), (0, 1), (0, 1), (1, 0)]


def test_t06_a_running_pipeline_can_be_traced(path):
    pipeline = source(range(1000)).pipe(abs).add_sink(1).build(num_threads=1)
    items = iter(pipeline)
    for _ in range(10):
        next(items)
    with tracing(path):
        for _ in range(300):
            next(items)
    rest = len(list(items))
    indices = [event["args"]["index"] for event in named(read(path), "abs")]
    assert rest == 690 and 200 < len(indices) < 700 and min(indices) >= 10


def test_t06_events_that_cross_the_start_or_end_of_a_session_are_left_out(path):
    around = trace_event("around")
    around.__enter__()
    late = trace_event("late")
    with tracing(path):
        around.__exit__(None, None, None)
        with trace_event("inside"):
            pass
        late.__enter__()
    late.__exit__(None, None, None)
    assert {event["name"] for event in read(path) if event["ph"] != "M"} == {"inside"}


def test_t07_events_nest_and_decorate(path):
    @trace_event("decorated")
    def function(depth):
        return depth if depth == 0 else function(depth - 1)

    with tracing(path), trace_event("outer"):
        with trace_event("first"):
            pass
        assert function(2) == 0
    events = read(path)
    (outer,) = named(events, "outer")
    decorated = named(events, "decorated")
    assert len(decorated) == 3 and len(named(events, "first")) == 1
    assert all(outer["ts"] <= e["ts"] <= outer["ts"] + outer["dur"] for e in decorated)
    # Each call has a separate start, and the innermost call ends first.
    begun = [e["ts"] for e in decorated]
    assert begun == sorted(set(begun), reverse=True)


def test_t07_event_names_must_be_strings():
    for name in [None, 3, b"name"]:
        with pytest.raises(TypeError, match="the name of an event must be a str"):
            trace_event(name)


def test_t07_counters_have_values(path):
    with tracing(path):
        for value in [1, 2.5, -3, 0, 10**30]:
            trace_counter(0, value)
        trace_counter(7, True)
        for value in [float("nan"), float("inf")]:
            trace_counter(1, value)
        with pytest.raises(TypeError):
            trace_counter(0, "many")
    events = read(path)
    counted = named(events, "counter 0", "C")
    assert [float(event["args"]["value"]) for event in counted] == [1, 2.5, -3, 0, 1e30]
    assert [event["args"]["value"] for event in named(events, "counter 7", "C")] == [1]
    assert not named(events, "counter 1", "C")


@pytest.mark.parametrize("i", [-1, 8, 100])
def test_t07_there_are_eight_counters(i):
    with pytest.raises(ValueError, match="i must be 0 to 7"):
        trace_counter(i, 1)
    with pytest.raises(TypeError):
        trace_counter(0.5, 1)


def test_t07_each_garbage_collection_has_one_event(path):
    trace_gc()
    trace_gc()
    assert gc.callbacks.count(_tracing._collected) == 1
    gc.collect()
    with tracing(path):
        with trace_event("around"):
            gc.collect()
    (around,) = named(read(path), "around")
    (collected,) = [
        event
        for event in named(read(path), "gc")
        if around["ts"] <= event["ts"] <= around["ts"] + around["dur"]
        and event["args"]["generation"] == 2
    ]
    assert collected["args"].keys() >= {"collected", "generation", "uncollectable"}


@pytest.mark.parametrize("module", [utils, _tracing], ids=lambda module: module.__name__)
def test_the_examples_of_tracing_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module)
    assert result.attempted > 3 and result.failed == 0
