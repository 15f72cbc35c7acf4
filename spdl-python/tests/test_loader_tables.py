"""`Loader` of Arrow tables: values, resume, ranks, errors."""

import errno
import gc
import json
import os
import sys

import numpy
import pytest
import spdl_rs
from arrow_columns import Columns
from conftest import picture, write_png
from spdl_rs import ImageLoader, Loader, fields
from test_loader import delivered_by_ranks

ROWS = 23


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{number:02}.png" for number in range(ROWS)]
    for number, path in enumerate(paths):
        write_png(str(path), picture(number))
    return paths


def columns(images):
    return Columns(
        image=[path.read_bytes() for path in images],
        number=list(range(ROWS)),
        label=[row % 3 for row in range(ROWS)],
        score=[None if row % 5 == 4 else row for row in range(ROWS)],
    )


def of_columns(source, **settings):
    settings = {"batch_size": 5, **settings}
    return Loader(
        source,
        image=fields.Image(16, train=True),
        number=fields.Number("int64"),
        label=fields.Label(),
        score=fields.Number(default=-1),
        key=fields.Key(),
        **settings,
    )


def numbers_of(batches):
    return [number for batch in batches for number in batch["number"].tolist()]


def frozen(batch):
    return {
        name: value.tobytes() if hasattr(value, "tobytes") else value
        for name, value in batch.items()
    }


def test_each_column_is_a_field(images):
    loader = of_columns(columns(images))
    batches = list(loader)
    assert numbers_of(batches) == list(range(ROWS))
    assert [label for batch in batches for label in batch["label"]] == [n % 3 for n in range(ROWS)]
    scores = [score for batch in batches for score in batch["score"].tolist()]
    assert scores == [-1 if row % 5 == 4 else row for row in range(ROWS)]
    assert batches[4]["key"] == ["Columns:20", "Columns:21", "Columns:22"]
    paths = Loader(
        [str(path) for path in images], batch_size=ROWS, image=fields.Image(16, train=True)
    )
    (expected,) = paths
    found = numpy.concatenate([batch["image"] for batch in batches])
    assert (found == expected["image"]).all()
    assert "Arrow table 'Columns': 23 samples" in repr(loader)
    assert loader.diagnose()


def test_an_image_loader_reads_tables(images):
    loader = ImageLoader(columns(images), batch_size=ROWS, size=16)
    ((pixels, labels),) = loader
    assert pixels.shape == (ROWS, 16, 16, 3) and labels.tolist() == [n % 3 for n in range(ROWS)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resumed_run_delivers_identical_batches(images, shuffle):
    settings = {"shuffle": shuffle, "seed": 7}
    whole = [frozen(batch) for batch in of_columns(columns(images), **settings)]
    for delivered in range(len(whole) + 1):
        loader = of_columns(columns(images), threads=1 + delivered % 3, **settings)
        batches = iter(loader)
        head = [frozen(next(batches)) for _ in range(delivered)]
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = of_columns(columns(images), **settings)
        resumed.load_state_dict(state)
        assert head + [frozen(batch) for batch in resumed] == whole


def test_a_state_belongs_to_the_values_and_columns_of_its_table(images):
    loader = of_columns(columns(images))
    next(iter(loader))
    state = loader.state_dict()
    for name, value in (("number", 99), ("score", None)):
        other = columns(images)
        other.columns[name][0] = value
        with pytest.raises(spdl_rs.InvalidArgumentError, match="the samples, their names or labels"):
            of_columns(other).load_state_dict(state)
    other = columns(images)
    other.columns["more"] = list(range(ROWS))
    with pytest.raises(spdl_rs.InvalidArgumentError):
        of_columns(other).load_state_dict(state)
    of_columns(columns(images)).load_state_dict(state)


def stages(loader):
    return [stage["name"] for stage in loader.stats()["stages"]]


def test_rows_are_the_same_with_and_without_a_stage_that_reads_them(images):
    def batches(threads, **more):
        table = columns(images)
        table.columns["number"][7] = None
        loader = of_columns(table, threads=threads, shuffle=True, on_error="skip", url=fields.Url(), **more)
        found = [frozen(batch) for batch in loader]
        dropped = [(one["key"], one["kind"], one["reason"]) for one in loader.stats()["dropped"]]
        return found, dropped, stages(loader)

    rows, dropped, own = batches(1)
    assert own == ["source", "decode"]
    assert [key for key, *_ in dropped] == ["Columns:7"]
    assert batches(3) == (rows, dropped, own)
    same = batches(2, filter=lambda sample: True)
    assert same == (rows, dropped, ["source", "fetch", "filter", "decode"])
    # A file must be read.
    table = columns(images)
    table.columns["image"][0] = None
    loader = of_columns(table, on_error="skip")
    assert len(numbers_of(loader)) == ROWS - 1


def test_many_rows_keep_their_order_if_some_fail():
    rows = 20_000
    texts = [b"\xff" if row % 197 == 5 else b"a" * (row % 50) for row in range(rows)]
    numbers = list(range(rows))

    def batches(threads):
        loader = Loader(
            Columns(text=texts, number=numbers),
            batch_size=64,
            threads=threads,
            on_error="skip",
            text=fields.Text(),
            number=fields.Number("int64"),
        )
        return list(loader), loader.stats()["dropped_total"]

    expected = [row for row in range(rows) if row % 197 != 5]
    for threads in 1, 4:
        found, dropped = batches(threads)
        assert numbers_of(found) == expected
        assert [len(text) for batch in found for text in batch["text"]] == [row % 50 for row in expected]
        assert dropped == rows - len(expected)


def test_ranks_deliver_every_row_once(images):
    delivered = delivered_by_ranks(lambda **rank: of_columns(columns(images), **rank))
    assert sorted(numbers_of(delivered)) == list(range(ROWS))


def test_shuffled_epochs_have_different_orders(images):
    loader = of_columns(columns(images), shuffle=True)
    first, second = numbers_of(loader), numbers_of(loader)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second != list(range(ROWS))


def test_the_table_is_released_with_the_loader(images):
    gc.collect()
    source = columns(images)
    before = source.exports
    loader = of_columns(source)
    batches = iter(loader)
    batch = next(batches)
    assert source.exports > before
    del loader, batches
    gc.collect()
    # Batches have copies.
    assert source.exports == before and batch["number"].tolist() == [0, 1, 2, 3, 4]


def test_missing_columns_are_refused_when_the_table_is_opened(images):
    source = columns(images)
    with pytest.raises(spdl_rs.NotFoundError, match='Columns: no field "caption": .* image, number'):
        Loader(source, batch_size=1, caption=fields.Text())
    with pytest.raises(spdl_rs.InvalidArgumentError, match='no sample has a field "kind"'):
        Loader(source, batch_size=1, label=fields.Label(stored_as="kind"))
    loader = Loader(source, batch_size=1, caption=fields.Text(optional=True))
    assert next(iter(loader))["caption"] == [""]


def test_null_values_are_errors_of_their_samples(images):
    source = columns(images)
    loader = Loader(source, batch_size=ROWS, on_error="skip", score=fields.Number())
    assert len(next(iter(loader))["score"]) == ROWS - 4
    assert loader.stats()["dropped"][0]["key"] == "Columns:4"
    with pytest.raises(spdl_rs.NotFoundError, match=r"Columns:4\.score: the value is null"):
        list(Loader(source, batch_size=ROWS, score=fields.Number()))


def test_arguments_that_tables_do_not_have_are_refused(images, tmp_path):
    source = columns(images)
    for arguments in ({"cache": tmp_path / "cache"}, {"cache_memory": 1}):
        with pytest.raises(spdl_rs.InvalidArgumentError, match="not cached"):
            of_columns(source, **arguments)
    with pytest.raises(ValueError, match="labels can be set only for a list of paths"):
        ImageLoader(source, batch_size=1, labels=[1])
    with pytest.raises(spdl_rs.NotFoundError, match="Columns: the data set holds no samples"):
        Loader(Columns(number=[]), batch_size=1, number=fields.Number())
    with pytest.raises(TypeError, match="source must be"):
        Loader(Columns, batch_size=1, number=fields.Number())


def test_exceptions_of_the_table_are_raised():
    class Broken:
        def __arrow_c_stream__(self, requested_schema=None):
            raise RuntimeError("no stream")

    with pytest.raises(RuntimeError, match="no stream"):
        Loader(Broken(), batch_size=1, number=fields.Number())


@pytest.fixture(scope="module")
def arrow():
    return pytest.importorskip("pyarrow")


def arrow_table(arrow, images, numbers=range(ROWS)):
    numbers = list(numbers)
    data = [path.read_bytes() for path in images]
    # As Hugging Face stores images. The last ones are files.
    files = [
        {"bytes": None, "path": str(images[n])} if n > 19 else {"bytes": data[n], "path": f"{n}.png"}
        for n in numbers
    ]
    return arrow.table(
        {
            "image": arrow.array(
                files, arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
            ),
            "number": arrow.array(numbers, arrow.int32()),
            "text": [f"text {n} – ü" if n % 5 else None for n in numbers],
            "kind": arrow.array([f"kind {n % 3}" for n in numbers]).dictionary_encode(),
            "boxes": arrow.array([[[30.0, 20.0, 10.0, 20.0]] * (n % 3) for n in numbers]),
            "pair": arrow.array([[n, -n] for n in numbers], arrow.list_(arrow.float32(), 2)),
            "tokens": arrow.array([list(range(n % 4)) for n in numbers], arrow.large_list(arrow.int64())),
            "object": [{"name": f"n{n}", "sides": [n, 2]} for n in numbers],
            "price": arrow.array([None for _ in numbers], arrow.decimal128(9, 2)),
        }
    )


def of_arrow(source, **settings):
    return Loader(
        source,
        batch_size=10,
        image=fields.Image(16),
        number=fields.Number("int64"),
        text=fields.Text(default="none"),
        label=fields.Label(stored_as="kind"),
        boxes=fields.Boxes(format="xywh"),
        pair=fields.Array(2),
        tokens=fields.Array(None, "int64", collate="ragged"),
        name=fields.Text(stored_as="object.name"),
        side=fields.Number("int64", stored_as="object", at="sides.0"),
        meta=fields.Json(stored_as="object"),
        **settings,
    )


def check_rows(loader, images):
    """Checks the values of all rows of `arrow_table`."""
    batches = list(loader)
    assert numbers_of(batches) == list(range(ROWS))
    assert loader.classes == ["kind 0", "kind 1", "kind 2"]
    for batch in batches:
        for row, number in enumerate(batch["number"].tolist()):
            assert batch["text"][row] == (f"text {number} – ü" if number % 5 else "none")
            assert batch["label"][row] == number % 3
            assert len(batch["boxes"][row]) == number % 3
            assert batch["pair"][row].tolist() == [number, -number]
            start, end = batch["tokens"].offsets[row : row + 2]
            assert batch["tokens"].values[start:end].tolist() == list(range(number % 4))
            assert (batch["name"][row], batch["side"][row]) == (f"n{number}", number)
            assert batch["meta"][row] == {"name": f"n{number}", "sides": [number, 2]}
    paths = Loader([str(path) for path in images], batch_size=10, image=fields.Image(16))
    for batch, expected in zip(batches, paths, strict=True):
        assert (batch["image"] == expected["image"]).all()


@pytest.mark.frameworks
@pytest.mark.parametrize("form", ["table", "chunks", "batch", "reader"])
def test_values_of_pyarrow(arrow, images, form):
    table = arrow_table(arrow, images)
    if form == "chunks":
        table = arrow.concat_tables([table.slice(0, 4), table.slice(4, 1), table.slice(5)])
    elif form == "batch":
        table = table.combine_chunks().to_batches()[0]
    elif form == "reader":
        table = table.to_reader(max_chunksize=7)
    check_rows(of_arrow(table), images)


@pytest.mark.frameworks
@pytest.mark.parametrize("form", ["frame", "chunks", "lazy rows"])
def test_values_of_polars(images, form):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {
            "image": [path.read_bytes() for path in images],
            "number": polars.Series(range(ROWS), dtype=polars.Int32),
            "text": [f"text {number} – ü" if number % 5 else None for number in range(ROWS)],
            "kind": polars.Series([f"kind {number % 3}" for number in range(ROWS)], dtype=polars.Categorical),
            "boxes": [[[30.0, 20.0, 10.0, 20.0]] * (number % 3) for number in range(ROWS)],
            "pair": polars.Series([[number, -number] for number in range(ROWS)], dtype=polars.Array(polars.Float32, 2)),
            "tokens": [list(range(number % 4)) for number in range(ROWS)],
            "object": [{"name": f"n{number}", "sides": [number, 2]} for number in range(ROWS)],
        },
        schema_overrides={"boxes": polars.List(polars.List(polars.Float64)), "tokens": polars.List(polars.Int64)},
    )
    if form == "chunks":
        frame = polars.concat([frame.slice(0, 4), frame.slice(4, 1), frame.slice(5)], rechunk=False)
        assert frame.n_chunks() == 3
    elif form == "lazy rows":
        frame = frame.lazy().filter(polars.col("number") >= 0).collect()
    check_rows(of_arrow(frame), images)
    expected = numbers_of(of_arrow(frame, shuffle=True, seed=2))
    assert sorted(expected) == list(range(ROWS)) != expected
    loader = of_arrow(frame, shuffle=True, seed=2)
    batches = iter(loader)
    next(batches)
    other = of_arrow(frame, shuffle=True, seed=2)
    other.load_state_dict(loader.state_dict())
    assert numbers_of(other) == expected[10:]
    paths = polars.Series([str(path) for path in images])
    (batch,) = Loader(paths, batch_size=ROWS, image=fields.Image(16))
    assert batch["image"].shape == (ROWS, 16, 16, 3)


@pytest.mark.frameworks
@pytest.mark.parametrize("form", ["relation", "of polars"])
def test_values_of_duckdb(images, form):
    duckdb = pytest.importorskip("duckdb")
    if form == "of polars":
        pytest.importorskip("pyarrow")
        polars = pytest.importorskip("polars")
    with duckdb.connect() as database:
        database.execute(
            """CREATE TABLE rows (
                image BLOB, number INTEGER, text VARCHAR, kind ENUM ('kind 0', 'kind 1', 'kind 2'),
                boxes DOUBLE[][], pair FLOAT[2], tokens BIGINT[], object STRUCT(name VARCHAR, sides BIGINT[])
            )"""
        )
        rows = [
            [
                images[number].read_bytes(),
                number,
                f"text {number} – ü" if number % 5 else None,
                f"kind {number % 3}",
                [[30.0, 20.0, 10.0, 20.0]] * (number % 3),
                [number, -number],
                list(range(number % 4)),
                {"name": f"n{number}", "sides": [number, 2]},
            ]
            for number in range(ROWS)
        ]
        database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        relation = database.sql("SELECT * FROM rows ORDER BY number")
        check_rows(of_arrow(relation.pl() if form == "of polars" else relation), images)


@pytest.mark.frameworks
@pytest.mark.parametrize("ending", [".arrow", ".feather", ".IPC"])
def test_arrow_files_are_tables(arrow, images, tmp_path, ending):
    import pyarrow.feather
    import pyarrow.ipc

    table = arrow_table(arrow, images)
    parts = [table.slice(0, 9), table.slice(9)]
    paths = [tmp_path / f"{number}{ending}" for number in range(2)]
    for part, path in zip(parts, paths, strict=True):
        if ending == ".feather":
            pyarrow.feather.write_feather(part, str(path), compression="uncompressed")
            continue
        new = pyarrow.ipc.new_file if ending == ".arrow" else pyarrow.ipc.new_stream
        with new(str(path), part.schema) as writer:
            writer.write_table(part)

    def values(loader):
        return [(batch["image"].tobytes(), batch["text"], batch["meta"]) for batch in loader]

    assert values(of_arrow(paths[0])) == values(of_arrow(parts[0]))
    before = arrow.total_allocated_bytes()
    loader = of_arrow([str(path) for path in paths])
    assert numbers_of(loader) == list(range(ROWS))
    # The columns are not copied.
    assert arrow.total_allocated_bytes() - before < table.nbytes / 2
    # Keys have the name of the file, and the row in it.
    keys = [key for batch in Loader(paths, batch_size=10, key=fields.Key()) for key in batch["key"]]
    assert keys == [f"{path}:{row}" for path, part in zip(paths, parts) for row in range(len(part))]
    for pattern in (f"*{ending}", f"{{0..1}}{ending}"):
        assert numbers_of(of_arrow(str(tmp_path / pattern))) == list(range(ROWS))
    assert numbers_of(of_arrow([os.fsencode(path) for path in paths])) == list(range(ROWS))
    renamed = os.fsencode(tmp_path / "name") + b"\xff.arrow"
    os.rename(paths[0], renamed)
    assert len(of_arrow(renamed)) == len(of_arrow(os.fsdecode(renamed))) == 1
    paths[1].write_bytes(paths[1].read_bytes()[:-200])
    with pytest.raises(spdl_rs.CorruptError, match=f"1{ending}: not an Arrow file, or truncated") as caught:
        of_arrow(paths[1])
    assert (caught.value.kind, caught.value.key) == ("corrupt", str(paths[1]))


@pytest.mark.frameworks
def test_arrow_files_that_cannot_be_opened(arrow, tmp_path, monkeypatch):
    with pytest.raises(spdl_rs.NotFoundError, match="absent.arrow: cannot open the file: No such file") as caught:
        of_arrow(tmp_path / "absent.arrow")
    assert (caught.value.kind, caught.value.errno) == ("not-found", 2)
    with pytest.raises(spdl_rs.NotFoundError, match="no file matches this pattern"):
        of_arrow(str(tmp_path / "absent-*.arrow"))
    (tmp_path / "folder.arrow").mkdir()
    with pytest.raises(spdl_rs.IoError, match=r"folder.arrow: cannot open the file: .*is a directory"):
        of_arrow([tmp_path / "folder.arrow"])
    (tmp_path / "rows.arrow").write_bytes(b"")
    with pytest.raises(spdl_rs.CorruptError, match="rows.arrow: not an Arrow file, or truncated"):
        of_arrow(tmp_path / "rows.arrow")

    def fails(number):
        def memory_map(path):
            raise OSError(number, "of the system")

        return memory_map

    for number, kind in [(errno.EACCES, spdl_rs.PermissionDeniedError), (errno.EIO, spdl_rs.IoError)]:
        monkeypatch.setattr(arrow, "memory_map", fails(number))
        with pytest.raises(kind, match="rows.arrow: cannot open the file") as caught:
            of_arrow(tmp_path / "rows.arrow")
        assert caught.value.errno == number


@pytest.mark.frameworks
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_arrow_files_are_warned_of(arrow, tmp_path, compression):
    import pyarrow.feather

    paths = [str(tmp_path / f"{number}.feather") for number in range(2)]
    table = arrow.table({"number": list(range(10_000))})
    pyarrow.feather.write_feather(table, paths[0], compression=compression)
    pyarrow.feather.write_feather(table, paths[1], compression="uncompressed")
    with pytest.warns(spdl_rs.DatasetWarning, match=r"1 of 2 Arrow files are compressed, .* 0\.1 MB of memory") as caught:
        loader = Loader(paths, batch_size=10_000, number=fields.Number("int64"))
    assert caught[0].filename == __file__
    assert [batch["number"].tolist() for batch in loader] == [list(range(10_000))] * 2


@pytest.mark.frameworks
def test_arrow_files_must_have_the_same_columns_and_classes(arrow, tmp_path):
    import pyarrow.feather

    def write(name, table, classes=None):
        if classes is not None:
            features = {"label": {"names": classes, "_type": "ClassLabel"}}
            metadata = {"huggingface": json.dumps({"info": {"features": features}})}
            table = table.replace_schema_metadata(metadata)
        pyarrow.feather.write_feather(table, str(tmp_path / name), compression="uncompressed")
        return tmp_path / name

    def opened(*paths):
        return Loader(paths, batch_size=4, label=fields.Label(), key=fields.Key())

    labels = arrow.table({"label": [0, 1]})
    first = write("a.arrow", labels, ["cat", "dog"])
    loader = opened(first, write("b.arrow", labels, ["cat", "dog"]))
    assert loader.classes == ["cat", "dog"] and loader.peek()["label"].tolist() == [0, 1, 0, 1]
    for classes, found in [(["dog", "cat"], '"dog"'), (None, "absent")]:
        other = write("c.arrow", labels, classes)
        message = f'class 0 is "cat" for .*a.arrow:0, but {found} for .*c.arrow:0; set the class names'
        with pytest.raises(spdl_rs.InvalidArgumentError, match=message):
            opened(first, other)
        named = Loader([first, other], batch_size=4, label=fields.Label(classes=["x", "y"]))
        assert named.classes == ["x", "y"]
        assert Loader([first, other], batch_size=4, key=fields.Key()).peek()["key"][2] == f"{other}:0"
    texts = write("d.arrow", arrow.table({"label": ["cat"]}))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="the columns of .*a.arrow and .*d.arrow differ: column 0"):
        opened(first, texts)


def test_arrow_files_need_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.arrow").write_bytes(b"")
    with pytest.raises(ImportError, match="rows.arrow: Arrow files need the package pyarrow"):
        of_arrow(tmp_path / "rows.arrow")


@pytest.mark.frameworks
def test_unsupported_columns_of_pyarrow_are_named(arrow, images):
    message = r'Table: cannot read column "price" of type Decimal128\(9, 2\): decimals are not'
    with pytest.raises(spdl_rs.UnsupportedError, match=message):
        Loader(arrow_table(arrow, images), batch_size=1, price=fields.Number())


@pytest.mark.frameworks
def test_nested_structs_of_pyarrow(arrow):
    values = [{"size": {"sides": [row, 2]}} for row in range(ROWS)]
    table = arrow.table({"object": values})

    def sides(table):
        size = fields.Array(2, "int64", stored_as="object.size.sides")
        (batch,) = Loader(table, batch_size=ROWS, size=size)
        return batch["size"][:, 0].tolist()

    assert sides(table) == list(range(ROWS))
    part = table.slice(3)
    for source in (part, part.to_batches()[0]):
        with pytest.raises(spdl_rs.UnsupportedError, match="Table|Batch: .*copied first"):
            sides(source)
    assert sides(part.take(list(range(len(part))))) == list(range(3, ROWS))


@pytest.mark.frameworks
def test_rows_that_are_null_are_refused(arrow):
    rows = arrow.array([{"number": 1}, None, {"number": 3}])
    with pytest.raises(spdl_rs.InvalidArgumentError, match="StructArray: .*1 null elements.*remove them"):
        Loader(rows, batch_size=1, number=fields.Number())
    for part in (rows.drop_null(), rows.slice(2)):
        assert numbers_of(Loader(part, batch_size=1, number=fields.Number()))[-1] == 3


@pytest.mark.frameworks
def test_arrays_of_paths_are_lists(arrow, images):
    class Series:
        """Like a series of polars."""

        def __init__(self, paths):
            self.paths = arrow.array(paths)

        def __arrow_c_array__(self, requested_schema=None):
            return self.paths.__arrow_c_array__(requested_schema)

        def __iter__(self):
            return iter(self.paths.to_pylist())

    loader = Loader(Series([str(path) for path in images]), batch_size=ROWS, image=fields.Image(16))
    assert next(iter(loader))["image"].shape == (ROWS, 16, 16, 3)


@pytest.mark.frameworks
def test_class_names_of_hugging_face_are_read_from_parquet(arrow, images, tmp_path):
    import pyarrow.parquet

    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = arrow.table({"image": [path.read_bytes() for path in images[:4]], "label": [0, 1, 1, 0]})
    path = tmp_path / "pets.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    loader = ImageLoader(path, batch_size=4, size=8)
    assert loader.classes == ["cat", "dog"]
    assert next(iter(loader))[1].tolist() == [0, 1, 1, 0]
    # Metadata of other programs may have the same key.
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": "{}"}), path)
    assert ImageLoader(path, batch_size=4, size=8).classes == []


@pytest.mark.frameworks
def test_data_sets_of_hugging_face(arrow, images, monkeypatch):
    """With classes that have the attributes of those of the package `datasets`."""

    class Wrapped:
        def __init__(self, table):
            self.table = table

    class Dataset:
        def __init__(self, table, indices=None):
            self.data = Wrapped(table)
            self._indices = None if indices is None else Wrapped(indices)

    module = type("module", (), {"Dataset": Dataset, "Features": dict})
    monkeypatch.setitem(sys.modules, "datasets", module)
    features = {"features": {"number": {"names": ["a", "b"], "_type": "ClassLabel"}}}
    metadata = {"huggingface": json.dumps({"info": features})}
    table = arrow_table(arrow, images).replace_schema_metadata(metadata)
    assert numbers_of(of_arrow(Dataset(table))) == list(range(ROWS))
    chosen = arrow.table({"indices": arrow.array([22, 3, 7, 3], arrow.uint64())})
    loader = Loader(
        Dataset(table, chosen),
        batch_size=4,
        number=fields.Number("int64"),
        label=fields.Label(stored_as="number"),
        key=fields.Key(),
    )
    (batch,) = loader
    assert batch["number"].tolist() == batch["label"].tolist() == [22, 3, 7, 3]
    assert batch["key"] == [f"Dataset:{row}" for row in range(4)] and loader.classes == ["a", "b"]


@pytest.mark.parametrize("name", ["DatasetDict", "IterableDatasetDict"])
def test_splits_of_hugging_face_are_refused(monkeypatch, name):
    splits = type(name, (dict,), {})
    module = type("module", (), {name: splits, "Features": dict})
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(TypeError, match=f"one split of the {name}: one of 'train', 'test'"):
        Loader(splits(train=1, test=2), batch_size=1, number=fields.Number())


def test_another_module_named_datasets_is_no_hugging_face(monkeypatch, images):
    class Dataset(list):
        pass

    for module in (type("module", (), {}), type("module", (), {"Dataset": Dataset})):
        monkeypatch.setitem(sys.modules, "datasets", module)
        source = Dataset([{"number": 1}, {"number": 2}])
        assert numbers_of(Loader(source, batch_size=2, number=fields.Number())) == [1, 2]


@pytest.mark.frameworks
def test_columns_are_not_copied(arrow):
    data = numpy.zeros(ROWS * 100, "u1")
    offsets = numpy.arange(0, len(data) + 1, 100, dtype="i4")
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(data)]
    column = arrow.BinaryArray.from_buffers(arrow.binary(), ROWS, buffers)
    loader = Loader(arrow.table({"value": column}), batch_size=ROWS, value=fields.Bytes())
    data[:] = numpy.arange(len(data)) // 100
    assert next(iter(loader))["value"] == [bytes([row]) * 100 for row in range(ROWS)]
