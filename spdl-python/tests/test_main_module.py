"""Errors for functions of the main module that a worker process cannot import."""

import subprocess
import sys
import textwrap

import pytest

IMPORTS = """
from spdl_rs.dataloader import get_pytorch_dataloader
from spdl_rs.pipeline import *
from spdl_rs.pipeline.defs import *
"""
WITHOUT_GUARD = IMPORTS + "def double(item): return 2 * item\ndef numbers(): return range(3)\n"
GUARDED = IMPORTS + 'if __name__ == "__main__":\n'
DEFINITIONS = """
def double(item): return 2 * item
def numbers(): return range(3)
class Data:
    def __len__(self): return 2
    def __getitem__(self, index): return index
"""
RUNS = {
    "region": """
builder = PipelineBuilder().add_source(range(3))
builder.to(ProcessPoolExecutorConfig(max_workers=1, mp_context=METHOD)).pipe(double)
print(list(builder.to(MAIN_PROCESS).add_sink().build(num_threads=1)))
""",
    "iterate": "print(list(iterate_in_subprocess(numbers, mp_context=METHOD)))",
    "pipeline": """
config = PipelineBuilder().add_source(range(3)).pipe(double).add_sink().get_config()
print(list(run_pipeline_in_subprocess(config, num_threads=1, mp_context=METHOD)))
""",
    "loader": """
print(list(get_pytorch_dataloader(Data(), collate_fn=sum, multiprocessing_context=METHOD)))
""",
}
METHODS = ["spawn", "forkserver"]


def run(arguments, **options):
    ran = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, **options
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", RUNS)
def test_x01_definitions_under_the_guard_are_an_error_with_advice(name, method, tmp_path):
    program = tmp_path / "program.py"
    body = DEFINITIONS + RUNS[name].replace("METHOD", repr(method))
    program.write_text(GUARDED + textwrap.indent(body, "    "))
    code, _, error = run([str(program)])
    assert code == 1 and "AttributeError: Can't get attribute '" in error
    assert 'without the code under `if __name__ == "__main__":`; define' in error
    # Functions above the guard are importable.
    program.write_text(
        IMPORTS
        + DEFINITIONS
        + 'if __name__ == "__main__":\n'
        + textwrap.indent(RUNS[name].replace("METHOD", repr(method)), "    ")
    )
    expected = {"iterate": "[0, 1, 2]", "loader": "[0, 1]"}.get(name, "[0, 2, 4]")
    code, out, error = run([str(program)])
    assert (code, sorted(out)) == (0, sorted(expected + "\n")), error


@pytest.mark.parametrize("name", RUNS)
def test_x01_a_program_without_a_file_is_an_error_with_advice(name):
    body = IMPORTS + DEFINITIONS + RUNS[name].replace("METHOD", "'spawn'")
    code, _, error = run(["-c", body])
    assert code == 1 and "AttributeError: Can't get attribute '" in error
    assert "define functions and classes in a module and import it" in error


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["region", "iterate"])
def test_x01_a_program_without_the_guard_is_an_error_with_advice(name, method, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_GUARD + RUNS[name].replace("METHOD", repr(method)))
    code, _, error = run([str(program)])
    assert code == 1 and "WorkerError: " in error
    assert 'must start processes under `if __name__ == "__main__":`)' in error


def test_c05_a_broken_pool_error_has_a_note(tmp_path):
    program = tmp_path / "program.py"
    body = """
import concurrent.futures, multiprocessing
def double(item): return 2 * item
with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
    builder = PipelineBuilder().add_source(range(3)).pipe(double, executor=executor).add_sink()
    try:
        list(builder.build(num_threads=1, max_failures=0))
    except PipelineFailure as failure:
        (error,) = failure.exceptions
        print(type(error).__name__, *error.__notes__, sep="\\n")
"""
    program.write_text(GUARDED + textwrap.indent(body, "    "))
    code, out, error = run([str(program)])
    assert code == 0, error
    assert out.startswith("BrokenProcessPool\n")
    assert "The output of the worker processes may contain the reason." in out


def test_f12_other_pickling_errors_have_no_advice(tmp_path):
    (tmp_path / "elsewhere.py").write_text("def double(item): return 2 * item\n")
    program = tmp_path / "program.py"
    body = """
import elsewhere
def numbers(): return range(3)
if __name__ == "__main__":
    elsewhere.triple = type(elsewhere.double)(elsewhere.double.__code__, {}, "triple")
    elsewhere.triple.__module__, elsewhere.triple.__qualname__ = "elsewhere", "triple"
    config = PipelineBuilder().add_source(range(3)).pipe(elsewhere.triple).add_sink().get_config()
    list(run_pipeline_in_subprocess(config, num_threads=1, mp_context="spawn"))
"""
    program.write_text(IMPORTS + body)
    code, _, error = run([str(program)])
    assert code == 1 and "Can't get attribute 'triple' on <module 'elsewhere'" in error
    assert "define functions" not in error


EXECUTOR = """
import concurrent.futures, multiprocessing
executor = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(METHOD))
builder = PipelineBuilder().add_source(range(3)).pipe(str, executor=executor).add_sink()
print(list(builder.build(num_threads=1)))
"""
ALL_RUNS = {**RUNS, "executor": EXECUTOR}


@pytest.mark.parametrize("name", ALL_RUNS)
def test_x01_spawning_from_standard_input_is_an_error_with_advice(name):
    body = IMPORTS + DEFINITIONS + ALL_RUNS[name].replace("METHOD", "'spawn'")
    code, out, error = run(["-"], input=body)
    assert (code, out) == (1, "")
    *_, last = [line for line in error.splitlines() if "Error: " in line]
    reported = "RuntimeError: child processes cannot import this program, because it is read from"
    assert reported in last and "save it to a file" in last
    assert "FileNotFoundError" not in error


def test_x01_a_program_from_standard_input_may_fork():
    body = IMPORTS + DEFINITIONS + RUNS["loader"].replace("METHOD", "'fork'")
    code, out, error = run(["-"], input=body)
    assert (code, sorted(out)) == (0, sorted("[0, 1]\n")), error
