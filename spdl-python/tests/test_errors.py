"""Errors of `ImageLoader`: exception types, attributes and messages."""

import errno
import gc
import logging
import os
import pickle

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from spdl_rs import fields


# promise: R10
def test_a_missing_file_is_a_file_not_found_error(photos, tmp_path):
    missing = str(tmp_path / "gone.jpg")
    batches = iter(spdl_rs.ImageLoader([photos / "cat" / "1.png", missing], batch_size=1))
    with pytest.raises(FileNotFoundError) as caught:
        list(batches)
    error = caught.value
    assert isinstance(error, spdl_rs.NotFoundError) and isinstance(error, spdl_rs.SpdlError)
    assert (error.key, error.stage, error.kind) == (missing, "fetch", "not-found")
    assert error.errno == errno.ENOENT and error.filename == missing
    assert missing in str(error) and "fetch" in str(error)
    # The epoch has ended.
    assert list(batches) == []


# promise: R10
def test_an_unreadable_file_is_a_permission_error(photos, tmp_path):
    path = tmp_path / "secret.png"
    path.write_bytes((photos / "cat" / "1.png").read_bytes())
    path.chmod(0)
    loader = spdl_rs.ImageLoader([path], batch_size=1)
    user = os.geteuid()
    try:
        if user == 0:
            # Root can read every file, so change the user.
            os.seteuid(65534)
        with pytest.raises(PermissionError) as caught:
            list(loader)
    finally:
        os.seteuid(user)
    assert isinstance(caught.value, spdl_rs.PermissionDeniedError)
    assert caught.value.errno == errno.EACCES


# promise: R10
def test_each_corrupt_file_raises_its_error_kind(damaged):
    _, bad = damaged
    kinds = {
        "x-empty.png": spdl_rs.TruncatedError,
        "x-text.jpg": spdl_rs.UnsupportedError,
        "x-truncated.png": spdl_rs.TruncatedError,
        "x-garbage.png": spdl_rs.DataError,
    }
    for path in bad:
        with pytest.raises(kinds[os.path.basename(path)]) as caught:
            list(spdl_rs.ImageLoader([path], batch_size=1, size=16))
        assert isinstance(caught.value, spdl_rs.DataError)
        assert caught.value.key == path and caught.value.stage == "decode"
        assert not isinstance(caught.value, OSError)


def test_on_error_raise_delivers_all_preceding_images(damaged):
    folder, bad = damaged
    delivered = []
    with pytest.raises(spdl_rs.DataError) as caught:
        for _, labels in spdl_rs.ImageLoader(folder, batch_size=3, size=16):
            delivered.append(labels.tolist())
    # Eight valid images precede: two full batches, and two images of the third.
    assert delivered == [[0] * 3, [0] * 3, [0] * 2]
    assert caught.value.key == bad[0]


# promise: R9
def test_on_error_skip_keeps_batches_full_and_lists_dropped_images(damaged, many):
    folder, bad = damaged
    loader = spdl_rs.ImageLoader(folder, batch_size=16, size=32, on_error="skip")
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [16, 16, 8]
    pixels = numpy.concatenate([images for images, _ in batches])
    ((clean, _),) = spdl_rs.ImageLoader(many, batch_size=40, size=32)
    assert (pixels == clean).all()
    statistics = loader.stats()
    assert statistics["dropped_total"] == 4
    dropped = statistics["dropped"]
    assert [one["key"] for one in dropped] == bad
    assert all(one["reason"] and one["stage"] == "decode" for one in dropped)
    kinds = [one["kind"] for one in dropped]
    assert kinds[0] == "truncated" and kinds[1] == "unsupported" and kinds[2] == "truncated"
    assert all(set(one) == set(spdl_rs.Dropped.__annotations__) for one in dropped)


def folder_of(tmp_path, valid, bad):
    """A folder of valid and empty files, in alternation as long as possible."""
    whole = picture_file(tmp_path)
    folder = tmp_path / f"{valid}-{bad}"
    folder.mkdir()
    for number in range(valid):
        (folder / f"{number:05}-valid.png").hardlink_to(whole)
    for number in range(bad):
        (folder / f"{number:05}-bad.png").write_bytes(b"")
    return folder


def picture_file(tmp_path):
    path = tmp_path / "whole.png"
    if not path.exists():
        write_png(str(path), picture(0, height=8, width=8))
    return path


def read(folder, **settings):
    settings = {"batch_size": 16, "size": 8, "threads": 2, **settings}
    loader = spdl_rs.ImageLoader(folder, **settings)
    return sum(len(labels) for _, labels in loader), loader


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.DEBUG, "spdl_rs")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# promise: R9
@pytest.mark.parametrize("policy", ["skip", spdl_rs.skip(at_most=None), spdl_rs.skip(at_most=100)])
def test_an_epoch_of_which_all_images_failed_is_an_error(tmp_path, policy, logged):
    folder = folder_of(tmp_path, 0, 9)
    with pytest.raises(spdl_rs.TruncatedError) as caught:
        read(folder, on_error=policy)
    message = "epoch 0 delivered no sample, and 9 samples failed; first failure: "
    assert message in str(caught.value)
    assert (caught.value.stage, caught.value.key) == ("decode", str(folder / "00000-bad.png"))
    # The exception is the report.
    assert logged() == []
    # One valid image is enough.
    (folder / "valid.png").hardlink_to(picture_file(tmp_path))
    assert read(folder, on_error=policy)[0] == 1


# promise: R9
def test_each_epoch_with_dropped_images_logs_one_warning_with_counts(damaged, logged):
    folder, bad = damaged
    _, loader = read(folder, on_error="skip")
    (message,) = logged()
    assert message.startswith(f'epoch 0 of ImageLoader("{folder}"): 4 images were dropped (decode: ')
    counts = loader.stats()["dropped_counts"]
    assert sum(one["count"] for one in counts) == 4
    assert all(f"{one['stage']}: {one['count']} {one['kind']}" in message for one in counts)
    assert bad[0] in message and loader.stats()["dropped"][0]["reason"] in message
    list(loader)
    assert len(logged()) == 2 and logged()[1].startswith("epoch 1 of ")
    # Leaving the loop ends an epoch too.
    for number in (2, 3):
        for _, labels in loader:
            if labels[0] == 2:
                break
        gc.collect()
        assert len(logged()) == number + 1 and logged()[-1].startswith(f"epoch {number} of ")


def test_epochs_without_dropped_images_log_nothing(many, logged):
    assert read(many, on_error="skip")[0] == 40
    assert logged() == []


# promise: R9
def test_skip_has_a_budget_of_one_per_cent_after_1000_images(tmp_path):
    # Too few images to judge.
    assert read(folder_of(tmp_path, 100, 99), on_error="skip")[0] == 100
    assert read(folder_of(tmp_path, 990, 10), on_error="skip")[0] == 990
    folder = folder_of(tmp_path, 1000, 20)
    reason = r"items failed; the failure policy \(on_error\) allows 1 %; first failures: .*00000-bad.png: "
    with pytest.raises(spdl_rs.TooManyFailuresError, match=reason):
        read(folder, on_error="skip")
    assert read(folder, on_error=spdl_rs.skip(at_most=0.02))[0] == 1000
    assert read(folder, on_error=spdl_rs.skip(after=2000))[0] == 1000
    assert read(folder, on_error=spdl_rs.skip(at_most=20))[0] == 1000
    assert read(folder, on_error=spdl_rs.skip(at_most=None))[0] == 1000
    with pytest.raises(spdl_rs.TooManyFailuresError, match="more than 19 items failed") as caught:
        read(folder, on_error=spdl_rs.skip(at_most=19))
    assert (caught.value.kind, caught.value.stage) == ("too-many-failures", "decode")
    assert isinstance(caught.value.__cause__, spdl_rs.TruncatedError)
    assert caught.value.__cause__.key.endswith("00019-bad.png")
    with pytest.raises(spdl_rs.TooManyFailuresError):
        read(folder, on_error=spdl_rs.skip(at_most=0))


# promise: R9
def test_a_share_that_is_passed_also_applies_to_small_data_sets(tmp_path):
    folder = folder_of(tmp_path, 191, 9)
    with pytest.raises(spdl_rs.TooManyFailuresError, match="9 of 200 items failed") as caught:
        read(folder, on_error=spdl_rs.skip(at_most=0.02))
    text = str(caught.value)
    assert caught.value.stage == "decode"
    assert text.count("00000-bad.png: ") == text.count("00002-bad.png: ") == 1 and "also" not in text
    with pytest.raises(spdl_rs.TooManyFailuresError):
        read(folder, on_error=spdl_rs.skip(at_most=0.01))
    assert read(folder, on_error=spdl_rs.skip(at_most=0.02, after=1000))[0] == 191
    assert read(folder, on_error=spdl_rs.skip())[0] == 191
    assert read(folder, on_error=spdl_rs.skip(at_most=0.045))[0] == 191


# promise: R9
@pytest.mark.parametrize("threads", [1, 4])
def test_the_sample_that_exceeded_the_limit_is_the_cause_and_is_not_dropped(tmp_path, threads):
    folder = folder_of(tmp_path, 30, 7)
    loader = spdl_rs.ImageLoader(
        folder, batch_size=4, size=8, threads=threads, on_error=spdl_rs.skip(at_most=6)
    )
    with pytest.raises(spdl_rs.TooManyFailuresError, match="more than 6 items failed") as caught:
        list(loader)
    statistics = loader.stats()
    assert len(statistics["dropped"]) == statistics["dropped_total"] == 6
    assert caught.value.__cause__.key not in [sample["key"] for sample in statistics["dropped"]]


@pytest.mark.parametrize(
    ("at_most", "error"),
    [(0.0, ValueError), (1.5, ValueError), (-1, ValueError), ("2 %", TypeError), (True, TypeError)],
)
def test_skip_checks_its_limit(at_most, error):
    with pytest.raises(error, match="at_most"):
        spdl_rs.skip(at_most=at_most)


# promise: R9
@pytest.mark.parametrize("threads", [1, 4])
def test_each_dropped_image_is_listed_with_its_batch(damaged, threads):
    folder, bad = damaged
    loader = spdl_rs.ImageLoader(folder, batch_size=8, size=8, on_error="skip", threads=threads)
    batches = iter(loader)
    listed = []
    for _, labels in batches:
        dropped = batches.take_dropped()
        assert batches.take_dropped() == []
        listed.append((len(labels), [one["key"] for one in dropped]))
    rest = [one["key"] for one in batches.take_dropped()]
    # In classes 0, 1, 3 and 4, a corrupt file follows eight images.
    assert listed == [(8, []), (8, [bad[0]]), (8, [bad[1]]), (8, []), (8, [bad[2]])]
    assert rest == [bad[3]]


# promise: R9
@pytest.mark.parametrize("functions", [["map"], ["batch_map"], ["map", "batch_map"]])
def test_each_dropped_sample_is_listed_with_its_batch_after_functions(damaged, functions):
    folder, bad = damaged
    loader = spdl_rs.Loader(
        folder,
        batch_size=8,
        image=fields.Image(8),
        on_error="skip",
        threads=4,
        **{name: lambda value: value for name in functions},
    )
    batches = iter(loader)
    listed = [[one["key"] for one in batches.take_dropped()] for _ in batches]
    assert listed == [[], [bad[0]], [bad[1]], [], [bad[2]]]
    assert [one["key"] for one in batches.take_dropped()] == [bad[3]]


# promise: R2
def test_on_truncated_partial_keeps_truncated_images(damaged, many):
    folder, bad = damaged
    settings = {"batch_size": 64, "size": 32, "on_error": "skip"}
    loader = spdl_rs.ImageLoader(folder, on_truncated="partial", **settings)
    ((images, labels),) = loader
    statistics = loader.stats()
    # The other files contain no rows of an image.
    assert statistics["partial"] == 1
    assert [one["key"] for one in statistics["dropped"]] == [bad[0], bad[1], bad[3]]
    assert os.path.basename(bad[2]) == "x-truncated.png" and len(labels) == 41

    # The partial image is the last of class 3.
    (at,) = numpy.flatnonzero(numpy.diff(labels) == 1)[3:]
    ((whole, _),) = spdl_rs.ImageLoader([many / "class0" / "00.png"], batch_size=1, size=32)
    rows = [(images[at, row] == whole[0, row]).all() for row in range(32)]
    assert all(rows[:8]) and not any(rows[-8:])
    assert (images[at, -8:] == 0).all()

    strict = spdl_rs.ImageLoader(folder, **settings)
    assert sum(len(labels) for _, labels in strict) == 40
    assert strict.stats()["partial"] is None


# promise: R2
def test_min_partial_sets_the_required_share_of_rows(damaged):
    folder, _ = damaged
    settings = {"batch_size": 64, "size": 32, "on_error": "skip", "on_truncated": "partial"}
    for least, partial in [(0, 1), (0.5, 1), (1.0, 0)]:
        loader = spdl_rs.ImageLoader(folder, min_partial=least, **settings)
        assert sum(len(labels) for _, labels in loader) == 40 + partial
        assert loader.stats()["partial"] == partial
    for wrong in [-0.1, 1.5, float("nan")]:
        with pytest.raises(ValueError, match="min_partial must be 0 to 1"):
            spdl_rs.ImageLoader(folder, min_partial=wrong, **settings)
    with pytest.raises(ValueError, match='min_partial=0.9 requires on_truncated="partial"'):
        spdl_rs.ImageLoader(folder, batch_size=1, min_partial=0.9)


# promise: R10
def test_a_source_without_images_is_an_error(tmp_path):
    with pytest.raises(spdl_rs.NotFoundError, match="no images"):
        spdl_rs.ImageLoader(tmp_path, batch_size=1)
    with pytest.raises(FileNotFoundError, match="file or folder does not exist") as caught:
        spdl_rs.ImageLoader(tmp_path / "gone", batch_size=1)
    assert caught.value.key == str(tmp_path / "gone")
    write_png(str(tmp_path / "one.png"), picture(1))
    with pytest.raises(ValueError, match="folder"):
        spdl_rs.ImageLoader(tmp_path / "one.png", batch_size=1)
    with pytest.raises(ValueError, match="empty"):
        spdl_rs.ImageLoader([], batch_size=1)


# promise: R10
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size must be 1 to"),
        ({"batch_size": -3}, "batch_size must be 1 to"),
        ({"batch_size": 2**70}, "batch_size must be 1 to"),
        ({"size": 0}, "size must be 1 to"),
        ({"size": 20_000}, "16384|16,384"),
        ({"seed": -1}, "seed must be 0 to"),
        ({"seed": 2**64}, "seed must be 0 to"),
        ({"threads": 0}, "threads must be 1 to"),
        ({"layout": "nchw"}, 'one of "nhwc-u8", .*"nchw-f32", not .nchw'),
        ({"on_error": "ignore"}, r'on_error must be "raise", "skip" or skip\(...\), not .ignore'),
        ({"on_error": 0.01}, r'"skip" or skip\(...\), not 0.01'),
        ({"on_truncated": "skip"}, '"error" or "partial", not .skip'),
        ({"labels": [1]}, "labels can be set only for a list of paths"),
        ({"rank": 2, "world_size": 2}, "rank must be 0 to 1, not 2"),
        ({"rank": 1}, 'world_size is missing: with rank=1, pass world_size, or only rank="auto"'),
        ({"world_size": 0}, "world_size must be 1 to"),
        ({"world_size": 2}, 'rank is missing: with world_size=2, pass rank, 0 to 1, or only rank="auto"'),
        ({"remainder": "keep"}, '"drop", "pad" or "uneven", not .keep'),
        ({"cache_size": 0}, "cache_size must be 1 to"),
        ({"cache_memory": -1}, "cache_memory must be 0 to"),
    ],
)
def test_values_out_of_range_are_value_errors(photos, settings, words):
    with pytest.raises(ValueError, match=words):
        spdl_rs.ImageLoader(photos, **{"batch_size": 1, **settings})


# promise: R10
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": "4"}, "batch_size must be a whole number, not '4'"),
        ({"batch_size": 4.0}, "batch_size must be a whole number"),
        ({"seed": None}, "seed must be a whole number"),
        ({"train": "no"}, "train must be True or False, not 'no'"),
        ({"shuffle": 1}, "shuffle must be True or False"),
        ({"drop_last": []}, "drop_last must be True or False"),
        ({"layout": 3}, '"nhwc-u8" or "nchw-f32"'),
        ({"source": 5}, "a folder, an address, a list of paths, a table, a data set, or an iterable of samples, not 5"),
        ({"source": ["a.png", 5]}, "a folder, an address, a list of paths, a table, a data set, or an iterable of samples"),
        ({"source": ["a.png"], "labels": ["x"]}, "labels must be a whole number"),
        ({"source": ["a.png"], "labels": "1"}, "labels must be a list"),
        ({"bath_size": 1}, "bath_size"),
        ({"image_field": 3}, "image_field must be a str"),
        ({"label_field": b"cls"}, "label_field must be a str"),
        ({"classes": "cat"}, "classes must be a list of str, not str"),
        ({"classes": ["cat", 1]}, "classes must be a list of str, but it contains 1"),
        ({"cache": 5}, "expected str, bytes or os.PathLike"),
    ],
)
def test_wrong_types_are_type_errors(photos, settings, words):
    settings = {"source": photos, "batch_size": 1, **settings}
    with pytest.raises(TypeError, match=words):
        spdl_rs.ImageLoader(settings.pop("source"), **settings)


# promise: R10
def test_the_number_of_labels_must_equal_the_number_of_paths(photos):
    paths = [photos / "cat" / "1.png"] * 3
    with pytest.raises(ValueError, match="3 .*2"):
        spdl_rs.ImageLoader(paths, labels=[1, 2], batch_size=1)
    with pytest.raises(ValueError, match="3 .*4"):
        spdl_rs.ImageLoader(paths, labels=[1, 2, 3, 4], batch_size=1)


def test_numpy_scalars_are_accepted(photos):
    loader = spdl_rs.ImageLoader(
        photos, batch_size=numpy.int32(2), size=numpy.uint8(16), train=numpy.bool_(True)
    )
    loader.set_epoch(numpy.int64(3))
    assert next(iter(loader))[0].shape == (2, 16, 16, 3)


# promise: R10
def test_an_exception_survives_pickling():
    error = spdl_rs.NotFoundError(
        "gone", kind="not-found", key="a.png", stage="fetch", errno=errno.ENOENT
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is spdl_rs.NotFoundError
    assert (str(again), again.key, again.stage, again.kind) == (
        "gone",
        "a.png",
        "fetch",
        "not-found",
    )
    assert again.errno == errno.ENOENT and again.filename == "a.png"
