"""Hooks and callbacks of profiles, and the diagnostic mode."""

import os
import subprocess
import sys

import pytest
import spdl_rs
from pipelines import refuse, source, threads
from profiles import AT_ONCE, RecordingHook, described
from spdl_rs.pipeline import config, profile_pipeline


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    yield
    config.set_default_profile_hook(None)
    config.set_default_profile_callback(None)


def test_t02_hooks_wrap_each_run_and_the_callback_gets_each_result():
    reported, results = RecordingHook(), []
    builder = source(range(3)).pipe(abs).aggregate(2)
    report = profile_pipeline(described(builder), hook=reported, callback=results.append)
    runs = [call for at in AT_ONCE for call in (("abs", at), "left")]
    assert reported.calls == ["begin", *runs, ("aggregate", 1), "left", "end"]
    assert all(one is other for one, other in zip(report, results)) and len(results) == 2


def test_t02_defaults_apply_without_arguments():
    assert config.get_default_profile_hook() is None
    assert config.get_default_profile_callback() is None
    reported, other, results = RecordingHook(), RecordingHook(), []
    config.set_default_profile_hook(reported)
    config.set_default_profile_callback(results.append)
    assert config.get_default_profile_hook() is reported
    one = described(source(range(3)).pipe(abs))
    profile_pipeline(one, 2)
    assert len(reported.calls) == 12 and len(results) == 1
    profile_pipeline(one, 2, hook=other, callback=lambda result: None)
    assert len(reported.calls) == 12 and len(other.calls) == 12 and len(results) == 1
    config.set_default_profile_callback(None)
    config.set_default_profile_hook(None)
    profile_pipeline(one, 2)
    assert len(reported.calls) == 12 and len(results) == 1


def test_t02_an_exception_of_a_callback_or_hook_ends_the_profile():
    reported = RecordingHook()
    with pytest.raises(ValueError, match="no ProfileResult"):
        profile_pipeline(
            described(source(range(3)).pipe(abs)),
            hook=reported,
            callback=lambda result: refuse(result.__class__.__name__ and _Name()),
        )
    assert reported.calls[-1] == "end" and not threads()


class _Name:
    def __repr__(self):
        return "ProfileResult"


PROGRAM = """
import spdl_rs.pipeline as spdl
from spdl_rs.pipeline import config
if __name__ == "__main__":
    print(config.is_diagnostic_mode_enabled(), config.diagnostic_mode_num_sources())
    calls = []
    def work(item):
        calls.append(item)
        return item
    config.set_default_profile_callback(lambda result: print("got", result.name, len(calls)))
    builder = spdl.PipelineBuilder().add_source(range(5000)).pipe(work).add_sink()
    pipeline = builder.build(num_threads=1)
    print(repr(pipeline), len(calls))
    with pipeline.auto_stop():
        for item in pipeline:
            print("an item")
    print("continued")
"""


def run_program(tmp_path, **environment):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPDL_")}
    command = [sys.executable, str(program)]
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=120
    )


def test_t03_in_the_diagnostic_mode_a_program_profiles_and_exits(tmp_path):
    mode = {"SPDL_PIPELINE_DIAGNOSTIC_MODE": "1", "SPDL_PIPELINE_DIAGNOSTIC_MODE_NUM_ITEMS": "30"}
    ran = run_program(tmp_path, **mode)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "True 30"
    assert lines[1] == "<Pipeline to be profiled: SPDL_PIPELINE_DIAGNOSTIC_MODE is set> 0"
    assert lines[2] == "got work 150"
    assert lines[3].startswith("work is the bottleneck: ")
    assert "an item" not in lines and "continued" not in lines
    assert [line.split()[0] for line in lines[7:12]] == ["32", "16", "8", "4", "1"]


def test_t03_without_the_diagnostic_mode_a_program_runs(tmp_path):
    ran = run_program(tmp_path, SPDL_PIPELINE_DIAGNOSTIC_MODE="0")
    assert ran.stdout.startswith("False 1000\n<Pipeline 0: not started> 0\nan item\n")
    assert ran.stdout.count("an item") == 5000 and ran.stdout.endswith("continued\n")


def test_t03_every_method_that_requests_an_item_profiles(monkeypatch, capsys):
    monkeypatch.setenv("SPDL_PIPELINE_DIAGNOSTIC_MODE", " Yes")
    monkeypatch.setenv("SPDL_PIPELINE_DIAGNOSTIC_MODE_NUM_ITEMS", "5")
    builder = source(range(9)).pipe(abs).add_sink()
    for ask in [iter, lambda it: it.get_item(), lambda it: it.get_item_nowait()]:
        pipeline = builder.build(num_threads=1)
        pipeline.start()
        with pytest.raises(SystemExit) as ended:
            ask(pipeline)
        assert ended.value.code == 0
        pipeline.stop()
        assert "abs (threads)" in capsys.readouterr().out
    assert "PipelineConfig" in str(pipeline)


def test_t03_loaders_are_profiled_except_those_with_a_sampler_in_the_consumer(monkeypatch, capsys):
    monkeypatch.setenv("SPDL_PIPELINE_DIAGNOSTIC_MODE", "1")
    loader = spdl_rs.torch.DataLoader(
        list(range(5)), batch_size=2, num_workers=2, collate_fn=list, timeout=30
    )
    assert list(loader) == [[0, 1], [2, 3], [4]]
    with pytest.raises(SystemExit):
        list(spdl_rs.dataloader.DataLoader(range(9), preprocessor=abs, num_threads=1))
    assert "abs (threads)" in capsys.readouterr().out


def test_t03_on_other_ranks_the_program_exits_without_a_profile(monkeypatch, capsys):
    monkeypatch.setenv("SPDL_PIPELINE_DIAGNOSTIC_MODE", "1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(SystemExit):
        iter(source(range(9)).pipe(abs).add_sink().build(num_threads=1))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "number"), [("", 1000), ("12", 12), ("-1", 1000), ("0", 1000), ("x", 1000)]
)
def test_t03_an_invalid_number_of_items_warns(value, number, monkeypatch, caplog):
    monkeypatch.setenv("SPDL_PIPELINE_DIAGNOSTIC_MODE_NUM_ITEMS", value)
    assert config.diagnostic_mode_num_sources() == number
    assert ("using 1000" in caplog.text) == (value in ("-1", "0", "x"))
