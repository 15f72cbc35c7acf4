"""The command `spdl` of the package."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import time

import pytest
import spdl_rs


def spdl(*words, **settings):
    command = [sys.executable, "-m", "spdl_rs", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, **settings)


def test_the_command_loads_images(photos):
    ran = spdl("bench", photos, "--size", 32, "--batch", 2, "--json", text=True)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["images"] == 4


def test_help_and_version_name_the_program():
    shown = spdl("--help", text=True)
    assert shown.returncode == 0 and "spdl bench photos/" in shown.stdout
    assert spdl("--version", text=True).stdout == f"spdl {spdl_rs.__version__}\n"


@pytest.mark.parametrize("address", ["s3://no-such-bucket/a.tar", "az://container/a.tar", "gs://bucket/a.tar", "data.parquet"])
def test_all_stores_and_parquet_are_built_in(address, tmp_path):
    # The connection is refused immediately.
    settings = {
        **os.environ,
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    failed = spdl("stat", address, text=True, cwd=tmp_path, env=settings)
    assert failed.returncode == 1
    assert "feature" not in failed.stderr and failed.stderr.startswith("spdl: "), failed.stderr


def test_failures_have_the_exit_codes_of_the_program(tmp_path):
    failed = spdl("stat", tmp_path / "absent", text=True)
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1 and failed.stderr.startswith("spdl: ")
    assert spdl("--no-such-option").returncode == 2


def test_names_need_not_be_utf8(photos, tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    os.symlink(photos / "cat" / "1.png", folder + b"/\xfe.png")
    ran = spdl("stat", os.fsdecode(folder))
    assert ran.returncode == 0, ran.stderr


def test_ctrl_c_ends_the_command_by_the_signal(photos):
    words = ["bench", str(photos), "--size", "32", "--batch", "2", "--epochs", "1000000"]
    running = subprocess.Popen([sys.executable, "-m", "spdl_rs", *words], stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(10) == -signal.SIGINT


def test_the_package_installs_the_command(photos):
    command = pathlib.Path(sysconfig.get_path("scripts")) / "spdl"
    if not command.exists():
        pytest.skip("the package is not installed, but imported from a folder")
    ran = subprocess.run([command, "ls", photos], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "cat/1.png" in ran.stdout
