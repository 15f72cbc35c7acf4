"""`spdl_rs.torch.DataLoader` compared with PyTorch's: the same arguments give the same batches."""

# promise of this file: PY1

import itertools
import random
import threading
import warnings

import pytest
import spdl_rs.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
data = torch.utils.data
pytestmark = pytest.mark.frameworks


class Squares(data.Dataset):
    def __init__(self, length=23):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"number": index, "square": torch.tensor([float(index * index)])}


class ManyAtOnce(Squares):
    def __getitems__(self, indices):
        return [(index, "many") for index in indices]


class Counted(data.IterableDataset):
    """Divides its numbers unevenly among workers."""

    def __init__(self, length=23, has_length=True):
        self.length = length
        if has_length:
            self.__class__ = CountedWithLength

    def __iter__(self):
        info = data.get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # The first worker has twice as many numbers as the others.
        for index in range(self.length):
            if index % (workers + 1) % workers == number:
                yield index


class CountedWithLength(Counted):
    def __len__(self):
        return self.length


def plain(item):
    """Converts to values that can be compared."""
    if isinstance(item, torch.Tensor):
        return ("tensor", str(item.dtype), item.tolist())
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)(plain(value) for value in item)
    return item


def epochs_of(loader, count=2):
    return [[plain(batch) for batch in loader] for _ in range(count)]


def both(make, seed=7):
    """Returns the epochs of PyTorch's loader and of ours."""
    results = []
    for loader in (data.DataLoader, spdl_rs.torch.DataLoader):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(make(loader))
    return results


ORDERS = {
    "in order": lambda dataset: {},
    "shuffled": lambda dataset: {"shuffle": True},
    "shuffled by a generator": lambda dataset: {
        "shuffle": True,
        "generator": torch.Generator().manual_seed(3),
    },
    "sampler": lambda dataset: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
    "subset": lambda dataset: {"sampler": data.SubsetRandomSampler(range(3, 15))},
    "weighted": lambda dataset: {
        "sampler": data.WeightedRandomSampler([1.0, 5.0, 2.0, 9.0], num_samples=17)
    },
    "replacement": lambda dataset: {
        "sampler": data.RandomSampler(dataset, replacement=True, num_samples=70)
    },
    "more than there are": lambda dataset: {
        "sampler": data.RandomSampler(
            dataset, num_samples=50, generator=torch.Generator().manual_seed(5)
        )
    },
    "distributed": lambda dataset: {
        "sampler": data.DistributedSampler(dataset, num_replicas=3, rank=1)
    },
}

BATCHES = [
    {"batch_size": None},
    {},
    {"batch_size": 4},
    {"batch_size": 4, "drop_last": True},
    {"batch_size": 100},
    {"batch_size": 100, "drop_last": True},
]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batches", BATCHES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_those_of_pytorch(order, batches, workers):
    def make(loader_class):
        dataset = Squares()
        arguments = {**batches, **ORDERS[order](dataset)}
        # Only our loader has workers here: PyTorch's batches do not depend on them.
        ours = loader_class is spdl_rs.torch.DataLoader
        loader = loader_class(dataset, num_workers=workers if ours else 0, **arguments)
        return len(loader), epochs_of(loader)

    theirs, ours = both(make)
    assert ours == theirs


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_pytorch_with_workers(shuffle, persistent):
    def make(loader):
        arguments = {"shuffle": shuffle, "num_workers": 2, "persistent_workers": persistent}
        return epochs_of(loader(Squares(), batch_size=4, **arguments), 3), torch.rand(3).tolist()

    theirs, ours = both(make)
    assert ours == theirs


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("batches", BATCHES, ids=str)
@pytest.mark.parametrize("has_length", [False, True])
def test_iterable_data_sets_are_divided_and_ordered_as_in_pytorch(workers, batches, has_length):
    def make(loader_class):
        loader = loader_class(Counted(has_length=has_length), num_workers=workers, **batches)
        try:
            length = len(loader)
        except TypeError:
            length = None
        return length, epochs_of(loader)

    theirs, ours = both(make)
    assert ours == theirs


def test_random_numbers_drawn_between_batches_do_not_change():
    def make(loader):
        drawn = []
        for batch in loader(Squares(), batch_size=4, shuffle=True):
            drawn.append((plain(batch), torch.rand(1).item()))
        return drawn

    theirs, ours = both(make)
    assert ours == theirs


@pytest.mark.parametrize("workers", [0, 2])
def test_the_caller_iterates_the_sampler_as_far_ahead_as_in_pytorch(workers):
    def make(loader):
        drawn = []

        class Sampler:
            def __iter__(self):
                for index in range(12):
                    drawn.append((index, random.Random(index).random()))
                    yield index

            def __len__(self):
                return 12

        batches = iter(loader(Squares(), sampler=Sampler(), batch_size=2, num_workers=workers))
        seen = [len(drawn)]
        for _ in batches:
            seen.append(len(drawn))
        return seen

    theirs, ours = both(make)
    assert ours == theirs


def test_a_batch_sampler_with_getitems():
    def make(loader):
        batches = [[0, 1], [5], [7, 8, 9]]
        by_name = {chr(97 + index): index for index in range(5)}
        return (
            epochs_of(loader(Squares(), batch_sampler=batches)),
            epochs_of(loader(ManyAtOnce(), batch_size=5)),
            epochs_of(loader(by_name, sampler=["a", "d"], batch_size=2)),
            epochs_of(loader(data.Subset(ManyAtOnce(), [4, 2, 1]), batch_size=2)),
            epochs_of(loader(data.TensorDataset(torch.arange(6), torch.ones(6)), batch_size=4)),
            epochs_of(loader(torch.arange(7.0), batch_size=3)),
            epochs_of(loader(Squares(), batch_size=9, collate_fn=len)),
        )

    theirs, ours = both(make)
    assert ours == theirs


REFUSED = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"shuffle": True, "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 2.0},
    {"batch_size": True},
    {"drop_last": 1},
    {"multiprocessing_context": "spawn"},
    {"multiprocessing_context": "nonsense", "num_workers": 1},
    {"multiprocessing_context": 3, "num_workers": 1},
    {"num_workers": "two"},
]


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_arguments_that_pytorch_rejects_raise_the_same_type_of_error(arguments):
    if "prefetch_factor" in arguments and torch.__version__.startswith("1."):
        pytest.skip("PyTorch 1 ignores prefetch_factor without workers")
    for loader in (data.DataLoader, spdl_rs.torch.DataLoader):
        try:
            loader(Squares(), **arguments)
        except Exception as error:
            kind = type(error)
            continue
        pytest.fail(f"{loader} takes {arguments}")
    with pytest.raises(kind):
        spdl_rs.torch.DataLoader(Squares(), **arguments)
    with pytest.raises(kind):
        data.DataLoader(Squares(), **arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}, {"batch_size": 0}],
    ids=str,
)
def test_iterable_data_sets_reject_arguments_for_the_order(arguments):
    for loader in (data.DataLoader, spdl_rs.torch.DataLoader):
        with pytest.raises(ValueError):
            loader(Counted(), **arguments)


class Fails(Squares):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def __getitem__(self, index):
        if index == 6:
            raise self.error
        return index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [KeyError("six"), OSError(5, "bad disk"), IndexError("no")])
def test_errors_keep_type_and_position_and_later_batches_follow(error, workers):
    def make(loader):
        batches, got = iter(loader(Fails(error), batch_size=4, num_workers=workers)), []
        while True:
            try:
                got.append(next(batches).tolist())
            except StopIteration:
                return got
            except Exception as raised:
                got.append(type(raised))

    theirs, ours = both(make)
    assert ours == theirs
    assert ours[1] is type(error) and len(ours) == 6


def test_mismatched_samples_raise_as_in_pytorch():
    def make(loader):
        with pytest.raises(RuntimeError) as raised:
            list(loader([torch.zeros(1), torch.zeros(2)], batch_size=2))
        return type(raised.value)

    theirs, ours = both(make)
    assert ours == theirs


def test_attributes_exist_and_are_read_only_as_in_pytorch():
    names = (
        "batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers",
        "num_workers", "pin_memory", "pin_memory_device", "timeout", "generator", "collate_fn",
        "prefetch_factor", "in_order", "multiprocessing_context", "worker_init_fn",
    )  # fmt: skip

    # PyTorch 1 has no attribute `in_order`.
    example = data.DataLoader(Squares())
    names = [name for name in names if hasattr(example, name)]

    def make(loader_class):
        loader = loader_class(Squares(), batch_size=2, num_workers=1)
        fixed = []
        for name in names:
            value = getattr(loader, name)
            try:
                setattr(loader, name, value)
            except ValueError:
                fixed.append(name)
        return fixed, type(loader.sampler), type(loader.batch_sampler), loader.collate_fn

    theirs, ours = both(make)
    assert ours == theirs


@pytest.mark.parametrize("workers", [1, 3])
def test_pytorchs_worker_info_works_in_our_threads_for_every_import(workers):
    from torch.utils.data import get_worker_info

    class Tells(data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            info = get_worker_info()
            assert info is data.get_worker_info() is spdl_rs.torch.get_worker_info()
            return info.id, info.num_workers, info.seed - info.id, info.dataset is dataset

    dataset = Tells()
    loader = spdl_rs.torch.DataLoader(
        dataset, batch_size=None, num_workers=workers, collate_fn=tuple
    )
    reported = list(loader)
    assert {info[0] for info in reported} <= set(range(workers))
    assert len({info[2] for info in reported}) == 1
    assert {(info[1], info[3]) for info in reported} == {(workers, True)}
    assert get_worker_info() is None
    # PyTorch's workers still have PyTorch's own result.
    ids = data.DataLoader(IdsOfWorkers(), batch_size=None, num_workers=2)
    assert sorted(int(worker) for worker in ids) == [0, 1]


class IdsOfWorkers(data.IterableDataset):
    def __iter__(self):
        yield data.get_worker_info().id


def test_pinning_without_an_accelerator_warns_and_pins_nothing():
    if not hasattr(torch, "accelerator"):
        pytest.skip("torch.accelerator needs PyTorch 2.6")
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator"):
        (batch,) = spdl_rs.torch.DataLoader(torch.arange(3), batch_size=3, pin_memory=True)
    assert not batch.is_pinned() and batch.tolist() == [0, 1, 2]


class Pinnable:
    pinned_in = None

    def pin_memory(self):
        self.pinned_in = threading.get_ident(), torch.cuda.current_device()
        return self


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned_by_workers_for_the_device_of_the_caller(monkeypatch, workers):
    """With a simulated accelerator."""
    device = threading.local()
    device.current = 3
    for module in {torch.cuda, getattr(torch, "accelerator", torch.cuda)}:
        monkeypatch.setattr(module, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(device, "current", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: setattr(device, "current", index))
    loader = spdl_rs.torch.DataLoader(
        range(5),
        batch_size=1,
        num_workers=workers,
        pin_memory=True,
        collate_fn=lambda _: Pinnable(),
    )
    pinned = [batch.pinned_in for batch in loader]
    assert {device for _, device in pinned} == {3}
    assert (threading.get_ident() in {thread for thread, _ in pinned}) is (workers == 0)


def test_pinning_happens_to_every_batch(monkeypatch):
    from spdl_rs.torch import _loader

    monkeypatch.setattr(_loader, "pin_function", lambda: lambda batch: ("pinned", batch.tolist()))
    for workers, dataset in itertools.product([0, 2], [torch.arange(4), Counted(4)]):
        loader = spdl_rs.torch.DataLoader(
            dataset, batch_size=4, num_workers=workers, pin_memory=True
        )
        assert {kind for kind, _ in loader} == {"pinned"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pytorch_training_loop_runs_unchanged(workers):
    """A training loop written for PyTorch."""

    def make(loader_class):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        loader = loader_class(Squares(), batch_size=8, shuffle=True, num_workers=workers)
        for _ in range(2):
            for batch in loader:
                loss = (model(batch["square"]) - batch["number"][:, None]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return [parameter.tolist() for parameter in model.parameters()]

    theirs, ours = both(make)
    assert ours == theirs
