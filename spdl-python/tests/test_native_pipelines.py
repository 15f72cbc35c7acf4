"""Native operators in pipelines: order, epochs, concurrency, errors."""

import concurrent.futures
import logging
import os
import pathlib
import subprocess
import sys
import time

import pytest
import spdl_rs
from conftest import picture, write_png
from native import SIZE, assert_same, failure_of, files, loaded, native, stages
from pipelines import assert_no_threads, build, identity, run, source, wait_until
from spdl_rs.io import BatchImages, DecodeImage, Fetch
from spdl_rs.pipeline import build_pipeline
from spdl_rs.pipeline.defs import (
    Disaggregate,
    Merge,
    Pipe,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
)


def test_native_and_python_stages_may_alternate(many):
    paths = [pathlib.Path(path) for path in files(many)]
    expected = [255 - DecodeImage(SIZE)(path.read_bytes()) for path in paths]
    builder = source(enumerate(paths)).pipe(lambda pair: pair[1], output_order="input")
    builder = builder.pipe(Fetch(), output_order="input").pipe(bytes, output_order="input")
    builder = builder.pipe(DecodeImage(SIZE), output_order="input").pipe(lambda image: 255 - image)
    found = run(builder.aggregate(BatchImages(15)))
    assert [len(batch) for batch in found] == [15, 15, 10]
    assert_same([image for batch in found for image in batch], expected)


def test_completion_order_delivers_all_images(many):
    paths = files(many)
    builder = native(zip(paths, range(40)), DecodeImage(SIZE), output_order="completion")
    found = {label: image for image, label in run(builder, num_threads=3)}
    assert sorted(found) == list(range(40))
    decode = DecodeImage(SIZE)
    assert_same([found[at] for at in range(40)], [decode(Fetch()(path)) for path in paths])


def test_input_order_is_kept_by_each_operator(many, tmp_path):
    large = tmp_path / "large" / "0.png"
    write_png(str(large), picture(0, 900, 900))
    paths = [str(large), *files(many)]
    builder = source(zip(paths, range(41))).pipe(Fetch(), output_order="input")
    builder = builder.pipe(DecodeImage(SIZE), output_order="input", concurrency=4)
    assert [label for _, label in run(builder)] == list(range(41))


def test_batches_do_not_span_epochs(many):
    paths = files(many)
    builder = native(list(zip(paths, range(40))), DecodeImage(SIZE), continuous=True)
    pipeline = build(builder.aggregate(BatchImages(16)))
    with pipeline.auto_stop():
        for _ in range(3):
            labels = [labels.tolist() for _, labels in pipeline]
            assert labels == [list(range(16)), list(range(16, 32)), list(range(32, 40))]


@pytest.mark.parametrize("by", ["operator", "aggregate"])
@pytest.mark.parametrize("between", [[], [identity]], ids=["native", "python"])
def test_drop_last_leaves_out_and_counts_the_last_batch(many, by, between):
    builder = native(files(many), DecodeImage(SIZE))
    for op in between:
        builder = builder.pipe(op, output_order="input")
    op = BatchImages(16, drop_last=by == "operator")
    pipeline = build(builder.aggregate(op, drop_last=by == "aggregate"))
    assert [len(batch) for batch in pipeline] == [16, 16]
    assert pipeline.stats()["left_out"] == 8


def test_a_given_concurrency_is_used(many):
    builder = source(files(many)).pipe(Fetch(), concurrency=3)
    pipeline = build(builder.pipe(DecodeImage(SIZE), concurrency=5).aggregate(BatchImages(8)))
    assert len(list(pipeline)) == 5
    found = stages(pipeline)
    assert (found["Fetch"]["concurrency"], found["DecodeImage"]["concurrency"]) == (3, 5)
    assert Pipe(Fetch()).concurrency is None and Pipe(len).concurrency == 1


def test_consecutive_operators_are_fused(many):
    pipeline = build(native(files(many), DecodeImage(SIZE)).aggregate(BatchImages(8)))
    assert len(list(pipeline)) == 5
    found = [(name, stage["kind"], stage["items"]) for name, stage in stages(pipeline).items()]
    assert found == [
        ("src", "source", 40),
        ("Fetch/part0", "cpu", 40),
        ("Fetch", "async", 40),
        ("DecodeImage", "fill", 40),
        ("DecodeImage/part1", "cpu", 5),
    ]


def test_native_stages_run_without_the_gil(tmp_path):
    for number in range(4):
        write_png(str(tmp_path / "large" / f"{number}.png"), picture(number, 700, 700))
    paths = files(tmp_path) * 6
    builder = source(paths).pipe(Fetch(), output_order="input")
    pipeline = build(builder.pipe(DecodeImage(SIZE), concurrency=1).aggregate(BatchImages(4)))
    before = sys.getswitchinterval()
    with pipeline.auto_stop():
        wait_until(lambda: stages(pipeline)["Fetch/part0"]["items"] == len(paths))
        at_first = stages(pipeline)["DecodeImage"]["items"]
        sys.setswitchinterval(60)
        try:
            # The main thread keeps the GIL for 3 s.
            until = time.monotonic() + 3
            while time.monotonic() < until:
                pass
            decoded = stages(pipeline)["DecodeImage"]["items"] - at_first
        finally:
            sys.setswitchinterval(before)
        assert decoded >= 3


def test_operators_work_on_paths(many):
    paths = files(many)
    expected = [DecodeImage(SIZE)(Fetch()(path)) for path in paths]

    def number(item):
        return item[1] % 2

    chosen = [
        [Pipe(Fetch()), Pipe(DecodeImage(SIZE))],
        [Pipe(lambda item: (pathlib.Path(item[0]).read_bytes(), item[1])), Pipe(DecodeImage(SIZE))],
    ]
    builder = source(zip(paths, range(40))).path_variants(number, chosen)
    assert repr(builder).count("[native]") == 3
    found = sorted(run(builder), key=number_of)
    assert [label for _, label in found] == list(range(40))
    assert_same([image for image, _ in found], expected)


def number_of(item):
    return item[1]


def test_merged_pipelines_may_be_native(many):
    parts = [
        PipelineConfig(
            SourceConfig([(path, at)]), [Pipe(Fetch()), Pipe(DecodeImage(SIZE))], SinkConfig(1)
        )
        for at, path in enumerate(files(many)[:3])
    ]
    config = PipelineConfig(Merge(parts), [], SinkConfig(1))
    found = list(build_pipeline(config, num_threads=1))
    assert sorted(label for _, label in found) == [0, 1, 2]


HOLD = """
import resource, sys
from spdl_rs.io import BatchImages, DecodeImage, Fetch
from spdl_rs.pipeline import PipelineBuilder

# The engine's default memory budget would be a quarter of this limit.
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
builder = PipelineBuilder().add_source(sys.argv[1:] * 12).pipe(Fetch())
builder = builder.pipe(DecodeImage(1024, layout="nchw-f32")).aggregate(BatchImages(4))
(batches,) = builder.aggregate(100).add_sink(1).build(num_threads=1)
print(len(batches), sum(batch.nbytes for batch in batches) > 512 << 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="requires RLIMIT_AS of Linux")
def test_held_batches_may_exceed_the_memory_budget(photos):
    command = [sys.executable, "-c", HOLD, *files(photos)]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("12 True\n", "")


def test_leaving_a_native_pipeline_stops_its_threads(many):
    pipeline = build(native(files(many) * 50, DecodeImage(SIZE)).aggregate(BatchImages(4)))
    with pipeline.auto_stop():
        pipeline.get_item(timeout=60)
    assert_no_threads()


def test_operators_on_an_executor_are_not_native(many):
    paths = files(many)[:4]
    expected = [DecodeImage(SIZE)(Fetch()(path)) for path in paths]
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for kinds in ({"source", "cpu", "async"}, {"source", "cpu"}):
            options = {} if "async" in kinds else {"executor": executor}
            builder = source(paths).pipe(Fetch(), output_order="input", **options)
            assert repr(builder).count("[native]") == len(kinds) - 2
            pipeline = build(builder.pipe(DecodeImage(SIZE), executor=executor))
            assert_same(list(pipeline), expected)
            found = stages(pipeline)
            assert {stage["kind"] for stage in found.values()} == kinds
            assert found["DecodeImage"]["kind"] == "cpu" and "DecodeImage/part0" not in found


def test_subclasses_of_operators_are_not_native(photos):
    class Sizes(Fetch):
        def __call__(self, item):
            return len(super().__call__(item))

    path = files(photos)[0]
    builder = source([path]).pipe(Sizes())
    assert "[native]" not in repr(builder)
    assert run(builder) == [len(Fetch()(path))]


# Failures.


def test_a_corrupt_file_is_dropped_logged_and_counted(damaged, caplog):
    folder, bad = damaged
    paths = files(folder)
    pipeline = build(native(paths, DecodeImage(SIZE)).aggregate(BatchImages(16)))
    found = list(pipeline)
    assert [len(batch) for batch in found] == [16, 16, 8]
    good = [path for path in paths if path not in bad]
    ((*expected,),) = loaded(good, batch_size=16)
    assert_same(found, [images for images, _ in expected])
    statistics = pipeline.stats()
    assert sorted(dropped["key"] for dropped in statistics["dropped"]) == bad
    assert {dropped["stage"].split(":")[-1] for dropped in statistics["dropped"]} == {"DecodeImage"}
    assert stages(pipeline)["DecodeImage"]["failures"] == len(bad)
    records = [record for record in caplog.records if record.name == "spdl_rs.pipeline"]
    *failures, summary = records
    assert [record.levelno for record in failures] == [logging.ERROR] * len(bad)
    assert sorted(record.exc_info[1].key for record in failures) == bad
    assert summary.levelno == logging.WARNING


def test_pipeline_failure_contains_the_exception_with_its_key(damaged, tmp_path):
    _, bad = damaged
    missing = str(tmp_path / "none.png")
    error = failure_of(native([missing], DecodeImage(SIZE)), max_failures=0)
    assert type(error) is spdl_rs.NotFoundError and error.key == missing
    assert error.stage.endswith("1:Fetch")
    for batches in (False, True):
        builder = native([bad[0]], DecodeImage(SIZE))
        builder = builder.aggregate(BatchImages(2)) if batches else builder
        error = failure_of(builder, max_failures=0)
        assert isinstance(error, spdl_rs.DataError) and error.key == bad[0]
        assert error.stage.endswith("2:DecodeImage")
    error = failure_of(source([b"none"]).pipe(DecodeImage(SIZE)), max_failures=0)
    assert type(error) is spdl_rs.UnsupportedError and error.key == "bytes"


def test_a_direct_call_raises_the_same_exception(damaged, tmp_path):
    missing = str(tmp_path / "none.png")
    with pytest.raises(spdl_rs.NotFoundError) as raised:
        Fetch()(missing)
    assert raised.value.key == missing
    with pytest.raises(spdl_rs.DataError) as raised:
        DecodeImage(SIZE)(Fetch()(damaged[1][0]))
    assert raised.value.key == "bytes"


def test_each_operator_may_have_a_failure_budget(photos, tmp_path):
    missing = [str(tmp_path / f"{at}.png") for at in range(3)]
    good = files(photos)
    builder = source(missing + good).pipe(Fetch(), max_failures=3)
    assert len(run(builder.pipe(DecodeImage(SIZE)), max_failures=0)) == 4
    builder = source(missing + good).pipe(Fetch(), max_failures=2)
    error = failure_of(builder.pipe(DecodeImage(SIZE)))
    assert type(error) is spdl_rs.NotFoundError


@pytest.mark.parametrize(
    ("op", "item", "kind", "error_text"),
    [
        (Fetch(), 7, TypeError, "Fetch takes a path .* not int"),
        (Fetch(), ("a", "b"), TypeError, "a label must be a 64-bit integer, not 'b'"),
        (Fetch(), ("a", 1, 2), TypeError, "a value or a pair of value and label"),
        (DecodeImage(8), "a.png", TypeError, "DecodeImage takes the bytes .* not str; .*add Fetch"),
        (DecodeImage(8), (b"", 0.5), TypeError, "a label must be a 64-bit integer"),
    ],
)
def test_invalid_items_are_errors_of_the_operator(op, item, kind, error_text, caplog):
    with pytest.raises(kind, match=error_text):
        op(item)
    pipeline = build(source([item]).pipe(op))
    assert list(pipeline) == []
    assert stages(pipeline)[type(op).__name__]["failures"] == 1
    records = [record for record in caplog.records if record.name == "spdl_rs.pipeline"]
    assert [record.levelno for record in records] == [logging.ERROR, logging.WARNING]
    assert type(records[0].exc_info[1]) is kind
    error = failure_of(source([item]).pipe(op), max_failures=0)
    assert type(error) is kind


def test_files_larger_than_max_bytes_are_errors(photos):
    path = files(photos)[0]
    size = pathlib.Path(path).stat().st_size
    assert len(Fetch(max_bytes=size)(path)) == size
    with pytest.raises(spdl_rs.LimitExceededError):
        Fetch(max_bytes=size - 1)(path)
    error = failure_of(source([path]).pipe(Fetch(max_bytes=size - 1)), max_failures=0)
    assert type(error) is spdl_rs.LimitExceededError and error.key == path


def test_mixing_labeled_and_unlabeled_images_is_an_error(photos):
    paths = files(photos)
    pipeline = build(native([(paths[0], 1), paths[1]], DecodeImage(SIZE)).aggregate(BatchImages(2)))
    ((_, labels),) = list(pipeline)
    assert labels.tolist() == [1] and stages(pipeline)["Fetch"]["failures"] == 1
    builder = native([paths[0], (paths[1], 1)], DecodeImage(SIZE)).aggregate(BatchImages(2))
    error = failure_of(builder, max_failures=0)
    assert type(error) is ValueError and "this item has a label" in str(error)


def test_unsupported_combinations_are_errors_at_build():
    decode = Pipe(DecodeImage(SIZE))
    with pytest.raises(ValueError, match=r"\.aggregate\(BatchImages\(batch_size=2"):
        build(source().pipe(DecodeImage(SIZE)).pipe(BatchImages(2)))
    with pytest.raises(ValueError, match="batched=False"):
        source([[b""]]).path_variants(lambda items: [0], [[Disaggregate(), decode]], batched=True)
    with pytest.raises(spdl_rs.LimitExceededError, match="MiB"):
        build(source().pipe(DecodeImage(SIZE)).aggregate(BatchImages(2**40)))


# feature: S05
def test_a_native_stage_has_its_own_threads_in_a_diagnosis(tmp_path):
    write_png(str(tmp_path / "large.png"), picture(1, 900, 1200))
    data = (tmp_path / "large.png").read_bytes()
    decoding = source([data] * 60).pipe(DecodeImage(SIZE), concurrency=4)
    pipeline = build(decoding, num_threads=1)
    assert len(list(pipeline)) == 60
    shown = pipeline.diagnose()
    # The threads of Python functions neither wait nor limit the rate.
    assert "DecodeImage" in shown and "num_threads" not in shown and "wait;" not in shown, shown
