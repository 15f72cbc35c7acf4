"""Results of functions: coroutines and async generators are not items."""

import functools
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from pipelines import identity, identity_async, run, source, twice, twice_async
from spdl_rs.pipeline import TaskHook
from spdl_rs.pipeline._run.results import ResultCheck
from spdl_rs.pipeline.defs import Pipe


def wrapped(function):
    @functools.wraps(function)
    def inside(item):
        return function(item)

    return inside


async def not_awaited(item):
    return identity_async(item)


class Items:
    def __getitem__(self, item):
        return identity_async(item)


class Called:
    def __call__(self, item):
        return identity_async(item)


def failures(caplog):
    return [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "op",
    [
        wrapped(identity_async),
        lambda item: identity_async(item),
        functools.partial(lambda first, item: identity_async(item), 1),
        not_awaited,
        Items(),
        Called(),
    ],
)
def test_b03_a_coroutine_is_not_an_item(op, caplog):
    with warnings.catch_warnings(record=True) as warned:
        # The warning about a coroutine that is never awaited.
        warnings.simplefilter("always")
        assert run(source([1, 2]).pipe(op, name="load")) == []
        gc.collect()
    assert not [each for each in warned if "never awaited" in str(each.message)]
    first, second = failures(caplog)
    error = first.exc_info[1]
    assert isinstance(error, TypeError) and error.__traceback__ is None
    assert "returned a coroutine, which is not an item" in str(error)
    assert ":1:load cannot detect" in str(error) and "pass the async function itself" in str(error)
    assert "Item: 1" in caplog.text


@pytest.mark.parametrize("op", [wrapped(twice_async), lambda item: twice_async(item)])
def test_b03_an_async_generator_is_not_an_item(op, caplog):
    assert run(source([1]).pipe(op)) == []
    assert "returned an async generator, which is not an item" in caplog.text


def test_b03_a_coroutine_from_an_executor_is_not_an_item(caplog):
    with ThreadPoolExecutor(1) as executor:
        assert run(source([1]).pipe(wrapped(identity_async), executor=executor)) == []
    assert "returned a coroutine" in caplog.text


def test_f01_hooks_see_a_coroutine_result_as_a_failure(caplog):
    seen = []

    class Hook(TaskHook):
        @asynccontextmanager
        async def task_hook(self, input_item=None):
            try:
                yield
            except TypeError as error:
                seen.append(str(error))
                raise

    op = wrapped(identity_async)
    assert run(source([1]).pipe(op), task_hook_factory=lambda info: [Hook()]) == []
    assert len(seen) == 1 and "returned a coroutine" in seen[0]


def of_paths(builder, op):
    return builder.path_variants(lambda item: 0, [[Pipe(op)]]).disaggregate()


def test_b03_generators_are_items_with_one_warning(caplog):
    found = run(source(range(4)).pipe(wrapped(twice), name="twice"))
    assert [list(each) for each in found] == [[item, item] for item in range(4)]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "twice at pipelines.py:" in record.message
    assert "are forwarded as items" in record.message and ".disaggregate()" in record.message


@pytest.mark.parametrize(
    "build", [lambda builder, op: builder.pipe(op).disaggregate(), of_paths], ids=["line", "path"]
)
def test_b05_disaggregated_generators_do_not_warn(build, caplog):
    assert run(build(source([1, 2]), lambda item: (item for _ in range(2)))) == [1, 1, 2, 2]
    assert not caplog.records


def test_b03_results_of_c_functions_and_classes_are_not_checked():
    for function in (str, len, "".join):
        assert ResultCheck(function, "0:1:op", False).wrap("call", function) is function
    for kind in ("iterate", "iterate-async", "draw"):
        assert ResultCheck(identity, "0:1:op", False).wrap(kind, identity) is identity
