"""The programs of docs/migrating.md print the documented output, and deliver the documented values."""

import importlib.util
import pathlib
import re
import shutil
import sys

import numpy
import pytest
from conftest import picture, write_png
from dataset_files import write_coco, write_members, write_voc
from spdl_rs import compat
from test_loader import grey_png

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "migrating.md"
TEXT = GUIDE.read_text("utf-8")
PROGRAM = re.compile(r"```python\n(.*?)```\n\nprints[^\n]*\n\n```text\n(.*?)```", re.DOTALL)
PROGRAMS = PROGRAM.findall(TEXT)
# What `pycocotools` prints.
OF_PYCOCOTOOLS = re.compile(r"^(loading annotations|Done \(t=|creating index|index created).*\n", re.MULTILINE)


@pytest.fixture(autouse=True)
def clean():
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "spdl"]:
        del sys.modules[name]


@pytest.fixture
def here(photos, tmp_path, monkeypatch):
    """The data of the guide in the working directory."""
    shutil.copytree(photos, tmp_path / "photos")
    images = [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    boxes = [[[4.5, 6, 20, 30]], [[30, 20.25, 40, 30], [0, 0, 8, 6.5]], [[70, 50, 9.5, 10]], [[1, 2, 3.5, 4], [5, 6, 7, 8]]]
    write_coco(tmp_path / "coco", images, boxes)
    stripes = [numpy.arange(60 * 80, dtype="u1").reshape(60, 80) % (2 + number) for number in range(4)]
    # torchvision expects this name; the content decides how an image is decoded.
    write_voc(tmp_path / "VOCdevkit/VOC2012", images, map(grey_png, stripes), extension="jpg")
    (tmp_path / "captions").mkdir()
    for shard in range(2):
        members = []
        for number in range(4 * shard, 4 * shard + 4):
            write_png(str(tmp_path / "image.png"), picture(number, 60 + number, 80))
            members += [
                (f"{number:03}.png", (tmp_path / "image.png").read_bytes()),
                (f"{number:03}.txt", f"caption {number} – ü".encode()),
            ]
        write_members(tmp_path / "captions" / f"train-{shard}.tar", members)
    monkeypatch.chdir(tmp_path)
    # Nothing is downloaded, and the cache of `datasets` is not used.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def test_all_programs_of_the_guide_are_found():
    assert len(PROGRAMS) == TEXT.count("```python") == 17


def frameworks_of(program):
    found = re.findall(r"^(?:import|from) (torchvision|torch|datasets|webdataset)\b", program, re.MULTILINE)
    if 'output="torch"' in program:
        found.append("torch")
    return found + ["pycocotools"] * ("CocoDetection" in program)


def run(program):
    for name in frameworks_of(program):
        pytest.importorskip(name, reason=f"{name} is not installed")
    if "torchvision.transforms import v2" in program or ", v2" in program:
        pytest.importorskip("torchvision.transforms.v2", reason="torchvision has no transforms.v2")
    names = {"__name__": "program"}
    exec(program, names)
    return names


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(*pair, marks=pytest.mark.frameworks if frameworks_of(pair[0]) else ())
        for pair in PROGRAMS
    ],
    ids=range(len(PROGRAMS)),
)
def test_programs_of_the_guide_print_the_documented_output(program, printed, here, capsys):
    if "compat.install()" in program and importlib.util.find_spec("spdl") is not None:
        pytest.skip("SPDL itself is installed")
    run(program)
    assert OF_PYCOCOTOOLS.sub("", capsys.readouterr().out) == printed


def pair_of(section):
    """The program of the other library, and that of `spdl_rs`."""
    (text,) = [part for part in re.split(r"^### ", TEXT, flags=re.MULTILINE) if part.startswith(section)]
    (other, _), (ours, _) = PROGRAM.findall(text)
    return other, ours


def arrays(value):
    """The arrays of a batch, in order."""
    if isinstance(value, dict):
        # Targets of the other library may have further members.
        return [one for name in sorted(value) for one in arrays(value[name])]
    if isinstance(value, (list, tuple)):
        return [array for one in value for array in arrays(one)]
    # Masks of torchvision have a dimension of channels.
    array = numpy.asarray(value)
    return [array[:, 0] if array.ndim == 4 and array.shape[1] == 1 else array]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("section", "levels", "std"),
    [
        ("Image classification with torchvision", 1, 0.224),
        ("Detection with torchvision", 0, 1),
        ("Segmentation with torchvision", 1, 0.224),
        ("OpenCLIP on WebDataset", 1, 0.26),
    ],
)
def test_both_programs_of_a_pair_evaluate_with_equal_values(section, levels, std, here):
    other, ours = (list(run(program)["evaluation"]) for program in pair_of(section))
    assert len(other) == len(ours) > 0
    for one, two in zip(other, ours):
        one, two = arrays(one), arrays(two)
        assert [(array.shape, array.dtype) for array in one] == [(array.shape, array.dtype) for array in two]
        for theirs, found in zip(one, two):
            tolerance = (levels / 255 / std if theirs.ndim > 2 and theirs.dtype == "float32" else 0) + 1e-4
            assert numpy.abs(theirs.astype("f8") - found).max() <= tolerance
