"""Native operators: results, arguments, errors and representation."""

import concurrent.futures
import copy
import doctest
import gc
import multiprocessing
import pickle
import random
import shutil
import threading
import time
import warnings
import wave

import numpy
import pytest
import spdl_rs
import spdl_rs.io._operators
from native import SIZE, assert_same, files, loaded, native
from pipelines import build, identity, run, source
from spdl_rs.dataloader import DataLoader
from spdl_rs.io import (
    Array,
    AugmentImage,
    BatchImages,
    ColorJitter,
    DecodeImage,
    Fetch,
    Stretch,
)
from spdl_rs.pipeline._build.subprocess import PipelinePerIteration
from spdl_rs.pipeline.defs import MAIN_PROCESS, Pipe, ProcessPoolExecutorConfig
from spdl_rs.source import DistributedRandomSampler

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
    with wave.open(str(tmp_path / "speech.wav"), "wb") as speech:
        speech.setparams((1, 2, 16_000, 0, "NONE", None))
        speech.writeframes(bytes(32_000))
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

# Random numbers of calls.

DECODE = DecodeImage(SIZE, train=True, seed=7)
AUGMENT = AugmentImage(ColorJitter(0.4), seed=7)
# Small images may have equal crops by chance.
JITTER = DecodeImage(SIZE, train=True, seed=7, augment=ColorJitter(0.5, 0.5, 0.5))


def decoded(path):
    return DECODE(Fetch()(path))


def decoded_in_parts(path):
    yield DECODE(Fetch()(path))
    yield DECODE(Fetch()(path))


# promise: R13
@pytest.mark.parametrize("threads", [1, 4])
def test_a_function_draws_the_random_numbers_of_its_item(many, threads):
    paths = files(many)
    expected = run(native(paths, DECODE))
    for _ in range(2):
        builder = source(paths).pipe(decoded, concurrency=threads, output_order="input")
        assert_same(run(builder, num_threads=threads, epoch=0), expected)
    # Crops of equal images differ.
    builder = source([paths[0]] * 8).pipe(decoded, output_order="input")
    found = run(builder, epoch=0)
    assert len({image.tobytes() for image in found}) == 8


# promise: R13
def test_each_call_for_an_item_draws_other_random_numbers(many):
    paths = files(many)[:4]
    expected = run(native(paths, DECODE))
    twice = run(source(paths).pipe(decoded_in_parts, output_order="input"), epoch=0)
    assert_same(twice[::2], expected)
    assert all((first != second).any() for first, second in zip(twice[::2], twice[1::2]))
    views = run(source(paths).pipe(lambda path: [decoded(path), decoded(path)]), epoch=0)
    views.sort(key=lambda pair: [image.tobytes() for image in expected].index(pair[0].tobytes()))
    assert_same([view for pair in views for view in pair], twice)
    # Operators with different names do not disturb each other.
    both = run(source(paths).pipe(lambda path: AUGMENT(decoded(path)), output_order="input"), epoch=0)
    builder = native(paths, DECODE).pipe(AUGMENT, output_order="input")
    assert_same(both, run(builder, epoch=0))


def test_a_call_outside_of_a_pipeline_requires_index_or_rng(photos):
    data = (photos / "cat" / "1.png").read_bytes()
    pixels = DecodeImage(SIZE)(data)
    for call in (lambda **how: DECODE(data, **how), lambda **how: AUGMENT(pixels, **how)):
        with pytest.raises(ValueError, match=r"pass index= \(and epoch=\), or a generator as rng="):
            call()
        with pytest.raises(ValueError, match="epoch requires index"):
            call(epoch=1)
        with pytest.raises(ValueError, match="pass either rng, or index and epoch"):
            call(index=1, rng=random.Random(1))
        with pytest.raises(TypeError, match="rng must be a numpy.random.Generator or"):
            call(rng=5)
        assert (call(index=1) == call(index=1, epoch=0)).all()
        assert (call(index=1) != call(index=2)).any() and (call(index=1) != call(index=1, epoch=1)).any()
        for make in (numpy.random.default_rng, random.Random):
            rng, same = make(3), make(3)
            first, second = call(rng=rng), call(rng=rng)
            assert (first != second).any()
            assert_same([call(rng=same), call(rng=same)], [first, second])
    # Without random steps, no position is required.
    for fixed in (DecodeImage(SIZE, train=True, crop=Stretch(), horizontal_flip=1), DecodeImage(SIZE)):
        assert (fixed(data) == fixed(data, index=5)).all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_worker_does_not_draw_the_numbers_of_the_item_that_forked_it(many):
    # The pool forks its workers while the first stage calls it for an item.
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        failures = []

        def forward(path):
            try:
                return pool.submit(decoded, path).result()
            except ValueError as error:
                failures.append(str(error))
                return None

        run(source(files(many)[:4]).pipe(forward))
    assert len(failures) == 4 and "pass index=" in failures[0]


def test_a_call_on_another_thread_requires_index(many):
    failures = []

    def elsewhere(path):
        def call():
            try:
                decoded(path)
            except ValueError as error:
                failures.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return DECODE(Fetch()(path), index=3)

    assert len(run(source(files(many)[:2]).pipe(elsewhere))) == 2
    assert len(failures) == 2 and "pass index=" in failures[0]
    # After the pipeline, its threads and this thread have no item.
    with pytest.raises(ValueError, match="pass index="):
        decoded(files(many)[0])


# promise: R13
def test_a_rebuilt_pipeline_repeats_crops_only_with_a_warning(many, caplog):
    paths = files(many)
    decode = DecodeImage(SIZE, train=True, seed=190_001)

    def repeated():
        return [r.getMessage() for r in caplog.records if "same random numbers" in r.getMessage()]

    builders = {
        "native": lambda decode: native(paths, decode),
        "function": lambda decode: source(paths).pipe(
            lambda path: decode(Fetch()(path)), output_order="input"
        ),
    }
    for at, make in enumerate(builders.values()):
        decode = DecodeImage(SIZE, train=True, seed=190_001 + at)
        first = run(make(decode))
        assert repeated() == []
        assert_same(run(make(decode)), first)
        (message,) = repeated()
        assert "both run epoch 0" in message and "pass epoch= to build()" in message
        assert repr(decode) in message
        run(make(decode))
        assert len(repeated()) == 1, "one warning per operator"
        caplog.clear()
        decode = DecodeImage(SIZE, train=True, seed=190_101 + at)
        epochs = [run(make(decode), epoch=epoch) for epoch in (0, 1, 0)]
        assert_same(epochs[2], epochs[0])
        assert all((one != other).any() for one, other in zip(epochs[0], epochs[1]))
        assert repeated() == []
    # Epochs have the numbers of a continuous pipeline.
    pipeline = build(native(paths, decode, continuous=True), epoch=1)
    with pipeline.auto_stop():
        assert_same(list(pipeline), epochs[1])
        assert (list(pipeline)[0] != epochs[1][0]).any()


def test_a_resumed_pipeline_repeats_crops_without_a_warning(many, caplog):
    decode = DecodeImage(SIZE, train=True, seed=190_301)
    first = build(native(files(many), decode))
    with first.auto_stop():
        next(iter(first))
        state = first.state_dict()
    resumed = build(native(files(many), decode))
    resumed.load_state_dict(state)
    with resumed.auto_stop():
        assert list(resumed.get_iterator(timeout=60))
    assert "same random numbers" not in caplog.text


@pytest.mark.parametrize("wrong", [-1, 0.5, "1"])
def test_an_epoch_is_a_whole_number(wrong):
    with pytest.raises((TypeError, ValueError), match="epoch"):
        build(source(), epoch=wrong)


# promise: R13
def test_each_epoch_of_a_loader_and_of_a_subprocess_has_other_crops(many):
    paths = files(many)
    loader = DataLoader(paths, preprocessor=decoded, output_order="input")
    config = native(paths, DECODE).add_sink(2).get_config()
    epochs = PipelinePerIteration(config, {"num_threads": 1})
    first, second = list(loader), list(loader)
    for again, index in ((first, 0), (second, 1)):
        assert_same(list(epochs), again)
        assert_same(again[:2], [DECODE(Fetch()(path), epoch=index, index=at) for at, path in enumerate(paths[:2])])
    assert all((one != other).any() for one, other in zip(first, second))


# promise: R13
def test_a_resumed_loader_keeps_its_epoch(many):
    names = dict(enumerate(files(many)))

    def make():
        sampler = DistributedRandomSampler(len(names), rank=0, world_size=1)
        return DataLoader(sampler, preprocessor=lambda n: (n, decoded(names[n])), output_order="input")

    loader = make()
    list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert state["epoch"] == 1
    again = make()
    again.load_state_dict(state)
    ((number, image), *_) = again
    assert (image == DECODE(Fetch()(names[number]), epoch=1, index=0)).all()
    list(batches)
    last = make()
    last.load_state_dict(loader.state_dict())
    number, image = next(iter(last))
    assert (image == DECODE(Fetch()(names[number]), epoch=2, index=0)).all()


def jittered(path):
    return JITTER(Fetch()(path))


def slowly(item):
    time.sleep(0.02)
    return item


# promise: R13
@pytest.mark.parametrize("as_function", [False, True])
def test_processes_of_a_region_draw_different_random_numbers(many, as_function):
    builder = source([files(many)[0]] * 12, continuous=True)
    builder = builder.to(ProcessPoolExecutorConfig(3, mp_context="fork")).pipe(slowly)
    builder = builder.pipe(jittered) if as_function else builder.pipe(Fetch()).pipe(JITTER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        pipeline = build(builder.to(MAIN_PROCESS))
    with pipeline.auto_stop():
        crops = [image.tobytes() for _ in range(2) for image in pipeline]
    assert len(crops) == len(set(crops)) == 24
