"""`Loader` of iterables of samples: order, epochs, resume, ranks, errors, memory."""

import collections
import gc
import itertools
import json
import random
import signal
import sys
import threading
import time
import types
import weakref

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from spdl_rs import ImageLoader, Loader, fields, skip
from spdl_rs.sequences import Pack
from spdl_rs.sources import Source, concat, curriculum, mix, shuffled
from test_loader import copies

ITEMS = 23


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    found = []
    for number in range(ITEMS):
        write_png(str(folder / "one.png"), picture(number))
        found.append((folder / "one.png").read_bytes())
    return found


class Pets:
    """An iterable of samples, whose order depends on the epoch."""

    def __init__(self, images, items=ITEMS):
        self.images = images
        self.items = items
        self.epoch = None
        self.epochs = []
        self.taken = 0
        self.fails_at = None
        self.closed = threading.Event()
        self.threads = set()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.epochs.append(self.epoch)
        # Referenced, so that only `close` ends it early.
        self.iterator = self._samples(self.epoch)
        return self.iterator

    def _samples(self, epoch):
        numbers = list(range(self.items))
        random.Random(epoch).shuffle(numbers)
        try:
            for at, number in enumerate(numbers):
                if at == self.fails_at:
                    raise OSError(f"no item {at}")
                self.threads.add(threading.get_native_id())
                self.taken += 1
                yield {
                    "image": self.images[number],
                    "number": number,
                    "text": f"text {number} – ü",
                    "label": number % 3,
                    "tokens": list(range(number % 4)),
                }
        finally:
            self.closed.set()


def of_pets(source, **settings):
    return Loader(
        source,
        image=fields.Image(16, train=True),
        number=fields.Number("int64"),
        text=fields.Text(),
        label=fields.Label(),
        tokens=fields.Array(None, "int64", collate="ragged"),
        key=fields.Key(),
        **{"batch_size": 5, **settings},
    )


def numbers(items, **more):
    """Samples of one number, again in each epoch."""

    class Numbers:
        def __iter__(self):
            return ({"number": number, **more} for number in range(items))

    return Numbers()


def of_numbers(source, **settings):
    return Loader(source, number=fields.Number("int64"), **{"batch_size": 4, **settings})


def numbers_of(batches):
    return [number for batch in batches for number in batch["number"].tolist()]


def order_of(epoch, items=ITEMS):
    expected = list(range(items))
    random.Random(epoch).shuffle(expected)
    return expected


def test_epochs_iterate_the_source_once_in_its_order(images):
    source = Pets(images)
    loader = of_pets(source)
    source.epochs.clear()
    for epoch in range(3):
        batches = list(loader)
        assert numbers_of(batches) == order_of(epoch)
        for batch in batches:
            for row, number in enumerate(batch["number"].tolist()):
                assert batch["text"][row] == f"text {number} – ü"
                assert batch["label"][row] == number % 3
                start, end = batch["tokens"].offsets[row : row + 2]
                assert batch["tokens"].values[start:end].tolist() == list(range(number % 4))
        assert [key for batch in batches for key in batch["key"]] == [f"Pets:{at}" for at in range(ITEMS)]
    assert source.epochs == [0, 1, 2]
    loader.set_epoch(7)
    assert numbers_of(loader) == order_of(7)
    names = [stage["name"] for stage in loader.stats()["stages"]]
    assert names == ["source", "fetch", "decode"]
    assert repr(loader).startswith("Loader(Python iterable 'Pets': samples, batches of 5; epoch=8;")


def test_samples_are_decoded_as_those_of_other_sources(images):
    listed = [{"image": image, "number": number} for number, image in enumerate(images)]
    settings = {"image": fields.Image(16, train=True), "number": fields.Number("int64")}
    for ours, expected in zip(
        Loader(iter(listed), batch_size=5, **settings),
        Loader(listed, batch_size=5, **settings),
        strict=True,
    ):
        assert (ours["image"] == expected["image"]).all()
        assert (ours["number"] == expected["number"]).all()


@pytest.mark.parametrize("items", [ITEMS, 20])
def test_a_resumed_run_delivers_identical_batches(images, items):
    def make(threads=2):
        return of_pets(Pets(images, items), seed=7, threads=threads)

    loader = make()
    whole = copies(loader) + copies(loader)
    for delivered in range(len(whole) + 1):
        loader = make(threads=1 + delivered % 3)
        batches = itertools.chain.from_iterable(iter(loader) for _ in range(2))
        head = copies(next(batches) for _ in range(delivered))
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        rest = copies(resumed)
        if resumed.epoch == 1:
            rest += copies(resumed)
        assert head + rest == whole, delivered


def test_an_iterable_may_start_at_a_position(images):
    class Skips(Pets):
        def iterate_from(self, position):
            return itertools.islice(self._samples(self.epoch), position, None)

    source = Skips(images)
    loader = of_pets(source)
    batches = iter(loader)
    next(batches), next(batches)
    resumed_source = Skips(images)
    resumed_source.iterate_from = lambda position: iter(
        [{"number": 100 + position, "image": images[0], "text": "", "label": 0, "tokens": []}]
    )
    resumed = of_pets(resumed_source)
    resumed.load_state_dict(loader.state_dict())
    (batch,) = resumed
    assert batch["number"].tolist() == [110] and batch["key"] == ["Skips:10"]


def test_states_of_other_sources_are_refused(images):
    def state_of(loader):
        next(iter(loader))
        return loader.state_dict()

    state = state_of(of_numbers(numbers(9)))
    of_numbers(numbers(9)).load_state_dict(state)
    listed = [{"number": number} for number in range(9)]
    with pytest.raises(spdl_rs.InvalidArgumentError, match="source"):
        of_numbers(listed).load_state_dict(state)
    of_rank = of_numbers(numbers(9), rank=0, world_size=2)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="the state is of rank 0 of 1"):
        of_rank.load_state_dict(state)
    uneven = of_numbers(numbers(9), rank=0, world_size=2, remainder="uneven")
    with pytest.raises(spdl_rs.InvalidArgumentError, match="source or remainder"):
        uneven.load_state_dict(state_of(of_rank))


def test_a_state_after_the_end_of_a_shorter_iterable_is_an_error():
    loader = of_numbers(numbers(20))
    batches = iter(loader)
    next(batches), next(batches)
    shorter = of_numbers(numbers(5))
    shorter.load_state_dict(loader.state_dict())
    with pytest.raises(spdl_rs.ChangedError, match="has yielded 5 items, but the state was saved after 8"):
        list(shorter)


@pytest.mark.parametrize("items", [20, 21, 22, 23])
@pytest.mark.parametrize("remainder", ["drop", "uneven"])
def test_ranks_deliver_each_item_once(items, remainder):
    world = 3
    delivered = [
        numbers_of(of_numbers(numbers(items), rank=rank, world_size=world, remainder=remainder))
        for rank in range(world)
    ]
    kept = items - items % world if remainder == "drop" else items
    assert delivered == [list(range(rank, kept, world)) for rank in range(world)]


@pytest.mark.parametrize("remainder", ["drop", "uneven"])
def test_another_number_of_ranks_delivers_the_rest(remainder):
    def ranks(world):
        return [
            of_numbers(numbers(41), batch_size=2, rank=rank, world_size=world, remainder=remainder)
            for rank in range(world)
        ]

    states, delivered = [], []
    for steps, loader in zip((3, 2, 3), ranks(3)):
        delivered += numbers_of(itertools.islice(loader, steps))
        states.append(loader.state_dict())
    combined = Loader.combine_states(states)
    parts = []
    for loader in ranks(2):
        loader.load_state_dict(combined)
        parts.append(numbers_of(loader))
    # 16 samples are done, and one of the 25 others does not suffice for two ranks.
    found = sorted(delivered + parts[0] + parts[1])
    assert found == list(range(40 if remainder == "drop" else 41))
    # The state of one rank continues on this rank.
    again = ranks(3)[1]
    again.load_state_dict(states[1])
    assert numbers_of(again) == list(range(1 + 4 * 3, 39 if remainder == "drop" else 41, 3))


def test_shuffle_and_pad_are_refused_with_advice(images):
    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"sources\.shuffled\(source, window=10_000\)"):
        of_numbers(numbers(3), shuffle=True)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="pass shuffle=False"):
        ImageLoader(Pets(images), batch_size=1, size=16, train=True)
    with pytest.raises(spdl_rs.InvalidArgumentError, match='remainder="pad"'):
        of_numbers(numbers(3), rank=0, world_size=2, remainder="pad")
    of_numbers(numbers(3), remainder="pad")


def test_expressions_of_iterables_are_refused():
    for source in (
        Source(numbers(3)).take(2),
        concat(numbers(3), numbers(3)),
        mix([numbers(3)]),
        curriculum(lambda epoch: numbers(3)),
    ):
        with pytest.raises(TypeError, match="Numbers is an iterable of samples, .* no positions"):
            of_numbers(source)


@pytest.mark.parametrize("window", [1, 4, 100])
def test_a_window_shuffles_each_epoch_differently_and_resumes(window):
    def make():
        return of_numbers(shuffled(numbers(30), window=window, seed=3))

    loader = make()
    epochs = [numbers_of(loader) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(30))
        # An item is at most a window too early.
        assert all(number < at + window for at, number in enumerate(epoch))
    assert (epochs[0] == epochs[1]) == (epochs[0] == list(range(30))) == (window == 1)
    assert numbers_of(make()) == epochs[0]
    for delivered in range(8):
        loader = make()
        batches = iter(loader)
        head = numbers_of(itertools.islice(batches, delivered))
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        assert head + numbers_of(resumed) == epochs[0]
    other = of_numbers(shuffled(numbers(30), window=max(window, 2), seed=4))
    assert numbers_of(other) != epochs[0]


def test_shuffled_checks_its_arguments_and_prints_itself():
    source = shuffled(numbers(3), 5)
    assert repr(source) == "shuffled(<Numbers>, window=5, seed=0)"
    with pytest.raises(TypeError):
        len(source)
    assert len(shuffled([1, 2])) == 2
    for wrong in ("photos", {"a": 1}, 3):
        with pytest.raises(TypeError, match="source must be an iterable of samples"):
            shuffled(wrong)
    with pytest.raises(TypeError, match="pass it to the loader with shuffle=True; with sequential=True, tar shards"):
        shuffled("https://host/train-{000..003}.tar")
    with pytest.raises(ValueError, match="window must be"):
        shuffled([], 0)


def test_a_generator_function_is_refused():
    def samples():
        yield {"number": 1}

    with pytest.raises(TypeError, match=r"; pass samples\(\) for one epoch, or for several epochs an object whose __iter__"):
        of_numbers(samples)
    with pytest.raises(TypeError, match="not an object of type function$"):
        of_numbers(of_numbers)


def test_the_number_of_batches_is_that_of_the_iterable():
    source = numbers(10)
    loader = of_numbers(source)
    with pytest.raises(TypeError, match="the iterable Numbers has no __len__"):
        len(loader)
    assert loader
    type(source).__len__ = lambda self: 10
    assert len(of_numbers(source)) == 3
    assert len(of_numbers(source, rank=0, world_size=2)) == 2
    assert "10 samples, 3 batches" in repr(of_numbers(source))
    type(source).__len__ = lambda self: 0
    with pytest.raises(spdl_rs.NotFoundError, match="no samples"):
        of_numbers(source)


def generated(items):
    for number in range(items):
        yield {"number": number}


def test_a_generator_is_for_one_epoch():
    loader = of_numbers(generated(6))
    with pytest.raises(TypeError, match="peek would use up generated"):
        loader.peek()
    assert numbers_of(loader) == list(range(6))
    with pytest.raises(RuntimeError, match="generated is an iterator.* only once") as raised:
        list(loader)
    assert raised.value.__notes__ == ["start of epoch 1 of generated"]
    window = of_numbers(shuffled(generated(6), 2))
    with pytest.raises(TypeError, match="peek would use up generated"):
        window.peek()
    assert sorted(numbers_of(window)) == list(range(6))
    with pytest.raises(RuntimeError, match="only once"):
        list(window)
    # Resuming skips the items.
    first = of_numbers(generated(10))
    next(iter(first))
    second = of_numbers(generated(10))
    second.load_state_dict(first.state_dict())
    assert numbers_of(second) == list(range(4, 10))


def test_peek_begins_an_additional_iteration(images):
    source = Pets(images)
    loader = of_pets(source)
    assert loader.peek()["number"].tolist() == order_of(0)[:5]
    assert loader.epoch == 0 and numbers_of(loader) == order_of(0)


def test_an_epoch_without_items_is_an_error():
    class Wrapper:
        def __init__(self):
            self.items = generated(4)

        def __iter__(self):
            return itertools.chain(self.items)

    loader = of_numbers(shuffled(Wrapper()))
    assert sorted(numbers_of(loader)) == list(range(4))
    with pytest.raises(ValueError, match="Wrapper has no items in epoch 1; its __iter__"):
        list(loader)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="empty"):
        of_numbers(generated(0))


def test_exceptions_of_the_iterable_end_the_epoch_and_name_the_position(images):
    source = Pets(images)
    for policy in ("raise", "skip"):
        loader = of_pets(source, on_error=policy)
        source.fails_at = 12
        found = []
        with pytest.raises(OSError, match="no item 12") as raised:
            for batch in loader:
                found += batch["number"].tolist()
        assert raised.value.__notes__ == ["item 12 of Pets"]
        assert found == order_of(0)[: len(found)] and len(found) in (10, 12)
        source.fails_at = None


def test_exceptions_of_iter_and_set_epoch_end_the_epoch():
    class Fails:
        fails = False

        def set_epoch(self, epoch):
            if epoch == 1:
                raise LookupError("no epoch")

        def __iter__(self):
            if self.fails:
                raise SystemExit(3)
            return generated(3)

    source = Fails()
    loader = of_numbers(source)
    assert numbers_of(loader) == [0, 1, 2]
    with pytest.raises(LookupError, match="no epoch") as raised:
        list(loader)
    assert raised.value.__notes__ == ["start of epoch 1 of Fails"]
    source.fails = True
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\) was raised by source, Fails"):
        list(loader)


def test_items_that_are_no_samples_follow_the_policy():
    items = [{"number": 0}, {"number": object()}, 3, {"number": 3}, {"number": "x"}, {"number": 5}]
    with pytest.raises(spdl_rs.InvalidArgumentError, match='field "number": .* type object') as raised:
        list(of_numbers(iter(items), batch_size=1))
    assert raised.value.key == "list_iterator:1"
    with pytest.raises(TypeError, match="must be dicts or tuples of fields, not 3") as raised:
        list(of_numbers(iter([items[0], items[2]])))
    assert raised.value.__notes__ == ["item 1 of list_iterator"]
    loader = of_numbers(iter(items), on_error=skip(at_most=3))
    assert numbers_of(loader) == [0, 3, 5]
    dropped = {one["key"]: one["reason"] for one in loader.stats()["dropped"]}
    assert sorted(dropped) == [f"list_iterator:{at}" for at in (1, 2, 4)]
    assert "must be dicts or tuples" in dropped["list_iterator:2"]


def test_corrupt_images_follow_the_policy(images):
    source = Pets([*images[:4], b"no image", *images[5:]])
    with pytest.raises(spdl_rs.SpdlError) as raised:
        list(of_pets(source))
    assert raised.value.key == f"Pets:{order_of(0).index(4)}"
    loader = of_pets(source, on_error="skip")
    assert numbers_of(loader) == [number for number in order_of(0) if number != 4]


def test_tuples_and_other_mappings_are_samples():
    point = collections.namedtuple("point", "x y")
    named = {"x": fields.Number("int64"), "y": fields.Number()}
    for items in (
        [point(1, 2.5)],
        [types.MappingProxyType({"x": 1, "y": 2.5})],
        [collections.OrderedDict(x=1, y=2.5)],
    ):
        (batch,) = Loader(iter(items), named, batch_size=1)
        assert [value.tolist() for value in batch.values()] == [[1], [2.5]]
    numbered = {"x": fields.Number("int64", stored_as="0"), "y": fields.Number(stored_as="1")}
    (batch,) = Loader(iter([(1, 2.5)]), numbered, batch_size=1)
    assert [value.tolist() for value in batch.values()] == [[1], [2.5]]


def test_files_as_hugging_face_stores_them_are_read(images, tmp_path):
    path = tmp_path / "one.png"
    path.write_bytes(images[3])
    stored = [
        {"image": {"bytes": images[3], "path": "elsewhere.png"}},
        {"image": {"bytes": None, "path": str(path)}},
        {"image": path},
    ]
    (batch,) = Loader(iter(stored), batch_size=3, image=fields.Image(16))
    assert (batch["image"][0] == batch["image"]).all()
    (batch,) = Loader(stored, batch_size=3, image=fields.Image(16))
    assert (batch["image"][0] == batch["image"]).all()
    pytest.importorskip("PIL")
    import PIL.Image

    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"datasets\.Image\(decode=False\) does; in place of .*ImageFolder"):
        list(Loader(iter([{"image": PIL.Image.open(path)}]), batch_size=1, image=fields.Image(16)))


def test_an_image_loader_reads_iterables(images):
    loader = ImageLoader(Pets(images), batch_size=ITEMS, size=16)
    ((pixels, labels),) = loader
    assert pixels.shape == (ITEMS, 16, 16, 3)
    assert labels.tolist() == [number % 3 for number in order_of(0)]
    assert repr(loader).startswith("ImageLoader(Python iterable 'Pets': images, 0 classes; batches of")


def is_even(sample):
    return sample["number"] % 2 == 0


def each(sample, rng):
    return sample["number"], sample["text"], rng.integers(2**62)


@pytest.mark.parametrize("executor", ["threads", "processes", "inline"])
def test_functions_work_on_each_executor(images, executor):
    def make(executor):
        processes = 2 if executor == "processes" else None
        return of_pets(
            Pets(images), filter=is_even, map=each, collate=list, executor=executor, processes=processes
        )

    loader = make(executor)
    batches = iter(loader)
    head = [next(batches)]
    resumed = make(executor)
    resumed.load_state_dict(loader.state_dict())
    rest = list(batches)
    assert list(resumed) == rest
    assert head + rest == list(make("threads"))
    found = [number for batch in head + rest for number, *_ in batch]
    assert found == [number for number in order_of(0) if number % 2 == 0]


def test_samples_are_packed():
    class Lengths:
        def __iter__(self):
            return ({"tokens": [length] * length} for length in itertools.chain(*[range(1, 8)] * 20))

    def make():
        return Loader(
            Lengths(), batch_size=2, tokens=fields.Array(None, "int64"), group=Pack("tokens", length=8)
        )

    whole = copies(make())
    loader = make()
    batches = iter(loader)
    head = copies(itertools.islice(batches, 5))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert head + copies(resumed) == whole


def test_the_source_is_read_on_one_thread_a_limited_number_of_items_ahead(images):
    source = Pets(images * 40, 40 * ITEMS)
    loader = of_pets(source, threads=2)
    source.taken = 0
    source.threads.clear()
    batches = iter(loader)
    next(batches)
    time.sleep(0.5)
    # The queue of the thread, the queue of the source, reads, and batches.
    assert 5 <= source.taken <= 200
    assert len(source.threads) == 1 and threading.get_native_id() not in source.threads
    batches.close()


def test_large_samples_wait_in_a_limited_amount_of_memory():
    taken = []

    class Large:
        def __iter__(self):
            for number in range(200):
                taken.append(number)
                yield {"number": number, "content": bytes(8 << 20)}

    loader = Loader(Large(), batch_size=1, number=fields.Number(), content=fields.Bytes(), threads=1)
    taken.clear()
    batches = iter(loader)
    next(batches)
    time.sleep(0.5)
    assert len(taken) < 50
    batches.close()


def test_ending_early_closes_the_generator(images):
    source = Pets(images * 40, 40 * ITEMS)
    loader = of_pets(source)
    source.closed.clear()
    for _ in loader:
        break
    assert source.closed.wait(20)
    source.closed.clear()
    batches = iter(loader)
    next(batches)
    batches.close()
    # `close` waits for the thread of the source.
    assert source.closed.is_set()


def test_closing_does_not_wait_for_a_slow_source():
    class Slow:
        def __iter__(self):
            yield {"number": 0}
            time.sleep(3)
            yield {"number": 1}

    batches = iter(of_numbers(Slow(), batch_size=1))
    next(batches)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < 2


def test_context_variables_and_thread_locals_last_for_an_iteration():
    import contextvars

    variable = contextvars.ContextVar("variable", default=None)
    local = threading.local()

    class Uses:
        def __iter__(self):
            variable.set("set")
            local.value = 3
            for number in range(200):
                assert variable.get() == "set" and local.value == 3
                yield {"number": number}

    assert len(numbers_of(of_numbers(shuffled(Uses(), 1)))) == 200


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals")
def test_ctrl_c_interrupts_the_wait_for_a_slow_source():
    class Slow:
        def __iter__(self):
            yield {"number": 0}
            time.sleep(5)
            yield {"number": 1}

    batches = iter(of_numbers(Slow(), batch_size=1))
    next(batches)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert time.monotonic() - started < 3
    timer.join()


def test_a_source_that_refers_to_its_loader_is_collected(images):
    source = Pets(images)
    loader = of_pets(source)
    next(iter(loader))
    source.loader = loader
    gone = weakref.ref(source)
    del source, loader
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        # The thread of the epoch may end later.
        time.sleep(0.05)
    assert gone() is None


def test_classes_of_torch_and_datasets_are_not_read_when_the_loader_is_opened(monkeypatch):
    class IterableDataset:
        reads = 0

        def __iter__(self):
            type(self).reads += 1
            return generated(3)

    torch = types.ModuleType("torch")
    torch.utils = types.SimpleNamespace(data=types.SimpleNamespace(IterableDataset=IterableDataset))
    datasets = types.ModuleType("datasets")
    datasets.IterableDataset, datasets.Features = IterableDataset, object
    for name, module in (("torch", torch), ("datasets", datasets)):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, module)
            IterableDataset.reads = 0
            loader = of_numbers(IterableDataset())
            assert IterableDataset.reads == 0
            assert numbers_of(loader) == [0, 1, 2] and IterableDataset.reads == 1


@pytest.mark.frameworks
def test_an_iterable_dataset_of_torch_is_loaded():
    torch = pytest.importorskip("torch")

    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            for number in range(6):
                yield {"number": torch.tensor(number), "pair": torch.tensor([number, 1.5])}

    loader = of_numbers(Numbers(), pair=fields.Array(2), output="torch")
    batches = list(loader)
    assert numbers_of(batches) == list(range(6))
    assert batches[0]["pair"][3].tolist() == [3.0, 1.5]
    # PyTorch's loader may read ahead in processes.
    workers = torch.utils.data.DataLoader(Numbers(), batch_size=None, num_workers=1)
    assert numbers_of(of_numbers(workers)) == list(range(6))


def test_arrays_of_numpy_are_values_of_samples():
    arrays = ({"number": numpy.int64(n), "array": numpy.full(3, n, "f4")} for n in range(3))
    (batch,) = of_numbers(arrays, array=fields.Array(3))
    assert batch["array"].tolist() == [[n] * 3 for n in range(3)]


@pytest.mark.frameworks
def test_streaming_data_sets_of_hugging_face_are_loaded(images):
    datasets = pytest.importorskip("datasets")

    def stored():
        for number, image in enumerate(images):
            yield {"image": {"bytes": image, "path": None}, "number": number, "text": f"text {number}"}

    def make():
        types = {
            "image": datasets.Image(decode=False),
            "number": datasets.Value("int64"),
            "text": datasets.Value("string"),
        }
        pets = datasets.IterableDataset.from_generator(stored, features=datasets.Features(types))
        pets = pets.shuffle(seed=1, buffer_size=8)
        return of_numbers(pets, image=fields.Image(16), text=fields.Text())

    loader = make()
    epochs = [copies(loader) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(numbers_of(make())) == list(range(ITEMS))
    loader = make()
    batches = iter(loader)
    head = copies(itertools.islice(batches, 3))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert head + copies(resumed) == epochs[0]
