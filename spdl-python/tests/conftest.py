"""Test images, made with NumPy and the standard library, and stubs of CUDA libraries."""

import gc
import os
import signal
import struct
import threading
import zlib

import cuda_decoders
import cuda_stub
import numpy
import pytest
import spdl_rs

# A shell starts background commands with SIGINT ignored, and Python then raises no KeyboardInterrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_pipelines_from_earlier_tests():
    """Collects pipelines that an earlier test left in a reference cycle, which stops them."""
    if any("spdl" in thread.name for thread in threading.enumerate() if thread.ident is not None):
        gc.collect()


def write_png(path, pixels):
    """Writes a PNG of `uint8 [height, width, 3]`."""
    height, width, _ = pixels.shape

    def chunk(name, data):
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + data)


def picture(number, height=60, width=80):
    """A smooth colour image that differs for each number."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [
        numpy.sin(x / (7 + number % 5) + number),
        numpy.cos(y / (9 + number % 7) + number),
        numpy.sin((x + y) / (11 + number % 3) - number),
    ]
    return (127.5 + 127 * numpy.stack(waves, axis=-1)).astype(numpy.uint8)


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Four images: `cat/1.png`, `cat/2.png`, `dog/1.png`, `dog/2.png`."""
    folder = tmp_path_factory.mktemp("small") / "photos"
    for number, name in enumerate(["cat/1", "cat/2", "dog/1", "dog/2"]):
        write_png(str(folder / f"{name}.png"), picture(number))
    return folder


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """40 images of different sizes in 5 classes."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(40):
        size = {"height": 40 + number % 13 * 5, "width": 50 + number % 11 * 4}
        path = folder / f"class{number % 5}" / f"{number:02}.png"
        write_png(str(path), picture(number, **size))
    return folder


@pytest.fixture
def damaged(many, tmp_path):
    """A copy of `many` with four corrupt files: the folder, and their sorted names."""
    folder = tmp_path / "damaged"
    for path in sorted(many.glob("*/*.png")):
        copy = folder / path.relative_to(many)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    whole = (folder / "class0" / "00.png").read_bytes()
    bad = {
        "class0/x-empty.png": b"",
        "class1/x-text.jpg": b"this is a text file named .jpg\n" * 20,
        "class3/x-truncated.png": whole[: len(whole) * 2 // 3],
        "class4/x-garbage.png": whole[:60] + bytes(range(256)) * 4,
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    return folder, [str(folder / name) for name in sorted(bad)]


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """The path of a stub of libcuda."""
    return cuda_stub.compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stub(libcuda, monkeypatch):
    """A stub of a CUDA device. Fails the test if any resource is not freed."""
    monkeypatch.setenv("SPDL_CUDA_DRIVER", str(libcuda))
    stub = cuda_stub.Stub(libcuda)
    stub.fail(-1)
    stub.capture(0)
    spdl_rs.cuda.release()
    yield stub
    stub.fail(-1)
    stub.capture(0)
    spdl_rs.cuda.release()
    gc.collect()
    assert stub.ledger() == {}


@pytest.fixture(scope="session")
def decoder_libraries(tmp_path_factory):
    """The paths of the stubs of libcuda, which runs kernels on the host, nvJPEG and nvcuvid."""
    folder = tmp_path_factory.mktemp("decoders")
    return (
        cuda_decoders.compiled_with_kernels(folder),
        cuda_decoders.compiled(folder, "nvjpeg"),
        cuda_decoders.compiled(folder, "nvcuvid"),
    )


@pytest.fixture
def decoding(decoder_libraries, monkeypatch):
    """A stub of a CUDA device that runs kernels on the host."""
    libcuda, nvjpeg, nvcuvid = decoder_libraries
    monkeypatch.setenv("SPDL_CUDA_DRIVER", str(libcuda))
    monkeypatch.setenv("SPDL_NVJPEG", str(nvjpeg))
    monkeypatch.setenv("SPDL_NVCUVID", str(nvcuvid))
    stub = cuda_stub.Stub(libcuda)
    stub.fail(-1)
    spdl_rs.cuda.release()
    yield stub
    stub.fail(-1)
    spdl_rs.cuda.release()
    gc.collect()
    assert stub.ledger() == {}


@pytest.fixture
def nvjpeg(decoding, decoder_libraries):
    """A stub of nvJPEG that copies pixels from the files. Fails the test on unfreed resources."""
    stub = cuda_decoders.NvJpegStub(decoder_libraries[1])
    yield stub
    stub.fail(0)
    spdl_rs.cuda.release()
    gc.collect()
    assert stub.live() == 0


@pytest.fixture
def nvcuvid(decoding, decoder_libraries):
    """A stub of nvcuvid with noise as surfaces. Fails the test on unfreed or misused resources."""
    stub = cuda_decoders.NvcuvidStub(decoder_libraries[2])
    yield stub
    stub.fail(0)
    spdl_rs.cuda.release()
    gc.collect()
    assert stub.live() == 0 and stub.wrong() == 0


@pytest.fixture
def no_driver(monkeypatch):
    """Hides the CUDA driver of this machine."""
    spdl_rs.cuda.release()
    monkeypatch.setenv("SPDL_CUDA_DRIVER", "no-such-folder/libcuda.so.1")
