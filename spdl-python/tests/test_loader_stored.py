"""Fields of a `Loader`: arrays in stored bytes, missing values, addresses, alpha, 16 bits and orientations."""

import io
import pathlib
import struct
import warnings
import zlib

import numpy
import pytest
import spdl_rs
from arrow_columns import Columns
from conftest import picture, write_png
from dataset_files import write_members
from spdl_rs import ImageLoader, Loader, fields
from spdl_rs.io import CenterCrop, ColorJitter, DecodeImage, FiveCrop, Letterbox, Stretch

DATA = pathlib.Path(__file__).parents[2] / "spdl-media/tests/data"
MATRIX = numpy.arange(6, dtype="f4").reshape(2, 3) / 4


def npy(array):
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    numpy.savez_compressed(file, **arrays)
    return file.getvalue()


def png(pixels, color_type):
    """A PNG of `uint8` or `uint16`, by the standard library."""
    height, width = pixels.shape[:2]
    bits = 8 * pixels.itemsize
    rows = b"".join(b"\0" + row.astype(pixels.dtype.newbyteorder(">")).tobytes() for row in pixels)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def sources(tmp_path, name, value):
    """Sources with one sample, whose field `name` has these bytes."""
    write_members(tmp_path / "one.tar", [(f"1.{name}", value), ("1.txt", b"a")])
    (tmp_path / f"value.{name}").write_bytes(value)
    yield tmp_path / "one.tar"
    yield [{name: value}]
    yield [{name: tmp_path / f"value.{name}"}]
    yield Columns(**{name: [value]})


@pytest.mark.parametrize("value", [npy(MATRIX), npy(MATRIX.astype(">f8")), npz(matrix=MATRIX)])
def test_arrays_in_bytes_of_any_source_are_detected(tmp_path, value):
    name = "npy" if value[:1] == b"\x93" else "npz"
    for source in sources(tmp_path, name, value):
        loader = Loader(source, batch_size=1, x=fields.Array((None, 3), stored_as=name))
        (found,) = loader.peek()["x"]
        assert found.dtype == numpy.float32
        assert numpy.array_equal(found, MATRIX)


def test_a_member_of_an_npz_file_is_chosen_by_name(tmp_path):
    value = npz(matrix=MATRIX, ids=numpy.arange(4))
    for source in sources(tmp_path, "npz", value):
        ids = fields.Array(4, "int64", stored_as="npz", member="ids")
        batch = Loader(source, batch_size=1, ids=ids).peek()
        assert batch["ids"].tolist() == [[0, 1, 2, 3]]
    with pytest.raises(spdl_rs.InvalidArgumentError, match="several arrays, matrix, ids; choose a member") as caught:
        Loader([{"npz": value}], batch_size=1, x=fields.Array(4, stored_as="npz")).peek()
    assert "field \"x\"" in str(caught.value)
    with pytest.raises(spdl_rs.NotFoundError, match='no array "b" in the .npz file; the arrays are matrix, ids'):
        Loader([{"npz": value}], batch_size=1, x=fields.Array(4, stored_as="npz", member="b")).peek()


def test_files_of_folders_and_patterns_are_arrays_if_the_fields_are(tmp_path):
    for label, name in enumerate("ab"):
        (tmp_path / "npy" / name).mkdir(parents=True)
        for number in range(2):
            value = 2 * label + number
            (tmp_path / "npy" / name / f"{number}.npy").write_bytes(npy(MATRIX + value))
            (tmp_path / f"{value}.npz").write_bytes(npz(matrix=MATRIX + value))
            (tmp_path / f"{value}.dat").write_bytes((MATRIX + value).tobytes())
            (tmp_path / f"{value}.txt").write_bytes(b"no array")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "0.bin").write_bytes(MATRIX.tobytes())
    array, raw = fields.Array((2, 3)), fields.Array((2, 3), stored_dtype="float32")

    def firsts(source, **given):
        (batch,) = Loader(source, batch_size=8, **given)
        return batch["x"][:, 0, 0].tolist()

    (batch,) = Loader(tmp_path / "npy", batch_size=8, x=array, label=fields.Label())
    assert batch["x"][:, 0, 0].tolist() == [0, 1, 2, 3]
    assert batch["label"].tolist() == [0, 0, 1, 1]
    for field in array, fields.Array((2, 3), stored_as="array"):
        assert firsts(str(tmp_path / "npy" / "{b,a}" / "*.npy"), x=field) == [2, 3, 0, 1]
    assert firsts(str(tmp_path / "npy" / "b" / "*"), x=array) == [2, 3]
    assert firsts(str(tmp_path / "?.npz"), x=fields.Array((2, 3), member="matrix")) == [0, 1, 2, 3]
    assert firsts(str(tmp_path / "*.dat"), x=raw) == [0, 1, 2, 3]
    assert firsts(tmp_path / "bin", x=raw) == [0]
    files = [tmp_path / f"{number}.npz" for number in (3, 1)]
    assert firsts(files, x=array) == [3, 1]
    tokens = Loader(tmp_path / "bin", batch_size=1, ids=fields.Tokens(stored_dtype="uint16")).peek()
    assert len(tokens["ids"][0]) == 12


def test_messages_name_the_files_that_were_expected(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"")
    array = fields.Array((2, 3))
    expected = "expected files that end in npy, npz, bin, raw"
    with pytest.raises(spdl_rs.NotFoundError, match=f"no samples found: the folder holds 1 other file; {expected}"):
        Loader(tmp_path, batch_size=1, x=array)
    with pytest.raises(spdl_rs.NotFoundError, match=r"\*.npy: no file matches this pattern"):
        Loader(str(tmp_path / "*.npy"), batch_size=1, x=array)
    with pytest.raises(spdl_rs.NotFoundError, match="no file that matches this pattern ends in npy, npz, bin, raw"):
        Loader(str(tmp_path / "*"), batch_size=1, x=array)
    (tmp_path / "1.npy").write_bytes(npy(MATRIX))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="arrays, pass a folder, a pattern such as"):
        Loader(tmp_path / "1.npy", batch_size=1, x=array)


def test_patterns_match_images(tmp_path):
    for name in "b.png", "a.png":
        write_png(str(tmp_path / name), picture(3))
    (tmp_path / "list.md").write_bytes(b"no image")
    for pattern in "*.png", "*":
        loader = Loader(str(tmp_path / pattern), batch_size=9, image=fields.Image(8), key=fields.Key())
        (batch,) = loader
        assert [pathlib.Path(key).name for key in batch["key"]] == ["a.png", "b.png"]
        images, labels = next(iter(ImageLoader(str(tmp_path / pattern), batch_size=9, size=8)))
        assert numpy.array_equal(images, batch["image"])
        assert labels.tolist() == [-1, -1]


def test_raw_elements_have_the_shape_of_the_field(tmp_path):
    value = MATRIX.astype("<f2").tobytes()
    for source in sources(tmp_path, "bin", value):
        x = fields.Array((None, 3), stored_as="bin", stored_dtype="float16")
        (found,) = Loader(source, batch_size=1, x=x).peek()["x"]
        assert numpy.array_equal(found, MATRIX)
    (tmp_path / "a.bin").write_bytes(value)
    (tmp_path / "list.csv").write_text("features,id\na.bin,7\n")
    (tmp_path / "list.jsonl").write_text('{"features": "a.bin", "id": 7}\n')
    for source in (tmp_path / "list.csv", tmp_path / "list.jsonl"):
        features = fields.Array((2, 3), stored_dtype="float16")
        batch = Loader(source, batch_size=1, features=features, id=fields.Number("int64")).peek()
        assert numpy.array_equal(batch["features"][0], MATRIX)
        assert batch["id"].tolist() == [7]


@pytest.mark.parametrize("kind", ["tar", "dicts", "columns"])
def test_damaged_arrays_are_dropped_and_counted_with_key_and_field(tmp_path, kind):
    whole, cut = npy(MATRIX), npy(MATRIX)[:-1]
    values = [whole, cut, whole, b"\x93NUM", npy(MATRIX[:, :2])]
    if kind == "tar":
        write_members(tmp_path / "a.tar", [(f"{at}.bin", value) for at, value in enumerate(values)])
        source = tmp_path / "a.tar"
    else:
        source = [{"bin": value} for value in values]
        source = source if kind == "dicts" else Columns(bin=values)
    loader = Loader(source, batch_size=2, on_error="skip", x=fields.Array((None, 3), stored_as="bin"))
    assert [len(batch["x"]) for batch in loader] == [2]
    stats = loader.stats()
    assert stats["dropped_total"] == 3
    kinds = [one["kind"] for one in stats["dropped"]]
    assert sorted(kinds) == ["invalid-argument", "truncated", "truncated"]
    assert all(one["key"] and "field \"x\"" in one["reason"] for one in stats["dropped"])


def test_arguments_of_arrays_are_checked():
    with pytest.raises(ValueError, match="exclude each other"):
        fields.Array(3, member="a", stored_dtype="int8")
    with pytest.raises(ValueError, match="at most one dimension is None"):
        fields.Array((None, None), stored_dtype="int8")
    with pytest.raises(ValueError, match="stored_dtype"):
        fields.Array(3, stored_dtype="bfloat16")
    x = fields.Array((None, 3), stored_as="bin", stored_dtype="uint64")
    assert eval(repr(x), {"Array": fields.Array}) == x


def test_samples_without_a_value_are_dropped_whatever_on_error_is():
    texts = ["a", None, "c", None, "e"]
    samples = [{"text": text, "n": at} for at, text in enumerate(texts)] + [{"n": 5}]
    for on_error in ("raise", spdl_rs.skip(at_most=1)):
        loader = Loader(
            samples,
            batch_size=2,
            on_error=on_error,
            text=fields.Text(missing="drop"),
            n=fields.Number("int64"),
        )
        batches = list(loader)
        assert [batch["text"] for batch in batches] == [["a", "c"], ["e"]]
        assert [batch["n"].tolist() for batch in batches] == [[0, 2], [4]]
        stats = loader.stats()
        assert stats["dropped_total"] == 3
        assert {one["kind"] for one in stats["dropped"]} == {"missing-value"}
        (count,) = stats["dropped_counts"]
        assert (count["kind"], count["count"]) == ("missing-value", 3)
    columns = Columns(text=[text and text.encode() for text in texts])
    loader = Loader(columns, batch_size=8, text=fields.Text(missing="drop"))
    assert loader.peek()["text"] == ["a", "c", "e"]
    # Another error still follows `on_error`.
    bad = Loader([{"text": None, "n": 1}, {"text": "b", "n": "x"}], batch_size=1, text=fields.Text(missing="drop"), n=fields.Number())
    with pytest.raises(spdl_rs.InvalidArgumentError, match='field "n"'):
        list(bad)


@pytest.mark.parametrize("stored_as", [None, "label"])
def test_samples_without_a_label_are_dropped(tmp_path, stored_as):
    labels = [1, None, 0, -1, 2]
    samples = [{"n": at, "label": label} for at, label in enumerate(labels)] + [{"n": 5}]
    label = fields.Label(stored_as=stored_as, missing="drop")
    (tmp_path / "rows.csv").write_text("n,label\n0,1\n1,\n2,0\n3,-1\n4,2\n5,\n")
    for source in (samples, tmp_path / "rows.csv"):
        # No warning about labels that are -1.
        with warnings.catch_warnings():
            warnings.simplefilter("error", spdl_rs.DatasetWarning)
            loader = Loader(source, batch_size=2, n=fields.Number("int64"), label=label)
        batches = [(batch["n"].tolist(), batch["label"].tolist()) for batch in loader]
        assert batches == [([0, 2], [1, 0]), ([4], [2])]
        stats = loader.stats()
        assert stats["dropped_total"] == 3
        assert {(one["kind"], one["reason"]) for one in stats["dropped"]} == {("missing-value", "the sample has no label")}
    dropping = Loader(samples, batch_size=2, label=label)
    next(iter(dropping))
    keeping = Loader(samples, batch_size=2, label=fields.Label(stored_as=stored_as))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="label: was Label, not missing, is Label"):
        keeping.load_state_dict(dropping.state_dict())


def test_an_epoch_of_missing_values_only_is_an_error():
    loader = Loader([{"text": None}] * 3, batch_size=2, text=fields.Text(missing="drop"))
    with pytest.raises(spdl_rs.NotFoundError, match="null or missing") as caught:
        list(loader)
    assert caught.value.kind == "missing-value"


def test_a_loader_that_drops_missing_values_resumes_exactly():
    samples = [{"n": at, "text": None if at % 3 == 0 else str(at)} for at in range(40)]

    def loader():
        return Loader(samples, batch_size=3, shuffle=True, n=fields.Number("int64"), text=fields.Text(missing="drop"))

    whole = [batch["text"] for batch in loader()]
    assert len(whole) == 9
    first = loader()
    batches = iter(first)
    begun = [next(batches)["text"] for _ in range(4)]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert begun + [batch["text"] for batch in second] == whole


def test_missing_excludes_the_other_rules():
    for other in ({"optional": True}, {"default": "x"}):
        with pytest.raises(ValueError, match='missing="drop" excludes optional and default'):
            fields.Text(missing="drop", **other)
    with pytest.raises(ValueError, match="missing"):
        fields.Text(missing="skip")
    with pytest.raises(ValueError, match="Label has no argument default"):
        fields.Label(default=0)
    text = fields.Text(missing="drop")
    assert repr(text) == "Text(missing='drop')"


def test_the_address_is_that_of_the_file_or_shard(tmp_path, photos):
    loader = Loader(photos, batch_size=4, image=fields.Image(16), url=fields.Url())
    assert loader.peek()["url"] == [str(photos / name) for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")]
    assert loader.spec["url"] == fields.FieldSpec((), "str", "list")
    write_members(tmp_path / "a.tar", [("1.txt", b"x"), ("2.txt", b"y")])
    loader = Loader(tmp_path / "a.tar", batch_size=2, text=fields.Text(stored_as="txt"), url=fields.Url())
    assert loader.peek()["url"] == [str(tmp_path / "a.tar")] * 2
    assert Loader([{"x": 1}], batch_size=1, x=fields.Number(), url=fields.Url()).peek()["url"] == [""]
    found = []

    def keep(sample):
        found.append(sample["url"])
        return sample["url"].endswith("1.png")

    loader = Loader(photos, batch_size=4, image=fields.Image(16), url=fields.Url(), filter=keep)
    assert len(loader.peek()["url"]) == 2
    assert sorted(found) == [str(path) for path in sorted(photos.glob("*/*.png"))]


def test_alpha_is_kept_and_resized_premultiplied():
    pixels = numpy.zeros((8, 8, 4), "u1")
    pixels[:, ::2] = [255, 0, 0, 255]
    pixels[:, 1::2] = [0, 255, 0, 0]
    file = png(pixels, 6)
    whole = DecodeImage(8, color="rgba", crop=Stretch())(file)
    assert numpy.array_equal(whole, pixels)
    half = DecodeImage(4, color="rgba", crop=Stretch())(file)
    assert (half[..., :3] == [255, 0, 0]).all()
    assert (abs(half[..., 3].astype(int) - 128) < 24).all()
    planes = DecodeImage(8, color="rgba", crop=Stretch(), layout="nchw-f32", mean=(0, 0, 0), std=(1, 1, 1))(file)
    assert planes.shape == (4, 8, 8)
    assert numpy.allclose(planes, pixels.transpose(2, 0, 1) / 255)
    loader = Loader([{"image": file}] * 2, batch_size=2, image=fields.Image(8, color="rgba", crop=Stretch()))
    assert numpy.array_equal(loader.peek()["image"], [pixels, pixels])
    opaque = DecodeImage(8, color="rgba", crop=Stretch())(png(picture(1, 8, 8), 2))
    assert (opaque[..., 3] == 255).all()


def test_16_bits_are_kept():
    rng = numpy.random.default_rng(1)
    rgb = rng.integers(0, 65536, (8, 8, 3), "u2")
    kept = DecodeImage(8, crop=CenterCrop(), layout="nhwc-u16")(png(rgb, 2))
    assert kept.dtype == numpy.uint16
    assert numpy.array_equal(kept, rgb)
    grey = DecodeImage(8, crop=CenterCrop(), layout="nchw-u16", color="grey")(png(rgb[..., :1], 0))
    assert numpy.array_equal(grey, rgb[..., 0][None])
    levels = picture(2, 8, 8)
    wide = DecodeImage(8, crop=CenterCrop(), layout="nhwc-u16")(png(levels, 2))
    assert numpy.array_equal(wide, levels.astype("u2") * 257)
    image = fields.Image(8, crop=CenterCrop(), layout="nhwc-u16")
    loader = Loader([{"image": png(rgb, 2)}], batch_size=1, image=image)
    assert loader.spec["image"] == fields.FieldSpec((8, 8, 3), "uint16", "stack")
    assert numpy.array_equal(loader.peek()["image"], rgb[None])


def test_values_without_normalisation_are_0_to_1():
    levels = picture(3, 16, 16)
    decode = DecodeImage(16, crop=Stretch(), layout="nhwc-f32", mean=(0, 0, 0), std=(1, 1, 1))
    assert numpy.allclose(decode(png(levels, 2)), levels / 255, atol=1e-7)


@pytest.mark.parametrize("kept", [{"color": "rgba"}, {"layout": "nhwc-u16"}])
def test_what_supports_rgb_of_8_bits_only_refuses_alpha_and_16_bits(kept):
    for other in ({"augment": ColorJitter(0.4)}, {"crop": FiveCrop()}):
        for image in (fields.Image, DecodeImage):
            with pytest.raises(Exception, match="only for RGB, BGR and grey of 8 bits"):
                image(16, **kept, **other)
    with pytest.raises((ValueError, spdl_rs.SpdlError)):
        fields.Video(16, **kept)


def test_invalid_combinations_of_images_are_refused(photos):
    with pytest.raises(ValueError, match="whose pixels are from 0 to 65535"):
        fields.Image(16, layout="nhwc-u16", mean=(0, 0, 0), std=(1, 1, 1))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="layout must be one of"):
        ImageLoader(photos, batch_size=1, layout="nhwc-u16")
    with pytest.raises(ValueError, match="exif_orientation=False is not supported for video"):
        fields.Video(16, exif_orientation=False)
    with pytest.raises(TypeError, match="exif_orientation"):
        fields.Image(16, exif_orientation="no")


def test_an_exif_orientation_is_applied_unless_it_is_disabled(tmp_path):
    file = (DATA / "orientation-6.png").read_bytes()
    sizes = {}
    for exif in (True, False):
        samples = [{"image": file, "boxes": [[0, 0, 20, 30]]}]
        loader = Loader(
            samples,
            batch_size=1,
            image=fields.Image(16, crop=Stretch(), exif_orientation=exif),
            size=fields.ImageSize(),
            boxes=fields.Boxes(),
        )
        batch = loader.peek()
        sizes[exif] = batch["size"][0].tolist()
        height, width = sizes[exif]
        expected = [0, 0, 20 * 16 / width, 30 * 16 / height]
        assert numpy.allclose(batch["boxes"][0], [expected], atol=1e-4) or 30 > height
    assert sizes[True] == sizes[False][::-1]
    assert sizes[True][0] != sizes[True][1]
    turned = DecodeImage(16, crop=Stretch())(file)
    stored = DecodeImage(16, crop=Stretch(), exif_orientation=False)(file)
    assert not numpy.array_equal(turned, stored)


def test_dropped_missing_images_of_a_list_do_not_need_their_file(tmp_path):
    write_png(str(tmp_path / "a.png"), picture(0))
    (tmp_path / "list.csv").write_text("path,mask\na.png,\na.png,a.png\n")
    loader = Loader(
        tmp_path / "list.csv",
        batch_size=2,
        image=fields.Image(16, stored_as="file"),
        second=fields.Image(16, stored_as="mask", missing="drop"),
    )
    assert len(loader.peek()["image"]) == 1


def test_fields_are_found_by_the_names_that_pack_gives(tmp_path):
    pixels = numpy.arange(48, dtype="u1").reshape(6, 8)
    grey = png(pixels, 0)
    members = []
    for number in range(2):
        members += [
            (f"{number}.jpg", png(numpy.zeros((6, 8, 3), "u1"), 2)),
            (f"{number}.caption.txt", b"a cat"),
            (f"{number}.meta.json", b'{"a": 1}'),
            (f"{number}.vector.npy", npy(MATRIX)),
            (f"{number}.mask.png", grey),
            (f"{number}.left.png", png(numpy.full((6, 8, 3), 255, "u1"), 2)),
        ]
    write_members(tmp_path / "a.tar", members)
    loader = Loader(
        tmp_path / "a.tar",
        batch_size=2,
        image=fields.Image((6, 8), crop=Stretch()),
        left=fields.Image((6, 8), crop=Stretch()),
        mask=fields.Mask(),
        caption=fields.Text(),
        meta=fields.Json(),
        vector=fields.Array((2, 3)),
    )
    batch = loader.peek()
    assert batch["caption"] == ["a cat"] * 2 and batch["meta"] == [{"a": 1}] * 2
    assert (batch["vector"] == MATRIX).all() and (batch["mask"] == pixels).all()
    # Not the image of the common name.
    assert batch["image"].max() == 0 and batch["left"].min() == 255
    with pytest.raises(spdl_rs.NotFoundError, match='no field "other": the sample has the fields .*; pass the name of a') as caught:
        list(Loader(tmp_path / "a.tar", batch_size=1, other=fields.Text()))
    assert "`stored_as=`" in str(caught.value)
    write_members(tmp_path / "b.tar", [("0.txt", b"x")])
    with pytest.raises(spdl_rs.NotFoundError, match="other usual names") as caught:
        list(Loader(tmp_path / "b.tar", batch_size=1, image=fields.Image(6)))
    assert str(caught.value).count("image") < 4 and len(str(caught.value)) < 250


def test_paths_and_addresses_in_place_of_images_are_explained(tmp_path):
    def message(value):
        with pytest.raises(spdl_rs.InvalidArgumentError) as caught:
            list(Loader([{"image": value}], batch_size=1, image=fields.Image(6)))
        return str(caught.value)

    assert "found text; to read files, pass paths in place of text (in dicts of Python, a pathlib.Path)" in message("a.png")
    assert "to read addresses, write the column to a list (.csv or .jsonl)" in message("http://a/b.png?secret=1")
    # The way out.
    write_png(str(tmp_path / "a.png"), picture(0))
    (tmp_path / "list.csv").write_text(f"image\nfile://{tmp_path}/a.png\n")
    assert len(Loader(tmp_path / "list.csv", batch_size=1, image=fields.Image(6)).peek()["image"]) == 1


def test_files_that_a_parquet_file_only_names_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_png(str(tmp_path / "a.png"), picture(0))
    images = pyarrow.array(
        [{"bytes": None, "path": path} for path in (str(tmp_path / "a.png"), "a.png")],
        pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]),
    )
    table = pyarrow.table({"image": images})
    parquet.write_table(table, tmp_path / "a.parquet")
    batch = Loader(tmp_path / "a.parquet", batch_size=2, image=fields.Image(6)).peek()["image"]
    expected = Loader(table.slice(0, 1), batch_size=1, image=fields.Image(6)).peek()["image"][0]
    assert all(numpy.array_equal(image, expected) for image in batch)


def test_padding_of_masks_needs_a_number(tmp_path):
    sample = {"image": png(numpy.zeros((6, 8, 3), "u1"), 2), "mask": png(numpy.ones((6, 8), "u1"), 0)}

    def make(crop, **settings):
        image = fields.Image(16, crop=crop)
        return Loader([sample], batch_size=1, image=image, mask=fields.Mask(**settings)).peek()["mask"]

    with pytest.warns(spdl_rs.DatasetWarning, match="'mask': Letterbox may pad the image, and the mask has 0 there"):
        assert set(make(Letterbox()).ravel()) == {0, 1}
    assert set(make(Letterbox(), outside=255).ravel()) == {1, 255}
    assert set(make(Letterbox(), outside=0).ravel()) == {0, 1}
    assert set(make(Stretch()).ravel()) == {1}
