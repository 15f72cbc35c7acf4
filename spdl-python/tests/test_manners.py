"""Side effects of the package: imports, logging, output, signals and forks."""

import importlib
import json
import logging
import os
import pathlib
import pkgutil
import subprocess
import sys
import textwrap

import pytest
import spdl_rs
from pipelines import refuse, run, source

HEAVY = {
    "asyncio",
    "concurrent.futures.process",
    "jax",
    "multiprocessing",
    "numba",
    "pandas",
    "PIL",
    "tensorflow",
    "torch",
}
"""Modules that are slow to import, or optional."""


def python(program, *arguments, **environment):
    """The standard output of a program in another Python process."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    ended = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_importing_spdl_rs_imports_no_slow_modules():
    program = """
        import json, sys
        import numpy
        before = set(sys.modules)
        import spdl_rs
        print(json.dumps(sorted(sys.modules.keys() - before)))
    """
    imported = set(json.loads(python(program)))
    assert "spdl_rs" in imported and not imported & HEAVY
    assert not {name for name in imported if name.startswith(("spdl_rs.pipeline", "spdl_rs.torch"))}


@pytest.mark.parametrize("module", ["pipeline", "source", "dataloader", "torch", "compat"])
def test_submodules_import_no_frameworks(module):
    program = f"""
        import json, sys
        import spdl_rs.{module}
        print(json.dumps(sorted(sys.modules)))
    """
    frameworks = HEAVY - {"asyncio", "concurrent.futures.process", "multiprocessing"}
    assert not set(json.loads(python(program))) & frameworks


def test_all_loggers_are_below_spdl_rs(caplog):
    for module in pkgutil.walk_packages(spdl_rs.__path__, "spdl_rs."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {name for name in logging.root.manager.loggerDict if name.startswith("spdl")}
    assert ours and all(name == "spdl_rs" or name.startswith("spdl_rs.") for name in ours)
    run(source([1]).pipe(refuse))
    assert {record.name for record in caplog.records} == {"spdl_rs.pipeline"}


def test_nothing_is_printed_by_default(photos):
    program = """
        import sys, spdl_rs
        from spdl_rs.pipeline import PipelineBuilder
        list(spdl_rs.ImageLoader(sys.argv[1], batch_size=1, size=8))
        list(PipelineBuilder().add_source([1]).pipe(str).add_sink().build(num_threads=1))
    """
    assert python(program, photos) == ""


WORKERS_ASLEEP = """
    import os, sys, time
    import spdl_rs
    from spdl_rs.dataloader import DataLoader
    class Slow:
        def __len__(self):
            return 100
        def __getitem__(self, index):
            time.sleep(0.3 if index else 0)
            return index
    def slow(item):
        time.sleep(0.3 if item else 0)
        return item
    torchs = spdl_rs.torch.DataLoader(Slow(), batch_size=None, num_workers=2, collate_fn=int)
    spdls = DataLoader(range(100), preprocessor=slow, num_threads=2)
    batches = iter({loader})
    assert next(batches) == 0
"""


@pytest.mark.parametrize("loader", ["torchs", "spdls"])
def test_a_process_exits_while_workers_sleep(loader):
    assert python(WORKERS_ASLEEP.format(loader=loader)) == ""


# promise: R8
@pytest.mark.parametrize("loader", ["torchs", "spdls"])
def test_a_forked_child_starts_a_new_epoch(loader):
    program = (
        WORKERS_ASLEEP.format(loader=loader)
        + """
    import warnings
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
        assert next(iter({loader})) == 0
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert next(batches) == 1 or {loader} is spdls
""".replace("{loader}", loader)
    )
    assert python(program) == ""


def test_the_package_contains_stubs():
    files = {path.name for path in pathlib.Path(spdl_rs.__file__).parent.iterdir()}
    assert {"py.typed", "_spdl_rs.pyi"} <= files


def test_ctrl_c_during_the_numpy_import_is_delayed(photos):
    program = """
        import signal, sys, spdl_rs

        class Interrupts:
            def find_spec(self, name, path=None, target=None):
                if name == "numpy":
                    signal.raise_signal(signal.SIGINT)

        sys.meta_path.insert(0, Interrupts())
        try:
            list(spdl_rs.ImageLoader(sys.argv[1], batch_size=1, size=32))
        except KeyboardInterrupt:
            print("numpy" in sys.modules)
    """
    assert python(program, photos) == "True\n"
