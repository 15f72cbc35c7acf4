"""`Loader` of map-style Python data sets: values, resume, ranks, errors."""

import collections
import gc
import json
import pathlib
import threading
import weakref

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from spdl_rs import ImageLoader, Loader, fields, skip
from spdl_rs.sequences import Pack
from test_loader import copies, delivered_by_ranks

ITEMS = 23


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{number:02}.png" for number in range(ITEMS)]
    for number, path in enumerate(paths):
        write_png(str(path), picture(number))
    return paths


class Pets:
    """A map-style data set."""

    def __init__(self, images):
        self.images = images
        self.fails_at = None
        self.threads = set()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.threads.add(threading.get_native_id())
        if index == self.fails_at:
            raise OSError(f"no item {index}")
        item = {
            "image": self.images[index].read_bytes(),
            "number": index,
            "text": f"text {index} – ü",
            "label": numpy.int64(index % 3),
            "embedding": numpy.arange(4, dtype="f4") + index,
            "tokens": list(range(index % 4)),
            "boxes": [[30.0, 20.0, 10.0, 20.0]] * (index % 3),
            "object": {"name": f"n{index}", "flags": [True, None]},
        }
        if index % 2:
            item["odd"] = index / 2
        return item


def of_pets(source, **settings):
    settings = {"batch_size": 5, **settings}
    return Loader(
        source,
        image=fields.Image(16, train=True),
        number=fields.Number("int64"),
        text=fields.Text(),
        label=fields.Label(),
        embedding=fields.Array(4),
        tokens=fields.Array(None, "int64", collate="ragged"),
        boxes=fields.Boxes(format="xywh", like="image"),
        name=fields.Text(stored_as="object", at="name"),
        meta=fields.Json(stored_as="object"),
        odd=fields.Number(default=-1),
        key=fields.Key(),
        **settings,
    )


def numbers_of(batches):
    return [number for batch in batches for number in batch["number"].tolist()]


def test_each_value_is_a_field(images):
    loader = of_pets(Pets(images))
    batches = list(loader)
    assert numbers_of(batches) == list(range(ITEMS))
    for batch in batches:
        for row, number in enumerate(batch["number"].tolist()):
            assert batch["text"][row] == f"text {number} – ü"
            assert batch["label"][row] == number % 3
            assert batch["embedding"][row].tolist() == [number + side for side in range(4)]
            start, end = batch["tokens"].offsets[row : row + 2]
            assert batch["tokens"].values[start:end].tolist() == list(range(number % 4))
            assert batch["name"][row] == f"n{number}"
            assert batch["meta"][row] == {"name": f"n{number}", "flags": [True, None]}
            assert batch["odd"][row] == (number / 2 if number % 2 else -1)
            assert batch["key"][row] == f"Pets:{number}"
    paths = Loader(
        [str(path) for path in images], batch_size=5, image=fields.Image(16, train=True)
    )
    for batch, expected in zip(batches, paths, strict=True):
        assert (batch["image"] == expected["image"]).all()
    assert "Python data set 'Pets': 23 samples" in repr(loader)
    names = [stage["name"] for stage in loader.stats()["stages"]]
    assert names == ["source", "getitem", "fetch", "decode"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resumed_run_delivers_identical_batches(images, shuffle):
    settings = {"shuffle": shuffle, "seed": 7}
    whole = copies(of_pets(Pets(images), **settings))
    for delivered in range(len(whole) + 1):
        loader = of_pets(Pets(images), threads=1 + delivered % 3, **settings)
        batches = iter(loader)
        head = copies(next(batches) for _ in range(delivered))
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = of_pets(Pets(images), **settings)
        resumed.load_state_dict(state)
        assert head + copies(resumed) == whole


def test_a_state_belongs_to_the_number_of_items(images):
    loader = of_pets(Pets(images))
    next(iter(loader))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="was 23, is 22"):
        of_pets(Pets(images[:-1])).load_state_dict(loader.state_dict())
    paths = Loader([str(path) for path in images], batch_size=5, image=fields.Image(16))
    with pytest.raises(spdl_rs.InvalidArgumentError, match="source"):
        paths.load_state_dict(loader.state_dict())


def test_ranks_deliver_every_item_once(images):
    delivered = delivered_by_ranks(lambda **rank: of_pets(Pets(images), **rank))
    assert sorted(numbers_of(delivered)) == list(range(ITEMS))


def test_functions_and_outputs_work_with_items(images):
    source = Pets(images)
    names = {"number": fields.Number("int64"), "text": fields.Text()}
    pairs = Loader(source, names, batch_size=ITEMS, output="tuple")
    assert next(iter(pairs))[1][3] == "text 3 – ü"
    mapped = Loader(
        source,
        names,
        batch_size=ITEMS,
        map=lambda sample: {"number": 2 * sample["number"]},
        batch_map=lambda batch: batch["number"].tolist(),
    )
    assert next(iter(mapped)) == mapped.peek() == [2 * number for number in range(ITEMS)]


# Functions at the top level, so that they can be pickled.


def is_even(sample):
    return sample["number"] % 2 == 0


def each(sample, rng):
    return sample["number"], sample["image"].shape, sample["text"], rng.integers(2**62)


def whole(samples, rng):
    return {"samples": samples, "drawn": rng.integers(2**62)}


def of_functions(source, executor):
    return Loader(
        source,
        batch_size=5,
        shuffle=True,
        seed=3,
        image=fields.Image(16, train=True),
        number=fields.Number("int64"),
        text=fields.Text(),
        filter=is_even,
        map=each,
        collate=whole,
        executor=executor,
        processes=2 if executor == "processes" else None,
    )


@pytest.mark.parametrize("executor", ["threads", "processes", "inline"])
def test_all_functions_work_with_items_on_each_executor(images, executor):
    loader = of_functions(Pets(images), executor)
    batches = iter(loader)
    head = [next(batches)]
    resumed = of_functions(Pets(images), executor)
    resumed.load_state_dict(loader.state_dict())
    rest = list(batches)
    assert list(resumed) == rest
    assert head + rest == list(of_functions(Pets(images), "threads"))
    samples = [sample for batch in head + rest for sample in batch["samples"]]
    assert sorted(samples)[1][:3] == (2, (16, 16, 3), "text 2 – ü")
    assert sorted(sample[0] for sample in samples) == list(range(0, ITEMS, 2))
    statistics = loader.stats()
    names = [stage["name"] for stage in statistics["stages"]]
    assert names == ["source", "getitem", "fetch", "filter", "decode", "map", "collate"]
    assert statistics["filtered"] == ITEMS // 2


@pytest.mark.parametrize("executor", ["threads", "processes", "inline"])
def test_exceptions_of_items_are_raised_on_each_executor(images, executor):
    source = Pets(images)
    source.fails_at = 7
    with pytest.raises(OSError, match="no item 7") as raised:
        list(of_functions(source, executor))
    assert raised.value.__notes__ == ["item 7 of Pets"]


def test_items_are_grouped():
    samples = [{"tokens": list(range(1, length + 1))} for length in (3, 2, 6, 1, 2)]
    loader = Loader(
        samples,
        batch_size=2,
        tokens=fields.Array(None, "int64"),
        group=Pack("tokens", length=8),
        filter=lambda sample: len(sample["tokens"]) > 1,
    )
    (batch,) = loader
    rows = sorted(sorted(row.tolist()) for row in batch["tokens"])
    assert rows == [[0, 0, 0, 1, 1, 2, 2, 3], [1, 1, 2, 2, 3, 4, 5, 6]]


def test_an_image_loader_reads_items(images):
    ((pixels, labels),) = ImageLoader(Pets(images), batch_size=ITEMS, size=16)
    assert pixels.shape == (ITEMS, 16, 16, 3) and labels.tolist() == [n % 3 for n in range(ITEMS)]


def test_items_are_read_on_the_threads_of_the_loader(images):
    source = Pets(images)
    loader = of_pets(source, threads=2)
    source.threads.clear()
    list(loader)
    assert source.threads and threading.get_native_id() not in source.threads


def test_lists_of_dicts_and_tuples_are_data_sets(images):
    samples = [{"image": path.read_bytes(), "label": "dog"} for path in images[:4]]
    label = fields.Label(classes=["cat", "dog"])
    loader = Loader(samples, batch_size=4, image=fields.Image(16), label=label)
    assert next(iter(loader))["label"].tolist() == [1] * 4 and loader.classes == ["cat", "dog"]
    # Files are read without the GIL.
    pairs = [(path, number) for number, path in enumerate(images)]
    loader = Loader(
        pairs,
        batch_size=ITEMS,
        image=fields.Image(16, stored_as="0"),
        label=fields.Label(stored_as="1"),
    )
    assert next(iter(loader))["label"].tolist() == list(range(ITEMS))
    point = collections.namedtuple("point", "x y")
    loader = Loader([point(1, 2.5)], batch_size=1, x=fields.Number("int64"), y=fields.Number())
    assert [value.tolist() for value in next(iter(loader)).values()] == [[1], [2.5]]


def test_lists_of_paths_are_files(images):
    class Paths(list):
        pass

    for source in ([str(p) for p in images], Paths(images), tuple(images), iter(images)):
        loader = Loader(source, batch_size=ITEMS, image=fields.Image(16))
        assert next(iter(loader))["image"].shape == (ITEMS, 16, 16, 3)
        assert "list of images" in repr(loader)


def value_of(value, field):
    (batch,) = Loader([{"value": value}], batch_size=1, value=field)
    found = batch["value"]
    return found.tolist() if hasattr(found, "tolist") else found


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        (b"ab", fields.Bytes(), b"ab"),
        (bytearray(b"ab"), fields.Bytes(), b"ab"),
        (memoryview(b"abcd")[1:3], fields.Bytes(), b"bc"),
        ("ü", fields.Text(), "ü"),
        (True, fields.Json(), True),
        (2**62, fields.Number("int64"), 2**62),
        (numpy.float32(0.5), fields.Number(), 0.5),
        (numpy.array(7, "u2"), fields.Number("int64"), 7),
        ([1, 2.5], fields.Array(2), [1.0, 2.5]),
        ((1, 2), fields.Array(2, "int64"), [1, 2]),
        ([[1, 2], [3, 4]], fields.Array((2, 2)), [[1, 2], [3, 4]]),
        (numpy.arange(6, dtype=">i4").reshape(2, 3).T, fields.Array((3, 2)), [[0, 3], [1, 4], [2, 5]]),
        (numpy.array([True, False]), fields.Array(2, "uint8"), [1, 0]),
        ({"a": [1, None, {"b": "c"}]}, fields.Json(), {"a": [1, None, {"b": "c"}]}),
        ({"a": {"b": [1, 2]}}, fields.Array(2, at="a.b"), [1, 2]),
        (None, fields.Number(default=3), 3),
    ],
)
def test_types_of_values(value, field, expected):
    assert value_of(value, field) == [expected]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, 'field "value": OverflowError'),
        (object(), 'field "value": TypeError: a value of type object is not supported'),
        (numpy.array(["a"]), 'field "value": TypeError: an array of <U1 is not supported'),
        ({"a": b"raw"}, 'field "value": TypeError: bytes is not supported inside a dict'),
        ({1}, 'field "value": TypeError: a value of type set is not supported'),
    ],
)
def test_unsupported_values_are_errors_of_their_samples(value, message):
    loader = Loader([{"value": 1}, {"value": value}], batch_size=1, value=fields.Number())
    with pytest.raises(spdl_rs.InvalidArgumentError) as raised:
        list(loader)
    assert raised.value.key == "list:1" and message in str(raised.value)


def test_exceptions_of_items_are_raised_with_the_item(images):
    source = Pets(images)
    source.fails_at = 7
    with pytest.raises(OSError, match="no item 7") as raised:
        list(of_pets(source))
    assert raised.value.__notes__ == ["item 7 of Pets"]
    loader = of_pets(source, on_error=skip(at_most=1))
    assert numbers_of(loader) == [number for number in range(ITEMS) if number != 7]
    (dropped,) = loader.stats()["dropped"]
    assert dropped["key"] == "Pets:7" and "no item 7" in dropped["reason"]
    source.fails_at = 0
    assert numbers_of(of_pets(source, on_error="skip")) == list(range(1, ITEMS))


@pytest.mark.parametrize("error", [StopIteration, SystemExit])
def test_stop_iteration_and_system_exit_of_items_are_errors(images, error):
    class Ends(Pets):
        def __getitem__(self, index):
            if index == 7:
                raise error
            return super().__getitem__(index)

    with pytest.raises(RuntimeError, match=rf"{error.__name__}\(\) was raised by source, __getitem__"):
        list(of_pets(Ends(images)))
    loader = of_pets(Ends(images), on_error="skip")
    assert numbers_of(loader) == [number for number in range(ITEMS) if number != 7]


def test_missing_fields_and_wrong_items_are_errors(images):
    with pytest.raises(spdl_rs.NotFoundError, match=r'Pets:0: no field "caption": .* image, number'):
        list(Loader(Pets(images), batch_size=1, caption=fields.Text()))
    with pytest.raises(TypeError, match="must be dicts or tuples of fields, not 3"):
        list(Loader([{"a": 1}, 3], batch_size=1, a=fields.Number()))

    class Numbers:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

    with pytest.raises(TypeError, match="items of source must be dicts or tuples of fields, such as"):
        Loader(Numbers(), batch_size=1, a=fields.Number())
    with pytest.raises(spdl_rs.InvalidArgumentError, match="not cached"):
        of_pets(Pets(images), cache_memory=1)


def test_an_iterable_of_unknown_length_need_not_have_positions():
    class Samples:
        """Has the methods of a list, but not for all arguments, like a loader with `group`."""

        def __iter__(self):
            return iter([{"number": 1}, {"number": 2}])

        def __len__(self):
            raise TypeError("the number of samples is unknown")

        def __getitem__(self, index):
            raise TypeError("no positions")

    assert [batch["number"].tolist() for batch in Loader(Samples(), batch_size=2, number=fields.Number())] == [[1, 2]]


def test_a_data_set_that_refers_to_its_loader_is_collected(images):
    source = Pets(images)
    loader = of_pets(source)
    next(iter(loader))
    source.loader = loader
    gone = weakref.ref(source)
    del source, loader
    gc.collect()
    assert gone() is None


def test_paths_of_items_are_local_files(tmp_path):
    (tmp_path / "a.txt").write_text("content")
    samples = [{"text": tmp_path / "a.txt"}, {"text": pathlib.Path("missing.txt")}]
    loader = Loader(samples, batch_size=1, text=fields.Text())
    batches = iter(loader)
    assert next(batches)["text"] == ["content"]
    with pytest.raises(spdl_rs.NotFoundError, match=r"missing\.txt"):
        next(batches)


def test_a_dict_of_columns_is_refused():
    with pytest.raises(TypeError, match="not a dict; for a dict of columns, pass a table"):
        Loader({"a": [1, 2]}, batch_size=1, a=fields.Number())


@pytest.mark.parametrize("item", [b"\xff\xd8", "a.png", pathlib.Path("a.png")])
def test_items_without_names_are_refused_at_once(item):
    class Endless:
        """Without `__iter__`, and without an `IndexError` at the end."""

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return item

    with pytest.raises(TypeError, match=r"dicts or tuples of fields, such as \{'image': data\}, not .*; pass paths as"):
        Loader(Endless(), batch_size=2, image=fields.Image(8))
