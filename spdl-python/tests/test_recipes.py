"""Recipes: shapes, parameters, and equality with what they describe."""

import dataclasses
import json

import numpy
import pytest
import spdl_rs
from conftest import write_png
from dataset_files import write_members
from spdl_rs import Loader, fields, recipes
from spdl_rs.io import RandAugment, RandomScaledCrop, Resize, ResizedCenterCrop, TimmRandAugment
from test_loader import grey_png

SINGLE = {
    "imagenet_train": recipes.imagenet_train,
    "imagenet_eval": recipes.imagenet_eval,
    "deit": recipes.deit,
    "clip_train": recipes.clip_train,
    "clip_eval": recipes.clip_eval,
}


def first(source, images, **settings):
    return Loader(source, images, batch_size=16, **settings).peek()


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("layout", ["nchw-f32", "nhwc-u8"])
def test_a_recipe_of_one_image_has_its_size_and_layout(name, layout, many):
    image = SINGLE[name](40, layout=layout)
    assert isinstance(image, fields.Image)
    found = first(many, {"image": image})["image"]
    assert found.shape == ((16, 3, 40, 40) if layout == "nchw-f32" else (16, 40, 40, 3))
    assert found.dtype == ("float32" if layout == "nchw-f32" else "uint8")
    assert numpy.isfinite(found).all() and found.std() > 0


def test_imagenet_recipes_equal_the_image_loader(many):
    for train, image in ((True, recipes.imagenet_train(32)), (False, recipes.imagenet_eval(32, covering=36))):
        loader = spdl_rs.ImageLoader(
            many, batch_size=16, size=32, train=train, shuffle=False, layout="nchw-f32", seed=5
        )
        expected, _ = loader.peek()
        found = first(many, {"image": image}, seed=5)["image"]
        if train:
            assert (found == expected).all()
        else:
            # The loader covers 32 / 0.875 pixels, which is not a whole number.
            assert numpy.abs(found - expected).mean() < 0.2


def test_clip_images_are_normalised_with_its_constants(tmp_path):
    colour = numpy.array([200, 100, 50], "u1")
    write_png(str(tmp_path / "a.png"), numpy.broadcast_to(colour, (50, 60, 3)).copy())
    expected = (colour / 255 - recipes._CLIP["mean"]) / recipes._CLIP["std"]
    for image in (recipes.clip_train(24), recipes.clip_eval(24)):
        found = first(tmp_path, {"image": image})["image"][0]
        assert numpy.allclose(found, expected.reshape(3, 1, 1), atol=1e-5)


def test_views_of_simclr_are_independent(many):
    batch = first(many, recipes.simclr(32, views=3))
    assert list(batch) == ["view0", "view1", "view2"]
    one, two, three = batch.values()
    assert not (one == two).all() and not (two == three).all() and one.shape == (16, 3, 32, 32)
    again = first(many, recipes.simclr(32, views=3))
    assert all((batch[name] == again[name]).all() for name in batch)


def test_dino_has_two_large_and_several_small_crops(many):
    batch = first(many, recipes.dino(48, local_size=24, local_crops=3))
    assert [value.shape[-1] for value in batch.values()] == [48, 48, 24, 24, 24]
    assert list(batch) == ["global0", "global1", "local0", "local1", "local2"]
    assert not (batch["global0"] == batch["global1"]).all()
    assert not (batch["local0"] == batch["local1"]).all()
    assert len(recipes.dino()) == 10


def test_deit_uses_rand_augment_of_timm():
    policy, erasing = recipes.deit(32).augment
    assert policy == TimmRandAugment(2, 9, 0.5, increasing=True, fill=(124, 116, 104))
    (by_name,) = recipes.deit(32, augment="rand-m9-mstd0.5-inc1").augment
    assert dataclasses.replace(policy, fill=by_name.fill) == by_name
    assert erasing.p == 0.25


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A shard of images of 80 × 60 pixels, with masks whose number is that of the column, and a box each."""
    folder = tmp_path_factory.mktemp("tasks")
    columns = numpy.broadcast_to(numpy.arange(80, dtype="u1"), (60, 80)).copy()
    members = []
    for number in range(16):
        # The red level of each pixel is that of its mask.
        pixels = numpy.full((60, 80, 3), 50, "u1")
        pixels[:, :, 0] = columns * 3
        write_png(str(folder / "image.png"), pixels)
        document = {"objects": {"boxes": [[10, 20, 30, 15], [60, 0, 20, 60]], "classes": [number, 99]}}
        members += [
            (f"{number:02}.png", (folder / "image.png").read_bytes()),
            (f"{number:02}.seg.png", grey_png(columns)),
            (f"{number:02}.json", json.dumps(document).encode()),
        ]
    write_members(folder / "tasks.tar", members)
    return folder / "tasks.tar"


def test_coco_detection_pads_and_flips_images_with_their_boxes(tasks):
    recipe = recipes.coco_detection(
        (40, 80), document="json", boxes="objects.boxes", classes="objects.classes", layout="nhwc-u8"
    )
    batch = first(tasks, recipe)
    assert [classes.tolist() for classes in batch["classes"]] == [[number, 99] for number in range(16)]
    flips = 0
    # The image becomes 53 × 40 pixels in columns 13 to 65, by a factor of 53 / 80 across.
    for image, boxes in zip(batch["image"], batch["boxes"]):
        assert (image[:, [0, 12, 67, 79]] == (124, 116, 104)).all()
        is_flipped = image[0, 20, 0] > image[0, 60, 0]
        flips += is_flipped
        left, top, width, height = boxes[0]
        expected = 80 - 13 - 40 * 53 / 80 if is_flipped else 13 + 10 * 53 / 80
        assert numpy.allclose([left, top], [expected, 20 * 2 / 3], atol=1e-3)
        assert numpy.allclose([width, height], [30 * 53 / 80, 10], atol=1e-3)
    assert 0 < flips < 16
    still = first(tasks, recipes.coco_detection(40, document="json", boxes="objects.boxes", classes="objects.classes", horizontal_flip=0))
    assert numpy.allclose(still["boxes"][0], still["boxes"][1])
    assert still["image"].shape == (16, 3, 40, 40) and abs(still["image"][:, :, 0]).max() < 0.02


def test_coco_detection_with_images_of_different_sizes(tasks):
    recipe = recipes.coco_detection(
        document="json",
        boxes="objects.boxes",
        classes="objects.classes",
        crop=Resize(30, longest=36),
        horizontal_flip=0,
    )
    batch = first(tasks, recipe)
    assert [image.shape for image in batch["image"]] == [(3, 27, 36)] * 16
    assert numpy.allclose(batch["boxes"][3][0], [4.5, 9, 13.5, 6.75], atol=1e-4)


def test_ade20k_moves_masks_with_their_images(tasks):
    recipe = recipes.ade20k(48, layout="nhwc-u8")
    assert recipe["image"].crop == RandomScaledCrop((24, 96), (124, 116, 104))
    assert len(recipe["image"].augment) == 4
    recipe["image"] = dataclasses.replace(recipe["image"], augment=(), filter="nearest", exact=True)
    batch = first(tasks, recipe)
    image, mask = batch["image"].astype(int), batch["mask"]
    assert mask.shape == (16, 48, 48) and mask.dtype == "int64"
    outside = mask == 255
    assert (image[outside] == (124, 116, 104)).all()
    # At positions between two pixels, rounding decides.
    differences = abs(image[~outside][:, 0] - 3 * mask[~outside])
    assert differences.max() <= 3 and (differences > 0).mean() < 0.05
    assert 0 < outside.sum() < outside.size / 2
    # Columns of images of different scales, some of them flipped.
    steps = {abs(int(row[-1]) - int(row[0])) for row in mask[:, 24] if 255 not in row}
    assert len(steps) > 3
    different = first(tasks, recipes.ade20k(48, layout="nhwc-u8"))
    assert (different["mask"] == mask).all() and (different["image"] != image).any()


def test_settings_replace_those_of_the_recipe():
    image = recipes.imagenet_train(64, augment=RandAugment(), stored_as="webp", layout="nhwc-u8")
    assert (image.augment, image.stored_as) == ((RandAugment(),), "webp")
    assert recipes.imagenet_eval(covering=300).crop == ResizedCenterCrop(300)
    assert all(one.stored_as == "png" for one in recipes.dino(stored_as="png").values())
    with pytest.raises(TypeError, match="colour"):
        recipes.deit(colour="grey")
