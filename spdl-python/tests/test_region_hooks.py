"""Feature group X: hooks and statistics of stages in other processes."""

import functools
import os

import in_processes as work
import pytest
from pipelines import build, identity, run, source
from test_regions import region


def lines_of(path):
    return [tuple(line.split()) for line in path.read_text().splitlines()]


def test_x09_hooks_of_a_region_run_in_its_processes(tmp_path):
    path = tmp_path / "hooks"
    factory = functools.partial(work.hooks_that_append, str(path))
    builder = region(source(range(8)), work.double).pipe(identity)
    assert sorted(run(builder, task_hook_factory=factory)) == list(range(0, 16, 2))
    lines = lines_of(path)
    inside = [line for line in lines if line[1] == "double"]
    assert str(os.getpid()) not in {pid for pid, *_ in inside}
    items = [what for _, _, what in inside if what.isdigit()]
    assert sorted(map(int, items)) == list(range(8))
    outside = [line for line in lines if line[1] == "identity"]
    assert {pid for pid, *_ in outside} == {str(os.getpid())}
    for pid in {pid for pid, *_ in inside}:
        own = [what for at, _, what in inside if at == pid]
        assert (own[0], own[-1]) == ("begins", "ends")


def test_x09_queue_statistics_of_a_region_are_reported_in_its_processes(tmp_path):
    path = tmp_path / "queues"
    make = functools.partial(work.queue_that_appends, str(path))
    assert len(run(region(source(range(8)), work.double, workers=1), queue_class=make)) == 8
    inside = [line for line in lines_of(path) if line[0] != str(os.getpid())]
    # The queues before and after the stage.
    assert sorted(tuple(reported) for _, *reported in inside) == [("sink", "8"), ("src", "8")]


def test_x09_unpicklable_hooks_are_an_error_at_build():
    with pytest.raises(Exception, match="pickl"):
        build(region(source(range(2)), work.double), task_hook_factory=lambda info: [])
