"""Equal images from every kind of data set and store."""

import json
import pathlib
import shutil

import numpy
import pytest
import spdl_rs
from dataset_files import (
    write_csv,
    write_jsonl,
    write_litdata,
    write_lmdb,
    write_mds,
    write_members,
    write_recordio,
    write_tar,
    write_tfrecord,
    write_zip,
)
from servers import serving

PARQUET = pathlib.Path(__file__).parents[2] / "spdl-io/tests/data/parquet/images.parquet"


@pytest.fixture(scope="module")
def samples(many):
    """Names, file contents and labels of `many`, in the order of the folder."""
    paths = sorted(many.glob("*/*.png"))
    return [
        (path.stem, path.read_bytes(), int(path.parent.name.removeprefix("class")))
        for path in paths
    ]


@pytest.fixture(scope="module")
def everything(many, samples, tmp_path_factory):
    """The images of `many` in all formats that can be written without packages."""
    root = tmp_path_factory.mktemp("everything")
    shutil.copytree(many, root / "photos")
    for number in range(3):
        part = samples[number * 15 : number * 15 + 15]
        write_tar(root / f"shard-{number:03}.tar", part)
        write_tfrecord(root / f"part-{number}.tfrecord", part)
    names = [f"photos/class{label}/{name}.png" for name, _, label in samples]
    (root / "list.txt").write_text("".join(f"{name}\n" for name in names))
    labels = [label for _, _, label in samples]
    write_csv(root / "list.csv", zip(names, labels))
    write_jsonl(root / "list.jsonl", zip(names, labels))
    write_mds(root / "mds", samples)
    write_litdata(root / "litdata", samples)
    write_recordio(root / "all.rec", samples)
    (root / "train_lmdb").mkdir()
    # The order of the keys is the order of the samples.
    numbered = [(f"{number:02}", *sample[1:]) for number, sample in enumerate(samples)]
    write_lmdb(root / "train_lmdb" / "data.mdb", numbered)
    (root / "train_lmdb" / "lock.mdb").write_bytes(b"")
    write_zip(root / "photos.zip", [(f"class{label}/{name}.png", image) for name, image, label in samples])
    (root / "zips").mkdir()
    members = [(f"{number:02}.{kind}", data) for number, (_, image, label) in enumerate(samples) for kind, data in (("png", image), ("cls", str(label)))]
    write_zip(root / "zips" / "1.zip", members[:40])
    write_zip(root / "zips" / "2.zip", members[40:])
    (root / "tars").mkdir()
    for number in range(3):
        shutil.copy(root / f"shard-{number:03}.tar", root / "tars")
    return root


def load(source, **settings):
    loader = spdl_rs.ImageLoader(source, **{"batch_size": 16, "size": 32, **settings})
    batches = list(loader)
    assert len(batches) == len(loader)
    return (
        numpy.concatenate([images for images, _ in batches]),
        numpy.concatenate([labels for _, labels in batches]),
    )


def assert_same(found, expected):
    assert (found[0] == expected[0]).all()
    assert found[1].tolist() == expected[1].tolist()


SHARDS = ["shard-000.tar", "shard-001.tar", "shard-002.tar"]


@pytest.mark.parametrize(
    "names",
    [
        "photos",
        "shard-{000..002}.tar",
        "shard-*.tar",
        SHARDS,
        "tars",
        "part-{0..2}.tfrecord",
        ["part-0.tfrecord", "part-1.tfrecord", "part-2.tfrecord"],
        "list.csv",
        "list.jsonl",
        "mds",
        "mds/index.json",
        "litdata",
        "litdata/index.json",
        "all.rec",
        "train_lmdb",
        "train_lmdb/data.mdb",
        "photos.zip",
        "zips",
        "zips/{1,2}.zip",
    ],
    ids=str,
)
@pytest.mark.parametrize("train", [False, True])
def test_every_format_gives_the_images_and_labels_of_the_folder(everything, many, names, train):
    expected = load(many, train=train)
    source = (
        [everything / name for name in names] if isinstance(names, list) else everything / names
    )
    assert_same(load(source, train=train), expected)


@pytest.mark.parametrize(
    "names",
    ["photos", "tars", "part-{0..2}.tfrecord", "list.csv", "mds", "litdata", "all.rec", "train_lmdb", "photos.zip", "zips", "imagenet/LOC_val_solution.csv", "VOC/ImageSets/Main/dog_val.txt"],
)
def test_every_format_resumes_exactly_on_any_number_of_threads(everything, samples, names):
    if not (everything / "VOC").exists():
        write_voc(everything / "VOC", samples)
        write_imagenet(everything / "imagenet", samples)

    def loader(threads):
        settings = {"batch_size": 7, "size": 16, "train": True, "threads": threads, "seed": 3}
        return spdl_rs.ImageLoader(everything / names, **settings)

    def copies(batches):
        return [(images.tobytes(), labels.tolist()) for images, labels in batches]

    expected = copies(loader(1))
    assert copies(loader(3)) == expected
    assert len({label for _, labels in expected for label in labels}) > 1
    for step in (1, 4):
        interrupted = loader(2)
        batches = iter(interrupted)
        begin = copies([next(batches) for _ in range(step)])
        resumed = loader(3)
        resumed.load_state_dict(interrupted.state_dict())
        batches.close()
        assert begin + copies(resumed) == expected


def write_voc(folder, samples):
    lines = []
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for number, (_, image, label) in enumerate(samples):
        (folder / "JPEGImages" / f"{number}.png").write_bytes(image)
        (folder / "Annotations" / f"{number}.xml").write_text(f"<annotation><filename>{number}.png</filename></annotation>")
        lines.append(f"{number}  {label % 3 - 1}\n")
    (folder / "ImageSets/Main/dog_val.txt").write_text("".join(lines))


def write_imagenet(folder, samples):
    (folder / "val").mkdir(parents=True)
    lines = ["ImageId,PredictionString\n"]
    for number, (_, image, label) in enumerate(samples, start=1):
        # The format is detected from the content.
        (folder / "val" / f"ILSVRC2012_val_{number:08}.JPEG").write_bytes(image)
        lines.append(f"ILSVRC2012_val_{number:08},n0144076{9 - label} 1 2 3 4\n")
    (folder / "LOC_val_solution.csv").write_text("".join(lines))


def test_labels_of_imagenet_equal_those_of_folders_of_classes(samples, tmp_path):
    write_imagenet(tmp_path, samples)
    loader = spdl_rs.ImageLoader(tmp_path / "LOC_val_solution.csv", batch_size=64, size=16)
    ((_, labels),) = loader
    assert labels.tolist() == [4 - label for _, _, label in samples]
    assert loader.classes == sorted(f"n0144076{9 - label}" for label in range(5))
    with pytest.warns(spdl_rs.DatasetWarning, match="LOC_val_solution.csv"):
        spdl_rs.ImageLoader(tmp_path / "val", batch_size=1)


def test_a_list_of_names_has_no_labels(everything, many):
    images, labels = load(everything / "list.txt")
    assert (images == load(many)[0]).all() and set(labels.tolist()) == {-1}


@pytest.mark.parametrize(
    "names",
    [
        "shard-{000..002}.tar",
        SHARDS,
        "part-{0..2}.tfrecord",
        "list.csv",
        "mds/index.json",
        "litdata/index.json",
        "all.rec",
        "train_lmdb/data.mdb",
        "photos.zip",
        "zips/{1,2}.zip",
    ],
    ids=str,
)
def test_a_web_server_gives_the_images_of_the_folder(everything, many, names):
    with serving(everything) as server:
        source = (
            [f"{server.address}/{name}" for name in names]
            if isinstance(names, list)
            else f"{server.address}/{names}"
        )
        loader = spdl_rs.ImageLoader(source, batch_size=16, size=32, train=True)
        for epoch in range(2):
            found = [(images.copy(), labels) for images, labels in loader]
            expected = spdl_rs.ImageLoader(many, batch_size=16, size=32, train=True)
            expected.set_epoch(epoch)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)


def test_a_list_of_urls_with_labels(everything, many, samples):
    with serving(everything) as server:
        names = [f"photos/class{label}/{name}.png" for name, _, label in samples]
        addresses = [f"{server.address}/{name}" for name in names]
        found = load(addresses, labels=[label for _, _, label in samples])
        assert_same(found, load(many))
        assert set(load(addresses)[1].tolist()) == {-1}


@pytest.mark.parametrize(
    "names",
    [
        "photos",
        "shard-{000..002}.tar",
        "shard-*.tar",
        "tars/",
        SHARDS,
        "list.csv",
        "mds",
        "litdata/",
        "train_lmdb/",
        "photos.zip",
        "zips/*.zip",
    ],
    ids=str,
)
def test_an_object_store_gives_the_images_of_the_folder(everything, many, names, monkeypatch):
    with serving(everything.parent) as server:
        for name, value in {
            "AWS_ENDPOINT_URL": server.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "canary",
        }.items():
            monkeypatch.setenv(name, value)
        bucket = f"s3://{everything.name}"
        source = (
            [f"{bucket}/{name}" for name in names]
            if isinstance(names, list)
            else f"{bucket}/{names}"
        )
        loader = spdl_rs.ImageLoader(source, batch_size=16, size=32)
        assert_same(load(source), load(many))
        assert bucket in repr(loader) and "canary" not in repr(loader)
        if names in ("photos", "photos.zip", "list.csv"):
            expected = [] if names == "list.csv" else [f"class{number}" for number in range(5)]
            assert loader.classes == expected


def test_a_data_set_of_hugging_face_gives_the_images_of_the_folder(everything, many, tmp_path, monkeypatch):
    files = tmp_path / "datasets/me/pets/resolve/main"
    shutil.copytree(everything / "zips", files / "data")
    tree = tmp_path / "api/datasets/me/pets/tree/main"
    tree.mkdir(parents=True)
    (tree / "data").write_text(
        json.dumps([{"type": "file", "path": f"data/{path.name}", "size": path.stat().st_size} for path in (files / "data").iterdir()])
    )
    with serving(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", "hf_canary")
        for name in ("{1,2}.zip", "*.zip", ""):
            loader = spdl_rs.ImageLoader(f"hf://datasets/me/pets/data/{name}", batch_size=16, size=32)
            assert_same(load(f"hf://datasets/me/pets@main/data/{name}"), load(many))
            assert "hf://datasets/me/pets" in repr(loader) and "canary" not in f"{loader!r} {loader.stats()}"
        with pytest.raises(spdl_rs.NotFoundError) as caught:
            spdl_rs.ImageLoader("hf://datasets/me/pets/gone.tar", batch_size=1)
        assert "hf_canary" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["http://h/x", "https://h/x", "s3://b/x", "gs://b/x", "az://b/x", "hf://datasets/a/b/x"]
)
def test_every_store_is_built_in(address, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    loader = [f"{address}.png"]
    # Stores are contacted only when an epoch starts.
    assert len(spdl_rs.ImageLoader(loader, batch_size=1)) == 1


def test_hugging_face_parquet_is_read(tmp_path):
    if not PARQUET.is_file():
        pytest.skip("the golden Parquet files of the repository are missing")
    shutil.copy(PARQUET, tmp_path / "train-00000.parquet")
    loader = spdl_rs.ImageLoader(tmp_path / "train-*.parquet", batch_size=64, size=8)
    ((images, labels),) = loader
    assert images.shape[1:] == (8, 8, 3) and len(images) == len(labels) > 1
    assert labels[:2].tolist() == [0, 1]
    with serving(tmp_path) as server:
        found = load(f"{server.address}/train-00000.parquet", batch_size=64, size=8)
    assert_same(found, (images, labels))
    shuffled = spdl_rs.ImageLoader(tmp_path, batch_size=64, size=8, shuffle=True, seed=1)
    orders = [labels.tolist() for _ in range(2) for _, labels in shuffled]
    assert sorted(orders[0]) == sorted(labels.tolist()) and orders[0] != orders[1]


@pytest.mark.frameworks
def test_pyarrow_parquet_gives_the_images_of_the_folder(many, samples, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    images = [{"bytes": image, "path": f"{name}.png"} for name, image, _ in samples]
    table = pyarrow.table({"image": images, "label": [label for _, _, label in samples]})
    parquet.write_table(table, tmp_path / "train.parquet", row_group_size=7)
    assert_same(load(tmp_path / "train.parquet"), load(many))


def test_image_field_and_label_field_select_fields(tmp_path, samples):
    members = []
    for (name, left, label), (_, right, _) in zip(samples, reversed(samples)):
        members += [(f"{name}.left.png", left), (f"{name}.right.png", right)]
        members.append((f"{name}.breed.cls", str(label).encode()))
    source = tmp_path / "pairs.tar"
    write_members(source, members)
    with pytest.raises(spdl_rs.NotFoundError, match=r"left\.png"):
        load(source)
    left, labels = load(source, image_field="left.png", label_field="breed.cls")
    right, none = load(source, image_field="right.png")
    assert labels.tolist() == [label for _, _, label in samples]
    assert (left == right[::-1]).all() and set(none.tolist()) == {-1}
    with pytest.raises(ValueError, match="expected bytes"):
        load(source, image_field="breed.cls")


@pytest.fixture
def named(tmp_path, samples):
    """A tar archive whose labels are class names, and the names in order."""
    names = ["zebra", "ant", "Cat"]
    members = []
    for name, image, label in samples:
        members += [(f"{name}.png", image), (f"{name}.cls", names[label % 3].encode())]
    write_members(tmp_path / "named.tar", members)
    return tmp_path / "named.tar", [names[label % 3] for _, _, label in samples]


def test_classes_map_label_names_of_tar_shards(named):
    source, names = named
    for classes in [["Cat", "ant", "zebra"], ["zebra", "other", "ant", "Cat"]]:
        loader = spdl_rs.ImageLoader(source, batch_size=16, size=32, classes=classes)
        assert loader.classes == classes
        labels = numpy.concatenate([labels for _, labels in loader])
        assert [classes[label] for label in labels] == names
    with pytest.raises(ValueError, match="none of|nor one of the 1 class names"):
        load(source, classes=["ant"])


def test_label_names_without_classes_are_an_error_with_advice(named):
    with pytest.raises(ValueError, match='expected an integer label, found "') as caught:
        load(named[0])
    assert "pass the class names as `fields.Label(classes=[…])` of `Loader`, or as `classes=` to" in str(caught.value)
    # The message must not contain names of the Rust API.
    assert "::" not in str(caught.value)
    assert ".cls" in caught.value.key


@pytest.mark.parametrize("names", ["photos", "list.csv", ["photos/class0/0.png"]], ids=str)
def test_classes_are_an_error_if_the_data_set_defines_them(everything, names):
    is_list = isinstance(names, list)
    source = [everything / name for name in names] if is_list else everything / names
    with pytest.raises(ValueError, match="classes requires labels in a field"):
        spdl_rs.ImageLoader(source, batch_size=1, classes=["cat", "dog"])
    for wrong in [[], ["cat", "cat"]]:
        with pytest.raises(
            ValueError, match="classes must contain at least one name and no duplicates"
        ):
            spdl_rs.ImageLoader(source, batch_size=1, classes=wrong)


def test_a_text_column_of_parquet_defines_classes(tmp_path):
    if not PARQUET.is_file():
        pytest.skip("the golden Parquet files of the repository are missing")
    shutil.copy(PARQUET, tmp_path / "images.parquet")
    rows = json.loads(PARQUET.with_suffix(".json").read_text())
    captions = sorted({row["caption"] for row in rows if row["caption"]}, key=str.encode)
    loader = spdl_rs.ImageLoader(tmp_path, batch_size=4, size=32, label_field="caption")
    assert loader.classes == captions


def test_a_list_may_mix_servers_and_local_files(everything, many, samples):
    names = [f"photos/class{label}/{name}.png" for name, _, label in samples]
    with serving(everything) as one, serving(everything) as two:
        places = [f"{one.address}/", f"{two.address}/", ""]
        rows = [places[number % 3] + name for number, name in enumerate(names)]
        rows[0] += "?width=5&signature=canary"
        (everything / "many.csv").write_text("".join(f"{row},{7}\n" for row in rows))
        loader = spdl_rs.ImageLoader(everything / "many.csv", batch_size=16, size=32)
        for _ in range(2):
            images = numpy.concatenate([images for images, _ in loader])
            assert (images == load(many)[0]).all()
        assert set(next(iter(loader))[1].tolist()) == {7}
        assert "canary" not in repr(loader)


def test_a_single_image_file_is_an_error_with_advice(many):
    path = next(many.glob("*/*.png"))
    with pytest.raises(ValueError, match="pass a folder, a pattern such as .*, or a list of files") as caught:
        spdl_rs.ImageLoader(path, batch_size=1)
    assert caught.value.key == str(path)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("gone-{0..3}.tar", FileNotFoundError, "gone-0.tar"),
        ("gone-*.tar", FileNotFoundError, "gone"),
        ("list.tar.gz", spdl_rs.UnsupportedError, "tar"),
        ("rows.lance", spdl_rs.UnsupportedError, "pass the Arrow table to the loader"),
        ("hf://me/model/x.tar", ValueError, "hf://datasets/USER/NAME/PATH"),
        ("ftp://host/x.tar", ValueError, 'unknown address scheme "ftp"'),
        ("http:///x.tar", ValueError, "no host or bucket name"),
        ("s3://bucket/x.tar?signature=canary", ValueError, "accept no query"),
        (["a.tar", "b.parquet"], ValueError, "files of one kind in one store"),
        (["http://127.0.0.1:1/a.png", "b.png"], ValueError, "must be in one store"),
    ],
    ids=str,
)
def test_invalid_sources_are_errors(tmp_path, monkeypatch, source, error, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(error, match=words) as caught:
        spdl_rs.ImageLoader(source, batch_size=1)
    assert "canary" not in str(caught.value) and "canary" not in repr(caught.value)


def test_errors_name_the_address_without_secrets(everything, tmp_path):
    shutil.copytree(everything / "photos", tmp_path / "photos")
    broken = tmp_path / "photos" / "class0" / "broken.png"
    broken.write_bytes(b"no image")
    names = ["photos/class0/00.png", "photos/class0/broken.png"]
    with serving(tmp_path) as server:
        place = server.address.removeprefix("http://")
        loader = spdl_rs.ImageLoader([f"{server.address}/{name}" for name in names], batch_size=1)
        with pytest.raises(spdl_rs.DataError) as caught:
            list(loader)
        assert caught.value.key == f"{server.address}/{names[1]}"
        skipping = spdl_rs.ImageLoader(
            [f"{server.address}/{name}" for name in names], batch_size=1, on_error="skip"
        )
        assert len(list(skipping)) == 1
        assert skipping.stats()["dropped"][0]["key"] == f"{server.address}/{names[1]}"

        secret = f"http://me:canary@{place}/gone-{{0..2}}.tar?signature=canary"
        with pytest.raises(FileNotFoundError) as caught:
            spdl_rs.ImageLoader(secret, batch_size=1)
        assert place in caught.value.key
        reported = f"{caught.value} {caught.value!r} {caught.value.key} {caught.value.filename}"
        assert "canary" not in reported

        shutil.copy(everything / "shard-000.tar", tmp_path)
        secret = f"http://me:canary@{place}/shard-000.tar?signature=canary"
        loader = spdl_rs.ImageLoader(secret, batch_size=4, size=16)
        assert len(list(loader)) == 4
        reported = f"{loader!r} {loader._repr_html_()} {loader.state_dict()} {loader.stats()}"
        assert "canary" not in reported and f"{place}/shard-000.tar" in reported


def test_a_cache_reads_each_image_once(everything, tmp_path):
    with serving(everything) as server:
        settings = {"batch_size": 16, "size": 32, "cache": tmp_path / "cache"}
        loader = spdl_rs.ImageLoader(f"{server.address}/shard-{{000..002}}.tar", **settings)
        first = [images.copy() for images, _ in loader]
        cache = loader.stats()["cache"]
        assert list(cache) == list(spdl_rs.CacheStatistics.__annotations__)
        assert (cache["hits"], cache["misses"]) == (0, 40) and cache["disk_bytes"] > 0
        requested = len(server.requested)
        second = [images.copy() for images, _ in loader]
        assert len(server.requested) == requested
        cache = loader.stats()["cache"]
        assert (cache["hits"], cache["misses"], cache["hit_rate"]) == (40, 0, 1.0)
        again = spdl_rs.ImageLoader(
            f"{server.address}/shard-{{000..002}}.tar", cache_memory=1 << 24, **settings
        )
        third = [images.copy() for images, _ in again]
        assert again.stats()["cache"]["hits"] == 40
    for one, two, three in zip(first, second, third, strict=True):
        assert (one == two).all() and (one == three).all()
    assert spdl_rs.ImageLoader(everything / "photos", batch_size=1).stats()["cache"] is None


# promise: R15
@pytest.mark.parametrize("kind", ["images", "fields"])
def test_a_loader_with_a_cache_requests_the_version_of_each_url_once(everything, kind):
    with serving(everything) as server:
        names = sorted((everything / "photos").rglob("*.png"))[:6]
        urls = [f"{server.address}/{name.relative_to(everything)}" for name in names]
        settings = {"batch_size": 2, "cache_memory": 1 << 24}
        if kind == "images":
            loader = spdl_rs.ImageLoader(urls, size=16, **settings)
        else:
            loader = spdl_rs.Loader(urls, image=spdl_rs.fields.Image(16), **settings)
        for _ in range(3):
            assert len(list(loader)) == 3
        methods = [method for method, _, _ in server.requested]
        assert (methods.count("HEAD"), methods.count("GET")) == (6, 6)


def test_a_cache_folder_with_other_files_is_an_error(many, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(spdl_rs.InvalidArgumentError) as caught:
        spdl_rs.ImageLoader(many, batch_size=1, cache=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_unknown_label_field_is_an_error(tmp_path, photos):
    (tmp_path / "list.csv").write_text(f"path,kind\n{photos}/cat/1.png,3\n")
    loader = spdl_rs.ImageLoader(str(tmp_path / "list.csv"), batch_size=1, label_field="kind")
    assert [labels.tolist() for _, labels in loader] == [[3]]
    (tmp_path / "usual.csv").write_text(f"path,label\n{photos}/cat/1.png,3\n")
    loader = spdl_rs.ImageLoader(str(tmp_path / "usual.csv"), batch_size=1, label_field="label")
    assert [labels.tolist() for _, labels in loader] == [[3]]
    with pytest.raises(spdl_rs.InvalidArgumentError, match='"knid": the fields are file, kind'):
        spdl_rs.ImageLoader(str(tmp_path / "list.csv"), batch_size=1, label_field="knid")


def test_images_above_the_limit_are_errors(many):
    for source in (many, sorted(many.glob("*/*.png"))):
        with pytest.raises(spdl_rs.LimitExceededError, match="raise `max_file_bytes=`") as raised:
            list(spdl_rs.ImageLoader(source, batch_size=4, max_file_bytes=10))
        assert str(many) in str(raised.value)
        assert list(spdl_rs.ImageLoader(source, batch_size=4, max_file_bytes=100_000))
