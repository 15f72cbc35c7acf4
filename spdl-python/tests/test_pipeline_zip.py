"""`Zip`: tuples of one item from each of several pipelines."""

import itertools
import random
import threading
from collections import Counter

import in_processes as work
import pytest
from pipelines import assert_no_threads, identity, source, twice
from spdl_rs import UnsupportedError
from spdl_rs.pipeline import (
    PipelineBuilder,
    PipelineFailure,
    build_pipeline,
    profile_pipeline,
    run_pipeline_in_subprocess,
)
from spdl_rs.pipeline.defs import (
    MAIN_PROCESS,
    Aggregate,
    Disaggregate,
    Merge,
    MergeConfig,
    Pipe,
    PipelineConfig,
    ProcessPoolExecutorConfig,
    SinkConfig,
    SourceConfig,
    Zip,
    ZipConfig,
)
from spdl_rs.source import DistributedRandomSampler
from spdl_rs.source.utils import embed_shuffle
from test_pipeline_state import check_every_item, rest, sent, some


def part(items, *functions, continuous=False, **options):
    """A pipeline that keeps the order of its items."""
    options = {"concurrency": 2, "output_order": "input", **options}
    pipes = [Pipe(function, **options) for function in functions]
    return PipelineConfig(SourceConfig(items, continuous), pipes, SinkConfig(1))


def zipped(*parts, pipes=(), strict=False, num_threads=2, **options):
    config = PipelineConfig(Zip(parts, strict=strict), pipes, SinkConfig(2))
    return build_pipeline(config, num_threads=num_threads, **options)


def _dropped(item):
    if item % 6 == 5:
        raise ValueError(f"no {item}")
    return None if item % 4 == 2 else item


def kept(numbers):
    return [number for number in numbers if number % 6 != 5 and number % 4 != 2]


def test_tuples_have_an_item_of_each_pipeline():
    pipeline = zipped(part("abc", str.upper), part(range(3)), part([1.5, 2.5, 3.5]))
    assert list(pipeline) == [("A", 0, 1.5), ("B", 1, 2.5), ("C", 2, 3.5)]
    assert list(zipped(part("ab"))) == [("a",), ("b",)]
    assert list(zipped(part([]), part("ab"))) == []
    assert_no_threads()


def test_the_shortest_pipeline_ends_the_zip():
    pipeline = zipped(part(range(5)), part("abc"), part(range(100)))
    assert list(pipeline) == [(0, "a", 0), (1, "b", 1), (2, "c", 2)]
    stages = {stage["name"].split(":", 1)[1]: stage for stage in pipeline.stats()["stages"]}
    assert stages["0:zip"]["items"] == 3
    # The names of the branches have their places.
    assert {"0.0.0:src", "0.1.0:src", "0.2.0:src"} <= set(stages)
    assert stages["0.2.0:src"]["items"] == 100


def test_dropped_items_are_in_no_tuple():
    pairs = list(zipped(part(range(12), _dropped), part(range(100, 112))))
    assert pairs == list(zip(kept(range(12)), range(100, 112)))


def test_a_strict_zip_raises_for_pipelines_of_different_lengths():
    assert len(list(zipped(part("abc"), part(range(3)), strict=True))) == 3
    for lengths in ([3, 4], [4, 3], [3, 3, 9], [0, 1]):
        pipeline = zipped(*(part(range(length)) for length in lengths), strict=True)
        items = []
        with pytest.raises(PipelineFailure) as raised:
            items.extend(pipeline)
        (error,) = raised.value.exceptions
        assert isinstance(error, ValueError)
        assert "branches of a strict zip have different numbers of items" in str(error)
    assert_no_threads()


def test_epochs_are_never_mixed():
    def make(strict=False):
        return zipped(
            part(range(3), continuous=True), part("abcde", continuous=True), pipes=[Aggregate(2)], strict=strict
        )

    pipeline = make()
    with pipeline.auto_stop():
        for _ in range(3):
            assert list(pipeline) == [[(0, "a"), (1, "b")], [(2, "c")]]
    with pytest.raises(ValueError, match="set continuous=True for all zipped sources"):
        zipped(part([1]), part([1], continuous=True))


def test_zips_and_merges_nest():
    inner = PipelineConfig(Zip([part("ab"), part("cd")]), [Pipe("".join)], SinkConfig(1))
    merge = PipelineConfig(Merge([part([1]), part([2])]), [], SinkConfig(1))
    pairs = list(zipped(inner, merge, pipes=[Pipe(identity)]))
    assert [text for text, _ in pairs] == ["ac", "bd"] and sorted(n for _, n in pairs) == [1, 2]
    outer = PipelineConfig(Zip([part([1]), part([2])]), [], SinkConfig(1))
    config = PipelineConfig(Merge([outer, part([3])]), [], SinkConfig(1))
    assert sorted(map(str, build_pipeline(config, num_threads=1))) == ["(1, 2)", "3"]


def test_a_failing_pipeline_ends_the_zip():
    def broken():
        yield 1
        raise LookupError("no more")

    items = []
    with pytest.raises(PipelineFailure) as raised:
        items.extend(zipped(part(broken()), part(itertools.count())))
    assert [type(error) for error in raised.value.exceptions] == [LookupError]
    assert_no_threads()


def test_backpressure_reaches_all_pipelines():
    taken = Counter()

    def count(name):
        for number in range(100_000):
            taken[name] += 1
            yield number

    pipeline = zipped(part(count("a")), part(count("b"), identity))
    with pipeline.auto_stop():
        items = iter(pipeline)
        assert [next(items) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
        threading.Event().wait(0.3)
        assert max(taken.values()) < 5_000


def test_a_memory_budget_does_not_block_a_zip():
    parts = [part([bytes(100)] * 30), part([bytes(50)] * 30, identity)]
    assert len(list(zipped(*parts, memory_budget=1_000))) == 30


def test_the_configuration_prints_and_checks_itself():
    config = Zip([part("a"), part([1])], strict=True)
    assert isinstance(config, ZipConfig) and not isinstance(config, MergeConfig)
    assert repr(config).split("\n")[:4] == [
        "ZipConfig(",
        "  strict=True",
        "  Pipeline 1:",
        "    PipelineConfig",
    ]
    with pytest.raises(ValueError, match="at least one upstream pipeline"):
        Zip([])
    with pytest.raises(TypeError, match="strict"):
        Zip([part("a")], strict="yes")
    with pytest.raises(ValueError, match="one source"):
        zipped(part([1]), part([2]), record_order=True)


def test_pipelines_may_have_regions_in_other_processes():
    region = source(range(4)).to(ProcessPoolExecutorConfig(max_workers=1)).pipe(work.double).to(MAIN_PROCESS)
    pipeline = zipped(region.add_sink().get_config(), part("abcd"), num_threads=1)
    with pipeline.auto_stop():
        pairs = list(pipeline.get_iterator(timeout=60))
    # A region does not keep the order.
    assert sorted(first for first, _ in pairs) == [0, 2, 4, 6]
    assert [second for _, second in pairs] == list("abcd")


def test_a_zip_runs_in_a_subprocess():
    config = PipelineConfig(Zip([part(range(3), work.double), part("abc")]), [], SinkConfig(2))
    items = run_pipeline_in_subprocess(config, num_threads=1)
    assert list(items) == [(0, "a"), (2, "b"), (4, "c")]


def test_a_zip_is_profiled():
    config = PipelineConfig(Zip([part(range(9), twice_of), part("abc" * 3)]), [Pipe(identity)], SinkConfig(2))
    report = profile_pipeline(config, num_inputs=9)
    assert [result.name for result in report] == ["twice_of", "identity"]


def twice_of(item):
    return 2 * item


def test_a_zip_resumes_at_every_item():
    def make():
        sampler = embed_shuffle(DistributedRandomSampler(15, rank=0, world_size=1))
        parts = [part(range(24), _dropped), part(range(100, 119)), part(sampler, _dropped)]
        return zipped(*parts, pipes=[Pipe(_kept_pair, concurrency=2, output_order="input"), Aggregate(2)])

    assert 2 < len(list(make())) < 12
    check_every_item(make, ordered=True)


def _kept_pair(pair):
    if pair[0] % 7 == 3:
        raise ValueError(f"no {pair}")
    return None if pair[1] % 5 == 4 else list(pair)


def test_zips_of_zips_lists_and_merges_resume():
    def make():
        lists = PipelineBuilder().add_source(range(50, 71)).aggregate(3).add_sink(1).get_config()
        inner = PipelineConfig(Zip([part(range(12), _dropped), part(range(20, 29))]), [Pipe(list)], SinkConfig(1))
        merge = Merge([part(range(200, 205), _dropped), part(range(205, 209))], weights=[1, 2], seed=4)
        return zipped(lists, inner, PipelineConfig(merge, [], SinkConfig(1)), pipes=[Pipe(list)])

    check_every_item(make, ordered=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_random_zip_continues_after_several_kills(seed):
    draw = random.Random(seed)
    sizes = [draw.randrange(0, 25) for _ in range(draw.randrange(2, 5))]
    stages = [[_dropped] * draw.randrange(3) for _ in sizes]

    def make():
        parts = [
            part(range(1000 * at, 1000 * at + size), *functions, concurrency=draw.randrange(1, 5))
            for at, (size, functions) in enumerate(zip(sizes, stages))
        ]
        return zipped(*parts, pipes=[Aggregate(draw_size)], num_threads=draw.randrange(1, 5))

    draw_size = draw.randrange(1, 4)
    whole = rest(make())
    found, state = [], None
    while len(found) < len(whole):
        pipeline = make()
        if state is not None:
            pipeline.load_state_dict(state)
        found += some(pipeline, min(draw.randrange(1, 4), len(whole) - len(found)))
        state = sent(pipeline.state_dict())
        pipeline.stop()
    assert found == whole


def test_states_of_other_joins_are_refused():
    def make(sizes=(4, 6), join=Zip):
        config = PipelineConfig(join([part(range(size)) for size in sizes]), [], SinkConfig(2))
        return build_pipeline(config, num_threads=1)

    first = make()
    some(first, 2)
    state = sent(first.state_dict())
    first.stop()
    assert len(state["source"]) == 2
    make().load_state_dict(state)
    for other in (make((4, 7)), make((6, 4)), make((4, 6, 1)), make(join=Merge)):
        with pytest.raises(ValueError, match="the state is of another pipeline"):
            other.load_state_dict(state)


SAMPLER = DistributedRandomSampler(8, rank=0, world_size=1)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: zipped(part([1]), part(iter([2]))), "use a sequence"),
        (lambda: zipped(part(SAMPLER), part(SAMPLER)), "use a copy in each"),
        (lambda: zipped(part([1]), part([2]), pipes=[Disaggregate()]), "after a zip splits tuples"),
        (lambda: zipped(part([1]), part([2]), pipes=[Pipe(twice)]), "after a zip splits tuples"),
        (
            lambda: zipped(source([1]).aggregate(2).disaggregate().add_sink(1).get_config(), part([2])),
            "a zipped pipeline splits lists",
        ),
        (
            lambda: build_pipeline(
                PipelineConfig(
                    Merge([PipelineConfig(Zip([part([1])]), [], SinkConfig(1)), part([2])], weights=[1, 1]),
                    [],
                    SinkConfig(1),
                ),
                num_threads=1,
            ),
            "do so after the merge",
        ),
    ],
)
def test_zips_without_positions_refuse_states_with_advice(make, advice):
    pipeline = make()
    with pytest.raises(UnsupportedError, match=advice):
        pipeline.state_dict()
    with pytest.raises(UnsupportedError, match=advice):
        pipeline.load_state_dict({})


