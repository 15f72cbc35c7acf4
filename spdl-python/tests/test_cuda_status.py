"""The CUDA status report, and errors without a driver or device."""

import doctest
import inspect
import os
import pickle
import statistics
import time
import warnings

import numpy
import pytest
import spdl_rs
from cuda_stub import run_child
from spdl_rs import CudaFallbackWarning, CudaUnavailable, ImageLoader, SpdlError
from spdl_rs import io as spdl_io

PARTS = ["driver", "device", "nvjpeg", "nvrtc", "nvcuvid"]


@pytest.mark.parametrize(
    "module",
    [spdl_rs.cuda, spdl_rs.cuda._devices, spdl_rs.cuda._status, spdl_io._transfer],
    ids=lambda module: module.__name__,
)
def test_doctests_pass(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_the_package_is_documented():
    for name in spdl_rs.cuda.__all__:
        value = getattr(spdl_rs.cuda, name)
        assert inspect.getdoc(value), name
        for member in vars(value) if isinstance(value, type) else ():
            assert member.startswith("_") or inspect.getdoc(getattr(value, member)), member


@pytest.mark.skipif(
    not os.path.exists("/proc/self/maps"), reason="this system has no /proc/self/maps"
)
def test_promise_g10_importing_loads_no_driver(libcuda):
    script = """
        import spdl_rs, spdl_rs.cuda, spdl_rs.io
        assert "libcuda" not in open("/proc/self/maps").read()
        assert spdl_rs.cuda.is_available()
        assert "libcuda" in open("/proc/self/maps").read()
    """
    finished = run_child(script, libcuda.parent)
    assert finished.returncode == 0, finished.stderr


def test_promise_g10_status_without_a_driver_names_the_remedy(no_driver):
    status = spdl_rs.cuda.status()
    assert [part.name for part in status] == PARTS and len(status) == 5
    assert status["nvjpeg"] is status[2]
    with pytest.raises(KeyError, match="no part is named 'gpu'; the parts are .'driver', 'device'"):
        status["gpu"]
    driver, device = status[:2]
    assert not status.available and not driver.available and not device.available
    assert "no-such-folder" in driver.detail and "install an NVIDIA driver" in driver.remedy
    assert str(status).splitlines()[0].split()[:2] == ["driver", "missing"]
    page = status._repr_html_()
    assert page.count("<tr>") == 6 and "no-such-folder" in page
    assert not spdl_rs.cuda.is_available() and spdl_rs.cuda.device_count() == 0


def test_promise_g10_status_with_a_driver_names_the_device(stub):
    status = spdl_rs.cuda.status()
    assert status.available and status[1].detail == "0: Stub (9.0, 1 GiB)"
    assert status[0].detail.startswith("CUDA 13.0") and status[0].remedy == ""
    assert str(status).splitlines()[0].split()[:2] == ["driver", "ok"]
    assert spdl_rs.cuda.is_available() and spdl_rs.cuda.device_count() == 1


def test_status_html_is_escaped():
    part = spdl_rs.cuda.PartStatus("driver", False, "<b>no</b>", "a & b")
    page = spdl_rs.cuda.Status([part])._repr_html_()
    assert "<b>" not in page and "a &amp; b" in page


@pytest.mark.parametrize(
    "call",
    [
        lambda photos: ImageLoader(photos, batch_size=2, device="cuda"),
        lambda photos: ImageLoader(photos, batch_size=2, device="cuda:3"),
        lambda photos: spdl_rs.cuda.memory_statistics(),
        lambda photos: spdl_io.transfer_tensor({"a": numpy.zeros(3)}),
        lambda photos: spdl_io.transfer_buffer(
            spdl_io.Array((3,), "uint8"), device_config=spdl_io.cuda_config(0)
        ),
        lambda photos: spdl_io.cpu_storage(10),
    ],
    ids=["loader", "loader-3", "statistics", "tensor", "buffer", "storage"],
)
def test_promise_g10_calls_without_a_device_fail_within_5_ms(call, photos, no_driver):
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        with pytest.raises(CudaUnavailable, match="install an NVIDIA driver") as raised:
            call(photos)
        took.append(time.perf_counter() - begun)
    assert statistics.median(took) < 5e-3
    assert isinstance(raised.value, SpdlError) and isinstance(raised.value, RuntimeError)
    assert raised.value.kind == "unsupported"
    assert type(pickle.loads(pickle.dumps(raised.value))) is CudaUnavailable


def test_an_absent_device_is_an_invalid_argument(photos, stub):
    with pytest.raises(spdl_rs.InvalidArgumentError, match="CUDA device 1"):
        ImageLoader(photos, batch_size=2, device="cuda:1")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "CUDA", ""])
def test_an_invalid_device_name_is_an_error(device, photos):
    with pytest.raises(ValueError, match='"cpu", "cuda", "cuda:1" or "auto"'):
        ImageLoader(photos, batch_size=2, device=device)


def test_a_device_of_another_type_is_an_error(photos):
    with pytest.raises(TypeError, match="device"):
        ImageLoader(photos, batch_size=2, device=0)


# promise: G10
def test_a_driver_error_contains_the_remedy(photos, stub):
    stub.fail(0, 803)
    with pytest.raises(CudaUnavailable, match="reboot"):
        ImageLoader(photos, batch_size=2, device="cuda")


# promise: G10
def test_auto_falls_back_to_the_host_and_warns_once(photos, tmp_path):
    script = """
        import sys, warnings, spdl_rs
        def load():
            loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=32, device="auto")
            assert loader.device == "cpu"
            ((images, labels),) = loader
            assert images.shape == (4, 32, 32, 3)
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            assert spdl_rs.cuda.fallbacks() == 0
            load(), load(), load()
        assert spdl_rs.cuda.fallbacks() == 3
        (warning,) = reported
        assert warning.category is spdl_rs.CudaFallbackWarning
        assert "install an NVIDIA driver" in str(warning.message), warning
        assert warning.filename == "<string>"
    """
    # A driver that cannot be loaded, on any machine.
    (tmp_path / "libcuda.so.1").write_text("not a library")
    finished = run_child(script, tmp_path, photos)
    assert finished.returncode == 0, finished.stderr


def test_auto_uses_an_available_device(photos, stub):
    before = spdl_rs.cuda.fallbacks()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CudaFallbackWarning)
        loader = ImageLoader(photos, batch_size=2, device="auto")
    assert loader.device == "cuda:0" and spdl_rs.cuda.fallbacks() == before


def test_a_torch_device_is_accepted(no_driver, many):
    class device:
        def __str__(self):
            return "cuda:0"

    device.__module__ = "torch"
    with pytest.raises(CudaUnavailable):
        ImageLoader(many, batch_size=2, device=device())
    device.__module__ = "tinygrad"
    with pytest.raises(TypeError, match='device must be "cpu"'):
        ImageLoader(many, batch_size=2, device=device())
