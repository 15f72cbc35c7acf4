"""Transfer of batches to a device and back."""

import collections
import dataclasses
import gc
import typing

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from dlpack_consumer import Consumed
from spdl_rs import CudaError, Loader, fields
from spdl_rs.cuda import DeviceArray, _devices
from spdl_rs.io import (
    Array,
    cpu_storage,
    cuda_config,
    transfer_buffer_cpu,
    transfer_tensor,
    transfer_tensor_d2h,
    transfer_tensor_h2d,
)
from spdl_rs.pipeline import PipelineBuilder


@dataclasses.dataclass(frozen=True)
class Sample:
    image: typing.Any
    name: str
    extra: dict = dataclasses.field(default_factory=dict)


class Pair(typing.NamedTuple):
    first: typing.Any
    second: typing.Any


def numbers(seed, shape=(3, 5), dtype="f4"):
    return numpy.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def nested():
    return {
        "list": [numbers(1), numbers(2, (7,), "u1")],
        "tuple": (numbers(3, (), "i8"), None, "text"),
        "named": Pair(numbers(4, (1, 2), "?"), 5),
        "default": collections.defaultdict(list, {"x": numbers(5, (0, 3))}),
        "ordered": collections.OrderedDict(a=numbers(6), b=b"bytes"),
        "class": Sample(numbers(7, (2, 2), "f2"), "name", {"deep": [numbers(8)]}),
    }


def flat(value):
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in flat(one)]
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in flat(one)]
    if isinstance(value, Sample):
        return [*flat(value.image), value.name, *flat(value.extra)]
    return [value]


# promise: DEV1
def test_g04_a_nested_batch_keeps_its_structure(stub):
    batch = nested()
    placed = transfer_tensor(batch)
    leaves = [leaf for leaf in flat(placed) if isinstance(leaf, DeviceArray)]
    assert len(leaves) == 8
    back = transfer_tensor_d2h(placed)
    for made in (placed, back):
        assert list(made) == list(batch)
        assert [type(value) for value in made.values()] == [type(value) for value in batch.values()]
    assert back["default"].default_factory is list
    assert back["tuple"][1:] == (None, "text") and back["ordered"]["b"] == b"bytes"
    for one, other in zip(flat(back), flat(batch), strict=True):
        if isinstance(other, numpy.ndarray):
            assert one.dtype == other.dtype and one.shape == other.shape
        numpy.testing.assert_array_equal(one, other)


# promise: DEV1
def test_g04_all_arrays_of_a_batch_are_transferred_in_one_copy(stub):
    transfer_tensor(numbers(1))
    before = spdl_rs.cuda.memory_statistics()["allocations"]
    placed = transfer_tensor([numbers(index) for index in range(20)])
    assert spdl_rs.cuda.memory_statistics()["allocations"] == before + 1
    addresses = [array.__cuda_array_interface__["data"][0] for array in placed]
    assert len(set(addresses)) == 20
    assert all((address - addresses[0]) % 256 == 0 for address in addresses)
    for index, array in enumerate(placed):
        numpy.testing.assert_array_equal(array.to_host(), numbers(index))
        consumed = Consumed(array.__dlpack__())
        numpy.testing.assert_array_equal(consumed.numpy("f4"), numbers(index))
        consumed.delete()


# promise: DEV1
def test_g04_any_memory_layout_and_byte_order_is_transferred(stub):
    whole = numpy.arange(60, dtype=">i4").reshape(3, 4, 5)
    for array in (whole, whole.T, whole[::2, 1:, ::-1], numpy.asfortranarray(whole)):
        placed = transfer_tensor(array)
        assert placed.dtype == "int32"
        numpy.testing.assert_array_equal(placed.to_host(), array)


def test_g04_a_batch_without_arrays_is_returned_unchanged(stub):
    batch = {"a": [1, "two", None]}
    assert transfer_tensor(batch) is batch


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "V4"])
def test_g04_arrays_of_unsupported_dtypes_are_errors(stub, dtype):
    with pytest.raises(TypeError, match="cannot be uploaded to a device"):
        transfer_tensor([numpy.zeros(3), numpy.zeros(2, dtype)])


# promise: G1
def test_g04_kept_batches_are_not_overwritten(stub):
    # SPDL rotates four buffers and overwrites the oldest.
    placed = [transfer_tensor(numpy.full(100, number), num_caches=1) for number in range(30)]
    for number, array in enumerate(placed):
        numpy.testing.assert_array_equal(array.to_host(), numpy.full(100, number))


def test_g04_memory_of_dropped_batches_is_reused(stub):
    for number in range(50):
        array = transfer_tensor(numpy.full(100_000, number))
        numpy.testing.assert_array_equal(array.to_host()[:3], [number] * 3)
        del array
    assert spdl_rs.cuda.memory_statistics()["allocations"] <= 4


def test_g04_local_rank_selects_the_device(stub, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert transfer_tensor(numbers(1)).device == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(RuntimeError, match="LOCAL_RANK is 1, but there are 1 CUDA devices"):
        transfer_tensor(numbers(1))
    assert transfer_tensor(numbers(1), device="cuda:0").device == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(RuntimeError, match="'x'"):
        transfer_tensor(numbers(1))


def test_g04_the_driver_is_loaded_once_per_rank(stub, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    placed = transfer_tensor(numbers(1))
    # So the next driver call is the first of the second transfer.
    stub.fail(0)
    with pytest.raises(CudaError):
        transfer_tensor(numbers(2))
    assert stub.last_call() not in ("cuInit", "cuDeviceGetCount")
    numpy.testing.assert_array_equal(placed.to_host(), numbers(1))


def test_a_staging_buffer_is_unusable_after_its_upload(stub):
    staging = spdl_rs._spdl_rs.Staging(_devices.opened("cuda"), 8)
    numpy.asarray(staging)[:] = 3
    memory = staging.upload()
    for use in (lambda: numpy.asarray(staging), staging.upload):
        with pytest.raises(RuntimeError, match="already uploaded"):
            use()
    numpy.testing.assert_array_equal(numpy.asarray(memory.download(0, 8, None)), [3] * 8)


def test_g04_device_cpu_is_an_error(stub):
    with pytest.raises(ValueError, match='"cuda"'):
        transfer_tensor(numbers(1), device="cpu")


def test_g04_transfer_works_as_a_pipeline_stage(stub):
    builder = PipelineBuilder().add_source([{"x": numbers(seed)} for seed in range(6)])
    pipeline = builder.pipe(transfer_tensor_h2d).add_sink(2).build(num_threads=1)
    with pipeline.auto_stop():
        for seed, batch in enumerate(pipeline):
            numpy.testing.assert_array_equal(batch["x"].to_host(), numbers(seed))
    del batch, pipeline, builder


def test_g04_transfer_works_as_a_function_of_a_loader(stub, tmp_path):
    items = []
    for seed in range(6):
        write_png(tmp_path / "image.png", picture(seed))
        items.append({"image": (tmp_path / "image.png").read_bytes(), "text": str(seed)})
    settings = dict(batch_size=2, image=fields.Image(8), text=fields.Text(), index=fields.Index())
    expected = list(Loader(items, **settings))
    for batch, host in zip(Loader(items, batch_map=transfer_tensor, **settings), expected, strict=True):
        assert isinstance(batch["image"], DeviceArray) and batch["text"] == host["text"]
        for name in ("image", "index"):
            numpy.testing.assert_array_equal(batch[name].to_host(), host[name])
    del batch


def test_g03_a_download_waits_for_the_stream(stub):
    array = transfer_tensor(numbers(1))
    numpy.testing.assert_array_equal(transfer_buffer_cpu(array, stream=4096), numbers(1))
    assert stub.recording_before() == 4096
    assert transfer_buffer_cpu(array).dtype == numpy.float32
    with pytest.raises(TypeError, match="DeviceArray"):
        transfer_buffer_cpu(numbers(1))


class Event:
    def __init__(self, number):
        self.cuda_event = number


class Stream:
    cuda_stream = 0x5000


@pytest.mark.parametrize("event", [0x7000, Event(0x7000)])
def test_g04_a_download_waits_for_the_producer_event(stub, event):
    placed = transfer_tensor({"a": numbers(1)})
    for _ in range(2):
        back = transfer_tensor_d2h(placed, producer_event=event)
        assert stub.awaited() == 0x7000
        numpy.testing.assert_array_equal(back["a"], numbers(1))
    # It waits for no stream: events were recorded only after the copies.
    assert stub.recording() == stub.recording_before()


@pytest.mark.parametrize("event", [None, Event(0x7000)])
@pytest.mark.parametrize("stream", [0x5000, Stream()])
def test_g04_a_download_waits_for_stream_and_event(stub, stream, event):
    placed = transfer_tensor(numbers(1))
    transfer_tensor_d2h(placed, stream=stream, producer_event=event)
    assert stub.recording_before() == 0x5000
    assert (stub.awaited() == 0x7000) == (event is not None)


def test_g04_an_unrecorded_event_is_ignored(stub):
    placed = transfer_tensor(numbers(1))
    transfer_tensor_d2h(placed, producer_event=0x7000)
    numpy.testing.assert_array_equal(
        transfer_tensor_d2h(placed, producer_event=Event(0)), numbers(1)
    )
    assert transfer_tensor_h2d(numbers(1), producer_event=Event(0)).shape == (3, 5)


@pytest.mark.parametrize("transfer", [transfer_tensor_h2d, transfer_tensor_d2h])
@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"producer_event": 0}, ValueError),
        ({"producer_event": -1}, ValueError),
        ({"producer_event": 2**70}, ValueError),
        ({"producer_event": True}, TypeError),
        ({"producer_event": "1"}, TypeError),
        ({"stream": 0}, ValueError),
        ({"stream": "1"}, TypeError),
        ({"device": "cpu"}, ValueError),
        ({"device": "gpu"}, ValueError),
        ({"device": 0}, TypeError),
    ],
)
def test_g04_invalid_streams_events_and_devices_are_errors(stub, transfer, wrong, error):
    batch = transfer_tensor(numbers(1)) if transfer is transfer_tensor_d2h else numbers(1)
    with pytest.raises(error):
        transfer([batch], **wrong)


def test_g04_arrays_of_other_devices_are_not_downloaded(stub):
    placed = transfer_tensor([numbers(1)])
    (there,) = transfer_tensor_d2h(placed, device="cuda:1")
    assert there is placed[0]
    for device in ("cuda", "cuda:0", None):
        (here,) = transfer_tensor_d2h(placed, device=device)
        numpy.testing.assert_array_equal(here, numbers(1))


def test_g04_the_stream_waits_for_the_upload(stub):
    for stream in (0x5000, Stream()):
        placed = transfer_tensor_h2d([numbers(1), numbers(2)], stream=stream)
        assert stub.waiting() == 0x5000
        # The stream is a user of the memory.
        del placed
        gc.collect()
        assert stub.recording() == 0x5000


def test_g04_an_upload_waits_for_the_producer_event(stub):
    spdl_rs.cuda.release()
    transfer_tensor_h2d(numbers(1), producer_event=0x7000)
    requested = False
    for call in range(40):
        spdl_rs.cuda.release()
        stub.fail(call)
        try:
            placed = transfer_tensor_h2d(numbers(1), producer_event=Event(0x7000))
        except CudaError:
            if stub.last_call() == "cuEventQuery":
                # No memory was allocated for the batch before.
                requested = True
                assert not {"locked", "memory"} & stub.ledger().keys()
                break
        else:
            del placed
        stub.fail(-1)
    assert requested


def test_g01_cuda_config_is_validated():
    assert cuda_config(3, stream=1).device_index == 3 and cuda_config(0).stream == 2
    for bad in ({"device_index": -1}, {"device_index": 0, "stream": 0}):
        with pytest.raises(ValueError):
            cuda_config(**bad)
    with pytest.raises(TypeError):
        cuda_config("cuda")


def test_v16_pinned_memory_is_writable_and_reused(stub):
    storage = cpu_storage(100_000)
    assert isinstance(storage, Array) and storage.shape == (100_000,)
    assert stub.ledger()["locked"] == 1
    view = numpy.asarray(storage)
    view[:] = 3
    numpy.testing.assert_array_equal(transfer_tensor(storage).to_host(), view)
    locked = stub.ledger()["locked"]
    del storage, view
    cpu_storage(100_000)
    assert stub.ledger()["locked"] == locked


def test_promise_g11_any_driver_call_may_fail_without_leaks(stub):
    def there_and_back():
        placed = transfer_tensor({"a": numbers(1), "b": numbers(2)})
        capsule = placed["a"].__dlpack__(stream=4096)
        placed["b"].record_stream(8192)
        back = transfer_tensor_d2h(placed)
        del capsule
        numpy.testing.assert_array_equal(back["a"], numbers(1))

    stub.fail(-1)
    there_and_back()
    spdl_rs.cuda.release()
    calls, reported = stub.calls(), 0
    assert calls > 20
    for code in (1, 2, 801, 4242):
        for call in range(calls):
            stub.fail(call, code)
            try:
                there_and_back()
            except CudaError as error:
                reported += 1
                assert stub.last_call() in str(error)
            spdl_rs.cuda.release()
            assert stub.ledger() == {}, (call, code, stub.last_call())
    assert reported > calls
