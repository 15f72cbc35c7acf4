"""`Loader(executor=...)`: where functions run."""

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy
import pytest
from conftest import picture, write_png
from pipelines import wait_until
from spdl_rs import ForkedProcessError, Loader, fields
from spdl_rs.pipeline import WorkerError
from test_subprocess import gone

SAMPLES = 23
EXECUTORS = ["threads", "processes", "inline"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("executors")
    for number in range(SAMPLES):
        write_png(folder / f"{number:03}.png", picture(number))
    return folder


def loader_of(folder, **settings):
    if settings.get("executor") == "processes":
        settings = {"processes": 2, **settings}
    settings = {"batch_size": 5, "shuffle": True, "seed": 3, **settings}
    return Loader(folder, image=fields.Image(40), key=fields.Key(), **settings)


def number_of(key):
    return int(key.rsplit("/", 1)[-1][:3])


# Functions at the top level, so that they can be pickled.


def each(sample, rng):
    return {
        "image": sample["image"] * rng.uniform(0.5, 1.0),
        "number": number_of(sample["key"]),
        "key": sample["key"],
    }


def whole(batch, rng):
    return {**batch, "drawn": rng.integers(2**62), "process": os.getpid()}


def collated(samples, rng):
    return {
        "image": numpy.stack([sample["image"] for sample in samples]),
        "key": [sample["key"] for sample in samples],
        "number": numpy.array([sample["number"] for sample in samples]),
        "first": int(rng.integers(2**62)),
    }


def as_bytes(batches):
    return [
        (batch["key"], batch["image"].tobytes(), batch["number"].tolist(), batch["drawn"])
        for batch in batches
    ]


@pytest.mark.parametrize("functions", [{}, {"collate": collated}])
def test_the_executor_does_not_change_batches_and_states_fit_all_executors(folder, functions):
    functions = {"map": each, "batch_map": whole, **functions}
    expected = as_bytes(loader_of(folder, threads=1, **functions))
    assert len({drawn for *_, drawn in expected}) == 5
    chance = random.Random(5)
    for executor in EXECUTORS:
        for other in EXECUTORS:
            loader = loader_of(folder, executor=executor, threads=chance.randint(1, 4), **functions)
            batches, stop = iter(loader), chance.randint(1, 4)
            before = as_bytes(next(batches) for _ in range(stop))
            again = loader_of(folder, executor=other, **functions)
            again.load_state_dict(loader.state_dict())
            assert before + as_bytes(again) == expected, (executor, other)
            names = [stage["name"] for stage in again.stats()["stages"]]
            assert names == ["source", "fetch", "decode", *sorted(functions, key=ORDER.index)]


ORDER = ["map", "collate", "batch_map"]


def identity(batch):
    return batch


@dataclass
class Sample:
    image: numpy.ndarray
    key: list


@pytest.mark.parametrize("executor", EXECUTORS)
def test_outputs_of_all_kinds(folder, executor):
    plain = loader_of(folder).peek()
    for output in ("tuple", Sample):
        batch = loader_of(folder, executor=executor, output=output, batch_map=identity).peek()
        image, key = batch if output == "tuple" else (batch.image, batch.key)
        assert numpy.array_equal(image, plain["image"]) and key == plain["key"]
        assert image.flags.writeable


class Raises:
    """A function that raises an exception for the sample 7."""

    def __init__(self, error):
        self._error = error

    def __call__(self, value):
        keys = [value["key"]] if isinstance(value["key"], str) else value["key"]
        if 7 in map(number_of, keys):
            raise type(self._error)(*self._error.args)
        return value


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["map", "batch_map"])
@pytest.mark.parametrize("error", [StopIteration("end"), SystemExit(3)])
def test_stop_iteration_and_system_exit_of_functions_are_errors(folder, executor, name, error):
    settings = {"executor": executor, "shuffle": False, name: Raises(error)}
    loader, delivered = loader_of(folder, **settings), []
    # On the main thread, `SystemExit` may be that of a signal handler.
    is_unchanged = executor == "inline" and isinstance(error, SystemExit)
    expected = SystemExit if is_unchanged else RuntimeError
    with pytest.raises(expected, match="3" if is_unchanged else re.escape(repr(error))) as caught:
        delivered.extend(loader)
    assert len(delivered) == 1 and loader.state_dict()["steps_in_epoch"] == 1
    # `SystemExit` ends a worker process: a `WorkerError`, whose note names the batch.
    ends_process = executor == "processes" and isinstance(error, SystemExit)
    sample = "007.png'" if name == "map" and not ends_process else "009.png'"
    assert any(sample in note for note in caught.value.__notes__)


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(3)])
def test_stop_iteration_and_system_exit_elsewhere_are_errors(folder, error):
    def raises(**batch):
        raise type(error)(*error.args)

    def keeps(sample):
        return bool(Raises(error)(sample))

    with pytest.raises(RuntimeError, match="was raised by filter, keeps at") as caught:
        list(loader_of(folder, filter=keeps))
    assert "007.png'" in caught.value.__notes__[0]
    raised = []

    def take():
        try:
            list(loader_of(folder, output=raises))
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert raised == [f"{error!r} was raised by output"]


# Inline.


def test_inline_functions_run_on_the_thread_that_takes_the_batch(folder):
    threads = []

    def function(value):
        threads.append(threading.get_ident())
        return value

    loader = loader_of(folder, executor="inline", map=function, batch_map=function)
    batches = iter(loader)
    time.sleep(0.1)
    assert threads == []
    assert len(list(batches)) == 5
    assert threads == [threading.get_ident()] * (SAMPLES + 5)


def test_an_inline_function_may_take_batches_of_another_loader(folder):
    def function(batch):
        return sum(loader_of(folder, executor="inline", batch_map=lambda one: len(one["key"])))

    assert list(loader_of(folder, executor="inline", batch_map=function)) == [SAMPLES] * 5


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failed_inline_function_does_not_count_the_batch_as_delivered(folder, error):
    plain = [batch["key"] for batch in loader_of(folder)]
    calls = 0

    def function(batch):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error
        return batch

    loader = loader_of(folder, executor="inline", batch_map=function)
    batches, before = iter(loader), []
    with pytest.raises(error) as caught:
        before.extend(batch["key"] for batch in batches)
    assert before == plain[:2] and list(batches) == []
    if error is ZeroDivisionError:
        assert "batch_map of the samples" in caught.value.__notes__[0]
    again = loader_of(folder, executor="inline", batch_map=function)
    again.load_state_dict(loader.state_dict())
    assert [batch["key"] for batch in again] == plain[2:]


def test_a_loader_is_collected_although_its_inline_function_refers_to_its_iterator(folder):
    class Module:
        def __init__(self):
            self.loader = loader_of(folder, executor="inline", map=self.each)
            self.batches = iter(self.loader)
            list(self.batches)

        def each(self, sample):
            return sample

        def __del__(self):
            deleted.append(True)

    deleted = []
    Module()
    gc.collect()
    assert deleted == [True]


def waiting_after(batches, entered, returns):
    """A function that waits in each batch after a number of batches."""
    calls = iter(range(SAMPLES))

    def function(batch):
        if next(calls) >= batches:
            entered.set()
            assert returns.wait(60)
        return batch

    return function


def test_a_batch_counts_as_delivered_after_its_inline_function(folder):
    entered, returns = threading.Event(), threading.Event()
    function = waiting_after(1, entered, returns)
    loader = loader_of(folder, executor="inline", batch_map=function)
    batches, rest = iter(loader), []
    next(batches)
    before = loader.state_dict()
    thread = threading.Thread(target=lambda: rest.append(next(batches)))
    thread.start()
    assert entered.wait(60)
    assert before["steps_in_epoch"] == 1 and loader.state_dict() == before
    returns.set()
    thread.join()
    assert len(rest) == 1 and loader.state_dict()["steps_in_epoch"] == 2


def test_closing_during_an_inline_function_leaves_its_batch_for_the_next_run(folder):
    entered, returns = threading.Event(), threading.Event()
    function = waiting_after(1, entered, returns)
    loader = loader_of(folder, executor="inline", batch_map=function)
    batches, rest = iter(loader), []
    next(batches)
    thread = threading.Thread(target=lambda: rest.extend(batches))
    thread.start()
    assert entered.wait(60)
    batches.close()
    returns.set()
    thread.join()
    assert rest == [] and loader.state_dict()["steps_in_epoch"] == 1


def test_threads_that_share_an_iterator_call_inline_functions_in_turn(folder):
    plain = [batch["key"] for batch in loader_of(folder, batch_size=1)]
    running = threading.Lock()
    calls = iter(range(SAMPLES))

    def function(batch):
        assert running.acquire(blocking=False)
        try:
            # Other threads run now.
            time.sleep(0.002)
            if next(calls) == 15:
                raise ZeroDivisionError
        finally:
            running.release()
        return batch["key"]

    loader = loader_of(folder, executor="inline", batch_size=1, batch_map=function)
    batches, taken, raised = iter(loader), [], []

    def take():
        try:
            taken.extend(batches)
        except BaseException as error:
            raised.append(type(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == [ZeroDivisionError] and sorted(taken) == sorted(plain[:15])
    again = loader_of(folder, executor="inline", batch_size=1, batch_map=identity)
    again.load_state_dict(loader.state_dict())
    assert [batch["key"] for batch in again] == plain[15:]


def test_an_inline_function_cannot_take_batches_of_its_own_iterator(folder):
    loader = loader_of(folder, executor="inline", batch_map=lambda batch: next(batches))
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="cannot take a batch in a function of the same iterator"):
        next(batches)
    assert loader.state_dict()["steps_in_epoch"] == 0


def test_a_forked_child_is_refused_while_a_thread_of_its_parent_waits_for_a_batch(folder):
    keeps, entered = threading.Event(), threading.Event()

    def waits(sample):
        entered.set()
        return keeps.wait(60)

    batches = iter(loader_of(folder, executor="inline", filter=waits, batch_map=identity))
    thread = threading.Thread(target=lambda: list(batches))
    thread.start()
    assert entered.wait(60)
    codes = []
    # The thread holds a lock most of the time, but not always.
    for _ in range(5):
        child = os.fork()
        if child == 0:
            # Otherwise, a child that waits for the lock would never end.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            code = 1
            try:
                next(batches)
            except ForkedProcessError:
                code = 7
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    keeps.set()
    thread.join()
    assert codes == [7] * 5


# Processes.


def with_process(batch):
    return os.getpid(), batch["image"].nbytes


def test_functions_run_in_worker_processes_that_stay_for_the_next_epoch(folder):
    loader = loader_of(folder, executor="processes", batch_map=with_process, batch_size=1)
    processes = {process for _ in range(3) for process, _ in loader}
    assert os.getpid() not in processes and 1 <= len(processes) <= 2
    del loader
    gc.collect()
    wait_until(lambda: all(gone(process) for process in processes))


def test_leaving_a_loop_keeps_the_number_of_processes(folder):
    loader = loader_of(folder, executor="processes", batch_map=with_process, batch_size=1)
    processes = {next(iter(loader))[0] for _ in range(6)}
    assert 1 <= len(processes) <= 2


class Meeting:
    """A function that returns when so many processes call it at the same time."""

    def __init__(self, folder, count):
        self._folder, self._count = folder, count

    def __call__(self, batch):
        (self._folder / str(os.getpid())).touch()
        wait_until(lambda: len(list(self._folder.iterdir())) >= self._count)
        return batch["image"].shape


def test_more_processes_than_threads_work_at_the_same_time(folder, tmp_path):
    settings = {"executor": "processes", "processes": 6, "threads": 1, "batch_size": 1}
    batch_map = Meeting(tmp_path, 6)
    loader = Loader(folder, image=fields.Image(900), batch_map=batch_map, **settings)
    assert list(loader) == [(1, 900, 900, 3)] * SAMPLES


def grown(batch):
    return numpy.full(2_000_000, len(batch["key"]), "f8"), batch["key"][0], b"x" * 10_000


def computing(batch):
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    return batch


def waiting(batch):
    time.sleep(0.02)
    return batch


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the CPU time of a thread")
def test_the_cpu_time_of_processes_counts_for_their_stage(folder):
    shares = {}
    for function in [computing, waiting]:
        loader = loader_of(folder, executor="processes", processes=1, batch_map=function)
        list(loader)  # Starts the process, which computes too.
        list(loader)
        stages = {stage["name"]: stage for stage in loader.stats()["stages"]}
        shares[function] = stages["batch_map"]["cpu_share"]
    assert shares[computing] > 2 * shares[waiting], shares


def test_arrays_of_any_size_are_transferred(folder):
    # The memory of the process grows: the last batch is the largest one.
    for size in (1, 23):
        loader = loader_of(folder, executor="processes", batch_size=size, batch_map=grown)
        for numbers, key, data in loader:
            assert (numbers == size).all() and len(numbers) == 2_000_000
            assert number_of(key) in range(SAMPLES) and data == b"x" * 10_000
            numbers[:] = 0


def test_a_forked_child_cannot_use_the_processes(folder):
    loader = loader_of(folder, executor="processes", batch_map=with_process)
    assert len(list(loader)) == 5
    child = os.fork()
    if child == 0:
        code = 1
        try:
            list(loader)
        except ForkedProcessError:
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(loader)) == 5


class Special(Exception):
    pass


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def fails(sample):
    if number_of(sample["key"]) == 7:
        raise Special("seven")
    return sample


def fails_without_pickle(batch):
    raise Unpicklable("no pickle")


def test_an_exception_keeps_its_type_its_notes_and_its_traceback(folder):
    settings = {"executor": "processes", "shuffle": False}
    loader, delivered = loader_of(folder, map=fails, **settings), 0
    with pytest.raises(Special, match="seven") as caught:
        for _ in loader:
            delivered += 1
    assert delivered == 1
    assert [note.endswith("007.png'") for note in caught.value.__notes__] == [True]
    assert "in fails" in str(caught.value.__cause__)
    # The process serves the next epoch, and the state is that before the batch.
    state = loader.state_dict()
    with pytest.raises(Special):
        list(loader)
    again = loader_of(folder, map=identity, **settings)
    again.load_state_dict(state)
    assert len(list(again)) == 4
    with pytest.raises(RuntimeError, match="Unpicklable: no pickle") as caught:
        list(loader_of(folder, batch_map=fails_without_pickle, **settings))
    assert caught.value.__notes__[0].startswith("batch_map of the samples '")


def unpicklable_result(batch):
    return threading.Lock()


def test_a_result_that_cannot_be_pickled_is_an_error(folder):
    with pytest.raises(TypeError, match="an item cannot be pickled for transfer"):
        list(loader_of(folder, executor="processes", batch_map=unpicklable_result))


def ends_process(batch):
    if 7 in map(number_of, batch["key"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def test_the_death_of_a_process_is_an_error_and_the_next_epoch_starts_another(folder):
    settings = {"executor": "processes", "processes": 1, "shuffle": False}
    loader = loader_of(folder, batch_map=ends_process, **settings)
    for _ in range(2):
        loader.set_epoch(0)
        delivered = []
        with pytest.raises(WorkerError, match="for the functions of a Loader .*SIGKILL") as caught:
            delivered.extend(batch["key"][0] for batch in loader)
        assert [number_of(key) for key in delivered] == [0]
        assert "005.png" in caught.value.__notes__[0] and "009.png" in caught.value.__notes__[0]


def test_functions_that_cannot_be_pickled_are_refused(folder):
    def inner(value):
        return value

    for name in ("map", "collate", "batch_map"):
        for function in (lambda value: value, inner):
            with pytest.raises(TypeError, match=f"{name} cannot be pickled .* the top level of a"):
                loader_of(folder, executor="processes", **{name: function})


def test_arguments_are_checked(folder):
    with pytest.raises(ValueError, match="executor must be"):
        loader_of(folder, executor="gpu", map=identity)
    # Only the executor is another.
    assert len(list(loader_of(folder, processes=2, map=identity))) > 0
    for executor in ("threads", "inline", "processes"):
        with pytest.raises(ValueError, match="processes must be"):
            loader_of(folder, executor=executor, processes=0, map=identity)
    with pytest.raises(TypeError, match="processes must be"):
        loader_of(folder, processes="x")
    for executor in ("inline", "processes"):
        with pytest.raises(ValueError, match="requires map, collate or batch_map"):
            loader_of(folder, executor=executor)


class WaitsAfterFirst:
    """A function that waits for the file `closed`, except in the batch of the first image."""

    def __init__(self, files):
        self._files = files

    def __call__(self, batch):
        if number_of(batch["key"][0]) > 0:
            (self._files / "entered").touch()
            # Returns in any case, for a `close` that waits.
            end = time.monotonic() + 30
            while not (self._files / "closed").exists() and time.monotonic() < end:
                time.sleep(0.005)
            (self._files / "returned").touch()
        return batch


def test_closing_does_not_wait_for_processes(folder, tmp_path):
    functions = {"executor": "processes", "batch_map": WaitsAfterFirst(tmp_path)}
    loader = loader_of(folder, batch_size=1, shuffle=False, **functions)
    batches = iter(loader)
    next(batches)
    wait_until((tmp_path / "entered").exists)
    batches.close()
    assert not (tmp_path / "returned").exists()
    (tmp_path / "closed").touch()
    assert list(batches) == []
    assert len(list(loader)) == SAMPLES


def fails_in(process):
    if os.getpid() != process:
        raise ValueError(process)


class FailsInParent:
    """A result that cannot be unpickled in another process."""

    def __reduce__(self):
        return fails_in, (os.getpid(),)


def fails_in_parent(batch):
    return FailsInParent()


def test_a_process_whose_answer_cannot_be_read_ends_before_another_starts(folder):
    settings = {"executor": "processes", "processes": 1, "batch_map": fails_in_parent}
    loader = loader_of(folder, **settings)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\d+") as caught:
            list(loader)
        # The exception refers to the objects of the call.
        assert gone(int(str(caught.value)))


PROGRAM = """
import os, pathlib, signal, sys, time
from spdl_rs import Loader, fields

processes = pathlib.Path(sys.argv[1])

def function(batch):
    (processes / str(os.getpid())).touch()
    time.sleep({seconds})
    return batch

if __name__ == "__main__":
    loader = Loader(
        sys.argv[2], batch_size=2, image=fields.Image(16), batch_map=function,
        executor="processes", processes=2,
    )
    batches = iter(loader)
    while not list(processes.iterdir()):
        time.sleep(0.01)
    {end}
"""


@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_processes_end_with_their_parent(folder, tmp_path, seconds, end):
    program, processes = tmp_path / "program.py", tmp_path / "processes"
    program.write_text(PROGRAM.format(seconds=seconds, end=end))
    processes.mkdir()
    command = [sys.executable, program, processes, folder]
    # The run also waits for processes that keep its pipes open.
    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    expected = 3 if "exit" in end else -signal.SIGKILL if "kill" in end else 0
    assert run.returncode == expected, run.stderr
    wait_until(lambda: all(gone(int(path.name)) for path in processes.iterdir()))
    assert "Traceback" not in run.stderr


class ThreadsOfTorch:
    """Returns the number of threads of PyTorch, which is imported before the first call, or by it."""

    def __init__(self, imports_early):
        self._imports_early = imports_early

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self._imports_early:
            import torch

            torch.set_num_threads(3)
        else:
            os.environ["OMP_NUM_THREADS"] = "3"

    def __call__(self, batch):
        import torch

        return torch.get_num_threads()


@pytest.mark.frameworks
@pytest.mark.parametrize("imports_early", [True, False])
def test_pytorch_uses_one_thread_in_each_process(folder, imports_early):
    pytest.importorskip("torch")
    function = ThreadsOfTorch(imports_early)
    assert list(loader_of(folder, executor="processes", batch_map=function)) == [1] * 5


@pytest.mark.frameworks
def test_tensors_are_transferred(folder):
    torch = pytest.importorskip("torch")
    settings = {"executor": "processes", "output": "torch"}
    batch = loader_of(folder, map=with_generator, **settings).peek()
    assert isinstance(batch["image"], torch.Tensor) and batch["image"].shape == (5, 40, 40, 3)
    inline = loader_of(folder, map=with_generator, executor="inline", output="torch").peek()
    assert torch.equal(batch["image"], inline["image"])


def with_generator(sample, generator):
    import torch

    assert isinstance(sample["image"], torch.Tensor)
    return {"image": sample["image"] * torch.rand((), generator=generator)}
