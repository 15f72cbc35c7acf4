"""`spdl_rs.dataloader`: `DataLoader` and `PyTorchDataLoader`."""

import contextlib
import copy
import doctest
import functools
import gc
import importlib
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import random
import re
import signal
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool

import in_processes
import pytest
import spdl_rs.dataloader
from pipelines import assert_no_threads, threads, wait_until
from spdl_rs import skip
from spdl_rs.dataloader import DataLoader, PyTorchDataLoader, get_pytorch_dataloader
from spdl_rs.pipeline import PipelineFailure
from spdl_rs.source import DistributedRandomSampler
from spdl_rs.source.utils import embed_shuffle
from test_subprocess import gone, script

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def no_threads_of_earlier_tests():
    # The traceback of an exception keeps its loader until a garbage collection. The exception of a
    # broken process pool is kept until the pool's thread ends.
    def ended():
        gc.collect()
        return not threads()

    # pytest stores the traceback of a failed test here.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    wait_until(ended)


def double(number):
    return 2 * number


def test_d01_items_are_prepared_batched_aggregated_and_transferred():
    loader = DataLoader(
        range(10),
        preprocessor=double,
        batch_size=4,
        aggregator=tuple,
        transfer_fn=lambda batch: ("there", batch),
        num_threads=3,
        output_order="input",
    )
    expected = [("there", (0, 2, 4, 6)), ("there", (8, 10, 12, 14)), ("there", (16, 18))]
    assert list(loader) == expected and list(loader) == expected, "each iteration is a pass"


def test_d01_batches_equal_those_of_upstream():
    rows = json.loads((GOLDEN / "upstream_dataloader.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(GOLDEN))
    try:
        # The generator imports upstream's module, which is replaced here.
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "spdl.dataloader", spdl_rs.dataloader)
            patch.setitem(sys.modules, "spdl", spdl_rs)
            make = importlib.import_module("make_upstream_dataloader")
    finally:
        sys.path.remove(str(GOLDEN))
    assert len(rows) > 250
    for row in rows:
        assert list(make.loader(DataLoader, **row["arguments"])) == row["batches"], row


def test_d01_every_step_is_optional():
    assert list(DataLoader("abc")) == ["a", "b", "c"]
    assert list(DataLoader(range(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert list(DataLoader(range(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    single = DataLoader("ab", aggregator=str.upper, output_order="input")
    assert list(single) == ["A", "B"]
    assert list(DataLoader("ab", transfer_fn=str.upper)) == ["A", "B"]
    assert sorted(DataLoader([1, 2], preprocessor={1: "one", 2: "two"})) == ["one", "two"]


def test_threads_are_tuned_and_the_monitor_is_open_while_an_epoch_runs(tmp_path):
    def wait(item):
        time.sleep(0.005)
        return item

    path = tmp_path / "monitor.sock"
    loader = DataLoader(range(100_000), preprocessor=wait, num_threads=2, tune=True, monitor=path)
    assert not path.exists()
    began, rate = time.monotonic(), 0.0
    with contextlib.closing(iter(loader)) as items:
        # Two threads process at most 400 items per second. On a busy machine, the first trials may measure no gain.
        while rate < 500 and time.monotonic() - began < 90:
            since = time.monotonic()
            assert len(list(itertools.islice(items, 200))) == 200
            rate = 200 / (time.monotonic() - since)
        assert path.is_socket()
    assert rate >= 500
    with pytest.raises(TypeError, match="tune"):
        DataLoader(range(3), tune=1)


def test_d01_num_threads_preprocess_and_one_transfers():
    at_work, lock = {"prepare": set(), "transfer": 0, "most": 0}, threading.Lock()
    together = threading.Barrier(3)

    def prepare(item):
        together.wait(30)
        at_work["prepare"].add(threading.get_ident())
        return item

    def transfer(item):
        with lock:
            at_work["transfer"] += 1
            at_work["most"] = max(at_work["most"], at_work["transfer"])
        time.sleep(0.002)
        with lock:
            at_work["transfer"] -= 1
        return item

    loader = DataLoader(range(12), preprocessor=prepare, transfer_fn=transfer, num_threads=3)
    assert sorted(loader) == list(range(12))
    assert len(at_work["prepare"]) == 3 and at_work["most"] == 1


def test_d01_failures_and_none_drop_the_item(caplog):
    def prepare(number):
        if number == 3:
            raise ValueError("three")
        return None if number == 5 else number

    loader = DataLoader(range(8), preprocessor=prepare, batch_size=3, output_order="input")
    with caplog.at_level(logging.ERROR):
        assert list(loader) == [[0, 1, 2], [4, 6, 7]]
    assert "prepare failed on 3" in caplog.text


def refuse_below(most, number):
    if number < most:
        raise ValueError(f"no {number}")
    return number


# promise: R9
@pytest.mark.parametrize("batch_size", [None, 4])
def test_an_epoch_of_which_all_items_failed_is_an_error(batch_size, caplog):
    refuse = functools.partial(refuse_below, 5)
    for source in (range(5), DistributedRandomSampler(5, rank=0, world_size=1)):
        loader = DataLoader(source, preprocessor=refuse, batch_size=batch_size)
        for _ in range(2):
            with pytest.raises(PipelineFailure) as caught:
                list(loader)
            (error,) = caught.value.exceptions
            assert "delivered no batch, and 5 items failed" in str(error) and "no " in str(error)
    assert "ended without any output, and 5 items were dropped" in caplog.text
    # Items that a function drops, and an empty source, are no failures.
    assert list(DataLoader(range(5), preprocessor=lambda _: None)) == []
    assert list(DataLoader([], preprocessor=refuse)) == []


# promise: R9
def test_failures_of_a_loader_have_a_budget():
    def run(most, count, **policy):
        refuse = functools.partial(refuse_below, most)
        return len(list(DataLoader(range(count), preprocessor=refuse, **policy)))

    assert run(500, 999) == 499
    assert run(15, 1500) == 1485
    with pytest.raises(PipelineFailure):
        run(20, 1500)
    assert run(20, 1500, on_error=skip(at_most=20)) == 1480
    assert run(20, 1500, on_error=skip(at_most=None)) == 1480
    for policy in ("raise", skip(at_most=0)):
        assert run(0, 10, on_error=policy) == 10
        with pytest.raises(PipelineFailure) as caught:
            run(1, 10, on_error=policy)
        assert [type(error) for error in caught.value.exceptions] == [ValueError]
    with pytest.raises(ValueError, match='on_error must be "raise", "skip" or'):
        DataLoader([], on_error="ignore")


def test_d01_a_failing_source_and_a_timeout_are_errors():
    def broken():
        yield 1
        raise OSError("gone")

    batches = iter(DataLoader(broken()))
    assert next(batches) == 1
    with pytest.raises(PipelineFailure):
        next(batches)
    with pytest.raises(TimeoutError):
        next(iter(DataLoader(range(3), preprocessor=lambda _: time.sleep(0.5), timeout=0.02)))


def test_d01_leaving_the_loop_stops_the_threads():
    for _ in DataLoader(itertools.count(), preprocessor=double):
        break
    assert_no_threads()


def test_d01_the_length_follows_from_the_source():
    # In upstream, `DataLoader` has no length.
    for items, size, drop_last in itertools.product([0, 1, 7, 8], [None, 1, 4], [False, True]):
        loader = DataLoader(range(items), batch_size=size, drop_last=drop_last)
        assert len(loader) == len(list(loader)), (items, size, drop_last)

    def several(item):
        yield item

    with pytest.raises(TypeError, match="of type generator, has no length"):
        len(DataLoader(item for item in "abc"))
    with pytest.raises(TypeError, match="the length is unknown"):
        len(DataLoader("abc", preprocessor=several))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"num_threads": 0}, (ValueError, TypeError)),
        ({"buffer_size": 0}, ValueError),
        ({"output_order": "random", "preprocessor": double}, ValueError),
        ({"preprocessor": 3}, (TypeError, ValueError)),
        ({"src": 3}, ValueError),
    ],
    ids=str,
)
def test_d01_invalid_arguments_are_errors(arguments, error):
    with pytest.raises(error):
        DataLoader(**{"src": "abc", **arguments})


def sampler():
    return DistributedRandomSampler(60, rank=1, world_size=2, seed=3)


def prepared(output_order="input", **arguments):
    def prepare(number):
        time.sleep(0.005 * (number % 7 == 1))
        if number % 11 == 2:
            return None
        if number % 13 == 5:
            raise ValueError("unlucky")
        return number

    arguments = {"batch_size": 2, "aggregator": list, "num_threads": 4, **arguments}
    return DataLoader(sampler(), preprocessor=prepare, output_order=output_order, **arguments)


@pytest.mark.parametrize("drop_last", [False, True])
def test_d01_a_state_resumes_exactly(drop_last):
    whole = list(prepared(drop_last=drop_last))
    assert len(whole) > 5
    for at in range(len(whole) + 1):
        batches = iter(prepared_here := prepared(drop_last=drop_last))
        first = [next(batches) for _ in range(at)]
        state = pickle.loads(pickle.dumps(prepared_here.state_dict()))
        again = prepared(drop_last=drop_last)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert first + list(again) == whole
        assert list(again) == whole, "the next pass is a whole one"
    if not drop_last:
        assert state["beyond"] == [] and state["source"]["position"] == 30, (
            "dropped items count as done"
        )


def test_d01_repeated_resumes_deliver_each_item_once():
    expected = sorted(itertools.chain(*prepared(batch_size=1)))
    draw = random.Random(2)
    had_gaps = False
    for _ in range(8):
        got, state = [], None
        while state is None or not state["ended"]:
            loader = prepared("completion", batch_size=1)
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, draw.randint(1, 12)):
                got += batch
            state = loader.state_dict()
            had_gaps |= bool(state["beyond"])
        assert sorted(got) == expected
    assert had_gaps


def test_d01_a_state_at_the_end_resumes_with_the_next_pass():
    for source in (sampler, lambda: embed_shuffle(sampler())):
        loader = DataLoader(source(), batch_size=4)
        passes = [list(loader)]
        state = loader.state_dict()
        passes.append(list(loader))
        again = DataLoader(source(), batch_size=4)
        again.load_state_dict(state)
        assert list(again) == passes[1] and len(passes[1]) == 8
        again.load_state_dict({**state, "source": {**state["source"]}})
        # Saved again before the first batch.
        batches = iter(again)
        state = again.state_dict()
        assert next(batches) == passes[1][0]


def test_d01_a_state_requires_a_source_with_state():
    with pytest.raises(TypeError, match="of type range, has no state"):
        DataLoader(range(3)).state_dict()

    def several(item):
        yield item

    loader = DataLoader(sampler(), preprocessor=several)
    with pytest.raises(TypeError, match="several is a generator or async"):
        loader.load_state_dict({})
    assert len(list(loader)) == 30
    loader = DataLoader(sampler())
    with pytest.raises(ValueError, match="the state has no key 'version'"):
        loader.load_state_dict({})
    with pytest.raises(ValueError, match="version 9"):
        loader.load_state_dict({**loader.state_dict(), "version": 9})
    with pytest.raises(TypeError, match="mapping"):
        loader.load_state_dict(None)


class Numbers:
    """A data set that reports the process of each sample, and counts its pickling."""

    unpickled = 0

    def __init__(self, length=10):
        self.length = length
        self.pickled = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == 77:
            raise KeyError(index)
        if index == 78:
            os._exit(1)
        return index, os.getpid(), Numbers.unpickled

    def __getstate__(self):
        self.pickled += 1
        return vars(self)

    def __setstate__(self, state):
        Numbers.unpickled += 1
        vars(self).update(state)


def columns(samples):
    return [list(column) for column in zip(*samples, strict=True)]


def get(dataset=None, batch_size=4, collate_fn=columns, **arguments):
    dataset = Numbers() if dataset is None else dataset
    return get_pytorch_dataloader(dataset, batch_size, collate_fn=collate_fn, **arguments)


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_d02_workers_are_threads_or_processes_of_the_context(context):
    loader = get(num_workers=2, multiprocessing_context=context, in_order=True)
    assert type(loader) is PyTorchDataLoader and len(loader) == 3
    for _ in range(2):
        batches = list(loader)
        assert [batch[0] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        processes = {process for batch in batches for process in batch[1]}
        here = os.getpid()
        assert processes == {here} if context is None else here not in processes
    assert loader.dataset.pickled == (context is not None), "once for all workers and epochs"
    if context is not None:
        assert {count for batch in batches for count in batch[2]} == {1}
    assert_no_threads()


class SlowToUnpickle:
    """A data set that takes 0.3 s to unpickle, and appends to a file when it has been unpickled."""

    def __init__(self, path):
        self.path = path

    def __setstate__(self, state):
        self.__dict__.update(state)
        time.sleep(0.3)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("unpickled\n")

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 4


def test_d02_an_epoch_ends_after_its_worker_processes(tmp_path):
    # One process at a time unpickles, so the first one makes all batches.
    loader = get_pytorch_dataloader(
        SlowToUnpickle(str(tmp_path / "log")),
        num_workers=3,
        collate_fn=list,
        multiprocessing_context="forkserver",
        worker_init_concurrency=1,
    )
    assert len(list(loader)) == 4
    assert (tmp_path / "log").read_text(encoding="utf-8").count("unpickled") == 3
    assert not multiprocessing.active_children()


def test_d02_a_context_object_and_worker_init_concurrency():
    context = multiprocessing.get_context("spawn")
    loader = get(num_workers=2, multiprocessing_context=context, worker_init_concurrency=1)
    assert sorted(number for batch in loader for number in batch[0]) == list(range(10))


@pytest.mark.parametrize("context", [None, "fork"])
def test_d02_an_exception_of_a_sample_keeps_its_position(context):
    batches = iter(
        get(
            batch_size=1,
            sampler=[1, 77, 2],
            num_workers=2,
            multiprocessing_context=context,
            in_order=True,
        )
    )
    assert next(batches)[0] == [1]
    with pytest.raises(KeyError, match="77") as raised:
        next(batches)
    assert any("sample 77" in note for note in raised.value.__notes__)
    assert next(batches)[0] == [2]


class UnpicklableDataset:
    """Raises an exception that cannot be unpickled: its class takes two arguments."""

    def __init__(self, when):
        self.when = when

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if self.when == "indexed" and index == 1:
            raise in_processes.UnpicklableError("this", "that")
        return index

    def __setstate__(self, state):
        if state["when"] == "unpickled":
            raise in_processes.UnpicklableError("this", "that")
        vars(self).update(state)


@pytest.mark.parametrize("when", ["indexed", "unpickled"])
def test_d02_an_unpicklable_exception_keeps_its_message(when):
    options = {"num_workers": 1, "multiprocessing_context": "fork", "in_order": True}
    batches = iter(get(UnpicklableDataset(when), 1, sum, **options))
    if when == "indexed":
        assert next(batches) == 0
    with pytest.raises(
        RuntimeError, match="in_processes.UnpicklableError: this and that$"
    ) as raised:
        next(batches)
    where = "__getitem__" if when == "indexed" else "__setstate__"
    assert where in str(raised.value.__cause__)
    if when == "indexed":
        assert list(batches) == [2], "the pool is still usable"


class Killed:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_d02_a_process_that_dies_is_an_error():
    batches = get(sampler=[78], num_workers=1, multiprocessing_context="fork")
    with pytest.raises(BrokenProcessPool, match="exit code 1.*create a new iterator"):
        list(batches)


# promise: R7
def test_d02_the_error_of_a_killed_process_names_pid_and_signal():
    batches = iter(get(Killed(), 1, sum, num_workers=2, multiprocessing_context="fork"))
    with pytest.raises(BrokenProcessPool) as raised:
        list(batches)
    pattern = r"process (\d+) was killed by SIGKILL.* \(the system kills processes if memory runs out\)"
    reported = re.match(pattern, str(raised.value))
    assert reported and int(reported[1]) != os.getpid()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"collate_fn": lambda samples: samples}, "collate_fn"),
        ({"dataset": [lambda: 1]}, "dataset"),
    ],
)
def test_d02_unpicklable_arguments_are_errors_with_advice(arguments, what):
    advice = (
        f"^cannot pickle {what} for worker processes: .*"
        "at the top level of a module.*omit multiprocessing_context"
    )
    with pytest.raises(TypeError, match=advice):
        get(**arguments, multiprocessing_context="spawn")
    assert get(**arguments), "threads need no pickling"


def test_d02_leaving_the_loop_stops_the_processes():
    before = set(multiprocessing.active_children())
    for _ in get(Numbers(1000), num_workers=2, multiprocessing_context="fork"):
        assert set(multiprocessing.active_children()) - before
        break
    assert_no_threads()
    wait_until(lambda: not set(multiprocessing.active_children()) - before)


# promise: R7
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_d02_processes_end_when_their_parent_is_killed(context):
    done = script(
        f"""
        import multiprocessing
        from spdl_rs.dataloader import get_pytorch_dataloader

        options = dict(num_workers=2, multiprocessing_context={context!r})
        batches = get_pytorch_dataloader(range(1000), 2, collate_fn=work.process_and, **options)
        batches = iter(batches)
        next(batches)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    processes = [int(process) for process in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL and processes, done.stderr
    wait_until(lambda: all(map(gone, processes)), 20)


# promise: R6
@pytest.mark.parametrize("ending", ["", "del batches"])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_d02_a_process_exits_while_functions_of_worker_processes_sleep(context, ending):
    done = script(
        f"""
        from spdl_rs.dataloader import get_pytorch_dataloader

        loader = get_pytorch_dataloader(
            range(1000), 1, collate_fn=work.sleep_after_3, num_workers=2, multiprocessing_context={context!r}
        )
        batches = iter(loader)
        assert sorted([next(batches) for _ in range(4)]) == [0, 1, 2, 3]
        time.sleep(0.2)
        {ending}
        """
    )
    # The functions would sleep for longer than the limit of the script.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# promise: R6
def test_d02_a_sleeping_function_of_a_worker_thread_is_named_at_exit():
    done = script(
        """
        from spdl_rs.dataloader import get_pytorch_dataloader

        batches = iter(get_pytorch_dataloader(range(9), 1, collate_fn=work.sleep_after_3))
        assert [next(batches) for _ in range(4)] == [0, 1, 2, 3]
        time.sleep(0.2)
        """
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 0 and "stage fetch, sleep_after_3 at in_processes.py:" in line


def test_d02_the_end_of_an_epoch_stops_the_processes():
    before = set(multiprocessing.active_children())
    batches = iter(get(num_workers=2, multiprocessing_context="fork"))
    assert len(list(batches)) == 3
    wait_until(lambda: not set(multiprocessing.active_children()) - before)
    assert list(batches) == []


def test_d02_the_default_order_is_completion_order():
    others_are_done = threading.Event()

    def collate(samples):
        if samples == [0]:
            assert others_are_done.wait(30)
        return samples[0]

    batches = iter(get(range(6), 1, collate, num_workers=2))
    first = [next(batches) for _ in range(5)]
    others_are_done.set()
    assert sorted(first) == [1, 2, 3, 4, 5] and list(batches) == [0]


def test_d02_samplers_and_batches():
    def batches(**arguments):
        return list(get(range(10), collate_fn=list, in_order=True, **arguments))

    for batch_size in (None, 1):
        assert batches(batch_size=batch_size, batch_sampler=[[1], [2, 3]]) == [[1], [2, 3]]
    assert batches(batch_size=2, sampler=[4, 3, 2]) == [[4, 3], [2]]
    assert batches(batch_size=2, sampler=[4, 3, 2], drop_last=True) == [[4, 3]]
    # Upstream 0.6 treats an empty sampler as no sampler.
    assert batches(sampler=[]) == []
    single = get_pytorch_dataloader("abc", None, collate_fn=str.upper, in_order=True)
    assert list(single) == ["A", "B", "C"]


class Iterated:
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Iterated()},
        {"worker_init_fn": print},
        {"pin_memory_device": "cuda"},
        {"persistent_workers": True},
        {"timeout": -1},
        {"num_workers": -1},
        {"worker_init_concurrency": 0},
        {"prefetch_factor": 0},
        {"sampler": [1], "batch_sampler": [[1]], "batch_size": None},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "shuffle": True, "batch_size": None},
        {"batch_sampler": [[1]], "drop_last": True, "batch_size": None},
        {"drop_last": True, "batch_size": None},
        {"multiprocessing_context": "nonsense"},
    ],
    ids=str,
)
def test_d02_unsupported_or_incompatible_arguments_are_errors(arguments):
    with pytest.raises(ValueError):
        get(**arguments)


def test_d02_zero_workers_become_one_with_a_warning():
    with pytest.warns(UserWarning, match="num_workers=0 is treated as num_workers=1"):
        loader = get(range(3), 1, threading_name, num_workers=0)
    assert all("spdl" in name for name in loader)


def threading_name(_):
    return threading.current_thread().name


def test_d02_a_timeout_is_an_error():
    with pytest.raises(TimeoutError):
        list(get(range(3), 1, lambda _: time.sleep(0.5), timeout=0.02))


@pytest.mark.parametrize("context", [None, "fork"])
def test_d02_a_state_resumes_exactly(context):
    def make():
        return get(num_workers=2, multiprocessing_context=context, in_order=True, batch_size=2)

    loader = make()
    batches = iter(loader)
    first = [next(batches)[0] for _ in range(2)]
    again = make()
    again.load_state_dict(loader.state_dict())
    assert first + [batch[0] for batch in again] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.frameworks
def test_d02_pytorch_defaults_are_used():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no default_collate")
    for generator in [None, torch.Generator()]:
        (torch if generator is None else generator).manual_seed(5)
        order = list(torch.utils.data.RandomSampler(range(11), generator=generator))
        (torch if generator is None else generator).manual_seed(5)
        batches = list(
            get_pytorch_dataloader(range(11), 4, True, generator=generator, in_order=True)
        )
        # As in SPDL. PyTorch's loader draws one number before.
        assert [batch.tolist() for batch in batches] == [order[:4], order[4:8], order[8:]]
    with pytest.raises(ValueError, match="iterable-style"):
        get_pytorch_dataloader(torch.utils.data.ChainDataset([]))


def test_loaders_can_be_copied():
    assert list(copy.copy(DataLoader("ab"))) == ["a", "b"]
    assert len(list(pickle.loads(pickle.dumps(get(range(3), 1, sum))))) == 3


@pytest.mark.parametrize("name", ["", "._dataloader", "._pytorch_dataloader"])
def test_the_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"spdl_rs.dataloader{name}"))
    assert result.attempted >= 2 and result.failed == 0


@pytest.mark.parametrize("leave", ["break", "close", "Ctrl-C"])
def test_leaving_a_pass_does_not_wait_for_running_functions(leave):
    begun, go_on = threading.Event(), threading.Event()

    def prepare(number):
        if number:
            begun.set()
            go_on.wait(30)
        return number

    def left():
        batches = iter(DataLoader(range(9), preprocessor=prepare, num_threads=2))
        for _ in batches:
            assert begun.wait(30)
            if leave == "Ctrl-C":
                raise KeyboardInterrupt
            if leave == "close":
                batches.close()
                assert next(batches, "end") == "end"
            return

    try:
        start = time.monotonic()
        try:
            left()
        except KeyboardInterrupt:
            assert leave == "Ctrl-C"
        assert time.monotonic() - start < 15
    finally:
        go_on.set()
    assert_no_threads()
