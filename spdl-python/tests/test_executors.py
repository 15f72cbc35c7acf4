"""Executors: features C06 and C07."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading

import in_processes as work
import pytest
from pipelines import run, source, wait_until
from spdl_rs.pipeline import (
    PriorityExecutorEntrypoint,
    PriorityInterpreterPoolExecutor,
    PriorityProcessPoolExecutor,
    PriorityThreadPoolExecutor,
    run_pipeline_in_subprocess,
)
from spdl_rs.pipeline._failures import failure as _failure
from spdl_rs.pipeline.defs import (
    ExecutorConfig,
    InterpreterPoolExecutorConfig,
    ProcessPoolExecutorConfig,
)


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def held(pool, gate):
    """Blocks the only worker until the gate opens."""
    began = threading.Event()
    pool.get_executor(priority=99).submit(lambda: (began.set(), gate.wait(20)))
    assert began.wait(20)


def test_c07_later_entry_points_have_priority(gate):
    order = []
    with PriorityThreadPoolExecutor(1) as pool:
        held(pool, gate)
        early, late = pool.get_executor(), pool.get_executor()
        for number in range(3):
            early.submit(order.append, f"early {number}")
            late.submit(order.append, f"late {number}")
        gate.set()
    assert order == [f"{which} {number}" for which in ("late", "early") for number in range(3)]


def test_c07_an_explicit_priority_is_used(gate):
    order = []
    with PriorityThreadPoolExecutor(1) as pool:
        held(pool, gate)
        executors = [pool.get_executor(priority=priority) for priority in (5, -1, 7, 5)]
        assert [executor.priority for executor in executors] == [5, -1, 7, 5]
        for number, executor in enumerate(executors):
            executor.submit(order.append, number)
        gate.set()
    assert order == [2, 0, 3, 1]
    with pytest.raises(TypeError, match="priority"):
        pool.get_executor(priority=0.5)


def test_c07_submitting_after_shutdown_is_an_error():
    pool = PriorityThreadPoolExecutor(1)
    executor = pool.get_executor()
    assert executor.submit(int, "3").result(20) == 3
    executor.shutdown()
    assert executor.submit(int, "3").result(20) == 3
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        executor.submit(int)


def test_c07_shutdown_with_cancel_futures_cancels_queued_calls(gate):
    pool = PriorityThreadPoolExecutor(1)
    held(pool, gate)
    futures = [pool.get_executor().submit(int) for _ in range(3)]
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in futures)


def test_c07_shutdown_completes_queued_calls(gate):
    pool = PriorityThreadPoolExecutor(1)
    held(pool, gate)
    futures = [pool.get_executor().submit(int, "4") for _ in range(3)]
    pool.shutdown(wait=False)
    gate.set()
    assert [future.result(20) for future in futures] == [4] * 3
    wait_until(lambda: not any("priority-test" in each.name for each in threading.enumerate()))


def test_c07_a_cancelled_call_is_not_made(gate):
    called = []
    with PriorityThreadPoolExecutor(1) as pool:
        held(pool, gate)
        executor = pool.get_executor()
        first, second = executor.submit(called.append, 1), executor.submit(called.append, 2)
        assert first.cancel()
        gate.set()
        second.result(20)
    assert called == [2]


def test_c07_an_exception_of_a_call_propagates():
    with PriorityThreadPoolExecutor(2) as pool:
        executor = pool.get_executor()
        with pytest.raises(LookupError, match="no disk"):
            executor.submit(work.raise_here, LookupError("no disk")).result(20)
        # The worker is usable again.
        assert list(executor.map(abs, range(-20, 0))) == list(range(20, 0, -1))


def test_c07_a_broken_pool_fails_every_call():
    def broken():
        raise LookupError("no device")

    with PriorityThreadPoolExecutor(1, initializer=broken) as pool:
        executor = pool.get_executor()
        for _ in range(3):
            with pytest.raises(concurrent.futures.BrokenExecutor):
                executor.submit(int).result(20)


def test_c07_stages_share_the_threads():
    with PriorityThreadPoolExecutor(2, "shared") as pool:
        names = set()

        def note(item):
            names.add(threading.current_thread().name)
            return item

        built = source(range(20))
        for _ in range(3):
            built = built.pipe(note, executor=pool.get_executor(), concurrency=3)
        assert sorted(run(built)) == list(range(20))
    assert names <= {"shared_0", "shared_1"}


def test_c07_stages_share_the_processes():
    with PriorityProcessPoolExecutor(1) as pool:
        built = source(range(4)).pipe(work.generated, executor=pool.get_executor())
        built = built.pipe(work.process_and, executor=pool.get_executor())
        got = run(built)
    assert sorted(item for _, item in got) == [0, 0, 0, 1, 1, 2]
    assert len({process for process, _ in got} - {os.getpid()}) == 1


def test_c07_pickled_entry_points_share_one_executor():
    pool = PriorityThreadPoolExecutor(1, "shared")
    built = source(range(3)).pipe(name_of_thread, executor=pool.get_executor())
    config = built.pipe(name_of_thread, executor=pool.get_executor()).add_sink().get_config()
    got = list(run_pipeline_in_subprocess(config, num_threads=1))
    assert [set(names) for names in got] == [{"shared_0"}] * 3
    copy = pickle.loads(pickle.dumps(pool.get_executor(priority=4)))
    assert isinstance(copy, PriorityExecutorEntrypoint)
    assert copy.priority == 4 and copy._executor is pool
    pool.shutdown()


def name_of_thread(item):
    names = item if isinstance(item, list) else []
    return [*names, threading.current_thread().name]


def test_c07_invalid_max_workers_is_an_error():
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(ValueError, match="max_workers"):
            PriorityThreadPoolExecutor(wrong)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python has interpreters")
def test_c07_interpreters_require_python_3_14():
    with pytest.raises(RuntimeError, match=r"requires Python 3\.14.* PriorityProcessPoolExecutor"):
        PriorityInterpreterPoolExecutor(1)


IN_INTERPRETERS = """
    import sys
    from concurrent.futures import InterpreterPoolExecutor
    from in_interpreters import count_down, double, refuse
    from spdl_rs.pipeline import PipelineBuilder, PipelineFailure, PriorityInterpreterPoolExecutor

    def run(op, items, **options):
        builder = PipelineBuilder().add_source(items).pipe(op, executor=executor)
        return list(builder.add_sink().build(num_threads=2, **options))

    with {pool} as pool:
        executor = {executor}
        assert run(double, range(4)) == [0, 2, 4, 6]
        assert run(count_down, [2, 3]) == [2, 1, 3, 2, 1]
        try:
            run(refuse, [1], max_failures=0)
        except PipelineFailure as failure:
            (error,) = failure.exceptions
            assert type(error) is LookupError and error.args == ("no 1",), error
        else:
            sys.exit("no failure")
        assert executor.submit(double, 3).result() == 6
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="requires Python 3.14")
@pytest.mark.parametrize(
    ("pool", "executor"),
    [
        ("InterpreterPoolExecutor(2)", "pool"),
        ("PriorityInterpreterPoolExecutor(2)", "pool.get_executor()"),
    ],
    ids=["c05", "c07"],
)
def test_c05_interpreters_run_functions_and_generators(pool, executor):
    # In another process, because subinterpreters find modules by its path only.
    paths = [str(pathlib.Path(__file__).parent), *sys.path]
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(IN_INTERPRETERS.format(pool=pool, executor=executor)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    # Failures are logged to standard error.
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_c06_executor_configs_keep_their_arguments():
    config = ProcessPoolExecutorConfig(2, print, ("a",), mp_context="spawn")
    assert isinstance(config, ExecutorConfig)
    assert (config.max_workers, config.initializer, config.initargs) == (2, print, ("a",))
    assert config == pickle.loads(pickle.dumps(config)) and config.mp_context == "spawn"
    assert ProcessPoolExecutorConfig() == ProcessPoolExecutorConfig(None, None, (), mp_context=None)
    assert isinstance(InterpreterPoolExecutorConfig(max_workers=3), ExecutorConfig)
    with pytest.raises(AttributeError):
        config.max_workers = 3


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"max_workers": 0}, ValueError, "max_workers"),
        ({"max_workers": "2"}, ValueError, "max_workers"),
        ({"initializer": 3}, TypeError, "initializer"),
        ({"mp_context": "spoon"}, ValueError, "spoon"),
        ({"mp_context": 3}, TypeError, "mp_context"),
    ],
    ids=str,
)
def test_c06_executor_configs_are_validated(wrong, error, words):
    with pytest.raises(error, match=words):
        ProcessPoolExecutorConfig(**wrong)


def broken():
    raise LookupError("no GPU")


ADVICE = "The output of the worker processes may contain the reason."


@pytest.mark.parametrize(
    "kind", [concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor]
)
def test_c05_errors_of_a_broken_process_pool_contain_advice(kind, monkeypatch):
    reported = []
    monkeypatch.setattr(_failure, "log_failure", lambda stage, error, item: reported.append(error))
    of_processes = kind is concurrent.futures.ProcessPoolExecutor
    context = {"mp_context": multiprocessing.get_context("fork")} if of_processes else {}
    with kind(1, initializer=broken, **context) as pool:
        assert run(source(range(3)).pipe(abs, executor=pool), num_threads=1) == []
    assert len(reported) == 3
    for error in reported:
        assert isinstance(error, concurrent.futures.BrokenExecutor)
        assert any(ADVICE in note for note in error.__notes__) == of_processes
