"""Recipes: shapes, parameters, and equality with what they describe."""

import dataclasses
import json

import numpy
import pytest
import spdl_rs
from conftest import write_png
from dataset_files import write_members
from spdl_rs import Loader, fields, recipes
from spdl_rs.io import (
    CenterCrop,
    Letterbox,
    RandAugment,
    RandomIoUCrop,
    RandomScaledCrop,
    RandomZoomOut,
    Resize,
    ResizedCenterCrop,
    Stretch,
    TimmRandAugment,
)
from test_loader import copies, grey_png

SINGLE = {
    "imagenet_train": recipes.imagenet_train,
    "imagenet_eval": recipes.imagenet_eval,
    "deit": recipes.deit,
    "clip": recipes.clip,
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


# promise: PY5
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


# promise: PY5
def test_clip_images_are_normalised_with_its_constants(tmp_path):
    colour = numpy.array([200, 100, 50], "u1")
    write_png(str(tmp_path / "a.png"), numpy.broadcast_to(colour, (50, 60, 3)).copy())
    expected = (colour / 255 - recipes._CLIP["mean"]) / recipes._CLIP["std"]
    for image in (recipes.clip(24), recipes.clip_eval(24)):
        found = first(tmp_path, {"image": image})["image"][0]
        assert numpy.allclose(found, expected.reshape(3, 1, 1), atol=1e-5)


# promise: PY5
def test_views_of_simclr_are_independent(many):
    batch = first(many, recipes.simclr(32, views=3))
    assert list(batch) == ["view0", "view1", "view2"]
    one, two, three = batch.values()
    assert not (one == two).all() and not (two == three).all() and one.shape == (16, 3, 32, 32)
    again = first(many, recipes.simclr(32, views=3))
    assert all((batch[name] == again[name]).all() for name in batch)


# promise: PY5
def test_dino_has_two_large_and_several_small_crops(many):
    batch = first(many, recipes.dino(48, local_size=24, local_crops=3))
    assert [value.shape[-1] for value in batch.values()] == [48, 48, 24, 24, 24]
    assert list(batch) == ["global0", "global1", "local0", "local1", "local2"]
    assert not (batch["global0"] == batch["global1"]).all()
    assert not (batch["local0"] == batch["local1"]).all()
    assert len(recipes.dino()) == 10


# promise: PY5
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


# promise: PY5
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


def test_coco_detection_pads_boxes_and_classes(tasks):
    places = {"document": "json", "boxes": "objects.boxes", "classes": "objects.classes", "horizontal_flip": 0}
    lists = first(tasks, recipes.coco_detection(40, **places))
    batch = first(tasks, recipes.coco_detection(40, collate="pad", **places))
    boxes, sizes = batch["boxes"]
    classes, counts = batch["classes"]
    assert batch["image"].shape == (16, 3, 40, 40)
    assert sizes.shape == (16, 1) and sizes.tolist() == counts.tolist() == [[len(one)] for one in lists["boxes"]]
    for at, count in enumerate(sizes[:, 0]):
        assert (boxes[at, :count] == lists["boxes"][at]).all() and not boxes[at, count:].any()
        assert (classes[at, :count] == lists["classes"][at]).all() and (classes[at, count:] == -1).all()
    padded = recipes.coco_detection(crop=Resize(30), collate="pad")
    assert {name: one.collate for name, one in padded.items()} == dict.fromkeys(padded, "pad")
    ragged = recipes.coco_detection(crop=Resize(30), collate="ragged")
    assert [ragged[name].collate for name in ("image", "boxes", "classes")] == ["list", "ragged", "ragged"]


# promise: PY5
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


def test_subclasses_of_a_mix_may_have_other_names_and_attributes(places):
    @dataclasses.dataclass(frozen=True)
    class Often(recipes.Mosaic):
        p: float = 0.9
        note: str = "of the caller"

    assert copies(mosaics(places, mix=Often())) == copies(mosaics(places, mix=recipes.Mosaic(p=0.9)))


def test_settings_replace_those_of_the_recipe():
    image = recipes.imagenet_train(64, augment=RandAugment(), stored_as="webp", layout="nhwc-u8")
    assert (image.augment, image.stored_as) == ((RandAugment(),), "webp")
    assert recipes.imagenet_eval(covering=300).crop == ResizedCenterCrop(300)
    assert all(one.stored_as == "png" for one in recipes.dino(stored_as="png").values())
    with pytest.raises(TypeError, match="colour"):
        recipes.deit(colour="grey")


MOSAIC_SIZE = (24, 32)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A shard of 13 images of 24 × 32 pixels: number, column and row. Their masks are the columns."""
    folder = tmp_path_factory.mktemp("mosaic")
    y, x = numpy.mgrid[0:24, 0:32].astype("u1")
    files = []
    for number in range(13):
        write_png(str(folder / "image.png"), numpy.stack([numpy.full_like(x, number), x, y], axis=-1))
        boxes = [[number, 2, number + 8, 12], [0, 0, 32, 24], [20, 10, 24, 14]][: number % 4]
        classes = [10 * number + row for row in range(len(boxes))]
        files += [
            (f"{number:02}.png", (folder / "image.png").read_bytes()),
            (f"{number:02}.seg.png", grey_png(x)),
            (f"{number:02}.json", json.dumps({"boxes": boxes, "classes": classes}).encode()),
        ]
    write_members(folder / "places.tar", files)
    return folder / "places.tar"


def mosaics(source, *, layout="nhwc-u8", visible=0.0, **settings):
    def stored(at):
        return {"stored_as": "json", "at": at}

    return Loader(
        source,
        batch_size=6,
        image=fields.Image(MOSAIC_SIZE, crop=CenterCrop(), layout=layout),
        mask=fields.Mask(stored_as="seg.png", dtype="uint8"),
        boxes=fields.Boxes(min_visibility=visible, **stored("boxes")),
        classes=fields.Array(None, "int64", rows_of="boxes", **stored("classes")),
        index=fields.Index(),
        **settings,
    )


@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-u8"])
@pytest.mark.parametrize("visible", [0.0, 0.5])
def test_a_mosaic_shows_four_images_around_a_centre_with_their_boxes(places, layout, visible):
    plain = [batch for batch in mosaics(places, layout=layout, visible=visible)]
    loader = mosaics(places, layout=layout, visible=visible, mix=recipes.Mosaic(), shuffle=False)
    y, x = numpy.mgrid[0:24, 0:32]
    centres, dropped = set(), 0
    for batch, before in zip(loader, plain):
        members = set(batch["index"].tolist())
        boxes_of = {number: before["boxes"][at] for at, number in enumerate(before["index"].tolist())}
        for at, image in enumerate(batch["image"]):
            number, column, row = (image if layout == "nhwc-u8" else image.transpose(1, 2, 0)).astype(int).transpose(2, 0, 1)
            assert (batch["mask"][at] == column).all()
            # Each part is moved by one distance.
            left, top = x - column, y - row
            parts = {}
            for key in zip(number.ravel(), left.ravel(), top.ravel(), strict=True):
                parts[key] = parts.get(key, 0) + 1
            (right_of,) = {key[1] for key in parts if key[1] > 0} or {32}
            (below,) = {key[2] for key in parts if key[2] > 0} or {24}
            centres.add((right_of, below))
            assert 8 <= right_of <= 24 and 6 <= below <= 18
            quadrants = [(0, 0), (right_of, 0), (0, below), (right_of, below)]
            shown = [int(number[min(top, 23), min(left, 31)]) for left, top in quadrants]
            assert set(shown) <= members and int(batch["index"][at]) in shown
            expected = []
            for source, (start, first) in zip(shown, quadrants, strict=True):
                # The image ends or starts at the centre.
                shift = (start or right_of - 32), (first or below - 24)
                end, last = (32 if start else right_of), (24 if first else below)
                for place, (x0, y0, x1, y1) in enumerate(boxes_of[source].tolist()):
                    x0, x1 = x0 + shift[0], x1 + shift[0]
                    y0, y1 = y0 + shift[1], y1 + shift[1]
                    whole = (x1 - x0) * (y1 - y0)
                    x0, x1 = max(x0, start), min(x1, end)
                    y0, y1 = max(y0, first), min(y1, last)
                    area = max(x1 - x0, 0) * max(y1 - y0, 0)
                    if area > 0 and area >= visible * whole:
                        expected.append(([x0, y0, x1, y1], 10 * source + place))
                    else:
                        dropped += 1
            assert batch["boxes"][at].tolist() == [box for box, _ in expected]
            assert batch["classes"][at].tolist() == [one for _, one in expected]
            assert batch["boxes"][at].shape == (len(expected), 4)
    assert len(centres) > 6 and dropped > 10


def test_mosaics_depend_on_the_batch_only_and_resume(places):
    def make(threads=1, **settings):
        return mosaics(places, mix=recipes.Mosaic(p=0.5), shuffle=True, seed=3, threads=threads, **settings)

    expected = copies(make())
    assert copies(make(threads=4)) == expected
    other = make()
    other.set_epoch(1)
    assert copies(other) != expected
    for taken in range(1, 3):
        loader = make()
        with iter(loader) as batches:
            found = copies([next(batches) for _ in range(taken)])
            state = loader.state_dict()
        again = make(threads=3)
        again.load_state_dict(state)
        assert found + copies(again) == expected
    with pytest.raises(spdl_rs.InvalidArgumentError, match="mix"):
        mosaics(places, mix=recipes.Mosaic(p=0.6), shuffle=True, seed=3).load_state_dict(state)


def test_the_probability_and_the_centre_of_mosaics(places):
    def share(**settings):
        return [
            len(set(image[:, :, 0].ravel().tolist())) > 1
            for epoch in range(12)
            for batch in at_epoch(mosaics(places, mix=recipes.Mosaic(**settings)), epoch)
            for image in batch["image"]
        ]

    def at_epoch(loader, epoch):
        loader.set_epoch(epoch)
        return loader

    # A batch of one image has no other.
    assert not any(share(p=0.0)) and sum(share()) == 12 * 12
    assert 40 <= sum(share(p=0.5)) <= 104
    # At a corner, one image is shown whole.
    assert not any(share(center=(0, 0)))
    with pytest.raises(ValueError, match="center must be two fractions that ascend"):
        recipes.Mosaic(center=(0.6, 0.4))
    with pytest.raises(ValueError, match="p must be 0 to 1"):
        recipes.Mosaic(p=2)


@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-u8"])
@pytest.mark.parametrize("visible", [0.0, 0.9])
def test_copy_paste_pastes_boxes_of_one_other_image(places, layout, visible):
    plain = list(mosaics(places, layout=layout, visible=visible))
    loader = mosaics(places, layout=layout, visible=visible, mix=recipes.CopyPaste(), shuffle=False)
    batches = [pair for _ in range(5) for pair in zip(loader, plain, strict=True)]
    y, x = numpy.mgrid[0:24, 0:32]
    pasted, shrunk, dropped = set(), [0, 0], 0
    for batch, before in batches:
        boxes_of = {number: before["boxes"][at].tolist() for at, number in enumerate(before["index"].tolist())}
        for at, image in enumerate(batch["image"]):
            number, column, row = image if layout == "nchw-u8" else image.transpose(2, 0, 1)
            own = int(batch["index"][at])
            # All pixels keep their places.
            assert (column == x).all() and (row == y).all() and (batch["mask"][at] == x).all()
            classes, boxes = batch["classes"][at].tolist(), batch["boxes"][at].tolist()
            (other,) = set(number.ravel().tolist()) - {own} or {own}
            covered = (number == other) & (other != own)
            expected, drawn = [], numpy.zeros((24, 32), bool)
            for source in [own, other] if other != own else [own]:
                for place, (left, top, right, bottom) in enumerate(boxes_of[source]):
                    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
                    seen = inside & (covered if source == other != own else ~covered)
                    if seen.sum() == 0 or seen.sum() < visible * inside.sum():
                        dropped += 1
                        continue
                    rows, columns = numpy.nonzero(seen)
                    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                    is_whole = box == [left, top, right, bottom]
                    shrunk[source == own] += not is_whole
                    expected.append((10 * source + place, box))
                    if source != own and (seen == inside).all():
                        pasted.add((other, place))
                        drawn |= inside
            # Only whole objects are pasted.
            assert (drawn == covered).all()
            assert list(zip(classes, boxes, strict=True)) == expected
    # Boxes of the other image that were not drawn are visible too.
    assert len(pasted) > 3 and dropped > 2 and (visible > 0 or min(shrunk) > 0)


def test_copy_paste_depends_on_the_batch_only_and_resumes(places):
    def make(threads=1, **settings):
        mix = recipes.CopyPaste(p=0.7, share=0.6)
        return mosaics(places, mix=mix, shuffle=True, seed=3, threads=threads, **settings)

    expected = copies(make())
    assert copies(make(threads=4)) == expected
    loader = make()
    with iter(loader) as batches:
        found = copies([next(batches)])
        state = loader.state_dict()
    again = make(threads=3)
    again.load_state_dict(state)
    assert found + copies(again) == expected
    with pytest.raises(spdl_rs.InvalidArgumentError, match="mix"):
        mosaics(places, mix=recipes.CopyPaste(p=0.7), shuffle=True, seed=3).load_state_dict(state)


def test_the_probability_and_the_share_of_copy_paste(places):
    def pasted(epochs=12, **settings):
        total = 0
        for epoch in range(epochs):
            loader = mosaics(places, mix=recipes.CopyPaste(**settings))
            loader.set_epoch(epoch)
            for batch in loader:
                owns = zip(batch["classes"], batch["index"].tolist(), strict=True)
                total += sum(one // 10 != own for classes, own in owns for one in classes.tolist())
        return total

    assert pasted(p=0.0) == pasted(share=0.0) == 0
    # 156 images have 1.4 boxes on average.
    assert 0.7 * 216 <= pasted(share=1.0) <= 1.3 * 216
    # Some boxes that were not drawn are visible in others.
    assert 0.4 * 216 <= pasted(p=0.8, share=0.5) <= 0.75 * 216
    with pytest.raises(ValueError, match="share must be 0 to 1, not 2"):
        recipes.CopyPaste(share=2)


def test_what_cannot_follow_copy_paste_is_refused(places):
    def refused(message, **more):
        with pytest.raises(spdl_rs.UnsupportedError, match=message):
            Loader(places, {"image": fields.Image(32), **more}, batch_size=2, mix=recipes.CopyPaste())

    stored = {"stored_as": "json", "at": "boxes"}
    refused("Copy-Paste needs one field of boxes that follow .image.; there are 0")
    refused("there are 2", a=fields.Boxes(**stored), b=fields.Boxes(**stored))
    refused('field "points": key points cannot follow', points=fields.KeyPoints((3, 2), stored_as="json"))
    padded = fields.Boxes(**stored, collate="pad")
    refused('field "boxes": Copy-Paste needs lists of boxes and of their rows', boxes=padded)


def test_what_cannot_follow_a_mosaic_is_refused(places):
    def refused(message, kind=spdl_rs.UnsupportedError, **more):
        settings = {"image": fields.Image(32), **more}
        with pytest.raises(kind, match=message):
            Loader(places, settings, batch_size=2, mix=recipes.Mosaic())

    boxes = fields.Boxes(stored_as="json", at="boxes", collate="pad")
    refused('field "boxes": a mosaic needs lists of boxes', boxes=boxes)
    refused('field "points": key points cannot follow', points=fields.KeyPoints((3, 2), stored_as="json"))
    refused('field "map": the result of a mosaic has no geometry', map=fields.Geometry())
    for collate in ("list", "pad"):
        image = fields.Image(crop=Resize(20), collate=collate)
        refused("needs images of one size; choose another crop for", ValueError, image=image)
    refused('field "image" is not an image of one crop', spdl_rs.InvalidArgumentError, image=fields.Text())


def boxes_of(number, count=3):
    """Boxes of an image of 80 × 60 pixels."""
    draw = numpy.random.default_rng(number)
    start = draw.uniform((0, 0), (60, 40), (count, 2))
    return numpy.concatenate([start, start + draw.uniform(8, 20, (count, 2))], axis=1)


@pytest.fixture(scope="module")
def located(tmp_path_factory):
    """Images of 80 × 60 pixels whose red level is 3 times the column and whose green level is 4 times the row."""
    folder = tmp_path_factory.mktemp("located")
    pixels = numpy.full((60, 80, 3), 250, "u1")
    pixels[:, :, 0] = 3 * numpy.arange(80)
    pixels[:, :, 1] = 4 * numpy.arange(60)[:, None]
    write_png(str(folder / "image.png"), pixels)
    file = (folder / "image.png").read_bytes()
    mask = grey_png(numpy.full((60, 80), 7, "u1"))
    return [
        {
            "image": file,
            "mask": mask,
            "boxes": boxes_of(number).tolist(),
            "classes": [0, 1, 2],
            "points": [[[1.0, 2.0, 2.0], [79.0, 59.0, 2.0]]] * 3,
        }
        for number in range(48)
    ]


def placed(batch, number, boxes):
    """The boxes at the place that the geometry of a sample has for them, clipped to its image."""
    matrix = batch["geometry"][number]
    corners = numpy.stack([boxes[:, [0, 2]], boxes[:, [1, 3]]], axis=-1) @ matrix[:, :2].T + matrix[:, 2]
    return numpy.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


# promise: PY5
@pytest.mark.parametrize("crop", [Stretch(), Letterbox(9), Resize(48)], ids=["stretch", "letterbox", "resize"])
def test_boxes_masks_and_points_follow_a_zoom_out_and_a_crop_by_boxes(located, crop):
    size = () if isinstance(crop, Resize) else ((48, 64),)
    image = fields.Image(
        *size,
        crop=crop,
        horizontal_flip=0.5,
        zoom_out=RandomZoomOut(9, side_range=(1.5, 3)),
        iou_crop=RandomIoUCrop(),
        filter="nearest",
    )
    settings = {
        "mask": fields.Mask(outside=255),
        "boxes": fields.Boxes(),
        "classes": fields.Array(None, "int64", rows_of="boxes"),
        "points": fields.KeyPoints((None, 2, 3), rows_of="boxes"),
        "geometry": fields.Geometry(),
    }
    loader = Loader(located, batch_size=48, seed=2, image=image, **settings)
    batch = loader.peek()
    zoomed = cropped = kept_all = 0
    for number in range(48):
        pixels, mask, matrix = batch["image"][number], batch["mask"][number], batch["geometry"][number]
        height, width = mask.shape
        # The pixels of the canvas have its colour and the number outside, and all others the content at their place.
        on_canvas = mask == 255
        assert ((pixels == 9).all(axis=-1) == on_canvas).all() and (mask[~on_canvas] == 7).all()
        rows, columns = numpy.nonzero(~on_canvas)
        centres = numpy.stack([columns + 0.5, rows + 0.5], axis=1) - matrix[:, 2]
        x, y = (centres @ numpy.linalg.inv(matrix[:, :2].astype("f8")).T).T
        assert (numpy.abs(pixels[rows, columns, 0] / 3 + 0.5 - x) < 0.51).all()
        assert (numpy.abs(pixels[rows, columns, 1] / 4 + 0.5 - y) < 0.51).all()
        # Boxes have the place of their content, and their classes.
        moved, classes = placed(batch, number, boxes_of(number)), batch["classes"][number]
        found, points = batch["boxes"][number], batch["points"][number]
        assert len(found) == len(classes) == len(points) > 0
        inside = numpy.clip(moved[classes], 0, [width, height, width, height])
        if isinstance(crop, Letterbox):
            # Boxes are clipped to the part, which is smaller than the sample.
            grown = (found - inside) * [1, 1, -1, -1]
            assert grown.min() > -1e-3 and (numpy.abs(grown) < 1e-3).mean() > 0.5
        else:
            assert numpy.abs(inside - found).max() < 1e-3
        centre = (moved[:, :2] + moved[:, 2:]) / 2
        is_shown = ((centre > 0) & (centre < [width, height])).all(axis=1)
        shown = ((points[..., :2] >= 0) & (points[..., :2] <= [width, height])).all(axis=-1)
        if isinstance(crop, Letterbox):
            assert set(classes) <= set(numpy.nonzero(is_shown)[0]) and not (points[..., 2] > shown * 2).any()
        else:
            assert ((points[..., 2] > 0) == shown).all()
            assert (classes == numpy.nonzero(is_shown)[0]).all()
        zoomed += bool(on_canvas.any())
        cropped += len(classes) < 3
        kept_all += len(classes) == 3
    assert min(zoomed, cropped, kept_all) >= 8
    again = Loader(located, batch_size=48, seed=2, image=image, **settings).peek()
    assert all((a == b).all() for a, b in zip(batch["image"], again["image"], strict=True))


# promise: PY5
def test_ssd_detection_zooms_out_and_crops_by_boxes(located):
    recipe = recipes.ssd_detection(64)
    image = recipe["image"]
    assert image.crop == Stretch() and image.iou_crop == RandomIoUCrop() and image.horizontal_flip == 0.5
    assert image.zoom_out == RandomZoomOut((124, 116, 104)) and len(image.augment) == 4
    batch = first(located, recipe)
    assert batch["image"].shape == (16, 3, 64, 64) and {len(boxes) for boxes in batch["boxes"]} > {3}
    plain = recipes.ssd_detection(64, zoom_out=None, iou_crop=None, augment=(), horizontal_flip=0)
    assert {len(boxes) for boxes in first(located, plain)["boxes"]} == {3}


def test_boxes_that_are_dropped_do_not_choose_a_crop(located):
    crowd = [[0, 0, 1] for _ in located]
    samples = [{**sample, "crowd": flags} for sample, flags in zip(located, crowd, strict=True)]
    image = fields.Image(32, crop=Stretch(), iou_crop=RandomIoUCrop(max_scale=0.4, sampler_options=[0]))
    boxes = fields.Boxes(drop_where="crowd")
    batch = Loader(samples, batch_size=48, image=image, boxes=boxes).peek()
    # Each part has the centre of a box that is kept.
    assert min(len(found) for found in batch["boxes"]) == 1
    without = [{**sample, "boxes": [], "crowd": []} for sample in located]
    (batch,) = Loader(without, batch_size=48, image=image, boxes=boxes, geometry=fields.Geometry())
    assert (batch["geometry"] == batch["geometry"][0]).all() and not any(map(len, batch["boxes"]))


def test_the_parameters_of_a_zoom_out_and_a_crop_by_boxes_belong_to_the_state(located):
    def loader(**settings):
        image = fields.Image(32, crop=Stretch(), **settings)
        return Loader(located, batch_size=8, image=image, boxes=fields.Boxes())

    state = loader(zoom_out=RandomZoomOut(), iou_crop=RandomIoUCrop()).state_dict()
    loader(zoom_out=RandomZoomOut(), iou_crop=RandomIoUCrop()).load_state_dict(state)
    for other in (
        {"zoom_out": RandomZoomOut(p=0.25), "iou_crop": RandomIoUCrop()},
        {"zoom_out": RandomZoomOut(), "iou_crop": RandomIoUCrop(trials=41)},
        {"iou_crop": RandomIoUCrop()},
    ):
        with pytest.raises(ValueError, match="image: changed"):
            loader(**other).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RandomZoomOut(side_range=(0.5, 2)), ValueError, "side_range must be 1 to 100"),
        (lambda: RandomZoomOut(p=2), ValueError, "p must be 0 to 1"),
        (lambda: RandomZoomOut("red"), TypeError, "fill"),
        (lambda: RandomIoUCrop(min_scale=0), ValueError, "min_scale and max_scale"),
        (lambda: RandomIoUCrop(max_scale=1.5), ValueError, "min_scale and max_scale"),
        (lambda: RandomIoUCrop(min_aspect_ratio=3), ValueError, "min_aspect_ratio and max_aspect_ratio"),
        (lambda: RandomIoUCrop(sampler_options=[]), ValueError, "sampler_options"),
        (lambda: RandomIoUCrop(sampler_options=[-1]), ValueError, "sampler_options"),
        (lambda: RandomIoUCrop(trials=0), ValueError, "trials"),
        (lambda: fields.Image(zoom_out=RandomZoomOut()), ValueError, r"zoom_out needs crop=Stretch\(\)"),
        (lambda: fields.Image(train=True, iou_crop=RandomIoUCrop()), ValueError, r"iou_crop needs crop=Stretch\(\)"),
        (lambda: fields.Image(crop=Stretch(), zoom_out=RandomIoUCrop()), TypeError, "zoom_out must be a RandomZoomOut"),
        (lambda: fields.Image(crop=Stretch(), zoom_out="randaugment(2, 9)"), ValueError, "expected RandomZoomOut"),
        (lambda: fields.Image(augment=[RandomZoomOut()]), TypeError, "pass it as zoom_out= of fields.Image"),
        (lambda: fields.Image(augment=RandomIoUCrop()), TypeError, "pass it as iou_crop= of fields.Image"),
        (lambda: fields.Image(crop=Letterbox(9), zoom_out=RandomZoomOut()), ValueError, "zoom_out and crop must have the same fill"),
        (
            lambda: Loader("x", batch_size=1, image=fields.Image(crop=Stretch(), iou_crop=RandomIoUCrop())),
            ValueError,
            'field "image": an IoU crop needs a field of boxes',
        ),
    ],
)
def test_invalid_canvases_are_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_zoom_out_and_a_crop_by_boxes_are_text_or_objects():
    text = fields.Image(crop=Stretch(), zoom_out="randomzoomout(9, (1, 2), p=1)", iou_crop="RandomIoUCrop(min_scale=0.5)")
    objects = {"zoom_out": RandomZoomOut(9, (1, 2), 1), "iou_crop": RandomIoUCrop(min_scale=0.5)}
    assert text == fields.Image(crop=Stretch(), **objects)


def test_a_mask_on_a_canvas_without_a_number_is_a_warning(located):
    image = fields.Image(32, crop=Stretch(), zoom_out=RandomZoomOut())
    with pytest.warns(spdl_rs.DatasetWarning, match="RandomZoomOut may pad the image"):
        Loader(located, batch_size=1, image=image, mask=fields.Mask())
