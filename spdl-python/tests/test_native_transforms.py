"""Transforms of `DecodeImage`, and `AugmentImage`: crops, colours, random augmentations."""

import copy
import doctest
import json
import pathlib
import pickle
import shutil

import numpy
import pytest
import spdl_rs.io._augmentations
import spdl_rs.io._crops
from conftest import picture, write_png
from native import SIZE, assert_same, failure_of, files, native, stages
from pipelines import build, identity, run, source
from spdl_rs.io import (
    AugmentImage,
    AugMix,
    AutoAugment,
    BatchImages,
    CenterCrop,
    ColorJitter,
    DecodeImage,
    Fetch,
    GaussianBlur,
    Letterbox,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomAutocontrast,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomScaledCrop,
    RandomSolarize,
    Resize,
    ResizedCenterCrop,
    Stretch,
    TimmAugMix,
    TimmRandAugment,
    TrivialAugmentWide,
)

HEIGHT, WIDTH = 60, 80
CROPS = [
    ResizedCenterCrop(40),
    ResizedCenterCrop((40, 60)),
    RandomResizedCrop((0.5, 1), ratio=(1, 1)),
    Stretch(),
    Letterbox((1, 2, 3)),
    CenterCrop(7),
    RandomCrop(padding=4, fill=9),
    RandomScaledCrop((20, 40), fill=9),
]
# Each changes the image with certainty.
AUGMENTATIONS = [
    ColorJitter(brightness=(1.5, 1.6)),
    ColorJitter(0, 0, 0, (0.2, 0.3)),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    GaussianBlur(5),
    GaussianBlur((3, 7), sigma=2),
    RandomGrayscale(1),
    RandomInvert(1),
    RandomEqualize(1),
    RandomAutocontrast(1),
    RandomPosterize(3, 1),
    RandomSolarize(100, 1),
    RandomAdjustSharpness(0, 1),
    RandomRotation((30, 40)),
    RandomRotation(20, "bilinear", center=(0, 0), fill=None),
    RandomAffine((5, 6), translate=(0.1, 0.1), scale=(0.8, 0.9), shear=(1, 2, 3, 4), center=(9, 9)),
    RandomAffine(0, shear=30, interpolation="bilinear", fill=5),
    RandomPerspective(0.9, 1),
    RandomErasing(1),
    RandomErasing(1, (0.1, 0.2), (1, 1), "random"),
    RandomErasing(1, value=(1, 2, 3)),
    RandAugment(3, 20, fill=(1, 2, 3)),
    TimmAugMix(9, 0.5, 2, chain_depth=3, alpha=0.5, interpolation="nearest", fill=None),
    TimmRandAugment(3, 9, 0.5, increasing=True, p=1),
    TimmRandAugment(3, 20, "uniform", 30, p=1, interpolation="nearest", fill=None),
    TrivialAugmentWide(),
    AutoAugment(),
    AugMix(10, chain_depth=3),
    RandomApply([RandomInvert(1), RandomGrayscale(1)], p=1),
    RandomChoice([RandomInvert(1), RandomGrayscale(1)], p=[1, 2]),
    RandomOrder([RandomInvert(1), RandomPosterize(1, 1)]),
]


def original():
    """Dark pixels with edges, whose contrast can be stretched."""
    pixels = picture(1, HEIGHT, WIDTH) // 2 + 20
    pixels[::7, ::5] += 60
    return pixels


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The bytes of an image file, and its pixels."""
    path = tmp_path_factory.mktemp("image") / "image.png"
    pixels = original()
    write_png(str(path), pixels)
    return path.read_bytes(), pixels


def pixels_of(data, *arguments, **options):
    return DecodeImage(*arguments, **options)(data, index=0)


# Crops.


def test_center_crop_copies_pixels(image):
    data, pixels = image
    found = pixels_of(data, (20, 30), crop=CenterCrop())
    numpy.testing.assert_array_equal(found, pixels[20:40, 25:55])
    around = pixels_of(data, (HEIGHT + 2, WIDTH), crop=CenterCrop(fill=(1, 2, 3)))
    assert around[0, 0].tolist() == around[-1, -1].tolist() == [1, 2, 3]
    numpy.testing.assert_array_equal(around[1:-1], pixels)


def test_random_crop_copies_pixels(image):
    data, pixels = image
    windows = numpy.lib.stride_tricks.sliding_window_view(pixels, (20, 30, 3))[:, :, 0]
    places = set()
    for index in range(8):
        found = DecodeImage((20, 30), crop=RandomCrop())(data, index=index)
        ((row, column),) = numpy.argwhere((windows == found).all(axis=(2, 3, 4)))
        places.add((row, column))
    assert len(places) > 1


def test_stretch_and_letterbox(image):
    data, pixels = image
    numpy.testing.assert_array_equal(pixels_of(data, (HEIGHT, WIDTH), crop=Stretch()), pixels)
    assert pixels_of(data, (7, 5), crop=Stretch()).shape == (7, 5, 3)
    boxed = pixels_of(data, WIDTH, crop=Letterbox(114))
    assert (boxed[:10] == 114).all() and (boxed[-10:] == 114).all()
    numpy.testing.assert_array_equal(boxed[10:-10], pixels)


def test_random_scaled_crop_scales_the_shorter_side(image):
    data, pixels = image
    # The image as it is, at every position with padding.
    whole = {DecodeImage((HEIGHT + 1, WIDTH), crop=RandomScaledCrop((HEIGHT, HEIGHT), 9))(data, index=index).tobytes() for index in range(8)}
    rows = numpy.full((1, WIDTH, 3), 9, "u1")
    assert whole == {numpy.concatenate(parts).tobytes() for parts in ([rows, pixels], [pixels, rows])}
    # Twice as large, as if it were resized before the crop.
    large = pixels_of(data, (2 * HEIGHT, 2 * WIDTH), crop=Stretch())
    decode = DecodeImage((20, 30), crop=RandomScaledCrop((2 * HEIGHT, 2 * HEIGHT)))
    windows = numpy.lib.stride_tricks.sliding_window_view(large, (20, 30, 3))[:, :, 0]
    for index in range(3):
        differences = numpy.abs(windows.astype("i2") - decode(data, index=index)).max(axis=(2, 3, 4))
        assert differences.min() <= 1
    sizes = {DecodeImage(WIDTH, crop=RandomScaledCrop((10, 12)))(data, index=index).any(axis=(1, 2)).sum() for index in range(20)}
    assert sizes == {10, 11, 12}


def test_resized_center_crop_resizes_first(image):
    data, pixels = image
    found = pixels_of(data, (20, 30), crop=ResizedCenterCrop((HEIGHT, WIDTH)))
    numpy.testing.assert_array_equal(found, pixels[20:40, 25:55])
    found = pixels_of(data, 20, crop=ResizedCenterCrop(HEIGHT))
    numpy.testing.assert_array_equal(found, pixels[20:40, 30:50])


def test_random_resized_crop_of_the_full_area_is_the_image(image):
    data, pixels = image
    crop = RandomResizedCrop((1, 1), (WIDTH / HEIGHT, WIDTH / HEIGHT))
    numpy.testing.assert_array_equal(pixels_of(data, (HEIGHT, WIDTH), crop=crop), pixels)
    assert (DecodeImage(SIZE, crop=RandomResizedCrop())(data, index=0) != pixels_of(data, SIZE)).any()


def test_train_equals_explicit_arguments(image):
    data, _ = image
    train = DecodeImage(SIZE, train=True, seed=5)
    with_settings = DecodeImage(SIZE, crop=RandomResizedCrop(), horizontal_flip=0.5, seed=5)
    never = DecodeImage(SIZE, train=True, horizontal_flip=0, seed=5)
    flipped = 0
    for index in range(10):
        expected = train(data, index=index)
        numpy.testing.assert_array_equal(with_settings(data, index=index), expected)
        flipped += (never(data, index=index) != expected).any()
    assert 0 < flipped < 10


# Pixel values.


def test_flips_mirror_the_image(image):
    data, pixels = image
    whole = {"crop": Stretch()}
    size = (HEIGHT, WIDTH)
    numpy.testing.assert_array_equal(
        pixels_of(data, size, horizontal_flip=1, **whole), pixels[:, ::-1]
    )
    numpy.testing.assert_array_equal(pixels_of(data, size, vertical_flip=1, **whole), pixels[::-1])


def test_color_selects_the_channels(image):
    data, pixels = image
    size = {"size": (HEIGHT, WIDTH), "crop": Stretch()}
    numpy.testing.assert_array_equal(pixels_of(data, color="bgr", **size), pixels[:, :, ::-1])
    grey = pixels_of(data, color="grey", **size)
    red, green, blue = (pixels[:, :, channel].astype(int) for channel in range(3))
    expected = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    assert grey.shape == (HEIGHT, WIDTH, 1)
    numpy.testing.assert_array_equal(grey[:, :, 0], expected)
    assert pixels_of(data, color="grey", layout="nchw-f32", **size).shape == (1, HEIGHT, WIDTH)


def test_mean_and_std_normalize_the_pixels(image):
    data, pixels = image
    mean, std = (0.5, 0.25, 0.125), (0.5, 0.25, 2.0)
    found = pixels_of(data, (HEIGHT, WIDTH), crop=Stretch(), layout="nhwc-f32", mean=mean, std=std)
    numpy.testing.assert_allclose(found, (pixels / 255 - mean) / std, atol=1e-5)


@pytest.mark.parametrize("filter", ["nearest", "area", "bilinear", "bicubic", "lanczos3"])
def test_filter_selects_the_resampling_filter(image, filter):
    data, pixels = image
    half = pixels_of(data, (HEIGHT // 2, WIDTH // 2), crop=Stretch(), filter=filter, exact=True)
    if filter == "nearest":
        numpy.testing.assert_array_equal(half, pixels[1::2, 1::2])
    elif filter == "area":
        mean = pixels.reshape(HEIGHT // 2, 2, WIDTH // 2, 2, 3).mean(axis=(1, 3))
        assert numpy.abs(half - mean).max() <= 1
    else:
        other = pixels_of(data, (HEIGHT // 2, WIDTH // 2), crop=Stretch(), filter="area")
        assert (half != other).any()


def test_exact_decodes_jpegs_at_full_size():
    data = (pathlib.Path(__file__).parents[2] / "assets/photos/chelsea.jpg").read_bytes()
    usual, exact = (pixels_of(data, SIZE, crop=Stretch(), exact=exact) for exact in (False, True))
    assert (usual != exact).any()
    assert numpy.abs(usual.astype(int) - exact).mean() < 2


def test_on_truncated_partial_keeps_the_decoded_rows(image):
    data, pixels = image
    size = {"size": (HEIGHT, WIDTH), "crop": Stretch()}
    cut = data[: len(data) * 2 // 3]
    with pytest.raises(spdl_rs.TruncatedError):
        pixels_of(cut, **size)
    found = pixels_of(cut, on_truncated="partial", **size)
    numpy.testing.assert_array_equal(found[:10], pixels[:10])
    assert not found[-10:].any()
    # Half of the rows of the crop are required.
    with pytest.raises(spdl_rs.TruncatedError, match="expected at least 50 %"):
        pixels_of(data[: len(data) // 3], on_truncated="partial", **size)
    fewer = pixels_of(data[: len(data) // 3], on_truncated="partial", min_partial=0.1, **size)
    numpy.testing.assert_array_equal(fewer[:5], pixels[:5])
    with pytest.raises(spdl_rs.TruncatedError, match="expected at least 90 %"):
        pixels_of(cut, on_truncated="partial", min_partial=0.9, **size)
    with pytest.raises(ValueError, match='requires on_truncated="partial"'):
        DecodeImage(min_partial=0.9)


# Augmentations.


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=repr)
def test_augmentations_are_equal_in_calls_and_pipelines(image, augmentation):
    data, pixels = image
    augment = AugmentImage(augmentation, seed=3)
    changed = augment(pixels, epoch=2, index=4)
    assert changed.shape == pixels.shape and changed.dtype == numpy.uint8
    # The input is not modified.
    assert (changed != pixels).any() and (pixels == original()).all()
    numpy.testing.assert_array_equal(augment(pixels, epoch=2, index=4), changed)
    decode = {"size": (HEIGHT, WIDTH), "crop": Stretch()}
    fused = DecodeImage(augment=augmentation, **decode)(data, index=0)
    assert (fused != pixels).any()
    # Without other random stages, the pipeline and a call draw the same numbers.
    items = [data] * 3
    separate = source(items).pipe(DecodeImage(**decode), output_order="input")
    found = run(separate.pipe(augment, output_order="input"))
    assert_same(found, [augment(pixels, index=index) for index in range(3)])


def test_augmentations_differ_by_item_and_epoch(image):
    _, pixels = image
    augment = AugmentImage(ColorJitter(0.9), seed=3)
    seen = [augment(pixels, epoch=epoch, index=index) for epoch in (0, 1) for index in (0, 1)]
    seen.append(AugmentImage(ColorJitter(0.9), seed=4)(pixels, index=0))
    assert len({image.tobytes() for image in seen}) == 5


def test_augmentations_have_the_documented_effect(image):
    _, pixels = image

    def done(*augmentations):
        return AugmentImage(augmentations)(pixels, index=0)

    numpy.testing.assert_array_equal(done(RandomInvert(1)), 255 - pixels)
    numpy.testing.assert_array_equal(done(RandomPosterize(3, 1)), pixels & 0xE0)
    numpy.testing.assert_array_equal(
        done(RandomSolarize(100, 1)), numpy.where(pixels >= 100, 255 - pixels, pixels)
    )
    numpy.testing.assert_array_equal(
        done(ColorJitter(brightness=(0.5, 0.5))), (pixels * 0.5).astype("u1")
    )
    numpy.testing.assert_array_equal(done(RandomRotation((180, 180))), pixels[::-1, ::-1])
    grey = done(RandomGrayscale(1))
    assert (grey[:, :, 0] == grey[:, :, 1]).all() and (grey[:, :, 1] == grey[:, :, 2]).all()
    assert RandomErasing(value="mean") == RandomErasing(value=(124, 116, 104))
    erased = (done(RandomErasing(1, value=(1, 2, 3))) == (1, 2, 3)).all(axis=2)
    rows, columns = numpy.nonzero(erased)
    assert erased[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert 0.01 < erased.mean() < 0.4
    # In the given order; and with probability 0.
    numpy.testing.assert_array_equal(
        done(RandomInvert(1), RandomPosterize(1, 1)), (255 - pixels) & 0x80
    )
    numpy.testing.assert_array_equal(done(RandomApply(RandomInvert(1), p=0)), pixels)
    numpy.testing.assert_array_equal(done(RandomChoice([RandomInvert(1), RandomInvert(0)], [0, 2])), pixels)
    numpy.testing.assert_array_equal(done(RandomOrder(RandomInvert(1))), 255 - pixels)
    numpy.testing.assert_array_equal(done(), pixels)


def test_augmentation_precedes_normalization(image):
    data, pixels = image
    decode = DecodeImage(
        (HEIGHT, WIDTH), crop=Stretch(), layout="nchw-f32", augment=[RandomInvert(1)], color="bgr"
    )
    plain = DecodeImage((HEIGHT, WIDTH), crop=Stretch(), layout="nchw-f32", color="bgr")
    mean, std = (numpy.array(numbers[::-1])[:, None, None] for numbers in (plain.mean, plain.std))
    expected = ((255 - pixels[:, :, ::-1]) / 255).transpose(2, 0, 1)
    numpy.testing.assert_allclose(decode(data), (expected - mean) / std, atol=1e-4)


# In pipelines.


@pytest.mark.parametrize("batches", [False, True])
def test_augment_is_fused_with_decode(many, batches):
    paths = files(many)
    augment = AugmentImage([ColorJitter(0.5), RandomErasing()], seed=8)
    builder = native(zip(paths, range(40)), DecodeImage(SIZE, train=True, seed=1))
    builder = builder.pipe(augment, output_order="input", concurrency=2)
    builder = builder.aggregate(BatchImages(16)) if batches else builder
    assert repr(builder).count("[native]") == 3 + batches
    pipeline = build(builder)
    found = list(pipeline)
    if batches:
        assert [label for _, labels in found for label in labels.tolist()] == list(range(40))
        images = [image for images, _ in found for image in images]
    else:
        assert [label for _, label in found] == list(range(40))
        images = [image for image, _ in found]
    decode = DecodeImage(SIZE, train=True, seed=1)
    plain = [decode(Fetch()(path), index=at) for at, path in enumerate(paths)]
    assert_same(images, [augment(image, index=at) for at, image in enumerate(plain)])
    kinds = [(name, stage["kind"]) for name, stage in stages(pipeline).items()]
    last = ("AugmentImage", "fill" if batches else "cpu")
    assert kinds[1:] == [
        ("Fetch/part0", "cpu"),
        ("Fetch", "async"),
        ("DecodeImage", "cpu"),
        last,
        ("AugmentImage/part1", "cpu"),
    ]
    assert stages(pipeline)["AugmentImage"]["concurrency"] == 2


def test_augment_works_between_python_stages(image):
    _, pixels = image
    augment = AugmentImage(RandomAffine(30))
    builder = source([pixels] * 4).pipe(identity, output_order="input")
    builder = builder.pipe(augment, output_order="input").pipe(identity, output_order="input")
    assert "AugmentImage(op=AugmentImage(augmentations=(RandomAffine" in repr(builder).replace(
        "output_order='input', ", ""
    )
    expected = [augment(pixels, index=at) for at in range(4)]
    assert_same(run(builder), expected)
    # The size of Python's images is unknown in advance, so Python makes the batches.
    builder = source([pixels] * 4).pipe(augment, output_order="input").aggregate(BatchImages(4))
    assert repr(builder).count("[native]") == 1
    (batch,) = run(builder)
    assert_same(list(batch), expected)


def test_augmenting_unsupported_pixels_is_an_error(image):
    data, pixels = image
    augment = AugmentImage(RandomInvert())
    for options in ({"layout": "nchw-f32"}, {"color": "bgr"}):
        with pytest.raises(ValueError, match=r"DecodeImage\(\.\.\., augment="):
            build(source([data]).pipe(DecodeImage(SIZE, **options)).pipe(augment))
    for wrong, kind, error_text in [
        (pixels.astype("f4"), TypeError, "not float32"),
        (b"bytes", TypeError, "not bytes"),
        (pixels[:, :, 0], ValueError, r"not \[60, 80\]"),
        (pixels[:0], ValueError, r"not \[0, 80, 3\]"),
        (numpy.zeros((2, 2, 4), "u1"), ValueError, r"not \[2, 2, 4\]"),
    ]:
        with pytest.raises(kind, match=error_text):
            augment(wrong, index=0)
        error = failure_of(source([wrong]).pipe(augment), max_failures=0)
        assert type(error) is kind
    # Images need not be contiguous.
    numpy.testing.assert_array_equal(
        AugmentImage(RandomInvert(1))(pixels[::2, ::-1]), 255 - pixels[::2, ::-1]
    )


# Augmentations as text.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("randaugment(2, 9)", RandAugment(2, 9)),
        ("RandAugment", RandAugment()),
        (" trivialaugment ", TrivialAugmentWide()),
        ("trivialaugmentwide(31, fill=(1, 2, 3))", TrivialAugmentWide(31, fill=(1, 2, 3))),
        ("augmix", AugMix()),
        ("augmix(severity=5, chain_depth=-1)", AugMix(5, chain_depth=-1)),
        ("augmix(3, 3)", AugMix(3, 3)),
        ("augmix-m5-w4-d2", TimmAugMix(5, "uniform", 4, 2)),
        ("augmix-m3-w3-a0.5-mstd0.5-b1", TimmAugMix(3, 0.5, 3, -1, 0.5)),
        ("colorjitter(0.4, hue=[-0.1, 0.1])", ColorJitter(0.4, hue=(-0.1, 0.1))),
        ("randomapply([gaussianblur(9), randominvert], p=0.1)", RandomApply([GaussianBlur(9), RandomInvert()], 0.1)),
        ("randomchoice([augmix, randominvert(1)], p=(1, 3))", RandomChoice([AugMix(), RandomInvert(1)], [1, 3])),
        ("randomorder((augmix, randomapply(randominvert)))", RandomOrder([AugMix(), RandomApply(RandomInvert())])),
        ("rand", TimmRandAugment()),
        ("rand-m9-mstd0.5-inc1", TimmRandAugment(2, 9, 0.5, increasing=True)),
        ("rand-m7-n3-mmax20-inc0-p0.75", TimmRandAugment(3, 7, 0, 20, False, 0.75)),
        ("rand-m9-mstd101", TimmRandAugment(magnitude=9, magnitude_std="uniform")),
    ],
)
def test_a_text_becomes_the_augmentation(text, expected):
    assert DecodeImage(augment=text) == DecodeImage(augment=expected)
    assert AugmentImage([RandomInvert(), text]).augmentations == (RandomInvert(), expected)
    assert RandomApply(text) == RandomApply(expected)


def test_rust_reads_the_same_texts():
    """The test of Rust compares the texts of this file, which `spdl bench --spec` reads, with their parameters."""
    path = pathlib.Path(__file__).parents[2] / "spdl-media/tests/data/augmentation_texts.json"
    for text, expected in json.loads(path.read_text()):
        (found,) = DecodeImage(augment=text).augment
        values = {name: getattr(found, name) for name in expected if name != "type"}
        described = json.loads(json.dumps({"type": type(found).__name__, **values}))
        assert described == expected, text


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=repr)
def test_the_repr_of_an_augmentation_is_its_text(augmentation):
    assert AugmentImage(repr(augmentation)) == AugmentImage(augmentation)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flip", "augment='flip': 'flip' is not an augmentation; expected ColorJitter, .* such as \"rand-m9"),
        ("os.system('true')", "'os.system' is not an augmentation"),
        ("randaugment(open)", "'open' is not an augmentation"),
        ("randaugment(*(2, 9))", "expected names, numbers and tuples"),
        ("randaugment(**{})", "expected names, numbers and tuples"),
        ("randaugment(1 + 1)", "expected names, numbers and tuples"),
        ("randaugment(2, 9", 'expected an expression such as "randaugment\\(2, 9\\)"'),
        ("", "expected an expression"),
        ("rand-m9-w0", "'w0' is not a parameter of RandAugment; expected each of n, m, mstd, mmax, inc, p at most"),
        ("rand-m9-m5", "'m5' is not a parameter"),
        ("rand-n2000", "invalid number of operations 2000"),
        ("randaugment(-'x')", "expected names, numbers and tuples"),
        ("rand-m9-t1.2.3", "'t1.2.3' is not a parameter"),
        ("rand-m-n2", "'m' is not a parameter"),
        ("augmix-m5-n4", "'n4' is not a parameter of AugMix; expected each of m, mstd, w, d, a, b at most once"),
        ("augmix-m5-w0", "invalid mixture of width 0"),
        ("augmix-m500", "invalid magnitude 500"),
        ("randaugment(magnitude=31)", "expected less than 31"),
        ("rand-m900", "invalid magnitude 900"),
    ],
)
def test_an_invalid_text_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        DecodeImage(augment=text)
    for text, message in (("randaugment(ops=2)", "unexpected keyword"), ("7", "must be augmentations")):
        with pytest.raises(TypeError, match=message):
            DecodeImage(augment=text)


# Transforms as values.


@pytest.mark.parametrize("value", [*CROPS, *AUGMENTATIONS, AugmentImage(RandomInvert())], ids=repr)
def test_crops_and_augmentations_compare_hash_and_pickle_by_value(value):
    for same in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), eval(repr(value))):
        assert same == value and hash(same) == hash(value) and repr(same) == repr(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (123.7, 116.3, 103.5)}, r"mean must be in \[0, 1\], not \(123.7, 116.3, 103.5\): as a fraction"),
        ({"mean": (-0.1, 0, 0)}, "mean must be in"),
        ({"std": (58.4, 57.1, 57.4)}, r"std must be in \(0, 10\], not .*: as a fraction of 255; divide values"),
        ({"std": (0, 1, 1)}, "std must be in"),
        ({"mean": (float("nan"), 0, 0)}, "mean must be in"),
    ],
)
def test_mean_and_std_in_another_unit_are_refused(options, message):
    for layout in ("nchw-f32", "nhwc-f16"):
        with pytest.raises(ValueError, match=message):
            DecodeImage(layout=layout, **options)


@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-u8"])
def test_mean_and_std_are_refused_if_the_layout_has_whole_numbers(layout):
    for options in ({"mean": (0.5, 0.5, 0.5)}, {"std": (0.5, 0.5, 0.5)}):
        with pytest.raises(ValueError, match="mean and std have no effect on layout=.*normalised"):
            DecodeImage(layout=layout, **options)
    same = DecodeImage(layout=layout, mean=DecodeImage.mean, std=DecodeImage.std)
    assert same == DecodeImage(layout=layout)


def test_the_repr_of_a_decoder_omits_defaults():
    options = {"layout": "nchw-f32", "augment": RandAugment(), "std": (1, 1, 1)}
    decode = DecodeImage((2, 3), crop=Letterbox(5), **options)
    assert eval(repr(decode)) == decode and pickle.loads(pickle.dumps(decode)) == decode
    assert "mean" not in repr(decode) and "crop=Letterbox(fill=(5, 5, 5))" in repr(decode)
    assert ColorJitter([0.5, 1]) == ColorJitter((0.5, 1))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: DecodeImage(crop="center"), TypeError),
        (lambda: DecodeImage(crop=RandomCrop(padding=500)), ValueError),
        (lambda: DecodeImage(crop=RandomResizedCrop((0.5, 0.1))), ValueError),
        (lambda: DecodeImage(horizontal_flip=2), ValueError),
        (lambda: DecodeImage(vertical_flip=float("nan")), ValueError),
        (lambda: DecodeImage(filter="best"), ValueError),
        (lambda: DecodeImage(color="cmyk"), ValueError),
        (lambda: DecodeImage(std=(0, 1, 1)), ValueError),
        (lambda: DecodeImage(mean=(0, 1)), TypeError),
        (lambda: DecodeImage(mean=(1e300, 0, 0)), ValueError),
        (lambda: DecodeImage((1, 2, 3)), TypeError),
        (lambda: DecodeImage((0, 2)), ValueError),
        (lambda: DecodeImage(on_truncated="skip"), ValueError),
        (lambda: DecodeImage(exact=1), TypeError),
        (lambda: DecodeImage(augment=[7]), TypeError),
        (lambda: DecodeImage(augment=RandomInvert), TypeError),
        (lambda: Letterbox(256), ValueError),
        (lambda: Letterbox((1, 2)), TypeError),
        (lambda: ResizedCenterCrop(0), ValueError),
        (lambda: RandomResizedCrop(1), TypeError),
        (lambda: Resize(0), ValueError),
        (lambda: Resize(longest=1.5), TypeError),
        (lambda: Resize(multiple_of=None), TypeError),
        (lambda: DecodeImage(crop=Resize(20)), ValueError),
        (lambda: RandomScaledCrop(1), TypeError),
        (lambda: RandomScaledCrop((1.5, 2)), TypeError),
        (lambda: RandomScaledCrop((0, 2)), ValueError),
        (lambda: RandomScaledCrop((3, 2)), ValueError),
        (lambda: ColorJitter(-1), ValueError),
        (lambda: ColorJitter((2, 1)), ValueError),
        (lambda: ColorJitter(hue=0.6), ValueError),
        (lambda: ColorJitter("much"), TypeError),
        (lambda: GaussianBlur(4), ValueError),
        (lambda: GaussianBlur(3, sigma=0), ValueError),
        (lambda: GaussianBlur((3, 3, 3)), TypeError),
        (lambda: RandomGrayscale(1.5), ValueError),
        (lambda: RandomPosterize(9), ValueError),
        (lambda: RandomSolarize(256), ValueError),
        (lambda: RandomAdjustSharpness(-1), ValueError),
        (lambda: RandomRotation(-1), ValueError),
        (lambda: RandomRotation(1, "cubic"), ValueError),
        (lambda: RandomAffine(0, translate=(2, 0)), ValueError),
        (lambda: RandomAffine(0, shear=(1, 2, 3)), TypeError),
        (lambda: RandomPerspective(2), ValueError),
        (lambda: RandomErasing(value="red"), ValueError),
        (lambda: RandomErasing(value=0.48), ValueError),
        (lambda: RandomErasing(value=(0.485, 0.456, 0.406)), ValueError),
        (lambda: RandomErasing(value=300), ValueError),
        (lambda: RandomErasing(value=-1), ValueError),
        (lambda: RandomErasing(scale=(0.5, 0.1)), ValueError),
        (lambda: RandAugment(magnitude=31), ValueError),
        (lambda: RandAugment(1.5), TypeError),
        (lambda: TrivialAugmentWide(1), ValueError),
        (lambda: AutoAugment(fill=300), ValueError),
        (lambda: AugMix(severity=11), ValueError),
        (lambda: AugMix(chain_depth=0), ValueError),
        (lambda: TimmAugMix(chain_depth=0), ValueError),
        (lambda: TimmAugMix(magnitude_std="normal"), ValueError),
        (lambda: RandomApply([1]), TypeError),
        (lambda: RandomChoice([]), ValueError),
        (lambda: RandomChoice([RandomInvert()], p=[0]), ValueError),
        (lambda: RandomChoice([RandomInvert()], p=[1, 1]), TypeError),
        (lambda: RandomChoice([RandomInvert()] * 2, p=[1, -1]), ValueError),
        (lambda: RandomChoice([[RandomInvert()]]), TypeError),
        (lambda: RandomOrder([1]), TypeError),
        (lambda: RandomApply(RandomInvert(), p=-1), ValueError),
        (lambda: TimmRandAugment(magnitude=101), ValueError),
        (lambda: TimmRandAugment(magnitude_std="normal"), ValueError),
        (lambda: TimmRandAugment(p=2), ValueError),
        (lambda: TimmRandAugment(increasing=1), TypeError),
        (lambda: AugmentImage("flip"), ValueError),
        (lambda: AugmentImage(b"randominvert"), TypeError),
        (lambda: AugmentImage(RandomInvert(), seed=-1), ValueError),
    ],
)
def test_invalid_transform_arguments_are_errors(make, kind):
    with pytest.raises(kind):
        make()


@pytest.mark.parametrize("value", [0.48, 300, (124, 116.5, 104)])
def test_erased_pixels_have_levels(value):
    with pytest.raises(ValueError, match=r"value must be whole numbers from 0 to 255, not .*\(124, 116, 104\)"):
        RandomErasing(value=value)
    assert RandomErasing(value=255.0).value == 255


@pytest.mark.parametrize("module", [spdl_rs.io._augmentations, spdl_rs.io._crops])
def test_the_examples_in_docstrings_run(module, photos, tmp_path, monkeypatch):
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module)
    assert result.attempted >= 5 and result.failed == 0
