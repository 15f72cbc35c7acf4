"""The programs of docs/profiling.md print the documented output."""

import pathlib
import re

import pytest
from spdl_rs.io.utils import _tracing

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "profiling.md"
TEXT = GUIDE.read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```\n(?:\nprints\n\n```text\n(.*?)```)?", TEXT, re.DOTALL)
(REPORT,) = re.findall(r"printed, on a machine with[^\n]*\n\n```text\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guide")


@pytest.fixture(autouse=True)
def clean(monkeypatch, folder):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.chdir(folder)
    before = list(_tracing.gc.callbacks)
    yield
    _tracing.gc.callbacks[:] = before


def test_all_programs_of_the_guide_are_found():
    assert len(PROGRAMS) == TEXT.count("```python") == 6


# In their order: one reads the trace that another writes.
@pytest.mark.parametrize("at", range(6))
def test_programs_of_the_guide_print_the_documented_output(at, capsys):
    program, printed = PROGRAMS[at]
    exec(program, {"__name__": "program"})
    out = capsys.readouterr().out
    if "print(profile_pipeline(" in program:
        # The figures are those of the machine.
        assert shape(out) == shape(REPORT)
    else:
        assert out == printed


def shape(report):
    lines = report.split(" Other programs ")[0].splitlines()[:1] + report.splitlines()[1:]
    assert " is the bottleneck: " in lines[0]
    tables = [line for line in lines[1:] if not line.startswith("  advised")]
    return [re.sub(r"\s+[-\d][\d.,x%]*", " N", line).split() for line in tables]
