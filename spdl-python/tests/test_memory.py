"""Ownership and lifetime of batch memory."""

import gc
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy
import pytest
import spdl_rs
from pipelines import wait_until
from spdl_rs import fields

PHOTOGRAPHS = pathlib.Path(__file__).parents[2] / "assets" / "photos"


def native_of(array):
    base = array.base
    assert type(base).__name__ == "Array"
    return base


def test_arrays_share_native_memory(photos):
    images, labels = next(iter(spdl_rs.ImageLoader(photos, batch_size=4, size=32)))
    for array in (images, labels):
        again = numpy.asarray(native_of(array))
        assert numpy.shares_memory(again, array)
        assert again.ctypes.data == array.ctypes.data
        assert not array.flags.owndata
        assert array.flags.c_contiguous and array.flags.aligned
        assert array.ctypes.data % 64 == 0


def test_arrays_outlive_the_loader(many):
    loader = spdl_rs.ImageLoader(many, batch_size=10, size=64)
    batches = list(loader)
    copies = [(images.copy(), labels.copy()) for images, labels in batches]
    del loader
    gc.collect()
    numpy.empty(10**7, dtype=numpy.uint8).fill(255)
    for (images, labels), (image_copy, label_copy) in zip(batches, copies):
        assert (images == image_copy).all() and (labels == label_copy).all()
    row = batches[0][0][3, 5]
    expected = copies[0][0][3, 5]
    del batches, images, labels
    gc.collect()
    assert (row == expected).all()


def test_live_batches_do_not_overlap(many):
    batches = list(spdl_rs.ImageLoader(many, batch_size=3, size=32))
    arrays = [array for batch in batches for array in batch]
    spans = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))


def test_batches_are_independent(many):
    plain = [images.copy() for images, _ in spdl_rs.ImageLoader(many, batch_size=4, size=32)]
    for (images, labels), expected in zip(
        spdl_rs.ImageLoader(many, batch_size=4, size=32), plain, strict=True
    ):
        assert (images == expected).all()
        assert images.flags.writeable and labels.flags.writeable
        images[...] = 77
        labels[...] = -9


def test_buffers_are_reused(photos):
    paths = [photos / "cat" / "1.png"] * 200
    batches = iter(spdl_rs.ImageLoader(paths, batch_size=2, size=64))
    assert sum(1 for _ in batches) == 100
    buffers = batches.stats()["buffers"]
    # 100 batches of two arrays use as few buffers as are alive at a time.
    assert buffers["allocations"] < 24, buffers


def test_views_keep_batch_memory_alive(photos):
    batches = iter(spdl_rs.ImageLoader([photos / "cat" / "1.png"], batch_size=1, size=64))

    def live_bytes():
        gc.collect()
        return batches.stats()["buffers"]["live_bytes"]

    images, labels = next(batches)
    pixels = 64 * 64 * 3
    assert live_bytes() == pixels + 8
    del labels
    assert live_bytes() == pixels
    view = images[0, ::2]
    del images
    assert live_bytes() == pixels
    del view
    assert live_bytes() == 0


def test_large_files_limit_the_prefetch(photos, tmp_path):
    path = tmp_path / "large.png"
    # Bytes after the end of the image are ignored.
    path.write_bytes((photos / "cat" / "1.png").read_bytes().ljust(4 << 20, b"\0"))
    with iter(spdl_rs.ImageLoader([path] * 2000, batch_size=10, size=64, threads=1)) as batches:
        next(batches)

        def fetched():
            return batches.stats()["stages"][1]["items"]

        # Wait until reading stops, because no batch is consumed.
        before = -1
        while before != fetched():
            before = fetched()
            time.sleep(0.3)
        assert before < 2000
        queue = batches.stats()["queues"][1]
        # The queue has 16 slots, but the memory budget is 16 MiB.
        assert queue["capacity"] == 16 and 1 <= queue["len"] <= 4


def test_batches_larger_than_memory_are_an_error(photos):
    paths = [photos / "cat" / "1.png"] * 2**20
    loader = spdl_rs.ImageLoader(paths, batch_size=2**20, size=2**14, layout="nchw-f32")
    with pytest.raises(spdl_rs.LimitExceededError, match="batches of 1048576 samples"):
        iter(loader)


# Bytes of a batch of one image of 64 x 64 pixels and its label.
BATCH = 64 * 64 * 3 + 8


# promise: R4
@pytest.mark.parametrize("batches", [2, 4])
def test_a_memory_budget_limits_the_batches_in_preparation(many, batches):
    def loader(**options):
        return spdl_rs.ImageLoader(many, batch_size=1, size=64, threads=8, **options)

    def live(loader):
        return loader.stats()["buffers"]["live_bytes"]

    without, limited = loader(), loader(memory_budget=batches * BATCH)
    expected = [images.copy() for images, _ in without]
    iterator = iter(without)
    held = next(iterator)
    wait_until(lambda: live(without) > (batches + 1) * BATCH)
    iterator.close()

    iterator = iter(limited)
    held = next(iterator)
    received = [held[0].copy()]
    # Long enough for all batches that the budget permits.
    time.sleep(0.3)
    assert live(limited) <= (batches + 1) * BATCH
    for held in iterator:
        received.append(held[0].copy())
    del held
    assert limited.stats()["buffers"]["peak_bytes"] <= (batches + 2) * BATCH
    assert len(received) == len(expected) == 40
    assert all(map(numpy.array_equal, received, expected))


# promise: R4
def test_a_memory_budget_without_room_for_the_batches_is_an_error(many):
    loader = spdl_rs.ImageLoader(many, batch_size=3, size=64, memory_budget=6 * BATCH - 1)
    expected = (
        f"^memory_budget={6 * BATCH - 1} is too small for 2 stages with a batch of {3 * BATCH} bytes each; "
        f"set it to {6 * BATCH} or more, or reduce the batch size$"
    )
    with pytest.raises(spdl_rs.InvalidArgumentError, match=expected):
        iter(loader)
    for budget in (1, 9 * BATCH - 1):
        loader = spdl_rs.Loader(
            many,
            batch_size=3,
            image=fields.Image(64),
            label=fields.Label(),
            map=lambda sample: sample,
            memory_budget=budget,
        )
        with pytest.raises(ValueError, match=f"too small for 3 stages .* set it to {9 * BATCH} or more"):
            iter(loader)


# Prints the peak of the resident memory in bytes after small images, and after all images of a folder.
PEAKS = """
import json, sys
import spdl_rs

small, folder, budget, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def peak():
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024

def read(folder, **options):
    loader = spdl_rs.ImageLoader(folder, batch_size=4, size=64, threads=threads, **options)
    return sum(len(labels) for _, labels in loader)

read(small)
peaks = [peak()]
count = read(folder, memory_budget=budget)
print(json.dumps([*peaks, peak(), count]))
"""


def padded(folder, images, count, size):
    """Writes images with zeros after the image, which decoders ignore."""
    folder.mkdir()
    for number in range(count):
        path = folder / f"{number:02}.jpg"
        path.write_bytes(images[number % len(images)])
        os.truncate(path, size)
    return folder


# promise: R4
@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
@pytest.mark.parametrize("allocator", ["glibc", "with thresholds"])
@pytest.mark.parametrize(("kind", "threads"), [("large files", 2), ("photographs", 64)])
def test_resident_memory_stays_within_the_budget(kind, threads, allocator, photos, tmp_path):
    budget = 48_000_000
    if kind == "large files":
        images, count, size = [(photos / "cat" / "1.png").read_bytes()], 12, 16_000_000
    else:
        names = ["life.jpg", "picosdeeuropa.jpg", "aitzgorri.jpg", "wine.jpg"]
        images, count, size = [(PHOTOGRAPHS / name).read_bytes() for name in names], 48, 10_000_000
    folder = padded(tmp_path / "padded", images, count, size)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    if allocator == "with thresholds":
        # As the program `spdl` sets them.
        variables |= {"MALLOC_MMAP_THRESHOLD_": "4194304", "MALLOC_TRIM_THRESHOLD_": "4194304"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", PEAKS, str(photos), str(folder), str(budget), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stderr
    before, after, found = json.loads(done.stdout)
    assert found == count
    print(f"{kind}, {allocator}: {(after - before) / 1e6:.0f} MB")
    assert after - before <= budget + 64_000_000


def test_a_state_is_valid_for_another_memory_budget(many):
    first = spdl_rs.ImageLoader(many, batch_size=8, size=64)
    next(iter(first))
    second = spdl_rs.ImageLoader(many, batch_size=8, size=64, memory_budget=16 * BATCH)
    second.load_state_dict(first.state_dict())
    assert len(list(second)) == 4


def test_invalid_memory_budgets_are_errors(many):
    with pytest.raises(ValueError, match="memory_budget"):
        spdl_rs.ImageLoader(many, batch_size=1, memory_budget=0)
    with pytest.raises(TypeError, match="memory_budget"):
        spdl_rs.Loader(many, batch_size=1, label=fields.Label(), memory_budget="1 GB")
