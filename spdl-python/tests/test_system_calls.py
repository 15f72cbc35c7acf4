"""Decoding opens no file and no socket, and starts no program, whatever the file contains.

A child process reads all files, and then installs a filter by which the kernel kills the process at the
first forbidden system call. Only then it decodes the files from memory.
"""

import json
import os
import pathlib
import platform
import random
import signal
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
CORPORA = pathlib.Path(os.environ.get("SPDL_CORPORA", REPOSITORY / "../shared/corpora")).resolve()
LEAST_FILES = 900
LARGEST_BYTES = 1 << 20
# FFmpeg decodes whole files. Larger files take too long.
LARGEST_BYTES_FOR_FFMPEG = 20_000
# seccomp; open, creat, openat, openat2, socket, connect, execve, execveat, ptrace, io_uring_setup
NUMBERS = {
    "x86_64": (0xC000003E, 317, [2, 85, 257, 437, 41, 42, 59, 322, 101, 425]),
    "aarch64": (0xC00000B7, 277, [56, 437, 198, 203, 221, 281, 117, 425]),
}

CHILD = r'''
import collections, ctypes, json, os, socket, struct, sys
import spdl_rs.io
from spdl_rs.io.utils import get_ffmpeg_versions

paths, first, architecture, seccomp, numbers, probe, largest = json.load(sys.stdin)
files = [open(path, "rb").read() for path in paths]
KINDS = {
    "DecodeImage": spdl_rs.io.DecodeImage(16),
    "partial": spdl_rs.io.DecodeImage(16, on_truncated="partial", exact=True),
    "tar": lambda data: list(spdl_rs.io.iter_tarfile(data)),
    "npy": spdl_rs.io.load_npy,
    "zip": lambda data: list(spdl_rs.io.iter_zipfile(data)),
    "npz": lambda data: list(spdl_rs.io.load_npz(data).items()),
    "wav": spdl_rs.io.load_wav,
}


def demuxed(data):
    with spdl_rs.io.Demuxer(data) as demuxer:
        for _ in demuxer.streaming_demux(0, num_packets=100):
            pass


def forced(format, options=None):
    config = spdl_rs.io.demux_config(format, options)
    return lambda data: spdl_rs.io.demux_video(data, demux_config=config)


# FFmpeg, and the formats that refer to other files or addresses.
BY_FFMPEG = {
    "load_audio": spdl_rs.io.load_audio,
    "load_video": spdl_rs.io.load_video,
    "load_image": spdl_rs.io.load_image,
    "Demuxer": demuxed,
}
REFERRING = {
    "concat": forced("concat", {"safe": "0"}),
    **{name: forced(name) for name in ["dash", "hls", "image2", "imf", "rtsp", "sdp", "vobsub"]},
}


def decode(data, begin=lambda name: None):
    kinds = dict(KINDS)
    if get_ffmpeg_versions() and len(data) <= largest:
        kinds.update(BY_FFMPEG)
        if len(data) < 1000:
            kinds.update(REFERRING)
    done = []
    for name, kind in kinds.items():
        begin(name)
        try:
            kind(data)
            done.append(name)
        except Exception:
            pass
    return done


# Imports and other files that the first use opens.
for data in files[:first]:
    decode(data)


def forbid(architecture, seccomp, numbers):
    """Makes the kernel kill this process at any of these system calls, of any thread."""
    kill, allow = 0x80000000, 0x7FFF0000
    load = lambda offset: struct.pack("HBBI", 0x20, 0, 0, offset)
    equal = lambda value, yes, no: struct.pack("HBBI", 0x15, yes, no, value)
    end = lambda value: struct.pack("HBBI", 0x06, 0, 0, value)
    code = load(4) + equal(architecture, 1, 0) + end(kill) + load(0)
    for number in numbers:
        code += equal(number, 0, 1) + end(kill)
    code += end(allow)
    program = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(program)))
    library = ctypes.CDLL(None, use_errno=True)
    prctl, syscall = library.prctl, library.syscall
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    syscall.argtypes = [ctypes.c_long] + [ctypes.c_ulong] * 3
    no_new_privileges, filter_mode, all_threads = 38, 1, 1
    failed = prctl(no_new_privileges, 1, 0, 0, 0)
    if failed or syscall(seccomp, filter_mode, all_threads, ctypes.addressof(header)):
        print("UNAVAILABLE", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(0)


forbid(architecture, seccomp, numbers)
print("FORBIDDEN", flush=True)
if probe == "open":
    open(paths[0], "rb")
elif probe == "socket":
    socket.socket()
counts = collections.Counter()
for number, data in enumerate(files):
    # If the process is killed, the last line is the number of the file and the function.
    done = decode(data, lambda name: os.write(1, f"{number} {name}\n".encode()))
    counts.update(done)
    counts["files"] += bool(done)
counts["FFmpeg"] = len(get_ffmpeg_versions())
print(json.dumps(counts), flush=True)
os._exit(0)
'''


def media():
    """The media files of this repository, and of the corpora if they exist."""
    folders = ["assets", "spdl-media/tests", "spdl-io/tests", "spdl-cuda/tests", "spdl-python/tests"]
    found = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    if CORPORA.is_dir():
        found += CORPORA.rglob("*")
    text = {".py", ".rs", ".md", ".pyi"}
    keep = (path for path in found if path.is_file() and path.suffix not in text)
    return sorted(path for path in keep if 0 < path.stat().st_size <= LARGEST_BYTES)


PLAYLISTS = {
    "a.m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/a.ts\n#EXT-X-ENDLIST\n",
    "b.m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n#EXT-X-ENDLIST\n",
    "concat.txt": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    "address.txt": b"ffconcat version 1.0\nfile 'tcp://127.0.0.1:1'\n",
    "a.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "a.mpd": b'<!DOCTYPE MPD SYSTEM "file:///etc/a.dtd" [<!ENTITY a SYSTEM "file:///etc/passwd">]><MPD xmlns='
    b'"urn:mpeg:dash:schema:mpd:2011" type="static"><Period><BaseURL>file:///etc/&a;</BaseURL><AdaptationSet '
    b'mimeType="video/mp4"><Representation id="1"/></AdaptationSet></Period></MPD>',
    "subfile.txt": b"subfile,,start,0,end,9,,:/etc/passwd",
    "link.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "code.npy": b"\x93NUMPY\x01\x00v\x00{'descr': __import__('os').system('true'), 'fortran_order': False, "
    b"'shape': ()}".ljust(128) + b"\n",
}


def files_to_decode(folder):
    """Files, playlists and damaged copies of files: at least `LEAST_FILES`."""
    paths = media()
    for name, text in PLAYLISTS.items():
        paths.append(folder / name)
        paths[-1].write_bytes(text)
    rng = random.Random(20)
    originals = list(paths)
    while len(paths) < LEAST_FILES:
        data = bytearray(rng.choice(originals).read_bytes())
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        copy = folder / f"damaged-{len(paths)}"
        copy.write_bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)
        paths.append(copy)
    return paths


def decode_without_files(paths, probe="", first=0):
    """Returns the exit code of the child, and the lines that it printed.

    The child decodes the first files once before the filter.
    """
    architecture, seccomp, numbers = NUMBERS[platform.machine()]
    paths = [str(path) for path in paths]
    task = json.dumps([paths, first, architecture, seccomp, numbers, probe, LARGEST_BYTES_FOR_FFMPEG])
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=task,
        text=True,
        errors="replace",
        capture_output=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    lines = ended.stdout.splitlines()
    assert lines, ended.stderr
    if lines[0].startswith("UNAVAILABLE"):
        pytest.skip(f"the kernel accepts no filter of system calls: {lines[0]}")
    return ended.returncode, lines


def one_of_each_kind_first(paths):
    """The paths with one file of each folder and extension at the start, and their number."""
    first = {(path.parent, path.suffix): path for path in paths if REPOSITORY in path.parents}
    chosen = set(first.values())
    return [*sorted(chosen), *(path for path in paths if path not in chosen)], len(chosen)


needs_filters = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in NUMBERS,
    reason="filters of system calls are written for Linux on x86-64 and aarch64 only",
)


@needs_filters
# promise: R20
def test_decoding_opens_no_file_and_no_socket(tmp_path):
    paths, first = one_of_each_kind_first(files_to_decode(tmp_path))
    assert len(paths) >= LEAST_FILES
    code, lines = decode_without_files(paths, first=first)
    if code != 0:
        number, name = lines[-1].split()
        pytest.fail(f"forbidden system call of {name} in {paths[int(number)]}")
    counts = json.loads(lines[-1])
    assert counts["files"] >= 200, counts
    if not counts["FFmpeg"]:
        pytest.skip("spdl_rs was built without FFmpeg, so that only its other decoders were tested")
    assert min(counts[name] for name in ["load_audio", "load_video", "load_image", "Demuxer"]) >= 20, counts
    # No format that refers to other files has content.
    assert not {"concat", "dash", "hls", "image2", "imf", "rtsp", "sdp"} & set(counts), counts


@needs_filters
# promise: R20
@pytest.mark.parametrize("probe", ["open", "socket"])
def test_a_forbidden_system_call_kills_the_process(probe):
    code, lines = decode_without_files(media()[:1], probe)
    assert (code, lines) == (-signal.SIGSYS, ["FORBIDDEN"])
