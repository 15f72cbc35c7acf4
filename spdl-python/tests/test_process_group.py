"""Resource usage of a process group."""

import functools
import json
import logging
import multiprocessing
import os
import sys
import time

import pytest
from pipelines import assert_no_threads, build, run, source, wait_until
from spdl_rs.pipeline import ProcessGroupResourceUsage, ProcessGroupStatsMonitor
from spdl_rs.pipeline._hooks.process_group import ProcessGroupReader

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="requires /proc")


async def append(path, usage):
    with open(path, "a") as file:
        print(json.dumps(vars(usage)), file=file, flush=True)


async def fail_once(path, usage):
    await append(path, usage)
    if os.path.getsize(path) < 500:
        raise LookupError("not yet")


def reported(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_s09_a_monitor_process_reports_each_interval(tmp_path):
    path = tmp_path / "usage"
    monitor = functools.partial(
        ProcessGroupStatsMonitor, functools.partial(append, str(path)), interval=0.05
    )
    pipeline = build(source([1]), background_tasks=[monitor])
    pipeline.start()
    wait_until(lambda: len(reported(path)) >= 3)
    pipeline.stop()
    first, second, *_ = reported(path)
    assert first["pid"] != os.getpid() and first["pgid"] == os.getpgrp()
    assert first["cpu_percent"] is None and second["cpu_percent"] >= 0
    # This process and the monitor process.
    assert first["num_procs"] >= 2
    assert first["rss_bytes"] > 1_000_000
    assert not any(
        child.name == "spdl-process-group" for child in multiprocessing.active_children()
    )
    count = len(reported(path))
    time.sleep(0.2)
    assert len(reported(path)) == count
    assert_no_threads()


def test_s09_a_failing_callback_is_called_again(tmp_path):
    path = tmp_path / "usage"
    callback = functools.partial(fail_once, str(path))
    pipeline = build(
        source([1]),
        background_tasks=[functools.partial(ProcessGroupStatsMonitor, callback, interval=0.05)],
    )
    pipeline.start()
    wait_until(lambda: len(reported(path)) >= 2)
    pipeline.stop()


def test_s09_the_monitor_process_may_be_spawned(tmp_path):
    path = tmp_path / "usage"
    monitor = functools.partial(
        ProcessGroupStatsMonitor,
        functools.partial(append, str(path)),
        interval=0.05,
        mp_context=multiprocessing.get_context("spawn"),
    )
    pipeline = build(source([1]), background_tasks=[monitor])
    pipeline.start()
    wait_until(lambda: reported(path))
    pipeline.stop()


def in_daemon(path):
    monitor = functools.partial(ProcessGroupStatsMonitor, functools.partial(append, str(path)))
    records = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append
    logging.getLogger("spdl_rs.pipeline").addHandler(handler)
    assert run(source([1]), background_tasks=[monitor]) == [1]
    assert not records


def test_s09_a_daemon_process_reports_nothing(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=in_daemon, args=(tmp_path / "usage",), daemon=True
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0 and not (tmp_path / "usage").exists()


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_s09_the_interval_must_be_positive(interval):
    with pytest.raises(ValueError, match="positive"):
        ProcessGroupStatsMonitor(append, interval)


def process(proc, pid, group, name="a b) c", ticks=100, pages=10, files=None):
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", 1, group, *[0] * 8, ticks, ticks, *[0] * 8, pages, 0]
    (folder / "stat").write_text(f"{pid} ({name}) " + " ".join(map(str, fields)))
    for file, text in (files or {}).items():
        (folder / file).write_text(text)


def test_s09_usage_is_summed_over_the_group(tmp_path):
    memory = "00-ff ---p 0 [rollup]\nPss: 5 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 2 kB\n"
    io = "rchar: 9\nread_bytes: 100\nwrite_bytes: 200\n"
    group = os.getpgrp()
    process(tmp_path, 10, group, files={"smaps_rollup": memory, "io": io})
    process(tmp_path, 11, group, files={"smaps_rollup": memory, "io": io})
    process(tmp_path, 12, group + 1, files={"smaps_rollup": memory, "io": io})
    (tmp_path / "13").mkdir()
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "dev").write_text(
        "Inter-|   Receive\n face |bytes packets\n"
        "    lo: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n"
        "  eth0: 30 0 0 0 0 0 0 0 40 0 0 0 0 0 0 0\n"
        "  eth1:3 0 0 0 0 0 0 0 4 0 0 0 0 0 0 0\n"
    )
    reader = ProcessGroupReader(str(tmp_path))
    usage = reader.read()
    page = os.sysconf("SC_PAGE_SIZE")
    assert usage == ProcessGroupResourceUsage(
        os.getpid(), group, None, 20 * page, 10240, 6144, 200, 400, 2, 33, 44
    )
    began = time.monotonic()
    time.sleep(0.05)
    (tmp_path / "11" / "stat").unlink()
    fields = (tmp_path / "10" / "stat").read_text().replace(" 100 100 ", " 100 200 ")
    (tmp_path / "10" / "stat").write_text(fields)
    used = 100 / os.sysconf("SC_CLK_TCK")
    percent = reader.read().cpu_percent
    # The process that ended does not reduce the total.
    assert 0 < percent <= 100 * used / 0.05
    assert percent >= 100 * used / (time.monotonic() - began + 1)


def test_s09_unavailable_numbers_are_none(tmp_path):
    process(tmp_path, 10, os.getpgrp())
    usage = ProcessGroupReader(str(tmp_path)).read()
    assert (usage.num_procs, usage.pss_bytes, usage.disk_read_bytes) == (1, None, None)
    assert (usage.private_bytes, usage.net_rx_bytes, usage.net_tx_bytes) == (None, None, None)
    nothing = ProcessGroupReader(str(tmp_path / "missing")).read()
    assert nothing == ProcessGroupResourceUsage(os.getpid(), os.getpgrp())
