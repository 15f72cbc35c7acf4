"""The end of processes that run pipelines: nothing hangs, and no process and no memory is left."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest
from pipelines import assert_median_end_within_1_s, assert_soon_after, soon_s, wait_until
from test_subprocess import HERE

METHODS = ["fork", "forkserver", "spawn"]

PROGRAM = """
import functools, multiprocessing, os, pathlib, sys, time, warnings
import in_processes as work
from spdl_rs.pipeline import PipelineFailure, run_pipeline_in_subprocess
warnings.simplefilter("ignore")
method, folder = sys.argv[1:3]
sleep = work.Sleep(folder)
if __name__ == "__main__":
"""


class Program:
    """A running program, and all processes that it has started, directly or not."""

    def __init__(self, folder, text, method):
        path = folder / "program.py"
        path.write_text(PROGRAM + "".join(f"    {line}\n" for line in text.splitlines()))
        self.files = folder / "files"
        self.files.mkdir()
        self._mark = f"SPDL_TEST_PROGRAM={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        path_of_modules = os.pathsep.join([str(HERE), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [sys.executable, str(path), method, str(self.files)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path_of_modules, name: value},
        )
        # A program that hangs is a failure, also where a test reads its output.
        self._watchdog = threading.Timer(60, self._kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def processes(self):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            # Other processes may end now, and zombies have no environment.
            with contextlib.suppress(OSError):
                if self._mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def __enter__(self):
        return self

    def _kill(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(self, *_):
        self._watchdog.cancel()
        self._kill()
        self.process.communicate(timeout=60)


def without_exit_warning(errors: str) -> str:
    """The lines of stderr but the warning of an exit that waited for a second, as on loaded machines."""
    warning = "the process exits while functions of pipelines are still running: "
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(warning))


# promise: R6
# feature: B06
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("op", ["work.double", "sleep"])
def test_a_child_process_with_an_unfinished_region_exits(op, method, tmp_path):
    text = f"""
context = multiprocessing.get_context(method)
child = context.Process(target=work.leave_a_region_running, args=(method, {op}, folder))
child.start()
child.join()
print(child.exitcode)
"""
    with Program(tmp_path, text, method) as program:
        # The child prints the time at which its function returns, and the program the exit code.
        returned = program.process.stdout.readline()
        assert program.process.stdout.readline() == "0\n"
        assert_soon_after(returned, "the exit of the child process")
        output, errors = program.process.communicate(timeout=60)
        wait_until(lambda: not program.processes(), soon_s())
        assert_soon_after(returned, "the exit of the child process and the program")
        assert (output, without_exit_warning(errors)) == ("", "")


# promise: R6
# feature: X03
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("op", ["work.double", "sleep"])
def test_a_program_exits_while_its_subprocess_runs_a_region(op, method, tmp_path):
    text = f"""
config = work.region_of_two(method, {op})
items = iter(run_pipeline_in_subprocess(config, num_threads=2, mp_context=method))
if {op} is work.double:
    next(items)
else:
    import threading
    def take():
        try:
            next(items)
        except Exception:
            pass
    threading.Thread(target=take, daemon=True).start()
    work.wait_for_files(folder, 2)
print(time.time(), flush=True)
"""
    with Program(tmp_path, text, method) as program:
        output, errors = program.process.communicate(timeout=60)
        wait_until(lambda: not program.processes(), soon_s())
        assert_soon_after(output, "the exit of the program and its processes")
        assert (program.process.returncode, without_exit_warning(errors)) == (0, "")


def shared_memory():
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


# Prints the two worker processes, and runs until one of them ends.
ENDLESS = """
pipeline = work.doubled_in_processes(method, OP).build(num_threads=2)
pipeline.start()
workers = []
while len(workers) < 2:
    workers = [worker.pid for worker in pipeline._assembly.cancellables[0]._workers]
    time.sleep(0.001)
print(*workers, flush=True)
try:
    while True:
        for _ in pipeline:
            pass
except PipelineFailure as failure:
    (error,) = failure.exceptions
    print(time.time(), type(error).__name__, error, flush=True)
"""
KILLED = ["the parent", "a worker", "both"]
# The number of kills for each victim, start method and function.
KILLS = int(os.environ.get("SPDL_KILLS", "1"))


# promise: R7
@pytest.mark.parametrize("kill", range(KILLS))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("victim", KILLED)
@pytest.mark.parametrize("op", ["work.double", "sleep"])
def test_after_a_kill_no_process_and_no_memory_is_left(op, victim, method, kill, tmp_path):
    before, draw = shared_memory(), random.Random(f"{op} {victim} {method} {kill}")
    with Program(tmp_path, ENDLESS.replace("OP", op), method) as program:
        workers = [int(pid) for pid in program.process.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(draw.uniform(0, 0.8))
        killed = time.time()
        if victim != "the parent":
            os.kill(workers[draw.randrange(2)], signal.SIGKILL)
        if victim != "a worker":
            program.process.kill()
        if victim == "a worker":
            raised, _, error = program.process.stdout.readline().partition(" ")
            assert error.startswith("WorkerError ") and "was killed by SIGKILL" in error, error
            assert float(raised) - killed <= soon_s(), f"the error took {float(raised) - killed:.2f} s"
            # The exit of the program begins after the error.
            killed = raised
        _, errors = program.process.communicate(timeout=60)
        wait_until(lambda: not program.processes(), soon_s())
        assert_soon_after(killed, "the end of all processes")
        assert victim != "a worker" or program.process.returncode == 0, errors
    wait_until(lambda: shared_memory() <= before)


# Pairs of a victim and a signal, in their order.
COMBINED = {
    "Ctrl-C and a kill of the program": [("parent", signal.SIGINT), ("parent", signal.SIGKILL)],
    # A stopped process cannot notice the end of its parent.
    "a kill of the program of a stopped worker that continues": [
        ("first", signal.SIGSTOP),
        ("parent", signal.SIGKILL),
        ("first", signal.SIGCONT),
    ],
    "a kill of a worker while the other is stopped": [
        ("first", signal.SIGSTOP),
        ("second", signal.SIGKILL),
    ],
    "kills of both workers": [("first", signal.SIGKILL), ("second", signal.SIGKILL)],
    "Ctrl-C after a kill of a worker": [("first", signal.SIGKILL), ("parent", signal.SIGINT)],
}


# promise: R7
@pytest.mark.parametrize("kill", range(KILLS))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("faults", COMBINED)
@pytest.mark.parametrize("op", ["work.double", "sleep"])
def test_combined_faults_leave_no_process_and_no_memory(op, faults, method, kill, tmp_path):
    before, draw = shared_memory(), random.Random(f"{op} {faults} {method} {kill}")
    with Program(tmp_path, ENDLESS.replace("OP", op), method) as program:
        pids = dict(zip(["first", "second"], map(int, program.process.stdout.readline().split())))
        pids["parent"] = program.process.pid
        time.sleep(draw.uniform(0, 0.5))
        for victim, number in COMBINED[faults]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[victim], number)
            time.sleep(draw.uniform(0, 0.02))
        last = time.time()
        program.process.communicate(timeout=60)
        wait_until(lambda: not program.processes(), soon_s())
        # An error after 1 s, and an exit that takes 1 s.
        assert_soon_after(last, "the end of all processes", 2 * soon_s())
    wait_until(lambda: shared_memory() <= before)


# promise: R7
@pytest.mark.parametrize("kill", range(KILLS))
@pytest.mark.parametrize("method", METHODS)
def test_a_kill_during_the_start_leaves_no_process_and_no_memory(method, kill, tmp_path):
    before, draw = shared_memory(), random.Random(f"{method} {kill}")
    with Program(tmp_path, ENDLESS.replace("OP", "sleep"), method) as program:
        wait_until(lambda: len(program.processes()) > 1, 60)
        time.sleep(draw.uniform(0, 0.2))
        program.process.kill()
        killed = time.time()
        program.process.communicate(timeout=60)
        wait_until(lambda: not program.processes(), soon_s())
        assert_soon_after(killed, "the end of all processes")
    wait_until(lambda: shared_memory() <= before)


# Trains from its last checkpoint to the end, with a cache on disk, and a process that sends arrays.
TRAINING = """
import json, zlib, spdl_rs
from spdl_rs.pipeline import SharedMemorySegmentPool, iterate_in_subprocess
photos, cache, file = PATHS
loader = spdl_rs.ImageLoader(photos, batch_size=2, size=16, train=True, cache=cache, threads=2)
checksums = []
if os.path.exists(file):
    with open(file) as opened:
        state, checksums = json.load(opened)
    loader.load_state_dict(state)
make = functools.partial(work.samples, 1000, 100_000)
samples = iterate_in_subprocess(make, arena=SharedMemorySegmentPool(1 << 20, 4), mp_context=method)
for (images, labels), sample in zip(loader, samples):
    assert sample.pixels.shape == (1000, 100)
    checksums.append(zlib.crc32(images.tobytes()))
    with open(file + ".new", "w") as opened:
        json.dump([loader.state_dict(), checksums], opened)
    os.replace(file + ".new", file)
    print("step", flush=True)
"""
# The number of kills for each start method.
RESTARTS = 5 if KILLS == 1 else 8 * KILLS


# promise: R7
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_after_a_kill_the_next_run_resumes_with_the_same_cache_and_state_file(
    method, many, tmp_path
):
    before, draw = shared_memory(), random.Random(method)
    cache, file = tmp_path / "cache", tmp_path / "state.json"
    text = TRAINING.replace("PATHS", repr([str(many), str(cache), str(file)]))

    def run(number, kill):
        (tmp_path / f"{number}").mkdir()
        with Program(tmp_path / f"{number}", text, method) as program:
            if kill:
                # During the start, or after a batch.
                for _ in range(draw.randrange(15)):
                    program.process.stdout.readline()
                time.sleep(draw.uniform(0, 0.05))
                victims = [program.process.pid]
                if draw.random() < 0.3:
                    victims = program.processes()
                    draw.shuffle(victims)
                for pid in victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            _, errors = program.process.communicate(timeout=60)
            wait_until(lambda: not program.processes(), soon_s())
        return program.process.returncode, errors

    killed, undisturbed = 0, None
    for number in range(10 * RESTARTS + 2):
        # The first run and the last one are not killed.
        code, errors = run(number, kill=undisturbed is not None and killed < RESTARTS)
        wait_until(lambda: shared_memory() <= before)
        killed += code == -signal.SIGKILL
        # If the process that sends arrays is killed first, an exception may end the program.
        if code != 0:
            assert code == -signal.SIGKILL or "was killed by SIGKILL" in errors, errors
            continue
        checksums = json.loads(file.read_text())[1]
        undisturbed = undisturbed or checksums
        assert checksums == undisturbed and len(checksums) == 20
        if killed == RESTARTS:
            break
        file.unlink()
        shutil.rmtree(cache)
    assert killed == RESTARTS


# promise: R7
@pytest.mark.parametrize("op", ["sleep", "work.HoldGil(folder)"])
@pytest.mark.parametrize("method", METHODS)
def test_processes_of_processes_end_when_the_program_is_killed(method, op, tmp_path):
    text = f"""
config = work.region_of_two(method, {op})
items = iter(run_pipeline_in_subprocess(config, num_threads=2, mp_context=method))
next(items)
"""
    with Program(tmp_path, text, method) as program:
        wait_until(lambda: len(list(program.files.iterdir())) == 2, 60)
        assert len(program.processes()) >= 4
        killed = time.time()
        program.process.kill()
        wait_until(lambda: not program.processes(), soon_s())
        assert_soon_after(killed, "the end of all processes")


# promise: R7
@pytest.mark.skipif(sys.platform != "linux", reason="requires Linux")
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_process_ends_after_its_parent_even_if_that_has_ended_before(has_ended):
    with subprocess.Popen(["sleep", "60"]) as parent:
        if has_ended:
            parent.kill()
            parent.wait()
        text = f"""
import time
from spdl_rs import _spdl_rs
_spdl_rs.end_after({parent.pid}, 0.1)
print("watches", flush=True)
time.sleep(60)
"""
        command = [sys.executable, "-c", text]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() in {"watches\n", ""}
            parent.kill()
            assert child.wait(soon_s()) == -signal.SIGKILL


# promise: R6, R7
def test_the_median_time_of_ends_is_below_one_second():
    assert_median_end_within_1_s()
