"""Device memory from Python functions, such as those of PyTorch's caching allocator."""

import ctypes
import gc
import sys
import threading
import time
import types

import numpy
import pytest
import spdl_rs
from conftest import picture
from cuda_decoders import colours, headers, jpeg, shown
from cuda_stub import run_child
from dlpack_consumer import Consumed
from spdl_rs import CudaError, ImageLoader
from spdl_rs.io import (
    cuda_config,
    decode_image_nvjpeg,
    decode_packets_nvdec,
    nv12_to_rgb,
    nvdec_decoder,
    transfer_buffer,
)

ALIGNMENT = 256


class Framework:
    """An allocator that records its allocations. The stub's device memory is host memory."""

    def __init__(self, most=100):
        self.most, self.lent, self.requested, self.freed = most, {}, [], []
        self.pair = self.allocate, self.free

    def allocate(self, size, device, stream):
        self.requested.append((size, device, stream))
        if len(self.lent) >= self.most:
            raise MemoryError("limit reached")
        memory = ctypes.create_string_buffer(size + ALIGNMENT)
        address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
        self.lent[address] = memory
        return address

    def free(self, address):
        # Raises `KeyError` for an unknown address, and if called twice.
        del self.lent[address]
        self.freed.append(address)

    def has(self, array):
        return array.__cuda_array_interface__["data"][0] in self.lent

    def sent(self, array):
        return transfer_buffer(array, device_config=cuda_config(0, allocator=self.pair))


class Telling(Framework):
    def free(self, address):
        super().free(address)
        print("freed")


@pytest.fixture
def framework(stub):
    """An allocator. Fails the test if memory is not freed, or freed twice."""
    unraisable, before = [], sys.unraisablehook
    sys.unraisablehook = unraisable.append
    framework = Framework()
    yield framework
    gc.collect()
    spdl_rs.cuda.release()
    sys.unraisablehook = before
    assert framework.lent == {} and unraisable == []


def test_g01_arrays_use_memory_of_the_allocator(stub, framework):
    array = framework.sent(numpy.arange(1000, dtype="f4"))
    # The driver has allocated no memory.
    assert framework.has(array) and "memory" not in stub.ledger()
    ((size, device, _),) = framework.requested
    assert size >= 4000 and device == 0
    numpy.testing.assert_array_equal(array.to_host(), numpy.arange(1000))


def test_g01_the_allocator_gets_the_stream_of_the_first_write(stub, framework):
    array = framework.sent(numpy.ones(3))
    ((_, _, stream),) = framework.requested
    # The last recorded event follows the copy.
    assert stream == stub.recording() > 2
    del array


def test_g01_memory_is_reused_and_freed_once(stub, framework):
    for number in range(50):
        array = framework.sent(numpy.full(10_000, number))
        numpy.testing.assert_array_equal(array.to_host()[:2], [number] * 2)
        del array
    assert len(framework.requested) <= 4 and framework.freed == []
    statistics = spdl_rs.cuda.memory_statistics(allocator=framework.pair)
    assert statistics["allocations"] == len(framework.requested)
    assert statistics["free_bytes"] == sum(size for size, *_ in framework.requested)
    # Memory of the driver is in another pool.
    assert spdl_rs.cuda.memory_statistics()["allocations"] == 0
    spdl_rs.cuda.release()
    assert framework.lent == {} and len(framework.freed) == len(framework.requested)


def test_g01_memory_is_freed_after_its_last_consumer(stub, framework):
    array = framework.sent(numpy.ones(1000))
    consumed = Consumed(array.__dlpack__(stream=4096))
    del array
    spdl_rs.cuda.release()
    assert len(framework.lent) == 1
    numpy.testing.assert_array_equal(consumed.numpy("f8"), numpy.ones(1000))
    # On another thread and without the GIL, as a library does.
    thread = threading.Thread(target=consumed.delete)
    thread.start()
    thread.join()
    assert framework.lent == {}


def test_g01_consumer_events_are_recorded_before_memory_is_freed(stub):
    seen = []

    class Watching(Framework):
        def free(self, address):
            seen.append(stub.recording())
            super().free(address)

    framework = Watching()
    array = framework.sent(numpy.ones(3))
    array.record_stream(8192)
    spdl_rs.cuda.release()
    assert seen == []
    del array
    gc.collect()
    assert seen == [8192] and framework.lent == {}


def test_g01_an_unused_capsule_frees_its_memory(stub, framework):
    capsule = framework.sent(numpy.ones(3)).__dlpack__()
    spdl_rs.cuda.release()
    assert len(framework.lent) == 1
    del capsule
    assert framework.lent == {}


def test_g01_pooled_memory_is_freed_if_the_allocator_is_full(stub, framework):
    framework.most = 1
    small = framework.sent(numpy.ones(3))
    del small
    assert len(framework.lent) == 1
    large = framework.sent(numpy.ones(100_000))
    assert framework.has(large) and len(framework.freed) == 1
    with pytest.raises(CudaError, match="MemoryError: limit reached") as raised:
        framework.sent(numpy.ones(200_000))
    assert raised.value.kind == "limit-exceeded"
    assert isinstance(raised.value.__cause__, MemoryError)
    numpy.testing.assert_array_equal(large.to_host(), numpy.ones(100_000))
    # After the release, the next allocation succeeds.
    del large, raised
    assert framework.has(framework.sent(numpy.ones(200_000)))


def test_g01_out_of_memory_error_of_the_allocator_is_limit_exceeded(stub, framework):
    # The name of PyTorch's exception.
    class OutOfMemoryError(RuntimeError):
        pass

    def allocate(size, device, stream):
        framework.requested.append(size)
        raise OutOfMemoryError("CUDA out of memory")

    with pytest.raises(CudaError) as raised:
        transfer_buffer(
            numpy.ones(3), device_config=cuda_config(0, allocator=(allocate, framework.free))
        )
    assert raised.value.kind == "limit-exceeded" and len(framework.requested) == 2


def test_g01_an_exception_of_the_allocator_is_the_cause_of_cuda_error(stub, framework):
    def allocate(size, device, stream):
        framework.requested.append(size)
        raise KeyError("mine")

    with pytest.raises(
        CudaError, match=r"allocator failed to allocate \d+ bytes on CUDA device 0: KeyError: 'mine'"
    ) as raised:
        transfer_buffer(
            numpy.ones(3), device_config=cuda_config(0, allocator=(allocate, framework.free))
        )
    cause = raised.value.__cause__
    assert isinstance(cause, KeyError) and cause.__traceback__ is not None
    assert raised.value.kind == "user" and len(framework.requested) == 1


def test_g01_keyboard_interrupt_in_the_allocator_propagates(stub, framework):
    def allocate(size, device, stream):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer_buffer(
            numpy.ones(3), device_config=cuda_config(0, allocator=(allocate, framework.free))
        )


@pytest.mark.parametrize(
    "address, words, freed",
    [
        (0, "MemoryError: the allocator returned address 0", []),
        (0x1001, "ValueError: the allocator returned the address 0x1001", [0x1001]),
        (None, "TypeError", []),
        (-256, "OverflowError", []),
        (2**64, "OverflowError", []),
    ],
)
def test_g01_an_invalid_address_is_an_error_and_freed(stub, address, words, freed):
    given_back = []
    config = cuda_config(0, allocator=(lambda *_: address, given_back.append))
    with pytest.raises(CudaError, match=words):
        transfer_buffer(numpy.ones(3), device_config=config)
    assert given_back == freed


def test_g01_an_exception_of_free_is_unraisable(stub):
    framework, unraisable, before = Framework(), [], sys.unraisablehook

    def free(address):
        framework.free(address)
        raise KeyError("mine")

    config = cuda_config(0, allocator=(framework.allocate, free))

    def sent():
        array = transfer_buffer(numpy.ones(3), device_config=config)
        spdl_rs.cuda.release()
        return array

    def fail():
        raise IndexError("another")

    sys.unraisablehook = lambda reported: unraisable.append(repr(reported.exc_value))
    try:
        # The exception drops the array while it propagates.
        print(sent(), fail())
    except IndexError as error:
        assert str(error) == "another" and error.__context__ is None
    finally:
        sys.unraisablehook = before
    assert unraisable == ["KeyError('mine')"] and framework.lent == {}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_g01_keyboard_interrupt_in_free_is_raised_later(stub):
    def free(address):
        raise KeyboardInterrupt

    config = cuda_config(0, allocator=(Framework().allocate, free))
    array = transfer_buffer(numpy.ones(3), device_config=config)
    spdl_rs.cuda.release()
    with pytest.raises(KeyboardInterrupt):
        del array
        time.sleep(5)


def test_g01_images_use_memory_of_the_allocator(nvjpeg):
    framework = Framework()
    config = cuda_config(0, allocator=framework.pair)
    pixels = picture(1, 30, 40)
    image = decode_image_nvjpeg(jpeg(pixels), device_config=config, pix_fmt="rgbi")
    numpy.testing.assert_array_equal(image.to_host(), pixels)
    assert framework.has(image) and spdl_rs.cuda.memory_statistics()["allocations"] == 0
    del image
    spdl_rs.cuda.release()
    gc.collect()
    assert framework.lent == {}


def test_g01_frames_and_their_colours_use_memory_of_the_allocator(nvcuvid):
    framework = Framework()

    def video(count):
        return [headers(64, 48), *map(shown, range(count))]

    config = cuda_config(0, allocator=framework.pair)
    frames = nvdec_decoder(config, "h264").decode_packets(video(2))
    expected = numpy.stack([colours(nvcuvid.nv12(at, 48, 64)) for at in range(2)])
    for more in ({}, {"device_config": config}):
        found = nv12_to_rgb(frames, coeff=6, **more)
        numpy.testing.assert_array_equal(found.to_host(), expected)
        assert framework.has(frames) and framework.has(found)
    whole = decode_packets_nvdec(video(3), codec="h264", device_config=config)
    assert framework.has(whole)
    assert spdl_rs.cuda.video_statistics(allocator=framework.pair)["frames"] == 5
    # The driver has allocated no memory.
    assert spdl_rs.cuda.memory_statistics()["allocations"] == 0
    del frames, found, whole
    spdl_rs.cuda.release()
    gc.collect()
    assert framework.lent == {}


@pytest.fixture
def torch(monkeypatch, framework):
    """A stub of PyTorch's allocator functions."""
    cuda = types.ModuleType("torch.cuda")
    cuda.caching_allocator_alloc, cuda.caching_allocator_delete = framework.pair
    module = types.ModuleType("torch")
    module.cuda, module.Tensor = cuda, type("Tensor", (), {})
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    return framework


def batches_of(folder, **options):
    return ImageLoader(folder, batch_size=8, size=32, threads=2, **options)


def test_g01_batches_use_memory_of_pytorchs_allocator(many, torch):
    expected = list(batches_of(many))
    loader = batches_of(many, device="cuda", allocator="torch")
    for _ in range(4):
        for (images, labels), (wanted, numbers) in zip(loader, expected, strict=True):
            assert torch.has(images) and torch.has(labels)
            numpy.testing.assert_array_equal(images.to_host(), wanted)
            numpy.testing.assert_array_equal(labels.to_host(), numbers)
    # Bounded like driver memory: prefetched batches, the consumer's, and one in between.
    assert len(torch.requested) <= 16
    assert cuda_config(0, allocator="torch").allocator == torch.pair
    del loader, images, labels


def test_g01_an_allocator_failure_is_fatal_with_on_error_skip(many, stub):
    def allocate(size, device, stream):
        raise KeyError("mine")

    loader = batches_of(many, device="cuda", on_error="skip", allocator=(allocate, print))
    with pytest.raises(CudaError, match="KeyError: 'mine'") as raised:
        list(loader)
    assert raised.value.stage == "upload"
    del loader, raised


@pytest.mark.filterwarnings("ignore::spdl_rs.CudaFallbackWarning")
def test_g01_an_allocator_requires_a_device(many, no_driver):
    with pytest.raises(ValueError, match='device is "cpu"'):
        batches_of(many, allocator=(print, print))
    assert batches_of(many, device="auto", allocator=(print, print)).device == "cpu"


@pytest.mark.parametrize("wrong", ["jax", ""])
def test_g01_an_unknown_allocator_name_is_an_error(wrong):
    with pytest.raises(ValueError, match='allocator must be "torch" or a pair of functions'):
        cuda_config(0, allocator=wrong)


@pytest.mark.parametrize(
    "wrong", [5, (print,), (print, 5), (5, print), (print, print, print), [1, 2]]
)
def test_g01_an_allocator_of_another_type_is_an_error(wrong):
    with pytest.raises(TypeError, match='allocator must be "torch" or a pair of functions'):
        cuda_config(0, allocator=wrong)


@pytest.mark.parametrize("held", ["arrays", "capsules", "loop"])
def test_g01_the_allocator_is_not_called_during_finalization(many, libcuda, held):
    script = f"""
        # `atexit` runs this function after those of the package, which is imported later.
        import atexit, sys
        atexit.register(print, "ends")
        import spdl_rs
        # A function of this script would keep its globals alive.
        from test_cuda_allocators import Telling
        pair = Telling().pair
        loader = spdl_rs.ImageLoader(
            sys.argv[1], batch_size=4, size=16, device="cuda", threads=2, allocator=pair
        )
        batches = iter(loader)
        kept = [array for _ in range(3) for array in next(batches)]
        if {held!r} == "capsules":
            kept = [array.__dlpack__() for array in kept]
        if {held!r} != "loop":
            batches.close()
            del batches, loader
            spdl_rs.cuda.release()
    """
    finished = run_child(script, libcuda.parent, many, timeout=30)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.endswith("ends\n")
