"""Native operators: results, arguments, errors and representation."""

import copy
import doctest
import gc
import pickle
import shutil
import threading

import numpy
import pytest
import spdl_rs
import spdl_rs.io._operators
from native import SIZE, assert_same, files, loaded, native
from pipelines import build, identity, run, source
from spdl_rs.io import Array, AugmentImage, BatchImages, DecodeImage, Fetch
from spdl_rs.pipeline.defs import Pipe

# Results.


@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-f32", "nhwc-f16"])
def test_batches_equal_those_of_the_image_loader(many, layout):
    paths = files(many)
    builder = native(zip(paths, range(40)), DecodeImage(SIZE, layout=layout))
    found = run(builder.aggregate(BatchImages(16)))
    (expected,) = loaded(paths, batch_size=16, layout=layout, labels=range(40))
    for at in (0, 1):
        assert_same([batch[at] for batch in found], [batch[at] for batch in expected])


def test_random_crops_equal_those_of_the_image_loader(many):
    paths = files(many)
    decode = DecodeImage(SIZE, train=True, seed=7)
    builder = native(paths, decode, continuous=True).aggregate(BatchImages(16))
    pipeline = build(builder)
    epochs = loaded(paths, 3, batch_size=16, train=True, seed=7)
    with pipeline.auto_stop():
        for expected in epochs:
            assert_same(list(pipeline), [images for images, _ in expected])
    assert (epochs[0][0][0] != epochs[1][0][0]).any()


def test_single_images_equal_those_of_the_image_loader(many):
    paths = files(many)
    decode = DecodeImage(SIZE, train=True, seed=7)
    first, second = (
        [images for images, _ in epoch]
        for epoch in loaded(paths, 2, batch_size=1, train=True, seed=7)
    )
    assert_same(run(native(paths, decode)), [images[0] for images in first])
    called = [decode(Fetch()(path), epoch=1, index=at) for at, path in enumerate(paths)]
    assert_same(called, [images[0] for images in second])


def test_outputs_of_one_item_have_different_crops(photos):
    data = (photos / "cat" / "1.png").read_bytes()

    def thrice(item):
        yield from [item] * 3

    crops = run(source([data]).pipe(thrice).pipe(DecodeImage(SIZE, train=True)))
    assert len({crop.tobytes() for crop in crops}) == 3


def test_labels_are_forwarded_if_given(photos):
    paths = files(photos)
    labels = [-5, 2**62, numpy.int64(3), True]
    expected = [-5, 2**62, 3, 1]
    fetched = run(source(zip(paths, labels)).pipe(Fetch(), output_order="input"))
    assert [label for _, label in fetched] == expected
    decoded = run(native(zip(paths, labels), DecodeImage(SIZE)))
    assert [label for _, label in decoded] == expected
    builder = native(zip(paths, labels), DecodeImage(SIZE)).aggregate(BatchImages(4))
    ((_, batch),) = run(builder)
    assert batch.dtype == numpy.int64 and batch.tolist() == expected
    (images,) = run(native(paths, DecodeImage(SIZE)).aggregate(BatchImages(4)))
    assert images.shape == (4, SIZE, SIZE, 3)


def test_fetch_reads_any_path_type(photos):
    path = photos / "cat" / "1.png"
    for given in (path, str(path), bytes(path)):
        (data,) = run(source([given]).pipe(Fetch()))
        assert data.dtype == numpy.uint8 and data.tobytes() == path.read_bytes()
        assert Fetch()(given).tobytes() == path.read_bytes()


def test_decode_accepts_any_buffer(photos):
    path = photos / "cat" / "1.png"
    data = path.read_bytes()
    array = Array((len(data),), "uint8")
    numpy.asarray(array)[:] = numpy.frombuffer(data, "u1")
    decode = DecodeImage(SIZE)
    given = [data, bytearray(data), memoryview(data), numpy.frombuffer(data, "u1"), array]
    expected = [decode(data)] * len(given)
    assert_same([decode(one) for one in given], expected)
    assert_same(run(source(given).pipe(decode, output_order="input")), expected)
    # A slice of a buffer is only that slice.
    part = memoryview(b"x" + data + b"x")[1:-1]
    assert_same(run(source([part]).pipe(decode)), expected[:1])


def test_mutable_bytes_are_copied(photos):
    data = bytearray((photos / "cat" / "1.png").read_bytes())
    expected = DecodeImage(SIZE)(bytes(data))
    gate = threading.Event()

    def items():
        yield data
        gate.wait(60)

    pipeline = build(source(items()).pipe(DecodeImage(SIZE)))
    with pipeline.auto_stop():
        numpy.testing.assert_array_equal(pipeline.get_item(timeout=60), expected)
        data[:] = bytes(len(data))
        gate.set()


def test_batches_may_be_kept_and_modified(many):
    paths = files(many)
    kept = run(native(paths, DecodeImage(SIZE)).aggregate(BatchImages(4)))
    copies = [batch.copy() for batch in kept]
    gc.collect()
    run(native(paths[::-1], DecodeImage(SIZE)).aggregate(BatchImages(4)))
    assert_same(kept, copies)
    kept[0][:] = 0
    assert not kept[0].any()
    assert_same(kept[1:], copies[1:])


# Operators as values.


def test_operators_compare_hash_and_pickle_by_value():
    for op, other in [
        (Fetch(max_bytes=9), Fetch()),
        (DecodeImage(64, train=True, layout="nchw-f32", seed=3), DecodeImage(64)),
        (BatchImages(8, drop_last=True), BatchImages(8)),
    ]:
        for same in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op), eval(repr(op))):
            assert same == op and hash(same) == hash(op) and repr(same) == repr(op)
        assert op != other
        with pytest.raises(AttributeError):
            op.size = op.max_bytes = op.batch_size = 1
    config = Pipe(DecodeImage(64))
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Fetch(max_bytes=0), ValueError),
        (lambda: Fetch(max_bytes=1.5), TypeError),
        (lambda: DecodeImage(0), ValueError),
        (lambda: DecodeImage(2**20), ValueError),
        (lambda: DecodeImage("a"), TypeError),
        (lambda: DecodeImage(train=1), TypeError),
        (lambda: DecodeImage(layout="chw"), ValueError),
        (lambda: DecodeImage(layout="nchw-bf16"), NotImplementedError),
        (lambda: DecodeImage(layout=3), TypeError),
        (lambda: DecodeImage(seed=-1), ValueError),
        (lambda: BatchImages(0), ValueError),
        (lambda: BatchImages(1, drop_last=None), TypeError),
    ],
)
def test_invalid_operator_arguments_are_errors(make, kind):
    with pytest.raises(kind):
        make()


def test_batch_images_stacks_a_list():
    images = [numpy.full((2, 3), at, "u1") for at in range(3)]
    stacked = BatchImages(3)(images)
    assert stacked.dtype == numpy.uint8 and stacked[:, 0, 0].tolist() == [0, 1, 2]
    stacked, labels = BatchImages(3)([(image, 5) for image in images])
    assert stacked.shape == (3, 2, 3) and labels.dtype == numpy.int64
    for wrong, error_text in [
        ([], "at least one image"),
        ([images[0], images[1][:1]], "same type and shape"),
        ([images[0], images[1].astype("f4")], "same type and shape"),
        ([images[0], (images[1], 5)], "give all images a label, or none"),
    ]:
        with pytest.raises(ValueError, match=error_text):
            BatchImages(3)(wrong)
    with pytest.raises(TypeError, match="aggregate"):
        BatchImages(3)(7)


def gray(height, value=0, width=3):
    return numpy.full((height, width), value, "u1")


@pytest.mark.parametrize("at", [0, 2, 3])
def test_mismatched_images_of_a_batch_are_dropped(at, caplog):
    images = [gray(2, value) for value in range(7)]
    images.insert(at, gray(9, 99))
    builder = source(images).pipe(identity).aggregate(BatchImages(4))
    batches = run(builder)
    assert [batch[:, 0, 0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6]]
    failure, _summary = caplog.records
    assert (
        f"most of these 4 are uint8 [2, 3], but image {at} is uint8 [9, 3]; resize" in caplog.text
    )
    assert failure.levelname == "ERROR"


def test_a_mismatched_image_counts_as_one_failure():
    images = [gray(2), gray(9), gray(2), gray(2)]
    pipeline = build(source(images).aggregate(BatchImages(2)), max_failures=1)
    with pipeline.auto_stop():
        assert [len(batch) for batch in pipeline] == [2, 1]
    reported = pipeline.stats()["stages"]
    assert [stage["failures"] for stage in reported if "aggregate" in stage["name"]] == [1]


def test_the_mismatch_error_lists_indices_and_shapes():
    images = [gray(2)] * 6 + [gray(at) for at in range(3, 8)]
    with pytest.raises(ValueError) as raised:
        BatchImages(2)(images)
    assert str(raised.value) == (
        "the images of a batch must have the same type and shape: most of these 11 are uint8 [2, 3], but "
        "image 6 is uint8 [3, 3], image 7 is uint8 [4, 3], image 8 is uint8 [5, 3], and 2 more; "
        "resize or crop them first, for example with DecodeImage(224)"
    )
    with pytest.raises(
        ValueError, match=r"image 2 is uint8 \[2, 3\] with a label; give all images a label"
    ):
        BatchImages(2)([images[0], images[0], (images[0], 5)])


def test_an_invalid_pair_is_an_error_of_accumulate():
    images = [gray(2), (gray(2), 1, 2), gray(2)]
    aggregator = BatchImages(2)
    assert aggregator.accumulate(images[0]) is None
    with pytest.raises(TypeError, match="not 3 values"):
        aggregator.accumulate(images[1])
    assert aggregator.accumulate(images[2]).shape == (2, 2, 3)


def test_repr_marks_native_stages():
    builder = source([1]).pipe(identity).pipe(Fetch()).pipe(DecodeImage(SIZE))
    builder = builder.aggregate(BatchImages(2)).pipe(identity).aggregate(BatchImages(3)).add_sink()
    for text in (repr(builder), str(builder.build(num_threads=1))):
        marked = [line.split("- ")[1] for line in text.splitlines() if line.endswith(" [native]")]
        assert [line.split("(")[0] for line in marked] == ["Fetch", "DecodeImage", "aggregate"]
        assert "DecodeImage(size=32" in marked[1] and "batch_size=2" in marked[2]


def test_the_examples_in_docstrings_run(photos, tmp_path, monkeypatch):
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(spdl_rs.io._operators)
    assert result.attempted >= 15 and result.failed == 0


@pytest.mark.parametrize(
    ("operator", "example"),
    [
        (Fetch, r"Fetch\(\)"),
        (DecodeImage, r"DecodeImage\(224\)"),
        (AugmentImage, r"AugmentImage\(\.\.\.\)"),
        (BatchImages, r"BatchImages\(\.\.\.\)"),
    ],
)
def test_an_operator_class_as_stage_is_an_error(operator, example):
    with pytest.raises(TypeError, match=f"is a class; pass an instance, for example {example}$"):
        Pipe(operator)
