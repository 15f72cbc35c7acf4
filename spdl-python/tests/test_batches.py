"""Batches of `ImageLoader`: shapes, pixels, labels, order."""

import hashlib
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png

MEAN = numpy.array([0.485, 0.456, 0.406], dtype=numpy.float32)
STD = numpy.array([0.229, 0.224, 0.225], dtype=numpy.float32)


def digest(loader, epochs=1):
    """A hash of all pixels and labels, in order."""
    total = hashlib.sha256()
    for _ in range(epochs):
        for images, labels in loader:
            total.update(images.tobytes())
            total.update(labels.tobytes())
    return total.hexdigest()


def test_a_folder_defines_classes_and_batches(many):
    loader = spdl_rs.ImageLoader(many, batch_size=16, size=32)
    assert loader.classes == [f"class{number}" for number in range(5)]
    assert loader.class_to_idx["class3"] == 3
    batches = list(loader)
    assert [images.shape for images, _ in batches] == [(16, 32, 32, 3)] * 2 + [(8, 32, 32, 3)]
    assert all(images.dtype == numpy.uint8 for images, _ in batches)
    assert all(labels.dtype == numpy.int64 for _, labels in batches)
    labels = numpy.concatenate([labels for _, labels in batches])
    assert labels.tolist() == [label for label in range(5) for _ in range(8)]


def test_nchw_f32_equals_normalized_bytes(many):
    settings = {"batch_size": 40, "size": 48}
    ((pixels, _),) = spdl_rs.ImageLoader(many, **settings)
    ((planes, _),) = spdl_rs.ImageLoader(many, layout="nchw-f32", **settings)
    assert planes.shape == (40, 3, 48, 48)
    assert planes.dtype == numpy.float32
    expected = (pixels.astype(numpy.float32) / 255 - MEAN) / STD
    numpy.testing.assert_allclose(planes, expected.transpose(0, 3, 1, 2), atol=1e-5)


@pytest.mark.parametrize("layout", ["nhwc-f32", "nhwc-f16", "nchw-u8", "nchw-f16"])
def test_all_layouts_have_equal_values(many, layout):
    settings = {"batch_size": 40, "size": 48}
    ((pixels, _),) = spdl_rs.ImageLoader(many, **settings)
    ((found, _),) = spdl_rs.ImageLoader(many, layout=layout, **settings)
    names = {"u8": "uint8", "f16": "float16", "f32": "float32"}
    assert found.dtype == names[layout.split("-")[1]]
    expected = pixels if layout.endswith("u8") else (pixels / 255 - MEAN) / STD
    if layout.startswith("nchw"):
        expected = expected.transpose(0, 3, 1, 2)
    assert found.shape == expected.shape
    numpy.testing.assert_allclose(found, expected, atol=2e-3)


def test_bfloat16_layouts_are_an_error_with_advice(many):
    with pytest.raises(NotImplementedError, match='use "nchw-f32" or.*torch.bfloat16'):
        spdl_rs.ImageLoader(many, batch_size=2, layout="nchw-bf16")
    with pytest.raises(NotImplementedError, match='NumPy has no bfloat16; use Loader with output="torch", or use "nhwc-f32"'):
        spdl_rs.io.DecodeImage(layout="nhwc-bf16")


@pytest.mark.parametrize("size", [0, 16_385, 20_000, -1])
def test_an_invalid_size_is_an_error_with_the_valid_range(many, size):
    for make in (
        spdl_rs.io.DecodeImage,
        lambda size: spdl_rs.ImageLoader(many, batch_size=1, size=size),
    ):
        with pytest.raises(ValueError, match=f"^size must be 1 to 16384, not {size}$"):
            make(size)
    with pytest.raises(ValueError, match="^size must be 1 to 16384"):
        spdl_rs.io.DecodeImage((3, size))
    spdl_rs.io.DecodeImage((16_384, 1))


def test_an_invalid_layout_is_an_error_with_the_valid_layouts(many):
    error_text = 'one of "nhwc-u8", .*, "nchw-f32"(, "nhwc-u16", "nchw-u16")?, not \'NCHW\'$'
    for make in (
        spdl_rs.io.DecodeImage,
        lambda **it: spdl_rs.ImageLoader(many, batch_size=1, **it),
    ):
        with pytest.raises(spdl_rs.InvalidArgumentError, match=error_text) as raised:
            make(layout="NCHW")
        assert raised.value.kind == "invalid-argument"


@pytest.mark.parametrize("size", [32, 64])
def test_eval_pixels_agree_with_pillow(tmp_path, size):
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    paths = []
    for number, (width, height) in enumerate([(80, 60), (200, 300), (64, 64), (333, 111)]):
        image = image_module.fromarray(picture(number, height, width))
        paths.append(tmp_path / f"{number}.{'jpg' if number % 2 else 'png'}")
        image.save(paths[-1], **({"quality": 95} if number % 2 else {}))

    ((images, _),) = spdl_rs.ImageLoader(paths, batch_size=len(paths), size=size)
    for found, path in zip(images, paths):
        image = image_module.open(path).convert("RGB")
        # As torchvision's Resize and CenterCrop: the longer side is truncated to whole pixels.
        shorter = round(size / 0.875)
        target = [shorter * side // min(image.size) for side in image.size]
        resized = image.resize(target, image_module.Resampling.BILINEAR)
        left, top = (round((side - size) / 2) for side in target)
        expected = numpy.asarray(resized.crop((left, top, left + size, top + size)))
        difference = numpy.abs(found.astype(int) - expected.astype(int))
        if path.suffix == ".jpg":
            # Luma and chroma are resized separately, possibly after a scaled inverse DCT.
            assert 10 * numpy.log10(255**2 / (difference**2).mean()) >= 40, path
        else:
            assert difference.mean() < 0.5, path
            assert difference.max() <= 3, path


def test_eval_epochs_are_equal(many):
    loader = spdl_rs.ImageLoader(many, batch_size=7, size=32)
    assert digest(loader) == digest(loader)


def test_train_epochs_differ_in_order_and_crops(photos):
    loader = spdl_rs.ImageLoader([photos / "cat" / "1.png"], batch_size=1, size=32, train=True)
    crops = {images.tobytes() for _ in range(8) for images, _ in loader}
    assert len(crops) == 8
    paths = [photos / "cat" / "1.png"] * 100
    loader = spdl_rs.ImageLoader(paths, labels=range(100), batch_size=100, size=8, train=True)
    orders = [labels.tolist() for _ in range(3) for _, labels in loader]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders} | {tuple(range(100))}) == 4


def test_shuffle_and_train_are_independent(photos):
    paths = [photos / "cat" / "1.png"] * 50
    settings = {"labels": range(50), "batch_size": 50, "size": 8}
    ((pixels, labels),) = spdl_rs.ImageLoader(paths, shuffle=True, **settings)
    assert labels.tolist() != list(range(50))
    assert (pixels == pixels[0]).all()
    ((pixels, labels),) = spdl_rs.ImageLoader(paths, train=True, shuffle=False, **settings)
    assert labels.tolist() == list(range(50))
    assert (pixels != pixels[0]).any()


def test_batches_depend_on_the_seed_and_not_on_threads(many):
    def of(seed, threads):
        settings = {"batch_size": 7, "size": 40, "train": True, "layout": "nchw-f32"}
        return digest(spdl_rs.ImageLoader(many, seed=seed, threads=threads, **settings), epochs=2)

    assert of(3, 1) == of(3, 2) == of(3, 8) == of(3, None)
    assert of(4, 2) != of(3, 2)


def test_batches_are_equal_in_another_process(many):
    script = (
        "import sys, spdl_rs\n"
        "from test_batches import digest\n"
        "loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=9, size=32, train=True, seed=5)\n"
        "print(digest(loader, epochs=2))"
    )
    command = [sys.executable, "-c", script, str(many)]
    here = pathlib.Path(__file__).parent
    there = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    loader = spdl_rs.ImageLoader(many, batch_size=9, size=32, train=True, seed=5)
    assert there.stdout.strip() == digest(loader, epochs=2)


def test_set_epoch_repeats_an_epoch(many):
    loader = spdl_rs.ImageLoader(many, batch_size=10, size=16, train=True)
    assert loader.epoch == 0
    epochs = [digest(loader) for _ in range(3)]
    assert loader.epoch == 3
    assert len(set(epochs)) == 3
    loader.set_epoch(1)
    assert loader.epoch == 1
    assert digest(loader) == epochs[1]
    assert digest(loader) == epochs[2]


def test_concurrent_iterators_are_independent(many):
    settings = {"batch_size": 4, "size": 24, "train": True}
    alone = spdl_rs.ImageLoader(many, **settings)
    expected = [[batch[0].tobytes() for batch in alone] for _ in range(2)]
    together = spdl_rs.ImageLoader(many, **settings)
    both = list(zip(iter(together), iter(together)))
    for epoch in range(2):
        assert [pair[epoch][0].tobytes() for pair in both] == expected[epoch]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 20, 39, 40, 41, 10**12])
def test_len_is_the_number_of_batches(many, batch_size, drop_last):
    loader = spdl_rs.ImageLoader(many, batch_size=batch_size, size=8, drop_last=drop_last)
    sizes = [len(labels) for _, labels in loader]
    assert len(loader) == len(sizes)
    assert loader.stats()["left_out"] == 40 - sum(sizes)
    if drop_last:
        assert set(sizes) <= {batch_size}
    else:
        assert sum(sizes) == 40


def test_a_list_of_paths_has_the_given_labels_or_minus_one(photos):
    paths = [str(photos / "dog" / "1.png"), photos / "cat" / "2.png"]
    for source in [paths, tuple(paths), iter(paths), [os.fsencode(path) for path in paths]]:
        loader = spdl_rs.ImageLoader(source, batch_size=2, size=8)
        assert loader.classes == []
        ((images, labels),) = loader
        assert labels.tolist() == [-1, -1]
    ((swapped, labels),) = spdl_rs.ImageLoader(
        paths[::-1], labels=numpy.array([-5, 2**40]), batch_size=2, size=8
    )
    assert labels.tolist() == [-5, 2**40]
    assert (swapped == images[::-1]).all()


def test_paths_may_be_arbitrary_bytes(tmp_path):
    folder = os.fsencode(tmp_path / "odd")
    try:
        write_png(folder + b"/\xffclass/\xfe\n.png", picture(1))
    except OSError:
        pytest.skip("this file system requires file names in UTF-8")
    ((from_folder, labels),) = spdl_rs.ImageLoader(folder, batch_size=1, size=8)
    assert labels.tolist() == [0]
    ((from_text, _),) = spdl_rs.ImageLoader(os.fsdecode(folder), batch_size=1, size=8)
    path = folder + b"/\xffclass/\xfe\n.png"
    ((from_list, _),) = spdl_rs.ImageLoader([path], batch_size=1, size=8)
    assert (from_folder == from_list).all() and (from_text == from_list).all()
    assert spdl_rs.ImageLoader(folder, batch_size=1).classes == [r"\xffclass"]


def test_a_folder_of_images_has_no_classes(photos):
    loader = spdl_rs.ImageLoader(photos / "cat", batch_size=2, size=8)
    ((_, labels),) = loader
    assert loader.classes == [] and labels.tolist() == [-1, -1]


def test_an_empty_class_folder_causes_a_warning(photos, tmp_path):
    write_png(str(tmp_path / "cat" / "1.png"), picture(1))
    (tmp_path / "empty").mkdir()
    with pytest.warns(spdl_rs.DatasetWarning, match="empty") as caught:
        spdl_rs.ImageLoader(tmp_path, batch_size=1)
    assert caught[0].filename == __file__
