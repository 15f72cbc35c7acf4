"""Stubs of NVIDIA's decoders for tests without a device.

The files contain the pixels that the stubs return, and kernels run on the host.
"""

import ctypes
import os
import pathlib
import shutil
import struct
import subprocess

import cuda_stub
import numpy
import pytest

STUBS = pathlib.Path(__file__).parents[2] / "spdl-cuda/tests/stub"


def compiled_with_kernels(folder):
    """Compiles a libcuda that runs kernels on the host. Skips the test without compiler or source."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed; it compiles the kernels for the host")
    cuda_stub.compiled(folder)
    stub, path = folder / "cuda.o", folder / "libcuda-kernels.so.1"
    subprocess.run(["gcc", "-c", "-fPIC", "-o", stub, STUBS / "cuda.c"], check=True)
    options = ["-shared", "-fPIC", "-std=c++17", "-O2", "-Wno-unknown-pragmas", "-ffp-contract=off"]
    subprocess.run([compiler, *options, "-o", path, STUBS / "kernels.cpp", stub], check=True)
    return path


def compiled(folder, name):
    """Compiles the stub of another library."""
    path = folder / f"lib{name}.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", path, STUBS / f"{name}.c"], check=True)
    return path


class NvJpegStub:
    """Returns the pixels in a comment of the file. A file that ends with `BAD!` is corrupt."""

    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.stub_log.restype = ctypes.c_char_p
        self.reset()

    def reset(self):
        self.library.stub_reset()
        self.library.stub_write_pixels(1)

    def fail(self, call, status=6):
        """Makes call number `call` fail, counted from 1; 0 disables failures."""
        self.library.stub_fail(call, status)

    def calls(self):
        return self.library.stub_calls()

    def live(self):
        """The number of handles that are not destroyed."""
        return self.library.stub_live()

    def decoded(self):
        """The decoder of each image."""
        return [line.split(b" ")[0].decode() for line in self.library.stub_log().splitlines()]


class NvcuvidStub:
    """Executes commands in packets. Surfaces contain `noise`, in rotation."""

    PITCH, ROWS, SURFACES, DECODERS = 256, 192, 2, 4

    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.stub_log.restype = ctypes.c_char_p
        self.library.stub_last_call.restype = ctypes.c_char_p
        for name in ("stub_calls", "stub_live", "stub_wrong"):
            getattr(self.library, name).restype = ctypes.c_long
        self.library.stub_fail.argtypes = [ctypes.c_long, ctypes.c_uint]
        self.library.stub_surfaces.argtypes = [
            ctypes.c_ulonglong,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_size_t,
            ctypes.c_uint,
        ]
        shape = (self.DECODERS * self.SURFACES, self.ROWS, self.PITCH)
        self.noise = numpy.random.default_rng(1).integers(0, 256, shape, "u1")
        self.reset()

    def reset(self):
        self.library.stub_reset()
        size = self.ROWS * self.PITCH
        address = self.noise.ctypes.data
        self.library.stub_surfaces(address, self.DECODERS, self.SURFACES, size, self.PITCH)

    def fail(self, call, code=999):
        """Makes call number `call` fail, counted from 1; 0 disables failures."""
        self.library.stub_fail(call, code)

    def calls(self):
        return self.library.stub_calls()

    def live(self):
        return self.library.stub_live()

    def wrong(self):
        """The number of invalid calls."""
        return self.library.stub_wrong()

    def logged(self, word):
        lines = self.library.stub_log().decode().splitlines()
        return [line for line in lines if line.startswith(word)]

    def nv12(self, frame, height, width, decoder=0, sample="u1"):
        """The surface of frame number `frame` of a decoder: luma, then interleaved Cb and Cr."""
        surface = self.noise[decoder * self.SURFACES + frame % self.SURFACES]
        rows = surface[: height * 3 // 2].view(sample)
        return rows[:, :width]


def jpeg(pixels, *, orientation=1, kind=0xC0, end=b"\xff\xd9", color=True):
    """A JPEG of `uint8 [height, width, 3]` without a scan, with the pixels in a comment."""
    height, width, _ = pixels.shape
    data = pixels.tobytes()
    comment = b"\xff\xfe" + struct.pack(">H", len(data) + 2) + data
    exif = (
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes([orientation]) + bytes(7)
    )
    turned = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    components = [(1, 0x22, 0), (2, 0x11, 1), (3, 0x11, 1)] + ([] if color else [(4, 0x22, 0)])
    count = len(components)
    frame = bytes([0xFF, kind, 0, 8 + 3 * count, 8]) + struct.pack(">HH", height, width)
    frame += bytes([count]) + b"".join(map(bytes, components))
    scan = bytes([0xFF, 0xDA, 0, 6 + 2 * count, count])
    scan += b"".join(bytes([number, 0x11]) for number, *_ in components) + bytes([0, 63, 0])
    return b"\xff\xd8" + comment + turned + frame + scan + end


H264, HEVC, VP9 = 4, 8, 10


def headers(width, height, *, codec=H264, bits=8, chroma=1, matrix=6, full_range=False, area=None):
    """A packet with the sequence header of a video."""
    depth = bits - 8
    signal = 5 | (8 if full_range else 0)
    packet = b"S" + struct.pack("=iII4B2I", codec, 30, 1, 1, depth, depth, 4, width, height)
    packet += struct.pack("=4i", *(area or (0, 0, width, height)))
    return packet + struct.pack("=i12x4B4x", chroma, signal, 1, 1, matrix)


def shown(index, status=2):
    """A packet with one picture, displayed immediately, whose decode status is `status`."""
    return bytes([ord("D"), index, status, ord("P"), index])


def ivf(packets, width=64, height=48, codec=b"VP90"):
    """An IVF file with these packets."""
    head = b"DKIF" + struct.pack("<HH4sHHIII4x", 0, 32, codec, width, height, 25, 1, len(packets))
    frames = (struct.pack("<IQ", len(it), at) + it for at, it in enumerate(packets))
    return head + b"".join(frames)


def colours(nv12, *, kr=0.299, kb=0.114, full_range=False, bits=8):
    """Converts an NV12 frame to RGB by the definition of the matrix, rounded to nearest."""
    nv12 = nv12.astype("f8")
    rows, width = nv12.shape
    height = rows // 3 * 2
    luma, pairs = nv12[:height], nv12[height:].reshape(height // 2, width // 2, 2)
    down = numpy.arange(height) / 2 - 0.25
    across = numpy.arange(width) / 2

    def between(values, at, axis):
        first = numpy.floor(at).astype(int)
        last = values.shape[axis] - 1
        near = values.take(first.clip(0, last), axis)
        far = values.take((first + 1).clip(0, last), axis)
        share = (at - first).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        return near * (1 - share) + far * share

    step = 2.0 ** (bits - 8)
    chroma = between(between(pairs, down, 0), across, 1) - 128 * step
    if full_range:
        luma, chroma = luma / (2.0**bits - 1), chroma / (2.0**bits - 1)
    else:
        luma, chroma = (luma - 16 * step) / (219 * step), chroma / (224 * step)
    red = luma + 2 * (1 - kr) * chroma[..., 1]
    blue = luma + 2 * (1 - kb) * chroma[..., 0]
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    exact = numpy.stack([red, green, blue]) * 255
    return numpy.floor(exact + 0.5 + 1e-9).clip(0, 255).astype("u1")


def resized(pixels, height, width):
    """Resizes `[height, width, channels]` with an antialiased triangle filter, columns first."""

    def weights(size, target):
        scale = max(size / target, 1.0)
        middle = (numpy.arange(target) + 0.5) * size / target
        distance = (numpy.arange(size) + 0.5 - middle[:, None]) / scale
        weight = (1 - abs(distance)).clip(0)
        return weight / weight.sum(1, keepdims=True)

    pixels = numpy.einsum("xw,hwc->hxc", weights(pixels.shape[1], width), pixels.astype("f8"))
    return numpy.einsum("yh,hxc->yxc", weights(pixels.shape[0], height), pixels)
