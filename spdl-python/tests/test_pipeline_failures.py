"""Feature group F: failures of items and of pipelines."""

import functools
import logging
import pickle
import subprocess
import sys
import threading
import time
import traceback
from fractions import Fraction

import pytest
from pipelines import (
    Counter,
    assert_no_threads,
    build,
    identity,
    refuse,
    refuse_odd,
    run,
    source,
)
from spdl_rs.pipeline import PipelineFailure
from spdl_rs.pipeline.defs import Aggregator, Pipe


def failure_of(builder, **options):
    """The only exception of a pipeline's failure."""
    with pytest.raises(PipelineFailure) as raised:
        run(builder, **options)
    (error,) = raised.value.exceptions
    return error


def fail_after_one(item):
    yield item
    raise ValueError("no more")


async def refuse_async(item):
    return refuse(item)


async def fail_after_one_async(item):
    yield item
    raise ValueError("no more")


def test_f01_a_failed_item_is_dropped_logged_and_counted(caplog):
    pipeline = build(source(range(5)).pipe(refuse_odd))
    assert list(pipeline) == [0, 2, 4]
    statistics = pipeline.stats()
    assert statistics["stages"][1]["failures"] == 2
    assert [dropped["reason"] for dropped in statistics["dropped"]] == [
        "raised an exception: ValueError: no 1",
        "raised an exception: ValueError: no 3",
    ]
    records = [record for record in caplog.records if record.name == "spdl_rs.pipeline"]
    assert [record.levelno for record in records] == [logging.ERROR] * 2 + [logging.WARNING]
    assert "refuse_odd failed on 1" in records[0].message
    assert "in refuse\n" in caplog.text


@pytest.mark.parametrize("op", [refuse, refuse_async])
def test_f01_every_type_of_op_may_fail(op):
    assert run(source(range(3)).pipe(op)) == []


@pytest.mark.parametrize("op", [fail_after_one, fail_after_one_async])
def test_f01_results_before_a_generator_fails_are_emitted(op):
    assert run(source(range(3)).pipe(op)) == [0, 1, 2]


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_f01_stop_iteration_fails_the_item(error):
    def stop(item):
        raise error("here")

    assert run(source(range(3)).pipe(stop).pipe(identity)) == []
    assert type(failure_of(source(range(3)).pipe(stop), max_failures=0)) is error
    assert run(source([iter([])] * 3).pipe(next)) == []


def test_f01_an_aggregator_may_fail_on_an_item():
    class Sum(Aggregator):
        sum = 0

        def accumulate(self, item):
            self.sum += item

        def flush(self):
            return self.sum

    assert run(source([1, "a", 2]).aggregate(Sum())) == [3]


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_f01_base_exceptions_end_the_pipeline_and_propagate(raised):
    def leave(item):
        raise raised(3)

    pipeline = build(source(range(3)).pipe(leave))
    with pytest.raises(raised):
        list(pipeline)
    assert_no_threads()


def test_f02_failures_are_unlimited_by_default():
    assert run(source(range(300)).pipe(refuse)) == []
    assert run(source(range(9)).pipe(refuse_odd), max_failures=4) == [0, 2, 4, 6, 8]
    error = failure_of(source(range(9)).pipe(refuse_odd), max_failures=3)
    assert error.args == ("no 7",)


def test_f02_all_stages_share_the_failure_budget():
    def refuse_even(item):
        return item if item % 2 else refuse(item)

    builder = source(range(4)).pipe(refuse_odd, name="odd").pipe(refuse_even, name="even")
    assert run(builder, max_failures=4) == []
    builder = source(range(4)).pipe(refuse_odd, name="odd").pipe(refuse_even, name="even")
    failure_of(builder, max_failures=3)


def test_f03_a_share_of_failures_applies_from_the_100th_item():
    def refuse_first(most, item):
        return refuse(item) if item < most else item

    def builder(count, most):
        return source(range(count)).pipe(functools.partial(refuse_first, most))

    share = Fraction(1, 10)
    assert len(run(builder(99, 50), max_failures=share)) == 49
    assert len(run(builder(200, 10), max_failures=share)) == 190
    failure_of(builder(200, 60), max_failures=share)


def test_f03_a_share_is_exact():
    # As a float, 0.29 is slightly smaller than 29/100.
    def refuse_some(item):
        return refuse(item) if item >= 71 else item

    assert len(run(source(range(100)).pipe(refuse_some), max_failures=Fraction(29, 100))) == 71
    failure_of(source(range(100)).pipe(refuse_some), max_failures=Fraction(28, 100))


@pytest.mark.parametrize("wrong", [0.1, 1.0, "1", None, True])
def test_f03_a_float_budget_is_an_error(wrong):
    with pytest.raises(TypeError, match="max_failures"):
        build(source(), max_failures=wrong)


@pytest.mark.parametrize("wrong", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_f03_a_share_must_be_between_0_and_1(wrong):
    with pytest.raises(ValueError, match="max_failures"):
        build(source(), max_failures=wrong)


def test_f04_a_stage_may_have_a_failure_budget():
    assert run(source(range(4)).pipe(refuse_odd, max_failures=2), max_failures=0) == [0, 2]
    assert run(source(range(4)).pipe(refuse_odd, max_failures=-1), max_failures=0) == [0, 2]
    error = failure_of(source(range(4)).pipe(refuse_odd, max_failures=1))
    assert error.args == ("no 3",)


def test_f04_stage_budgets_apply_on_paths():
    paths = [[Pipe(refuse, max_failures=1)], []]
    failure_of(source(range(4)).path_variants(lambda n: n % 2, paths))


def test_f05_finished_items_are_delivered_before_the_failure():
    pipeline = build(source([0, 2, 4, 1, 6]).pipe(refuse_odd).pipe(identity), max_failures=0)
    items = []
    with pytest.raises(PipelineFailure):
        while True:
            items.append(pipeline.get_item(timeout=20))
    assert items == [0, 2, 4]


def test_f05_stages_upstream_of_a_failure_end():
    counter = Counter()

    def numbers():
        number = 0
        while True:
            yield number
            number += 1

    pipeline = build(source(numbers()).pipe(counter).pipe(refuse), max_failures=5)
    with pytest.raises(PipelineFailure):
        list(pipeline)
    assert_no_threads()
    assert counter.calls < 50


def test_f05_the_failure_does_not_wait_for_upstream_functions():
    gate = threading.Event()

    def hang(item):
        if item == 2:
            assert gate.wait(20)
        return item

    pipeline = build(source(range(5)).pipe(hang).pipe(refuse), max_failures=0)
    started = time.monotonic()
    with pytest.raises(PipelineFailure):
        pipeline.get_item(timeout=20)
    assert time.monotonic() - started < 10
    gate.set()
    assert_no_threads()


def test_f06_a_failing_source_ends_the_pipeline_after_its_items():
    def broken():
        yield 1
        yield 2
        raise LookupError("no more")

    async def broken_async():
        for item in broken():
            yield item

    for items in (broken(), broken_async()):
        pipeline = build(source(items).pipe(identity))
        assert [pipeline.get_item(), pipeline.get_item()] == [1, 2]
        with pytest.raises(PipelineFailure) as raised:
            pipeline.get_item()
        (error,) = raised.value.exceptions
        assert type(error) is LookupError
        assert any(note.endswith(":0:src") for note in error.__notes__)


@pytest.mark.parametrize("name", ["__iter__", "__aiter__"])
def test_f06_a_source_may_fail_before_its_first_item(name):
    def fail(self):
        raise LookupError

    assert type(failure_of(source(type("Broken", (), {name: fail})()))) is LookupError


def test_f07_the_failure_has_traceback_stage_and_item():
    error = failure_of(source([7]).pipe(refuse, name="check"), max_failures=0)
    assert type(error) is ValueError and error.args == ("no 7",)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["refuse"]
    number, _, name = error.__notes__[0].removeprefix("Pipeline stage: ").split(":")
    assert number.isdigit() and name == "check"
    assert error.__notes__[1] == "Item: 7"
    assert "more than 0 items failed" in error.__notes__[2]


@pytest.mark.parametrize("op", [refuse_async, fail_after_one, fail_after_one_async])
def test_f07_the_failure_names_the_stage_for_every_type_of_op(op):
    error = failure_of(source([7]).pipe(op, name="check"), max_failures=0)
    assert error.__notes__[0].endswith(":1:check") and error.__notes__[1] == "Item: 7"


def test_f07_notes_stay_few_and_short():
    shared = ValueError("always the same")

    def fail(item):
        raise shared

    class Unwilling:
        def __repr__(self):
            raise LookupError

    class Talkative:
        def __repr__(self):
            return "x" * 10_000

    run(source([b"x" * 10_000, "y" * 10_000, list(range(10_000)), Unwilling()]).pipe(fail))
    assert shared.__notes__[1] == "Item: <bytes of 10000>" and len(shared.__notes__) == 2
    for item in ("y" * 10_000, list(range(10_000)), {1: "z" * 10_000}, Talkative(), Unwilling()):
        error = failure_of(source([item]).pipe(refuse_shortly), max_failures=0)
        assert len(error.__notes__[1]) < 250
    assert "Unwilling" in error.__notes__[1]


def refuse_shortly(item):
    raise ValueError


@pytest.mark.skipif(sys.version_info < (3, 11), reason="requires ExceptionGroup of Python 3.11")
def test_f07_the_failure_is_an_exception_group():
    failure = PipelineFailure([("a", ValueError(1)), ("b", LookupError(2))])
    assert isinstance(failure, ExceptionGroup)  # noqa: F821
    values, rest = failure.split(ValueError)
    assert type(values) is type(rest) is PipelineFailure
    assert [type(error) for error in values.exceptions] == [ValueError]
    assert values.exceptions[0].__notes__ == ["Pipeline stage: a"]
    again = pickle.loads(pickle.dumps(failure))
    assert [type(error) for error in again.exceptions] == [ValueError, LookupError]


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="requires Python 3.10")
def test_f07_the_failure_is_a_runtime_error_on_python_3_10():
    failure = PipelineFailure([("a", ValueError(1)), ("b", LookupError(2))])
    assert isinstance(failure, RuntimeError)
    assert [type(error) for error in failure.exceptions] == [ValueError, LookupError]
    assert "a, b" in str(failure)
    assert len(pickle.loads(pickle.dumps(failure)).exceptions) == 2


def test_f08_items_in_flight_are_delivered_before_the_end():
    def slow(item):
        time.sleep(0.01)
        return item

    assert sorted(run(source(range(7)).pipe(slow, concurrency=4), num_threads=4)) == list(range(7))


def test_f09_a_failing_stage_ends_upstream_but_not_downstream_stages():
    gate = threading.Event()

    def wait(item):
        assert gate.wait(20)
        return item

    pipeline = build(source([0, 2, 1]).pipe(refuse_odd).pipe(wait, concurrency=2), max_failures=0)
    pipeline.start()
    threading.Timer(0.1, gate.set).start()
    assert sorted([pipeline.get_item(timeout=20), pipeline.get_item(timeout=20)]) == [0, 2]
    with pytest.raises(PipelineFailure):
        pipeline.get_item(timeout=20)


def test_f11_a_failed_build_leaves_no_threads():
    for _ in range(5):
        with pytest.raises(TypeError):
            build(source().pipe(identity), max_failures="1")
    assert_no_threads()


def test_a_failing_flush_fails_the_pipeline():
    class Broken(Aggregator):
        def accumulate(self, item):
            return None

        def flush(self):
            raise LookupError("in flush")

    assert failure_of(source([1]).aggregate(Broken())).args == ("in flush",)


def test_the_default_log_shows_the_traceback_once():
    script = """
from spdl_rs.pipeline import PipelineBuilder
def fail(item):
    raise ValueError("no")
list(PipelineBuilder().add_source([1]).pipe(fail).add_sink().build(num_threads=1))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("Traceback") == 1 and "in fail" in done.stderr
