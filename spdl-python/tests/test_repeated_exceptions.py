"""A failed pipeline: the first caller gets the exception, later callers get copies."""

import gc
import logging
import os
import weakref

import pytest
from pipelines import build, refuse, source, wait_until
from spdl_rs.pipeline import PipelineFailure
from spdl_rs.pipeline._failures.repeated import RepeatedFailure


async def refuse_async(item):
    raise ValueError(item)


class Local:
    """A local variable of a function."""


@pytest.fixture
def no_log():
    # pytest keeps log records, and with them the frames of their exceptions.
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def failed(operator, ask):
    local = Local()
    pipeline = build(source(range(3)).pipe(operator, max_failures=0))
    with pytest.raises(PipelineFailure):
        ask(pipeline)
    return weakref.ref(local), weakref.ref(pipeline)


@pytest.mark.usefixtures("no_log")
@pytest.mark.parametrize("operator", [refuse, refuse_async])
@pytest.mark.parametrize("ask", [list, lambda pipeline: pipeline.get_item(timeout=60)])
def test_a_failed_pipeline_keeps_no_frames_alive(operator, ask):
    failed(operator, ask)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    kept = [failed(operator, ask) for _ in range(10)]
    gc.collect()
    assert [one() for pair in kept for one in pair] == [None] * 20
    # The thread of an event loop closes the loop shortly after the pipeline has failed.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)


def test_later_callers_get_a_copy_of_the_exception():
    pipeline = build(source(range(3)).pipe(refuse, max_failures=0))
    reported = []
    for _ in range(3):
        with pytest.raises(PipelineFailure, match="refuse") as info:
            pipeline.get_item(timeout=60)
        reported.append(info.value)
    first, *later = reported
    assert first.exceptions[0].__traceback__ is not None
    for failure in later:
        (error,) = failure.exceptions
        assert type(error) is ValueError and str(error) == "no 0"
        assert failure is not first and error is not first.exceptions[0]
        assert set(first.exceptions[0].__notes__) < set(error.__notes__)
    assert later[0] is not later[1]
    pipeline.stop()


class Odd(Exception):
    """Its message requires attributes that only `__init__` sets."""

    def __init__(self, what, why):
        self.what, self.why = what, why

    def __str__(self):
        return f"{self.what} since {self.why}"


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (KeyError("x"), KeyError, "x"),
        (OSError(2, "not there", "file"), FileNotFoundError, "not there"),
        (Odd("it failed", "it rained"), RuntimeError, "Odd: it failed since it rained"),
        (Wordless(), RuntimeError, "Wordless"),
    ],
)
def test_an_exception_that_cannot_be_copied_keeps_its_type_name(error, kind, words):
    (again,) = RepeatedFailure(PipelineFailure([("stage", error)]))().exceptions
    assert type(again) is kind and words in str(again)


def test_system_exit_is_copied_with_its_type():
    again = RepeatedFailure(SystemExit("enough"))()
    assert type(again) is SystemExit and "enough" in str(again)
