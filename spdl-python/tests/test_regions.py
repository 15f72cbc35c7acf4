"""Features X01 to X08, part two: stages in other processes."""

import concurrent.futures
import gc
import logging
import os
import random
import time
import warnings
from fractions import Fraction

import in_processes as work
import pytest
from pipelines import (
    assert_median_end_within_1_s,
    assert_no_threads,
    assert_soon_after,
    build,
    refuse_odd,
    run,
    soon_s,
    source,
    threads,
    wait_until,
)
from spdl_rs.pipeline import PipelineFailure, WorkerError, build_pipeline
from spdl_rs.pipeline._regions import regions
from spdl_rs.pipeline.defs import (
    MAIN_PROCESS,
    InterpreterPoolExecutorConfig,
    Merge,
    PathVariants,
    Pipe,
    PipelineConfig,
    PlacementConfig,
    ProcessPoolExecutorConfig,
    SinkConfig,
    SourceConfig,
)
from test_subprocess import gone, script


def region(builder, *ops, workers=2, buffer_size=1, **options):
    builder = builder.to(ProcessPoolExecutorConfig(workers, **options), buffer_size=buffer_size)
    for op in ops:
        builder = builder.pipe(op)
    return builder.to(MAIN_PROCESS)


def workers_of(pipeline):
    """Returns the process IDs of a pipeline whose first stage is a region."""
    return [worker.pid for worker in pipeline._assembly.cancellables[0]._workers]


@pytest.mark.parametrize("buffer_size", [1, 2, 7, 50])
@pytest.mark.parametrize("workers", [1, 3])
def test_b06_all_items_arrive_for_any_buffer_size(workers, buffer_size):
    built = region(
        source(range(23)), work.double, work.double, workers=workers, buffer_size=buffer_size
    )
    assert sorted(run(built)) == list(range(0, 92, 4))


def test_b06_targets_are_checked():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with pytest.raises(TypeError, match="not a live Executor .ThreadPoolExecutor.*executor=") as why:
            source().to(pool)
        assert "MAIN_PROCESS" in str(why.value)
    for wrong in ("processes", None, ProcessPoolExecutorConfig):
        with pytest.raises(TypeError, match="target must be a ProcessPoolExecutorConfig.* not "):
            source().to(wrong)
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="buffer_size must be a positive integer .*, not"):
            source().to(MAIN_PROCESS, buffer_size=wrong)
    config = source().to(MAIN_PROCESS).add_sink().get_config()
    assert config.pipes == (PlacementConfig(MAIN_PROCESS, 1),)


def test_b06_configurations_show_where_stages_run():
    text = repr(region(source(), work.double, buffer_size=4).add_sink().get_config())
    assert "- placement(ProcessPoolExecutorConfig(max_workers=2), buffer_size=4)" in text
    assert "- placement(MAIN_PROCESS)" in text


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([ProcessPoolExecutorConfig(1), Pipe(work.double)], "must be closed with to.MAIN_PROCESS"),
        ([ProcessPoolExecutorConfig(1), MAIN_PROCESS], "has no stages; "),
        (
            [ProcessPoolExecutorConfig(1), ProcessPoolExecutorConfig(1), Pipe(len), MAIN_PROCESS],
            "has no stages; ",
        ),
        (
            [ProcessPoolExecutorConfig(1), Pipe(work.double, output_order="input"), MAIN_PROCESS],
            "stage 'double' has output_order='input', which",
        ),
        (
            [
                ProcessPoolExecutorConfig(1),
                PathVariants(work.parity, [[], [Pipe(work.double, output_order="input")]]),
                MAIN_PROCESS,
            ],
            "stage 'double' has output_order='input', which",
        ),
    ],
    ids=["not closed", "empty", "empty first", "ordered", "ordered within a path"],
)
def test_b09_regions_are_checked(stages, words):
    builder, pipes = source(), []
    for stage in stages:
        if isinstance(stage, (ProcessPoolExecutorConfig, type(MAIN_PROCESS))):
            stage = PlacementConfig(stage)
        pipes.append(stage)
    builder._pipes = list(pipes)
    with pytest.raises(ValueError, match=words):
        builder.add_sink().get_config()
    inner = PipelineConfig(SourceConfig([1]), pipes, SinkConfig(1))
    for config in (inner, PipelineConfig(Merge([inner]), [], SinkConfig(1))):
        with pytest.raises(ValueError, match=words):
            build_pipeline(config, num_threads=1)


def test_b09_interpreters_are_refused_with_an_alternative():
    built = source().to(InterpreterPoolExecutorConfig(1)).pipe(work.double).to(MAIN_PROCESS)
    with pytest.raises(
        NotImplementedError, match="main interpreter only.* ProcessPoolExecutorConfig"
    ):
        built.add_sink().get_config()


def test_x07_items_are_divided_among_processes(tmp_path):
    def slowly():
        for number in range(60):
            # All processes are idle each time.
            time.sleep(0.01)
            yield number

    meet = {"initializer": work.meet, "initargs": (str(tmp_path), 3)}
    got = run(region(source(slowly()), work.process_and, workers=3, **meet))
    assert sorted(item for _, item in got) == list(range(60))
    processes = [process for process, _ in got]
    assert os.getpid() not in processes
    counts = [processes.count(process) for process in set(processes)]
    # On a loaded machine, a process may be busy when its turn comes.
    assert len(counts) == 3 and min(counts) >= 10, counts


def test_x07_stages_before_and_after_a_region_run_here():
    built = source(range(6)).pipe(lambda item: item + 1)
    built = region(built, work.double, work.process_and).pipe(lambda pair: pair[1])
    assert sorted(run(built.pipe(refuse_odd))) == [2, 4, 6, 8, 10, 12]


def test_x07_each_process_makes_lists_and_sends_incomplete_ones():
    built = source(range(10)).to(ProcessPoolExecutorConfig(2)).aggregate(4).to(MAIN_PROCESS)
    lists = run(built)
    assert sorted(sum(lists, [])) == list(range(10)) and all(len(each) <= 4 for each in lists)


def test_x07_all_kinds_of_stages_run_in_a_region():
    built = source(range(10)).to(ProcessPoolExecutorConfig(2)).pipe(work.double_async)
    built = built.pipe(work.generated).pipe(work.only_odd)
    built = built.path_variants(work.parity, [[], [Pipe(work.double)]]).to(MAIN_PROCESS)
    expected = [2 * i for n in range(10) for i in range(2 * n) if i % 2]
    assert sorted(run(built)) == sorted(expected)


def test_x07_regions_may_follow_each_other():
    built = region(source(range(9)), work.process_and)
    built = built.to(ProcessPoolExecutorConfig(1)).pipe(work.process_and)
    built = region(built, work.process_and)
    got = run(built)
    assert sorted(item for _, (_, (_, item)) in got) == list(range(9))
    first, second, third = (
        {third for third, _ in got},
        {second for _, (second, _) in got},
        {first for _, (_, (first, _)) in got},
    )
    assert len(second) == 1 and not first & second and not second & third and not first & third


def test_x07_a_region_may_be_in_a_merged_pipeline():
    part = region(source(range(4)), work.double).add_sink().get_config()
    other = source(range(100, 103)).add_sink().get_config()
    config = PipelineConfig(Merge([part, other]), [Pipe(work.double)], SinkConfig(2))
    pipeline = build_pipeline(config, num_threads=1)
    with pipeline.auto_stop():
        assert sorted(pipeline.get_iterator(timeout=60)) == [0, 4, 8, 12, 200, 202, 204]


def test_x07_an_executor_of_a_stage_is_not_used():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        built = source(range(3)).to(ProcessPoolExecutorConfig(1))
        built = built.pipe(work.process_and, executor=pool).to(MAIN_PROCESS)
        assert os.getpid() not in {process for process, _ in run(built)}


def test_x07_unpicklable_stages_raise_in_build():
    with pytest.raises(TypeError, match="must be picklable"):
        build(region(source(), lambda item: item))


def test_x08_the_start_method_fork_warns():
    with pytest.warns(RuntimeWarning, match="forked"):
        build(region(source(), work.double, mp_context="fork"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(region(source(), work.double, mp_context="spawn"))


@pytest.mark.parametrize("workers", [1, 3])
def test_e03_epochs_are_preserved_across_processes(workers):
    built = source(range(5), continuous=True).to(ProcessPoolExecutorConfig(workers), buffer_size=2)
    built = built.pipe(work.double).aggregate(2).to(MAIN_PROCESS)
    pipeline = build(built)
    with pipeline.auto_stop():
        for _ in range(4):
            lists = list(pipeline.get_iterator(timeout=60))
            assert sorted(sum(lists, [])) == [0, 2, 4, 6, 8]
    assert_no_threads()


def test_x08_an_initializer_runs_in_each_process(tmp_path):
    built = region(
        source(range(4)), work.process_and, initializer=work.note_process, initargs=(str(tmp_path),)
    )
    got = run(built)
    assert {int(path.name) for path in tmp_path.iterdir()} >= {process for process, _ in got}
    assert len(list(tmp_path.iterdir())) == 2


def test_x05_processes_have_different_seeds_derived_from_ours(tmp_path):
    def draw(name):
        random.seed(11)
        (tmp_path / name).mkdir()
        meet = {"initializer": work.meet, "initargs": (str(tmp_path / name), 2)}
        got = run(region(source([0] * 8), work.process_and_draws, **meet))
        each = {}
        for process, *numbers in got:
            each.setdefault(process, []).extend(numbers)
        return sorted(each.values())

    first = draw("first")
    assert len(first) == 2 and first[0][0] != first[1][0]
    assert {numbers[0] for numbers in draw("second")} == {numbers[0] for numbers in first}


def test_f12_failing_items_are_dropped_and_logged_here(caplog):
    with caplog.at_level(logging.ERROR, "spdl_rs.pipeline"):
        assert sorted(run(region(source(range(6)), work.refuse_3))) == [0, 1, 2, 4, 5]
    (record,) = caplog.records
    assert "refuse_3 failed on 3" in record.getMessage()
    assert record.exc_info[0] is LookupError and "refuse_3" in str(record.exc_info[1].__cause__)


def test_f12_too_many_failures_end_the_pipeline_with_their_type():
    pipeline = build(region(source(range(100)), work.refuse_3, workers=1), max_failures=0)
    with pytest.raises(PipelineFailure, match="refuse_3") as caught, pipeline.auto_stop():
        list(pipeline.get_iterator(timeout=60))
    (error,) = caught.value.exceptions
    assert type(error) is LookupError and error.args == ("no 3",)
    notes = "\n".join(error.__notes__)
    assert "Item: 3" in notes and "1 items failed, and max_failures is 0" in notes
    assert_no_threads()


def test_f12_an_exception_whose_str_fails_is_an_ordinary_failure():
    assert sorted(run(region(source(range(6)), work.raise_failing_str_at_3))) == [0, 1, 2, 4, 5]
    with pytest.raises(PipelineFailure):
        run(region(source(range(6)), work.raise_failing_str_at_3), max_failures=0)


def test_f12_failures_of_all_processes_are_added():
    # One item fails before the region, and two in the region, in either process.
    numbers = [1, 3, 3, 5, 7, 9] + [4] * 200
    built = region(source(numbers).pipe(work.refuse_9), work.refuse_3)
    with pytest.raises(PipelineFailure):
        run(built, max_failures=2)
    built = region(source(numbers).pipe(work.refuse_9), work.refuse_3)
    assert sorted(run(built, max_failures=3)) == sorted([1, 5, 7] + [4] * 200)


def test_f12_failures_after_a_region_count_also_after_its_end():
    def built():
        return region(source([3, 1, 2]), work.refuse_3).aggregate(5).disaggregate().pipe(refuse_odd)

    pipeline, got = build(built(), max_failures=1), []
    with pipeline.auto_stop():
        with pytest.raises(PipelineFailure, match="refuse_odd") as caught:
            for item in pipeline.get_iterator(timeout=60):
                got.append(item)
    assert got == [2] and type(caught.value.exceptions[0]) is ValueError
    pipeline = build(built(), max_failures=1)
    assert pipeline.get_item(timeout=60) == 2
    with pytest.raises(PipelineFailure, match="refuse_odd"):
        pipeline.get_item(timeout=60)
    with pytest.raises(EOFError):
        pipeline.get_item(timeout=60)
    assert run(built(), max_failures=2) == [2]


def test_f04_processes_of_a_region_enforce_no_budget():
    # A share of the items of one process is not a share of all items.
    stage = Pipe(work.double, max_failures=Fraction(1, 2))
    (there,) = PathVariants(work.parity, [[stage]]).paths
    routed = regions._for_worker(PathVariants(work.parity, [there]))
    assert routed.paths[0][0].max_failures == -1


def test_f04_a_budget_of_a_stage_counts_over_all_processes():
    def built(most):
        built = source([3, 3, 3] + [4] * 50).to(ProcessPoolExecutorConfig(3))
        return built.pipe(work.refuse_3, max_failures=most).to(MAIN_PROCESS)

    with pytest.raises(PipelineFailure):
        run(built(2))
    # The stage's budget replaces that of the pipeline.
    assert run(built(3), max_failures=0) == [4] * 50


def test_f02_a_stage_outside_of_a_region_keeps_its_own_budget():
    # The stage before the region, in this process, has a different name.
    built = source(range(5)).pipe(work.refuse_3, name="a:b", max_failures=5)
    assert sorted(run(region(built, work.double), max_failures=0)) == [0, 2, 4, 8]


def test_f03_a_share_counts_over_all_processes():
    numbers = [3 if number % 4 == 0 else 4 for number in range(400)]
    with pytest.raises(PipelineFailure, match="refuse_3"):
        run(region(source(numbers), work.refuse_3), max_failures=Fraction(1, 5))
    # Twice the failures: processes report failures immediately, and successes a little later.
    assert len(run(region(source(numbers), work.refuse_3), max_failures=Fraction(1, 2))) == 300


def test_f12_a_failing_source_raises_after_its_items():
    def numbers():
        yield from range(5)
        raise OSError("no disk")

    pipeline, got = build(region(source(numbers()), work.double)), []
    with pytest.raises(PipelineFailure) as caught, pipeline.auto_stop():
        for item in pipeline.get_iterator(timeout=60):
            got.append(item)
    assert sorted(got) == [0, 2, 4, 6, 8]
    (error,) = caught.value.exceptions
    assert type(error) is OSError and "src" in str(caught.value)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_f12_base_exceptions_of_a_source_are_the_same_as_without_a_region(error):
    def items():
        yield 1
        raise error("x")

    pipeline = build(region(source(items()), work.double))
    assert pipeline.get_item(timeout=60) == 2
    with pytest.raises(error):
        pipeline.get_item(timeout=60)
    pipeline.stop(timeout=60)
    assert_no_threads()


def test_f12_an_unpicklable_item_ends_the_pipeline():
    with pytest.raises(PipelineFailure, match="src") as caught:
        run(region(source([lambda: None]), work.double))
    (error,) = caught.value.exceptions
    assert type(error) is TypeError and "cannot be pickled" in str(error)


def test_x08_the_end_of_a_process_is_detected_immediately():
    pipeline = build(region(source(range(1000)), work.kill_oneself_at_3, workers=3))
    start = time.monotonic()
    with pytest.raises(PipelineFailure) as caught, pipeline.auto_stop():
        list(pipeline.get_iterator(timeout=60))
    (error,) = caught.value.exceptions
    assert type(error) is WorkerError and "killed by SIGKILL" in str(error)
    assert time.monotonic() - start < 20
    assert_no_threads()


def test_x08_a_failing_initializer_ends_the_pipeline():
    built = region(
        source(range(5)),
        work.double,
        initializer=work.raise_here,
        initargs=(LookupError("no device"),),
    )
    with pytest.raises(PipelineFailure) as caught:
        run(built)
    assert type(caught.value.exceptions[0]) is LookupError


@pytest.mark.parametrize("op", [work.process_and, work.sleep_long])
def test_x08_stop_ends_the_processes(op):
    pipeline = build(region(source(range(10_000)), op))
    pipeline.start()
    wait_until(lambda: len(workers_of(pipeline)) == 2)
    if op is work.process_and:
        pipeline.get_item(timeout=60)
    processes, start = workers_of(pipeline), time.monotonic()
    pipeline.stop()
    assert time.monotonic() - start <= soon_s()
    assert threads() == [] and all(map(gone, processes))


def test_x08_a_deleted_pipeline_ends_its_processes():
    pipeline = build(region(source(range(10_000)), work.sleep_long))
    pipeline.start()
    workers = pipeline._assembly.cancellables[0]._workers
    while len(workers) < 2:
        workers = pipeline._assembly.cancellables[0]._workers
        time.sleep(0.01)
    processes = [worker.pid for worker in workers]
    del pipeline, workers
    gc.collect()
    wait_until(lambda: all(map(gone, processes)), soon_s())
    assert_no_threads()


def test_x08_stop_before_the_start_starts_nothing():
    pipeline = build(region(source(range(10)), work.double))
    pipeline.stop()
    assert threads() == []


@pytest.mark.parametrize("op", ["work.process_and", "work.sleep_long"])
def test_w13_python_exits_while_a_region_works(op):
    done = script(
        f"""
        from spdl_rs.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig
        held = PipelineBuilder().add_source(range(10_000)).to(ProcessPoolExecutorConfig(2))
        held = held.pipe({op}).to(MAIN_PROCESS).add_sink().build(num_threads=1)
        held.start()
        while not held._assembly.cancellables[0]._workers:
            time.sleep(0.01)
        time.sleep(0.5)
        print(time.time(), *[worker.pid for worker in held._assembly.cancellables[0]._workers])
        """
    )
    assert done.stderr == "" and done.returncode == 0
    began, *processes = done.stdout.split()
    wait_until(lambda: all(gone(int(pid)) for pid in processes), soon_s())
    assert_soon_after(began, "the exit of the program and its processes")


# promise: R7
def test_w13_the_processes_of_a_region_end_with_their_killed_parent():
    done = script(
        """
        from spdl_rs.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig
        held = PipelineBuilder().add_source(range(10_000)).to(ProcessPoolExecutorConfig(2))
        held = held.pipe(work.process_and).to(MAIN_PROCESS).add_sink().build(num_threads=1)
        held.get_item(timeout=30)
        workers = [worker.pid for worker in held._assembly.cancellables[0]._workers]
        print(time.time(), *workers, flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    killed, *processes = done.stdout.split()
    assert len(processes) == 2
    wait_until(lambda: all(gone(int(pid)) for pid in processes), soon_s())
    # `script` returns when no process has its standard output any more.
    assert_soon_after(killed, "the end of the processes")


def test_x07_a_region_runs_within_run_pipeline_in_subprocess():
    from spdl_rs.pipeline import run_pipeline_in_subprocess

    config = region(source(range(5)), work.double).add_sink().get_config()
    items = run_pipeline_in_subprocess(config, num_threads=1)
    assert [sorted(items) for _ in range(2)] == [[0, 2, 4, 6, 8]] * 2


# promise: R7
def test_the_median_time_of_ends_is_below_one_second():
    assert_median_end_within_1_s()
