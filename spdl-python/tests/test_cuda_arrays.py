"""Device arrays: exchange with other libraries, streams and lifetime."""

import gc
import os
import sys
import threading

import numpy
import pytest
import spdl_rs
from cuda_stub import compiled, run_child
from dlpack_consumer import Consumed
from spdl_rs import InvalidArgumentError
from spdl_rs.cuda import DeviceArray, _devices
from spdl_rs.io import Array, cpu_storage, cuda_config, transfer_buffer, transfer_tensor

LEGACY, PER_THREAD, NONE = 1, 2, -1


class Numbered:
    """A stream object with CuPy's attributes."""

    def __init__(self, number):
        self.ptr = number


def on_device(array):
    return transfer_tensor(array)


def live():
    gc.collect()
    return spdl_rs.cuda.memory_statistics()["live_bytes"]


def counted():
    return on_device(numpy.arange(24, dtype="f4").reshape(2, 3, 4))


def test_properties_and_repr_of_an_array(stub):
    array = counted()
    assert isinstance(array, DeviceArray)
    assert (array.shape, array.ndim, array.size, array.nbytes) == ((2, 3, 4), 3, 24, 96)
    assert (array.dtype, array.device, len(array)) == ("float32", "cuda:0", 2)
    assert repr(array) == "DeviceArray(float32 [2, 3, 4] on cuda:0)"
    # The stub reports every second event query as complete.
    assert {array.is_ready(), array.is_ready()} == {False, True}
    array.wait()
    with pytest.raises(TypeError, match="no length"):
        len(on_device(numpy.zeros(())))


# promise: DEV1
def test_to_host_returns_equal_elements(stub):
    array = counted()
    numpy.testing.assert_array_equal(array.to_host(), numpy.arange(24, dtype="f4").reshape(2, 3, 4))


def test_numpy_asarray_is_an_error_with_advice(stub):
    array = counted()
    with pytest.raises(TypeError, match="to_host"):
        numpy.asarray(array)


# promise: PY3
@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_shares_the_memory(stub, versioned):
    array = counted()
    consumed = Consumed(array.__dlpack__(max_version=(1, 1) if versioned else None))
    assert consumed.versioned == versioned
    if versioned:
        assert (consumed.managed.major, consumed.managed.flags) == (1, 0)
    assert consumed.device == array.__dlpack_device__() == (2, 0)
    assert (consumed.shape, consumed.strides) == ((2, 3, 4), (12, 4, 1))
    assert (consumed.element, consumed.byte_offset) == ((2, 32, 1), 0)
    numpy.testing.assert_array_equal(consumed.numpy("f4").ravel(), numpy.arange(24))
    consumed.delete()


# promise: PY3
@pytest.mark.parametrize(
    "max_version, versioned", [((0, 8), False), ((1, 0), True), ((2, 3), True)]
)
def test_capsules_respect_max_version(stub, max_version, versioned):
    array = counted()
    consumed = Consumed(array.__dlpack__(max_version=max_version))
    assert consumed.versioned == versioned
    consumed.delete()


# promise: PY3
@pytest.mark.parametrize(
    "dtype, element",
    [
        ("u1", (1, 8)),
        ("i8", (0, 64)),
        ("f2", (2, 16)),
        ("f8", (2, 64)),
        ("?", (6, 8)),
        ("c8", (5, 64)),
    ],
)
def test_elements_have_the_dlpack_type(stub, dtype, element):
    consumed = Consumed(on_device(numpy.ones((2, 2), dtype)).__dlpack__())
    assert consumed.element == (*element, 1)
    numpy.testing.assert_array_equal(consumed.numpy(dtype), numpy.ones((2, 2), dtype))
    consumed.delete()


# promise: PY3
def test_bfloat16_is_exported_by_dlpack_only(stub):
    array = on_device(Array((2, 3), "bfloat16"))
    assert (array.dtype, array.nbytes) == ("bfloat16", 12)
    consumed = Consumed(array.__dlpack__())
    assert consumed.element == (4, 16, 1)
    consumed.delete()
    assert not hasattr(array, "__cuda_array_interface__")
    assert array.to_host().dtype == numpy.dtype("V2")


# promise: PY3
def test_a_consumer_keeps_the_memory_alive(stub):
    base = live()
    array = on_device(numpy.full(1000, 7, "u1"))
    consumed = Consumed(array.__dlpack__())
    del array
    assert live() > base
    numpy.testing.assert_array_equal(consumed.numpy("u1"), numpy.full(1000, 7))
    consumed.delete()
    assert live() == base


# promise: PY3
def test_a_deleter_may_be_called_by_any_thread_without_the_gil(stub):
    base = live()
    consumers = [Consumed(on_device(numpy.ones(100)).__dlpack__()) for _ in range(20)]
    # `ctypes` releases the GIL during the call.
    threads = [threading.Thread(target=consumer.delete) for consumer in consumers]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert live() == base


# promise: PY3
@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_an_unused_capsule_frees_the_memory(stub, max_version):
    base = live()
    capsule = on_device(numpy.ones(100)).__dlpack__(max_version=max_version)
    assert live() > base
    del capsule
    assert live() == base


def test_a_capsule_dropped_by_an_exception_keeps_the_exception(stub):
    array = counted()

    def drop_it():
        capsule = array.__dlpack__()
        raise KeyError("mine", sys.getrefcount(capsule))

    with pytest.raises(KeyError, match="mine"):
        drop_it()


# promise: PY3
@pytest.mark.parametrize(
    "stream, waits", [(None, LEGACY), (1, LEGACY), (2, PER_THREAD), (4096, 4096)]
)
def test_the_stream_of_the_consumer_waits_for_the_copy(stub, stream, waits):
    array = counted()
    array.__dlpack__(stream=12288)
    consumed = Consumed(array.__dlpack__(stream=stream))
    assert stub.waiting() == waits
    consumed.delete()
    del array
    gc.collect()


def test_stream_minus_1_does_not_synchronize(stub):
    array = counted()
    array.__dlpack__(stream=4096)
    array.__dlpack__(stream=NONE)
    assert stub.waiting() == 4096


@pytest.mark.parametrize("stream", [0, -2, 2**63, -(2**70)])
def test_invalid_stream_numbers_are_errors(stub, stream):
    array = counted()
    for use in (lambda: array.__dlpack__(stream=stream), lambda: array.record_stream(stream)):
        with pytest.raises(ValueError, match="invalid (CUDA )?stream"):
            use()


@pytest.mark.parametrize("stream", ["1", 1.5, True, object()])
def test_streams_of_another_type_are_errors(stub, stream):
    array = counted()
    with pytest.raises(TypeError, match="stream must be"):
        array.__dlpack__(stream=stream)


# promise: G1
def test_memory_waits_for_the_streams_that_used_it(stub):
    array = on_device(numpy.ones(3))
    array.record_stream(8192)
    del array
    gc.collect()
    assert stub.recording() == 8192


@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD, 4096])
def test_use_on_a_captured_stream_is_an_error(stub, stream):
    used, unused = counted(), counted()
    used.record_stream(stream)
    stub.capture(stream)
    before = stub.disturbed()
    uses = [
        lambda: unused.__dlpack__(stream=stream),
        lambda: unused.to_host(stream=Numbered(stream)),
    ]
    if stream == LEGACY:
        uses.append(lambda: unused.__cuda_array_interface__)
    for use in uses:
        with pytest.raises(InvalidArgumentError, match="during the capture of a CUDA graph"):
            use()
    del used
    gc.collect()
    assert stub.disturbed() == before
    # Memory that the graph may use is not reused.
    assert spdl_rs.cuda.memory_statistics()["unsure_bytes"] == 512
    stub.capture(0)
    unused.__dlpack__(stream=stream)
    assert stub.waiting() == stream


# promise: PY3
def test_streams_of_pytorch_and_cupy_are_accepted(stub):
    class TorchStream:
        cuda_stream = 0x4000

    class CupyStream:
        ptr = 0

    array = on_device(numpy.ones(3))
    array.record_stream(TorchStream())
    array.record_stream(CupyStream())
    del array
    gc.collect()
    assert stub.recording() == LEGACY


# promise: PY3
def test_dlpack_copies_to_the_host_only(stub):
    array = counted()
    with pytest.raises(BufferError, match="cannot be copied on its device"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="without a copy"):
        array.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="cannot export"):
        array.__dlpack__(dl_device=(2, 1))
    consumed = Consumed(array.__dlpack__(dl_device=(1, 0)))
    assert consumed.device == (1, 0)
    numpy.testing.assert_array_equal(consumed.numpy("f4").ravel(), numpy.arange(24))
    consumed.delete()
    consumed = Consumed(array.__dlpack__(dl_device=(2, 0), copy=False))
    assert consumed.device == (2, 0)
    consumed.delete()


# promise: PY3
def test_b2_the_cuda_array_interface_is_version_3_with_a_stream_that_is_not_0(stub):
    array = counted()
    array.__dlpack__(stream=12288)
    interface = array.__cuda_array_interface__
    assert interface["version"] == 3 and interface["stream"] == LEGACY
    assert (interface["shape"], interface["typestr"]) == ((2, 3, 4), "<f4")
    assert interface["strides"] is None and interface["data"][1] is False
    assert stub.waiting() == LEGACY
    consumed = Consumed(array.__dlpack__())
    assert consumed.data == interface["data"][0]
    consumed.delete()
    assert isinstance(array, spdl_rs.io.CUDAArrayInterface)


# promise: PY3
def test_an_empty_array_has_no_address(stub):
    array = on_device(numpy.zeros((0, 5), "f4"))
    assert array.to_host().shape == (0, 5)
    assert array.__cuda_array_interface__["data"][0] == 0
    consumed = Consumed(array.__dlpack__())
    assert consumed.shape == (0, 5) and consumed.data is None
    consumed.delete()


def test_g02_a_buffer_may_change_after_the_transfer_call(stub):
    buffer = Array((4,), "uint8")
    view = numpy.asarray(buffer)
    view[:] = 5
    array = transfer_buffer(buffer, device_config=cuda_config(0))
    view[:] = 9
    assert stub.waiting() == PER_THREAD
    numpy.testing.assert_array_equal(array.to_host(), [5, 5, 5, 5])
    transfer_buffer(buffer, device_config=cuda_config(0, stream=4096))
    assert stub.waiting() == 4096


def test_g02_a_buffer_in_pinned_memory_is_copied_like_any_other(stub):
    storage = cpu_storage(100)
    numpy.asarray(storage)[:] = 7
    array = transfer_buffer(storage, device_config=cuda_config(0))
    numpy.asarray(storage)[:] = 9
    numpy.testing.assert_array_equal(array.to_host(), [7] * 100)
    with pytest.raises(TypeError, match="__array_interface__"):
        transfer_buffer([1, 2], device_config=cuda_config(0))


# promise: PY3
def test_g10_a_buffer_has_device_index_and_cuda_array_interface(stub):
    array = transfer_buffer(numpy.ones((2, 3), "f4"), device_config=cuda_config(0))
    assert array.device_index == 0
    interface = array.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"]) == ((2, 3), "<f4")
    address, is_read_only = interface["data"]
    assert address > 0 and not is_read_only


def test_freeing_memory_releases_the_gil(tmp_path):
    libcuda = compiled(tmp_path, counts_gil=True)
    script = """
        import ctypes, gc, sys, numpy, spdl_rs
        driver = ctypes.CDLL(sys.argv[1])
        array = spdl_rs.io.transfer_tensor(numpy.ones(1000))
        array.record_stream(4096)
        before = driver.gil_calls()
        del array
        gc.collect()
        arrays = driver.gil_calls()
        assert arrays > before, "the array freed nothing"
        spdl_rs.cuda.release()
        assert driver.gil_calls() > arrays + 1, "the device freed nothing"
        print(driver.gil_calls_with_gil(), "with the GIL")
    """
    finished = run_child(script, libcuda.parent, libcuda, timeout=30)
    assert (finished.returncode, finished.stdout) == (0, "0 with the GIL\n"), finished.stderr


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_freeing_an_unused_capsule_releases_the_gil(tmp_path, max_version):
    libcuda = compiled(tmp_path, counts_gil=True)
    script = f"""
        import ctypes, gc, sys, numpy, spdl_rs
        driver = ctypes.CDLL(sys.argv[1])
        array = spdl_rs.io.transfer_tensor(numpy.ones(1000))
        capsule = array.__dlpack__(stream=4096, max_version={max_version})
        del array
        spdl_rs.cuda.release()
        before = driver.gil_calls()
        # The capsule also holds the last reference to the device.
        del capsule
        gc.collect()
        assert driver.gil_calls() > before + 2, "the capsule freed nothing"
        print(driver.gil_calls_with_gil(), "with the GIL")
    """
    finished = run_child(script, libcuda.parent, libcuda, timeout=30)
    assert (finished.returncode, finished.stdout) == (0, "0 with the GIL\n"), finished.stderr


class Interrupt:
    """Raises KeyboardInterrupt before bytecode step `step` of the package's Python code."""

    def __init__(self, step):
        self.left = step

    def __call__(self, frame, event, argument):
        if "spdl_rs" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_ctrl_c_during_capsule_creation_leaks_no_memory(stub, max_version):
    base = live()
    handled, before = 0, sys.gettrace()
    # Python 3.12 traces opcodes only if a frame has this flag.
    sys._getframe().f_trace_opcodes = True
    while True:
        array = on_device(numpy.ones(100))
        try:
            sys.settrace(Interrupt(handled))
            capsule = array.__dlpack__(max_version=max_version, stream=4096)
        except KeyboardInterrupt:
            handled += 1
        else:
            break
        finally:
            sys.settrace(before)
            del array
        assert live() == base, f"at step {handled}"
    assert handled > 30
    del capsule
    assert live() == base


def test_devices_are_released_without_the_lock_held(monkeypatch):
    entered = []

    class Slow:
        def __del__(self):
            thread = threading.Thread(target=enter, daemon=True)
            thread.start()
            thread.join(5)
            entered.append(not thread.is_alive())

    def enter():
        with _devices._lock.held():
            pass

    monkeypatch.setattr(_devices, "_open", {(os.getpid(), 7): Slow()})
    spdl_rs.cuda.release()
    assert entered == [True] and _devices._open == {}
