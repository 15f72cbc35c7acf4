"""Image loaders that decode on a device."""

import warnings

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from cuda_decoders import jpeg
from spdl_rs import CudaFallbackWarning, CudaUnavailable, DataError, ImageLoader
from spdl_rs.cuda import DeviceArray, _devices


@pytest.fixture(scope="session")
def equal_images(tmp_path_factory):
    """Two folders with equal pixels: JPEG files for the device, and PNG files."""
    folder = tmp_path_factory.mktemp("same")
    for number in range(20):
        pixels = picture(number, 60 + number * 3, 70 + number % 7 * 9)
        name = f"class{number % 3}/{number:02}"
        write_png(str(folder / "png" / f"{name}.png"), pixels)
        path = folder / "jpeg" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(pixels))
    return folder / "jpeg", folder / "png"


def loader_of(folder, **options):
    options = {"batch_size": 8, "size": 32, "threads": 2, "device": "cuda", **options}
    return ImageLoader(folder, **options)


def decoded_by_device(folder, **options):
    return loader_of(folder, decode="device", **options)


def on_host(batches):
    return [(images.to_host().copy(), labels.to_host().copy()) for images, labels in batches]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        for array, wanted in zip(one, other):
            assert array.dtype == wanted.dtype
            numpy.testing.assert_array_equal(array, wanted)


# promise: DEV1
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-f32"])
def test_g5_device_decoding_equals_host_decoding(equal_images, nvjpeg, train, layout):
    jpegs, pngs = equal_images
    options = {"train": train, "layout": layout, "seed": 4}
    loader = decoded_by_device(jpegs, **options)
    for images, labels in loader:
        assert isinstance(images, DeviceArray) and isinstance(labels, DeviceArray)
    del images, labels
    loader.set_epoch(0)
    found = on_host(loader)
    assert [len(labels) for _, labels in found] == [8, 8, 4]
    decoded = loader.stats()["decoded"]
    assert decoded["hardware"] + decoded["hybrid"] == 20 and decoded["hardware"] > 0
    assert (decoded["host"], decoded["fallbacks"], decoded["missing"]) == (0, {}, None)
    # The host decodes unsupported formats, to equal samples.
    loader = decoded_by_device(pngs, **options)
    assert_same(on_host(loader), found)
    decoded = loader.stats()["decoded"]
    assert (decoded["hardware"], decoded["hybrid"], decoded["host"]) == (0, 0, 20)
    assert decoded["fallbacks"] == {"other-format": 20} and decoded["failed"] == 0
    # Device and host differ by rounding between two resize passes.
    step = 1 if layout == "nhwc-u8" else 1.01 / 255 / 0.224
    for (images, labels), (wanted, wanted_labels) in zip(
        found, loader_of(pngs, device="cpu", **options)
    ):
        assert abs(images.astype("f8") - wanted).max() <= step
        numpy.testing.assert_array_equal(labels, wanted_labels)
    assert loader_of(pngs).stats()["decoded"] is None
    del loader


# promise: G5
def test_g5_a_corrupt_image_is_an_error_or_skipped(equal_images, nvjpeg, tmp_path):
    jpegs, _ = equal_images
    paths = sorted(jpegs.glob("*/*.jpg"))[:10]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(jpeg(picture(1), end=b"BAD!"))
    paths.insert(4, bad)
    with pytest.raises(DataError) as raised:
        list(decoded_by_device(paths))
    assert raised.value.key == str(bad)
    loader = decoded_by_device(paths, on_error="skip")
    found = on_host(loader)
    assert [len(labels) for _, labels in found] == [8, 2]
    assert [dropped["key"] for dropped in loader.stats()["dropped"]] == [str(bad)]
    assert loader.stats()["decoded"]["failed"] == 1
    assert_same(found, on_host(decoded_by_device(paths[:4] + paths[5:])))
    del loader, raised


def test_g5_a_loader_resumes_exactly(equal_images, nvjpeg):
    jpegs, _ = equal_images
    options = {"train": True, "seed": 9}
    expected = on_host(decoded_by_device(jpegs, **options))
    loader = decoded_by_device(jpegs, **options)
    batches = iter(loader)
    first = on_host([next(batches)])
    state = loader.state_dict()
    batches.close()
    again = decoded_by_device(jpegs, **options)
    again.load_state_dict(state)
    assert_same(first + on_host(again), expected)
    # The pixels would differ in the last bit.
    with pytest.raises(ValueError, match="; decode: was device, is absent"):
        loader_of(jpegs, **options).load_state_dict(state)
    with pytest.raises(ValueError, match="batch_size: was 8, is 4"):
        decoded_by_device(jpegs, batch_size=4, **options).load_state_dict(state)
    del loader, batches, again


def test_g5_drop_last_and_ranks(equal_images, nvjpeg):
    jpegs, _ = equal_images
    loader = decoded_by_device(jpegs, drop_last=True)
    assert [len(labels) for _, labels in on_host(loader)] == [8, 8]
    assert loader.stats()["left_out"] == 4
    whole = numpy.concatenate([images for images, _ in on_host(decoded_by_device(jpegs))])
    rank = on_host(decoded_by_device(jpegs, rank=1, world_size=2))
    numpy.testing.assert_array_equal(numpy.concatenate([it for it, _ in rank]), whole[1::2])
    del loader


# promise: G9
def test_g9_memory_does_not_grow_over_epochs(equal_images, nvjpeg, decoding):
    def held(loader):
        for _ in loader:
            pass
        free = spdl_rs.cuda.memory_statistics()["free_bytes"]
        return [free, decoding.ledger()["memory"], decoding.ledger()["locked"]]

    # The number of batches in flight differs between epochs, so the maximum may grow at first.
    loader = decoded_by_device(equal_images[0])
    most = numpy.zeros(3)
    for _ in range(20):
        found = numpy.max([held(loader) for _ in range(8)], axis=0)
        if (found <= most).all():
            break
        most = numpy.maximum(most, found)
    else:
        pytest.fail(f"memory grows in each round: {most}")
    del loader


def test_g5_leaving_the_loop_releases_the_device(equal_images, nvjpeg):
    for _ in decoded_by_device(equal_images[0]):
        break


def test_promise_g10_device_cuda_without_nvjpeg_is_an_error(equal_images, decoding, monkeypatch):
    monkeypatch.setenv("SPDL_NVJPEG", "no-such-folder/libnvjpeg.so")
    with pytest.raises(CudaUnavailable, match="pip install nvidia-nvjpeg"):
        decoded_by_device(equal_images[1])


def test_promise_g10_device_auto_without_nvjpeg_warns_once(equal_images, decoding, monkeypatch):
    monkeypatch.setattr(_devices, "_has_warned", False)
    pngs = equal_images[1]
    monkeypatch.setenv("SPDL_NVJPEG", "no-such-folder/libnvjpeg.so")
    with pytest.warns(CudaFallbackWarning, match="the host decodes images: .*pip install"):
        loader = decoded_by_device(pngs, device="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded_by_device(pngs, device="auto")
    found = on_host(loader)
    assert len(found) == 3 and loader.device == "cuda:0"
    decoded = loader.stats()["decoded"]
    assert (decoded["host"], decoded["fallbacks"]) == (20, {"no-decoder": 20})
    assert "no-such-folder" in decoded["missing"]
    del loader


def test_promise_g10_device_auto_without_device_uses_the_host(equal_images, no_driver):
    pngs = equal_images[1]
    before = spdl_rs.cuda.fallbacks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CudaFallbackWarning)
        loader = decoded_by_device(pngs, device="auto")
    assert spdl_rs.cuda.fallbacks() == before + 1
    assert_same(list(loader), list(loader_of(pngs, device="cpu")))
    assert loader.stats()["decoded"] is None


def test_g5_incompatible_arguments_are_errors(equal_images, decoding):
    pngs = equal_images[1]
    with pytest.raises(ValueError, match='decode must be "host" or "device"'):
        loader_of(pngs, decode="gpu")
    with pytest.raises(ValueError, match='requires a CUDA device: pass device="cuda" or "auto"'):
        decoded_by_device(pngs, device="cpu")
    with pytest.raises(ValueError, match="on_truncated"):
        decoded_by_device(pngs, on_truncated="partial")
