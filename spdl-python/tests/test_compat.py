"""`spdl_rs.compat`: programs that import `spdl`."""

import doctest
import importlib
import importlib.util
import subprocess
import sys

import pytest
import spdl_rs
from spdl_rs import compat


@pytest.fixture(autouse=True)
def clean():
    if not compat.is_installed() and importlib.util.find_spec("spdl") is not None:
        pytest.skip("SPDL itself is installed")
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "spdl"]:
        del sys.modules[name]


MODULES = [
    "pipeline",
    "pipeline.defs",
    "pipeline.config",
    "source",
    "source.utils",
    "source.imagenet",
    "source.local_directory",
    "io",
    "io.utils",
    "dataloader",
    "_internal",
]


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_spdl_are_modules_of_spdl_rs(name):
    compat.install()
    theirs = importlib.import_module(f"spdl.{name}")
    ours = importlib.import_module(f"spdl_rs.{name}")
    assert theirs is ours
    assert ours.__name__ == ours.__spec__.name == f"spdl_rs.{name}"


def test_all_import_statements_work():
    compat.install()
    names = {}
    exec(
        "import spdl, spdl.io\n"
        "import spdl.pipeline.defs as defs\n"
        "from spdl import source\n"
        "from spdl.pipeline import Pipeline, PipelineBuilder\n"
        "from spdl.dataloader import *\n"
        "def run():\n"
        "    return list(PipelineBuilder().add_source('ab').add_sink().build(num_threads=1))\n",
        names,
    )
    assert names["spdl"] is spdl_rs and names["defs"] is spdl_rs.pipeline.defs
    assert names["source"] is spdl_rs.source and names["Pipeline"] is spdl_rs.pipeline.Pipeline
    assert names["PyTorchDataLoader"] is spdl_rs.dataloader.PyTorchDataLoader
    assert names["run"]() == ["a", "b"]


def test_profile_and_trace_names_are_importable_as_in_upstream():
    compat.install()
    names = {}
    exec(
        "from spdl.pipeline import ProfileHook, ProfileResult, profile_pipeline\n"
        "from spdl.pipeline.config import diagnostic_mode_num_sources, is_diagnostic_mode_enabled\n"
        "from spdl.pipeline.config import get_default_profile_callback, get_default_profile_hook\n"
        "from spdl.pipeline.config import set_default_profile_callback, set_default_profile_hook\n"
        "from spdl.io.utils import trace_counter, trace_event, trace_gc, tracing\n"
        "from spdl._internal import log_api_usage_once\n",
        names,
    )
    assert names["profile_pipeline"] is spdl_rs.pipeline.profile_pipeline
    assert names["log_api_usage_once"] is spdl_rs.usage.log_api_usage_once


def test_an_unknown_module_or_name_is_an_import_error():
    compat.install()
    for name in ["spdl.nothing", "spdl.io.lib", "spdl.pipeline.defs.more"]:
        with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$") as raised:
            importlib.import_module(name)
        assert raised.value.name == name
    with pytest.raises(ImportError, match="nothing"):
        exec("from spdl.pipeline import nothing")


def test_find_spec_of_an_unknown_module_is_none():
    compat.install()
    for name in ["spdl.nothing", "spdl.io.lib", "spdl.pipeline.defs.more"]:
        assert importlib.util.find_spec(name) is None
    found = importlib.util.find_spec("spdl.pipeline.defs")
    assert found is not None and found.name == "spdl_rs.pipeline.defs"


def test_install_is_idempotent_and_uninstall_reverts_it():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("spdl")
    compat.uninstall()
    compat.install()
    compat.install()
    assert compat.is_installed() and importlib.import_module("spdl.io") is spdl_rs.io
    compat.uninstall()
    assert not compat.is_installed()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("spdl.io")
    # Another package whose name has the same prefix.
    compat.install()
    with pytest.raises(ModuleNotFoundError, match="No module named 'spdlx'"):
        importlib.import_module("spdlx")


@pytest.fixture
def upstream(tmp_path, monkeypatch):
    """A package in place of SPDL."""
    package = tmp_path / "site" / "spdl"
    (package / "io").mkdir(parents=True)
    (package / "__init__.py").write_text("who = 'upstream'\n")
    (package / "io" / "__init__.py").write_text("who = 'upstream'\n")
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_install_requires_force_if_spdl_is_installed(upstream):
    with pytest.raises(RuntimeError, match="SPDL is installed .*site.*force=True"):
        compat.install()
    assert not compat.is_installed()
    compat.install(force=True)
    assert importlib.import_module("spdl.io") is spdl_rs.io
    compat.uninstall()
    assert importlib.import_module("spdl.io").who == "upstream"


def test_install_requires_force_if_spdl_was_imported(upstream):
    theirs = importlib.import_module("spdl.io")
    with pytest.raises(RuntimeError, match=r"SPDL is already imported \(spdl, spdl.io\)"):
        compat.install()
    compat.install(force=True)
    assert importlib.import_module("spdl.io") is spdl_rs.io and theirs.who == "upstream"
    compat.uninstall()
    assert importlib.import_module("spdl.io") is theirs
    assert importlib.import_module("spdl").who == "upstream"


PROGRAM = """
import sys
import helper
from spdl.pipeline import PipelineBuilder
if __name__ == "__main__":
    items = PipelineBuilder().add_source(sys.argv[1:]).pipe(helper.shout).add_sink()
    print(*items.build(num_threads=1))
    sys.exit(4)
"""


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    (folder / "helper.py").write_text("def shout(text): return text.upper()\n")
    return folder


def run(*arguments, cwd=None):
    command = [sys.executable, "-m", "spdl_rs.compat", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)
    return ran.returncode, ran.stdout, ran.stderr


def test_a_program_gets_its_arguments(program):
    assert run(str(program / "program.py"), "a", "--force") == (4, "A --FORCE\n", "")
    assert run("-m", "program", "a", "-b", cwd=program) == (4, "A -B\n", "")


def test_without_a_program_the_usage_is_printed(program, upstream):
    code, out, error = run()
    assert (code, out) == (2, "") and error.startswith("usage: python -m spdl_rs.compat")
    assert run("--help")[:2] == (0, error)
    assert run("--unknown", "program.py")[0] == 2
    code, _, error = run("missing.py", cwd=program)
    assert code == 1 and "missing.py" in error


def test_a_program_next_to_spdl_requires_force(program, upstream):
    for name in ["program.py", "helper.py"]:
        (upstream.parent / name).write_text((program / name).read_text())
    # SPDL is importable from the program's folder and from the current one.
    code, _, error = run("-m", "program", "a", cwd=upstream.parent)
    assert code == 1 and error.startswith("spdl_rs.compat: SPDL is installed")
    assert run("--force", "-m", "program", "a", cwd=upstream.parent) == (4, "A\n", "")


SPAWNING = """
import multiprocessing
import sys
from spdl.pipeline import PipelineBuilder
from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

def double(number): return 2 * number

def run(): print(*PipelineBuilder().add_source("ab").add_sink().build(num_threads=1), flush=True)

if __name__ == "__main__":
    method = sys.argv[1]
    child = multiprocessing.get_context(method).Process(target=run)
    child.start()
    child.join()
    region = PipelineBuilder().add_source(range(3)).to(ProcessPoolExecutorConfig(1, mp_context=method))
    print(*region.pipe(double).to(MAIN_PROCESS).add_sink().build(num_threads=1))
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_that_a_program_starts_import_spdl_too(method, tmp_path):
    # The children import the main module, whose first lines import SPDL.
    (tmp_path / "program.py").write_text(SPAWNING)
    expected = (0, "a b\n0 2 4\n")
    assert run(str(tmp_path / "program.py"), method)[:2] == expected
    assert run("-m", "program", method, cwd=tmp_path)[:2] == expected
    # A program that calls `install` itself, without the command.
    installing = "import spdl_rs.compat\nspdl_rs.compat.install()\n" + SPAWNING
    (tmp_path / "installing.py").write_text(installing)
    command = [sys.executable, "installing.py", method]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == expected, ran.stderr


@pytest.fixture
def environment(tmp_path):
    """Runs Python in a new environment that can import this package. Returns code, output and errors."""
    import os
    import venv

    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    variables = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(spdl_rs.__file__))}
    # The packages of the tests, such as NumPy.
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], *sys.path[1:]])

    def run(*arguments):
        ran = subprocess.run(
            [python, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=variables,
        )
        return ran.returncode, ran.stdout, ran.stderr

    run.site = next((tmp_path / "env").glob("lib/python3*/site-packages"))
    return run


CHECK = "import spdl.pipeline.defs, spdl_rs; print(spdl is spdl_rs, spdl.pipeline is spdl_rs.pipeline)"


def test_the_site_file_makes_spdl_importable_in_each_process_until_it_is_removed(environment):
    path = environment.site / "spdl_rs_compat.pth"
    assert environment("-c", CHECK)[0] == 1
    code, out, error = environment("-m", "spdl_rs.compat", "--site")
    assert (code, error) == (0, "") and out.startswith(f"wrote {path}\n") and "--remove" in out
    assert environment("-c", CHECK) == (0, "True True\n", "")
    # Twice is allowed, and programs that install by themselves or use the command continue to work.
    assert environment("-m", "spdl_rs.compat", "--site")[0] == 0
    assert environment("-c", f"import spdl_rs.compat as c; c.install(); {CHECK}")[:2] == (0, "True True\n")
    refused = "import spdl, spdl_rs.compat as c; assert c.is_installed(); c.uninstall(); import spdl"
    assert "No module named 'spdl'" in environment("-c", refused)[2]
    code, out, error = environment("-m", "spdl_rs.compat", "--remove")
    assert (code, out, error) == (0, f"removed {path}\n", "") and not path.exists()
    assert "nothing to remove" in environment("-m", "spdl_rs.compat", "--remove")[1]
    assert "No module named 'spdl'" in environment("-c", CHECK)[2]


def test_the_site_file_does_not_replace_spdl_without_force(environment):
    package = environment.site / "spdl"
    package.mkdir()
    (package / "__init__.py").write_text("who = 'upstream'\n")
    code, out, error = environment("-m", "spdl_rs.compat", "--site")
    assert (code, out) == (1, "") and "SPDL is installed" in error and "--force" in error
    assert not (environment.site / "spdl_rs_compat.pth").exists()
    assert environment("-m", "spdl_rs.compat", "--force", "--site")[0] == 0
    assert environment("-c", CHECK) == (0, "True True\n", "")
    # Without force, an SPDL that is installed later comes first.
    (package / "__init__.py").rename(package / "later")
    package.rename(environment.site / "gone")
    assert environment("-m", "spdl_rs.compat", "--remove")[0] == 0
    assert environment("-m", "spdl_rs.compat", "--site")[0] == 0
    (environment.site / "gone").rename(package)
    (package / "later").rename(package / "__init__.py")
    assert environment("-c", "import spdl; print(spdl.who)") == (0, "upstream\n", "")


FORKING = """
import functools, multiprocessing, warnings
from spdl.pipeline import iterate_in_subprocess

def taken(queue):
    yield queue.get()
    yield queue.get()

def main():
    queue = multiprocessing.Queue()
    queue.put(1)
    queue.put(2)
    return list(iterate_in_subprocess(FUNCTION))

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(main(), [str(w.message) for w in caught if "start method fork" in str(w.message)])
"""


@pytest.mark.parametrize("function", ["lambda: [1, 2]", "functools.partial(taken, queue)"])
def test_programs_for_spdl_may_start_processes_with_any_arguments(tmp_path, function):
    import multiprocessing

    if multiprocessing.get_all_start_methods()[0] != "fork":
        pytest.skip("this Python does not fork by default, so neither does SPDL")
    (tmp_path / "program.py").write_text(FORKING.replace("FUNCTION", function))
    code, out, error = run(str(tmp_path / "program.py"))
    assert code == 0 and out.startswith("[1, 2] [") and "may hang" in out, error
    program = "from spdl.pipeline import iterate_in_subprocess\nprint(list(iterate_in_subprocess(list)))\n"
    (tmp_path / "unguarded.py").write_text(program)
    code, out, error = run(str(tmp_path / "unguarded.py"))
    assert (code, out) == (1, "") and "bootstrapping" in error and "may hang" not in error
    # Other programs are refused: see `test_x01_unpicklable_arguments_raise_immediately`.


def test_the_examples_in_docstrings_run():
    result = doctest.testmod(compat)
    assert result.attempted >= 7 and result.failed == 0
