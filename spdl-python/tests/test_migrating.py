"""The programs of docs/migrating.md print the documented output."""

import importlib.util
import pathlib
import re
import shutil
import sys

import pytest
from spdl_rs import compat

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "migrating.md"
PROGRAMS = re.findall(
    r"```python\n(.*?)```\n\nprints[^\n]*\n\n```text\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL
)


@pytest.fixture(autouse=True)
def clean():
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "spdl"]:
        del sys.modules[name]


def test_all_programs_of_the_guide_are_found():
    assert len(PROGRAMS) == GUIDE.read_text("utf-8").count("```python") == 9


def frameworks_of(program):
    return re.findall(r"^(?:import|from) (torchvision|torch|datasets)\b", program, re.MULTILINE)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(*pair, marks=pytest.mark.frameworks if frameworks_of(pair[0]) else ())
        for pair in PROGRAMS
    ],
    ids=range(len(PROGRAMS)),
)
def test_programs_of_the_guide_print_the_documented_output(
    program, printed, photos, tmp_path, monkeypatch, capsys
):
    for name in frameworks_of(program):
        pytest.importorskip(name, reason=f"{name} is not installed")
    if "compat.install()" in program and importlib.util.find_spec("spdl") is not None:
        pytest.skip("SPDL itself is installed")
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    # Nothing is downloaded, and the cache of `datasets` is not used.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    names = {"__name__": "program"}
    exec(program, names)
    assert capsys.readouterr().out == printed
