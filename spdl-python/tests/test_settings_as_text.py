"""Fields, crops, augmentations and recipes as values: `repr`, comparison, copies and pickles."""

import copy
import dataclasses
import pathlib
import pickle
import random

import numpy
import pytest
import spdl_rs.io
from spdl_rs import Loader, fields, recipes

NAMES = {
    **vars(spdl_rs.io),
    **{name: getattr(fields, name) for name in fields.__all__},
    **{name: getattr(recipes, name) for name in recipes.__all__},
}
# Base classes, values of batches, and classes that are no settings.
OTHERS = {"Field", "Ragged", "Padded", "Crop", "Augmentation"}
CLASSES = [
    kind
    for name, kind in NAMES.items()
    if dataclasses.is_dataclass(kind)
    and isinstance(kind, type)
    and name not in OTHERS
    and issubclass(
        kind,
        (
            fields.Field,
            recipes.CopyPaste,
            recipes.Mix,
            recipes.Mosaic,
            spdl_rs.io.Crop,
            spdl_rs.io.Augmentation,
            spdl_rs.io.DecodeImage,
            spdl_rs.io.RandomIoUCrop,
            spdl_rs.io.RandomZoomOut,
        ),
    )
]


def some(draw, kind):
    """Values of an argument, by its name."""
    interval = (round(draw.uniform(0.1, 0.5), 3), round(draw.uniform(0.5, 0.9), 3))
    number = draw.choice([0, 0.25, numpy.float32(0.5), numpy.float64(0.125), 1])
    crops = (spdl_rs.io.Stretch(), spdl_rs.io.RandomCrop(4), spdl_rs.io.ResizedCenterCrop([5, 6]))
    augmentations = ("augmix", spdl_rs.io.ColorJitter(0.4), ["randaugment(2, 9)", spdl_rs.io.RandomInvert()])
    return {
        "stored_as": draw.choice(["jpg", ["a", "b"], ("it's", '"')]),
        "at": "a.0.ü",
        "optional": draw.choice([True, numpy.True_]),
        "default": _default(draw, kind),
        "missing": "drop",
        "exif_orientation": False,
        "member": "depth",
        "size": draw.choice([40, (40, 60), [40, numpy.int64(60)]]),
        "train": True,
        "layout": "nchw-f32",
        "crop": draw.choice(crops),
        "horizontal_flip": number,
        "vertical_flip": numpy.True_ if kind is spdl_rs.io.TenCrop else number,
        "filter": "bicubic",
        "color": "bgr",
        "exact": True,
        "augment": draw.choice(augmentations),
        "augmentations": augmentations[2] if kind is spdl_rs.io.RandomChoice else draw.choice(augmentations),
        "view": numpy.int32(3),
        "seed": numpy.uint64(2**63),
        "like": "photo",
        "outside": 255,
        "dtype": "int32" if kind is fields.Tokens else "uint16",
        "tokenizer": pathlib.Path("ü") / "tokenizer.json",
        "max_length": numpy.int32(7),
        "truncate": numpy.True_,
        "special_tokens": False,
        "stored_dtype": "uint16",
        "format": "xywh",
        "normalized": True,
        "min_area": number,
        "min_visibility": number,
        "drop_where": "crowd",
        "empty": "drop",
        "length": numpy.int32(9),
        "collate": "pad",
        "shape": draw.choice([(None, 17, 3), [None, 3, 2]]),
        "mirrored_pairs": [[0, 1], (numpy.int64(2), 3)],
        "rows_of": "boxes",
        "classes": 12 if kind is recipes.Mix else ["ü", "b"],
        "mixup": 0.8,
        "cutmix": numpy.float32(1),
        "sample_rate": numpy.int64(8000),
        "channels": draw.choice(["mono", numpy.int64(2)]),
        "trim_to_speech": numpy.float32(0.5),
        "channel": numpy.int8(1),
        "start": number,
        "duration": numpy.float32(2.5),
        "frames": numpy.int64(400),
        "style": draw.choice(["whisper", "fbank", "mfcc", "spectrogram"]),
        "bins": numpy.int64(12),
        "size": numpy.int64(64),
        "hop": numpy.int8(32),
        "probability": number,
        "cutmix_probability": number,
        "smoothing": number,
        "share": number,
        "image": "photo",
        "label": "class",
        "covering": draw.choice([[40, 50], numpy.int64(40)]),
        "fill": draw.choice([7, [1, 2, numpy.uint8(3)]]),
        "padding": numpy.int8(3),
        "brightness": draw.choice([numpy.float32(0.4), list(interval)]),
        "contrast": interval,
        "saturation": 0.1,
        "hue": [-0.1, numpy.float64(0.1)],
        "kernel_size": draw.choice([5, [3, numpy.int64(7)]]),
        "sigma": list(interval),
        "p": [numpy.float32(0.25), 1] if kind is spdl_rs.io.RandomChoice else number,
        "bits": numpy.int64(3),
        "threshold": numpy.float32(100),
        "sharpness_factor": 2,
        "degrees": draw.choice([30, [numpy.int64(-3), 5.5]]),
        "interpolation": "bilinear",
        "center": [0.25, numpy.float64(0.5)] if kind is recipes.Mosaic else [3, numpy.float64(4)],
        "translate": list(interval),
        "scale": 1 if kind is fields.Depth else list(interval),
        "shorter": numpy.int64(8) if kind is spdl_rs.io.Resize else draw.choice([[5, 9], (numpy.int64(3), 3)]),
        "longest": 20,
        "sizes": draw.choice([[40, (40, numpy.int64(60))], ((8, 16),)]),
        "random": numpy.True_,
        "multiple_of": numpy.int8(4),
        "ratio": list(interval),
        "shear": [1, 2, 3, numpy.float32(4)],
        "distortion_scale": numpy.float32(0.25),
        "value": draw.choice([7, "random", [1, 2, 3]]),
        "num_ops": numpy.int64(3),
        "magnitude": numpy.int64(8),
        "num_magnitude_bins": 15,
        "magnitude_std": draw.choice(["uniform", numpy.float32(0.5)]),
        "magnitude_max": 30,
        "increasing": numpy.True_,
        "severity": 5,
        "mixture_width": 4,
        "chain_depth": 2,
        "alpha": 0.5,
        "all_ops": False,
        "side_range": [numpy.int64(1), 2.5],
        "min_scale": numpy.float32(0.25),
        "max_scale": 0.5,
        "min_aspect_ratio": numpy.int8(1),
        "max_aspect_ratio": 3,
        "sampler_options": draw.choice([[0, numpy.float32(0.5)], (1,)]),
        "trials": numpy.int64(7),
        "zoom_out": spdl_rs.io.RandomZoomOut(7),
        "iou_crop": spdl_rs.io.RandomIoUCrop(sampler_options=[0.5]),
        "short": "repeat",
    }


def _default(draw, kind):
    choices = [numpy.arange(3), numpy.ones((1, 2), "f4"), [1, (2,)], "text", bytearray(b"\0b"), numpy.int8(4)]
    return draw.choice(choices[4:5] if issubclass(kind, fields.Image) else choices)


def drawn(kind, seed):
    """An object with some arguments, chosen at random."""
    draw = random.Random(seed)
    given = some(draw, kind)
    settings = {}
    for one in dataclasses.fields(kind):
        is_needed = one.default is dataclasses.MISSING and one.init
        unstored = (fields.Key, fields.Index, fields.Geometry, fields.ImageSize, fields.AudioFrames, fields.Url)
        unstored += (fields.VideoFrames, fields.VideoTimes)
        refused = (kind in unstored and one.name != "like") or (
            kind is fields.Label and one.name in ("at", "optional", "default")
        )
        if not is_needed and (refused or draw.random() < 0.4 or one.name in ("mean", "std", "on_truncated")):
            continue
        # A video gets its frames below.
        if not one.name.startswith("_") and one.name not in ("min_partial", "indices", "times", "every", "fps"):
            settings[one.name] = given[one.name]
    if kind is fields.Image:
        settings.pop("collate", None)
        if draw.random() < 0.3:
            settings.update(crop=spdl_rs.io.Resize(20), collate=draw.choice(["list", "pad"]))
            settings.pop("size", None)
        elif "zoom_out" in settings or "iou_crop" in settings:
            settings["crop"] = draw.choice([spdl_rs.io.Stretch(), spdl_rs.io.Letterbox(7)])
    if kind is fields.Video:
        for name in ("exact", "exif_orientation", "collate", "frames", "start", "random"):
            settings.pop(name, None)
        lists = ({"indices": [0, numpy.int64(2)]}, {"times": (0.5, numpy.float32(1.5)), "frames": 2})
        every = {"frames": numpy.int64(4), "every": draw.choice(["0.5s", numpy.int8(2)]), "start": 1}
        settings.update(draw.choice([*lists, every, {"fps": numpy.float32(5), "random": numpy.True_}, {}]))
    settings.pop("missing" if settings.keys() & {"optional", "default"} else "", None)
    settings.pop("member" if "stored_dtype" in settings else "", None)
    if "padding" in settings and kind is fields.Array:
        settings["collate"] = "pad"
    if issubclass(kind, fields.Audio):
        settings["dtype"] = draw.choice(["float32", "float16"])
        settings.pop("layout", None)
        if kind is fields.Audio:
            settings["layout"] = draw.choice(["planar", "interleaved"])
        settings.pop("channel" if "channels" in settings else "", None)
        settings.pop("random" if "frames" not in settings else "", None)
        is_fixed = "frames" in settings and ("channels" in settings or "channel" in settings)
        settings["collate"] = draw.choice(["list", "pad", "stack"] if is_fixed else ["list", "pad"])
        settings.pop("scale", None)
        if kind is fields.Audio:
            settings["start"] = numpy.float32(0.5)
        elif settings.get("style") == "spectrogram":
            settings.pop("bins", None)
        else:
            settings.pop("size", None)
            settings.pop("hop", None)
            if settings.get("style") in ("fbank", "mfcc"):
                settings["scale"] = numpy.float32(0.5)
    if kind is fields.Mel and "channels" in settings:
        settings["channels"] = draw.choice(["mono", numpy.int64(1)])
    if kind is recipes.Mix:
        settings.setdefault("mixup", 0.8)
    if kind is fields.Tokens:
        settings.pop("tokenizer" if "stored_dtype" in settings else "", None)
        settings.pop("truncate" if not settings.keys() & {"max_length", "length"} else "", None)
        if "length" in settings:
            settings["collate"] = "stack"
        elif "padding" in settings:
            settings["collate"] = "pad"
    if kind is fields.Label and not isinstance(settings.get("stored_as", ""), str):
        del settings["stored_as"]
    return kind(**settings)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_settings_are_values_and_python_expressions(kind):
    seen = set()
    for seed in range(40):
        value = drawn(kind, seed)
        text = repr(value)
        seen.add(text)
        for same in (eval(text, dict(NAMES)), pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert same == value and repr(same) == text and hash(same) == hash(value)
            assert type(same) is kind
        again = dataclasses.replace(value)
        assert again == value
        assert "numpy" not in text and "np." not in text
    assert len(seen) > 1 or kind in (fields.Key, fields.Index, fields.Url, spdl_rs.io.Stretch)
    # Every class is covered, and objects of other arguments differ.
    assert len({drawn(kind, seed) for seed in range(40)}) == len(seen)


def test_all_classes_of_settings_are_tested():
    found = {kind.__name__ for kind in CLASSES}
    assert {"Image", "Mask", "Boxes", "Label", "Mix", "RandomCrop", "TimmRandAugment", "DecodeImage", "Video"} <= found
    values = {name for name in fields.__all__ if isinstance(getattr(fields, name), type)}
    assert values - found == {"Field", "FieldSpec", "Ragged", "Padded"}
    assert len(found) == len(CLASSES) >= 38


RECIPES = [
    recipes.imagenet_train(64),
    recipes.imagenet_eval(64),
    recipes.deit(64),
    recipes.simclr(64),
    recipes.dino(64),
    recipes.clip(64),
    recipes.clip_eval(64, stored_as=["jpg", "png"]),
    recipes.deit_mix(10),
    recipes.coco_detection((48, 64)),
    recipes.ssd_detection(64),
    recipes.ade20k(64),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_recipes_are_values_and_python_expressions(recipe):
    assert eval(repr(recipe), dict(NAMES)) == recipe == pickle.loads(pickle.dumps(recipe))


def test_a_default_is_plain_and_means_the_same(photos):
    default = numpy.array([[1, 2], [3, 4]], "f4")
    field = fields.Array((2, 2), default=default)
    assert field.default == ((1, 2), (3, 4)) and field == eval(repr(field), dict(NAMES))
    (batch,) = Loader(photos, batch_size=4, array=field, raw=fields.Bytes(default=bytearray(b"x")))
    assert (batch["array"][0] == default).all() and batch["raw"] == [b"x"] * 4


def test_limits_of_boxes_are_checked():
    for limits in ({"min_area": float("inf")}, {"min_area": -1}, {"min_visibility": 1.5}, {"min_visibility": float("nan")}):
        with pytest.raises(ValueError, match=f"{next(iter(limits))} must be"):
            fields.Boxes(**limits)


def halve(sample):
    return sample


def test_the_repr_of_a_loader_shows_its_mix_and_functions(photos):
    image, label = fields.Image(16), fields.Label()
    mix = recipes.Mix(2, mixup=0.2)
    loader = Loader(
        photos, batch_size=2, image=image, label=label, mix=mix, map=halve, batch_map=lambda batch: batch
    )
    lines = repr(loader).splitlines()
    assert lines[-4:] == [
        f"  mix={mix!r},",
        "  map=halve,",
        "  batch_map=test_the_repr_of_a_loader_shows_its_mix_and_functions.<locals>.<lambda>,",
        ")",
    ]
    plain = repr(Loader(photos, batch_size=2, image=image))
    assert "mix" not in plain and "map" not in plain
