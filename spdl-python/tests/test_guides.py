"""The Python programs in Markdown pages: each is run by a test."""

# feature of this file: U06

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# The number of programs per page, and the test module that runs them.
PAGES = {
    "README.md": (1, "test_guides"),
    "docs/guides/is-my-training-starved.md": (1, "test_guides"),
    "docs/guides/which-number.md": (1, "test_guides"),
    "docs/fields.md": (31, "test_fields_guide"),
    "docs/migrating.md": (17, "test_migrating"),
    "docs/pack.md": (1, "test_guides"),
    "docs/parallelism.md": (2, "test_guides"),
    "docs/resume.md": (3, "test_guides"),
    "docs/profiling.md": (6, "test_profiling_guide"),
    "spdl-python/README.md": (3, "test_package"),
}


def programs(page):
    return BLOCKS.findall((ROOT / page).read_text(encoding="utf-8"))


def pages():
    folders = [ROOT, ROOT / "spdl-python", *(ROOT / "docs").rglob("*/"), ROOT / "docs"]
    folders += [ROOT / "examples", *(ROOT / "examples").rglob("*/")]
    found = {page for folder in folders for page in folder.glob("*.md")}
    return sorted(str(page.relative_to(ROOT)) for page in found)


def test_every_program_in_markdown_is_tested():
    found = {page: len(programs(page)) for page in pages()}
    assert {page: count for page, count in found.items() if count} == {
        page: count for page, (count, _) in PAGES.items()
    }
    for page, (_, tested) in PAGES.items():
        text = (pathlib.Path(__file__).parent / f"{tested}.py").read_text(encoding="utf-8")
        assert pathlib.PurePath(page).name in text


# The topics of upstream SPDL's guides, and the section on each.
TOPICS = {
    "optimization": ("docs/guides/is-my-training-starved.md", "## What is measured"),
    "noisy neighbours": ("docs/guides/is-my-training-starved.md", "noisy neighbours"),
    "parallelism": ("docs/parallelism.md", "## Which one to choose"),
    "remote iterables": ("docs/parallelism.md", "## Iterables in another process"),
    "CUDA streams": ("docs/parallelism.md", "## Batches on a GPU"),
    "packets and frames": ("docs/fields.md", "### Packets and frames"),
}


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_of_upstream_has_a_section(topic):
    page, heading = TOPICS[topic]
    assert any(line.startswith("#") and heading in line for line in (ROOT / page).read_text("utf-8").splitlines())


def test_the_readme_program_runs(photos, tmp_path, monkeypatch, capsys):
    (program,) = programs("README.md")
    shutil.copytree(photos, tmp_path / "path" / "to" / "images")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert names["images"].shape[1:] == (224, 224, 3) and names["images"].dtype == "uint8"
    assert names["labels"].dtype == "int64"
    assert names["state"]["epoch"] in (2, 3) and names["loader"].epoch == 3
    assert len(capsys.readouterr().out.split()) > 3


def test_the_parallelism_page_programs_print_what_the_page_shows(tmp_path, capsys):
    program, of_zip = programs("docs/parallelism.md")
    page = (ROOT / "docs/parallelism.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr
    exec(of_zip, {"__name__": "program"})
    printed = re.search(r"# (\[.*\])$", of_zip, re.MULTILINE)[1]
    assert capsys.readouterr().out.strip() == printed


def test_the_which_number_page_program_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    (program,) = programs("docs/guides/which-number.md")
    page = (ROOT / "docs/guides/which-number.md").read_text(encoding="utf-8")
    shown = page.partition("prints\n\n```text\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(program, {"__name__": "program"})
    assert capsys.readouterr().out == shown


def test_the_resume_page_program_prints_what_the_page_shows(capsys):
    program, *_ = programs("docs/resume.md")
    page = (ROOT / "docs/resume.md").read_text(encoding="utf-8")
    shown = page.partition("prints\n\n```text\n")[2].partition("```")[0]
    exec(program, {"__name__": "program"})
    assert capsys.readouterr().out == shown


def test_the_resume_page_steps_are_those_of_the_epoch(photos, tmp_path, monkeypatch, capsys):
    program = programs("docs/resume.md")[2]
    page = (ROOT / "docs/resume.md").read_text(encoding="utf-8")
    shown = page.partition("## Any steps of an epoch")[2].partition("prints\n\n```text\n")[2].partition("```")[0]
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert capsys.readouterr().out == shown


@pytest.mark.frameworks
def test_the_resume_page_checkpoint_continues_after_the_last_step(photos, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    _, program, _ = programs("docs/resume.md")
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    replace, steps = os.replace, []

    def counted(*paths):
        replace(*paths)
        steps.append(paths)
        if len(steps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", counted)
    with pytest.raises(KeyboardInterrupt):
        exec(program, {})
    # Two epochs of two batches.
    exec(program, {})
    assert len(steps) == 4
    exec(program, {})
    assert len(steps) == 4


def test_the_pack_page_program_runs():
    (program,) = programs("docs/pack.md")
    compile(program, "pack.md", "exec")
    if importlib.util.find_spec("webdataset") is None:
        pytest.skip("webdataset is not installed")
    exec(program, {})


def test_the_starved_training_program_prints_what_the_page_shows(capsys):
    (program,) = programs("docs/guides/is-my-training-starved.md")
    page = (ROOT / "docs/guides/is-my-training-starved.md").read_text(encoding="utf-8")
    shown = page.partition("prints\n\n```text\n")[2].partition("```")[0]
    exec(program, {"__name__": "program"})
    assert capsys.readouterr().out == shown
