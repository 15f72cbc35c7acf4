"""The example that exports statistics to a database."""

import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "python" / "export_statistics.py"

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="examples/python does not exist")


def call(*words):
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("statistics") / "statistics.db"
    ran = call("run", path, "--items", 640, "--interval", 0.05)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("20 batches; ")
    return path


def test_s10_statistics_of_stages_and_queues_are_recorded_over_time(database):
    reported = json.loads(call("json", database).stdout)
    by_stage = {}
    for row in reported["stages"]:
        assert row["num_failures"] == 0 and row["time"] > 0
        by_stage.setdefault(row["name"].split(":")[-1], []).append(row["num_tasks"])
    # Counts are per interval, so their sums are the totals.
    assert {name: sum(tasks) for name, tasks in by_stage.items()} == {
        "fetch[4]": 640,
        "decode[2]": 640,
        "aggregate": 640,
    }
    assert all(len(tasks) > 1 for tasks in by_stage.values())
    items = {}
    for row in reported["queues"]:
        assert 0 <= row["occupancy_rate"] <= 1 and row["elapsed"] > 0
        name = row["name"].split(":")[-1]
        items[name] = items.get(name, 0) + row["num_items"]
    assert items["sink"] == 20 and items["fetch[4]"] == 640


def test_s10_the_plot_has_a_curve_per_queue(database, tmp_path):
    ran = call("plot", database, tmp_path / "picture.svg")
    assert ran.returncode == 0, ran.stderr
    root = xml.etree.ElementTree.parse(tmp_path / "picture.svg").getroot()
    curves = [node for node in root if node.tag.endswith("polyline")]
    assert len(curves) == 4 and all(curve.get("points").count(",") > 1 for curve in curves)


def test_s10_without_a_database_the_error_contains_advice(tmp_path):
    ran = call("plot", tmp_path / "none.db", tmp_path / "picture.svg")
    assert ran.returncode == 1 and "create it with `run`" in ran.stderr
    assert not (tmp_path / "none.db").exists()
