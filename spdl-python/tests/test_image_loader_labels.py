"""Sources of labels, and warnings about missing labels and empty epochs."""

import logging
import socket
import time
import warnings

import numpy
import pytest
import spdl_rs
from dataset_files import write_members


@pytest.fixture(scope="module")
def images(many):
    """The contents of six image files."""
    return [path.read_bytes() for path in sorted(many.glob("*/*.png"))[:6]]


def write_tar(path, images, name, others=lambda number: []):
    """Writes a tar archive of images named `name(number)`, each followed by `others(number)`."""
    members = []
    for number, image in enumerate(images):
        members += [(name(number), image), *others(number)]
    write_members(path, members)
    return path


def load(source, **settings):
    loader = spdl_rs.ImageLoader(source, **{"batch_size": 4, "size": 8, **settings})
    return loader, numpy.concatenate([labels for _, labels in loader]).tolist()


def reported(source, **settings):
    """The text of the only warning."""
    with pytest.warns(spdl_rs.DatasetWarning) as caught:
        spdl_rs.ImageLoader(source, **{"batch_size": 4, "size": 8, **settings})
    (warning,) = caught
    assert warning.filename == __file__
    return str(warning.message)


@pytest.fixture
def silent():
    """Turns warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", spdl_rs.DatasetWarning)
        yield


def test_folders_in_a_tar_are_classes(images, tmp_path, silent):
    def name(number):
        return f"train/{'dog' if number % 3 else 'cat'}/{number}.png"

    source = write_tar(tmp_path / "photos.tar", images, name)
    loader, labels = load(source)
    assert loader.class_to_idx == {"cat": 0, "dog": 1}
    assert labels == [0, 1, 1, 0, 1, 1]
    with pytest.raises(
        ValueError, match="labels from folders and file lists have their own class names"
    ):
        load(source, classes=["cat", "dog"])


def test_a_tar_without_labels_causes_a_warning(images, tmp_path):
    source = write_tar(
        tmp_path / "captions.tar",
        images,
        lambda number: f"{number}.png",
        lambda number: [(f"{number}.txt", b"a cat"), (f"{number}.json", b"{}")],
    )
    message = reported(source)
    assert "no sample has a label, so all labels are -1" in message
    assert "`cls`, `label`, `class`" in message and "other fields are `json`, `txt`" in message
    assert message.endswith("pass `stored_as=` to its field, or `label_field=` to `ImageLoader`")
    # The message must not contain names of the Rust API or of the command line.
    assert "::" not in message and "--" not in message


def test_label_field_prevents_the_warning(images, tmp_path, silent):
    source = write_tar(
        tmp_path / "numbers.tar",
        images,
        lambda number: f"{number}.png",
        lambda number: [(f"{number}.txt", str(number).encode())],
    )
    assert load(source, label_field="txt")[1] == [0, 1, 2, 3, 4, 5]


def test_a_list_without_label_column_causes_a_warning(images, tmp_path):
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(image)
    rows = [f"{number}.png,{'dog' if number % 2 else 'cat'}" for number in range(6)]
    source = tmp_path / "list.csv"
    source.write_text("\n".join(["path,target", *rows]) + "\n")
    message = reported(source)
    assert (
        "none of the columns `label`, `class`, `cls` exists; other columns are `target`" in message
    )
    assert message.endswith("or `label_field=` to `ImageLoader`")
    with warnings.catch_warnings():
        warnings.simplefilter("error", spdl_rs.DatasetWarning)
        loader, labels = load(source, label_field="target")
    assert loader.classes == ["cat", "dog"] and labels == [0, 1, 0, 1, 0, 1]


@pytest.fixture
def beside(images, tmp_path):
    """A function that writes a file list next to six images, and returns its path."""
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(image)

    def write(header, rows):
        path = tmp_path / "list.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    return write


def test_integers_with_decimal_point_are_labels(beside, silent):
    numbers = [10, 2, 0, 1, 10, 2]
    source = beside("path,label", [f"{n}.png,{label}.0" for n, label in enumerate(numbers)])
    loader, labels = load(source)
    assert labels == numbers and loader.classes == []


def test_a_name_among_integer_labels_is_an_error(beside):
    rows = [f"{number}.png,{number}.0" for number in range(5)]
    with pytest.raises(ValueError, match='line 7.*label "n/a" is not an integer') as caught:
        load(beside("path,label", [*rows, "5.png,n/a"]))
    assert '"0.0" in line 2 is' in str(caught.value)
    assert "leave it empty" in str(caught.value) and "`label_field=`" in str(caught.value)
    with pytest.raises(ValueError, match='label "n/a" is not an integer') as caught:
        load(beside("path,target", [*rows, "5.png,n/a"]), label_field="target")
    assert "5.png" in str(caught.value) and "empty" not in str(caught.value)


def test_labels_in_exponent_notation_are_names(beside, silent):
    hashes = ["a1", "7e10", "b2", "0e1", "2e5", "7e10"]
    source = beside("path,label", [f"{n}.png,{label}" for n, label in enumerate(hashes)])
    loader, labels = load(source)
    assert loader.classes == ["0e1", "2e5", "7e10", "a1", "b2"] and labels == [3, 2, 4, 0, 1, 2]


@pytest.fixture
def parquet(images, tmp_path):
    """A function that writes images with these labels to a Parquet file, and returns its path."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    files = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

    def write(labels):
        table = pyarrow.table({"image": images[: len(labels)], "label": labels})
        files.write_table(table, tmp_path / "images.parquet")
        return tmp_path / "images.parquet"

    return write


@pytest.mark.frameworks
def test_mixed_names_and_numbers_require_classes(parquet, silent):
    source = parquet(["cat", "7", "dog", "cat"])
    classes = ["7", "cat", "dog"]
    assert load(source, classes=classes)[1] == [1, 0, 2, 1]
    assert load(source, classes=classes, label_field="label")[1] == [1, 0, 2, 1]
    with pytest.raises(ValueError, match='label "7" is an integer, but "cat" of'):
        load(source)


@pytest.mark.frameworks
def test_an_empty_label_causes_a_warning(parquet):
    for column, classes, expected in [
        (["cat", "", "dog", "cat"], ["cat", "dog"], [0, -1, 1, 0]),
        (["1", "", "2", "3"], [], [1, -1, 2, 3]),
    ]:
        source = parquet(column)
        with pytest.warns(spdl_rs.DatasetWarning, match="1 of 4 samples has no label"):
            loader, labels = load(source)
        assert loader.classes == classes and labels == expected


def test_the_column_label_takes_precedence_over_class(beside, silent):
    source = beside("path,class,label", [f"{n}.png,{'ab'[n % 2]},{6 - n}" for n in range(6)])
    loader, labels = load(source)
    assert labels == [6, 5, 4, 3, 2, 1] and loader.classes == []
    loader, labels = load(source, label_field="class")
    assert labels == [0, 1, 0, 1, 0, 1] and loader.classes == ["a", "b"]


def test_image_field_selects_the_path_column(beside, silent):
    rows = [f"x,{number}.png,{number}" for number in range(6)]
    assert load(beside("path,photo,label", rows), image_field="photo")[1] == list(range(6))
    assert load(beside("path,file,label", rows), image_field="file")[1] == list(range(6))
    rows = [f"{number}.png,{number}" for number in range(6)]
    assert load(beside("path,label", rows), image_field="file")[1] == list(range(6))
    with pytest.raises(ValueError, match="pass `stored_as=` to the field of `Loader`, or `image_field=`"):
        load(beside("photo,label", rows))
    with pytest.raises(ValueError, match='no column "photo": the columns are path, label'):
        load(beside("path,label", rows), image_field="photo")


def test_an_unknown_field_of_a_path_list_is_an_error(many):
    paths = sorted(many.glob("*/*.png"))[:6]
    assert load(paths, image_field="image")[1] == [-1] * 6
    for field in ("image_field", "label_field"):
        with pytest.raises(ValueError, match='no sample has a field "x": the fields are image'):
            load(paths, **{field: "x"})


def test_partly_missing_labels_cause_a_warning_with_their_count(images, beside, tmp_path):
    message = reported(beside("path,label", [f"{n}.png,{n if n % 2 else ''}" for n in range(6)]))
    assert "3 of 6 samples have no label and will get the label -1" in message
    assert "0.png" in message
    source = write_tar(
        tmp_path / "half.tar",
        images,
        lambda number: f"{number}.png",
        lambda number: [(f"{number}.cls", b"7")] if number != 2 else [],
    )
    message = reported(source)
    assert "1 of 6 samples has no label" in message and "half.tar:2" in message


def test_a_list_with_only_a_path_column_causes_a_warning(beside):
    message = reported(beside("path", [f"{number}.png" for number in range(6)]))
    assert "no sample has a label, so all labels are -1" in message
    assert message.endswith("the path column is the only column")


def test_zero_padded_folders_in_a_tar_are_classes(images, tmp_path, silent):
    source = write_tar(tmp_path / "1.tar", images, lambda number: f"{5 - number:03}/x.png")
    loader, labels = load(source)
    assert labels == [5, 4, 3, 2, 1, 0]
    assert loader.classes == [f"{number:03}" for number in range(6)]


def test_unlabeled_sources_cause_no_warning(many, tmp_path, silent):
    paths = sorted(many.glob("*/*.png"))[:6]
    load(paths)
    load(many / "class0")
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in paths))
    load(tmp_path / "list.txt")


def test_an_epoch_without_batches_causes_a_warning(many):
    paths = sorted(many.glob("*/*.png"))[:6]
    message = reported(paths, batch_size=8, drop_last=True)
    assert "6 of 6 images do not fill a batch" in message
    assert "set batch_size to 6 or less instead of 8, or drop_last to False" in message
    message = reported(paths, batch_size=4, drop_last=True, rank=1, world_size=2)
    assert "an epoch of rank 1 of 2 has no batch" in message
    assert "3 of 6 images do not fill a batch; set batch_size to 3 or less" in message


def test_a_rank_without_images_causes_a_warning(many):
    paths = sorted(many.glob("*/*.png"))[:3]
    for remainder in ("drop", "uneven"):
        message = reported(paths, rank=3, world_size=4, remainder=remainder)
        assert "an epoch of rank 3 of 4 has no batch: the data set has only 3 images" in message
        assert 'set world_size to 3 or less, or remainder to "pad"' in message


def test_a_single_batch_causes_no_warning(many, silent):
    paths = sorted(many.glob("*/*.png"))[:6]
    for settings in (
        {"batch_size": 6, "drop_last": True},
        {"batch_size": 8},
        {"rank": 7, "world_size": 8, "remainder": "pad"},
    ):
        assert len(load(paths, **settings)[0]) == 1


def test_a_refused_connection_is_logged_and_fails_fast(caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with caplog.at_level(logging.WARNING, "spdl_rs"):
            with pytest.raises(
                spdl_rs.UnavailableError, match="no response from this server so far"
            ):
                spdl_rs.ImageLoader(f"{address}/shard.tar", batch_size=1)
    (record,) = [record for record in caplog.records if record.name == "spdl_rs"]
    assert record.getMessage().startswith(f"{address}: cannot connect to the server: ")


def test_listing_an_unreachable_store_fails_fast(caplog, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        begun = time.monotonic()
        with caplog.at_level(logging.WARNING, "spdl_rs"):
            with pytest.raises(
                spdl_rs.UnavailableError, match="no response from this server so far"
            ):
                spdl_rs.ImageLoader("s3://bucket/photos/", batch_size=1)
        # A store that has responded before is retried for 30 s.
        assert time.monotonic() - begun < 8
    (record,) = [record for record in caplog.records if record.name == "spdl_rs"]
    assert record.getMessage().startswith("s3://bucket: cannot connect to the store: ")
