"""Context managers that close iterators of the user."""

import asyncio

import pytest
from spdl_rs._closing import aclosing, closing


class Closable:
    def __init__(self):
        self.closed = 0

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def __aiter__(self):
        return self

    async def __anext__(self):
        return 1

    def close(self):
        self.closed += 1

    async def aclose(self):
        await asyncio.sleep(0)
        self.closed += 1


def test_closing_closes_on_exit_and_exception():
    results = Closable()
    with closing(results) as given:
        assert given is results and results.closed == 0
    assert results.closed == 1
    with pytest.raises(LookupError), closing(results):
        raise LookupError
    assert results.closed == 2


def test_aclosing_closes_on_exit_and_exception():
    async def use(results):
        async with aclosing(results) as given:
            assert given is results and results.closed == 0
        assert results.closed == 1
        with pytest.raises(LookupError):
            async with aclosing(results):
                raise LookupError
        assert results.closed == 2

    asyncio.run(use(Closable()))


def test_closing_accepts_an_iterator_without_close():
    with closing(iter([1, 2])) as results:
        assert next(results) == 1
    assert next(results) == 2
