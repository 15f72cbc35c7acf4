"""`profile_pipeline`: each stage alone, at several concurrencies."""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import random
import threading
import time

import pytest
from native import SIZE, files
from pipelines import Counter, refuse, source, threads
from profiles import AT_ONCE, RecordingHook, described
from spdl_rs.io import BatchImages, DecodeImage, Fetch
from spdl_rs.pipeline import (
    PipelineBuilder,
    PipelineFailure,
    TaskHook,
    config,
    profile_pipeline,
)
from spdl_rs.pipeline.defs import (
    MAIN_PROCESS,
    Merge,
    Pipe,
    PipelineConfig,
    ProcessPoolExecutorConfig,
    SinkConfig,
    SourceConfig,
)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    yield
    config.set_default_hook_class()


def test_t01_each_stage_runs_at_concurrency_32_16_8_4_and_1():
    class Meet(RecordingHook):
        """Blocks each item until as many items as the concurrency have arrived."""

        @contextlib.contextmanager
        def stage_profile_hook(self, stage, concurrency):
            self.barrier = threading.Barrier(concurrency, timeout=60)
            yield

        def __call__(self, item):
            self.barrier.wait()
            self.calls.append(item)
            return item

    meet = Meet()
    (result,) = profile_pipeline(
        described(source(range(1000)).pipe(meet, concurrency=3)), 64, hook=meet
    )
    assert [stats.concurrency for stats in result.stats] == AT_ONCE
    assert meet.calls.count(63) == 5 and len(meet.calls) == 5 * 64 + 2
    assert (result.name, result.kind, result.concurrency) == ("Meet", "threads", 3)
    for stats in result.stats:
        assert stats.qps > 0 and stats.source_qps == pytest.approx(stats.qps)
        assert 0 <= stats.occupancy_rate <= 1 and stats.cpus >= 0 and stats.failures == 0
    assert not threads()


def test_t01_rates_are_items_per_second():
    def nap(item):
        time.sleep(0.02)
        return item

    (result,) = profile_pipeline(described(source(range(10)).pipe(nap)))
    for stats in result.stats:
        # Sleeping takes at least this long.
        assert stats.qps <= stats.concurrency / 0.02
    # An upper bound.
    assert result.stats[-1].qps > 0.5


def test_t01_the_concurrency_of_a_run_is_not_exceeded():
    counter, most = Counter(0.002), []

    class Watch(RecordingHook):
        @contextlib.contextmanager
        def stage_profile_hook(self, stage, concurrency):
            counter.most = 0
            yield
            most.append((concurrency, counter.most))

    profile_pipeline(described(source(range(70)).pipe(counter)), hook=Watch())
    assert [at_once for at_once, _ in most] == AT_ONCE
    assert all(found <= at_once for at_once, found in most) and most[-1] == (1, 1)


def test_t01_the_outputs_of_a_stage_are_the_inputs_of_the_next():
    seen = {"first": [], "second": []}
    lock = threading.Lock()

    def first(number):
        with lock:
            seen["first"].append(number)
        return str(number)

    def second(text):
        with lock:
            seen["second"].append(text)
        return text

    builder = source(iter(range(100))).pipe(first).aggregate(4, drop_last=True).disaggregate()
    report = profile_pipeline(described(builder.pipe(second)), 10)
    # The source is iterated once, and only as far as requested.
    assert sorted(seen["first"]) == sorted(list(range(10)) * 5)
    assert seen["second"][-8:] == [str(number) for number in range(8)]
    assert [result.name for result in report] == ["first", "aggregate", "disaggregate", "second"]
    assert [len(result.stats) for result in report] == [5, 1, 1, 5]
    assert [result.kind for result in report][1:3] == ["one at a time"] * 2
    # 2 lists of 10 items; 8 items of these 10; 8 of 10.
    for result, share in zip(report[1:], [0.2, 0.8, 0.8]):
        for stats in result.stats:
            assert stats.qps / stats.source_qps == pytest.approx(share)


def test_t01_each_kind_of_function_is_profiled_where_it_runs():
    async def wait(item):
        await asyncio.sleep(0.001)
        return item

    async def spell(item):
        yield item
        yield item

    def twice(item):
        yield item
        yield item

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        builder = source(range(20)).pipe(wait).pipe(spell).pipe(twice).pipe({5: 1, 6: 2}.get)
        report = profile_pipeline(described(builder.pipe(abs, executor=executor)))
        assert [result.kind for result in report] == [
            "event loop",
            "event loop",
            "threads",
            "threads",
            "executor",
        ]
        # The CPUs of the processes are unknown.
        assert [stats.cpus for stats in report[-1].stats] == [None] * 5
        assert all(stats.cpus is not None for stats in report[0].stats)


def test_t01_custom_executors_keep_their_workers():
    counter = Counter(0.01)
    with concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="users") as executor:
        names = set()

        def note(item):
            names.add(threading.current_thread().name.split("_")[0])
            return counter(item)

        profile_pipeline(described(source(range(16)).pipe(note, executor=executor)))
    assert names == {"users"} and counter.most == 2


def test_t01_a_process_pool_can_be_profiled():
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        builder = source([1] * 6).pipe(_process, executor=executor)
        seen = set()

        def note(process):
            seen.add(process)
            return process

        (result, _) = profile_pipeline(described(builder.pipe(note)))
    assert result.kind == "executor" and os.getpid() not in seen and len(seen) == 1


def _process(_):
    return os.getpid()


def test_t01_native_stages_can_be_profiled(many):
    paths = files(many)
    builder = source(paths).pipe(Fetch()).pipe(DecodeImage(SIZE)).aggregate(BatchImages(8))
    seen = []

    def note(batch):
        seen.append(batch.shape)
        return batch

    report = profile_pipeline(described(builder.pipe(note)), 20)
    assert [result.name for result in report] == ["Fetch", "DecodeImage + aggregate", "note"]
    assert [result.kind for result in report] == ["native", "native", "threads"]
    assert [len(result.stats) for result in report] == [5, 5, 5]
    # Three batches of 20 images.
    assert report[1].stats[0].qps / report[1].stats[0].source_qps == pytest.approx(3 / 20)
    assert seen[-3:] == [(8, SIZE, SIZE, 3), (8, SIZE, SIZE, 3), (4, SIZE, SIZE, 3)]
    # spdl_rs chooses the concurrency of this stage.
    assert report[0].concurrency is None and "(set:" not in str(report[0])


def test_t01_failures_are_counted_and_do_not_end_the_profile(caplog):
    def odd(number):
        return refuse(number) if number % 2 else number

    builder = source(range(20)).pipe(odd, max_failures=0).pipe(abs)
    report = profile_pipeline(described(builder))
    assert [stats.failures for stats in report[0].stats] == [10] * 5
    assert report[1].stats[0].qps / report[1].stats[0].source_qps == pytest.approx(0.5)
    assert "10 items failed" in str(report[0]) and "failed" not in str(report[1])


def test_t01_an_empty_source_or_stage_raises():
    with pytest.raises(RuntimeError, match="the source has no items"):
        profile_pipeline(described(source([]).pipe(abs)))
    reported = RecordingHook()
    with pytest.raises(RuntimeError, match="cannot profile 'abs': 'drop' produced no output"):
        profile_pipeline(
            described(source([1]).pipe(lambda _: None, name="drop").pipe(abs)), hook=reported
        )
    assert reported.calls[-1] == "end"


def test_t01_an_exception_of_the_source_is_raised():
    def broken():
        yield 1
        raise ValueError("no more")

    with pytest.raises(PipelineFailure) as raised:
        profile_pipeline(described(source(broken()).pipe(abs)))
    assert [str(error) for error in raised.value.exceptions] == ["no more"]


def test_t01_a_continuous_source_is_iterated_once():
    passes = []

    class Source:
        def __iter__(self):
            passes.append(1)
            return iter(range(3))

    builder = source(Source(), continuous=True).aggregate(10)
    (result,) = profile_pipeline(described(builder), 8)
    assert len(passes) == 1
    assert result.stats[0].qps / result.stats[0].source_qps == pytest.approx(1 / 3)


def test_t01_merged_pipelines_are_profiled_in_turn_and_their_items_mixed():
    def part(start, name):
        pipes = [Pipe(abs, name=name)]
        return PipelineConfig(SourceConfig(range(start, start + 100)), pipes, SinkConfig(1))

    seen = []

    def last(number):
        seen.append(number)
        return number

    merged = PipelineConfig(
        Merge([part(0, "left"), part(1000, "right")]), [Pipe(last)], SinkConfig(1)
    )
    random.seed(5)
    before = random.getstate()
    report = profile_pipeline(merged, 50)
    assert random.getstate() == before
    assert [result.name for result in report] == ["left", "right", "last"]
    ones = seen[-100:]
    assert sorted(ones) == [*range(50), *range(1000, 1050)]
    assert 5 < sum(number < 1000 for number in ones[:50]) < 45
    assert report[2].stats[0].source_qps == pytest.approx(report[2].stats[0].qps)


def test_t01_paths_are_run_but_not_profiled(caplog):
    builder = source(range(8)).path_variants(lambda n: n % 2, [[Pipe(str)], []], name="parity")
    seen = []

    def note(item):
        seen.append(item)
        return item

    with caplog.at_level(logging.WARNING, "spdl_rs.pipeline"):
        report = profile_pipeline(described(builder.pipe(note)))
    assert [result.name for result in report] == ["note"]
    assert sorted(map(str, seen[-8:])) == [str(n) for n in range(8)]
    assert {type(item) for item in seen} == {str, int}
    assert "the paths of parity are not profiled" in caplog.text


def test_t01_stages_of_regions_are_profiled_in_this_process(caplog):
    builder = source(range(4)).to(ProcessPoolExecutorConfig(1)).pipe(_process).to(MAIN_PROCESS)
    seen = set()
    with caplog.at_level(logging.WARNING, "spdl_rs.pipeline"):
        report = profile_pipeline(described(builder.pipe(lambda it: seen.add(it) or it, name="n")))
    assert [result.name for result in report] == ["_process", "n"] and seen == {os.getpid()}
    assert "are profiled in threads of this process" in caplog.text


@pytest.mark.parametrize(("rank", "results"), [("0", 1), ("1", 0), ("7", 0), ("x", 1)])
def test_t01_only_the_first_process_of_a_machine_profiles(rank, results, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", rank)
    reported = RecordingHook()
    report = profile_pipeline(described(source(range(3)).pipe(abs)), hook=reported)
    assert len(report) == results and isinstance(report, list)
    assert reported.calls[0] == "begin" and reported.calls[-1] == "end"


def test_t01_hooks_and_queues_of_the_pipeline_are_not_used():
    class Refuse(TaskHook):
        def __init__(self, info, interval):
            raise AssertionError("made")

        def task_hook(self, input_item=None):
            raise AssertionError("called")

    config.set_default_hook_class(Refuse)
    assert len(profile_pipeline(described(source(range(3)).pipe(abs)))) == 1


def test_t01_arguments_are_checked():
    described_one = described(source(range(3)).pipe(abs))
    with pytest.raises(TypeError, match="cfg must be a PipelineConfig"):
        profile_pipeline([1])
    with pytest.raises(ValueError, match="num_inputs must be a whole number"):
        profile_pipeline(described_one, 1.5)
    with pytest.raises(ValueError, match="num_inputs must be at least 1"):
        profile_pipeline(described_one, 0)


def test_t01_an_interrupted_profile_leaves_no_threads():
    class Press(RecordingHook):
        @contextlib.contextmanager
        def stage_profile_hook(self, stage, concurrency):
            yield
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_pipeline(described(source(range(50)).pipe(abs)), hook=Press())
    deadline = time.monotonic() + 10
    while threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_t01_a_pipeline_can_be_profiled_by_its_builder():
    builder = PipelineBuilder().add_source(range(5)).pipe(abs).add_sink()
    assert len(profile_pipeline(builder.get_config())) == 1
    assert list(builder.build(num_threads=1)) == [0, 1, 2, 3, 4]
