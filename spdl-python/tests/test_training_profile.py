"""`spdl_rs.profile`: headspace, interference, and the slowest samples."""

import json
import threading
import time

import pytest
import spdl_rs
from spdl_rs.pipeline import PipelineBuilder


class Slow:
    """A loader that waits for each batch."""

    def __init__(self, seconds, batches=20):
        self.seconds, self.batches, self.epochs = seconds, batches, 0

    def __iter__(self):
        self.epochs += 1
        for number in range(self.batches):
            time.sleep(self.seconds)
            yield [number, number]


def step_of(seconds):
    return lambda batch: time.sleep(seconds)


def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_slow_loader_starves_a_fast_step():
    report = spdl_rs.profile(Slow(0.02), step_of(0.005), max_seconds=4)
    assert (report.starved, report.cause) == (True, "loader")
    # 25 ms for a batch and a step, which do not overlap; 5 ms with cached batches.
    assert 0.7 < report.headspace < 0.9
    assert report.gain == pytest.approx(1 / (1 - report.headspace) - 1)
    assert report.step.per_s > 3 * report.together.per_s
    assert report.samples_per_batch == 2
    text = str(report)
    assert "is starved: a faster loader could make it up to " in text
    assert text == str(report) and "(headspace" in text


def test_a_slow_step_is_not_starved_by_a_pipeline_that_prefetches():
    # On a busy machine, other programs may delay some steps.
    for _ in range(3):
        builder = PipelineBuilder().add_source(range(10**8)).pipe(str).add_sink()
        pipeline = builder.build(num_threads=1)
        report = spdl_rs.profile(pipeline, step_of(0.03), max_seconds=2)
        if not report.starved:
            break
    assert (report.starved, report.cause) == (False, "none")
    assert "is not starved" in str(report)
    assert [stage.name for stage in report.stages][:2] == ["src", "str"]


def test_the_time_of_a_sample_does_not_depend_on_samples_in_queues():
    class Numbers:
        def __len__(self):
            return 4000

        def __getitem__(self, number):
            return {"number": number}

    def wait(sample):
        time.sleep(0.02)
        return sample

    loader = spdl_rs.Loader(Numbers(), batch_size=16, map=wait, number=spdl_rs.fields.Number(), threads=2)
    report = spdl_rs.profile(loader, step_of(0.001), max_seconds=3)
    stages = {stage.name: stage for stage in report.stages}
    # On a busy machine, a sample may take longer.
    assert 20 <= stages["map"].ms_per_sample < 60, report
    assert stages["getitem"].ms_per_sample < 2


def test_a_loader_keeps_its_epoch_and_reports_its_stages_and_slowest_images(photos):
    loader = spdl_rs.ImageLoader(photos, batch_size=2, size=32)
    next(iter(loader))
    state = loader.state_dict()
    report = spdl_rs.profile(loader, step_of(0.001), max_seconds=2)
    assert loader.epoch == 1 and loader.state_dict() == state
    assert report.samples_per_batch == 2
    stages = {stage.name: stage for stage in report.stages}
    # On a busy machine, the threads wait for a CPU for most of the few images.
    assert stages["fetch"].waits
    assert stages["decode"].ms_per_sample > 0
    assert 1 <= len(report.slowest) <= 10
    times = [item["time_ms"] for item in report.slowest]
    assert times == sorted(times, reverse=True)
    for item in report.slowest:
        assert item["key"].startswith(str(photos)) and item["stage"] in ("fetch", "decode")
        assert item["bytes"] > 0 and item["cause"] in ("size", "latency", "cpu", "work")
    for item in report.slowest:
        assert (item["key"] in str(report)) == (item["time_ms"] >= 2 * item["median_ms"])
    assert report.diagnosis in (report.statistics or {})["diagnosis"]
    assert json.loads(json.dumps(report.to_dict()))["headspace"] == report.headspace


def test_a_stage_that_waits_for_the_gil_does_not_load():
    def profile_of(function):
        builder = PipelineBuilder().add_source(range(10**8)).pipe(function, concurrency=4).aggregate(8)
        report = spdl_rs.profile(builder.add_sink().build(num_threads=4), step_of(0.001), max_seconds=3)
        stage = next(stage for stage in report.stages if stage.name == function.__name__)
        return report, stage

    def hold_gil(number):
        compute(0.002)
        return number

    def sleep(number):
        time.sleep(0.005)
        return number

    report, stage = profile_of(hold_gil)
    assert stage.waits_for_gil and not stage.waits, report
    assert "hold_gil waits for the GIL for " in str(report)
    report, stage = profile_of(sleep)
    assert stage.waits and not stage.waits_for_gil, report
    statistics = report.statistics
    assert statistics is not None and [it["holds_gil"] for it in statistics["stages"]][:2] == [False, True]


def test_python_code_that_holds_the_gil_is_reported():
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            compute(0.01)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        report = spdl_rs.profile(Slow(0.01), step_of(0.001), max_seconds=2)
    finally:
        stop.set()
        thread.join()
    assert report.interference.gil_of_loader > 0.5
    assert "holds the GIL" in str(report)
    quiet = spdl_rs.profile(Slow(0.01), step_of(0.001), max_seconds=1)
    assert quiet.interference.gil_of_loader < 0.5
    assert "holds the GIL" not in str(quiet)


def test_a_step_that_takes_longer_while_the_loader_runs_is_reported():
    calls = iter(range(10**9))

    def step(batch):
        # The first calls use the cached batch.
        time.sleep(0.01 if next(calls) < 60 else 0.02)

    report = spdl_rs.profile(Slow(0.001, 10_000), step, max_seconds=3)
    assert report.interference.slowdown > 0.05
    assert sum(report.interference.causes.values()) == pytest.approx(
        report.interference.step_ms_together - report.interference.step_ms
    )
    assert "longer:" in str(report)


def test_progress_lines_name_the_runs(capsys):
    spdl_rs.profile(Slow(0.002), step_of(0.001), max_seconds=0.5, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "spdl profile: the loader without a step",
        "spdl profile: the step on a cached batch",
        "spdl profile: both together",
    ]
    spdl_rs.profile(Slow(0.002), step_of(0.001), max_seconds=0.5)
    assert capsys.readouterr().err == ""


def test_an_iterator_is_used_for_all_runs():
    loader = iter(Slow(0.001, 10_000))
    report = spdl_rs.profile(loader, step_of(0.001), max_seconds=1)
    assert report.together.per_s > 0
    assert next(loader)


def test_too_few_batches_and_wrong_arguments_are_errors():
    with pytest.raises(ValueError, match="too few batches"):
        spdl_rs.profile(iter([[1], [2]]), print)
    with pytest.raises(ValueError, match="too few batches"):
        spdl_rs.profile([], print)
    with pytest.raises(TypeError, match="step must be callable"):
        spdl_rs.profile([[1]], None)  # pyright: ignore
    for seconds in (0, -1, float("inf")):
        with pytest.raises(ValueError, match="max_seconds must be positive"):
            spdl_rs.profile([[1]], print, max_seconds=seconds)


def test_exceptions_of_the_step_and_of_the_loader_are_raised():
    def fails(batch):
        raise KeyError("step")

    with pytest.raises(KeyError, match="step"):
        spdl_rs.profile(Slow(0.001), fails, max_seconds=0.5)

    def loader():
        yield [1]
        raise OSError("loader")

    with pytest.raises(OSError, match="loader"):
        spdl_rs.profile(loader(), print, max_seconds=0.5)
