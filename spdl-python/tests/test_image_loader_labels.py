"""Where labels come from, and what is told where there are none, or no batches."""

import logging
import socket
import warnings

import numpy
import pytest
import spdl_rs
from dataset_files import write_members


@pytest.fixture(scope="module")
def images(many):
    """The files of six images."""
    return [path.read_bytes() for path in sorted(many.glob("*/*.png"))[:6]]


def write_tar(path, images, name, others=lambda number: []):
    """Image `number` as the member `name(number)`, with other members behind it."""
    members = []
    for number, image in enumerate(images):
        members += [(name(number), image), *others(number)]
    write_members(path, members)
    return path


def load(source, **settings):
    loader = spdl_rs.ImageLoader(source, **{"batch_size": 4, "size": 8, **settings})
    return loader, numpy.concatenate([labels for _, labels in loader]).tolist()


def told(source, **settings):
    """The one warning."""
    with pytest.warns(spdl_rs.DatasetWarning) as caught:
        spdl_rs.ImageLoader(source, **{"batch_size": 4, "size": 8, **settings})
    (warning,) = caught
    assert warning.filename == __file__
    return str(warning.message)


@pytest.fixture
def silent():
    """A warning fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", spdl_rs.DatasetWarning)
        yield


def test_folders_in_a_tar_are_classes_as_in_a_folder(images, tmp_path, silent):
    def name(number):
        return f"train/{'dog' if number % 3 else 'cat'}/{number}.png"

    source = write_tar(tmp_path / "photos.tar", images, name)
    loader, labels = load(source)
    assert loader.class_to_idx == {"cat": 0, "dog": 1}
    assert labels == [0, 1, 1, 0, 1, 1]
    with pytest.raises(ValueError, match="those of folders, in an archive too, .* are its own"):
        load(source, classes=["cat", "dog"])


def test_a_tar_without_labels_is_told_with_its_fields_and_the_option(images, tmp_path):
    source = write_tar(
        tmp_path / "captions.tar",
        images,
        lambda number: f"{number}.png",
        lambda number: [(f"{number}.txt", b"a cat"), (f"{number}.json", b"{}")],
    )
    message = told(source)
    assert "no sample has a label, so all are -1" in message
    assert "`cls`, `label`, `class`" in message and "There are `json`, `txt`" in message
    assert "`label_field` of Python's `ImageLoader`" in message


def test_a_field_that_is_named_is_no_reason_for_a_warning(images, tmp_path, silent):
    source = write_tar(
        tmp_path / "numbers.tar",
        images,
        lambda number: f"{number}.png",
        lambda number: [(f"{number}.txt", str(number).encode())],
    )
    assert load(source, label_field="txt")[1] == [0, 1, 2, 3, 4, 5]


def test_a_list_without_a_known_column_is_told_and_the_column_can_be_named(images, tmp_path):
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(image)
    rows = [f"{number}.png,{'dog' if number % 2 else 'cat'}" for number in range(6)]
    source = tmp_path / "list.csv"
    source.write_text("\n".join(["path,target", *rows]) + "\n")
    message = told(source)
    assert "in the columns `label`, `class`, `cls`. There are `target`; `label_field`" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error", spdl_rs.DatasetWarning)
        loader, labels = load(source, label_field="target")
    assert loader.classes == ["cat", "dog"] and labels == [0, 1, 0, 1, 0, 1]


def test_nothing_is_told_of_images_that_need_no_label(many, tmp_path, silent):
    paths = sorted(many.glob("*/*.png"))[:6]
    load(paths)
    load(many / "class0")
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in paths))
    load(tmp_path / "list.txt")


def test_drop_last_that_leaves_no_batch_is_told_with_what_to_do(many):
    paths = sorted(many.glob("*/*.png"))[:6]
    message = told(paths, batch_size=8, drop_last=True)
    assert "6 of 6 images are fewer than a batch" in message
    assert "make batch_size 6 or less instead of 8, or drop_last false" in message
    message = told(paths, batch_size=4, drop_last=True, rank=1, world_size=2)
    assert "no epoch of rank 1 of 2 has a batch" in message
    assert "3 of 6 images are fewer than a batch: make batch_size 3 or less" in message


def test_a_rank_without_an_image_is_told_with_what_to_do(many):
    paths = sorted(many.glob("*/*.png"))[:3]
    for remainder in ("drop", "uneven"):
        message = told(paths, rank=3, world_size=4, remainder=remainder)
        assert "no epoch of rank 3 of 4 has a batch, as 3 images are fewer than ranks" in message
        assert 'make world_size 3 or less, or remainder "pad"' in message


def test_batches_that_are_left_are_no_reason_for_a_warning(many, silent):
    paths = sorted(many.glob("*/*.png"))[:6]
    for settings in (
        {"batch_size": 6, "drop_last": True},
        {"batch_size": 8},
        {"rank": 7, "world_size": 8, "remainder": "pad"},
    ):
        assert len(load(paths, **settings)[0]) == 1


def test_where_no_server_listens_it_is_logged_and_given_up_soon(caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with caplog.at_level(logging.WARNING, "spdl_rs"):
            with pytest.raises(spdl_rs.UnavailableError, match="has answered there so far"):
                spdl_rs.ImageLoader(f"{address}/shard.tar", batch_size=1)
    (record,) = [record for record in caplog.records if record.name == "spdl_rs"]
    assert record.getMessage().startswith(f"{address}: cannot connect to the server: ")
