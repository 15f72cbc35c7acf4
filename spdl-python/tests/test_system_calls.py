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
CORPORA = pathlib.Path(os.environ.get("SPDL_CORPORA", REPOSITORY / "../shared/corpora"))
LEAST_FILES = 900
LARGEST_BYTES = 1 << 20
# open, creat, openat, openat2, socket, connect, execve, execveat, ptrace, io_uring_setup
NUMBERS = {
    "x86_64": (0xC000003E, [2, 85, 257, 437, 41, 42, 59, 322, 101, 425]),
    "aarch64": (0xC00000B7, [56, 437, 198, 203, 221, 281, 117, 425]),
}

CHILD = r'''
import ctypes, json, os, socket, struct, sys
import spdl_rs.io

paths, architecture, numbers, probe = json.load(sys.stdin)
files = [open(path, "rb").read() for path in paths]
KINDS = [
    spdl_rs.io.DecodeImage(16),
    spdl_rs.io.DecodeImage(16, on_truncated="partial", exact=True),
    lambda data: list(spdl_rs.io.iter_tarfile(data)),
    spdl_rs.io.load_npy,
    lambda data: list(spdl_rs.io.iter_zipfile(data)),
    lambda data: list(spdl_rs.io.load_npz(data).items()),
    spdl_rs.io.load_wav,
]


def decode(data):
    done = 0
    for kind in KINDS:
        try:
            kind(data)
            done += 1
        except Exception:
            pass
    return done


# Imports and other files that the first use opens.
for data in files[:30]:
    decode(data)


def forbid(architecture, numbers):
    """Makes the kernel kill this process at any of these system calls."""
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
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if prctl(no_new_privileges, 1, 0, 0, 0) or prctl(set_seccomp, filter_mode, ctypes.addressof(header), 0, 0):
        print("UNAVAILABLE", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(0)


forbid(architecture, numbers)
print("FORBIDDEN", flush=True)
if probe == "open":
    open(paths[0], "rb")
elif probe == "socket":
    socket.socket()
decoded = 0
for number, data in enumerate(files):
    # If the process is killed, the last line is the number of the file.
    os.write(1, b"%d\n" % number)
    decoded += decode(data) > 0
print("DECODED", decoded, flush=True)
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
    "a.m3u8": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n#EXT-X-ENDLIST\n",
    "concat.txt": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
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


def decode_without_files(paths, probe=""):
    """Returns the exit code of the child, and the lines that it printed."""
    architecture, numbers = NUMBERS[platform.machine()]
    task = json.dumps([[str(path) for path in paths], architecture, numbers, probe])
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=task,
        text=True,
        capture_output=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    lines = ended.stdout.splitlines()
    assert lines, ended.stderr
    if lines[0].startswith("UNAVAILABLE"):
        pytest.skip(f"the kernel accepts no filter of system calls: {lines[0]}")
    return ended.returncode, lines


needs_filters = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in NUMBERS,
    reason="filters of system calls are written for Linux on x86-64 and aarch64 only",
)


@needs_filters
# promise: R20
def test_decoding_opens_no_file_and_no_socket(tmp_path):
    paths = files_to_decode(tmp_path)
    assert len(paths) >= LEAST_FILES
    code, lines = decode_without_files(paths)
    last = lines[-1] if not lines[-1].isdigit() else paths[int(lines[-1])]
    assert code == 0, f"forbidden system call while decoding {last}"
    name, decoded = lines[-1].split()
    assert name == "DECODED" and int(decoded) >= 200, lines[-1]


@needs_filters
# promise: R20
@pytest.mark.parametrize("probe", ["open", "socket"])
def test_a_forbidden_system_call_kills_the_process(probe):
    code, lines = decode_without_files(media()[:1], probe)
    assert (code, lines) == (-signal.SIGSYS, ["FORBIDDEN"])
