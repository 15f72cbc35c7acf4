"""One warning at the end of a pipeline that has dropped items."""

import gc
import logging

import pytest
from spdl_rs.pipeline import (
    PipelineBuilder,
    PipelineFailure,
    build_pipeline,
    run_pipeline_in_subprocess,
)
from spdl_rs.pipeline._failures import dropped
from spdl_rs.pipeline.defs import Pipe, PipelineConfig, ProcessPoolExecutorConfig
from spdl_rs.pipeline.defs import MAIN_PROCESS, SinkConfig, SourceConfig


def odd_fails(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def large_fails(number):
    if number > 5:
        raise KeyError(number)
    return number


def pipeline_of(source=range(10), stages=(odd_fails, large_fails), **options):
    builder = PipelineBuilder().add_source(source)
    for stage in stages:
        builder.pipe(stage, output_order="input")
    return builder.add_sink().build(num_threads=2, **options)


@pytest.fixture(autouse=True)
def no_counts_of_earlier_tests():
    """Another test may leave a pipeline that has not ended."""
    dropped._by_pipeline.clear()
    dropped._whole_of.clear()


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, "spdl_rs.pipeline")

    def found():
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        return [warning.getMessage() for warning in warnings]

    return found


def test_the_warning_counts_by_stage_and_names_the_first_failure_and_the_limit(warned):
    pipeline = pipeline_of()
    assert list(pipeline) == [0, 2, 4]
    (message,) = warned()
    number = pipeline._number
    assert message.startswith(f"pipeline {number} ended, and 7 items were dropped (")
    assert f"{number}:1:odd_fails: 5" in message and f"{number}:2:large_fails: 2" in message
    assert "the first failure: " in message and "Error: " in message
    assert message.endswith("pass max_failures to build(), or on_error to a loader")
    pipeline.stop()
    del pipeline
    gc.collect()
    assert len(warned()) == 1


# promise: R9
def test_the_warning_states_that_a_pipeline_had_no_output(warned):
    # Without max_failures, such a pipeline ends normally, as in SPDL.
    pipeline = pipeline_of([1, 3, 5], [odd_fails])
    assert list(pipeline) == []
    (message,) = warned()
    assert f"pipeline {pipeline._number} ended without any output, and 3 items were" in message


def test_a_pipeline_without_failures_does_not_warn(warned):
    with pipeline_of(range(0, 5, 2)).auto_stop():
        pass
    assert list(pipeline_of(range(0, 5, 2))) == [0, 2, 4] and warned() == []


def test_a_pipeline_that_fails_does_not_warn(warned):
    with pytest.raises(PipelineFailure):
        list(pipeline_of(max_failures=2))
    assert warned() == [] and not dropped._by_pipeline


def test_a_pipeline_that_is_stopped_warns_once(warned):
    pipeline = pipeline_of(range(100_000), [odd_fails])
    with pipeline.auto_stop():
        assert [pipeline.get_item() for _ in range(3)] == [0, 2, 4]
    pipeline.stop()
    assert len(warned()) == 1


def test_a_pipeline_that_is_abandoned_warns_once(warned):
    pipeline = pipeline_of(range(100_000), [odd_fails])
    assert [pipeline.get_item() for _ in range(3)] == [0, 2, 4]
    assert warned() == []
    del pipeline
    gc.collect()
    assert len(warned()) == 1


def test_a_continuous_pipeline_warns_at_its_end_and_not_after_each_epoch(warned):
    builder = PipelineBuilder().add_source(range(4), continuous=True)
    pipeline = builder.pipe(odd_fails, output_order="input").add_sink().build(num_threads=1)
    with pipeline.auto_stop():
        assert list(pipeline) == list(pipeline) == [0, 2]
        assert warned() == []
    assert len(warned()) == 1


def test_the_end_of_an_epoch_by_get_item_warns(warned):
    pipeline = pipeline_of([1])
    with pytest.raises(EOFError):
        pipeline.get_item()
    (message,) = warned()
    assert "1 item was dropped" in message and "ValueError: 1 is odd" in message


def test_a_pipeline_in_another_process_warns_there_after_each_iteration(capfd):
    config = PipelineBuilder().add_source(range(10)).pipe(odd_fails, output_order="input")
    numbers = run_pipeline_in_subprocess(
        config.add_sink().get_config(), num_threads=1, mp_context="spawn"
    )
    for _ in range(2):
        assert list(numbers) == [0, 2, 4, 6, 8]
    del numbers
    gc.collect()
    assert capfd.readouterr().err.count("ended, and 5 items were dropped (") == 2


def test_a_pipeline_with_a_region_warns_once_for_all_processes(warned):
    stages = [Pipe(odd_fails), Pipe(large_fails), Pipe(odd_fails)]
    placement = PipelineBuilder().add_source([0]).to(ProcessPoolExecutorConfig(2)).pipe(odd_fails)
    to, back = placement.to(MAIN_PROCESS).add_sink().get_config().pipes[::2]
    pipes = [stages[0], to, stages[1], back, stages[2]]
    config = PipelineConfig(SourceConfig(range(10)), pipes, SinkConfig(2))
    assert sorted(build_pipeline(config, num_threads=1)) == [0, 2, 4]
    (message,) = warned()
    assert "7 items were dropped" in message
    assert not dropped._by_pipeline and not dropped._whole_of
