"""The monitor socket of loaders and pipelines."""

import json
import os
import socket
import stat
import subprocess
import sys
import time

import pytest
from pipelines import source
from spdl_rs import ImageLoader, InvalidArgumentError, Loader, fields


class Reader:
    """A connection to a monitor socket; an iterator over its lines."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(os.fspath(path))
        self._lines = self._socket.makefile()

    def __iter__(self):
        return map(json.loads, self._lines)

    def __next__(self):
        return json.loads(next(self._lines))


def slow(item):
    time.sleep(0.01)
    return item


def test_a_pipeline_serves_its_statistics_until_it_ends(tmp_path):
    path = tmp_path / "pipeline.sock"
    pipeline = source(range(300)).pipe(slow).add_sink().build(num_threads=1, monitor=path)
    assert not path.exists(), "nothing is opened before the start"
    items = iter(pipeline)
    next(items)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    reader = Reader(path)
    line = next(reader)
    assert line["pid"] == os.getpid() and not line["ended"]
    stats = pipeline.stats()
    # The same names, apart from the units of quantiles, and values that only Python has.
    names = {"threads", "stages", "queues", "consumer", "data_readiness", "left_out", "diagnosis", "bottleneck"}
    assert names <= line.keys() and names <= stats.keys()
    assert [stage["name"] for stage in line["stages"]] == [stage["name"] for stage in stats["stages"]]
    assert line["stages"][1].keys() >= {"name", "kind", "concurrency", "items", "failures", "retries", "busy_s"}
    for _ in items:
        pass
    lines = list(reader)
    assert lines[-1]["ended"] and not path.exists()
    whole = [line, *lines]
    assert sum(one["consumer"]["items"] for one in whole) == 300
    # The threads of Python functions, and their requests for the GIL.
    assert sum(one["workers"]["on_cpu_s"] for one in whole if one["workers"]) > 0
    assert all(one["gil"] is not None for one in whole) or not getattr(sys, "_is_gil_enabled", bool)()


@pytest.mark.parametrize("loader", ["ImageLoader", "Loader"])
def test_each_epoch_of_a_loader_is_served_at_the_same_path(loader, tmp_path, photos):
    path = tmp_path / "loader.sock"
    if loader == "ImageLoader":
        epochs = ImageLoader(photos, batch_size=1, size=32, monitor=str(path))
    else:
        epochs = Loader(photos, batch_size=1, image=fields.Image(32), monitor=path)
    pipelines = []
    for _ in range(2):
        batches = iter(epochs)
        next(batches)
        reader = Reader(path)
        pipelines.append(next(reader)["pipeline"])
        for _ in batches:
            pass
        assert list(reader)[-1]["ended"]
        assert not path.exists()
    assert len(set(pipelines)) == 2


def test_the_latest_iterator_has_the_path(tmp_path, photos):
    path = tmp_path / "loader.sock"
    loader = ImageLoader(photos, batch_size=1, size=32, monitor=path)
    first = iter(loader)
    old = next(Reader(path))
    second = iter(loader)
    new = next(Reader(path))
    assert new["pipeline"] > old["pipeline"]
    for _ in first:
        pass
    assert next(Reader(path))["pipeline"] == new["pipeline"]
    for _ in second:
        pass
    assert os.listdir(tmp_path) == []


def test_another_file_and_another_process_keep_their_path(tmp_path, photos):
    path = tmp_path / "taken"
    path.write_text("data")
    with pytest.raises(InvalidArgumentError, match="another file is there; use another path"):
        next(iter(ImageLoader(photos, batch_size=1, size=32, monitor=path)))
    assert path.read_text() == "data"
    builder = source(range(3)).pipe(abs).add_sink()
    with pytest.raises(InvalidArgumentError, match="another file is there"):
        builder.build(num_threads=1, monitor=path).start()
    path.unlink()
    program = (
        "import sys, time; from spdl_rs import Loader, fields\n"
        "loader = Loader([{'n': 1}] * 9, batch_size=1, n=fields.Number(), monitor=sys.argv[1])\n"
        "batches = iter(loader); next(batches); print('ready', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(InvalidArgumentError, match="another process serves"):
            iter(ImageLoader(photos, batch_size=1, size=32, monitor=path))
        assert next(Reader(path))["pid"] == other.pid
    finally:
        other.kill()
        other.wait()
    # The process was killed, so its socket remained.
    assert path.exists()
    batches = iter(ImageLoader(photos, batch_size=1, size=32, monitor=path))
    assert next(Reader(path))["pid"] == os.getpid()
    batches.close()
    assert not path.exists()


def test_the_path_must_be_a_path(photos):
    with pytest.raises(TypeError, match="monitor|path|PathLike"):
        ImageLoader(photos, batch_size=1, size=32, monitor=3)
    with pytest.raises(TypeError, match="monitor|path|PathLike"):
        source(range(3)).pipe(abs).add_sink().build(num_threads=1, monitor=3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_process_leaves_the_socket_of_its_parent(tmp_path, photos):
    path = tmp_path / "parent.sock"
    batches = iter(ImageLoader(photos, batch_size=1, size=32, monitor=path))
    next(batches)
    reader = Reader(path)
    next(reader)
    program = os.fork()
    if program == 0:
        del batches
        os._exit(0)
    os.waitpid(program, 0)
    assert path.exists() and next(Reader(path))["pid"] == os.getpid()
    for _ in batches:
        pass
    assert list(reader)[-1]["ended"] and not path.exists()
