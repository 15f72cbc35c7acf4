"""Invalid samples of a `Loader`: errors name the sample and the field, or the sample is dropped and counted."""

# promise of this file: PY7

import io
import json
import math
import os
import tarfile

import numpy
import pytest
import spdl_rs
from arrow_columns import Columns
from conftest import picture, write_png
from dataset_files import write_members
from spdl_rs import Loader, fields
from spdl_rs.io import CenterCrop
from test_loader import grey_png

# The sample with this number is invalid.
BAD, COUNT = 1, 3


def tar_of(folder, rows):
    """A tar shard of rows: dicts of extensions and bytes, text or values for JSON."""
    members = []
    for number, row in enumerate(rows):
        for name, value in row.items():
            value = value if isinstance(value, (bytes, str)) else json.dumps(value)
            members.append((f"{number}.{name}", value.encode() if isinstance(value, str) else value))
    write_members(folder / "shard.tar", members)
    return folder / "shard.tar"


def dicts_of(folder, rows):
    return rows


def columns_of(folder, rows):
    def cell(value):
        return value.encode() if isinstance(value, str) else value

    return Columns(**{name: [cell(row[name]) for row in rows] for name in rows[0]})


SOURCES = {"tar": tar_of, "dicts": dicts_of, "Arrow": columns_of}
KEYS = {"tar": "shard.tar:{}", "dicts": "list:{}", "Arrow": "{}"}


def npy(values):
    file = io.BytesIO()
    numpy.save(file, numpy.asarray(values))
    return file.getvalue()


def png(pixels, folder):
    write_png(str(folder / "image.png"), pixels)
    return (folder / "image.png").read_bytes()


def image_and(name, field):
    image = fields.Image((60, 80), crop=CenterCrop())
    return {"image": image, name: field}


# Field, valid and invalid value, error, words of its message, sources.
VALUES = {
    "truncated npy": (
        fields.Array(3, "float64", stored_as="npy"),
        ({"npy": npy([1.0, 2, 3])}, {"npy": npy([1.0, 2, 3])[:-5]}),
        (spdl_rs.TruncatedError, 'field "npy": the .npy file ends inside the data'),
        ["tar"],
    ),
    "truncated header of npy": (
        fields.Array(3, "float64", stored_as="npy"),
        ({"npy": npy([1.0, 2, 3])}, {"npy": npy([1.0, 2, 3])[:40]}),
        (spdl_rs.TruncatedError, 'field "npy": the .npy file ends inside the header'),
        ["tar"],
    ),
    "long text": (
        fields.Text(stored_as="txt"),
        ({"txt": "a"}, {"txt": "a" * 5000}),
        (spdl_rs.LimitExceededError, 'exceeds the limit of 1000 bytes; its largest field "txt" has 5000 bytes'),
        ["tar", "dicts", "Arrow"],
    ),
    "text that is not UTF-8": (
        fields.Text(stored_as="txt"),
        ({"txt": b"a"}, {"txt": b"a\xff"}),
        (spdl_rs.CorruptError, "UTF-8"),
        ["tar", "dicts", "Arrow"],
    ),
    "another JSON document": (
        fields.Number(stored_as="json", at="score.0"),
        ({"json": {"score": [1]}}, {"json": {"scores": [1]}}),
        (spdl_rs.NotFoundError, 'no value at "score.0" of field "json"'),
        ["tar", "dicts"],
    ),
    "invalid JSON": (
        fields.Json(stored_as="json"),
        ({"json": "{}"}, {"json": "{,}"}),
        (spdl_rs.CorruptError, "JSON"),
        ["tar"],
    ),
    "NaN as an integer": (
        fields.Number("int64", stored_as="number"),
        ({"number": 1.0}, {"number": math.nan}),
        (spdl_rs.InvalidArgumentError, "cannot store NaN as int64"),
        ["dicts"],
    ),
    "NaN in an array": (
        fields.Array(2, "int32", stored_as="npy"),
        ({"npy": npy([1.0, 2.0])}, {"npy": npy([1.0, math.nan])}),
        (spdl_rs.InvalidArgumentError, "cannot store NaN as int32"),
        ["tar"],
    ),
    "NaN in JSON": (
        fields.Number(stored_as="json", at="score"),
        ({"json": '{"score": 1}'}, {"json": '{"score": NaN}'}),
        (spdl_rs.CorruptError, "JSON"),
        ["tar"],
    ),
}


def check(source, key, own, error, words, **settings):
    """The invalid sample is an error that names it and its field `x`, or it is dropped."""
    own = {**own, "key": fields.Key()}
    with pytest.raises(error) as raised:
        list(Loader(source, own, batch_size=COUNT, **settings))
    message = str(raised.value)
    assert words in message, message
    # The key of an error of stored data is the member of the sample. Its message has the stored field.
    stored = own["x"].stored_as
    assert key in raised.value.key, raised.value.key
    assert 'field "x"' in message or f'field "{stored}"' in message, message
    loader = Loader(source, own, batch_size=COUNT, on_error="skip", **settings)
    found = [key for batch in loader for key in batch["key"]]
    assert len(found) == COUNT - 1 and not any(one.endswith(key) for one in found)
    statistics = loader.stats()
    (dropped,) = statistics["dropped"]
    assert statistics["dropped_total"] == 1 and key in dropped["key"]
    assert words in dropped["reason"] and dropped["kind"] == raised.value.kind
    assert 'field "x"' in dropped["reason"] or f'field "{stored}"' in dropped["reason"]


@pytest.mark.parametrize(
    ("case", "kind"), [(case, kind) for case, (*_, kinds) in VALUES.items() for kind in kinds]
)
def test_invalid_values_are_errors_or_dropped(case, kind, tmp_path):
    field, (valid, invalid), (error, words), _ = VALUES[case]
    rows = [invalid if number == BAD else valid for number in range(COUNT)]
    source = SOURCES[kind](tmp_path, rows)
    check(source, KEYS[kind].format(BAD), {"x": field}, error, words, max_file_bytes=1000)


POSITIONS = {
    "a mask of another size": ("seg.png", "the mask has 80x50 pixels, but its image has 80x60"),
    "a box outside": ("boxes", "box 0 is outside the image of 80x60 pixels"),
    "a box of NaN": ("boxes", "box 0 is not valid: [1.0, 2.0, NaN, 4.0]"),
    "a point of NaN": ("points", "point 0 is not valid: [1, NaN]"),
}


@pytest.mark.parametrize(
    ("case", "kind"),
    # JSON has no NaN.
    [(case, kind) for case in POSITIONS for kind in SOURCES if kind == "dicts" or kind == "tar" and "NaN" not in case],
)
def test_invalid_positions_and_masks_are_errors_or_dropped(case, kind, tmp_path):
    name, words = POSITIONS[case]
    boxes = [[90, 50, 99, 60]] if case == "a box outside" else [[1.0, 2, math.nan, 4]]
    stored, own, settings = {
        "seg.png": ((grey_png(numpy.zeros((60, 80), "u1")), grey_png(numpy.zeros((50, 80), "u1"))), fields.Mask, {}),
        "boxes": (([[1, 2, 3, 4]], boxes), fields.Boxes, {}),
        "points": (([[1, 2]], [[1.0, math.nan]]), fields.KeyPoints, {"shape": (1, 2)}),
    }[name]
    rows = []
    for number in range(COUNT):
        value = stored[number == BAD]
        row = {"png": png(picture(number), tmp_path)}
        is_json = kind == "tar" and name != "seg.png"
        rows.append({**row, "json": {name: value}} if is_json else {**row, name: value})
    place = {"stored_as": "json", "at": name} if kind == "tar" and name != "seg.png" else {"stored_as": name}
    source = SOURCES[kind](tmp_path, rows)
    own = image_and("x", own(**settings, **place))
    own["image"] = fields.Image((60, 80), crop=CenterCrop(), stored_as="png")
    check(source, KEYS[kind].format(BAD), own, spdl_rs.InvalidArgumentError, words)


def test_boxes_that_seem_to_be_fractions_are_logged_once(tmp_path, caplog):
    write_png(str(tmp_path / "a.png"), picture(0))
    image = (tmp_path / "a.png").read_bytes()

    def messages(boxes, **settings):
        caplog.clear()
        source = [{"image": image, "boxes": numpy.array(each, "f4").reshape(-1, 4)} for each in boxes]
        loader = Loader(source, batch_size=2, image=fields.Image(16), boxes=fields.Boxes(**settings))
        for _ in range(2):
            list(loader)
        return [each.getMessage() for each in caplog.records if each.name == "spdl_rs"]

    fractions, pixels = [[0.1, 0.1, 0.5, 0.9]], [[0.5, 0.5, 20, 30]]
    [message] = messages([[], fractions, fractions])
    assert message.startswith("boxes: the boxes of the sample") and ":1\" are within 0 to 1" in message
    assert "normalized=True" in message
    assert messages([fractions, fractions], normalized=True) == []
    assert messages([pixels, pixels]) == []


def test_a_text_of_more_than_2_gib_is_refused_before_it_is_read(tmp_path):
    size = 2**31 + 10
    with open(tmp_path / "shard.tar", "wb") as file:
        for number, length in enumerate([1, size, 1]):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = length
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            # The content is a hole of zeros.
            file.seek(-(-length // 512) * 512, os.SEEK_CUR)
        file.write(bytes(1024))

    def loader(**settings):
        sample_fields = {"text": fields.Text(stored_as="txt"), "key": fields.Key()}
        return Loader(tmp_path / "shard.tar", sample_fields, batch_size=1, **settings)

    words = f'exceeds the limit of {2**26} bytes; its largest field "txt" has {size} bytes'
    with pytest.raises(spdl_rs.LimitExceededError, match=words) as caught:
        list(loader())
    assert caught.value.key.endswith("shard.tar:1")
    skipping = loader(on_error="skip")
    assert [batch["key"][0][-1] for batch in skipping] == ["0", "2"]
    (dropped,) = skipping.stats()["dropped"]
    assert dropped["kind"] == "limit-exceeded" and dropped["key"].endswith("shard.tar:1")
    assert skipping.stats()["dropped_total"] == 1
