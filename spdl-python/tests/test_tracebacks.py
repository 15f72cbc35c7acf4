"""Tracebacks of failures show the user's frames, not those of the pipeline."""

import contextlib
import functools
import logging
import traceback

import in_processes as work
import pytest
from pipelines import build, source
from spdl_rs.pipeline import (
    PipelineFailure,
    TaskHook,
    TaskStatsHook,
    WorkerError,
    iterate_in_subprocess,
)
from spdl_rs.pipeline._failures.tracebacks import shorten
from spdl_rs.pipeline._processes.remote_errors import RemoteTraceback
from spdl_rs.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig, _checks


def helper(item):
    raise LookupError(f"no {item}")


def decode(item):
    return helper(item)


async def decode_async(item):
    return helper(item)


def decode_many(item):
    yield helper(item)


async def decode_many_async(item):
    yield helper(item)


class Quiet(TaskHook):
    @contextlib.asynccontextmanager
    async def task_hook(self, input_item=None):
        yield


class Failing(TaskHook):
    @contextlib.asynccontextmanager
    async def task_hook(self, input_item=None):
        raise LookupError("the hook")
        yield


class FailingStage(Quiet):
    @contextlib.asynccontextmanager
    async def stage_hook(self):
        raise LookupError("the hook")
        yield


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def failure_of(op, caplog, **options):
    caplog.set_level(logging.ERROR)
    with pytest.raises(PipelineFailure) as raised:
        list(build(source().pipe(op), max_failures=0, **options))
    (error,) = raised.value.exceptions[:1]
    return raised.value, error


HOOKS = {
    "none": None,
    "quiet": lambda info: [Quiet()],
    "two": lambda info: [Quiet(), TaskStatsHook(info), Quiet()],
    "meters": lambda info: [TaskStatsHook(info)],
}


@pytest.mark.parametrize("op", [decode, decode_async, decode_many, decode_many_async])
@pytest.mark.parametrize("hooks", HOOKS)
def test_f07_tracebacks_start_in_functions_of_the_user(op, hooks, caplog):
    factory = HOOKS[hooks]
    _, error = failure_of(op, caplog, task_hook_factory=factory)
    assert type(error) is LookupError and frames(error) == [op.__name__, "helper"]
    (record,) = caplog.records
    assert "spdl_rs" not in caplog.text.replace("spdl_rs.pipeline", "")
    assert "contextlib" not in caplog.text and "concurrent" not in caplog.text
    assert record.exc_info[1] is error or str(record.exc_info[1]) == str(error)


def test_f07_hooks_add_few_lines_to_a_traceback(caplog):
    for factory in HOOKS.values():
        failure, _ = failure_of(decode, caplog, task_hook_factory=factory)
        lines = "".join(traceback.format_exception(failure)).splitlines()
        ours = [line for line in lines if "spdl_rs/pipeline/" in line]
        assert len(ours) <= 1, ours


def test_f10_tracebacks_of_hooks_start_in_the_hook(caplog):
    _, error = failure_of(decode, caplog, task_hook_factory=lambda info: [Failing()])
    assert frames(error) == ["task_hook"]
    failure, _ = failure_of(decode, caplog, task_hook_factory=lambda info: [FailingStage()])
    assert ["stage_hook"] in [frames(error) for error in failure.exceptions]


def test_f12_tracebacks_of_regions_are_those_of_the_process(caplog):
    region = source().to(ProcessPoolExecutorConfig(max_workers=1)).pipe(work.refuse_3)
    with pytest.raises(PipelineFailure) as raised:
        list(build(region.to(MAIN_PROCESS), max_failures=0))
    (error,) = raised.value.exceptions
    assert error.__traceback__ is None and type(error.__cause__) is RemoteTraceback
    assert "in refuse_3" in str(error.__cause__)
    assert "spdl_rs" not in str(error.__cause__)


def test_x01_tracebacks_of_processes_show_the_iterated_function():
    with pytest.raises(ValueError) as raised:
        list(iterate_in_subprocess(functools.partial(work.two_then_raise, ValueError("no"))))
    # The frame of this test, and the frame of the iterated function.
    assert frames(raised.value)[1:] in (["__iter__"], ["__iter__", "_receive"])
    there = str(raised.value.__cause__)
    assert "two_then_raise" in there and "worker_process" not in there


def test_an_exception_within_the_package_keeps_its_traceback():
    try:
        _checks.budget("y")
    except TypeError as caught:
        error = caught
    ours = error.__traceback__.tb_next
    shorten(error.with_traceback(ours))
    assert error.__traceback__ is ours and frames(error) == ["budget"]
    # The cause has a more detailed traceback, or the message is sufficient.
    error.__cause__ = KeyError("why")
    shorten(error)
    assert error.__traceback__ is None
    ended = WorkerError("has ended").with_traceback(ours)
    shorten(ended)
    assert ended.__traceback__ is None


def test_frames_after_the_first_user_frame_are_kept():
    def load(item):
        # The user's function calls the package, which calls the user's function.
        return list(build(source([item]).pipe(decode), max_failures=0))

    with pytest.raises(PipelineFailure) as raised:
        list(build(source([1]).pipe(load), max_failures=0))
    (inner,) = raised.value.exceptions
    assert frames(inner)[0] == "load" and frames(inner.exceptions[0]) == ["decode", "helper"]
