"""Image loaders that upload batches to a device."""

import gc
import os
import signal
import sys

import numpy
import pytest
import spdl_rs
from cuda_stub import run_child
from dlpack_consumer import Consumed
from spdl_rs import CudaError, ImageLoader
from spdl_rs.cuda import DeviceArray


def loader_of(folder, device="cuda", **options):
    options = {"batch_size": 8, "size": 32, "threads": 2, **options}
    return ImageLoader(folder, device=device, **options)


def on_host(batches):
    return [(images.to_host(), labels.to_host()) for images, labels in batches]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        for array, wanted in zip(one, other):
            assert array.dtype == wanted.dtype
            numpy.testing.assert_array_equal(array, wanted)


# promise: DEV1
@pytest.mark.parametrize("layout", ["nhwc-u8", "nchw-f32", "nchw-f16"])
def test_device_batches_equal_host_batches(many, stub, layout):
    options = {"layout": layout, "train": True, "seed": 3}
    expected = list(loader_of(many, "cpu", **options))
    loader = loader_of(many, **options)
    assert loader.device == "cuda:0" and "on cuda:0;" in repr(loader)
    for images, labels in loader:
        assert isinstance(images, DeviceArray) and isinstance(labels, DeviceArray)
        assert images.device == "cuda:0" and labels.dtype == "int64"
    del images, labels
    # Compare the second epochs.
    assert_same(on_host(loader), list(_second(many, options)))
    assert len(expected) == 5
    stages = [stage["name"] for stage in loader.stats()["stages"]]
    assert stages == ["source", "fetch", "decode", "upload"]
    del loader


def _second(folder, options):
    loader = loader_of(folder, "cpu", **options)
    loader.set_epoch(1)
    return loader


# promise: PY3
def test_batches_are_consumed_by_dlpack_during_an_epoch(many, stub):
    expected = list(loader_of(many, "cpu"))
    kept = []
    for images, labels in loader_of(many):
        kept.append((Consumed(images.__dlpack__(stream=1)), Consumed(labels.__dlpack__(stream=2))))
    del images, labels
    for (images, labels), (wanted_images, wanted_labels) in zip(kept, expected):
        numpy.testing.assert_array_equal(images.numpy("u1"), wanted_images)
        numpy.testing.assert_array_equal(labels.numpy("i8"), wanted_labels)
        images.delete()
        labels.delete()


# promise: G9
def test_g9_epochs_reuse_memory(many, stub):
    loader = loader_of(many)
    for _ in range(2):
        for _ in loader:
            pass
    allocations = spdl_rs.cuda.memory_statistics()["allocations"]
    for _ in range(6):
        for _ in loader:
            pass
    statistics = spdl_rs.cuda.memory_statistics()
    # Batch buffers are pinned memory.
    assert stub.ledger()["locked"] > 0
    # Prefetched batches, the consumer's, and those in transfer, for images and labels.
    assert statistics["allocations"] <= allocations + 4
    batch = 8 * 32 * 32 * 3
    assert statistics["peak_bytes"] <= 8 * (batch + 512)
    del loader


def test_g9_dropped_batches_leak_no_objects(many, stub):
    def epoch(loader):
        for images, labels in loader:
            Consumed(images.__dlpack__(stream=4096)).delete()
            labels.__dlpack__(max_version=(1, 0))
        gc.collect()
        return sys.getallocatedblocks()

    loader = loader_of(many, batch_size=2)
    for _ in range(3):
        epoch(loader)
    before = epoch(loader)
    blocks = [epoch(loader) for _ in range(5)]
    # One leaked object per batch would be 100 blocks.
    assert blocks[-1] < before + 50
    del loader


def test_a_loader_resumes_a_device_epoch(many, stub):
    expected = on_host(loader_of(many))
    loader = loader_of(many)
    batches = iter(loader)
    first = on_host([next(batches), next(batches)])
    state = loader.state_dict()
    batches.close()
    again = loader_of(many)
    again.load_state_dict(state)
    assert_same(first + on_host(again), expected)
    del loader, batches, again


# promise: DEV1
def test_a_device_state_resumes_on_the_host(many, stub):
    loader = loader_of(many)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    expected = list(loader_of(many, "cpu"))
    again = loader_of(many, "cpu")
    again.load_state_dict(state)
    assert_same(list(again), expected[1:])
    del loader, batches


def test_leaving_the_loop_releases_the_device(many, stub):
    for _ in loader_of(many):
        break


def test_batches_outlive_their_loader(many, stub):
    loader = loader_of(many)
    batches = list(loader)
    del loader
    spdl_rs.cuda.release()
    assert_same(on_host(batches), list(loader_of(many, "cpu")))


def test_two_loaders_share_the_device(many, stub):
    one, other = loader_of(many), loader_of(many, "cuda:0")
    assert stub.ledger()["contexts"] == 1
    assert_same(on_host(one), on_host(other))
    del one, other


def test_promise_g11_any_driver_call_may_fail_without_leaks(many, stub):
    files = sorted(str(path) for path in many.glob("*/*.png"))[:6]

    def load():
        for images, labels in loader_of(files, batch_size=3, size=8, threads=1):
            Consumed(images.__dlpack__(stream=4096)).delete()
            labels.to_host()

    stub.fail(-1)
    load()
    spdl_rs.cuda.release()
    # Epochs differ in the number of driver calls, because completion is polled.
    calls, reported = stub.calls(), 0
    for call in range(calls):
        stub.fail(call, 801 if call % 2 else 4242)
        try:
            load()
        except CudaError as error:
            reported += 1
            assert stub.last_call() in str(error)
        spdl_rs.cuda.release()
        assert stub.ledger() == {}, (call, stub.last_call())
    assert reported > calls / 4


def test_promise_g11_a_failed_upload_names_the_stage_and_the_error(many, stub):
    loader = loader_of(many)
    stub.fail(0, 2)
    # The next driver call allocates memory for the first upload, or starts the upload.
    with pytest.raises(CudaError) as raised:
        list(loader)
    assert raised.value.kind == "limit-exceeded"
    assert raised.value.stage in ("upload", "decode")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in str(raised.value)
    del loader, raised


INHERITED = {
    "a loader": "kept = [loader]",
    "an array": "arrays[0].record_stream(4096); kept = [arrays[0]]",
    "a tensor": "kept = [arrays[0].__dlpack__(stream=4096)]",
    "pinned memory": "kept = [spdl_rs.io.cpu_storage(5000)]",
}


# promise: R8
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("inherited", INHERITED)
def test_a_forked_child_gets_an_error_and_makes_no_driver_calls(many, libcuda, inherited):
    script = f"""
        import gc, os, sys, spdl_rs, cuda_stub
        from spdl_rs.cuda import _devices
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16, device="cuda", threads=2)
        arrays = [array for batch in loader for array in batch]
        {INHERITED[inherited]}
        del arrays
        stub = cuda_stub.Stub(sys.argv[2])
        child = os.fork()
        if child == 0:
            for start in (lambda: iter(loader), loader.peek, lambda: loader.steps(0, 0, 1)):
                try:
                    start()
                    os._exit(99)
                except spdl_rs.CudaUnavailable as error:
                    assert "spawn" in str(error)
            stub.fail(-1)
            # As during finalization.
            del loader
            _devices._open.clear()
            kept.clear()
            gc.collect()
            os._exit(stub.calls())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(list(loader)) == 10
    """
    finished = run_child(script, libcuda.parent, many, libcuda, timeout=30)
    assert finished.returncode == 0, finished.stderr


ENDS = {
    "at the end of the program": ("pass", 0),
    "by an exception": ("raise KeyError('mine')", 1),
    "by sys.exit": ("import sys; sys.exit(7)", 7),
    "by os._exit": ("import os; os._exit(9)", 9),
    "by SIGINT": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "by SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("held", ["nothing", "batches", "capsules", "loop"])
def test_promise_g12_a_process_with_device_batches_exits_with_its_code(many, libcuda, how, held):
    statement, code = ENDS[how]
    script = f"""
        import sys, spdl_rs
        from dlpack_consumer import Consumed
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16, device="cuda", threads=2)
        held = {held!r}
        batches = iter(loader)
        kept = []
        if held != "nothing":
            kept = [array for batch in batches for array in batch]
        if held == "capsules":
            kept = [kept, [array.__dlpack__() for array in kept[:3]]]
            kept.append([Consumed(array.__dlpack__(max_version=(1, 0))) for array in kept[0]])
        if held == "loop":
            batches = iter(loader)
            next(batches)
        {statement}
    """
    finished = run_child(script, libcuda.parent, many, timeout=30)
    assert finished.returncode == code, finished.stderr
    assert "panic" not in finished.stderr and "Fatal Python error" not in finished.stderr


def test_promise_g12_ctrl_c_interrupts_a_loop_over_device_batches(many, libcuda):
    script = """
        import os, signal, sys, threading, time, spdl_rs
        loader = spdl_rs.ImageLoader(sys.argv[1], batch_size=4, size=16, device="cuda", threads=2)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                for images, labels in loader:
                    images.to_host()
        except KeyboardInterrupt:
            print("handled")
    """
    finished = run_child(script, libcuda.parent, many, timeout=30)
    assert (finished.returncode, finished.stdout) == (0, "handled\n"), finished.stderr
