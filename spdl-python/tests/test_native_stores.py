"""`Fetch` of addresses, as a function and in pipelines."""

import logging
import os
import pathlib
import subprocess
import sys
import threading
import traceback

import numpy
import pytest
import spdl_rs
from native import SIZE, assert_same, failure_of, files, stages
from pipelines import build, run, source
from servers import serving
from spdl_rs.io import BatchImages, DecodeImage, Fetch, _operators


@pytest.fixture(scope="module", autouse=True)
def drop_connections():
    """Drops the connections and the network thread that calls of `Fetch` keep for reuse."""
    yield
    _operators._reader.cache_clear()


@pytest.fixture(scope="module")
def server(many):
    with serving(many) as server:
        yield server


def addresses(server, folder):
    return [f"{server.address}/{pathlib.Path(path).relative_to(folder)}" for path in files(folder)]


def test_fetch_reads_from_a_web_server(server, many):
    path = files(many)[0]
    (address, *_) = addresses(server, many)
    data = Fetch()(address)
    assert data.dtype == numpy.uint8 and data.tobytes() == pathlib.Path(path).read_bytes()
    assert Fetch()((address, 3))[1] == 3


def test_a_pipeline_reads_addresses_and_paths(server, many):
    paths = files(many)
    mixed = [pair[at % 2] for at, pair in enumerate(zip(paths, addresses(server, many)))]
    builder = source(zip(mixed, range(40))).pipe(Fetch(), output_order="input")
    pipeline = build(builder.pipe(DecodeImage(SIZE)).aggregate(BatchImages(40)))
    ((images, labels),) = list(pipeline)
    assert labels.tolist() == list(range(40))
    decode = DecodeImage(SIZE)
    assert_same(list(images), [decode(Fetch()(path)) for path in paths])
    found = stages(pipeline)
    assert [found[name]["kind"] for name in ("Fetch", "DecodeImage")] == ["async", "fill"]


def test_file_urls_are_read(photos):
    path = pathlib.Path(files(photos)[0])
    for address in (path.as_uri(), f"file://localhost{path}"):
        assert Fetch()(address).tobytes() == path.read_bytes()
        assert run(source([address]).pipe(Fetch()))[0].tobytes() == path.read_bytes()


def test_s3_uses_credentials_of_the_environment(photos):
    script = """
import sys
from spdl_rs.io import Fetch
from spdl_rs.pipeline import PipelineBuilder
address = sys.argv[1]
(data,) = PipelineBuilder().add_source([address]).pipe(Fetch()).add_sink().build(num_threads=1)
assert (data == Fetch()(address)).all()
print(len(data))
"""
    with serving(photos.parent) as server:
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": server.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "canary",
            "AWS_REGION": "us-east-1",
        }
        command = [sys.executable, "-c", script, "s3://photos/cat/1.png"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    size = (photos / "cat" / "1.png").stat().st_size
    assert (done.stdout, done.stderr) == (f"{size}\n", "")


def test_reads_are_concurrent(tmp_path):
    (tmp_path / "wait").write_bytes(b"x")
    with serving(tmp_path) as server:
        server.stuck.add("wait")
        pipeline = build(source([f"{server.address}/wait"] * 12).pipe(Fetch()))
        pipeline.start()
        deadline = threading.Event()
        for _ in range(2000):
            if len(server.requested) >= 12:
                break
            deadline.wait(0.01)
        assert len(server.requested) >= 12
        server.stuck.clear()
        server.released.set()
        pipeline.stop()


def test_fetch_errors_name_the_address(server, many):
    (address, *_) = addresses(server, many)
    missing = f"{server.address}/none.png"
    size = len(Fetch()(address))
    for fetch, wanted, kind in [
        (Fetch(), missing, spdl_rs.NotFoundError),
        (Fetch(max_bytes=size - 1), address, spdl_rs.LimitExceededError),
    ]:
        with pytest.raises(kind) as raised:
            fetch(wanted)
        assert raised.value.key == wanted
        error = failure_of(source([wanted]).pipe(fetch), max_failures=0)
        assert type(error) is kind and error.key == wanted and error.stage.endswith(":Fetch")


@pytest.mark.parametrize(
    ("address", "error_text"),
    [
        ("unknown://x/y", "unknown address scheme"),
        ("https://", "no host or bucket name"),
        ("s3://me:pass@bucket/x", "accept no user name or password"),
    ],
)
def test_invalid_addresses_are_rejected(address, error_text):
    with pytest.raises(ValueError, match=error_text):
        Fetch()(address)
    error = failure_of(source([address]).pipe(Fetch()), max_failures=0)
    assert isinstance(error, ValueError) and error_text in str(error)


def test_messages_contain_no_secrets(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    (tmp_path / "bad.png").write_bytes(b"no image")
    reported = []
    with serving(tmp_path) as server:
        place = server.address.removeprefix("http://")
        for name, kind in [("none.png", spdl_rs.NotFoundError), ("bad.png", spdl_rs.DataError)]:
            address = f"http://me:canary@{place}/{name}?signature=canary"
            for item in (address, (address, "no label: " + address), (address, 1)):
                builder = source([item]).pipe(Fetch()).pipe(DecodeImage(SIZE))
                reported += [repr(builder), repr(builder.add_sink().get_config())]
                builder = source([item]).pipe(Fetch()).pipe(DecodeImage(SIZE))
                error = failure_of(builder, max_failures=0)
                if item is address:
                    assert isinstance(error, kind)
                    assert f"http://{place}/{name}" in error.key
                reported += [
                    "".join(traceback.format_exception(error)),
                    *getattr(error, "__notes__", []),
                ]
            pipeline = build(source([address]).pipe(Fetch()).pipe(DecodeImage(SIZE)))
            reported += [repr(list(pipeline)), str(pipeline), repr(pipeline.stats())]
        with pytest.raises(spdl_rs.NotFoundError) as raised:
            Fetch()(f"http://me:canary@{place}/none.png?signature=canary")
        reported.append("".join(traceback.format_exception(raised.value)).partition("Fetch()(")[0])
        for op in (Fetch(), DecodeImage(SIZE)):
            with pytest.raises(TypeError, match="64-bit integer") as wrong:
                op((b"", "http://me:canary@host/x?signature=canary"))
            reported.append(str(wrong.value))
        reported.append(str(raised.value) + repr(raised.value) + raised.value.key)
    text = "\n".join([*reported, caplog.text, *capfd.readouterr()])
    assert "none.png" in text
    assert "canary" not in text


def test_a_forked_child_opens_new_connections(server, many):
    script = f"""
import os, warnings
warnings.simplefilter("ignore")
from spdl_rs.io import Fetch
fetch = Fetch()
first = fetch({addresses(server, many)[0]!r})
child = os.fork()
if child == 0:
    os._exit(0 if (fetch({addresses(server, many)[0]!r}) == first).all() else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
