"""`tune` and `freeze` of loaders and pipelines."""

import json
import time

import pytest
import spdl_rs
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
