"""Groups B and M of the features: paths, of which each item takes one."""

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


def test_b07_the_builder_makes_the_stage_that_the_factory_makes():
    builder = source(range(4))
    assert builder.path_variants(parity, [[Pipe(negate)], []]) is builder
    (stage,) = builder.add_sink().get_config().pipes
    assert stage == PathVariants(parity, [[Pipe(negate)], []])
    assert (stage.name, stage.batched) == ("path_variants", False)
    assert stage.paths == ((Pipe(negate),), ())


def test_b07_name_and_batched_may_be_given_by_place_and_by_name():
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


def test_b07_items_take_one_path_each_or_lists_are_parted():
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


def test_b07_what_is_no_path_or_no_function_is_refused_at_once():
    for wrong in ([], [[3]], [[Pipe(identity), "stage"]]):
        with pytest.raises(ValueError):
            PipelineBuilder().path_variants(parity, wrong)
    with pytest.raises(TypeError, match="callable"):
        PipelineBuilder().path_variants("parity", [[]])


def test_m06_a_path_that_is_held_up_lets_others_go_on_by_a_bounded_number():
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
            # Those that go the other way come, though an even one was there first.
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


def test_m06_a_path_without_any_more_items_ends_no_other():
    def once(number):
        return 0 if number == 0 else 1

    paths = [[Pipe(negate), Aggregate(5)], [Pipe(identity)]]
    found = run(source(range(200)).path_variants(once, paths))
    # What the first path holds comes at the end.
    assert [item for item in found if isinstance(item, list)] == [[0]]
    assert sorted(item for item in found if isinstance(item, int)) == list(range(1, 200))


def test_m06_a_path_that_drops_all_its_items_ends_no_other():
    paths = [[Pipe(lambda number: None)], [Pipe(identity)]]
    assert sorted(run(source(range(200)).path_variants(parity, paths))) == list(range(1, 200, 2))
