"""Ctrl-C at random times: an item counts as delivered if and only if the loop received it.

Python runs signal handlers between two bytecode instructions, in the loop or in the loader. The
tests interrupt loops many times, and resume them from their state.
"""

import contextlib
import functools
import random
import signal

import pytest
import spdl_rs
from spdl_rs import StoppedError
from spdl_rs.dataloader import DataLoader, _epoch_iterator, get_pytorch_dataloader
from spdl_rs.pipeline import PipelineBuilder
from spdl_rs.source import DistributedRandomSampler
from spdl_rs.torch import DataLoader as TorchDataLoader
from spdl_rs.torch import _batch_iterator, _workers
from torch_datasets import Stream

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no setitimer"),
    # If the signal arrives in a finalizer, Python prints the exception and continues.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LENGTH = 400


def is_interrupted(work, seconds):
    """Whether a KeyboardInterrupt after `seconds` interrupts the work."""
    is_working = True

    def interrupt(*_):
        # Another thread may have received the signal, so Python may run this handler after the work.
        if is_working:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        work()
        is_working = False
    except KeyboardInterrupt:
        is_working = False
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # A late signal with the default action would end the process.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return False


def seen_in_pieces(make, expected, draw, mean_s):
    """The items of a loop that is interrupted and resumed repeatedly, and the number of interrupts."""
    seen, state, interrupts, wait_s = [], None, 0, mean_s
    for _ in range(5000):
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        take = functools.partial(take_items, loader, seen)
        before = len(seen)
        came = is_interrupted(take, max(1e-6, draw.expovariate(1 / wait_s)))
        interrupts += came
        # On a busy machine, no batch may be ready within the time: increase it.
        wait_s = mean_s if len(seen) > before else 2 * wait_s
        if not came or len(seen) >= expected:
            return seen, interrupts
        state = loader.state_dict()
    raise AssertionError("the loop does not end")


def take_items(loader, seen):
    for item in loader:
        # The first operation of the loop body.
        seen.append(item)


def torch_loader(dataset, **arguments):
    return TorchDataLoader(dataset, None, collate_fn=int, **arguments)


class Numbers(Stream):
    def __init__(self):
        super().__init__(LENGTH)


LOADERS = {
    "torch, map, by the caller": lambda: torch_loader(range(LENGTH)),
    "torch, map, by threads": lambda: torch_loader(range(LENGTH), num_workers=2),
    "torch, iterable, by the caller": lambda: torch_loader(Numbers()),
    "torch, iterable, by a thread": lambda: torch_loader(Numbers(), num_workers=1),
    "as PyTorch's": lambda: get_pytorch_dataloader(
        range(LENGTH), None, collate_fn=int, num_workers=2, in_order=True
    ),
    "of SPDL": lambda: DataLoader(
        DistributedRandomSampler(LENGTH, rank=0, world_size=1, seed=3),
        preprocessor=int,
        output_order="input",
        num_threads=2,
    ),
}


# feature: L10
@pytest.mark.parametrize("kind", LOADERS)
def test_interrupted_loops_receive_each_item_once(kind):
    make = LOADERS[kind]
    expected = list(make())
    assert sorted(expected) == list(range(LENGTH))
    draw, interrupts = random.Random(kind), 0
    while interrupts < 150:
        seen, more = seen_in_pieces(make, LENGTH, draw, mean_s=0.002)
        assert seen == expected
        interrupts += more


# feature: L10
def test_interrupted_loops_receive_each_image_once(many):
    paths = sorted(many.glob("*/*.png")) * 5

    def make():
        return spdl_rs.ImageLoader(paths, batch_size=1, size=8, labels=range(200), threads=2)

    draw, interrupts = random.Random(5), 0
    while interrupts < 100:
        seen, more = seen_in_pieces(make, 200, draw, mean_s=0.02)
        assert [labels.item() for _, labels in seen] == list(range(200))
        interrupts += more


# feature: L10
def test_interrupted_loops_receive_each_device_batch_once(many, stub):
    paths = sorted(many.glob("*/*.png"))
    options = {"batch_size": 1, "size": 8, "labels": range(40), "threads": 2, "device": "cuda"}
    draw, interrupts = random.Random(7), 0
    while interrupts < 50:
        make = functools.partial(spdl_rs.ImageLoader, paths, **options)
        seen, more = seen_in_pieces(make, 40, draw, mean_s=0.02)
        assert [labels.to_host().item() for _, labels in seen] == list(range(40))
        interrupts += more
    del seen, make


# feature: L10
def test_an_interrupted_pipeline_loses_no_item():
    draw = random.Random(2)
    for _ in range(100):
        pipeline = PipelineBuilder().add_source(range(300)).add_sink(3).build(num_threads=1)
        seen = []
        is_interrupted(functools.partial(take_items, pipeline, seen), draw.uniform(1e-6, 0.003))
        assert seen == list(range(len(seen)))
        if seen:
            with contextlib.suppress(EOFError):
                # An interrupt in a wait stops the pipeline; one in the loop does not.
                assert pipeline.get_item() == len(seen)
        pipeline.stop()


# promise: PY2
@pytest.mark.parametrize("dataset", [range(6), Stream(6)], ids=["map", "iterable"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_lost_before_delivery_is_resumed(dataset, workers, monkeypatch):
    loader = TorchDataLoader(dataset, 2, collate_fn=list, num_workers=workers)
    batches = iter(loader)
    assert next(batches) == [0, 1]
    kind = _workers.ThreadWorkers if workers else _workers.CallerWorkers
    take = kind.take

    def take_and_press(self, timeout):
        take(self, timeout)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kind, "take", take_and_press)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    # The iterator has lost the batch, and reports this on every call.
    for _ in range(2):
        with pytest.raises(StoppedError, match="create a new iterator, or resume"):
            next(batches)
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [[2, 3], [4, 5]]


class Pressing(type):
    def __instancecheck__(cls, instance):
        raise KeyboardInterrupt


# promise: PY2
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_lost_in_the_iterator_is_resumed(workers, monkeypatch):
    loader = TorchDataLoader(range(4), 2, collate_fn=list, num_workers=workers)
    batches = iter(loader)
    with monkeypatch.context() as patched:
        # Raises in the check of a batch that was taken from the queue.
        patched.setattr(_batch_iterator, "Raised", Pressing("Raised", (), {}))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    with pytest.raises(StoppedError, match="create a new iterator, or resume"):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [[0, 1], [2, 3]]


# feature: L10
def test_an_interrupted_data_set_does_not_end_the_epoch():
    class Pressed:
        def __iter__(self):
            for number in range(6):
                if number == 3 and presses:
                    raise presses.pop()
                yield number

    presses = [KeyboardInterrupt()]
    loader = TorchDataLoader(Pressed(), 2, collate_fn=list)
    batches = iter(loader)
    assert next(batches) == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(StoppedError):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [[2, 3], [4, 5]]


# promise: PY2
def test_a_loaded_state_survives_an_interrupted_start():
    class Pressed:
        def __iter__(self):
            for number in range(6):
                if number == 1 and presses:
                    raise presses.pop()
                yield number

        def __len__(self):
            return 6

    presses = []
    loader = TorchDataLoader(range(6), None, sampler=Pressed(), collate_fn=int)
    batches = iter(loader)
    assert [next(batches), next(batches), next(batches)] == [0, 1, 2]
    loader.load_state_dict(loader.state_dict())
    presses.append(KeyboardInterrupt())
    # While the iterator skips delivered items.
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    assert list(loader) == [3, 4, 5]


def test_an_item_lost_in_a_pass_is_not_counted_as_delivered(monkeypatch):
    def make():
        sampler = DistributedRandomSampler(9, rank=0, world_size=1, seed=1)
        return DataLoader(sampler, preprocessor=int, output_order="input", num_threads=1)

    expected = list(make())
    loader = make()
    items = iter(loader)
    assert next(items) == expected[0]

    def press(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_epoch_iterator, "merged", press)
        with pytest.raises(KeyboardInterrupt):
            next(items)
    # Not the end of the pass: every call reports the interrupt.
    for _ in range(2):
        with pytest.raises(StoppedError, match="create a new iterator, or resume"):
            next(items)
    again = make()
    again.load_state_dict(loader.state_dict())
    assert list(again) == expected[1:]


# feature: L10
def test_a_pass_interrupted_at_its_start_does_not_end():
    def press():
        raise KeyboardInterrupt

    items = _epoch_iterator.EpochIterator(press, None)
    with pytest.raises(KeyboardInterrupt):
        next(items)
    with pytest.raises(StoppedError):
        next(items)


def test_ended_and_closed_passes_stay_ended():
    items = iter(DataLoader(range(3), num_threads=1))
    assert len(list(items)) == 3
    items._interrupt()
    assert list(items) == []
    closed = iter(DataLoader(range(3), num_threads=1))
    next(closed)
    closed.close()
    assert list(closed) == []
