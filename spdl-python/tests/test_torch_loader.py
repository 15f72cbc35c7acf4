"""`spdl_rs.torch.DataLoader` without PyTorch: batches, threads, errors, endings."""

import _thread
import copy
import doctest
import gc
import importlib
import pickle
import queue
import re
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
import weakref

import pytest
import spdl_rs
from pipelines import assert_no_threads, threads
from spdl_rs import StoppedError, skip
from spdl_rs.torch import (
    DataLoader,
    LoaderTimedOutError,
    _arguments,
    _samplers,
    get_worker_info,
)
from torch_datasets import Stream

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def loader(dataset=LETTERS, batch_size=4, collate_fn=list, **arguments):
    return DataLoader(dataset, batch_size, collate_fn=collate_fn, **arguments)


def lists(length, size):
    return [list(range(at, min(length, at + size))) for at in range(0, length, size)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_have_the_order_of_the_indices(workers):
    assert list(loader(range(23), num_workers=workers)) == lists(23, 4)
    short = loader(range(23), num_workers=workers, drop_last=True)
    assert list(short) == lists(23, 4)[:-1] and len(short) == 5
    chosen = loader(range(23), sampler=[5, 3, 9], batch_size=2, num_workers=workers)
    assert list(chosen) == [[5, 3], [9]] and len(chosen) == 2
    batches = loader(range(23), 1, batch_sampler=[[7], [1, 2]], num_workers=workers)
    assert list(batches) == [[7], [1, 2]] and len(batches) == 2
    single = loader("abc", None, collate_fn=str.upper, num_workers=workers)
    assert list(single) == ["A", "B", "C"] and len(single) == 3
    assert list(loader([], num_workers=workers)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_none_is_a_valid_sample(workers):
    assert list(DataLoader([None, 1, None], None, num_workers=workers)) == [None, 1, None]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_iteration_is_an_epoch_and_several_may_overlap(workers):
    letters = loader(num_workers=workers)
    first, second = iter(letters), iter(letters)
    assert [next(first), next(second), next(first)] == [list("abcd"), list("abcd"), list("efgh")]
    assert len(list(first)) == 5 and len(list(second)) == 6 and len(list(letters)) == 7


def test_workers_of_an_iterable_deliver_batches_in_turn():
    assert list(loader(Stream(7), 2)) == [[0, 1], [2, 3], [4, 5], [6]]
    assert list(loader(Stream(7), 2, num_workers=1)) == [[0, 1], [2, 3], [4, 5], [6]]
    assert list(loader(Stream(7), 2, num_workers=2)) == [[0, 2], [1, 3], [4, 6], [5]]
    assert list(loader(Stream(7), 2, num_workers=2, drop_last=True)) == [[0, 2], [1, 3], [4, 6]]
    assert list(loader(Stream(3), None, collate_fn=int, num_workers=5)) == [0, 1, 2]
    with pytest.raises(TypeError):
        len(loader(Stream()))


def test_each_worker_of_an_iterable_has_a_copy_of_the_data_set():
    seen = []

    def begin(worker):
        info = get_worker_info()
        seen.append(info.dataset)
        info.dataset.length = 2 + worker

    class Whole(Stream):
        def __iter__(self):
            return iter(range(self.length))

    dataset = Whole()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = loader(dataset, None, int, num_workers=2, worker_init_fn=begin)
    assert sorted(batches) == [0, 0, 1, 1, 2] and dataset.length == 23
    assert len({id(each) for each in [dataset, *seen]}) == 3


@pytest.mark.parametrize("workers", [1, 4])
def test_num_workers_threads_make_the_samples(workers):
    together = threading.Barrier(workers)

    def collate(samples):
        together.wait(30)
        return get_worker_info().id, get_worker_info().num_workers, threading.get_ident()

    batches = list(loader(range(workers * 4), 1, collate, num_workers=workers))
    assert {batch[:2] for batch in batches} == {(number, workers) for number in range(workers)}
    assert len({ident for _, _, ident in batches}) == workers
    assert threading.get_ident() not in {ident for _, _, ident in batches}
    assert get_worker_info() is None


def test_without_workers_the_caller_makes_samples():
    def collate(samples):
        assert get_worker_info() is None
        return threading.get_ident()

    gc.collect()
    assert_no_threads()
    assert set(loader(range(9), collate_fn=collate)) == {threading.get_ident()}
    assert threads() == []


@pytest.mark.parametrize(("workers", "factor"), [(1, 1), (1, 3), (3, 2)])
def test_prefetch_factor_limits_the_prefetched_batches(workers, factor):
    made, drawn = [], []

    def indices():
        for index in range(100):
            drawn.append(index)
            yield index

    class Indices:
        def __iter__(self):
            return indices()

    batches = iter(
        loader(
            range(100), 1, made.append, sampler=Indices(), num_workers=workers,
            prefetch_factor=factor,
        )
    )  # fmt: skip
    ahead = factor * workers
    for taken in range(5):
        deadline = time.monotonic() + 20
        while len(made) < ahead + taken and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert len(made) == len(drawn) == ahead + taken
        next(batches)


def test_batch_size_and_drop_last_are_checked_with_and_without_pytorch(monkeypatch):
    class Unchecked:
        def __init__(self, sampler, batch_size, drop_last):
            self.batch_size = batch_size

    module = types.SimpleNamespace(
        utils=types.SimpleNamespace(data=types.SimpleNamespace(BatchSampler=Unchecked))
    )
    for there in (None, module):
        monkeypatch.setattr(_samplers, "pytorch", lambda there=there: there)
        for wrong in (0, -1, 2**70, 2.0, True):
            with pytest.raises(ValueError, match="^batch_size must be"):
                _samplers.batch_sampler_of([1], wrong, False)
        with pytest.raises(ValueError, match="^drop_last must be True or False, not 1$"):
            _samplers.batch_sampler_of([1], 2, 1)
        assert _samplers.batch_sampler_of([1], 2, False).batch_size == 2


def test_without_order_a_slow_batch_does_not_delay_others():
    others_are_done = threading.Event()

    def collate(samples):
        if samples == [0]:
            assert others_are_done.wait(30)
        return samples[0]

    free = iter(loader(range(8), 1, collate, num_workers=2, in_order=False))
    first = [next(free) for _ in range(7)]
    others_are_done.set()
    assert sorted(first) == list(range(1, 8)) and list(free) == [0]


class Fails:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 6:
            raise KeyError("six")
        return index


def notes_of(error):
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_sample_keeps_order_traceback_and_index(workers):
    batches = iter(loader(Fails(), 2, num_workers=workers))
    assert [next(batches) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(KeyError, match="six") as raised:
        next(batches)
    assert "__getitem__" in {
        frame.name for frame in traceback.extract_tb(raised.value.__traceback__)
    }
    assert notes_of(raised.value) == "Raised for: sample 6"
    assert next(batches) == [8, 9]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_iteration_in_a_sample_does_not_end_the_epoch(workers):
    class Ends(Fails):
        def __getitem__(self, index):
            return next(iter([])) if index == 3 else index

    batches = iter(loader(Ends(), 2, num_workers=workers))
    next(batches)
    with pytest.raises(RuntimeError, match="StopIteration was raised for sample 3"):
        next(batches)
    assert len(list(batches)) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_of_collate_fn_and_getitems_name_the_indices(workers):
    def refuse(samples):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        next(iter(loader(range(5), 2, refuse, num_workers=workers)))
    assert notes_of(raised.value) == "Raised for: collate_fn, for indices [0, 1]"

    class Many(Fails):
        def __getitems__(self, indices):
            raise ValueError("many")

    with pytest.raises(ValueError, match="many") as raised:
        next(iter(loader(Many(), 2, num_workers=workers)))
    assert notes_of(raised.value) == "Raised for: samples [0, 1]"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_an_iterable_keeps_its_order(workers):
    class Breaks:
        def __iter__(self):
            yield from range(4)
            raise OSError(5, "bad disk")

    batches = iter(loader(Breaks(), 2, num_workers=workers))
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="bad disk") as raised:
        next(batches)
    assert notes_of(raised.value) == "Raised for: a sample after the first 2 batches"
    assert list(batches) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_sampler_follows_the_batches_before_it(workers):
    class Sampler:
        def __iter__(self):
            yield from range(5)
            raise LookupError("lost")

    batches, got = iter(loader(range(9), 2, sampler=Sampler(), num_workers=workers)), []
    with pytest.raises(LookupError, match="lost"):
        for batch in batches:
            got.append(batch)
    assert got == [[0, 1], [2, 3]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_calls_exit_does_not_end_the_program(workers):
    class Exits(Fails):
        def __getitem__(self, index):
            if index == 1:
                raise SystemExit(3)
            return index

    batches = iter(loader(Exits(), 1, num_workers=workers))
    assert next(batches) == [0]
    with pytest.raises(RuntimeError, match="SystemExit was raised for sample 1, with code 3"):
        next(batches)
    assert next(batches) == [2]


def test_an_interrupted_batch_does_not_count_as_delivered():
    interrupts = [KeyboardInterrupt()]

    def collate(samples):
        if samples == [1] and interrupts:
            raise interrupts.pop()
        return samples

    letters = loader(range(4), 1, collate)
    batches = iter(letters)
    assert next(batches) == [0]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert letters.state_dict()["_num_yielded"] == 1
    assert list(batches) == [[1], [2], [3]]


def test_a_timeout_is_an_error_of_both_types_and_next_may_be_called_again():
    go_on = threading.Event()

    def collate(samples):
        assert go_on.wait(30)
        return samples

    batches = iter(loader(range(4), 2, collate, num_workers=1, timeout=0.05))
    for kind in (TimeoutError, RuntimeError, LoaderTimedOutError):
        with pytest.raises(kind, match="not ready within 0.05 s"):
            next(batches)
    go_on.set()
    assert next(batches) == [0, 1]
    with pytest.raises(ValueError, match="timeout requires num_workers"):
        loader(timeout=1)


@pytest.mark.parametrize("dataset", [range(9), Stream(9)], ids=["map", "iterable"])
def test_ctrl_c_ends_a_wait_and_the_state_is_exact(dataset):
    go_on = threading.Event()

    def collate(samples):
        assert samples != [6, 7, 8] or go_on.wait(30)
        return samples

    numbers = loader(dataset, 3, collate, num_workers=1)
    batches = iter(numbers)
    assert [next(batches), next(batches)] == [[0, 1, 2], [3, 4, 5]]
    threading.Timer(0.1, _thread.interrupt_main).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert time.monotonic() - began < 10
    with pytest.raises(StoppedError, match="create a new iterator, or resume"):
        next(batches)
    go_on.set()
    numbers.load_state_dict(numbers.state_dict())
    assert list(numbers) == [[6, 7, 8]]


@pytest.mark.parametrize("dataset", [range(100), Stream(100)], ids=["map", "iterable"])
@pytest.mark.parametrize("end", ["all", "break", "error", "forgotten"])
def test_no_thread_is_left(dataset, end):
    # The traceback of an exception keeps the loader alive.
    gc.collect()
    assert_no_threads()
    batches = iter(loader(dataset, 2, num_workers=3))
    if end == "all":
        list(batches)
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            for _batch in batches:
                _ = 1 // 0
    elif end == "break":
        next(batches)
    del batches
    gc.collect()
    assert_no_threads()


def test_the_data_set_is_freed_with_the_loader():
    class Numbers(list):
        pass

    dataset = Numbers(range(10))
    alive = weakref.ref(dataset)
    for _ in loader(dataset, 2, num_workers=2):
        break
    del dataset, _
    gc.collect()
    assert_no_threads()
    assert alive() is None


def test_the_process_exits_within_an_epoch():
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from spdl_rs.torch import DataLoader\n"
        "class Stream:\n"
        "    def __iter__(self): return iter(range(100))\n"
        "kept = [iter(DataLoader(range(100), None, num_workers=2, collate_fn=int)),\n"
        "        iter(DataLoader(Stream(), None, num_workers=2, collate_fn=int))]\n"
        "print([next(each) for each in kept], flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None and program.stdout.readline() == "[0, 0]\n"
        began = time.monotonic()
        assert program.communicate(timeout=60) == ("", "") and program.returncode == 0
    assert time.monotonic() - began < 9, "the exit waited for threads until its timeout"


def test_arguments_without_effect_warn_once(monkeypatch):
    monkeypatch.setattr(_arguments, "_warned", set())
    called = queue.SimpleQueue()
    arguments = {
        "num_workers": 2,
        "worker_init_fn": called.put,
        "persistent_workers": True,
        "multiprocessing_context": "spawn",
    }
    with pytest.warns(UserWarning) as reported:
        first = loader(range(100), 1, **arguments)
    assert [str(each.message).split("=")[0].split("(")[1] for each in reported] == [
        "worker_init_fn",
        "persistent_workers",
        "multiprocessing_context",
    ]
    assert {each.filename for each in reported} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(range(100), 1, **arguments)
    list(first)
    calls = [called.get(timeout=20)]
    while not called.empty():
        calls.append(called.get())
    assert sorted(calls) in ([0], [1], [0, 1]), "once for each thread that made batches"


def test_a_failing_worker_init_fn_raises_for_each_batch():
    def refuse(worker):
        raise PermissionError(f"worker {worker}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(loader(range(4), 2, num_workers=1, worker_init_fn=refuse))
    for _ in range(2):
        with pytest.raises(PermissionError, match="worker 0"):
            next(batches)
    assert list(batches) == []


def test_a_loader_can_be_copied_and_pickled():
    letters = loader(num_workers=2)
    next(iter(letters))
    for again in [copy.copy(letters), pickle.loads(pickle.dumps(letters))]:
        assert list(again) == list(letters)
        with pytest.raises(ValueError, match="batch_size cannot be set"):
            again.batch_size = 3


NO_PYTORCH = """
import sys
sys.modules["torch"] = None
from spdl_rs.torch import DataLoader
assert list(DataLoader("abc", 2, collate_fn="".join, num_workers=1)) == ["ab", "c"]
assert list(DataLoader("abc", None)) == ["a", "b", "c"]
short = DataLoader("abcde", 2, collate_fn="".join, drop_last=True)
assert list(short) == ["ab", "cd"] and len(short) == 2
for arguments, what in [
    ({}, "batching without collate_fn"),
    ({"collate_fn": list, "shuffle": True}, "shuffle=True"),
]:
    try:
        DataLoader("abc", **arguments)
    except ModuleNotFoundError as error:
        assert str(error) == f"{what} requires PyTorch, which is not installed", error
    else:
        raise AssertionError(what)
for batch_size, drop_last in [(0, False), (True, False), (2, 1)]:
    try:
        DataLoader("abc", batch_size, drop_last=drop_last, collate_fn=list)
    except ValueError as error:
        continue
    raise AssertionError(batch_size)
try:
    iter(DataLoader("abc", 2, collate_fn=list, pin_memory=True))
except ModuleNotFoundError as error:
    assert "pin_memory=True requires PyTorch" in str(error)
else:
    raise AssertionError("pin_memory")
print("all")
"""


def test_features_that_require_pytorch_raise_without_it():
    ran = subprocess.run(
        [sys.executable, "-c", NO_PYTORCH], capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("all\n", "")


@pytest.mark.parametrize(
    "name", ["torch", "torch._loader", "torch._resumable", "torch._worker_info"]
)
def test_the_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"spdl_rs.{name}"))
    assert result.attempted >= 3 and result.failed == 0


@pytest.mark.parametrize("dataset", ["list(range(100))", "Endless()"])
def test_a_process_exits_quickly_with_an_idle_iterator(dataset):
    # Like PyTorch, the program has finalizers from before this package, which Python calls last.
    code = f"""
import weakref
class Early: pass
early = Early()
weakref.finalize(early, len, "")
from spdl_rs.torch import DataLoader
class Endless:
    def __iter__(self):
        return iter(int, 1)
batches = iter(DataLoader({dataset}, batch_size=3, num_workers=2, collate_fn=list))
next(batches)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


class Damaged:
    """A data set of which some samples fail."""

    def __init__(self, length, bad):
        self._length = length
        self._bad = bad

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        if index in self._bad:
            raise ValueError(f"sample {index} is damaged")
        return index


class DamagedInGroups(Damaged):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


# promise: R9
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("kind", [Damaged, DamagedInGroups])
def test_failed_samples_are_dropped_listed_and_reported_once(workers, kind, caplog):
    dataset = kind(12, {1, 4, 5, 6, 7, 10})
    batches = loader(dataset, num_workers=workers, on_error="skip")
    assert list(batches) == [[0, 2, 3], [8, 9, 11]]
    statistics = batches.stats()
    assert {entry["key"] for entry in statistics["dropped"]} == {"1", "4", "5", "6", "7", "10"}
    assert statistics["dropped_total"] == 6
    assert statistics["dropped_counts"] == [{"stage": "fetch", "kind": "ValueError", "count": 6}]
    (warning,) = [record for record in caplog.records if record.name == "spdl_rs.torch"]
    assert "6 of 12 samples failed (ValueError: 6); the first failure: sample " in warning.getMessage()
    singles = loader(kind(4, {2}), None, collate_fn=str, num_workers=workers, on_error="skip")
    assert list(singles) == ["0", "1", "3"]


@pytest.mark.parametrize("workers", [0, 2])
def test_more_failed_samples_than_allowed_end_the_loop(workers):
    # Concurrent samples may fail in any order.
    last, of_many = ("9", "1000") if workers == 0 else ("(0|5|9)", r"\d+")
    most_two = loader(Damaged(12, {0, 5, 9}), num_workers=workers, on_error=skip(at_most=2))
    taken = []
    limit = r"3 of 12 samples failed; the failure policy \(on_error\) allows 2 samples; first failures: "
    with pytest.raises(spdl_rs.TooManyFailuresError, match=limit) as caught:
        taken.extend(most_two)
    assert re.fullmatch(f"sample {last} is damaged", str(caught.value.__cause__))
    assert [*loader(Damaged(12, {0, 5}), num_workers=workers, on_error=skip(at_most=2))]
    # 1 % after 1,000 samples.
    bad = set(range(0, 2000, 50))
    with pytest.raises(spdl_rs.TooManyFailuresError) as caught:
        list(loader(Damaged(2000, bad), num_workers=workers, on_error="skip"))
    assert re.fullmatch(f"sample {of_many} is damaged", str(caught.value.__cause__))
    assert len(list(loader(Damaged(2000, bad), on_error=skip(at_most=None)))) == 500
    for policy in (skip(at_most=0.2, after=10), skip(at_most=0.2)):
        with pytest.raises(spdl_rs.TooManyFailuresError, match="3 of 10 samples failed .* allows 20 %"):
            list(loader(Damaged(10, {0, 1, 2}), on_error=policy))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_which_every_sample_fails_is_an_error(workers):
    batches = loader(Damaged(6, set(range(6))), num_workers=workers, on_error="skip")
    epoch = iter(batches)
    with pytest.raises(RuntimeError, match="no batch: 6 of 6 samples failed"):
        next(epoch)
    with pytest.raises(StopIteration):
        next(epoch)


def test_dropped_samples_count_as_delivered_in_a_state():
    def damaged():
        return loader(Damaged(12, {4, 5, 6, 7}), num_workers=2, on_error="skip")

    first = damaged()
    epoch = iter(first)
    assert [next(epoch), next(epoch)] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    resumed = damaged()
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) == [] and len(list(resumed)) == 2
    again = pickle.loads(pickle.dumps(first))
    assert again.stats()["dropped_total"] == 0


def test_iterators_and_collate_functions_that_fail_are_not_skipped():
    with pytest.raises(ValueError, match="an iterator cannot continue after an exception"):
        DataLoader(Stream(3), on_error="skip")
    with pytest.raises(ValueError, match="on_error must be"):
        loader(on_error="ignore")

    def fails(samples):
        raise KeyError("collate")

    with pytest.raises(KeyError, match="collate"):
        list(loader(collate_fn=fails, on_error="skip"))
