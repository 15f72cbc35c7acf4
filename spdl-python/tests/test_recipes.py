"""Recipes: shapes, parameters, and equality with what they describe."""

import dataclasses

import numpy
import pytest
import spdl_rs
from conftest import write_png
from spdl_rs import Loader, fields, recipes
from spdl_rs.io import RandAugment, ResizedCenterCrop, TimmRandAugment

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


def test_settings_replace_those_of_the_recipe():
    image = recipes.imagenet_train(64, augment=RandAugment(), stored_as="webp", layout="nhwc-u8")
    assert (image.augment, image.stored_as) == ((RandAugment(),), "webp")
    assert recipes.imagenet_eval(covering=300).crop == ResizedCenterCrop(300)
    assert all(one.stored_as == "png" for one in recipes.dino(stored_as="png").values())
    with pytest.raises(TypeError, match="colour"):
        recipes.deit(colour="grey")
