"""Arguments of other libraries: the error names the argument of this package."""

import inspect

import pytest
import spdl_rs
from spdl_rs import ImageLoader, Loader, fields


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Loader("x", batch_size=1, num_workers=2), "Loader has no argument num_workers: pass threads="),
        (lambda: Loader("x", batch_size=1, pin_memory=True), "batch_map=spdl_rs.io.transfer_tensor"),
        (lambda: Loader("x", batch_size=1, train=True), r"its field: image=fields.Image\(train=…\)"),
        (lambda: Loader("x", batch_size=1, collate_fn=list), "pass collate="),
        (lambda: Loader("x", batch_size=1, other=2), "other must be a field of spdl_rs.fields"),
        (
            lambda: Loader("x", batch_size=1, on_truncated="partial"),
            "Loader has no argument on_truncated: an argument of fields.Image, .*on_truncated=.partial",
        ),
        (lambda: ImageLoader("x", batch_size=1, num_workers=2), "ImageLoader has no argument num_workers: pass threads="),
        (lambda: ImageLoader("x", batch_size=1, pin_memory=True), "pass device="),
        (lambda: ImageLoader("x", batch_size=1, augment=[]), r"use Loader with image=fields.Image\(augment=…\)"),
        (lambda: ImageLoader("x", batch_size=1, mean=(0, 0, 0)), r"use Loader with image=fields.Image\(mean=…\)"),
        (lambda: ImageLoader("x", batch_size=1, other=2), "unexpected keyword argument 'other'"),
        (lambda: fields.Mask(ignore_index=255), "Mask has no argument ignore_index: pass outside="),
        (lambda: fields.Image(dtype="float32"), "Image has no argument dtype: layout= has the dtype"),
        (lambda: fields.Image(32, interpolation=2), "pass filter="),
        (lambda: fields.Image(other=1), "unexpected keyword argument 'other'"),
        (lambda: fields.Image(train=[]), "train must be True or False"),
        (lambda: fields.Tokens("t.json", context_length=77), "pass length="),
        (lambda: fields.Video(num_frames=8), "pass frames="),
    ],
)
def test_arguments_of_other_libraries_are_explained(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_signatures_show_the_arguments(photos):
    for one in (ImageLoader, fields.Image, fields.Mask, fields.Tokens):
        assert "kwargs" not in str(inspect.signature(one))
    assert "batch_size" in inspect.signature(ImageLoader).parameters
    with pytest.warns(spdl_rs.DatasetWarning, match="has no batch") as caught:
        ImageLoader(photos, batch_size=1000, size=16, drop_last=True)
    assert caught[0].filename == __file__


def test_the_content_of_a_file_is_no_path(tmp_path):
    jpeg = b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(2_000_000)

    def produce():
        yield jpeg

    image = fields.Image(16)
    for source in ([jpeg], produce(), [bytearray(jpeg)], ["a.jpg", jpeg]):
        with pytest.raises(TypeError, match="looks like the content of a file") as caught:
            Loader(source, batch_size=1, image=image)
        assert len(str(caught.value)) < 300 and "yield {'image': data}" in str(caught.value)
    for source in (jpeg, "text " * 2000, ["text " * 2000]):
        with pytest.raises(TypeError, match="looks like the content of a file"):
            ImageLoader(source, batch_size=1)
    # Paths may be bytes, and signed addresses long.
    for source in ([b"absent.jpg"], ["http://127.0.0.1:1/a.jpg?" + "a" * 5000]):
        assert len(Loader(source, batch_size=1, image=image)) == 1


def test_warnings_name_the_caller_also_of_a_subclass(photos):
    class Own(ImageLoader):
        def __init__(self):
            super().__init__(photos, batch_size=100, size=8, drop_last=True)

    with pytest.warns(spdl_rs.DatasetWarning, match="an epoch has no batch") as caught:
        Own()
    assert caught[0].filename == __file__
