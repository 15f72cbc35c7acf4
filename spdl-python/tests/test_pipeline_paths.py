"""Feature groups B and M: paths, of which each item takes one."""

import threading

import pytest
from pipelines import build, identity, run, source
from spdl_rs.pipeline import PipelineBuilder
from spdl_rs.pipeline.defs import Aggregate, PathVariants, Pipe


def parity(number):
    return number % 2


def negate(number):
    return -number


def parities(numbers):
    return [number % 2 for number in numbers]


def test_b07_path_variants_of_builder_and_factory_are_equal():
    builder = source(range(4))
    assert builder.path_variants(parity, [[Pipe(negate)], []]) is builder
    (stage,) = builder.add_sink().get_config().pipes
    assert stage == PathVariants(parity, [[Pipe(negate)], []])
    assert (stage.name, stage.batched) == ("path_variants", False)
    assert stage.paths == ((Pipe(negate),), ())


def test_b07_name_and_batched_may_be_positional_or_keyword():
    by_place = source().path_variants(parities, [[], []], "split", True)
    by_name = source().path_variants(parities, [[], []], name="split", batched=True)
    for builder in (by_place, by_name):
        (stage,) = builder.add_sink().get_config().pipes
        assert (stage.name, stage.batched) == ("split", True)
        assert "split(path0=[], path1=[], batched=True)" in repr(stage)
    pipeline = by_place.build(num_threads=1)
    assert any(":split" in stage["name"] for stage in started(pipeline).stats()["stages"])


def started(pipeline):
    with pipeline.auto_stop():
        return pipeline


def test_b07_items_or_list_elements_take_one_path_each():
    assert sorted(run(source(range(4)).path_variants(parity, [[Pipe(negate)], []]))) == [
        -2,
        0,
        1,
        3,
    ]
    builder = source([[1, 2, 3]]).path_variants(parities, [[Pipe(tenfold)], []], batched=True)
    assert run(builder) == [[1, 20, 3]]


def tenfold(numbers):
    return [number * 10 for number in numbers]


def test_b07_invalid_paths_and_routers_are_errors():
    for wrong in ([], [[3]], [[Pipe(identity), "stage"]]):
        with pytest.raises(ValueError):
            PipelineBuilder().path_variants(parity, wrong)
    with pytest.raises(TypeError, match="callable"):
        PipelineBuilder().path_variants("parity", [[]])


def test_m06_a_blocked_path_limits_the_progress_of_others():
    made, gate = [], threading.Event()

    def numbers():
        for number in range(1000):
            made.append(number)
            yield number

    def wait(number):
        gate.wait(60)
        return number

    paths = [[Pipe(wait)], [Pipe(identity)]]
    pipeline = build(source(numbers()).path_variants(parity, paths))
    found = []
    with pipeline.auto_stop():
        try:
            # Items of the other path arrive, although an even item was first.
            found.append(pipeline.get_item(timeout=20))
            while True:
                try:
                    found.append(pipeline.get_item(timeout=0.5))
                except TimeoutError:
                    break
            assert all(number % 2 for number in found)
            assert len(found) < 300 and len(made) < 600
        finally:
            gate.set()
        found += list(pipeline)
    assert sorted(found) == list(range(1000))


def test_m06_an_exhausted_path_does_not_end_others():
    def once(number):
        return 0 if number == 0 else 1

    paths = [[Pipe(negate), Aggregate(5)], [Pipe(identity)]]
    found = run(source(range(200)).path_variants(once, paths))
    # The first path emits its incomplete list at the end.
    assert [item for item in found if isinstance(item, list)] == [[0]]
    assert sorted(item for item in found if isinstance(item, int)) == list(range(1, 200))


def test_m06_a_path_that_drops_all_items_does_not_end_others():
    paths = [[Pipe(lambda number: None)], [Pipe(identity)]]
    assert sorted(run(source(range(200)).path_variants(parity, paths))) == list(range(1, 200, 2))
