"""Features of the engine in pipelines of Python functions: retries, memory budget, quarantine, replay, control."""

import concurrent.futures
import json
import pathlib
import threading
import time
from collections import Counter as Counts

import numpy
import pytest
from pipelines import Counter, assert_no_threads, build, identity, run, source, threads
from spdl_rs.pipeline import PipelineBuilder, PipelineFailure, Retry, build_pipeline
from spdl_rs.pipeline.defs import (
    MAIN_PROCESS,
    Bucket,
    Merge,
    Pipe,
    PipelineConfig,
    ProcessPoolExecutorConfig,
    SinkConfig,
    SourceConfig,
)


class Flaky:
    """Raises an exception for the first calls with each item."""

    def __init__(self, failures=2, error=ConnectionError):
        self.failures, self.error, self.calls = failures, error, Counts()

    def __call__(self, item):
        self.calls[item] += 1
        if self.calls[item] <= self.failures:
            raise self.error(f"busy {self.calls[item]}")
        return item


def stage(pipeline, name):
    (found,) = [one for one in pipeline.stats()["stages"] if one["name"].endswith(f":{name}")]
    return found


QUICK = Retry(attempts=3, delay=0.001)


@pytest.mark.parametrize("kind", ["call", "iterate", "await", "iterate-async"])
def test_a_function_is_called_again_after_an_exception(kind, caplog):
    flaky = Flaky()

    def iterate(item):
        yield -1
        yield flaky(item)

    async def wait(item):
        return flaky(item)

    async def iterate_async(item):
        yield -1
        yield flaky(item)

    op = {"call": flaky, "iterate": iterate, "await": wait, "iterate-async": iterate_async}[kind]
    pipeline = build(source(range(4)).pipe(op, retry=QUICK, name="ask"))
    items = list(pipeline)
    # Results of failed attempts are not forwarded.
    expected = [n for item in range(4) for n in ((-1, item) if "iterate" in kind else (item,))]
    assert sorted(items) == sorted(expected)
    statistics = stage(pipeline, "ask")
    assert (statistics["retries"], statistics["failures"]) == (8, 0)
    assert pipeline.stats()["dropped_total"] == 0 and not caplog.records


@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_exception_drops_the_item_and_is_logged_once(is_async, caplog):
    flaky = Flaky(failures=9)

    async def wait(item):
        return flaky(item)

    pipeline = build(source("a").pipe(wait if is_async else flaky, retry=QUICK, name="ask"), max_failures=0)
    with pytest.raises(PipelineFailure) as raised:
        list(pipeline)
    (error,) = raised.value.exceptions
    assert str(error) == "busy 3" and flaky.calls["a"] == 3
    if hasattr(error, "__notes__"):
        assert any("after 3 attempts" in note for note in error.__notes__)
        assert any("Item: 'a'" in note for note in error.__notes__)
    assert sum("failed on" in record.message for record in caplog.records) == 1
    statistics = stage(pipeline, "ask")
    assert (statistics["retries"], statistics["failures"]) == (2, 1)


def test_an_item_that_is_dropped_after_retries_is_counted_once():
    pipeline = build(source("ab").pipe(Flaky(failures=9), retry=QUICK, name="ask"))
    assert list(pipeline) == []
    statistics = pipeline.stats()
    assert {(one["kind"], one["reason"].split(": ")[-1]) for one in statistics["dropped"]} == {
        ("user", "busy 3")
    }
    assert statistics["dropped_total"] == 2 and stage(pipeline, "ask")["retries"] == 4


def test_other_exceptions_are_not_retried():
    flaky = Flaky(error=ValueError)
    assert run(source("ab").pipe(flaky, retry=QUICK)) == []
    assert set(flaky.calls.values()) == {1}
    flaky = Flaky(error=ValueError)
    retry = Retry(delay=0, exceptions=(KeyError, ValueError))
    assert sorted(run(source("ab").pipe(flaky, retry=retry))) == ["a", "b"]


def test_later_stages_run_while_an_item_waits_for_its_retry():
    """One thread: the second stage processes item 0 while item 1 waits."""
    seen, flaky = threading.Event(), Flaky(failures=1)

    def ask(item):
        if item == 1 and flaky.calls[1]:
            # The second attempt: the first item has passed the next stage.
            assert seen.wait(60)
        return flaky(item) if item == 1 else item

    def later(item):
        seen.set()
        return item

    stages = source(range(3)).pipe(ask, retry=Retry(delay=0.2, jitter=0)).pipe(later)
    assert sorted(run(stages, num_threads=1)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"attempts": 0}, ValueError),
        ({"attempts": 1.5}, TypeError),
        ({"delay": -1}, ValueError),
        ({"delay": 9}, ValueError),
        ({"factor": 0.5}, ValueError),
        ({"jitter": 2}, ValueError),
        ({"exceptions": ()}, None),
        ({"exceptions": "OSError"}, TypeError),
        ({"exceptions": (OSError, KeyboardInterrupt)}, TypeError),
    ],
)
def test_invalid_retries_are_refused(arguments, error):
    if error is None:
        assert Retry(**arguments)._classes() == ()
        return
    with pytest.raises(error):
        Retry(**arguments)


def test_a_retry_is_refused_where_it_has_no_effect():
    from spdl_rs.io import Fetch

    with pytest.raises(ValueError, match="does not support retry"):
        Pipe(Fetch(), retry=QUICK)
    with pytest.raises(TypeError, match="must be a Retry"):
        Pipe(str, retry=3)


def arrays(count, size):
    return [numpy.zeros(size, "u1") for _ in range(count)]


def test_a_memory_budget_limits_the_bytes_in_flight():
    lock, live, most = threading.Lock(), 0, 0

    def make(item):
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        return numpy.full(1000, item % 256, "u1")

    def free(array):
        nonlocal live
        with lock:
            live -= 1
        return int(array[0])

    def peak(**options):
        nonlocal live, most
        live = most = 0
        stages = source(range(300)).pipe(make, concurrency=8).pipe(free, concurrency=1)
        assert sorted(run(stages, num_threads=8, **options)) == sorted(n % 256 for n in range(300))
        return most

    # The first result is not measured yet, and one of each stage may exceed the budget.
    assert peak(memory_budget=8000) <= 8 + 8
    assert peak(memory_budget=10**9) >= 0


def test_a_result_larger_than_the_budget_is_delivered():
    big = lambda item: numpy.zeros(10**6, "u1")  # noqa: E731
    stages = source(range(6)).pipe(big, concurrency=2).aggregate(3)
    assert [len(batch) for batch in run(stages, memory_budget=1000)] == [3, 3]


def test_the_size_function_of_a_stage_measures_its_results(monkeypatch):
    measured, raised = [], []
    monkeypatch.setattr("sys.unraisablehook", lambda info: raised.append(info.exc_value))

    def size(item):
        measured.append(item)
        if item == 3:
            raise KeyError("no size")
        return 10

    assert sorted(run(source(range(5)).pipe(identity, size=size), memory_budget=100)) == list(range(5))
    assert sorted(measured) == list(range(5)) and [str(error) for error in raised] == ["'no size'"]
    measured.clear()
    run(source(range(5)).pipe(identity, size=size))
    assert not measured


def test_sizes_of_common_items():
    from spdl_rs.pipeline._run.options import size_of

    array = numpy.zeros((3, 4), "f4")
    assert size_of(array) == 48
    assert size_of({"image": array, "text": "abc", "data": [b"12", bytearray(5)]}) == 48 + 3 + 2 + 5
    assert size_of((array, memoryview(b"123"))) == 51
    assert size_of(3) > 0


def refuse_some(item):
    if str(item) in ("1", "b", "4"):
        raise ValueError(f"no {item}")
    return item


@pytest.mark.parametrize("items", [list("abcd"), list(range(5)), [pathlib.Path("a"), pathlib.Path("b")]])
def test_quarantined_items_are_left_out_by_later_runs(items, tmp_path):
    path, calls = tmp_path / "bad.jsonl", []

    def check(item):
        calls.append(item)
        return refuse_some(item)

    bad = [item for item in items if str(item) in ("1", "b", "4")]
    good = [item for item in items if item not in bad]
    for turn in range(2):
        calls.clear()
        pipeline = build(source(items).pipe(check), quarantine=path)
        assert list(pipeline) == good
        assert sorted(calls) == sorted(good if turn else items)
        statistics = pipeline.stats()
        assert statistics["filtered"] == (len(bad) if turn else 0)
        assert statistics["dropped_total"] == (0 if turn else len(bad))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert sorted(line["key"] for line in lines) == sorted(map(str, bad))


def test_quarantine_keys_come_from_the_key_function(tmp_path):
    items = [{"id": "x", "n": 1}, {"id": "y", "n": 2}]

    def check(item):
        if item["n"] == 1:
            raise ValueError("no")
        return item["id"]

    options = {"quarantine": tmp_path / "bad", "key": lambda item: item["id"]}
    for _ in range(2):
        assert run(source(items).pipe(check), **options) == ["y"]
    assert [json.loads(line)["key"] for line in (tmp_path / "bad").read_text().splitlines()] == ["x"]
    with pytest.raises(PipelineFailure) as raised:
        run(source(items), quarantine=tmp_path / "bad")
    assert "pass key=" in str(raised.value.exceptions[0])
    with pytest.raises(ValueError, match="no effect without quarantine"):
        build(source(items), key=str)
    with pytest.raises(OSError):
        build(source(items), quarantine=tmp_path / "no" / "such" / "folder")


def test_a_quarantined_pipeline_resumes(tmp_path):
    (tmp_path / "bad").write_text("")

    def make():
        return build(source(range(8)).pipe(refuse_some), quarantine=tmp_path / "bad")

    first = make()
    assert [first.get_item() for _ in range(3)] == [0, 2, 3]
    state = first.state_dict()
    first.stop()
    second = make()
    second.load_state_dict(state)
    assert list(second) == [5, 6, 7]


def test_a_recorded_order_is_replayed():
    def hurry(item):
        time.sleep(0.002 * (item * 7 % 5))
        return item

    stages = source(range(30)).pipe(hurry, concurrency=4).aggregate(4).add_sink()
    first = stages.build(num_threads=4, record_order=True)
    batches = list(first)
    text = first.order_record()
    assert sorted(sum(batches, [])) == list(range(30))
    for _ in range(2):
        assert list(stages.build(num_threads=4, replay=text)) == batches
    assert list(stages.build(num_threads=1, record_order=True, replay=text)) == batches


def test_an_order_that_was_not_recorded_is_an_error():
    pipeline = build(source(range(3)))
    with pytest.raises(RuntimeError, match="record_order=True"):
        pipeline.order_record()
    with pytest.raises(ValueError, match="order"):
        build(source(range(3)), replay="nonsense")
    with pytest.raises(TypeError, match="replay"):
        build(source(range(3)), replay=[1])


def merge_of(*configs, **options):
    return PipelineConfig(Merge(configs, **options), [], SinkConfig(2))


def part(items):
    return PipelineConfig(SourceConfig(items), [], SinkConfig(1))


@pytest.mark.parametrize(
    "option",
    [
        {"memory_budget": 100},
        {"quarantine": "x"},
        {"record_order": True},
        {"replay": "x"},
        {"tune": True},
        {"monitor": "x"},
    ],
)
def test_options_that_a_region_does_not_support_are_refused(option):
    stages = source([1]).to(ProcessPoolExecutorConfig(max_workers=1)).pipe(str).to(MAIN_PROCESS)
    with pytest.raises(ValueError, match="is not supported for a pipeline with stages in other processes"):
        build(stages, **option)


class Together:
    """A function that waits a moment, until `most` calls run at the same time."""

    def __init__(self, most):
        self.most, self.counter, self.reached = most, Counter(), threading.Event()

    def __call__(self, item):
        with self.counter._counted():
            if self.counter.now == self.most:
                self.reached.set()
            # Items must arrive, because workers start when they do.
            self.reached.wait(0.05)
        return item


def test_concurrency_and_threads_change_while_the_pipeline_runs():
    work = Together(6)
    pipeline = build(source(range(400)).pipe(work, name="work"), num_threads=1)
    with pipeline.auto_stop():
        items = [pipeline.get_item() for _ in range(3)]
        assert work.counter.most == 1
        pipeline.control().set_num_threads(6)
        pipeline.control().set_concurrency("work", 6)
        assert sum("worker" in name for name in threads()) == 6
        for count in (4, 7, 6):
            pipeline.control().set_num_threads(count)
        assert sum("worker" in name for name in threads()) == 7
        assert sorted(items + list(pipeline)) == list(range(400))
        assert stage(pipeline, "work")["concurrency"] == 6
    assert work.counter.most == 6
    assert_no_threads()


def test_the_concurrency_of_a_stage_with_an_executor_changes():
    work = Together(5)
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        pipeline = build(source(range(400)).pipe(work, executor=executor, concurrency=2, name="work"))
        with pipeline.auto_stop():
            items = [pipeline.get_item() for _ in range(3)]
            assert work.counter.most <= 2
            pipeline.control().set_concurrency("work", 5)
            assert sorted(items + list(pipeline)) == list(range(400))
    assert work.counter.most == 5
    assert_no_threads()


def test_a_control_refuses_unknown_and_ambiguous_stages():
    pipeline = build(source(range(9)).pipe(identity).pipe(identity).aggregate(2))
    with pipeline.auto_stop():
        control = pipeline.control()
        with pytest.raises(ValueError, match="several stages are named 'identity'"):
            control.set_concurrency("identity", 2)
        control.set_concurrency(pipeline.stats()["stages"][1]["name"], 2)
        for name in ("other", "aggregate", "src"):
            with pytest.raises(ValueError, match="no stage with adjustable concurrency"):
                control.set_concurrency(name, 2)
        with pytest.raises(ValueError):
            control.set_concurrency("identity", 0)
        with pytest.raises(TypeError):
            control.set_num_threads("2")
        assert sum(map(len, pipeline)) == 9


def test_a_weighted_merge_depends_only_on_weights_seed_and_epoch():
    def merged(seed, weights=(3, 1)):
        config = merge_of(part("a" * 300), part("b" * 100), weights=weights, seed=seed)
        return "".join(build_pipeline(config, num_threads=2))

    first = merged(1)
    assert merged(1) == first and merged(2) != first
    assert Counts(first) == {"a": 300, "b": 100}
    # The share of the first 200 draws follows the weights.
    assert 115 <= first[:200].count("a") <= 185
    assert 15 <= merged(1, weights=[1, 9])[:100].count("a") + 10 <= 40


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, float("nan")], [1, -1]])
def test_invalid_weights_are_refused(weights):
    with pytest.raises(ValueError):
        merge_of(part("a"), part("b"), weights=weights)


def test_weights_and_a_merge_function_exclude_each_other():
    with pytest.raises(ValueError, match="either weights or op"):
        Merge([part("a")], identity, weights=[1])
    with pytest.raises(ValueError, match="one source"):
        build_pipeline(merge_of(part("a")), num_threads=1, record_order=True)


def test_buckets_hold_items_of_similar_length():
    words = ["a", "longer", "be", "longest", "c", "dd"]
    assert run(source(words).aggregate(Bucket([4], 2))) == [
        ["a", "be"],
        ["longer", "longest"],
        ["c", "dd"],
    ]
    sizes = Bucket([2, 4], [3, 1, 2], length=float)
    assert run(source([1, 5, 3, 2, 6, 1]).aggregate(sizes)) == [[3], [5, 6], [1, 2, 1]]
    padded = run(source([3, 4, 4, 9]).aggregate(Bucket([10], 9, length=float, max_padded=12)))
    assert padded == [[3, 4, 4], [9]]
    assert run(source([1, 2, 3]).aggregate(Bucket([5], 2, length=float), drop_last=True)) == [[1, 2]]


def test_the_fill_rate_of_buckets_is_in_the_statistics():
    pipeline = build(source([1, 2, 3, 4]).aggregate(Bucket([2], 2, length=float)))
    assert list(pipeline) == [[1, 2], [3, 4]]
    assert stage(pipeline, "aggregate")["fill_rate"] == pytest.approx(10 / 12)


def test_an_item_without_a_valid_length_fails():
    pipeline = build(source(["ab", 5, "c", [], "d"]).aggregate(Bucket([4], 2)))
    assert [item for items in pipeline for item in items] == ["ab", "c", [], "d"]
    assert pipeline.stats()["dropped_total"] == 1
    pipeline = build(source([1, -1, float("inf"), 30]).aggregate(Bucket([4], 9, length=float, max_padded=20)))
    assert list(pipeline) == [[1]] and pipeline.stats()["dropped_total"] == 3


@pytest.mark.parametrize(
    "arguments",
    [([4, 3], 2), ([4], 0), ([4], [1, 2, 3]), ([-1], 2), ([float("nan")], 2)],
)
def test_invalid_buckets_are_refused(arguments):
    with pytest.raises(ValueError):
        Bucket(*arguments)


def test_a_pipeline_without_these_features_has_no_part_for_them():
    pipeline = PipelineBuilder().add_source("a").pipe(str).add_sink().build(num_threads=1)
    assert pipeline._positions.sources[0].iterable() == "a"
