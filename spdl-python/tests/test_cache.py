"""Repetition of the first items: `cache_iterator` and `CacheDataLoader`."""

import copy
import doctest
import gc
import itertools
import json
import pathlib
import pickle
import weakref

import pytest
from spdl_rs import _cache_iterator, dataloader
from spdl_rs._cache_iterator import cache_iterator
from spdl_rs.dataloader import CacheDataLoader, _cache_dataloader

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent / "golden" / "upstream_cache.json").read_text(encoding="utf-8")
)


def test_x10_items_equal_those_of_upstream():
    for row in GOLDEN["cached"]:
        items = cache_iterator(range(row["source"]), row["num_caches"], **row["arguments"])
        assert list(itertools.islice(items, 20)) == row["items"], row


@pytest.mark.parametrize(("num_caches", "arguments"), GOLDEN["refused"])
def test_x10_invalid_numbers_are_errors(num_caches, arguments):
    with pytest.raises(ValueError, match="must be"):
        cache_iterator([1, 2, 3], num_caches, **arguments)
    after = arguments.get("return_caches_after", num_caches)
    with pytest.raises(ValueError, match="must be"):
        CacheDataLoader([1, 2, 3], num_caches, after, arguments.get("stop_after"))
    with pytest.raises(TypeError, match="must be a whole number"):
        cache_iterator([1, 2, 3], 1.5)
    with pytest.raises(TypeError, match="delete_src must be True or False"):
        cache_iterator([1, 2, 3], 1, delete_src=0)


def test_x10_the_source_is_not_read_further_than_needed():
    source = iter(range(10))
    assert list(cache_iterator(source, 2, return_caches_after=4, stop_after=8))[4:] == [0, 1, 0, 1]
    assert next(source) == 4


@pytest.mark.parametrize("delete_src", [True, False])
def test_x10_delete_src_drops_the_source_after_the_cached_items(delete_src):
    class Source:
        def __iter__(self):
            yield from range(5)

    source = Source()
    alive = weakref.ref(source)
    items = cache_iterator(source, 2, delete_src=delete_src)
    del source
    next(items), next(items)
    assert alive() is not None
    next(items)
    gc.collect()
    assert (alive() is None) is delete_src


def test_d03_each_pass_starts_with_items_of_the_loader():
    loader = CacheDataLoader([1, 2, 3, 4], 2, 3, stop_after=7)
    assert list(loader) == list(loader) == [1, 2, 3, 1, 2, 1, 2]
    endless = CacheDataLoader([1, 2, 3, 4], num_caches=1, return_caches_after=1)
    assert list(itertools.islice(endless, 100)) == [1] * 100


class Loader:
    batch_size = 8

    def __iter__(self):
        return iter("ab")


def test_d03_length_and_attributes_are_forwarded():
    assert len(CacheDataLoader([1, 2, 3], 1, 1, 9)) == 3
    loader = CacheDataLoader(Loader(), 1, 2)
    assert loader.batch_size == 8 and (loader.num_caches, loader.return_caches_after) == (1, 2)
    with pytest.raises(TypeError, match="Loader has no length"):
        len(loader)
    with pytest.raises(AttributeError, match="seed"):
        _ = loader.seed


def test_d03_a_cache_data_loader_can_be_copied_and_pickled():
    # In upstream, copying recurses endlessly.
    loader = CacheDataLoader(Loader(), 1, 2, 4)
    for again in [copy.copy(loader), pickle.loads(pickle.dumps(loader))]:
        assert list(again) == ["a", "b", "a", "a"] and again.batch_size == 8


@pytest.mark.parametrize("module", [_cache_iterator, _cache_dataloader])
def test_the_examples_in_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted >= 1 and result.failed == 0
    assert dataloader.__doc__
