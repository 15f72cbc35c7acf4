"""A stub of the CUDA driver for tests without a device.

Device memory is host memory, each call can be made to fail, and unfreed resources are counted.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "spdl-cuda/tests/stub/cuda.c"
GIL_SOURCE = pathlib.Path(__file__).with_name("gil_at_the_driver.c")
# The calls that the GIL-counting wrapper intercepts.
GIL_CALLS = ("cuEventRecord", "cuCtxSynchronize", "cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2")
KINDS = ("contexts", "current", "streams", "events", "memory", "locked", "modules")


class Stub:
    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.stub_fail.argtypes = [ctypes.c_long, ctypes.c_uint]
        self.library.stub_last_call.restype = ctypes.c_char_p
        self.library.stub_capture.argtypes = [ctypes.c_void_p]
        self.library.stub_capture.restype = None
        for name in ("stub_calls", "stub_ledger", "stub_disturbed"):
            getattr(self.library, name).restype = ctypes.c_long
        for name in ("waiting", "awaited", "recording", "recording_before"):
            getattr(self.library, f"stub_{name}").restype = ctypes.c_void_p

    def fail(self, call, code=999):
        """Makes a call fail, counted from now on; -1 disables failures."""
        self.library.stub_fail(call, code)

    def calls(self):
        return self.library.stub_calls()

    def last_call(self):
        return self.library.stub_last_call().decode()

    def waiting(self):
        """The stream of the last wait."""
        return self.library.stub_waiting()

    def awaited(self):
        """The event of the last wait of a stream."""
        return self.library.stub_awaited()

    def recording(self):
        """The stream in which the last event was recorded."""
        return self.library.stub_recording()

    def recording_before(self):
        """The stream in which the last but one event was recorded."""
        return self.library.stub_recording_before()

    def capture(self, stream):
        """Starts the capture of a stream into a graph; 0 ends it."""
        self.library.stub_capture(stream)

    def disturbed(self):
        """The number of calls on a stream that were invalid during its capture."""
        return self.library.stub_disturbed()

    def ledger(self):
        """The resources that are not freed, by kind."""
        counts = {name: self.library.stub_ledger(kind) for kind, name in enumerate(KINDS)}
        return {name: count for name, count in counts.items() if count}


def compiled(folder, *, counts_gil=False):
    """Compiles the stub, optionally with a wrapper that counts calls with the GIL held.

    Skips the test without compiler or source.
    """
    if os.name != "posix":
        pytest.skip("the stub of libcuda requires dlopen")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed; it compiles the stub of libcuda")
    if not SOURCE.is_file():
        pytest.skip("the source of the stub of libcuda is not in this checkout")
    path = folder / "libcuda.so.1"
    if not counts_gil:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
        return path
    stub = folder / "stub.o"
    renamed = [f"-D{name}=stub_{name}" for name in GIL_CALLS]
    subprocess.run(["gcc", "-c", "-fPIC", *renamed, "-o", str(stub), str(SOURCE)], check=True)
    sources = [str(GIL_SOURCE), str(stub)]
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), *sources], check=True)
    return path


def run_child(script, stub_folder, *arguments, timeout=60, **options):
    """Runs Python code that loads this libcuda, and returns the finished process."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub_folder)}
    environment.pop("SPDL_CUDA_DRIVER", None)
    tests = str(pathlib.Path(__file__).parent)
    paths = [tests, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, **options
    )
