"""Clips of long videos and windows of long audio files: only the parts that they need are read."""

import pathlib
import re
import struct

import numpy
import pytest
from dataset_files import write_members
from servers import serving
from spdl_rs import LimitExceededError, Loader, fields
from spdl_rs.io import Stretch
from spdl_rs.io.utils import get_ffmpeg_versions

VIDEO = pathlib.Path(__file__).parents[2] / "spdl-media" / "tests" / "video" / "h264_faststart.mp4"
# The bytes before the packets of a long video.
PADDING = 12 << 20

needs_ffmpeg = pytest.mark.skipif(
    not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg"
)


def long_video():
    """A video whose packets are far from its tables."""
    data = bytearray(VIDEO.read_bytes())
    (size,) = struct.unpack(">I", data[32:36])
    assert data[36:40] == b"moov"
    table = data.index(b"stco") + 8
    (count,) = struct.unpack(">I", data[table : table + 4])
    for at in range(table + 4, table + 4 + 4 * count, 4):
        (offset,) = struct.unpack(">I", data[at : at + 4])
        data[at : at + 4] = struct.pack(">I", offset + PADDING)
    free = struct.pack(">I", PADDING) + b"free" + bytes(PADDING - 8)
    return bytes(data[: 32 + size]) + free + bytes(data[32 + size :]) + free


def long_wav(number):
    """A minute of noise: 16 kHz, 16 bits, mono."""
    samples = numpy.random.default_rng(number).integers(-9000, 9000, 60 * 16_000, "<i2").tobytes()
    header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", len(samples))
    return header + samples


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for number in range(4):
        (folder / f"{number}.mp4").write_bytes(long_video())
    return folder


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(4):
        (folder / f"{number}.wav").write_bytes(long_wav(number))
    return folder


def names_of(folder):
    return sorted(path.name for path in folder.iterdir())


def clips(source, **settings):
    video = fields.Video(16, frames=3, every=2, random=True, crop=Stretch())
    settings = {"batch_size": 2, "shuffle": True, "seed": 5, **settings}
    return Loader(source, video=video, times=fields.VideoTimes(), **settings)


def windows(source, **settings):
    settings = {"batch_size": 2, "shuffle": True, "seed": 5, **settings}
    return Loader(source, audio=fields.Audio(frames=8000, random=True), **settings)


def all_of(loader):
    return [{name: numpy.array(value) for name, value in batch.items()} for batch in loader]


def assert_same(left, right):
    assert len(left) == len(right) > 0
    for first, second in zip(left, right):
        assert first.keys() == second.keys()
        for name in first:
            numpy.testing.assert_array_equal(first[name], second[name])


def bytes_of(requests, size):
    """The number of bytes of recorded requests for files of this size."""
    total = 0
    for method, _, wanted in requests:
        if method == "GET":
            start, end = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", wanted).groups()) if wanted else (0, size - 1)
            total += min(end, size - 1) - start + 1
    return total


def whole(loader, folder):
    """The batches of another loader that reads whole files, because it has a cache."""
    return all_of(loader([folder / name for name in names_of(folder)], cache_memory=1 << 30))


@pytest.mark.parametrize(
    ("kind", "share"), [pytest.param("videos", 0.05, marks=needs_ffmpeg), ("recordings", 0.25)]
)
def test_a_web_server_sends_a_small_share_of_long_files(kind, share, request):
    folder = request.getfixturevalue(kind)
    loader = {"videos": clips, "recordings": windows}[kind]
    expected = whole(loader, folder)
    local = [folder / name for name in names_of(folder)]
    assert_same(all_of(loader(local)), expected)
    size = (folder / names_of(folder)[0]).stat().st_size
    with serving(folder) as server:
        urls = [f"{server.address}/{name}" for name in names_of(folder)]
        remote = loader(urls)
        assert_same(all_of(remote), expected)
        first = list(server.requested)
        assert bytes_of(first, size) < share * size * len(urls)
        # The tables of the files are known in the second epoch.
        server.requested.clear()
        second = all_of(remote)
        assert len(server.requested) == len(urls)
        assert bytes_of(server.requested, size) < 0.01 * size * len(urls)
    local = loader(local)
    all_of(local)
    assert_same(second, all_of(local))


@pytest.mark.parametrize("kind", [pytest.param("videos", marks=needs_ffmpeg), "recordings"])
def test_parts_are_the_same_for_any_number_of_threads_and_after_resume(kind, request):
    folder = request.getfixturevalue(kind)
    loader = {"videos": clips, "recordings": windows}[kind]
    expected = whole(loader, folder)
    with serving(folder) as server:
        urls = [f"{server.address}/{name}" for name in names_of(folder)]
        for threads in (1, 4):
            assert_same(all_of(loader(urls, threads=threads)), expected)
        interrupted = loader(urls)
        next(iter(interrupted))
        resumed = loader(urls)
        resumed.load_state_dict(interrupted.state_dict())
        assert_same(all_of(resumed), expected[1:])


@needs_ffmpeg
def test_members_of_tar_shards_are_read_in_parts(tmp_path, videos):
    members = []
    for number in range(2):
        members += [(f"{number}.mp4", long_video()), (f"{number}.txt", b"colours")]
    write_members(tmp_path / "a.tar", members)
    text = fields.Text(stored_as="txt")
    expected = all_of(clips(tmp_path, text=text, shuffle=False, cache_memory=1 << 30))
    with serving(tmp_path) as server:
        loader = clips(f"{server.address}/a.tar", text=text, shuffle=False)
        opened = len(server.requested)
        assert_same(all_of(loader), expected)
        size = (tmp_path / "a.tar").stat().st_size
        assert bytes_of(server.requested[opened:], size) < 0.05 * size


@needs_ffmpeg
def test_the_limit_of_a_file_counts_the_parts(videos):
    (batch, *_) = clips(videos, max_file_bytes=1 << 20)
    assert batch["video"].shape == (2, 3, 16, 16, 3)
    with pytest.raises(LimitExceededError, match="max_file_bytes"):
        all_of(clips(videos, max_file_bytes=1 << 20, cache_memory=1 << 30))


def test_a_server_without_ranges_sends_whole_files(recordings):
    expected = whole(windows, recordings)
    with serving(recordings) as server:
        server.has_ranges = False
        urls = [f"{server.address}/{name}" for name in names_of(recordings)]
        assert_same(all_of(windows(urls)), expected)


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    (tmp_path / "a.wav").write_bytes(long_wav(1))
    with serving(tmp_path) as server:
        loader = windows([f"{server.address}/a.wav"], batch_size=1)
        first = all_of(loader)
        (tmp_path / "a.wav").write_bytes(long_wav(2))
        second = all_of(loader)
    again = windows([tmp_path / "a.wav"], batch_size=1)
    all_of(again)
    assert_same(second, all_of(again))
    assert (first[0]["audio"] != second[0]["audio"]).any()
