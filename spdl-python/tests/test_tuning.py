"""`tune` and `freeze` of loaders and pipelines."""

import contextlib
import inspect
import json
import re
import time

import pytest
import spdl_rs
from servers import serving
from spdl_rs import fields
from spdl_rs.io.utils import tracing
from spdl_rs.pipeline import PipelineBuilder


def wait(number):
    time.sleep(0.01)
    return number


def waiting(items=2500):
    return PipelineBuilder().add_source(range(items)).pipe(wait, concurrency=2, output_order="input").add_sink(4)


def kept(statistics):
    return [decision for decision in statistics["decisions"] if decision["kept"]]


def test_threads_of_functions_that_wait_are_raised_and_the_order_stays(tmp_path):
    pipeline = waiting().build(num_threads=2, tune=True)
    with tracing(str(tmp_path / "trace.json")):
        assert list(pipeline) == list(range(2500))
    first = kept(pipeline.stats())[0]
    assert first["setting"] == "threads" and first["stage"] is None
    assert first["to"] > first["from"] and first["rate_after"] > first["rate_before"]
    assert first["reason"] and first["time_s"] > 0
    events = json.loads((tmp_path / "trace.json").read_text())
    assert "setting kept" in {event["name"] for event in events}
    assert pipeline.stats()["threads"] > 2

    path = tmp_path / "settings.json"
    pipeline.freeze(path)
    settings = json.loads(path.read_text())
    assert settings["threads"] == pipeline.stats()["threads"] and list(settings["stages"]) == ["1:wait"]
    again = waiting(40).build(num_threads=1, tune=path)
    assert list(again) == list(range(40))
    assert again.stats()["threads"] == settings["threads"] and again.stats()["decisions"] == []


def test_a_loader_starts_threads_for_functions_that_wait():
    before = spdl_rs._spdl_rs.Epoch.default_threads()

    def threads(limit, **arguments):
        loader = spdl_rs.Loader(samples(20_000), batch_size=1, map=wait, number=fields.Number(), **arguments)
        began = time.monotonic()
        with contextlib.closing(iter(loader)) as batches:
            for number, _ in enumerate(batches):
                if number % 50 == 0 and loader.stats()["threads"] > before or time.monotonic() - began > limit:
                    break
        return loader.stats()["threads"]

    # On a busy machine, the first trials may measure no gain.
    assert threads(90) > before
    assert threads(3, tune=False) == threads(3, threads=before) == before


def test_a_concurrency_of_1_is_kept():
    builder = PipelineBuilder().add_source(range(300)).pipe(wait).add_sink(4)
    pipeline = builder.build(num_threads=2, tune=True)
    assert list(pipeline) == list(range(300))
    assert pipeline.stats()["stages"][1]["concurrency"] == 1


def test_a_loader_is_tuned_and_keeps_its_settings_between_epochs(photos, tmp_path):
    def loader(**options):
        return spdl_rs.ImageLoader(photos, batch_size=2, size=32, train=True, **options)

    plain = [images.tobytes() for images, _ in loader()]
    tuned = loader(tune=True, threads=2)
    with pytest.raises(ValueError, match="nothing has run"):
        tuned.freeze(tmp_path / "settings.json")
    assert [images.tobytes() for images, _ in tuned] == plain
    tuned.freeze(tmp_path / "settings.json")
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["threads"] == 2 and {"fetch", "decode"} <= set(settings["stages"])

    settings["threads"] = 3
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    fixed = loader(tune=tmp_path / "settings.json")
    assert [images.tobytes() for images, _ in fixed] == plain
    assert fixed.stats()["threads"] == 3
    next(iter(fixed))
    assert fixed.stats()["threads"] == 3


def test_freeze_writes_the_settings_of_whole_epochs(photos, tmp_path):
    loader = spdl_rs.ImageLoader(photos, batch_size=1, size=32)
    loader.peek()
    list(loader.steps(0, 0, 1))
    with pytest.raises(ValueError, match="nothing has run"):
        loader.freeze(tmp_path / "settings.json")


def test_invalid_settings_are_errors(photos, tmp_path):
    path = tmp_path / "settings.json"
    with pytest.raises(FileNotFoundError, match="settings.json"):
        spdl_rs.ImageLoader(photos, batch_size=1, tune=path)
    path.write_text('{"threads": 2, "stages": {"other": {"queue": 3}}}')
    with pytest.raises(ValueError, match='no stage "other"'):
        list(spdl_rs.ImageLoader(photos, batch_size=1, tune=str(path)))
    path.write_text("[]")
    with pytest.raises(ValueError, match="no settings of a pipeline"):
        spdl_rs.ImageLoader(photos, batch_size=1, tune=path)
    with pytest.raises(TypeError, match="tune must be True, False or a path, not 1"):
        spdl_rs.ImageLoader(photos, batch_size=1, tune=1)
    with pytest.raises(TypeError, match="tune"):
        waiting().build(num_threads=1, tune=2.5)
    with pytest.raises(RuntimeError, match="not started"):
        waiting().build(num_threads=1).freeze(path)


def pause(sample):
    time.sleep(0.002)
    return sample


def samples(count=60):
    return [{"number": number} for number in range(count)]


def arguments(*functions):
    return {name for function in functions for name in inspect.signature(function).parameters}


OF_PIPELINES = arguments(PipelineBuilder.build, PipelineBuilder.pipe) | {"add_sink"}


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda photos: spdl_rs.ImageLoader(photos, batch_size=1, size=32), arguments(spdl_rs.ImageLoader)),
        (lambda photos: spdl_rs.ImageLoader(photos, batch_size=1, tune=True), arguments(spdl_rs.ImageLoader)),
        (
            lambda _: spdl_rs.Loader(samples(), batch_size=1, threads=1, map=pause, number=fields.Number()),
            arguments(spdl_rs.Loader),
        ),
        (
            lambda _: spdl_rs.Loader(
                samples(), batch_size=1, processes=2, executor="processes", map=pause, number=fields.Number()
            ),
            arguments(spdl_rs.Loader),
        ),
        (lambda _: waiting(60).build(num_threads=1), OF_PIPELINES),
    ],
    ids=["images", "tuned", "threads", "processes", "pipeline"],
)
def test_advice_names_only_arguments_that_exist(make, known, photos):
    loader = make(photos)
    list(loader)
    bottleneck = loader.stats()["bottleneck"]
    effects = bottleneck["helps"] + bottleneck["does_not_help"]
    work = {"cost", "cpus", "step-time"}
    settings = [effect["setting"] for effect in effects if effect["change"]["setting"] not in work]
    assert settings, bottleneck
    for setting in settings:
        words = re.findall(r"(\w+)(?==|\()|\b(tune|cache_\w+)\b", setting)
        names = {name for pair in words for name in pair if name} - {"ProcessPoolExecutor"}
        assert names and names <= known, setting
    described = {effect["description"]: effect["setting"] for effect in effects}
    for text, setting in described.items():
        if setting and text in loader.diagnose():
            assert f"{text} ({setting})" in loader.diagnose()


def test_the_window_of_a_store_is_kept_between_epochs(many, tmp_path):
    def window(loader):
        (fetch,) = (stage for stage in loader.stats()["stages"] if stage["name"] == "fetch")
        return fetch["concurrency"]

    with serving(many) as server:
        server.latency = 0.15
        paths = sorted(path.relative_to(many).as_posix() for path in many.glob("*/*.png"))
        listed = tmp_path / "list.txt"
        listed.write_text("".join(f"{server.address}/{path}\n" for path in paths * 5))
        loader = spdl_rs.ImageLoader(listed, batch_size=1, size=32)
        first = [images.tobytes() for images, _ in loader]
        assert window(loader) > 16
        with contextlib.closing(iter(loader)) as batches:
            second = [next(batches)[0].tobytes()]
            # A new loader needs 32 responses to find a larger window.
            assert window(loader) > 16
            second += [images.tobytes() for images, _ in batches]
    assert first == second
