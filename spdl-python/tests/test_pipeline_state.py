"""Checkpoint states of pipelines of Python functions: exact resume at every item."""

import contextlib
import itertools
import json
import random
import threading
from collections import Counter

import pytest
from pipelines import build, identity_async, run, source, twice
from spdl_rs import UnsupportedError
from spdl_rs.pipeline import PipelineBuilder, build_pipeline
from spdl_rs.pipeline.defs import (
    MAIN_PROCESS,
    Aggregator,
    Bucket,
    Merge,
    PipelineConfig,
    ProcessPoolExecutorConfig,
    SinkConfig,
)
from spdl_rs.source import DistributedRandomSampler
from spdl_rs.source.utils import MergeIterator, embed_shuffle


def flat(items):
    for item in items:
        if isinstance(item, list):
            yield from flat(item)
        else:
            yield item


def sent(state):
    """The state, as another process gets it."""
    return json.loads(json.dumps(state))


def some(pipeline, count):
    return [pipeline.get_item(timeout=60) for _ in range(count)]


def rest(pipeline):
    with pipeline.auto_stop():
        return list(pipeline.get_iterator(timeout=60))


def check_every_item(make, *, ordered):
    """Stops `make()` after each number of items, and resumes."""
    whole = rest(make())
    for count in range(len(whole) + 1):
        first = make()
        start = some(first, count)
        state = sent(first.state_dict())
        first.stop()
        if count % 2:
            # The state after the end also contains items that were dropped meanwhile.
            state = sent(first.state_dict())
        second = make()
        second.load_state_dict(state)
        assert sent(second.state_dict()) == state
        items = start + rest(second)
        if ordered:
            assert items == whole, count
        else:
            assert Counter(flat(items)) == Counter(flat(whole)), count


class Sums(Aggregator):
    """Lists whose sum is at least 9."""

    def __init__(self):
        self.items = []

    def accumulate(self, item):
        self.items.append(item)
        return self.flush() if sum(self.items) >= 9 else None

    def flush(self):
        items, self.items = self.items, []
        return items or None


def random_pipeline(seed):
    """Returns a function that builds a random pipeline, and whether it keeps the order."""
    draw = random.Random(seed)
    size, ordered = draw.randrange(0, 14), draw.random() < 0.6
    bad, none = draw.randrange(1, 6), draw.randrange(3, 9)
    order = "input" if ordered else "completion"
    threads = draw.randrange(1, 4)

    def work(item):
        if item % bad == bad - 1 and bad > 1:
            raise ValueError(f"no {item}")
        return None if item % none == none - 1 else item + 100

    def pieces(item):
        for at in range(item % 3):
            yield item * 10 + at

    steps = []
    for _ in range(draw.randrange(1, 4)):
        kind = draw.choice(["work", "async", "pieces"])
        steps.append((kind, draw.randrange(1, 4)))
    group = draw.choice([None, 1, 2, 3, 5, "custom", "bucket"])
    # An incomplete list that is left out depends on the order.
    drop_last, split = ordered and draw.random() < 0.3, ordered and draw.random() < 0.5

    def make():
        builder = PipelineBuilder().add_source(range(size))
        for kind, concurrency in steps:
            op = {"work": work, "async": identity_async, "pieces": pieces}[kind]
            builder.pipe(op, concurrency=concurrency, output_order=order)
        if group == "custom":
            builder.aggregate(Sums(), drop_last=drop_last)
        elif group == "bucket":
            builder.aggregate(Bucket([3, 105], 2, length=float), drop_last=drop_last)
        elif group is not None:
            builder.aggregate(group, drop_last=drop_last)
        if group is not None and split:
            builder.disaggregate().pipe(work, output_order=order)
        return builder.add_sink(2).build(num_threads=threads)

    return make, ordered


@pytest.mark.parametrize("seed", range(40))
def test_a_random_pipeline_resumes_exactly_at_every_item(seed):
    make, ordered = random_pipeline(seed)
    check_every_item(make, ordered=ordered)


@pytest.mark.parametrize("ordered", [True, False])
def test_items_in_flight_are_not_done(ordered):
    """The items that overtook a slow item are not delivered again, and the slow item is not lost."""
    release = threading.Event()

    def slow(item):
        if item == 0:
            assert release.wait(60)
        return item

    def make():
        order = "input" if ordered else "completion"
        return build(source(range(6)).pipe(slow, concurrency=2, output_order=order), num_threads=2)

    first = make()
    first.start()
    start = [] if ordered else some(first, 3)
    state = sent(first.state_dict())
    release.set()
    first.stop()
    assert 0 not in start and state["done"] == ([] if ordered else [[1, 4]])
    second = make()
    second.load_state_dict(state)
    assert Counter(start + rest(second)) == Counter(range(6))


def test_lists_that_were_delivered_in_part_are_continued():
    def make():
        return build(source(range(7)).aggregate(3).disaggregate().pipe(lambda item: item * 2))

    check_every_item(make, ordered=True)


def test_the_state_of_a_continuous_pipeline_is_within_its_epoch():
    def make():
        sampler = embed_shuffle(DistributedRandomSampler(5, rank=0, world_size=1))
        return build(source(sampler, continuous=True).pipe(str))

    whole = make()
    with whole.auto_stop():
        epochs = [list(whole) for _ in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    for done, count in itertools.product(range(3), range(6)):
        first = make()
        with first.auto_stop():
            for _ in range(done):
                list(first)
            start = some(first, count)
            state = sent(first.state_dict())
        assert state["epoch"] == done
        second = make()
        second.load_state_dict(state)
        with second.auto_stop():
            assert start + list(second) == epochs[done], (done, count)
            assert list(second) == epochs[done + 1]


def test_a_state_between_two_epochs_starts_the_next_epoch():
    def make():
        return build(source([1, 2, 3], continuous=True))

    first = make()
    with first.auto_stop():
        list(first)
        state = sent(first.state_dict())
    second = make()
    second.load_state_dict(state)
    with second.auto_stop():
        assert [list(second) for _ in range(2)] == [[1, 2, 3]] * 2


@pytest.mark.parametrize("continuous", [False, True])
def test_a_sampler_resumes_at_its_position(continuous):
    def make():
        sampler = DistributedRandomSampler(9, rank=1, world_size=2)
        sampler.shuffle(seed=3)
        return sampler

    expected = list(make())
    for done, count in itertools.product(range(1 + continuous), range(len(expected))):
        first = build(source(make(), continuous=continuous))
        for _ in range(done):
            assert list(first) == expected
        start = some(first, count)
        state = sent(first.state_dict())
        first.stop()
        sampler = DistributedRandomSampler(9, rank=1, world_size=2)
        second = build(source(sampler, continuous=continuous))
        second.load_state_dict(state)
        with second.auto_stop():
            assert start + list(second) == expected
            if continuous:
                assert list(second) == expected


def test_a_sampler_that_was_resumed_itself_resumes_again():
    sampler = DistributedRandomSampler(8, rank=0, world_size=1)
    expected = list(sampler)
    taken = iter(sampler)
    assert [next(taken), next(taken)] == expected[:2]
    saved = sampler.state_dict()
    first = build(source(_loaded(saved)))
    assert some(first, 3) == expected[2:5]
    state = sent(first.state_dict())
    first.stop()
    second = build(source(DistributedRandomSampler(8, rank=0, world_size=1)))
    second.load_state_dict(state)
    assert some(second, 1) == expected[5:6]
    third = build(source(DistributedRandomSampler(8, rank=0, world_size=1)))
    third.load_state_dict(sent(second.state_dict()))
    second.stop()
    assert rest(third) == expected[6:]


def _loaded(state):
    sampler = DistributedRandomSampler(8, rank=0, world_size=1)
    sampler.load_state_dict(state)
    return sampler


def test_a_mixture_of_sources_resumes():
    def make():
        parts = [range(10), embed_shuffle(DistributedRandomSampler(6, rank=0, world_size=1))]
        return build(source(MergeIterator(parts, weights=[2, 1], seed=5)).aggregate(2))

    check_every_item(make, ordered=True)


def test_dropped_items_are_not_repeated():
    calls = []

    def refuse_three(item):
        calls.append(item)
        if item == 3:
            raise ValueError("no")
        return item

    def make():
        return build(source(range(6)).pipe(refuse_three))

    first = make()
    assert some(first, 4) == [0, 1, 2, 4]
    state = sent(first.state_dict())
    first.stop()
    assert state["in_epoch"] == {"delivered": 4, "dropped": 1, "filtered": 0, "left_out": 0}
    calls.clear()
    second = make()
    second.load_state_dict(state)
    assert rest(second) == [5] and calls == [5]


def test_the_state_of_an_ended_pipeline_has_no_remaining_items():
    first = build(source(range(4)))
    rest(first)
    second = build(source(range(4)))
    second.load_state_dict(sent(first.state_dict()))
    assert rest(second) == []


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: source(iter(range(3))), "use a sequence"),
        (lambda: source(item for item in "abc"), "use a sequence"),
        (lambda: source({1, 2}), "use a sequence"),
        (
            lambda: source([1]).pipe(str, concurrency=2).aggregate(2).disaggregate(),
            'output_order="input"',
        ),
        (
            lambda: source([1]).to(ProcessPoolExecutorConfig(max_workers=1)).pipe(str).to(MAIN_PROCESS),
            "process pool as the executor",
        ),
    ],
)
def test_a_pipeline_without_a_position_refuses_states_with_advice(make, advice):
    pipeline = build(make())
    with pytest.raises(UnsupportedError, match=advice):
        pipeline.state_dict()
    with pytest.raises(UnsupportedError, match=advice):
        pipeline.load_state_dict({})


def part(items, *stages, **options):
    """A pipeline that is merged with others."""
    builder = PipelineBuilder().add_source(items, **options)
    for stage in stages:
        builder.pipe(stage, concurrency=2, output_order="input")
    return builder.add_sink(2).get_config()


def after(merge, builder, **options):
    """A pipeline with the stages of `builder`, whose source is replaced by a merge."""
    config = builder.add_sink(2).get_config()
    options = {"num_threads": 2, **options}
    return build_pipeline(PipelineConfig(merge, config.pipes, config.sink), **options)


def merged(parts, *, group=2, num_threads=2, concurrency=2, **options):
    stages = source().pipe(_chosen, concurrency=concurrency, output_order="input").aggregate(group)
    return after(Merge(parts, **options), stages, num_threads=num_threads)


def _chosen(item):
    """Filters some items out, and fails for some."""
    if item % 7 == 3:
        raise ValueError(f"no {item}")
    return None if item % 5 == 4 else item


def _dropped(item):
    if item % 6 == 5:
        raise ValueError(f"no {item}")
    return None if item % 4 == 2 else item


@pytest.mark.parametrize("weights", [[3, 1, 2], None], ids=["weights", "arrival"])
def test_a_merge_resumes_at_every_item(weights):
    def make():
        sampler = embed_shuffle(DistributedRandomSampler(9, rank=0, world_size=1))
        parts = [part(range(12), _dropped), part(range(100, 106)), part(sampler, _dropped)]
        return merged(parts, weights=weights, seed=4)

    check_every_item(make, ordered=weights is not None)


def test_nested_merges_and_lists_of_merged_pipelines_resume():
    def make():
        lists = PipelineBuilder().add_source(range(50, 61)).aggregate(3).add_sink(1).get_config()
        inner = PipelineConfig(Merge([part(range(5), _dropped), part(range(20, 26))]), [], SinkConfig(1))
        return after(Merge([lists, inner]), source())

    check_every_item(make, ordered=False)


@pytest.mark.parametrize("seed", range(30))
def test_a_random_merge_with_weights_continues_after_several_kills(seed):
    draw = random.Random(seed)
    sizes = [draw.randrange(0, 25) for _ in range(draw.randrange(2, 5))]
    weights = [draw.randrange(1, 5) for _ in sizes]
    epochs = draw.randrange(1, 4)
    stages = [[_dropped] * draw.randrange(3) for _ in sizes]

    def make():
        parts = [
            part(range(1000 * at, 1000 * at + size), *work, continuous=True)
            for at, (size, work) in enumerate(zip(sizes, stages))
        ]
        # Threads and concurrency may differ between runs.
        more = {"num_threads": draw.randrange(1, 5), "concurrency": draw.randrange(1, 5)}
        return merged(parts, group=3, weights=weights, seed=seed, **more)

    def items_of(pipeline, most):
        """Up to `most` items, and whether the pipeline has ended."""
        items = []
        while len(items) < most:
            try:
                items.append(pipeline.get_item(timeout=60))
            except EOFError:
                items.append("end")
                if items.count("end") >= epochs or items[-2:-1] == ["end"]:
                    break
        return items

    first = make()
    whole = items_of(first, 40)
    first.stop()
    found, state = [], None
    while len(found) < len(whole):
        pipeline = make()
        if state is not None:
            pipeline.load_state_dict(state)
        found += items_of(pipeline, min(draw.randrange(1, 9), len(whole) - len(found)))
        state = sent(pipeline.state_dict())
        pipeline.stop()
    assert found == whole


def test_empty_sources_of_a_resumed_merge_end():
    def make():
        parts = [part([], continuous=True) for _ in range(8)]
        return merged([*parts, part(range(4), continuous=True)], group=1, weights=[1] * 9, num_threads=1)

    first = make()
    first.get_item(timeout=20)
    state = first.state_dict()
    first.stop()
    # A source that ended without a wake-up stalled one resumed pipeline in ten.
    for _ in range(60):
        pipeline = make()
        pipeline.load_state_dict(state)
        assert pipeline.get_item(timeout=20) == [1]
        for _ in range(3):
            with contextlib.suppress(EOFError):
                pipeline.get_item(timeout=20)
        pipeline.stop()


def test_states_of_other_merges_are_refused():
    def make(sizes=(4, 6), weights=(1, 2), seed=3, work=_dropped):
        return merged([part(range(size), work) for size in sizes], weights=list(weights), seed=seed)

    first = make()
    some(first, 2)
    state = sent(first.state_dict())
    first.stop()
    assert isinstance(state["source"], list) and len(state["source"]) == 2
    make().load_state_dict(state)
    others = [
        make(sizes=(4, 7)),
        make(sizes=(6, 4)),
        make(sizes=(4, 6, 1), weights=(1, 2, 3)),
        make(weights=(1, 3)),
        make(seed=4),
        make(work=str),
        merged([part(range(4), _dropped), part(range(6), _dropped)]),
        build(source(range(10)).pipe(_chosen, output_order="input").aggregate(2)),
    ]
    for other in others:
        with pytest.raises(ValueError, match="the state is of another pipeline"):
            other.load_state_dict(state)
    single = build(source(range(4)).pipe(_chosen, output_order="input").aggregate(2))
    with pytest.raises(ValueError, match="the state is of another pipeline"):
        make().load_state_dict(sent(single.state_dict()))


async def _in_turn(info, inputs, output):
    for queue in inputs:
        await output.put(await queue.get())


SAMPLER = DistributedRandomSampler(8, rank=0, world_size=1)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: Merge([part([1]), part([2])], op=_in_turn), "merge without a function"),
        (lambda: Merge([part([1]), part(iter([2]))]), "use a sequence"),
        (lambda: Merge([part(SAMPLER), part(SAMPLER)]), "use a copy in each"),
        (lambda: Merge([part([1], twice), part([2])], weights=[1, 1]), "do so after the merge"),
        (
            lambda: Merge([source([1]).aggregate(2).add_sink(1).get_config()], weights=[1]),
            "do so after the merge",
        ),
        (
            lambda: Merge([source([1]).aggregate(2).disaggregate().add_sink(1).get_config(), part([2])]),
            "a merged pipeline splits lists",
        ),
    ],
)
def test_merges_without_positions_refuse_states_with_advice(make, advice):
    pipeline = after(make(), source())
    with pytest.raises(UnsupportedError, match=advice):
        pipeline.state_dict()
    with pytest.raises(UnsupportedError, match=advice):
        pipeline.load_state_dict({})


def test_lists_that_are_split_after_a_merge_have_no_state():
    pipeline = after(Merge([part([1]), part([2])]), source().aggregate(2).disaggregate())
    with pytest.raises(UnsupportedError, match="before the pipelines are merged"):
        pipeline.state_dict()


def test_an_aggregator_that_keeps_items_is_refused():
    class Pairs(Aggregator):
        def __init__(self):
            self.items = []

        def accumulate(self, item):
            self.items.append(item)
            if len(self.items) < 3:
                return None
            first, self.items = self.items[:2], self.items[2:]
            return first

        def flush(self):
            return self.items or None

    pipeline = build(source(range(5)).aggregate(Pairs()))
    assert rest(pipeline) == [[0, 1], [2, 3], [4]]
    with pytest.raises(UnsupportedError, match="buffers inputs"):
        pipeline.state_dict()


def test_a_state_of_another_pipeline_is_refused():
    state = build(source(range(4)).pipe(str).aggregate(2)).state_dict()
    others = [
        build(source(range(5)).pipe(str).aggregate(2)),
        build(source(range(4)).pipe(int).aggregate(2)),
        build(source(range(4)).pipe(str).aggregate(3)),
        build(source(range(4)).pipe(str)),
    ]
    for other in others:
        with pytest.raises(ValueError, match="the state is of another pipeline"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="not a state of a Pipeline"):
        others[0].load_state_dict({"loader": "spdl_rs.ImageLoader"})
    with pytest.raises(ValueError, match="not a state of a Pipeline"):
        others[0].load_state_dict({"loader": "spdl_rs.Pipeline", "format": "x"})
    with pytest.raises(TypeError, match="must be the dict"):
        others[0].load_state_dict([state])


def test_a_started_pipeline_refuses_to_load():
    pipeline = build(source(range(4)))
    state = pipeline.state_dict()
    assert some(pipeline, 1) == [0]
    with pytest.raises(RuntimeError, match="already started"):
        pipeline.load_state_dict(state)
    pipeline.stop()


def test_an_exception_of_the_states_of_a_source_is_raised_by_state_dict_only():
    class Bad:
        def __iter__(self):
            return iter([1, 2])

        def state_dict(self):
            raise KeyError("broken")

        def load_state_dict(self, state):
            raise AssertionError

    pipeline = build(source(Bad()))
    assert some(pipeline, 1) == [1]
    with pytest.raises(KeyError, match="broken"):
        pipeline.state_dict()
    assert rest_of(pipeline) == [2]


def rest_of(pipeline):
    items = list(pipeline.get_iterator(timeout=60))
    pipeline.stop()
    return items


def test_random_numbers_of_split_items_do_not_depend_on_earlier_pipelines():
    import numpy
    from spdl_rs.io import AugmentImage, RandomAffine

    image = numpy.arange(16 * 16 * 3, dtype="uint8").reshape(16, 16, 3)

    def split(item):
        yield image
        yield image

    def augmented():
        stages = source(range(3)).pipe(split).pipe(AugmentImage(RandomAffine(90, scale=(0.5, 2)), seed=1))
        # The stages do not keep the order.
        return sorted(image.tobytes() for image in run(stages.pipe(numpy.copy)))

    first = augmented()
    assert len(set(first)) == 6
    assert augmented() == first
