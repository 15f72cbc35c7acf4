"""Compile image.cu with NVRTC from a Python wheel. Run by `cargo xtask kernels`.

    python compile.py FOLDER ARCHITECTURE...

An architecture is for example `sm_90` (machine code, a cubin) or `compute_75` (PTX, which the driver
compiles for newer devices). Writes `image.ARCHITECTURE.cubin` or `.ptx` into the folder. Prints the
version of NVRTC and its log for each architecture as a JSON object. The kernels of testing.cu, for tests
and measurements, are compiled to PTX only.
"""

import ctypes
import json
import sys
from importlib.metadata import files
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "nvidia-cuda-nvrtc-cu12"
OPTIONS = (
    "--std=c++17",
    # No contraction: only explicit `fmaf` is fused, so that the host computes the same bits.
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    f"--include-path={HERE}",
    "--ptxas-options=-v",
    "--display-error-number",
)


def load_nvrtc() -> ctypes.CDLL:
    """Load NVRTC from the wheel, and first the library that it depends on."""
    libraries = {
        file.name.split(".so")[0]: file.locate()
        for file in files(PACKAGE) or ()
        if file.name.startswith("libnvrtc") and ".alt." not in file.name
    }
    ctypes.CDLL(str(libraries["libnvrtc-builtins"]), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(libraries["libnvrtc"]), mode=ctypes.RTLD_GLOBAL)


class Program:
    """A program of NVRTC."""

    def __init__(self, nvrtc: ctypes.CDLL, source: Path) -> None:
        self.nvrtc = nvrtc
        self.handle = ctypes.c_void_p()
        self.call(
            "nvrtcCreateProgram",
            ctypes.byref(self.handle),
            source.read_bytes(),
            source.name.encode(),
            0,
            None,
            None,
        )

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.nvrtc, name)(*arguments)
        if code != 0:
            self.nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            words = self.nvrtc.nvrtcGetErrorString(code).decode()
            log = self.text("ProgramLog") if name == "nvrtcCompileProgram" else ""
            sys.exit(f"{name}: {words}\n{log}".rstrip())

    def compile(self, architecture: str) -> str:
        """Compile for an architecture. Return the log."""
        options = [f"--gpu-architecture={architecture}", *OPTIONS]
        encoded = [option.encode() for option in options]
        array = (ctypes.c_char_p * len(encoded))(*encoded)
        self.call("nvrtcCompileProgram", self.handle, len(encoded), array)
        return self.text("ProgramLog")

    def bytes(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", self.handle, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", self.handle, content)
        return content.raw

    def text(self, what: str) -> str:
        return self.bytes(what).rstrip(b"\0").decode()


def main() -> None:
    folder = Path(sys.argv[1])
    nvrtc = load_nvrtc()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    logs = {}
    for architecture in sys.argv[2:]:
        image = Program(nvrtc, HERE / "image.cu")
        logs[architecture] = image.compile(architecture)
        if architecture.startswith("sm_"):
            (folder / f"image.{architecture}.cubin").write_bytes(image.bytes("CUBIN"))
            continue
        (folder / f"image.{architecture}.ptx").write_text(image.text("PTX"))
        testing = Program(nvrtc, HERE / "testing.cu")
        testing.compile(architecture)
        (folder / f"testing.{architecture}.ptx").write_text(testing.text("PTX"))
    print(json.dumps({"nvrtc": f"{major.value}.{minor.value}", "logs": logs}))


if __name__ == "__main__":
    main()
