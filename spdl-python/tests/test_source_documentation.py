"""The examples of `spdl_rs.source` run, and its public names are documented and typed."""

import doctest
import importlib
import inspect
import shutil

import pytest

MODULES = {
    "spdl_rs.source": 6,
    "spdl_rs.source._sampler": 20,
    "spdl_rs.source._type": 5,
    "spdl_rs.source._epochs": 7,
    "spdl_rs.source.utils": 6,
    "spdl_rs.source.local_directory": 4,
    "spdl_rs.source.imagenet": 6,
}


@pytest.fixture
def data_sets(photos, tmp_path, monkeypatch):
    shutil.copytree(photos, tmp_path / "photos")
    root = tmp_path / "imagenet"
    for name in ["n01440764/ILSVRC2012_val_00000293", "n01443537/ILSVRC2012_val_00000236"]:
        (root / "val" / name).parent.mkdir(parents=True)
        (root / "val" / f"{name}.JPEG").touch()
    (root / "LOC_synset_mapping.txt").write_text("n01440764 tench\nn01443537 goldfish\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name, data_sets):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted >= MODULES[name] - 1 and result.failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if "._" not in name])
def test_public_names_of_sources_are_documented_and_typed(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for public in module.__all__:
        value = getattr(module, public)
        assert value.__module__.startswith("spdl_rs.source") and inspect.getdoc(value), public
        functions = [value] if inspect.isfunction(value) else [value.__init__]
        if inspect.isclass(value):
            members = inspect.getmembers(value, inspect.isfunction)
            functions += [member for key, member in members if not key.startswith("_")]
        for function in functions:
            if function.__module__.startswith("spdl_rs"):
                parameters = set(inspect.signature(function).parameters) - {"self"}
                assert parameters <= set(function.__annotations__), function
                assert function.__name__ == "__init__" or inspect.getdoc(function), function
