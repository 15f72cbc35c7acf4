"""Helpers for tests of native operators."""

import numpy
import pytest
import spdl_rs
from pipelines import run, source
from spdl_rs.io import Fetch
from spdl_rs.pipeline import PipelineFailure

SIZE = 32


def files(folder):
    return sorted(str(path) for path in folder.glob("*/*") if path.is_file())


def native(items, decode, *, output_order="input", **options):
    """path ──► bytes ──► pixels"""
    fetched = source(items, **options).pipe(Fetch(), output_order=output_order)
    return fetched.pipe(decode, output_order=output_order)


def loaded(paths, epochs=1, **options):
    """The batches of each epoch of an image loader over the files."""
    loader = spdl_rs.ImageLoader(paths, size=SIZE, shuffle=False, **options)
    return [list(loader) for _ in range(epochs)]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype
        numpy.testing.assert_array_equal(one, other)


def stages(pipeline):
    return {stage["name"].split(":")[-1]: stage for stage in pipeline.stats()["stages"]}


def failure_of(builder, **options):
    with pytest.raises(PipelineFailure) as raised:
        run(builder, **options)
    (error,) = raised.value.exceptions
    return error
