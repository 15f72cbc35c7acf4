"""Documentation, stubs, errors and imports of the package."""

import ast
import doctest
import importlib.metadata
import importlib.resources
import inspect
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
import spdl_rs
import spdl_rs.pipeline
import spdl_rs.pipeline._failures.child_process
import spdl_rs.pipeline._hooks.profile_hook
import spdl_rs.pipeline._profile.profile
from spdl_rs import (
    _batch_loader,
    _batches,
    _errors,
    _image_loader,
    _loader,
    _spdl_rs,
    fields,
    recipes,
    sequences,
    sources,
)


@pytest.fixture
def beside_photos(photos, tmp_path, monkeypatch):
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "module",
    [spdl_rs, _batches, _batch_loader, _image_loader, _loader, fields, recipes, sequences, sources],
)
def test_the_examples_in_docstrings_run(module, beside_photos):
    result = doctest.testmod(module, extraglobs={"ImageLoader": spdl_rs.ImageLoader})
    assert result.attempted > 2 and result.failed == 0


@pytest.mark.parametrize(
    "module",
    [
        spdl_rs.pipeline,
        spdl_rs.pipeline._build.build,
        spdl_rs.pipeline._build.builder,
        spdl_rs.pipeline._build.subprocess,
        spdl_rs.pipeline._failures.child_process,
        spdl_rs.pipeline._hooks.markers,
        spdl_rs.pipeline._hooks.profile_hook,
        spdl_rs.pipeline._processes.arena,
        spdl_rs.pipeline._run.pipeline,
        spdl_rs.pipeline._processes.priority_executor,
        spdl_rs.pipeline._profile.profile,
        spdl_rs.pipeline._processes.iterate,
        spdl_rs.pipeline.defs,
        spdl_rs.pipeline.defs._aggregators,
        spdl_rs.pipeline.defs._executors,
        spdl_rs.pipeline.defs._factories,
    ],
    ids=lambda module: module.__name__,
)
def test_pipeline_doctests_pass(module):
    result = doctest.testmod(module)
    assert result.attempted > 1 and result.failed == 0


def test_the_readme_example_prints_the_documented_output(beside_photos, capsys):
    text = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (printed,) = re.findall(r"prints\n\n```text\n(.*?)```", text, flags=re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_the_readme_checkpoint_example_resumes_exactly(many, tmp_path, monkeypatch):
    text = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    _, code, _ = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)

    def loader():
        return spdl_rs.ImageLoader(many, batch_size=8, size=8, train=True, seed=7)

    expected = [labels.tolist() for _, labels in loader()]
    seen = []

    def train_step(images, labels):
        seen.append(labels.tolist())
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        # Of text instead of a code object, Python would later exit as interrupted.
        code = compile(code, "README.md", "exec")
        exec(code, {"loader": loader(), "train_step": train_step, "json": json})
    again = loader()
    again.load_state_dict(json.loads((tmp_path / "loader.json").read_text()))
    assert seen + [labels.tolist() for _, labels in again] == expected and len(expected) == 5


PROTOCOLS = (
    "__array_interface__",
    "__call__",
    "__dlpack__",
    "__dlpack_device__",
    "__iter__",
    "__len__",
    "__length_hint__",
    "__next__",
)


def test_the_stub_matches_the_native_module():
    stub = importlib.resources.files(spdl_rs).joinpath("_spdl_rs.pyi").read_text()
    described = {}
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ClassDef):
            functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            described[node.name] = {function.name: function for function in functions}
        elif isinstance(node, ast.AnnAssign):
            described[node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            described[node.name] = None

    public = {name for name in vars(_spdl_rs) if not name.startswith("__")}
    assert public | {"__version__"} == set(described)
    for name, functions in described.items():
        if functions is None:
            continue
        native = getattr(_spdl_rs, name)
        members = {
            member for member in vars(native) if not member.startswith("__") or member in PROTOCOLS
        }
        if native.__new__ is not object.__new__ and native.__text_signature__:
            members.add("__new__")
        assert members == set(functions), name
        for function in functions.values():
            decorators = [decorator.id for decorator in function.decorator_list]
            if "property" in decorators or function.name in PROTOCOLS:
                continue
            found = native if function.name == "__new__" else getattr(native, function.name)
            signature = inspect.signature(found)
            arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
            expected = [argument.arg for argument in arguments]
            if "staticmethod" not in decorators:
                expected = expected[1:]
            names = [parameter for parameter in signature.parameters if parameter != "self"]
            assert names == expected, f"{name}.{function.name}"


def test_the_package_is_typed_and_documented():
    assert importlib.resources.files(spdl_rs).joinpath("py.typed").is_file()
    for name in spdl_rs.__all__:
        value = getattr(spdl_rs, name)
        if name.startswith("__"):
            continue
        assert value.__doc__
        for member, function in vars(value).items():
            if not member.startswith("_") and (
                callable(function) or isinstance(function, property)
            ):
                assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"
    for function in [spdl_rs.ImageLoader.__init__, spdl_rs.ImageLoader.stats]:
        missing = set(inspect.signature(function).parameters) - set(function.__annotations__)
        assert missing == {"self"}


def test_the_version_equals_that_of_the_distribution():
    assert spdl_rs.__version__ == importlib.metadata.version("spdl-rs")


def test_every_error_kind_has_a_class():
    for kind, error in _errors._BY_KIND.items():
        made = _errors.from_native("words", kind, "key", "stage", 3, None)
        assert type(made) is error and made.kind == kind and str(made) == "words"
        assert error.__name__ in spdl_rs.__all__ and error.__module__ == "spdl_rs"
    # An unknown kind, as from a newer native module.
    assert type(_errors.from_native("words", "new", None, None, None, None)) is spdl_rs.SpdlError


def test_importing_the_package_imports_no_large_modules():
    program = "import sys, spdl_rs; print(*sorted(name.split('.')[0] for name in sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    large = {"asyncio", "concurrent", "dataclasses", "inspect", "multiprocessing", "numpy", "torch"}
    assert not large & set(ran.stdout.split())


@pytest.mark.parametrize(
    "name", ["compat", "dataloader", "huggingface", "io", "io.utils", "pipeline", "source", "torch", "usage"]
)
def test_submodules_are_imported_lazily(name):
    program = f"import spdl_rs; print(spdl_rs.{name}.__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == f"spdl_rs.{name}\n", ran.stderr


def test_submodules_are_attributes_of_the_package():
    assert spdl_rs.pipeline.PipelineBuilder
    assert spdl_rs.source.DistributedRandomSampler
    assert spdl_rs.dataloader.CacheDataLoader
    assert spdl_rs.torch.DataLoader
    assert spdl_rs.compat.install
    assert spdl_rs.usage.set_hook
    assert spdl_rs.io.utils.tracing
    assert spdl_rs.io.load_npy
    assert {"Loader", "fields", "io", "recipes"} < set(dir(spdl_rs)) and "importlib" not in dir(spdl_rs)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spdl_rs.nothing  # noqa: B018
