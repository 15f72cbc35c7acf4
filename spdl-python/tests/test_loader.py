"""`Loader`: fields of samples as batches, their errors, and resume."""

import dataclasses
import inspect
import io
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import warnings
import xml.etree.ElementTree
import zlib
from typing import Any

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from dataset_files import write_members
from spdl_rs import Loader, _functions, fields, recipes, sources
from spdl_rs.io import (
    AspectBuckets,
    AugMix,
    CenterCrop,
    FiveCrop,
    Letterbox,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    TenCrop,
)
from spdl_rs.sequences import SameSize

SAMPLES = 23


def grey_png(pixels):
    """A grey PNG, by the standard library."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def document(number):
    boxes = [[number, 10, 20, 30], [5, 6, 7, 8], [70, 50, 10, 10]][: number % 4]
    return {
        "caption": f"Nummer {number} – ü",
        "boxes": boxes,
        "classes": [number * 10 + row for row in range(len(boxes))],
        "size": {"sides": [60, 80]},
        "score": number / 3,
    }


def array(number):
    return numpy.arange(6, dtype="f8").reshape(2, 3) * number


def members(number, folder):
    image = folder / "image.png"
    write_png(image, picture(number))
    file = io.BytesIO()
    numpy.save(file, array(number))
    name = f"{number:03}"
    return [
        (f"{name}.png", image.read_bytes()),
        (f"{name}.seg.png", grey_png(numpy.full((60, 80), number, "u1"))),
        (f"{name}.json", json.dumps(document(number)).encode()),
        (f"{name}.npy", file.getvalue()),
        (f"{name}.txt", f"text {number}".encode()),
        (f"{name}.cls", str(number % 3).encode()),
    ]


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    path = folder / "shard.tar"
    write_members(path, [one for number in range(SAMPLES) for one in members(number, folder)])
    return path


def from_json(kind, at, *arguments, **settings):
    return kind(*arguments, stored_as="json", at=at, **settings)


def all_fields():
    return {
        "image": fields.Image((30, 40), train=True),
        "other": fields.Image(16, train=True, layout="nchw-f32", view=1, augment=RandomInvert(0.5)),
        "mask": fields.Mask(stored_as="seg.png", outside=255),
        "boxes": from_json(fields.Boxes, "boxes", format="xywh"),
        "classes": from_json(fields.Array, "classes", None, "int64", rows_of="boxes"),
        "caption": from_json(fields.Text, "caption"),
        "score": from_json(fields.Number, "score"),
        "array": fields.Array((2, 3), stored_as="npy"),
        "text": fields.Text(stored_as="txt"),
        "meta": fields.Json(stored_as="json"),
        "label": fields.Label(),
        "key": fields.Key(),
        "index": fields.Index(),
    }


def frozen(value):
    """A value that compares with `==`."""
    if isinstance(value, numpy.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [frozen(one) for one in value]
    return value


def copies(batches):
    return [{name: frozen(value) for name, value in batch.items()} for batch in batches]


def delivered_by_ranks(loader_of):
    """The batches of three ranks, which two ranks continue after the first batch of each."""

    def of_rank(rank, world_size):
        return loader_of(rank=rank, world_size=world_size, shuffle=True, seed=1, remainder="uneven")

    parts = [of_rank(rank, 3) for rank in range(3)]
    iterators = [iter(loader) for loader in parts]
    delivered = [next(batches) for batches in iterators]
    combined = Loader.combine_states([loader.state_dict() for loader in parts])
    for rank in range(2):
        loader = of_rank(rank, 2)
        loader.load_state_dict(combined)
        delivered += list(loader)
    return delivered


# promise: PY4
def test_each_field_has_the_values_of_its_samples(shard):
    whole = fields.Image((60, 80), crop=CenterCrop())
    loader = Loader(
        shard,
        {**all_fields(), "image": whole},
        batch_size=10,
        ragged=from_json(fields.Array, "classes", None, "int64", collate="ragged"),
        padded=from_json(fields.Array, "boxes", (None, 4), collate="pad"),
        raw=fields.Bytes(stored_as="txt"),
        sides=from_json(fields.Array, "size.sides", 2, "int64"),
    )
    assert (len(loader), list(loader.fields)[:2]) == (3, ["image", "other"])
    start = 0
    for batch in loader:
        numbers = range(start, start + len(batch["key"]))
        start = numbers.stop
        documents = [document(number) for number in numbers]
        assert [key.rpartition(":")[2] for key in batch["key"]] == [f"{it:03}" for it in numbers]
        assert batch["index"].tolist() == list(numbers)
        assert batch["label"].tolist() == [number % 3 for number in numbers]
        assert batch["text"] == [f"text {number}" for number in numbers]
        assert batch["raw"] == [f"text {number}".encode() for number in numbers]
        assert batch["meta"] == documents
        assert [list(one) for one in batch["meta"]] == [list(one) for one in documents]
        assert batch["caption"] == [one["caption"] for one in documents]
        assert batch["sides"].tolist() == [[60, 80]] * len(numbers)
        scores = numpy.array([one["score"] for one in documents], "f4")
        assert (batch["score"] == scores).all() and batch["score"].dtype == "f4"
        assert (batch["array"] == numpy.stack([array(it) for it in numbers])).all()
        assert batch["array"].dtype == "f4"
        # The whole image is the sample, so that positions do not change.
        assert [one.tolist() for one in batch["boxes"]] == [one["boxes"] for one in documents]
        assert [one.tolist() for one in batch["classes"]] == [one["classes"] for one in documents]
        assert (batch["mask"] == numpy.array(numbers).reshape(-1, 1, 1)).all()
        assert batch["mask"].shape[1:] == (60, 80)
        pixels = numpy.stack([picture(number) for number in numbers])
        assert (batch["image"] == pixels).all()
        values, offsets = batch["ragged"]
        split = numpy.split(values, offsets[1:-1])
        assert [one.tolist() for one in split] == [one["classes"] for one in documents]
        assert isinstance(batch["ragged"], fields.Ragged)
        values, sizes = batch["padded"]
        assert sizes.tolist() == [[len(one["boxes"])] for one in documents]
        for found, size, one in zip(values, sizes[:, 0], documents):
            assert found[:size].tolist() == one["boxes"] and not found[size:].any()
    assert start == SAMPLES


# promise: PY4
def test_boxes_classes_and_masks_follow_the_image(shard):
    # Height and width are halved, and the image is flipped.
    image = fields.Image((40, 40), crop=Letterbox(), horizontal_flip=1.0)
    loader = Loader(
        shard,
        batch_size=SAMPLES,
        image=image,
        mask=fields.Mask(stored_as="seg.png", outside=255),
        boxes=from_json(fields.Boxes, "boxes", format="xywh", min_area=30),
        classes=from_json(fields.Array, "classes", None, "int64", rows_of="boxes"),
    )
    (batch,) = loader
    for number, (boxes, classes) in enumerate(zip(batch["boxes"], batch["classes"])):
        stored = document(number)
        # The box of 7 × 8 pixels has an area of 14 in the sample, and those of 100 one of 25.
        assert classes.tolist() == stored["classes"][:1]
        expected = [[40 - (x + w) / 2, 5 + y / 2, w / 2, h / 2] for x, y, w, h in stored["boxes"][:1]]
        assert numpy.allclose(boxes, numpy.array(expected).reshape(-1, 4), atol=1e-4)
    assert (batch["mask"][:, :5] == 255).all() and (batch["mask"][7, 5:35] == 7).all()


def png_of_depths(pixels):
    """A grey PNG of 16 bits."""
    deep = grey_png(numpy.ascontiguousarray(pixels, ">u2").view("u1"))
    # Half as many columns, of 16 bits, with another checksum.
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 0, 0, 0, 0)
    return deep[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + deep[33:]


# promise: PY4
def test_a_depth_map_follows_the_image(tmp_path):
    depths = numpy.arange(60 * 80, dtype="u2").reshape(60, 80) * 13
    write_png(str(tmp_path / "image.png"), picture(1))
    files = [("a.png", (tmp_path / "image.png").read_bytes()), ("a.depth.png", png_of_depths(depths))]
    write_members(tmp_path / "a.tar", files)
    image = fields.Image((62, 80), crop=CenterCrop(), horizontal_flip=1.0)
    depth = {"like": "image", "stored_as": "depth.png", "outside": 7}
    batch = Loader(
        tmp_path / "a.tar",
        batch_size=1,
        image=image,
        depth=fields.Depth(**depth, scale=0.25),
        raw=fields.Depth(**depth, dtype="uint16"),
        mask=fields.Mask(**depth, dtype="int32"),
    ).peek()
    expected = numpy.full((62, 80), 7, "u2")
    expected[1:-1] = depths[:, ::-1]
    assert batch["raw"].dtype == "uint16" and (batch["raw"][0] == expected).all()
    assert batch["depth"].dtype == "float32" and (batch["depth"][0] == expected * 0.25).all()
    assert batch["mask"].dtype == "int32" and (batch["mask"][0] == expected).all()
    with pytest.raises(spdl_rs.SpdlError, match="exceeds the range of uint8"):
        Loader(
            tmp_path / "a.tar",
            batch_size=1,
            image=image,
            mask=fields.Mask(stored_as="depth.png", dtype="uint8"),
        ).peek()


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """A shard of images of 20 sizes, with masks of their grey levels."""
    folder = tmp_path_factory.mktemp("sizes")
    files = []
    for number in range(20):
        grey = numpy.random.default_rng(number).integers(1, 200, (20 + number, 50 - number), "u1")
        write_png(str(folder / "image.png"), numpy.repeat(grey[:, :, None], 3, axis=2))
        files += [
            (f"{number:02}.png", (folder / "image.png").read_bytes()),
            (f"{number:02}.seg.png", grey_png(grey)),
            (f"{number:02}.json", b'{"boxes": [[0, 0, 10, 20]]}'),
        ]
    write_members(folder / "sizes.tar", files)
    return folder / "sizes.tar"


def of_any_size(**settings):
    image = fields.Image(crop=Resize(), horizontal_flip=0.5, **settings)
    mask = fields.Mask(stored_as="seg.png", dtype="uint8")
    return {"image": image, "mask": mask, "boxes": from_json(fields.Boxes, "boxes", format="xywh")}


def test_images_of_different_sizes_are_a_list_with_their_masks(sizes):
    flips = 0
    for start, batch in enumerate(Loader(sizes, of_any_size(exact=True), batch_size=8)):
        for number, (image, mask, boxes) in enumerate(zip(*batch.values()), 8 * start):
            assert image.shape == (20 + number, 50 - number, 3) and mask.shape == image.shape[:2]
            assert (image == mask[:, :, None]).all()
            flips += boxes[0, 0] > 0
    assert 0 < flips < 20


def test_images_of_different_sizes_are_padded_with_their_masks(sizes):
    settings = of_any_size(exact=True, collate="pad", layout="nchw-u8")
    batch = Loader(sizes, settings, batch_size=8).peek()
    (images, sides), (masks, of_masks) = batch["image"], batch["mask"]
    assert images.shape == (8, 3, 27, 50) and masks.shape == (8, 27, 50)
    assert sides.tolist() == of_masks.tolist() == [[20 + number, 50 - number] for number in range(8)]
    assert (images == masks[:, None]).all() and not masks[0, 20:].any() and not masks[7, :, 43:].any()
    # The number outside the image is the padding of masks and depth maps.
    settings["mask"] = fields.Mask(stored_as="seg.png", outside=255)
    settings["depth"] = fields.Depth(stored_as="seg.png", outside=10, scale=0.5)
    batch = Loader(sizes, settings, batch_size=8).peek()
    for at, (mask, depth) in enumerate(zip(batch["mask"].values, batch["depth"].values)):
        inside = numpy.zeros((27, 50), bool)
        inside[: 20 + at, : 50 - at] = True
        assert (mask[inside] == masks[at][inside]).all() and set(mask[~inside]) <= {255}
        assert (depth[inside] == masks[at][inside] / 2).all() and set(depth[~inside]) <= {5.0}


def test_sides_are_resized_to_lengths_and_multiples(sizes):
    def shapes(**settings):
        batch = Loader(sizes, batch_size=20, image=fields.Image(**settings)).peek()
        return [image.shape for image in batch["image"]]

    # The image of 50 × 20 pixels would have 250 × 100, that of 31 × 39 has 100 × 125.
    limited = shapes(crop=Resize(100, longest=150))
    assert (limited[0], limited[19]) == ((60, 150, 3), (125, 100, 3))
    assert {min(shape[:2]) for shape in shapes(crop=Resize(100))} == {100}
    assert {max(shape[:2]) for shape in shapes(crop=Resize(longest=30))} == {30}
    found = shapes(crop=Resize(28, multiple_of=14), augment="randominvert(1)", layout="nhwc-f32")
    assert found[0] == (28, 70, 3) and all(side % 14 == 0 for shape in found for side in shape[:2])


def test_augmentations_of_images_of_different_sizes(sizes):
    plain = Loader(sizes, of_any_size(exact=True), batch_size=8, threads=3)
    settings = of_any_size(exact=True, augment="randominvert(1)")
    inverted = Loader(sizes, settings, batch_size=8, threads=3)
    for one, other in zip(plain, inverted):
        assert all((a == 255 - b).all() for a, b in zip(one["image"], other["image"]))


def test_map_gets_images_of_different_sizes(sizes):
    def bright(sample):
        assert sample["mask"].shape == sample["image"].shape[:2]
        return {**sample, "image": sample["image"] // 2}

    plain = Loader(sizes, of_any_size(), batch_size=8).peek()
    batch = Loader(sizes, of_any_size(), batch_size=8, map=bright).peek()
    assert all((a == b // 2).all() for a, b in zip(batch["image"], plain["image"]))
    assert all((a == b).all() for a, b in zip(batch["mask"], plain["mask"]))


@pytest.mark.parametrize("layout", ["nchw-u8", "nhwc-u8"])
def test_map_and_collate_get_images_without_their_padding(sizes, layout):
    expected = Loader(sizes, of_any_size(layout=layout), batch_size=8).peek()
    padded = of_any_size(layout=layout, collate="pad")
    mapped = Loader(sizes, padded, batch_size=8, map=lambda sample: sample).peek()
    collated = Loader(sizes, padded, batch_size=8, collate=lambda samples: samples).peek()
    for at, sample in enumerate(collated):
        for name in ("image", "mask"):
            assert frozen(mapped[name][at]) == frozen(sample[name]) == frozen(expected[name][at])


def test_padding_is_removed_in_the_dimension_that_differs():
    rows = [{"a": [[1] * length, [2] * length]} for length in (1, 3)]
    array, kept = fields.Array((2, None), "int64", collate="pad"), []
    loader = Loader(rows, batch_size=2, a=array, filter=lambda sample: kept.append(sample["a"].tolist()) is None)
    loader.peek()
    mapped = Loader(rows, batch_size=2, a=array, map=lambda sample: {"a": sample["a"].tolist()}).peek()
    assert kept[:2] == mapped["a"] == [row["a"] for row in rows]


def test_runs_of_images_of_different_sizes_resume(sizes):
    def make():
        return Loader(sizes, of_any_size(), batch_size=3, shuffle=True)

    expected, loader = copies(make()), make()
    with iter(loader) as batches:
        found = copies([next(batches), next(batches)])
    again = make()
    again.load_state_dict(loader.state_dict())
    assert found + copies(again) == expected
    other = Loader(sizes, of_any_size(collate="pad"), batch_size=3, shuffle=True)
    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"different settings \(size, layout or fields: was image"):
        other.load_state_dict(loader.state_dict())


# promise: PY4
@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-f32"])
def test_several_crops_are_those_of_torchvision(shard, layout):
    # `Resize(48)` gives 48 × 64 pixels, of which torchvision crops 30 × 40: rows 0, 18 and 9, columns 0, 24 and 12.
    images = {
        "five": fields.Image((30, 40), crop=FiveCrop(48), layout=layout),
        "ten": fields.Image((30, 40), crop=TenCrop(48), layout=layout),
        "vertical": fields.Image((30, 40), crop=TenCrop(48, vertical_flip=True), layout=layout),
        "whole": fields.Image(crop=Resize(48), layout=layout),
    }
    for batch in Loader(shard, images, batch_size=10):
        for five, ten, vertical, whole in zip(*batch.values()):
            if layout == "nchw-f32":
                assert five.shape == (5, 3, 30, 40) and ten.shape == (10, 3, 30, 40)
                five, ten, vertical = (one.transpose(0, 2, 3, 1) for one in (five, ten, vertical))
                whole = whole.transpose(1, 2, 0)
            assert five.dtype == whole.dtype and whole.shape == (48, 64, 3)
            places = [(0, 0), (0, 24), (18, 0), (18, 24), (9, 12)]

            def crops(image):
                return numpy.stack([image[y : y + 30, x : x + 40] for y, x in places])

            assert (five == crops(whole)).all() and (ten[:5] == five).all()
            assert (ten[5:] == crops(whole[:, ::-1])).all()
            assert (vertical == numpy.concatenate([crops(whole), crops(whole[::-1])])).all()


def test_several_crops_are_refused_where_one_is_needed(shard):
    crops = fields.Image(30, crop=FiveCrop(48))
    for other in (fields.Mask(stored_as="seg.png"), fields.Boxes(stored_as="json"), fields.Geometry()):
        with pytest.raises(spdl_rs.InvalidArgumentError, match='"image" is not an image of one crop'):
            Loader(shard, batch_size=2, image=crops, other=other)
    with pytest.raises(ValueError, match='"image" is not an image of one crop'):
        Loader(shard, batch_size=2, image=crops, label=fields.Label(), mix=recipes.Mix(3, mixup=1.0))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="augment: several crops of an image are not augmented"):
        fields.Image(30, crop=TenCrop(48), augment="augmix")
    with pytest.raises(ValueError, match="several crops of an image are not flipped at random"):
        fields.Image(30, crop=FiveCrop(48), horizontal_flip=0.5)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="do not fit into the resized image of 64x48"):
        Loader(shard, batch_size=2, image=fields.Image(49, crop=FiveCrop(48))).peek()


BUCKETS = [(20, 40), (30, 30), (40, 20)]


def of_one_size(**settings):
    image = fields.Image(crop=AspectBuckets(BUCKETS, **settings), layout="nchw-u8", exact=True)
    mask = fields.Mask(stored_as="seg.png", dtype="uint8")
    return {"image": image, "mask": mask, "index": fields.Index()}


def nearest(number):
    """The size of the nearest aspect ratio for an image of the fixture `sizes`."""
    height, width = 20 + number, 50 - number
    return min(BUCKETS, key=lambda size: abs(numpy.log(size[1] / size[0] * height / width)))


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_aspect_buckets_have_one_size(sizes, drop_last):
    settings = {"group": SameSize("image"), "batch_size": 3, "drop_last": drop_last}
    found = []
    loader = Loader(sizes, of_one_size(), threads=3, **settings)
    for batch in loader:
        height, width = batch["image"].shape[2:]
        assert batch["image"].shape == (len(batch["index"]), 3, height, width)
        assert batch["mask"].shape == (len(batch["index"]), height, width)
        assert {nearest(number) for number in batch["index"].tolist()} == {(height, width)}
        found += batch["index"].tolist()
    counts = [sum(nearest(number) == size for number in range(20)) for size in BUCKETS]
    assert min(counts[:2]) > 3
    expected = sum(count // 3 * 3 for count in counts) if drop_last else 20
    assert len(found) == len(set(found)) == expected
    # Without a group, the samples are a list, with the same pixels.
    whole = Loader(sizes, of_one_size(), batch_size=20).peek()
    for batch in loader:
        for number, pixels, mask in zip(batch["index"], batch["image"], batch["mask"]):
            assert (whole["image"][number] == pixels).all() and (whole["mask"][number] == mask).all()


def test_an_image_of_an_aspect_bucket_covers_it(sizes):
    batch = Loader(sizes, of_one_size(), batch_size=20).peek()
    whole = Loader(sizes, batch_size=20, image=fields.Image(crop=Resize(), layout="nchw-u8")).peek()
    for number, (image, original) in enumerate(zip(batch["image"], whole["image"])):
        height, width = original.shape[1:]
        to_height, to_width = nearest(number)
        # The centre of the image that is resized to cover the size.
        scale = max(to_height / height, to_width / width)
        assert image.shape[1:] == (to_height, to_width)
        shown = min(height, to_height / scale), min(width, to_width / scale)
        top, left = round((height - shown[0]) / 2), round((width - shown[1]) / 2)
        part = original[0, top : top + round(shown[0]), left : left + round(shown[1])]
        assert abs(float(part.mean()) - float(image[0].mean())) < 8


@pytest.mark.parametrize("random", [False, True])
def test_runs_of_aspect_buckets_resume(sizes, random):
    def make(threads=2, **settings):
        groups = {"group": SameSize("image"), "batch_size": 3}
        return Loader(sizes, of_one_size(random=random), shuffle=True, threads=threads, **groups, **settings)

    expected = copies(make())
    assert len(expected) >= 7 and copies(make(threads=5)) == expected
    for taken in range(len(expected)):
        loader = make()
        with iter(loader) as batches:
            found = copies([next(batches) for _ in range(taken)])
            state = json.loads(json.dumps(loader.state_dict()))
        again = make(threads=3)
        again.load_state_dict(state)
        assert found + copies(again) == expected
    changed = fields.Image(crop=AspectBuckets(BUCKETS[:2], random=random), layout="nchw-u8", exact=True)
    other = Loader(
        sizes, {**of_one_size(), "image": changed}, shuffle=True, batch_size=3, group=SameSize("image")
    )
    with pytest.raises(spdl_rs.InvalidArgumentError, match="30x30"):
        other.load_state_dict(state)


def test_ranks_and_their_combined_states_deliver_every_image_of_a_bucket_once(sizes):
    def make(**settings):
        return Loader(sizes, of_one_size(), batch_size=2, group=SameSize("image"), **settings)

    indices = [index for batch in delivered_by_ranks(make) for index in batch["index"].tolist()]
    assert sorted(indices) == list(range(20))


def test_functions_and_absent_images_of_aspect_buckets(sizes, tmp_path):
    def halved(sample):
        return {**sample, "image": sample["image"] // 2}

    settings = {"group": SameSize("image"), "batch_size": 4}
    plain = Loader(sizes, of_one_size(), **settings)
    for batch, other in zip(Loader(sizes, of_one_size(), map=halved, **settings), plain):
        assert (batch["image"] == other["image"] // 2).all()
    write_members(tmp_path / "a.tar", [("a.txt", b"no image")])
    image = fields.Image(crop=AspectBuckets([8]), optional=True)
    batch = Loader(tmp_path / "a.tar", image=image, text=fields.Text(stored_as="txt"), **settings).peek()
    assert batch["text"] == ["no image"] and batch["image"].shape == (1, 0, 0, 3)
    with pytest.raises(ValueError, match=r"group needs an Image with the name 'photo' and crop=AspectBuckets"):
        Loader(sizes, of_one_size(), batch_size=2, group=SameSize("photo"))
    with pytest.raises(ValueError, match="mix needs images of one size"):
        Loader(sizes, of_one_size(), batch_size=2, mix=recipes.Mix(2, cutmix=1.0), label=fields.Label())


def test_sizes_of_aspect_buckets():
    sizes = AspectBuckets.of(1024 * 1024, max_ratio=4).sizes
    # Sizes on which SDXL was trained (Podell et al. 2023, appendix I).
    assert {(1024, 1024), (832, 1216), (768, 1344), (640, 1536), (512, 2048), (1216, 832)} <= set(sizes)
    assert all(h % 64 == w % 64 == 0 and 0.84 * 2**20 < h * w <= 2**20 for h, w in sizes)
    assert max(max(size) / min(size) for size in AspectBuckets.of(512 * 512, max_ratio=2).sizes) <= 2
    for make, message in [
        (lambda: AspectBuckets([]), "sizes must not be empty"),
        (lambda: AspectBuckets.of(63 * 64), "smaller than a square"),
        (lambda: AspectBuckets.of(4096, max_ratio=0.5), "max_ratio must be at least 1"),
        (lambda: fields.Image(32, crop=AspectBuckets([8])), "size=32 has no effect on crop=AspectBuckets"),
        (lambda: spdl_rs.io.DecodeImage(crop=AspectBuckets([8])), r"but crop=AspectBuckets\(...\) gives"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def test_padding_of_arrays(shard):
    def padded(padding, dtype="int64", **settings):
        one = from_json(fields.Array, "classes", None, dtype, collate="pad", padding=padding, **settings)
        return Loader(shard, batch_size=8, classes=one)

    values, sizes = padded(-100).peek()["classes"]
    plain, _ = padded(None).peek()["classes"]
    assert values.shape == (8, 3)
    for row, zeros, (size,) in zip(values, plain, sizes):
        assert (row[:size] == zeros[:size]).all()
        assert set(row[size:]) <= {-100} and not zeros[size:].any()
    values, sizes = padded(float("nan"), "float32").peek()["classes"]
    assert numpy.isnan(values).sum() == sum(3 - size for (size,) in sizes)
    for padding, dtype in [(-1, "uint8"), (0.5, "int64"), (2, "bool")]:
        with pytest.raises(spdl_rs.InvalidArgumentError, match="cannot hold the padding"):
            padded(padding, dtype)
    with pytest.raises(ValueError, match='padding=1 needs collate="pad"'):
        fields.Array(None, collate="list", padding=1)
    loader = padded(-100)
    next(iter(loader))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="classes|fields"):
        padded(-1).load_state_dict(loader.state_dict())


def test_truth_values(tmp_path):
    rows = [{"flag": number % 2 == 0, "flags": [1, 0, True][:number]} for number in range(4)]
    flags = {
        "flag": fields.Number("bool"),
        "flags": fields.Array(None, "bool"),
        "padded": fields.Array(None, "bool", stored_as="flags", collate="pad", padding=1),
        "ragged": fields.Array(None, "bool", stored_as="flags", collate="ragged"),
    }
    batch = Loader(rows, flags, batch_size=4).peek()
    assert batch["flag"].dtype == bool and batch["flag"].tolist() == [True, False, True, False]
    assert [one.tolist() for one in batch["flags"]] == [[], [True], [True, False], [True, False, True]]
    assert all(one.dtype == bool for one in batch["flags"])
    assert batch["padded"].values.dtype == bool and batch["padded"].values[1].tolist() == [True] * 3
    assert batch["ragged"].values.dtype == bool and batch["ragged"].values.tolist() == [True] * 2 + [False, True, False, True]
    assert batch["ragged"].offsets.dtype == "int64"
    with pytest.raises(spdl_rs.InvalidArgumentError, match='field "flag": cannot store 2 as bool'):
        Loader([{"flag": 2}], batch_size=1, flag=fields.Number("bool")).peek()


@pytest.mark.frameworks
def test_layouts_of_bfloat16(shard):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for order in ("nchw", "nhwc"):
        images = {
            "half": fields.Image(16, layout=f"{order}-bf16"),
            "list": fields.Image(crop=Resize(16), layout=f"{order}-bf16"),
            "whole": fields.Image(16, layout=f"{order}-f32"),
        }
        batch = Loader(shard, images, batch_size=4).peek()
        assert batch["half"].dtype == ml_dtypes.bfloat16 and batch["list"][0].dtype == ml_dtypes.bfloat16
        assert (batch["half"] == batch["whole"].astype(ml_dtypes.bfloat16)).all()
        assert batch["half"].flags.writeable


def test_layouts_of_bfloat16_need_a_package(shard, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = 'image: layout="nchw-bf16": NumPy has no bfloat16; pass output="torch" to the loader, install the package'
    with pytest.raises(NotImplementedError, match=words):
        Loader(shard, batch_size=1, image=fields.Image(16, layout="nchw-bf16"))
    assert fields.Video(16, layout="nchw-bf16").layout == "nchw-bf16"
    with pytest.raises(NotImplementedError, match='has no bfloat16; use Loader with output="torch", or use "nchw-f32"'):
        spdl_rs.io.DecodeImage(16, layout="nchw-bf16")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fields.Image(64, crop=Resize(20)), "size=64 has no effect on crop=Resize"),
        (lambda: fields.Image(crop=Resize(20), collate="stack"), 'collate must be "list" or "pad", not'),
        (lambda: fields.Image(collate="pad"), r"collate='pad' needs crop=Resize\(...\) or AspectBuckets"),
        (lambda: fields.Depth(scale=0), "scale must be a finite number other than 0"),
        (lambda: fields.Depth(scale=float("inf")), "scale must be a finite"),
        (lambda: fields.Depth(scale=0.1, dtype="uint16"), 'no effect on dtype="uint16"'),
        (lambda: fields.Depth(dtype="int64"), 'dtype must be "float32" or "uint16"'),
        (lambda: fields.Depth(outside=-1), "outside must be 0 to 65535"),
        (lambda: fields.Mask(outside=256, dtype="uint8"), "outside must be 0 to 255, not 256, with dtype='uint8'"),
        (lambda: fields.Mask(outside=-100, dtype="uint16"), "outside must be 0 to 65535, not -100, with dtype='uint16'"),
        (lambda: fields.Mask(outside=2**31, dtype="int32"), "outside must be -2147483648 to 2147483647"),
        (lambda: fields.Mask(dtype="float32"), "dtype must be"),
        (lambda: fields.Number("complex64"), "dtype must be"),
    ],
)
def test_arguments_of_images_masks_and_numbers_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("dtype", "most"),
    [("uint8", 2**8), ("uint16", 2**16), ("int16", 2**15), ("int32", 2**31), ("int64", 2**63)],
)
def test_integers_have_the_range_of_their_dtype(dtype, most, shard):
    least = 0 if dtype.startswith("u") else -most
    # Integers of more than 64 bits become floats.
    below = -(2**64) if dtype == "int64" else least - 1
    for number, is_valid in [(least, True), (most - 1, True), (below, False), (most, False)]:
        field = fields.Array((2,), dtype, default=[0, number])
        loader = Loader(shard, batch_size=2, x=field, y=fields.Number(dtype, default=number))
        if is_valid:
            batch = loader.peek()
            assert batch["x"].dtype == batch["y"].dtype == dtype
            assert batch["x"].tolist() == [[0, number]] * 2 and batch["y"].tolist() == [number] * 2
        else:
            with pytest.raises(spdl_rs.SpdlError, match=f"cannot store .* as {dtype}"):
                loader.peek()


def test_float64_keeps_all_digits(shard):
    batch = Loader(
        shard,
        batch_size=3,
        x=from_json(fields.Number, "score", "float64"),
        lists=from_json(fields.Array, "boxes", (None, 4), "float64", collate="ragged"),
        padded=from_json(fields.Array, "classes", None, "int32", collate="pad"),
    ).peek()
    assert batch["x"].dtype == "float64" and batch["x"].tolist() == [0, 1 / 3, 2 / 3]
    assert batch["lists"].values.dtype == "float64" and batch["padded"].values.dtype == "int32"
    assert batch["lists"].values.tolist() == [row for number in range(3) for row in document(number)["boxes"]]


# promise: R11, R13
@pytest.mark.parametrize("seed", range(10))
def test_a_resumed_run_delivers_identical_batches(shard, seed):
    draw = random.Random(seed)
    settings = {"batch_size": draw.choice([1, 2, 5, 30]), "shuffle": seed % 2 == 0, "seed": seed}

    def make():
        return Loader(shard, all_fields(), threads=draw.choice([1, 2, 5]), **settings)

    whole = make()
    expected = [copies(whole) for _ in range(2)]
    found, loader = [[], []], make()
    for _ in range(1000):
        epoch = loader.epoch
        if epoch == 2:
            break
        with iter(loader) as batches:
            for batch in batches:
                found[epoch] += copies([batch])
                if draw.random() < 0.4:
                    break
        state = json.loads(json.dumps(loader.state_dict()))
        loader = make()
        loader.load_state_dict(state)
    assert found == expected
    assert expected[0] != expected[1]


# promise: R11
def test_ranks_and_their_combined_states_deliver_every_sample_once(shard):
    def make(rank, world_size):
        return Loader(
            shard, all_fields(), batch_size=2, rank=rank, world_size=world_size, remainder="uneven"
        )

    def first(loader):
        with iter(loader) as batches:
            return next(batches)["index"].tolist(), loader.state_dict()

    parts = [first(make(rank, 3)) for rank in range(3)]
    state = Loader.combine_states([state for _, state in parts])
    indices = [index for part, _ in parts for index in part]
    for rank in range(2):
        loader = make(rank, 2)
        loader.load_state_dict(state)
        indices += [index for batch in loader for index in batch["index"].tolist()]
    assert sorted(indices) == list(range(SAMPLES))


def test_a_state_belongs_to_its_class_its_fields_and_its_settings(shard, photos):
    loader = Loader(shard, all_fields(), batch_size=2)
    loader.peek()
    state = loader.state_dict()
    images = spdl_rs.ImageLoader(photos, batch_size=2, size=32)
    with pytest.raises(ValueError, match=r"not a state of an ImageLoader: .*spdl_rs\.Loader"):
        images.load_state_dict(state)
    with pytest.raises(ValueError, match=r"not a state of a Loader: .*spdl_rs\.ImageLoader"):
        loader.load_state_dict(images.state_dict())
    other = Loader(shard, {**all_fields(), "text": fields.Text(stored_as="json")}, batch_size=2)
    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"text: was Text from txt, is Text from json"):
        other.load_state_dict(state)
    fewer = Loader(shard, {"text": fields.Text(stored_as="txt")}, batch_size=2)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="image: was .*, is absent"):
        fewer.load_state_dict(state)


@dataclasses.dataclass
class Pair:
    text: Any
    score: Any


def test_output_is_a_dict_a_tuple_or_the_result_of_a_function(shard):
    def make(**settings):
        score = from_json(fields.Number, "score")
        return Loader(
            shard, batch_size=2, text=fields.Text(stored_as="txt"), score=score, **settings
        )

    assert isinstance(make().peek(), dict)
    text, score = make(output="tuple").peek()
    assert text == ["text 0", "text 1"] and score.shape == (2,)
    pairs = list(make(output=Pair))
    assert isinstance(pairs[1], Pair) and pairs[1].text == ["text 2", "text 3"]
    words = 'output must be "dict", "tuple", "torch", "torch-tuple", "jax" or a function'
    with pytest.raises(ValueError, match=words):
        make(output="list")


@pytest.mark.frameworks
def test_output_as_tensors(shard):
    torch = pytest.importorskip("torch")
    boxes = from_json(fields.Boxes, "boxes", format="xywh")
    ragged = from_json(fields.Array, "classes", None, "int64", collate="ragged")
    image = fields.Image(16, layout="nchw-f32")
    loader = Loader(
        shard, batch_size=4, output="torch", image=image, boxes=boxes, ragged=ragged, key=fields.Key()
    )
    batch = loader.peek()
    assert batch["image"].dtype == torch.float32 and batch["image"].shape == (4, 3, 16, 16)
    assert all(isinstance(one, torch.Tensor) for one in batch["boxes"])
    assert batch["ragged"].offsets.tolist()[-1] == len(batch["ragged"].values)
    assert isinstance(batch["key"][0], str)
    numbers = {name: from_json(fields.Number, "score", name) for name in ("float64", "int16", "uint16")}
    numbers["int16"] = fields.Number("int16", default=-3)
    if hasattr(torch, "uint16"):
        numbers["uint16"] = fields.Number("uint16", default=65535)
        assert int(Loader(shard, numbers, batch_size=1, output="torch").peek()["uint16"]) == 65535
    else:
        with pytest.raises(NotImplementedError, match="no uint16, the dtype of 'uint16'; use int32"):
            Loader(shard, numbers, batch_size=1, output="torch")
    del numbers["uint16"]
    batch = Loader(shard, numbers, batch_size=2, output="torch").peek()
    assert (batch["float64"].dtype, batch["int16"].tolist()) == (torch.float64, [-3, -3])


@pytest.mark.frameworks
def test_output_as_a_tuple_of_tensors(shard):
    torch = pytest.importorskip("torch")
    image, score = fields.Image(16, layout="nchw-f32"), from_json(fields.Number, "score")

    def make(**settings):
        return Loader(shard, batch_size=4, output="torch-tuple", image=image, score=score, **settings)

    seen = []

    def one(sample):
        seen.append(type(sample["image"]))
        return {"score": sample["score"] * 2, "image": sample["image"]}

    for images, scores in make(drop_last=True):
        assert isinstance(images, torch.Tensor) and images.shape == (4, 3, 16, 16)
        assert isinstance(scores, torch.Tensor)
    doubled, images = make(map=one).peek()
    assert set(seen) == {torch.Tensor} and torch.equal(doubled, 2 * make().peek()[1]) and images.shape == (4, 3, 16, 16)
    (kept,) = make(batch_map=lambda batch: batch[:1]).peek()
    assert isinstance(kept, torch.Tensor)
    with pytest.raises(ValueError, match="cannot be combined with collate"):
        make(collate=list)


@pytest.mark.frameworks
def test_tensors_of_bfloat16_need_no_further_package(shard):
    program = f"""
import sys
sys.modules["ml_dtypes"] = None
import torch
from spdl_rs import Loader, fields
from spdl_rs.io import Resize
images = dict(one=fields.Image(16, layout="nchw-bf16"), many=fields.Image(crop=Resize(16), layout="nhwc-bf16"))
batch = Loader({str(shard)!r}, images, batch_size=2, output="torch", whole=fields.Image(16, layout="nchw-f32")).peek()
assert batch["one"].dtype == batch["many"][0].dtype == torch.bfloat16
assert torch.equal(batch["one"], batch["whole"].to(torch.bfloat16))
try:
    Loader({str(shard)!r}, images, batch_size=2)
except NotImplementedError as error:
    print(error)
"""
    pytest.importorskip("torch")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert 'one: layout="nchw-bf16": NumPy has no bfloat16; pass output="torch"' in ended.stdout, ended.stderr


@pytest.mark.frameworks
def test_images_of_different_sizes_as_tensors(sizes):
    torch = pytest.importorskip("torch")
    batch = Loader(sizes, of_any_size(), batch_size=2, output="torch").peek()
    assert [tuple(image.shape) for image in batch["image"]] == [(20, 50, 3), (21, 49, 3)]
    assert all(isinstance(mask, torch.Tensor) for mask in batch["mask"])
    images, sides = Loader(sizes, of_any_size(collate="pad"), batch_size=2, output="torch").peek()["image"]
    assert tuple(images.shape) == (2, 21, 50, 3) and sides.tolist() == [[20, 50], [21, 49]]


@pytest.mark.frameworks
def test_output_as_jax_arrays(shard):
    jax = pytest.importorskip("jax")
    ragged = from_json(fields.Array, "classes", None, "int32", collate="ragged")

    def batch_of(**settings):
        loader = Loader(
            shard,
            batch_size=4,
            image=fields.Image(16, layout="nchw-f32"),
            boxes=from_json(fields.Boxes, "boxes", format="xywh"),
            ragged=ragged,
            label=fields.Label(),
            key=fields.Key(),
            **settings,
        )
        return loader.peek()

    batch, expected = batch_of(output="jax"), batch_of()
    assert isinstance(batch["image"], jax.Array)
    assert batch["image"].devices() == {jax.devices()[0]}
    for name in ("image", "label"):
        assert numpy.array_equal(batch[name], expected[name])
    assert (batch["image"].dtype, batch["label"].dtype) == ("float32", "int32")
    assert [numpy.array_equal(*pair) for pair in zip(batch["boxes"], expected["boxes"])] == [True] * 4
    assert isinstance(batch["ragged"].values, jax.Array) and batch["ragged"].values.dtype == "int32"
    assert batch["key"] == expected["key"]
    kinds = {}

    def function(batch):
        return {"image": batch["image"] + 1}

    def sample(values):
        kinds["map"] = type(values["image"])
        return {"image": values["image"] * 2}

    for executor in ("threads", "inline"):
        mapped = batch_of(output="jax", map=sample, batch_map=function, executor=executor)
        assert isinstance(mapped["image"], jax.Array) and kinds.pop("map") is numpy.ndarray
        assert numpy.allclose(mapped["image"], expected["image"] * 2 + 1)
    with pytest.raises(ValueError, match='"jax" cannot be combined with executor="processes"'):
        batch_of(output="jax", map=sample, executor="processes")


@pytest.mark.frameworks
def test_jax_arrays_share_the_memory_of_numpy_arrays():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("the default device is not a CPU")
    array = numpy.asarray(spdl_rs.io.Array((64,), "float32"))
    shared = _functions.jax_arrays_of({"a": array})["a"]
    assert shared.unsafe_buffer_pointer() == array.ctypes.data


@pytest.mark.parametrize("output", ["torch", "jax"])
def test_an_absent_framework_is_an_error(shard, output, monkeypatch):
    monkeypatch.setitem(sys.modules, output, None)
    with pytest.raises(ImportError, match=output):
        Loader(shard, batch_size=1, key=fields.Key(), output=output)


def test_missing_values_are_errors_or_have_a_default(shard):
    def first(field):
        return Loader(shard, batch_size=2, x=field).peek()["x"]

    with pytest.raises(spdl_rs.NotFoundError, match='no field "x": the sample has the fields') as caught:
        first(fields.Text())
    assert caught.value.key.endswith("shard.tar:000")
    with pytest.raises(spdl_rs.NotFoundError, match=r'000\.json: no value at "nothing\.5"'):
        first(from_json(fields.Number, "nothing.5"))
    assert first(fields.Text(optional=True)) == ["", ""]
    assert first(fields.Json(optional=True)) == [None, None]
    assert first(fields.Text(default="none")) == ["none", "none"]
    assert first(fields.Bytes(default=b"\xff")) == [b"\xff", b"\xff"]
    assert first(fields.Json(default={"a": [1, None]})) == [{"a": [1, None]}] * 2
    assert first(fields.Number("int64", default=-100)).tolist() == [-100, -100]
    assert first(fields.Array((2,), default=numpy.array([1.5, 2]))).tolist() == [[1.5, 2]] * 2
    assert [one.shape for one in first(fields.Array((None, 4), optional=True))] == [(0, 4)] * 2


def test_errors_name_the_sample_and_the_field(shard):
    cases = {
        "expected numbers, found text": fields.Number(stored_as="txt"),
        "cannot store 0.333": from_json(fields.Number, "score", "int64"),
        "expects the shape [3], found [2, 3]": fields.Array(3, stored_as="npy"),
        "expected text, found a list of integers": from_json(fields.Text, "boxes"),
        "expected an encoded image, found text": fields.Image(8, stored_as="txt"),
        "expected text, found a NumPy array": fields.Text(stored_as="npy"),
        "found a NumPy array; for decoded pixels, use an array field (in Python, fields.Array), or encode": fields.Image(
            8, stored_as="npy"
        ),
    }
    for message, field in cases.items():
        loader = Loader(shard, batch_size=SAMPLES, x=field)
        with pytest.raises(spdl_rs.SpdlError) as caught:
            list(loader)
        text = str(caught.value)
        assert message in text and "shard.tar:0" in caught.value.key, text
        assert 'field "x"' in text, text


def test_skipped_samples_are_listed(shard):
    whole = from_json(fields.Number, "score", "int64")
    loader = Loader(
        shard, batch_size=4, on_error=spdl_rs.skip(at_most=SAMPLES), whole=whole, key=fields.Key()
    )
    numbers = [number for batch in loader for number in batch["whole"].tolist()]
    # Scores of every third sample are whole numbers.
    assert numbers == list(range(8))
    statistics = loader.stats()
    assert statistics["dropped_total"] == SAMPLES - 8
    first = statistics["dropped"][0]
    assert first["key"].endswith(":001")
    assert first["reason"] == 'field "whole": cannot store 0.3333333333333333 as int64'


def test_the_cache_serves_all_fields(shard, tmp_path):
    def make(**settings):
        return Loader(shard, all_fields(), batch_size=4, **settings)

    expected = copies(make())
    for settings in ({"cache_memory": 1 << 24}, {"cache": tmp_path / "cache"}):
        loader = make(**settings)
        first, second = copies(loader), copies(loader)
        cache = loader.stats()["cache"]
        assert first == expected and second == copies_of_epoch(make(), 1)
        assert cache["hits"] > 0 and cache["misses"] == 0, cache


def copies_of_epoch(loader, epoch):
    loader.set_epoch(epoch)
    return copies(loader)


def test_views_draw_other_crops_than_the_image(shard):
    image = {"size": 16, "train": True}
    loader = Loader(
        shard,
        batch_size=8,
        a=fields.Image(**image),
        same=fields.Image(**image),
        b=fields.Image(**image, view=1),
    )
    batch = loader.peek()
    assert (batch["a"] == batch["same"]).all() and (batch["a"] != batch["b"]).any()


def test_the_spec_describes_a_batch(shard):
    loader = Loader(shard, all_fields(), batch_size=4)
    batch = loader.peek()
    assert list(loader.spec) == list(batch)
    for name, (shape, dtype, collate) in loader.spec.items():
        value = batch[name]
        if dtype in {"str", "bytes", "object"}:
            assert (collate, shape, len(value)) == ("list", (), 4)
            continue
        if collate == "list":
            value = value[0]
        elif collate in {"ragged", "pad"}:
            value = value.values
        found = value.shape if collate in {"list", "ragged"} else value.shape[1:]
        assert value.dtype == dtype and len(found) == len(shape)
        assert all(side in (None, one) for side, one in zip(shape, found, strict=True)), name


def test_the_spec_of_a_mix_has_weights_of_classes(shard):
    settings = {"image": fields.Image(24), "label": fields.Label(), "batch_size": 2}
    mix = spdl_rs.recipes.Mix(10, mixup=1.0)
    for chosen in (None, mix):
        loader = Loader(shard, **settings, mix=chosen)
        shape, dtype, collate = loader.spec["label"]
        label = loader.peek()["label"]
        assert (label.shape[1:], label.dtype, collate) == (shape, dtype, "stack")


def test_a_state_of_other_augmentations_names_them(shard):
    def make(augment):
        image = fields.Image(24, train=True, augment=augment)
        return Loader(shard, batch_size=2, image=image)

    begun = make([])
    next(iter(begun))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="image: augment: was absent, is augmentation .*RandAugment"):
        make("randaugment(2, 9)").load_state_dict(begun.state_dict())


def test_a_state_of_another_image_shows_only_the_settings_that_differ(shard):
    def make(**settings):
        return Loader(shard, batch_size=2, image=fields.Image(**{"size": 24, "layout": "nchw-f32", **settings}))

    state = make().state_dict()
    cases = [
        ({"size": 32}, "image: was image .size 24x24.*, is image .size 32x32"),
        ({"std": (0.5, 0.5, 0.5)}, r"settings \(image: changed\)"),
        ({"train": True}, "image: was image .*, is image .*Random"),
    ]
    for settings, words in cases:
        with pytest.raises(spdl_rs.InvalidArgumentError, match=words) as caught:
            make(**settings).load_state_dict(state)
        assert len(str(caught.value)) < 380 and "layout" not in str(caught.value)


def test_peek_uses_up_no_epoch(shard):
    loader = Loader(shard, all_fields(), batch_size=4)
    peeked = copies([loader.peek(), loader.peek()])
    assert loader.epoch == 0
    batches = copies(loader)
    assert peeked == [batches[0], batches[0]]
    state = Loader(shard, all_fields(), batch_size=SAMPLES)
    iterator = iter(state)
    next(iterator)
    state.load_state_dict(state.state_dict())
    with pytest.raises(ValueError, match="epoch 0 has no batch left"):
        state.peek()


def test_a_program_that_ends_within_an_epoch_with_dropped_samples_prints_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """from spdl_rs import Loader, fields
loader = Loader([{"x": 1}, {"x": "bad"}, *[{"x": 3}] * 50], batch_size=3, on_error="skip", x=fields.Number())
batches = iter(loader)
next(batches)
"""
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("drop_last", [False, True])
def test_peek_raises_the_exception_of_a_sample_of_its_batch(drop_last):
    samples = [{"x": 1}, {"x": "bad"}, {"x": 3}]
    loader = Loader(samples, batch_size=3, x=fields.Number(), drop_last=drop_last)
    with pytest.raises(spdl_rs.SpdlError, match="field \"x\""):
        loader.peek()


def test_wrong_fields_are_refused_at_once(shard):
    text = fields.Text(stored_as="txt")
    with pytest.raises(spdl_rs.InvalidArgumentError, match="the sample has no fields"):
        Loader(shard, batch_size=2)
    with pytest.raises(TypeError, match=r"x must be a field of spdl_rs.fields.* it is 3"):
        Loader(shard, batch_size=2, x=3)
    with pytest.raises(TypeError, match="no argument device.*batch_map=spdl_rs.io.transfer_tensor"):
        Loader(shard, batch_size=2, text=text, device="cuda")
    with pytest.raises(TypeError, match="it is the class Text; call the class"):
        Loader(shard, batch_size=2, x=fields.Text)
    with pytest.raises(ValueError, match="a field is given twice: 'x'"):
        Loader(shard, {"x": text}, batch_size=2, x=text)
    with pytest.raises(ValueError, match="at most one Label"):
        Loader(shard, batch_size=2, x=fields.Label(), y=fields.Label())
    with pytest.raises(spdl_rs.InvalidArgumentError, match='field "x": there is no field "image"'):
        Loader(shard, batch_size=2, x=fields.Boxes())
    with pytest.raises(spdl_rs.InvalidArgumentError, match='field "text" is not boxes'):
        Loader(shard, batch_size=2, text=text, x=fields.Array(None, rows_of="text"))
    blended = fields.Image(8, augment=AugMix())
    with pytest.raises(spdl_rs.InvalidArgumentError, match="moves its content in a way"):
        Loader(shard, batch_size=2, image=blended, x=fields.Boxes())
    with pytest.raises(spdl_rs.InvalidArgumentError, match="any length"):
        Loader(shard, batch_size=2, x=fields.Array((None, None), collate="ragged"))
    with pytest.raises(TypeError, match="default must be text, bytes, numbers or JSON"):
        fields.Text(default=object())
    with pytest.raises(ValueError, match="shape must be at least 1"):
        fields.Array((0, 4))
    for kind in (fields.Key, fields.Url, fields.Index):
        assert not inspect.signature(kind).parameters
    with pytest.raises(TypeError, match="unexpected keyword argument 'stored_as'"):
        fields.Key(stored_as="txt")
    for kind, name, value in (
        (fields.Label, "at", "a"),
        (fields.Label, "default", 3),
    ):
        with pytest.raises(ValueError, match=f"{kind.__name__} has no argument {name}"):
            kind(**{name: value})
    for at in ("", ".", "a..b", "a."):
        with pytest.raises(ValueError, match="at must be names separated by dots"):
            fields.Json(at=at)


# promise: PY4
@pytest.mark.parametrize(
    "augment",
    [
        RandomRotation(90),
        [RandomAffine(40, translate=(0.2, 0.1), scale=(0.8, 1.2), shear=10), RandomRotation(30, center=(3, 9))],
        RandomPerspective(0.4, p=1.0),
        RandAugment(4, 15),
        "rand-m9-n3",
    ],
    ids=repr,
)
def test_boxes_points_and_masks_follow_warps_of_the_image(tmp_path, augment):
    pixels = numpy.zeros((48, 64, 3), numpy.uint8)
    pixels[14:30, 20:44, 0] = 255
    mask = (pixels[..., 0] > 0).astype(numpy.uint8)
    write_png(tmp_path / "a.png", pixels)
    document = {"boxes": [[20, 14, 44, 30]], "points": [[32, 22, 2]]}
    members = [
        ("a.png", (tmp_path / "a.png").read_bytes()),
        ("a.seg.png", grey_png(mask)),
        ("a.json", json.dumps(document).encode()),
    ]
    write_members(tmp_path / "a.tar", members)
    loader = Loader(
        tmp_path / "a.tar",
        batch_size=1,
        image=fields.Image((48, 64), crop=CenterCrop(), stored_as="png", augment=augment),
        mask=fields.Mask(stored_as="seg.png"),
        boxes=from_json(fields.Boxes, "boxes"),
        points=from_json(fields.KeyPoints, "points", (1, 3)),
    )
    moved = 0
    for _ in range(12):
        (batch,) = loader
        image, found = batch["image"][0], batch["mask"][0]
        is_red = found.astype(bool)
        ((left, top, right, bottom),) = batch["boxes"][0]
        x, y = batch["points"][0, 0, :2]
        rows, columns = is_red.nonzero()
        # The box encloses the rectangle, and the point is its middle.
        assert left <= columns.min() + 1 and columns.max() <= right
        assert top <= rows.min() + 1 and rows.max() <= bottom
        assert is_red[int(y), int(x)]
        moved += not numpy.array_equal(found, mask)
        if isinstance(augment, RandomRotation):
            # The other augmentations also change colours, or interpolate.
            numpy.testing.assert_array_equal(image[..., 0] > 0, is_red)
    assert moved >= 3


@pytest.mark.parametrize(
    ("threads", "augment"),
    [
        # Some samples are not rotated.
        (1, RandomApply([RandomRotation(60, "bilinear")], p=0.5)),
        (3, RandomApply([RandomRotation(60, "bilinear")], p=0.5)),
        (3, RandomChoice([RandomRotation(60, "bilinear"), RandomAffine(0, shear=20), RandomInvert(0)])),
        (3, RandomOrder([RandomRotation(40, "bilinear"), RandomAffine(0, translate=(0.2, 0))])),
    ],
)
def test_warps_follow_resize_padding_and_flips_of_several_samples(tmp_path, threads, augment):
    members = []
    for number, (height, width) in enumerate([(48, 64), (40, 40), (64, 32)] * 2):
        pixels = numpy.zeros((height, width, 3), numpy.uint8)
        pixels[height // 4 : height // 2, width // 4 : 3 * width // 4] = 255
        box = [width // 4, height // 4, 3 * width // 4, height // 2]
        points = [[(box[0] + box[2]) / 2, (box[1] + box[3]) / 2, 2]]
        write_png(tmp_path / "a.png", pixels)
        members += [
            (f"{number}.png", (tmp_path / "a.png").read_bytes()),
            (f"{number}.seg.png", grey_png(pixels[..., 0] // 255)),
            (f"{number}.json", json.dumps({"boxes": [box], "points": points}).encode()),
        ]
    write_members(tmp_path / "a.tar", members)
    image = fields.Image((40, 40), crop=Letterbox(), horizontal_flip=0.5, augment=augment, stored_as="png")
    loader = Loader(
        tmp_path / "a.tar",
        batch_size=3,
        threads=threads,
        image=image,
        mask=fields.Mask(stored_as="seg.png"),
        boxes=from_json(fields.Boxes, "boxes"),
        points=from_json(fields.KeyPoints, "points", (1, 3)),
    )
    for _ in range(6):
        for batch in loader:
            for number in range(3):
                mask = batch["mask"][number].astype(bool)
                is_bright = batch["image"][number, ..., 0] > 127
                assert (mask != is_bright).sum() <= 0.15 * mask.sum()
                ((left, top, right, bottom),) = batch["boxes"][number]
                rows, columns = mask.nonzero()
                assert left - 1 <= columns.min() and columns.max() <= right + 1
                assert top - 1 <= rows.min() and rows.max() <= bottom + 1
                x, y = batch["points"][number, 0, :2]
                assert mask[int(y), int(x)]


def test_keys_are_the_names_of_files_in_any_encoding(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xffbird"
    write_png(os.fsdecode(folder + b"/\xe4.png"), picture(1))
    (key,) = Loader(tmp_path, batch_size=1, key=fields.Key()).peek()["key"]
    assert os.path.exists(key) and os.fsencode(key) == folder + b"/\xe4.png"


def test_keys_have_the_documented_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_png(tmp_path / "photos/cat/1.png", picture(1))
    image = (tmp_path / "photos/cat/1.png").read_bytes()
    write_members(tmp_path / "train-0.tar", [("cat/0001.png", image), ("cat/0001.txt", b"a cat")])
    (tmp_path / "corpus.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')

    def keys(source, **named):
        return [key for batch in Loader(source, batch_size=1, key=fields.Key(), **named) for key in batch["key"]]

    assert keys("photos", image=fields.Image(8)) == ["photos/cat/1.png"]
    assert keys("train-*.tar", image=fields.Image(8)) == ["train-0.tar:cat/0001"]
    assert keys(tmp_path / "train-0.tar", image=fields.Image(8)) == [f"{tmp_path}/train-0.tar:cat/0001"]
    assert keys("corpus.jsonl", text=fields.Text()) == ["corpus.jsonl:0", "corpus.jsonl:1"]


def test_reprs_show_what_differs_from_the_defaults(shard):
    assert repr(fields.Text()) == "Text()"
    assert repr(fields.Image(32, train=True)) == "Image(size=32, train=True)"
    assert repr(fields.Array(None, "int64")) == "Array(shape=(None,), dtype='int64', collate='list')"
    text = repr(Loader(shard, batch_size=4, caption=fields.Text(stored_as="txt")))
    assert text.startswith("Loader(tar shards") and "23 samples, 6 batches of 4; epoch=0" in text
    assert "\n  caption=Text(stored_as='txt'),\n)" in text


def test_text_without_images_from_any_format(tmp_path):
    write_members(tmp_path / "text.tar", [("a.txt", b"one"), ("a.json", b'{"n": 1}')])
    loader = Loader(
        tmp_path / "text.tar",
        batch_size=1,
        text=fields.Text(stored_as="txt"),
        n=from_json(fields.Number, "n", "int64"),
    )
    (batch,) = loader
    assert (batch["text"], batch["n"].tolist()) == (["one"], [1])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_columns_of_file_lists(tmp_path, suffix):
    write_png(tmp_path / "a.png", picture(3))
    if suffix == ".csv":
        text = 'path,caption,score\na.png,"a, ""quoted""",0.25\n'
    else:
        text = json.dumps({"path": "a.png", "caption": 'a, "quoted"', "score": 0.25})
    (tmp_path / f"list{suffix}").write_text(text)
    loader = Loader(
        tmp_path / f"list{suffix}",
        batch_size=1,
        image=fields.Image((60, 80), crop=CenterCrop()),
        caption=fields.Text(),
        score=fields.Number(),
    )
    (batch,) = loader
    assert batch["caption"] == ['a, "quoted"'] and batch["score"].tolist() == [0.25]
    assert (batch["image"][0] == picture(3)).all()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_lists_name_the_files_of_masks_and_of_further_images(tmp_path, suffix):
    for number in range(3):
        write_png(tmp_path / f"left{number}.png", picture(number))
        write_png(tmp_path / f"right{number}.png", picture(number + 50))
        pixels = numpy.full((60, 80), number, "u1")
        (tmp_path / f"mask{number}.png").write_bytes(grey_png(pixels))
    rows = [{side: f"{side}{number}.png" for side in ("left", "right", "mask")} for number in range(3)]
    rows[1]["mask"] = ""
    lines = [json.dumps(row) for row in rows]
    if suffix == ".csv":
        lines = ["left,right,mask"] + [",".join(row.values()) for row in rows]
    (tmp_path / f"pairs{suffix}").write_text("\n".join(lines))
    crop = CenterCrop()
    loader = Loader(
        tmp_path / f"pairs{suffix}",
        batch_size=3,
        left=fields.Image((60, 80), crop=crop),
        right=fields.Image((60, 80), crop=crop),
        mask=fields.Mask(like="left", optional=True, outside=9),
    )
    batch = loader.peek()
    for number in range(3):
        assert (batch["left"][number] == picture(number)).all()
        assert (batch["right"][number] == picture(number + 50)).all()
    assert [set(mask.flat) for mask in batch["mask"]] == [{0}, {9}, {2}]
    # A depth map is a file too.
    like = {"left": fields.Image(8, crop=crop), "depth": fields.Depth(like="left", stored_as="mask", optional=True)}
    depth = Loader(tmp_path / f"pairs{suffix}", like, batch_size=3).peek()["depth"]
    assert [set(values.flat) for values in depth] == [{0.0}, {0.0}, {2.0}]
    # The path of a missing mask is an error that names the sample.
    (tmp_path / "mask2.png").unlink()
    with pytest.raises(spdl_rs.SpdlError, match="mask2.png"):
        list(loader)


def coco(folder):
    """Writes the images and annotations of two photos in the layout of COCO. Returns the annotations."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "val").mkdir()
    for number in range(2):
        write_png(folder / "val" / f"{number}.png", picture(number))
    names = {18: "dog", 3: "car"}
    boxes = [(0, 3, [10, 20, 30, 40]), (0, 18, [0, 0, 8, 6]), (1, 18, [70, 50, 10, 10])]
    document = {
        "images": [
            {"id": 70 + at, "file_name": f"{at}.png", "width": 80, "height": 60} for at in range(2)
        ],
        "annotations": [
            {"id": at, "image_id": 70 + image, "category_id": kind, "bbox": box, "iscrowd": at % 2}
            for at, (image, kind, box) in enumerate(boxes)
        ],
        "categories": [{"id": number, "name": name} for number, name in names.items()],
    }
    path = folder / "annotations" / "instances_val.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("where", ["found", "given"])
def test_coco_annotations_are_a_data_set(tmp_path, where):
    path = coco(tmp_path)
    images = None
    if where == "given":
        images = tmp_path / "elsewhere"
        (tmp_path / "val").rename(images)
    loader = Loader(
        path,
        batch_size=2,
        image_folder=images,
        image=fields.Image(120, crop=Letterbox()),
        boxes=fields.Boxes(format="xywh", stored_as="bbox"),
        classes=fields.Array(None, "int64", rows_of="boxes"),
        crowd=fields.Array(None, "int64", rows_of="boxes"),
        image_id=fields.Number("int64"),
    )
    assert loader.classes == ["car", "dog"]
    everything = recipes.coco_detection(120, keep_crowd=True)
    of_recipe = Loader(path, everything, batch_size=2, image_folder=images).peek()
    assert of_recipe["image"].shape == (2, 3, 120, 120) and of_recipe["classes"][1].tolist() == [1]
    # The images are flipped or not.
    assert sorted(of_recipe["boxes"][1][0].tolist()) in ([90, 105, 105, 120], [0, 15, 90, 105])
    batch = loader.peek()
    assert batch["image_id"].tolist() == [70, 71]
    # 80 x 60 pixels become 120 x 90, below 15 black rows.
    assert [boxes.tolist() for boxes in batch["boxes"]] == [
        [[15, 45, 45, 60], [0, 15, 12, 9]],
        [[105, 90, 15, 15]],
    ]
    assert [numbers.tolist() for numbers in batch["classes"]] == [[0, 1], [1]]
    assert [numbers.tolist() for numbers in batch["crowd"]] == [[0, 1], [0]]
    if where == "given":
        with pytest.raises(spdl_rs.SpdlError, match="cannot find the images.*`Loader.image_folder=") as caught:
            Loader(path, batch_size=2, image=fields.Image(32))
        assert caught.value.key == str(path)
        absent = str(images) + "-absent"
        with pytest.raises(spdl_rs.NotFoundError, match="the folder of the images does not exist") as caught:
            Loader(path, batch_size=2, image=fields.Image(32), image_folder=absent)
        assert caught.value.key == absent


def test_the_recipe_of_coco_drops_crowds_and_images_without_boxes(tmp_path):
    path = coco(tmp_path)
    document = json.loads(path.read_text())
    for at, annotations in ((2, []), (3, [{"category_id": 3, "bbox": [1, 1, 9, 9], "iscrowd": 1}])):
        write_png(tmp_path / "val" / f"{at}.png", picture(at))
        document["images"].append({"id": 70 + at, "file_name": f"{at}.png", "width": 80, "height": 60})
        document["annotations"] += [{"id": 10 + at, "image_id": 70 + at, **one} for one in annotations]
    path.write_text(json.dumps(document))

    def load(**settings):
        recipe = recipes.coco_detection((60, 80), horizontal_flip=0, **settings)
        loader = Loader(path, recipe, batch_size=4, key=fields.Key(), crowd=fields.Array(None, rows_of="boxes"))
        (batch,) = loader
        rows = zip(batch["boxes"], batch["classes"], batch["crowd"])
        assert all(len(boxes) == len(classes) == len(crowd) for boxes, classes, crowd in rows)
        dropped = loader.stats()["dropped"]
        assert all(one["kind"] == "missing-value" and "the sample has no boxes" in one["reason"] for one in dropped)
        return [len(boxes) for boxes in batch["boxes"]], batch, len(dropped)

    counts, batch, dropped = load()
    assert (counts, dropped) == ([1, 1], 2)
    assert batch["boxes"][0].tolist() == [[10, 20, 40, 60]] and batch["classes"][0].tolist() == [0]
    assert load(keep_empty=True)[0] == [1, 1, 0, 0]
    assert load(keep_crowd=True)[0] == [2, 1, 1]
    counts, batch, dropped = load(keep_crowd=True, keep_empty=True)
    assert (counts, dropped) == ([2, 1, 0, 1], 0) and batch["crowd"][0].tolist() == [0, 1]
    # Without COCO annotations, no box is known to be a crowd.
    sample = {"image": (tmp_path / "val/0.png").read_bytes(), "boxes": [[1, 2, 3, 4]], "classes": [1]}
    assert len(Loader([sample], recipes.coco_detection(32), batch_size=1).peek()["boxes"][0]) == 1
    with pytest.raises(spdl_rs.InvalidArgumentError, match="expected one number for each of the 1 boxes"):
        Loader([{**sample, "crowd": [0, 1]}], recipes.coco_detection(32), batch_size=1).peek()


# A wrong format would move all boxes, without an error.
def test_annotations_define_the_format_of_boxes(tmp_path):
    annotations = coco(tmp_path / "coco")
    image_set = tmp_path / "VOC/ImageSets/Main/person_train.txt"
    voc(tmp_path / "VOC")
    image = fields.Image(32, crop=Letterbox())

    def load(source, **settings):
        return Loader(source, batch_size=2, image=image, boxes=fields.Boxes(**settings))

    for source, settings, message in [
        (annotations, {"format": "xywh"}, "leave out format, or pass stored_as='bbox' for format='xywh'"),
        (annotations, {"format": "cxcywh"}, "'boxes' as format='xyxy' in pixels; leave out format$"),
        (annotations, {"normalized": True}, "leave out format and normalized"),
        (annotations, {"stored_as": "bbox"}, "'bbox' as format='xywh' in pixels; pass format='xywh'"),
        (annotations, {"stored_as": ["none", "boxes"], "format": "xywh"}, "leave out format"),
        (image_set, {"stored_as": "bndbox", "format": "xywh"}, "'bndbox' as format='xyxy' in pixels; leave out"),
        (sources.concat(annotations, annotations), {"format": "xywh"}, "leave out format"),
    ]:
        with pytest.raises(ValueError, match=f"boxes: the annotations define .*{message}"):
            load(source, **settings)
    for source, settings in [
        (annotations, {}),
        (annotations, {"stored_as": "bbox", "format": "xywh"}),
        (image_set, {"stored_as": "bndbox"}),
    ]:
        load(source, **settings).peek()


def test_values_of_boxes_without_rows_of_are_a_warning(tmp_path):
    annotations = coco(tmp_path / "coco")
    voc(tmp_path / "VOC")
    image = fields.Image(32, crop=Letterbox())
    numbers = fields.Array(None, "int64")

    def load(source, **more):
        return Loader(source, batch_size=2, image=image, **more)

    with pytest.warns(spdl_rs.DatasetWarning, match="'classes' has a value .* pass rows_of='found'") as caught:
        found = fields.Boxes(stored_as="boxes")
        load(sources.concat(annotations, annotations), found=found, classes=numbers, image_id=fields.Number("int64"))
    assert len(caught) == 1 and caught[0].filename == __file__.replace(".pyc", ".py")
    with pytest.warns(spdl_rs.DatasetWarning, match="'hard' has a value for each box"):
        hard = fields.Array(None, "int64", stored_as="difficult")
        load(tmp_path / "VOC/ImageSets/Segmentation/train.txt", boxes=fields.Boxes(), hard=hard)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(annotations, boxes=fields.Boxes(), classes=fields.Array(None, "int64", rows_of="boxes"))
        load(annotations, classes=numbers)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_pixels_outside_the_image_may_have_negative_numbers(tmp_path, dtype):
    voc(tmp_path)
    image = fields.Image((80, 80), crop=Letterbox())
    source = tmp_path / "ImageSets/Segmentation/train.txt"
    mask = Loader(source, batch_size=2, image=image, mask=fields.Mask(outside=-100, dtype=dtype)).peek()["mask"]
    # 80 x 60 pixels between 10 rows above and below.
    assert mask.dtype == dtype and (mask[:, :10] == -100).all() and (mask[:, 70:] == -100).all()
    assert [set(inner.flat) for inner in mask[:, 10:70]] == [{12}, {13}]


def voc(folder):
    """Writes two photos, their masks and annotations in the layout of Pascal VOC. Returns the annotations."""
    for name in ("Annotations", "JPEGImages", "SegmentationClass", "ImageSets/Segmentation", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    boxes = {"0": [("dog", (11, 21, 30, 40), 1), ("person", (1, 1, 80, 60), 0)], "1": []}
    texts = []
    for number, (name, objects) in enumerate(boxes.items()):
        write_png(folder / "JPEGImages" / f"{name}.png", picture(number))
        (folder / "SegmentationClass" / f"{name}.png").write_bytes(grey_png(numpy.full((60, 80), number + 12, "u1")))
        parts = [f"<annotation><filename>{name}.png</filename><segmented>1</segmented>"]
        for label, edges, difficult in objects:
            parts.append(f"<object><name>{label}</name><difficult>{difficult}</difficult><bndbox>")
            parts += [f"<{edge}>{value}</{edge}>" for edge, value in zip(("xmin", "ymin", "xmax", "ymax"), edges)]
            parts.append("</bndbox></object>")
        texts.append("".join([*parts, "</annotation>"]))
        (folder / "Annotations" / f"{name}.xml").write_text(texts[-1])
    (folder / "ImageSets/Segmentation/train.txt").write_text("0\n1\n")
    (folder / "ImageSets/Main/person_train.txt").write_text("0  1\n1 -1\n")
    return texts


def test_an_image_set_of_voc_is_a_data_set(tmp_path):
    texts = voc(tmp_path / "VOC")
    like = {
        "image": fields.Image((60, 80), crop=CenterCrop()),
        "mask": fields.Mask(),
        "boxes": fields.Boxes(),
        "stored": fields.Json(stored_as="bndbox"),
        "classes": fields.Array(None, "int64", rows_of="boxes"),
        "difficult": fields.Array(None, "int64", rows_of="boxes"),
    }
    source = tmp_path / "VOC/ImageSets/Segmentation/train.txt"
    loader = Loader(source, like, batch_size=2)
    assert len(loader.classes) == 20 and loader.classes[14] == "person"
    batch = loader.peek()
    assert (batch["image"][0] == picture(0)).all()
    assert [set(mask.flat) for mask in batch["mask"]] == [{12}, {13}]
    assert [boxes.tolist() for boxes in batch["boxes"]] == [[[10, 20, 30, 40], [0, 0, 80, 60]], []]
    assert [numbers.tolist() for numbers in batch["classes"]] == [[11, 14], []]
    assert [numbers.tolist() for numbers in batch["difficult"]] == [[1, 0], []]
    # The stored numbers are those that torchvision's VOCDetection returns as text.
    for text, boxes in zip(texts, batch["stored"]):
        parsed = xml.etree.ElementTree.fromstring(text).findall("object/bndbox")
        assert boxes == [[float(edge.text) for edge in bndbox] for bndbox in parsed]
    labels = Loader(tmp_path / "VOC/ImageSets/Main/person_train.txt", batch_size=2, label=fields.Label())
    assert labels.peek()["label"].tolist() == [1, -1]
    # A damaged file is an error of its sample.
    (tmp_path / "VOC/Annotations/1.xml").write_text(texts[1][:-5])
    with pytest.warns(spdl_rs.DatasetWarning, match="1.xml"):
        loader = Loader(source, like, batch_size=1, on_error="skip")
    assert [len(batch["image"]) for batch in loader] == [1]
    (dropped,) = loader.stats()["dropped"]
    assert "1.xml" in str(dropped)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="ImageSets/Segmentation/train.txt"):
        Loader(tmp_path / "VOC", like, batch_size=1)


def test_a_folder_of_images_needs_coco_annotations(tmp_path):
    write_png(tmp_path / "a.png", picture(0))
    (tmp_path / "list.csv").write_text("path\na.png\n")
    items = [{"image": (tmp_path / "a.png").read_bytes()}]
    for source in (tmp_path, tmp_path / "list.csv", [tmp_path / "a.png"], items):
        with pytest.raises(spdl_rs.InvalidArgumentError, match="folder of the images can be set only for COCO annotations"):
            Loader(source, batch_size=1, image_folder=tmp_path, image=fields.Image(16))


def test_a_row_without_an_image_is_an_error_or_optional(tmp_path):
    for number in range(2):
        write_png(tmp_path / f"{number}.png", picture(number))
    rows = [{"left": "0.png", "right": "1.png"}, {"left": "0.png"}]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def loader(right):
        crop = CenterCrop()
        left = fields.Image((60, 80), crop=crop)
        return Loader(tmp_path / "pairs.jsonl", batch_size=2, left=left, right=right)

    batch = loader(fields.Image((60, 80), crop=CenterCrop(), optional=True)).peek()
    assert (batch["right"][0] == picture(1)).all() and not batch["right"][1].any()
    with pytest.raises(spdl_rs.NotFoundError, match="the value is null"):
        list(loader(fields.Image((60, 80), crop=CenterCrop())))


def test_the_readme_program_runs(shard, tmp_path, monkeypatch):
    text = pathlib.Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (program,) = [program for program in programs if "fields.Mask" in program]
    (tmp_path / "shards").mkdir()
    for number in range(2):
        shutil.copy(shard, tmp_path / "shards" / f"train-{number:03}.tar")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    batch = names["batch"]
    assert len(names["loader"]) == 2 and len(batch["boxes"]) == 2 * SAMPLES - 32
    assert batch["image"].shape[1:] == (224, 224, 3) and batch["mask"].shape[1:] == (224, 224)
    assert [len(one) for one in batch["classes"]] == [len(one) for one in batch["boxes"]]


def test_the_geometry_maps_pixels_of_the_image_to_pixels_of_the_sample(tmp_path):
    rows, columns = numpy.mgrid[0:60, 0:80].astype("u1")
    write_png(tmp_path / "a.png", numpy.stack([3 * columns, 4 * rows, 0 * rows], -1))
    crop, drawn = RandomResizedCrop((0.1, 0.5)), set()
    loader = Loader(
        [tmp_path / "a.png"] * 12,
        batch_size=12,
        image=fields.Image((30, 40), crop=crop, horizontal_flip=0.5, vertical_flip=0.5),
        matrix=fields.Geometry(),
        size=fields.ImageSize(),
        points=fields.KeyPoints((2, 2), default=[[20.5, 10.5], [50.5, 40.5]], stored_as="none"),
    )
    batch = loader.peek()
    assert batch["size"].tolist() == [[60, 80]] * 12
    assert batch["matrix"].dtype == "f4" and batch["matrix"].shape == (12, 2, 3)
    for image, matrix, points in zip(batch["image"], batch["matrix"], batch["points"]):
        drawn.add(tuple(numpy.sign(matrix[[0, 1], [0, 1]])))
        stored = numpy.array([[20.5, 10.5], [50.5, 40.5]])
        assert numpy.allclose(stored @ matrix[:, :2].T + matrix[:, 2], points, atol=1e-3)
        # Each pixel shows its position in the stored image: compare the middle of the sample.
        at = numpy.linalg.solve(matrix[:, :2], [20.5, 15.5] - matrix[:, 2]) - 0.5
        assert numpy.abs(image[15, 20, :2] - at * [3, 4]).max() < 3
    # Both directions of both axes were drawn.
    assert {sign for sign, _ in drawn} == {sign for _, sign in drawn} == {-1, 1}
