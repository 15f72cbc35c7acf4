"""Forks while pipelines run: the child gets errors, and the parent is not affected."""

import os
import subprocess
import sys

import pytest
from test_subprocess import HERE, script

METHODS = ["fork", "forkserver", "spawn"]

PREAMBLE = """
import concurrent.futures, os, sys, time, warnings
from spdl_rs.pipeline import PipelineBuilder
from spdl_rs.pipeline.defs import Aggregator
warnings.simplefilter("ignore")
parent, children = os.getpid(), []
def fork_at_3(item):
    if item == 3:
        child = os.fork()
        if child:
            children.append(child)
    return item
def generate(item):
    yield fork_at_3(item)
async def wait(item):
    return fork_at_3(item)
async def generate_async(item):
    yield fork_at_3(item)
def fail_in_the_child(item):
    fork_at_3(item)
    if os.getpid() != parent:
        raise ValueError("in the child")
    return item
class Source:
    def __iter__(self):
        yield from map(fork_at_3, range(6))
class AsyncSource:
    async def __aiter__(self):
        for item in range(6):
            yield fork_at_3(item)
class Aggregate(Aggregator):
    def accumulate(self, item):
        return fork_at_3(item)
    def flush(self):
        return None
def numbers():
    return PipelineBuilder().add_source(range(6))
"""

BUILDERS = {
    "function": ("numbers().pipe(fork_at_3)", "stage fork_at_3, fork_at_3 at <string>:"),
    "ordered": ("numbers().pipe(fork_at_3, output_order='input', concurrency=2)", "stage fork_at_3,"),
    "generator": ("numbers().pipe(generate)", "stage generate, generate at <string>:"),
    "coroutine": ("numbers().pipe(wait)", "stage wait, wait at <string>:"),
    "async generator": ("numbers().pipe(generate_async)", "stage generate_async,"),
    "failure": ("numbers().pipe(fail_in_the_child)", "stage fail_in_the_child,"),
    "source": ("PipelineBuilder().add_source(Source())", "__iter__ at <string>:"),
    "async source": ("PipelineBuilder().add_source(AsyncSource())", "__aiter__ at <string>:"),
    "aggregator": ("numbers().aggregate(Aggregate())", "accumulate at <string>:"),
    "executor": (
        "numbers().pipe(fork_at_3, executor=concurrent.futures.ThreadPoolExecutor(2))",
        "cannot continue fork_at_3 in",
    ),
}


# promise: R8
@pytest.mark.parametrize("kind", BUILDERS)
def test_a_child_that_returns_from_a_function_of_a_pipeline_ends_with_an_error(kind):
    builder, named = BUILDERS[kind]
    text = f"""
pipeline = {builder}.add_sink().build(num_threads=2)
items = list(pipeline)
(child,) = children
deadline = time.monotonic() + 20
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(child, 9)
    time.sleep(0.001)
print(sorted(items), os.waitstatus_to_exitcode(ended[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[0, 1, 2, 3, 4, 5] 1\n", done.stderr
    assert "spdl_rs.ForkedProcessError: cannot continue " in done.stderr
    assert named in done.stderr and "end the child with os._exit" in done.stderr


STATES = {
    "before the start": "",
    "after the start": "pipeline.start()",
    "during the iteration": "items = iter(pipeline); taken = [next(items)]",
}


# promise: R8
@pytest.mark.parametrize("state", STATES)
def test_a_forked_child_gets_an_error_immediately(state):
    done = script(
        f"""
        import statistics, warnings
        from spdl_rs import ForkedProcessError
        warnings.simplefilter("ignore")
        pipeline = PipelineBuilder().add_source(range(100)).pipe(work.double).add_sink()
        pipeline = pipeline.build(num_threads=2)
        items, taken = pipeline, []
        {STATES[state]}
        child = os.fork()
        if child == 0:
            if {state == "before the start"}:
                # The pipeline has no threads yet, so that each process may run it.
                assert len(list(items)) == 100
                work.run_new_pipeline()
                os._exit(0)
            took = []
            for _ in range(25):
                # Processor time, because other programs may keep this machine busy.
                began = time.process_time()
                try:
                    next(iter(items))
                except ForkedProcessError as error:
                    took.append(time.process_time() - began)
                    assert "forked child process" in str(error) and error.kind == "stopped"
                else:
                    os._exit(2)
            work.run_new_pipeline()
            # The first call takes longer, because it copies memory pages.
            os._exit(3 if statistics.median(took) > 0.01 or took[0] > 0.1 else 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, sorted([*taken, *items]) == list(range(0, 200, 2)))
        """
    )
    assert (done.stdout, done.stderr) == ("0 True\n", "")


# promise: R8
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("state", STATES)
def test_a_child_of_multiprocessing_runs_new_pipelines(state, method):
    done = script(
        f"""
        import multiprocessing, warnings
        from spdl_rs.pipeline._processes import exit
        from test_locks import held_elsewhere
        warnings.simplefilter("ignore")
        pipeline = PipelineBuilder().add_source(range(100)).pipe(work.double).add_sink()
        pipeline = pipeline.build(num_threads=2)
        items, taken = pipeline, []
        {STATES[state]}
        child = multiprocessing.get_context({method!r}).Process(target=work.run_new_pipeline)
        # A forked child has no thread that releases the lock.
        holder, release = held_elsewhere(exit._registry_lock)
        child.start()
        release.set()
        holder.join()
        child.join(30)
        if child.exitcode is None:
            child.kill()
            child.join()
        print(child.exitcode, sorted([*taken, *items]) == list(range(0, 200, 2)))
        """
    )
    assert (done.stdout, done.stderr) == ("0 True\n", "")


# promise: R8
def test_a_child_forked_in_a_function_may_leave_by_itself():
    text = """
def run_child(item):
    child = os.fork()
    if child == 0:
        os._exit(10 + item)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
pipeline = numbers().pipe(run_child, concurrency=2).add_sink().build(num_threads=2)
print(sorted(pipeline))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert (done.stdout, done.stderr) == ("[10, 11, 12, 13, 14, 15]\n", "")
