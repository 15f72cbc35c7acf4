"""Invalid hooks: an error when the pipeline is built, instead of one per item."""

import re
from contextlib import asynccontextmanager, contextmanager

import pytest
from pipelines import build, identity, identity_async, run, source, twice, twice_async
from spdl_rs.pipeline import PipelineFailure, TaskHook

OPS = [identity, identity_async, twice, twice_async]


class Right(TaskHook):
    @asynccontextmanager
    async def task_hook(self, input_item=None):
        yield


class TakesNoItem(TaskHook):
    @asynccontextmanager
    async def task_hook(self):
        yield


class TakesTwo(TaskHook):
    @asynccontextmanager
    async def task_hook(self, input_item, more):
        yield


class StageWithItem(Right):
    @asynccontextmanager
    async def stage_hook(self, item):
        yield


class Coroutine(TaskHook):
    async def task_hook(self, input_item=None):
        pass


class OnlyStage:
    @asynccontextmanager
    async def stage_hook(self):
        yield


STAGE = r"stage \d+:1:identity\[1\]"
TASK = re.escape("`async def task_hook(self, input_item=None)`")


@pytest.mark.parametrize(
    ("factory", "error_text"),
    [
        (
            lambda info: None,
            f"^task_hook_factory must return a list of TaskHooks for {STAGE}.*not None",
        ),
        (
            lambda info: Right(),
            f"must return a list of TaskHooks for {STAGE}.*not an object of type Right",
        ),
        (lambda info: "hook", f"must return a list of TaskHooks for {STAGE}.*not 'hook'"),
        (
            lambda info: [3],
            f"^task_hook_factory returned 3 instead of a TaskHook for {STAGE}: the value has no method",
        ),
        (lambda info: [None], f"returned None instead of a TaskHook for {STAGE}: the value has"),
        (lambda info: [OnlyStage()], "instead of a TaskHook for .*has no method task_hook"),
        (
            lambda info: [Right],
            rf"returned the class Right instead of a TaskHook for {STAGE}.*as in \[Right\(\)\]",
        ),
        (lambda: [], f"^task_hook_factory is called with one argument, the StageInfo of {STAGE}"),
        (
            lambda info: [TakesNoItem()],
            f"^TakesNoItem.task_hook, which task_hook_factory returned for {STAGE}, is called with "
            rf"one argument, the item, as in {TASK}, but its signature is \(\)",
        ),
        (
            lambda info: [Right(), TakesTwo()],
            "TakesTwo.task_hook.*missing a required argument: 'more'",
        ),
        (
            lambda info: [StageWithItem()],
            r"StageWithItem.stage_hook.*is called with no arguments, as in `async def stage_hook\(self\)`",
        ),
        (lambda info: [Coroutine()], f"Coroutine.task_hook, of {STAGE}, is a coroutine function"),
    ],
)
def test_s02_invalid_hooks_are_errors_at_build(factory, error_text):
    with pytest.raises(TypeError, match=error_text):
        build(source([1]).pipe(identity), task_hook_factory=factory)


def test_s02_hooks_without_a_readable_signature_are_accepted():
    class Any(Right):
        @asynccontextmanager
        async def task_hook(self, *items, **more):
            yield

    class Hidden:
        __signature__ = "none"

        def __call__(self, info):
            return (Any(),)

    assert run(source([1]).pipe(identity), task_hook_factory=Hidden()) == [1]
    assert run(source([1]).pipe(identity), task_hook_factory=lambda info: ()) == [1]


@pytest.mark.parametrize("op", OPS)
def test_f10_a_hook_without_async_context_manager_fails_the_pipeline(op, caplog):
    class Nothing(TaskHook):
        def task_hook(self, input_item=None):
            return None

    class Blocking(TaskHook):
        @contextmanager
        def task_hook(self, input_item=None):
            yield

    for hook, given in [(Nothing(), "NoneType"), (Blocking(), "_GeneratorContextManager")]:
        caplog.clear()
        pipeline = build(source(range(9)).pipe(op), task_hook_factory=lambda info, it=hook: [it])
        with pytest.raises(PipelineFailure) as raised, pipeline.auto_stop():
            list(pipeline)
        error_text = f"task_hook must return an async context manager, not '{given}'; define it as `async def"
        assert [type(error) for error in raised.value.exceptions] == [TypeError]
        assert error_text in str(raised.value.exceptions[0])
        assert "asynccontextmanager" in caplog.text and caplog.text.count(error_text) == 1
