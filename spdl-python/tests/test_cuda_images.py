"""JPEG decoding on a device."""

import threading
import time

import numpy
import pytest
import spdl_rs
from conftest import picture
from cuda_decoders import jpeg, resized
from dlpack_consumer import Consumed
from spdl_rs import CudaError, CudaUnavailable, DataError
from spdl_rs.cuda import DeviceArray
from spdl_rs.io import cuda_config, decode_image_nvjpeg, load_image_batch_nvjpeg


def pixels_of(number, height=30, width=40):
    return picture(number, height, width)


# promise: DEV1
def test_g09_an_image_is_decoded_to_planes_on_the_device(nvjpeg):
    pixels = pixels_of(1)
    image = decode_image_nvjpeg(jpeg(pixels))
    assert isinstance(image, DeviceArray)
    assert (image.shape, image.dtype, image.device) == ((3, 30, 40), "uint8", "cuda:0")
    numpy.testing.assert_array_equal(image.to_host(), pixels.transpose(2, 0, 1))


# promise: DEV1
@pytest.mark.parametrize(
    "pix_fmt, arranged",
    [
        ("rgb", lambda it: it.transpose(2, 0, 1)),
        ("bgr", lambda it: it[..., ::-1].transpose(2, 0, 1)),
        ("rgbi", lambda it: it),
        ("bgri", lambda it: it[..., ::-1]),
        ("y", lambda it: numpy.floor(it @ [0.299, 0.587, 0.114] + 0.5 + 1e-9)[None].astype("u1")),
    ],
)
def test_g09_all_pixel_formats(nvjpeg, pix_fmt, arranged):
    several = [pixels_of(number) for number in range(3)]
    images = decode_image_nvjpeg([jpeg(it) for it in several], pix_fmt=pix_fmt)
    expected = numpy.stack([arranged(it) for it in several])
    assert images.shape == expected.shape
    numpy.testing.assert_array_equal(images.to_host(), expected)
    alone = decode_image_nvjpeg(jpeg(several[2]), pix_fmt=pix_fmt)
    numpy.testing.assert_array_equal(alone.to_host(), expected[2])


# promise: DEV1
def test_g09_a_list_is_decoded_and_resized_together(nvjpeg):
    several = [pixels_of(number, 20 + number * 3, 50 - number * 2) for number in range(9)]
    images = decode_image_nvjpeg(
        [jpeg(it) for it in several], scale_width=32, scale_height=24, pix_fmt="rgbi"
    )
    assert images.shape == (9, 24, 32, 3)
    for found, pixels in zip(images.to_host(), several):
        assert abs(found - resized(pixels, 24, 32)).max() < 0.51
    assert len(nvjpeg.decoded()) == 9 and "engine" in nvjpeg.decoded()
    single = decode_image_nvjpeg(jpeg(several[4]), scale_width=32, scale_height=24, pix_fmt="rgbi")
    numpy.testing.assert_array_equal(single.to_host(), images.to_host()[4])


@pytest.mark.parametrize(
    "orientation, turned",
    [
        (2, lambda it: it[:, ::-1]),
        (3, lambda it: it[::-1, ::-1]),
        (5, lambda it: it.transpose(1, 0, 2)),
        (6, lambda it: numpy.rot90(it, -1)),
        (8, lambda it: numpy.rot90(it)),
    ],
)
def test_g09_exif_orientation_is_applied(nvjpeg, orientation, turned):
    pixels = pixels_of(3)
    image = decode_image_nvjpeg(jpeg(pixels, orientation=orientation), pix_fmt="rgbi")
    numpy.testing.assert_array_equal(image.to_host(), turned(pixels))
    # After rotation, both images have the same size.
    both = decode_image_nvjpeg([jpeg(pixels, orientation=orientation), jpeg(turned(pixels))])
    assert both.shape[0] == 2
    found = both.to_host()
    numpy.testing.assert_array_equal(found[0], found[1])


def test_g09_paths_and_buffers_are_read(nvjpeg, tmp_path):
    pixels = pixels_of(2)
    path = tmp_path / "cat.jpg"
    path.write_bytes(jpeg(pixels))
    buffers = [str(path), path, jpeg(pixels), bytearray(jpeg(pixels)), memoryview(jpeg(pixels))]
    images = decode_image_nvjpeg([*buffers, numpy.frombuffer(jpeg(pixels), "u1")])
    for image in images.to_host():
        numpy.testing.assert_array_equal(image, pixels.transpose(2, 0, 1))
    assert decode_image_nvjpeg(path).shape == (3, 30, 40)


def test_g09_scale_width_and_height_are_required_together(nvjpeg):
    file = jpeg(pixels_of(1))
    for one in ({"scale_width": 8}, {"scale_height": 8}):
        for source in (file, [file, file]):
            with pytest.raises(ValueError, match="must both be at least 1"):
                decode_image_nvjpeg(source, **one)
    for wrong in (0, -2, 16_385):
        with pytest.raises(ValueError, match="scale_"):
            decode_image_nvjpeg(file, scale_width=wrong, scale_height=8)
    assert nvjpeg.decoded() == []


def test_g09_a_list_of_different_sizes_requires_a_scale(nvjpeg):
    files = [jpeg(pixels_of(1)), jpeg(pixels_of(1)), jpeg(pixels_of(1, 30, 41))]
    with pytest.raises(
        ValueError, match=r"image 2: image size 41x30 differs from 40x30 .*scale_width"
    ):
        decode_image_nvjpeg(files)
    assert nvjpeg.decoded() == []
    assert decode_image_nvjpeg(files, scale_width=8, scale_height=8).shape == (3, 3, 8, 8)


def test_g09_errors_name_the_index_of_the_image(nvjpeg, tmp_path):
    good, path = jpeg(pixels_of(1)), tmp_path / "bad.jpg"
    cases = [
        (b"no image", "not a JPEG"),
        (good[:-30], "ends"),
        (jpeg(pixels_of(1), end=b"BAD!"), "decode this JPEG"),
        (jpeg(pixels_of(1), color=False), r"CMYK.*decode it on the host with DecodeImage"),
    ]
    for bad, reason in cases:
        with pytest.raises(DataError, match=reason) as raised:
            decode_image_nvjpeg([good, good, bad, good], scale_width=8, scale_height=8)
        assert raised.value.key == "image 2"
        path.write_bytes(bad)
        with pytest.raises(DataError) as raised:
            decode_image_nvjpeg([good, path])
        assert raised.value.key == f"image 1 ({path})"
        with pytest.raises(DataError) as raised:
            decode_image_nvjpeg(bad)
        assert raised.value.key == "bytes"
    with pytest.raises(spdl_rs.NotFoundError):
        decode_image_nvjpeg(str(tmp_path / "absent.jpg"))
    # The decoder is usable after the errors.
    assert decode_image_nvjpeg(good).shape == (3, 30, 40)


def test_g09_arguments_are_checked(nvjpeg):
    file = jpeg(pixels_of(1))
    with pytest.raises(ValueError, match="empty list"):
        decode_image_nvjpeg([])
    with pytest.raises(ValueError, match="pix_fmt must be"):
        decode_image_nvjpeg(file, pix_fmt="rgba")
    for wrong in (5, [file, None]):
        with pytest.raises(TypeError, match="a JPEG must be a path or bytes"):
            decode_image_nvjpeg(wrong)
    with pytest.raises(TypeError, match="cuda_config"):
        decode_image_nvjpeg(file, device_config="cuda:0")
    with pytest.raises(ValueError, match="device 1"):
        decode_image_nvjpeg(file, device_config=cuda_config(1))


def test_g09_the_configured_stream_waits_for_the_image(nvjpeg, decoding):
    file = jpeg(pixels_of(1))
    decode_image_nvjpeg(file, device_config=cuda_config(0, stream=4096))
    assert decoding.waiting() == 4096
    image = decode_image_nvjpeg(file)
    assert decoding.waiting() == 2
    assert image.__cuda_array_interface__["shape"] == (3, 30, 40)
    consumed = Consumed(image.__dlpack__(stream=1))
    del image
    numpy.testing.assert_array_equal(consumed.numpy("u1"), pixels_of(1).transpose(2, 0, 1))
    consumed.delete()


# promise: G10
def test_g09_without_a_driver_decoding_fails_fast(no_driver, tmp_path):
    path = tmp_path / "absent.jpg"
    times = []
    for _ in range(20):
        start = time.perf_counter()
        with pytest.raises(CudaUnavailable, match="install an NVIDIA driver"):
            # The error precedes any reading.
            decode_image_nvjpeg(path)
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 0.005


# promise: G10
def test_g09_without_nvjpeg_the_error_names_the_package(decoding, monkeypatch):
    monkeypatch.setenv("SPDL_NVJPEG", "no-such-folder/libnvjpeg.so")
    with pytest.raises(CudaUnavailable, match="pip install nvidia-nvjpeg"):
        decode_image_nvjpeg(jpeg(pixels_of(1)))


def test_g09_memory_is_reused_and_threads_decode_concurrently(nvjpeg):
    several = [pixels_of(number) for number in range(4)]
    files = [jpeg(it) for it in several]
    wrong = []

    def decode(rounds):
        for _ in range(rounds):
            found = decode_image_nvjpeg(files, pix_fmt="rgbi").to_host()
            if not (found == numpy.stack(several)).all():
                wrong.append(found)

    decode(5)
    before = spdl_rs.cuda.memory_statistics()["allocations"]
    decode(50)
    assert spdl_rs.cuda.memory_statistics()["allocations"] == before
    # The decoder is reused as well, and was not destroyed.
    assert nvjpeg.live() > 0
    threads = [threading.Thread(target=decode, args=(10,)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    assert spdl_rs.cuda.memory_statistics()["live_bytes"] == 0


# promise: G11
def test_g09_any_driver_call_may_fail_without_leaks(nvjpeg, decoding):
    files = [jpeg(pixels_of(number)) for number in range(3)]

    def decode():
        # `to_host` returns pinned memory, which keeps the device open.
        return decode_image_nvjpeg(files, scale_width=8, scale_height=8).to_host().copy()

    decoding.fail(-1)
    expected = decode()
    spdl_rs.cuda.release()
    calls, reported = decoding.calls(), 0
    assert calls > 100
    for call in range(0, calls, 3):
        decoding.fail(call, 2 if call % 2 else 999)
        try:
            numpy.testing.assert_array_equal(decode(), expected)
        except CudaError:
            reported += 1
        decoding.fail(-1)
        spdl_rs.cuda.release()
        assert decoding.ledger() == {} and nvjpeg.live() == 0, call
    assert reported > 25


# promise: G11
def test_g09_any_nvjpeg_call_may_fail_without_leaks(nvjpeg, decoding):
    files = [jpeg(pixels_of(number)) for number in range(3)]
    nvjpeg.fail(0)
    expected = decode_image_nvjpeg(files).to_host().copy()
    spdl_rs.cuda.release()
    calls, reported = nvjpeg.calls(), 0
    for call in range(1, calls + 1):
        nvjpeg.fail(call)
        try:
            numpy.testing.assert_array_equal(decode_image_nvjpeg(files).to_host(), expected)
        except CudaError:
            reported += 1
        nvjpeg.fail(0)
        spdl_rs.cuda.release()
        assert decoding.ledger() == {} and nvjpeg.live() == 0, call
    assert reported > 10


# promise: DEV1
def test_i05_a_list_of_paths_is_decoded_to_a_batch(nvjpeg, tmp_path):
    several = [pixels_of(number) for number in range(3)]
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for path, pixels in zip(paths, several):
        path.write_bytes(jpeg(pixels))
    batch = load_image_batch_nvjpeg(paths, pix_fmt="bgri")
    numpy.testing.assert_array_equal(batch.to_host(), numpy.stack(several)[..., ::-1])
    small = load_image_batch_nvjpeg(paths[:1], width=16, height=12)
    assert small.shape == (1, 3, 12, 16)
    expected = decode_image_nvjpeg(paths[0], scale_width=16, scale_height=12)
    numpy.testing.assert_array_equal(small.to_host()[0], expected.to_host())
    for one in ({"width": 8}, {"height": 8}):
        with pytest.raises(ValueError, match="must both be given"):
            load_image_batch_nvjpeg(paths, **one)
    # A string is not a list of paths.
    for one in ("a.jpg", b"\xff\xd8", paths[0]):
        with pytest.raises(TypeError, match="srcs must be a list of images, not one.*pass a list"):
            load_image_batch_nvjpeg(one)
    with pytest.raises(TypeError, match="srcs must be a list"):
        load_image_batch_nvjpeg(5)
