"""Feature group B: building pipelines."""

import asyncio
import concurrent.futures
import dataclasses
import functools
import importlib
import pickle
import threading
from fractions import Fraction

import pytest
from pipelines import build, identity, run, source
from spdl_rs.pipeline import PipelineBuilder, build_pipeline, defs
from spdl_rs.pipeline.defs import (
    Aggregate,
    Aggregator,
    Collate,
    Disaggregate,
    Merge,
    PathVariants,
    Pipe,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
)


def spell(word):
    yield from word


async def spell_async(word):
    for letter in word:
        yield letter


async def double_async(item):
    await asyncio.sleep(0)
    return item * 2


def test_b01_builder_methods_return_the_builder_and_run_nothing():
    called = []

    def numbers():
        called.append(1)
        yield 1

    builder = PipelineBuilder()
    assert builder.add_source(numbers()) is builder
    assert builder.pipe(called.append) is builder
    assert builder.aggregate(2) is builder
    assert builder.disaggregate() is builder
    assert builder.path_variants(identity, [[]]) is builder
    assert builder.add_sink() is builder
    pipeline = builder.build(num_threads=1)
    assert called == []
    assert repr(pipeline).endswith("not started>")


def test_b01_repr_of_a_builder_shows_stages_and_definitions():
    text = repr(source([1]).pipe(identity, concurrency=3).aggregate(2, drop_last=True).add_sink(5))
    line = identity.__code__.co_firstlineno
    assert text.splitlines() == [
        "PipelineBuilder",
        " - Source: SourceConfig(source=[1])",
        " - Pipes:",
        f"   - identity(concurrency=3, op=identity at {identity.__code__.co_filename}:{line})",
        "   - aggregate(Collate(2), drop_last=True)",
        " - Sink: SinkConfig(buffer_size=5)",
    ]


# promise: R21
@pytest.mark.parametrize(
    "address",
    [
        "https://me:canary" + "x" * 300 + "@host/" + "a" * 300,
        "https://host/" + "a" * 200 + "?signature=" + "x" * 150 + "canary",
    ],
)
def test_secrets_are_removed_from_a_source_before_its_text_is_truncated(address):
    class Source:
        def __iter__(self):
            return iter([address])

        def __repr__(self):
            return f"Source({address})"

    for addresses in ([address], (address,), {"key": address}, Source()):
        for text in (repr(defs.SourceConfig(addresses)), repr(source(addresses))):
            assert "https://" in text and "canary" not in text and "xxx" not in text
    with pytest.raises(TypeError) as caught:
        defs.PipelineConfig(address, [], defs.SinkConfig(1))
    assert "https://" in str(caught.value)
    assert "canary" not in str(caught.value) and "xxx" not in str(caught.value)


def test_b01_repr_of_a_merge_shows_each_pipeline_and_the_function():
    async def in_turn(info, inputs, output): ...

    part = defs.PipelineConfig(defs.SourceConfig([1]), [defs.Pipe(len)], defs.SinkConfig(1))
    code = in_turn.__code__
    assert repr(defs.Merge([part, part], in_turn)).splitlines() == [
        "MergeConfig(",
        f"  op=in_turn at {code.co_filename}:{code.co_firstlineno}",
        "  Pipeline 1:",
        *[f"    {line}" for line in repr(part).splitlines()],
        "  Pipeline 2:",
        *[f"    {line}" for line in repr(part).splitlines()],
        ")",
    ]


@pytest.mark.parametrize(
    "items", [range(10**6), list(range(10**6)), "x" * 10**6, {n: n for n in range(10**5)}], ids=type
)
def test_b01_repr_of_a_large_source_is_short(items):
    assert len(repr(defs.SourceConfig(items))) < 300
    assert len(repr(source(items))) < 400
    if not isinstance(items, (range, str)):
        # Lists and mappings are ops too: the function is their `__getitem__`.
        stage = defs.Pipe(items)
        assert len(repr(stage)) < 100
        assert stage._args.op(3) == 3 and stage._args[1:] == (None, 1)
        assert len(repr(stage._args)) < 300


def test_b02_a_second_source_is_an_error():
    with pytest.raises(ValueError, match="already set"):
        source().add_source([1])


@pytest.mark.parametrize("wrong", [3, None, object()])
def test_b02_a_source_must_be_iterable(wrong):
    with pytest.raises(ValueError, match="neither"):
        source(wrong)


def test_b02_a_source_is_iterated_on_a_dedicated_thread():
    def numbers():
        for _ in range(3):
            yield threading.current_thread().name

    assert set(run(source(numbers()))) == {"spdl_sync_source"}


def test_b02_thread_locals_persist():
    local = threading.local()

    def count(_):
        local.count = getattr(local, "count", 0) + 1
        return local.count

    def numbers():
        for _ in range(5):
            yield count(None)

    assert run(source(numbers()).pipe(lambda n: (n, count(n))), num_threads=1) == [
        (n, n) for n in range(1, 6)
    ]


def test_b02_async_iterables_are_sources():
    class Numbers:
        def __aiter__(self):
            return spell_async("ab")

    assert run(source(spell_async("abc"))) == ["a", "b", "c"]
    assert run(source(Numbers())) == ["a", "b"]


def test_b03_none_drops_the_item():
    assert run(source(range(6)).pipe(lambda n: n if n % 2 else None)) == [1, 3, 5]


def test_b03_none_of_async_functions_and_generators_drops_the_item():
    async def odd(n):
        return n if n % 2 else None

    def odd_only(n):
        yield None
        if n % 2:
            yield n

    async def odd_async(n):
        yield None
        if n % 2:
            yield n

    for op in (odd, odd_only, odd_async):
        assert run(source(range(6)).pipe(op)) == [1, 3, 5]


def test_b03_none_from_a_source_is_an_item():
    assert run(source([1, None]).pipe(lambda item: (item,))) == [(1,), (None,)]


class Callable:
    def __call__(self, item):
        return item * 2


class AsyncCallable:
    async def __call__(self, item):
        return item * 2


class Generating:
    def method(self, item):
        yield item * 2


@pytest.mark.parametrize(
    "op",
    [
        lambda item: item * 2,
        Callable(),
        AsyncCallable(),
        double_async,
        functools.partial(double_async),
        Generating().method,
        functools.partial(Generating().method),
        [0, 2, 4],
        (0, 2, 4),
        {0: 0, 1: 2, 2: 4},
        range(0, 10, 2),
        (2).__mul__,
    ],
    ids=str,
)
def test_b03_every_type_of_op_is_called_correctly(op):
    assert run(source(range(3)).pipe(op, output_order="input")) == [0, 2, 4]


@pytest.mark.parametrize("op", [spell, spell_async])
def test_b03_results_of_generators_are_emitted_immediately(op):
    gate = threading.Event()

    def slow(word):
        yield "first"
        assert gate.wait(20)
        yield "second"

    async def slow_async(word):
        yield "first"
        while not gate.is_set():
            await asyncio.sleep(0.001)
        yield "second"

    pipeline = build(source(["x"]).pipe(slow if op is spell else slow_async))
    with pipeline.auto_stop():
        assert pipeline.get_item(timeout=20) == "first"
        gate.set()
        assert pipeline.get_item(timeout=20) == "second"


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": 1.5}, ValueError),
        ({"output_order": "random"}, ValueError),
        ({"max_failures": 0.1}, TypeError),
        ({"max_failures": True}, TypeError),
        ({"max_failures": Fraction(3, 2)}, ValueError),
        ({"max_failures": Fraction(0)}, ValueError),
    ],
)
def test_b03_invalid_arguments_of_pipe_are_errors(arguments, error):
    with pytest.raises(error):
        source().pipe(identity, **arguments)


def test_b03_async_ops_accept_no_executor_and_async_generators_no_order():
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for op in (double_async, spell_async):
            with pytest.raises(ValueError, match="executor"):
                source().pipe(op, executor=executor)
    with pytest.raises(ValueError, match="order"):
        source().pipe(spell_async, output_order="input")


def test_b03_an_op_must_be_callable_or_indexable():
    with pytest.raises(TypeError, match="callable"):
        source().pipe(3)


async def with_two(item, other):
    return item, other


class WithTwo:
    def __call__(self, item, other):
        return item, other


@pytest.mark.parametrize(
    "op", [lambda: 1, with_two, WithTwo(), functools.partial(with_two), lambda *, item: item]
)
def test_b03_an_op_must_accept_one_argument(op):
    with pytest.raises(TypeError, match="is called with one argument, the item"):
        build(source([1]).pipe(op))


@pytest.mark.parametrize(
    "op", [functools.partial(with_two, other=1), lambda *items: items, str, print, (0, 1), max]
)
def test_b03_ops_that_accept_one_argument_are_valid(op):
    build(source([1]).pipe(op)).stop()


def test_b03_stage_names_default_to_function_names():
    partial = functools.partial(functools.partial(spell))
    names = [Pipe(op).name for op in (spell, partial, Callable(), "".join, [1], lambda item: 0)]
    assert names == ["spell", "spell", "Callable", "join", "list", "<lambda>"]
    assert Pipe(spell, name="other").name == "other"


def test_b04_aggregate_collects_lists_of_n():
    assert run(source(range(7)).aggregate(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert run(source(range(7)).aggregate(3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert run(source([]).aggregate(3)) == []


@pytest.mark.parametrize("wrong, error", [("3", TypeError), (True, TypeError), (0, ValueError)])
def test_b04_aggregate_accepts_a_number_or_an_aggregator(wrong, error):
    with pytest.raises(error):
        source().aggregate(wrong)


class UpTo(Aggregator):
    def __init__(self, most):
        self.most, self.held = most, []

    def accumulate(self, item):
        self.held.append(item)
        return self.flush() if sum(self.held) >= self.most else None

    def flush(self):
        held, self.held = self.held, []
        return held or None


def test_b04_a_custom_aggregator_decides_when_to_emit():
    assert run(source([4, 5, 6, 7]).aggregate(UpTo(8))) == [[4, 5], [6, 7]]
    assert run(source([4, 5, 6]).aggregate(UpTo(8))) == [[4, 5], [6]]
    assert run(source([4, 5, 6]).aggregate(UpTo(8), drop_last=True)) == [[4, 5]]


def test_b05_disaggregate_emits_the_elements():
    assert run(source([[1, 2], [], "ab"]).disaggregate()) == [1, 2, "a", "b"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, None, True])
def test_b08_the_sink_buffer_must_be_positive(wrong):
    with pytest.raises(ValueError):
        source().add_sink(wrong)


def test_b08_a_second_sink_is_an_error_and_the_default_size_is_3():
    assert source().add_sink().get_config().sink == SinkConfig(3)
    with pytest.raises(ValueError, match="already set"):
        source().add_sink().add_sink()


def test_b09_a_pipeline_requires_a_source_and_a_sink():
    with pytest.raises(RuntimeError, match="source"):
        PipelineBuilder().add_sink().get_config()
    with pytest.raises(RuntimeError, match="sink"):
        source().get_config()


def test_b10_num_threads_is_required_and_positive():
    with pytest.raises(TypeError):
        source().add_sink().build()
    for wrong, error in [(0, ValueError), (1.5, TypeError)]:
        with pytest.raises(error):
            source().add_sink().build(num_threads=wrong)


def test_b10_factories_must_return_queues_and_hooks():
    with pytest.raises(TypeError, match="must create an AsyncQueue"):
        build(source(), queue_class=lambda info, buffer_size: object())
    with pytest.raises(TypeError, match="instead of a TaskHook"):
        build(source().pipe(identity), task_hook_factory=lambda info: [object()])


def test_b11_build_errors_have_the_configuration_as_a_note():
    with pytest.raises(TypeError) as raised:
        build(source([1, 2]).pipe(identity), max_failures=0.5)
    assert any("identity(concurrency=1" in note for note in raised.value.__notes__)


def test_b11_a_configuration_can_be_built_repeatedly():
    config = source([1, 2]).pipe(identity).add_sink().get_config()
    for _ in range(2):
        assert list(build_pipeline(config, num_threads=1)) == [1, 2]


def test_b12_configurations_are_frozen_and_can_be_pickled():
    config = PipelineConfig(
        Merge([source([1, 2]).pipe(identity).add_sink().get_config()]),
        [Pipe(str), Aggregate(2), Disaggregate(), PathVariants(len, [[Pipe(int)], []])],
        SinkConfig(2),
    )
    again = pickle.loads(pickle.dumps(config))
    assert repr(again) == repr(config)
    for part in (config, config.src, *config.pipes, config.sink):
        with pytest.raises(dataclasses.FrozenInstanceError):
            part.name = "other"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PipelineConfig([1], [], SinkConfig(1)),
        lambda: PipelineConfig(SourceConfig([1]), [len], SinkConfig(1)),
        lambda: PipelineConfig(SourceConfig([1]), [], 3),
    ],
)
def test_b12_configuration_parts_of_the_wrong_type_are_errors(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_b13_factories_accept_the_arguments_of_the_methods():
    def configured(builder):
        return builder.add_sink().get_config().pipes

    assert configured(source().pipe(identity, concurrency=2, name="x", max_failures=3)) == (
        Pipe(identity, concurrency=2, name="x", max_failures=3),
    )
    assert repr(configured(source().aggregate(2, drop_last=True))[0]) == repr(
        Aggregate(2, drop_last=True)
    )
    assert configured(source().disaggregate()) == (Disaggregate(),)
    assert configured(source().path_variants(len, [[]], "way", True)) == (
        PathVariants(len, [[]], "way", True),
    )


class Threes(Aggregator):
    """An aggregator with internal state, which it does not reset in `flush`."""

    def __init__(self):
        self.held = []

    def accumulate(self, item):
        self.held.append(item)
        if len(self.held) < 3:
            return None
        held, self.held = self.held, []
        return held

    def flush(self):
        return self.held or None


@pytest.mark.parametrize("aggregator", [3, Collate(3), Threes()])
def test_b14_builds_share_no_aggregator_state(aggregator):
    config = source(range(1, 8)).aggregate(aggregator, drop_last=True).add_sink().get_config()
    for _ in range(3):
        batches = list(build_pipeline(config, num_threads=1))
        assert batches == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("aggregator", [3, Collate(3), Threes()])
def test_b14_epochs_share_no_aggregator_state(aggregator):
    builder = source(range(1, 8), continuous=True).aggregate(aggregator, drop_last=True)
    pipeline = build(builder)
    with pipeline.auto_stop():
        for _ in range(3):
            assert list(pipeline) == [[1, 2, 3], [4, 5, 6]]


def test_b14_the_given_aggregator_is_not_modified():
    aggregator = Threes()
    run(source(range(7)).aggregate(aggregator))
    assert aggregator.held == []


def test_b14_an_aggregator_must_be_copyable():
    class Locked(Threes):
        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(TypeError, match="__deepcopy__"):
        build(source().aggregate(Locked()))


def test_b16_all_listed_names_can_be_imported():
    names = {}
    exec("from spdl_rs.pipeline.defs import *", names)
    assert set(defs.__all__) <= set(names)


CONFIGURATION = """
_target_: spdl_rs.pipeline.build_pipeline
_args_:
  - _target_: spdl_rs.pipeline.defs.PipelineConfig
    src:
      _target_: spdl_rs.pipeline.defs.Merge
      pipeline_configs:
        - _target_: spdl_rs.pipeline.defs.PipelineConfig
          src: {_target_: spdl_rs.pipeline.defs.SourceConfig, source: [1, 2, 3]}
          pipes: []
          sink: {_target_: spdl_rs.pipeline.defs.SinkConfig, buffer_size: 2}
    pipes:
      - _target_: spdl_rs.pipeline.defs.Pipe
        _args_: [{_target_: in_processes.double, _partial_: true}]
        concurrency: 2
        output_order: input
      - _target_: spdl_rs.pipeline.defs.PathVariants
        router: {_target_: in_processes.parity, _partial_: true}
        paths:
          - - {_target_: spdl_rs.pipeline.defs.Aggregate, _args_: [3], drop_last: true}
            - {_target_: spdl_rs.pipeline.defs.Disaggregate}
          - []
    sink: {_target_: spdl_rs.pipeline.defs.SinkConfig, buffer_size: 3}
num_threads: 2
"""


def instantiate(node):
    """Creates the objects of a configuration, as Hydra does with `_convert_="all"`."""
    if isinstance(node, list):
        return [instantiate(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: instantiate(value) for key, value in node.items() if key != "_target_"}
    if "_target_" not in node:
        return made
    module, _, name = node["_target_"].rpartition(".")
    target = getattr(importlib.import_module(module), name)
    if made.pop("_partial_", False):
        return functools.partial(target, **made)
    return target(*made.pop("_args_", ()), **made)


# feature: B16
@pytest.mark.frameworks
def test_b16_a_pipeline_is_built_from_a_yaml_configuration():
    yaml = pytest.importorskip("yaml")
    assert sorted(instantiate(yaml.safe_load(CONFIGURATION))) == [2, 4, 6]


# feature: B16
@pytest.mark.frameworks
def test_b16_hydra_builds_a_pipeline():
    hydra = pytest.importorskip("hydra.utils")
    configuration = pytest.importorskip("omegaconf").OmegaConf.create(CONFIGURATION)
    assert sorted(hydra.instantiate(configuration, _convert_="all")) == [2, 4, 6]


# feature: B16
def test_b16_a_pipeline_is_built_from_nested_dictionaries():
    def part(target, *args, **options):
        return {"_target_": f"spdl_rs.pipeline.defs.{target}", "_args_": list(args), **options}

    source = part("SourceConfig", source=["a", "bb"])
    path = [part("Aggregate", 2, drop_last=True), part("Disaggregate")]
    router = {"_target_": "operator.methodcaller", "_args_": ["count", "b"]}
    pipes = [part("Pipe", len, concurrency=2, name="size"), part("Pipe", str)]
    variants = part("PathVariants", router=router, paths=[path, path, []])
    inner = part("PipelineConfig", src=source, pipes=[variants], sink=part("SinkConfig", 1))
    merge = part("Merge", pipeline_configs=[inner, inner])
    whole = part("PipelineConfig", src=merge, pipes=pipes, sink=part("SinkConfig", buffer_size=2))
    built = {"_target_": "spdl_rs.pipeline.build_pipeline", "_args_": [whole], "num_threads": 1}
    assert sorted(instantiate(built)) == ["2", "2"]


class Anything:
    """An object with every attribute, like mocks and proxies."""

    def __getattr__(self, name):
        return Anything()

    def __call__(self, item):
        return -item


class AnythingIndexed:
    def __getattr__(self, name):
        return AnythingIndexed()

    def __getitem__(self, item):
        return -item


@pytest.mark.parametrize("op", [Anything(), AnythingIndexed()])
def test_b03_an_op_may_have_every_attribute(op):
    assert run(source(range(3)).pipe(op)) == [0, -1, -2]
    assert repr(defs.Pipe(op)) == f"{type(op).__name__}(concurrency=1)"


def test_b03_numpy_integers_are_accepted():
    import numpy

    two = numpy.int64(2)
    stage = defs.Pipe(identity, concurrency=two)
    assert type(stage.concurrency) is int and repr(stage).startswith("identity(concurrency=2")
    assert run(source(range(3)).aggregate(two), num_threads=two) == [[0, 1], [2]]
