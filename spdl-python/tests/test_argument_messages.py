"""Invalid arguments: the error names the argument and the stage, and is raised immediately."""

import concurrent.futures
import re
from fractions import Fraction

import pytest
import spdl_rs.torch
from pipelines import identity, identity_async, source, twice_async
from spdl_rs.dataloader import CacheDataLoader, DataLoader, get_pytorch_dataloader
from spdl_rs.pipeline import PipelineBuilder, build_pipeline, run_pipeline_in_subprocess
from spdl_rs.pipeline.defs import (
    MAIN_PROCESS,
    Aggregate,
    Collate,
    ExecutorConfig,
    Merge,
    Pipe,
    PipeConfig,
    PlacementConfig,
    ProcessPoolExecutorConfig,
    SinkConfig,
    SourceConfig,
)

HUGE = 10**30
HUGER = 10**5000
NO_INT = ["3", 1.5, None, [1], True, object()]
NO_TEXT = [0, b"name", ["name"], object()]
NO_FLAG = ["no", 2, None, 0.5, [], object()]
NO_FUNCTION = [0, "name", [], object()]
NO_NUMBER = ["1", b"1", [1], True, object()]
NO_BUDGET = [0.1, "1", True, [1], object()]
TOO_MANY = [0, -1, HUGE, HUGER]


def pipe(**options):
    return PipelineBuilder().pipe(identity, **options)


def build(**options):
    return source().pipe(identity).add_sink().build(**{"num_threads": 1, **options})


def in_subprocess(**options):
    config = source().pipe(identity).add_sink().get_config()
    return run_pipeline_in_subprocess(config, **{"num_threads": 1, **options})


def loader(**options):
    return DataLoader(**{"src": [1], **options})


def torch_loader(**options):
    return spdl_rs.torch.DataLoader([1, 2], **{"collate_fn": sum, **options})


def pytorch_loader(**options):
    return get_pytorch_dataloader(**{"dataset": [1, 2], "collate_fn": sum, **options})


def variants(router=identity, paths=((),), **options):
    return PipelineBuilder().path_variants(router, paths, **options)


def get_item(timeout):
    return build().get_item(timeout=timeout)


def get_iterator(timeout):
    return build().get_iterator(timeout=timeout)


def start(timeout):
    return build().start(timeout=timeout)


def stop(timeout):
    return build().stop(timeout=timeout)


def auto_stop(timeout):
    with build().auto_stop(timeout=timeout):
        pass


def image_loader(photos, **options):
    return spdl_rs.ImageLoader(str(photos), **{"batch_size": 1, **options})


# A callable, invalid values, the exception type, and the start of the message.
REFUSED = [
    (
        lambda it: PipelineBuilder().add_source(it),
        [None, 1, object(), HUGE],
        ValueError,
        "a source",
    ),
    (lambda it: source(continuous=it), NO_FLAG, TypeError, "continuous"),
    (lambda it: SourceConfig([1], it), NO_FLAG, TypeError, "continuous"),
    (lambda it: pipe(concurrency=it), TOO_MANY, ValueError, "concurrency of stage 'identity'"),
    (
        lambda it: pipe(concurrency=it, name="decode"),
        ["3", 1.5, [1], True],
        ValueError,
        "concurrency of stage 'decode'",
    ),
    (lambda it: pipe(name=it), NO_TEXT, TypeError, "the name of a stage"),
    (
        lambda it: pipe(executor=it),
        [1, "pool", concurrent.futures.ThreadPoolExecutor, ExecutorConfig()],
        TypeError,
        "executor of stage 'identity'",
    ),
    (
        lambda it: pipe(output_order=it),
        ["in", None, 1, True],
        ValueError,
        "output_order of stage 'identity'",
    ),
    (lambda it: pipe(max_failures=it), NO_BUDGET, TypeError, "max_failures of stage 'identity'"),
    (
        lambda it: pipe(max_failures=it),
        [Fraction(0), Fraction(-1, 2), Fraction(3, 2)],
        ValueError,
        "max_failures of stage 'identity'",
    ),
    (lambda it: PipelineBuilder().pipe(it), [None, 1, 1.5, object()], TypeError, "an op"),
    (
        lambda it: PipelineBuilder().pipe(it, executor=concurrent.futures.ThreadPoolExecutor(1)),
        [identity_async],
        ValueError,
        "stage 'identity_async'",
    ),
    (
        lambda it: PipelineBuilder().pipe(it, output_order="input"),
        [twice_async],
        ValueError,
        "stage 'twice_async'",
    ),
    (lambda it: Pipe(identity, concurrency=it), TOO_MANY, ValueError, "concurrency of stage"),
    (lambda it: PipeConfig(it, identity), [*NO_TEXT, None], TypeError, "the name of a stage"),
    (lambda it: Aggregate(it), TOO_MANY, ValueError, "the size of an aggregate"),
    (lambda it: Aggregate(it), [True], TypeError, "the size of an aggregate"),
    (lambda it: Aggregate(it), ["3", 1.5, None, [1], Collate], TypeError, "aggregate takes an int"),
    (lambda it: Collate(it), NO_INT, TypeError, "n "),
    (lambda it: Collate(it), TOO_MANY, ValueError, "n "),
    (
        lambda it: PipelineBuilder().aggregate(2, drop_last=it),
        NO_FLAG,
        TypeError,
        "drop_last of stage 'aggregate'",
    ),
    (lambda it: variants(it), [*NO_FUNCTION, None], TypeError, "router of stage 'path_variants'"),
    (lambda it: variants(paths=it), [None, 1, object()], TypeError, "paths"),
    (lambda it: variants(paths=it), [[]], ValueError, "paths of stage 'path_variants'"),
    (lambda it: variants(paths=[[], it]), [None, 1, Pipe(identity)], TypeError, "path 1"),
    (lambda it: variants(paths=[[], [it]]), [None, 1, identity], ValueError, "path 1"),
    (lambda it: variants(name=it), NO_TEXT, TypeError, "the name of a stage"),
    (
        lambda it: variants(batched=it, name="by size"),
        NO_FLAG,
        TypeError,
        "batched of stage 'by size'",
    ),
    (lambda it: Merge(it), [None, 1, object()], TypeError, "pipeline_configs"),
    (lambda it: Merge([], it), NO_FUNCTION, TypeError, "a merge op"),
    (lambda it: PipelineBuilder().to(it), [None, "spawn", 1], TypeError, "target must be a"),
    (
        lambda it: PipelineBuilder().to(MAIN_PROCESS, buffer_size=it),
        [*TOO_MANY, *NO_INT],
        ValueError,
        "buffer_size",
    ),
    (lambda it: PlacementConfig(MAIN_PROCESS, it), TOO_MANY, ValueError, "buffer_size"),
    (
        lambda it: ProcessPoolExecutorConfig(max_workers=it),
        [*TOO_MANY, "3", 1.5, True],
        ValueError,
        "max_workers",
    ),
    (lambda it: ProcessPoolExecutorConfig(initializer=it), NO_FUNCTION, TypeError, "initializer"),
    (lambda it: PipelineBuilder().add_sink(it), [*TOO_MANY, *NO_INT], ValueError, "buffer_size"),
    (lambda it: SinkConfig(it), [*TOO_MANY, *NO_INT], ValueError, "buffer_size"),
    (
        lambda it: build_pipeline(it, num_threads=1),
        [None, 1, source()],
        TypeError,
        "a PipelineConfig",
    ),
    *[
        check
        for of in (build, in_subprocess)
        for check in [
            (lambda it, of=of: of(num_threads=it), NO_INT, TypeError, "num_threads"),
            (lambda it, of=of: of(num_threads=it), [*TOO_MANY, 2**20], ValueError, "num_threads"),
            (lambda it, of=of: of(max_failures=it), [*NO_BUDGET, None], TypeError, "max_failures"),
            (lambda it, of=of: of(max_failures=it), [Fraction(2)], ValueError, "max_failures"),
            (
                lambda it, of=of: of(report_stats_interval=it),
                [*NO_NUMBER, None],
                TypeError,
                "report_stats_interval",
            ),
            (
                lambda it, of=of: of(report_stats_interval=it),
                [float("nan")],
                ValueError,
                "report_stats_interval",
            ),
            (lambda it, of=of: of(queue_class=it), NO_FUNCTION, TypeError, "queue_class"),
            (
                lambda it, of=of: of(task_hook_factory=it),
                NO_FUNCTION,
                TypeError,
                "task_hook_factory",
            ),
            (
                lambda it, of=of: of(background_tasks=it),
                [1, "task", identity],
                TypeError,
                "background_tasks",
            ),
            (
                lambda it, of=of: of(background_tasks=[identity, it]),
                [1, "task", None],
                TypeError,
                "background_tasks[1]",
            ),
            (
                lambda it, of=of: of(use_thread_output_queue=it),
                NO_FLAG,
                TypeError,
                "use_thread_output_queue",
            ),
        ]
    ],
    (lambda it: build(stage_id=it), NO_INT, TypeError, "stage_id"),
    (lambda it: build(stage_id=it), [HUGE, -HUGE], ValueError, "stage_id"),
    *[
        check
        for of in (get_item, get_iterator, start, stop, auto_stop)
        for check in [
            (of, NO_NUMBER, TypeError, "timeout"),
            (of, [float("nan")], ValueError, "timeout"),
        ]
    ],
    (lambda it: loader(src=it), [None, 1, object()], ValueError, "a source"),
    (lambda it: loader(preprocessor=it), [1, 1.5, object()], TypeError, "preprocessor"),
    (lambda it: loader(aggregator=it), [1, 1.5, object()], TypeError, "aggregator"),
    (lambda it: loader(transfer_fn=it), [1, 1.5, object()], TypeError, "transfer_fn"),
    (lambda it: loader(batch_size=it), ["3", 1.5, [1], True], TypeError, "batch_size"),
    (lambda it: loader(batch_size=it), TOO_MANY, ValueError, "batch_size"),
    (lambda it: loader(drop_last=it), NO_FLAG, TypeError, "drop_last"),
    (lambda it: loader(buffer_size=it), [*TOO_MANY, *NO_INT], ValueError, "buffer_size"),
    (lambda it: loader(num_threads=it), NO_INT, TypeError, "num_threads"),
    (lambda it: loader(num_threads=it), [*TOO_MANY, 2**20], ValueError, "num_threads"),
    (lambda it: loader(timeout=it), NO_NUMBER, TypeError, "timeout"),
    (lambda it: loader(timeout=it), [-1, float("nan")], ValueError, "timeout"),
    (lambda it: loader(output_order=it), ["in", None, 1], ValueError, "output_order"),
    (lambda it: pytorch_loader(dataset=it), [None, 1, 1.5, object()], TypeError, "dataset"),
    (
        lambda it: pytorch_loader(batch_size=it),
        [*TOO_MANY, "3", 1.5, [1], True],
        ValueError,
        "batch_size",
    ),
    (lambda it: pytorch_loader(collate_fn=it), NO_FUNCTION, TypeError, "collate_fn"),
    (lambda it: pytorch_loader(num_workers=it), NO_INT, TypeError, "num_workers"),
    (lambda it: pytorch_loader(num_workers=it), [-1, HUGE, 2**20], ValueError, "num_workers"),
    (lambda it: pytorch_loader(prefetch_factor=it), NO_INT, TypeError, "prefetch_factor"),
    (lambda it: pytorch_loader(prefetch_factor=it), TOO_MANY, ValueError, "prefetch_factor"),
    (lambda it: pytorch_loader(timeout=it), NO_NUMBER, TypeError, "timeout"),
    (lambda it: pytorch_loader(timeout=it), [-1, float("nan")], ValueError, "timeout"),
    (
        lambda it: pytorch_loader(worker_init_concurrency=it),
        ["3", 1.5, True],
        TypeError,
        "`worker_init_concurrency`",
    ),
    (
        lambda it: pytorch_loader(worker_init_concurrency=it),
        TOO_MANY,
        ValueError,
        "`worker_init_concurrency`",
    ),
    *[
        (lambda it, name=name: pytorch_loader(**{name: it}), NO_FLAG, TypeError, name)
        for name in ("shuffle", "pin_memory", "drop_last", "in_order")
    ],
    (
        lambda it: pytorch_loader(multiprocessing_context=it),
        [1, [], object()],
        TypeError,
        "multiprocessing_context",
    ),
    (
        lambda it: pytorch_loader(multiprocessing_context=it),
        ["thread", ""],
        ValueError,
        "multiprocessing_context",
    ),
    (lambda it: torch_loader(num_workers=it), NO_INT, TypeError, "num_workers"),
    (
        lambda it: torch_loader(num_workers=it),
        [-1, -HUGER, 70_000, *TOO_MANY[2:]],
        ValueError,
        "num_workers",
    ),
    (lambda it: torch_loader(timeout=it, num_workers=1), NO_NUMBER, TypeError, "timeout"),
    (
        lambda it: torch_loader(timeout=it, num_workers=1),
        [-1, -HUGER, float("nan")],
        ValueError,
        "timeout",
    ),
    (
        lambda it: torch_loader(prefetch_factor=it, num_workers=1),
        [0, -1, HUGE, HUGER],
        ValueError,
        "prefetch_factor",
    ),
    (lambda it: torch_loader(batch_size=it), [*TOO_MANY, "3", 1.5, True], ValueError, "batch_size"),
    (lambda it: torch_loader(collate_fn=it), NO_FUNCTION, TypeError, "collate_fn"),
    (lambda it: torch_loader(worker_init_fn=it), NO_FUNCTION, TypeError, "worker_init_fn"),
    *[
        (lambda it, name=name: torch_loader(**{name: it}), ["no", 2, [], object()], TypeError, name)
        for name in ("shuffle", "pin_memory", "persistent_workers", "in_order")
    ],
    (lambda it: torch_loader(pin_memory_device=it), [0, b"cuda"], TypeError, "pin_memory_device"),
    (
        lambda it: spdl_rs.torch.DataLoader(it, collate_fn=sum),
        [None, 1, 1.5, object()],
        TypeError,
        "dataset",
    ),
    (
        lambda it: torch_loader(prefetch_factor=it, num_workers=1),
        ["3", 1.5, True],
        TypeError,
        "prefetch_factor",
    ),
    *[
        check
        for name in ("num_caches", "return_caches_after", "stop_after")
        for check in [
            (
                lambda it, name=name: CacheDataLoader(
                    **{"dl": [1], "num_caches": 1, "return_caches_after": 1, name: it}
                ),
                ["3", 1.5, [1], True],
                TypeError,
                name,
            ),
            (
                lambda it, name=name: CacheDataLoader(
                    **{"dl": [1], "num_caches": 1, "return_caches_after": 1, name: it}
                ),
                TOO_MANY,
                ValueError,
                name,
            ),
        ]
    ],
]
IMAGES = [
    *[
        (name, ["3", 1.5, [1], True], TypeError)
        for name in ("batch_size", "size", "seed", "threads", "rank", "world_size", "cache_size")
    ],
    *[
        (name, [-1, HUGE, HUGER], ValueError)
        for name in ("batch_size", "size", "seed", "threads", "rank", "world_size", "cache_size")
    ],
    *[(name, ["no", 1, 0.5, []], TypeError) for name in ("train", "shuffle", "drop_last")],
    *[(name, ["other", 1, None], ValueError) for name in ("on_error", "on_truncated", "remainder")],
    ("layout", [1, None], TypeError),
    ("layout", ["chwn"], ValueError),
    ("image_field", [1, b"x"], TypeError),
    ("label_field", [1, b"x"], TypeError),
    ("classes", [1, "cat", [1]], TypeError),
    ("classes", [[], ["a", "a"]], ValueError),
]


def checks(table):
    # IDs by index, because some values have no text, or a long one.
    return [
        pytest.param(*check, id=f"{at}-{check[-1] if isinstance(check[-1], str) else check[0]}")
        for at, check in enumerate(table)
    ]


@pytest.mark.parametrize(("call", "values", "error", "begins"), checks(REFUSED))
def test_b10_errors_name_the_invalid_argument(call, values, error, begins):
    for value in values:
        with pytest.raises(error) as raised:
            call(value)
        message = str(raised.value)
        assert re.match(re.escape(begins), message), message
        assert type(raised.value) is error and len(message) < 300, message
        assert " at 0x" not in message, message


@pytest.mark.parametrize(("name", "values", "error"), checks(IMAGES))
def test_errors_of_image_loader_name_the_argument(name, values, error, photos):
    for value in values:
        with pytest.raises(error) as raised:
            image_loader(photos, **{name: value})
        assert name in str(raised.value) and len(str(raised.value)) < 300, raised.value


def test_b02_a_function_as_source_is_an_error_with_advice():
    with pytest.raises(ValueError, match="'function' objects have neither; pass what"):
        PipelineBuilder().add_source(lambda: range(3))


def test_b03_an_executor_config_in_pipe_is_an_error_with_advice():
    with pytest.raises(TypeError, match=r"use to\(\) to run stages in a Process"):
        pipe(executor=ProcessPoolExecutorConfig())


def test_b10_integers_numpy_booleans_and_huge_numbers_are_accepted():
    assert source(continuous=0).add_sink().get_config().src.continuous is False
    assert PipelineBuilder().aggregate(2, drop_last=1)._pipes[0].drop_last is True
    import numpy

    assert PipelineBuilder().aggregate(2, drop_last=numpy.True_)._pipes[0].drop_last is True
    build(max_failures=HUGE, report_stats_interval=HUGE, use_thread_output_queue=True)
    assert sorted(loader(timeout=HUGE)) == [1]
    for timeout in (HUGE, float("inf"), 1e300, numpy.float64(5), Fraction(9, 2)):
        pipeline = build()
        with pipeline.auto_stop(timeout=timeout):
            assert pipeline.get_item(timeout=timeout) == 0
            pipeline.stop(timeout=timeout)
    assert list(build(num_threads=3).get_iterator(timeout=HUGE)) == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:.*persistent_workers=…")
def test_b10_arguments_that_pytorch_accepts_are_accepted():
    import numpy

    one = numpy.int64(1)
    for value in (True, 1, numpy.True_):
        made = torch_loader(in_order=value, persistent_workers=value, num_workers=1)
        assert made.in_order is True and made.persistent_workers is True
    for value in (False, 0, None, numpy.False_):
        made = torch_loader(in_order=value, persistent_workers=value, pin_memory=value)
        assert (made.in_order, made.persistent_workers, made.pin_memory) == (False, False, False)
    made = torch_loader(batch_size=one, num_workers=one, prefetch_factor=one, timeout=float("inf"))
    assert list(made) == [1, 2]
    assert {type(made.batch_size), type(made.num_workers), type(made.prefetch_factor)} == {int}
    assert sorted(pytorch_loader(batch_size=one, num_workers=one, prefetch_factor=one)) == [1, 2]


@pytest.mark.parametrize(
    "take",
    [
        lambda it: spdl_rs.ImageLoader(it, batch_size=1),
        lambda it: spdl_rs.ImageLoader("photos", batch_size=1, classes=it),
        Merge,
        lambda it: variants(paths=it),
        lambda it: variants(paths=[it]),
    ],
)
def test_b10_an_exception_of_the_given_iterable_propagates_unchanged(take):
    def broken():
        yield from ()
        raise TypeError("from the iterable")

    with pytest.raises(TypeError, match="^from the iterable$") as raised:
        take(broken())
    assert raised.traceback[-1].name == "broken"
