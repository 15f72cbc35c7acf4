"""Feature group A: shared memory that carries items between processes."""

import functools
import gc
import os
import pathlib
import signal
import time

import in_processes as work
import media_files as media
import numpy
import pytest
from pipelines import source, wait_until
from spdl_rs.io import convert_frames, decode_packets
from spdl_rs.io.utils import get_ffmpeg_versions
from spdl_rs.pipeline import (
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    iterate_in_subprocess,
    run_pipeline_in_subprocess,
)
from test_subprocess import gone, script

SIZE = 10_000
PHOTO = pathlib.Path(__file__).parents[2] / "assets" / "photos" / "rocket.jpg"


def ring(**options):
    return SharedMemoryRingBuffer(1 << 18, **options)


def pool(count=5, size=1 << 16, **options):
    return SharedMemorySegmentPool(size, count, **options)


def of(function, *arguments, **options):
    return iterate_in_subprocess(functools.partial(function, *arguments), **options)


def assert_is_sample(sample, number):
    assert sample.pixels.shape == (SIZE // 100, 100) and (sample.pixels == number).all()
    assert sample.fields["name"] == str(number)
    assert bytes(sample.fields["raw"][0]) == bytes([number]) * SIZE


@pytest.mark.parametrize("arena", [ring, pool])
def test_a01_a02_items_arrive_unchanged(arena):
    numbers = []
    for sample in of(work.samples, 50, SIZE, arena=arena()):
        assert_is_sample(sample, len(numbers))
        numbers.append(sample.fields["name"])
    assert len(numbers) == 50


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("arena", [ring, pool])
def test_a03_payloads_of_all_types_arrive_unchanged(arena, large):
    big = {"capacity": 1 << 21} if arena is ring else {"segment_size": 1 << 21, "count": 2}
    kind = SharedMemoryRingBuffer if arena is ring else SharedMemorySegmentPool
    (sent,) = work.payloads(large)
    (got,) = of(work.payloads, large, arena=kind(**big))
    for name, value in sent.items():
        assert work.alike(value, got[name]), name
    views = arena is pool and large
    assert type(got["bytes"]) is (memoryview if views else bytes)
    assert type(got["bytearray"]) is (memoryview if views else bytearray)
    assert type(got["memoryview"]) is memoryview
    assert got["fortran"].flags.f_contiguous and got["2-D"].flags.c_contiguous
    assert got["array"].flags.writeable and got["array"].ctypes.data % (64 if views else 1) == 0
    # Objects that share memory in the sender share memory in the receiver.
    assert got["tuple"][1][0] is got["tuple"][1][1]


def test_a03_only_large_payloads_use_the_arena():
    arena = ring()
    least = [bytes(4095), bytes(4096)]
    assert list(of(list, least, arena=arena)) == least
    assert arena.head == 4096


@pytest.mark.frameworks
def test_a03_tensors_arrive_unchanged():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for arena in (ring(), pool()):
        first, second = of(work.tensors, arena=arena)
        assert torch.equal(first, work.tensors()[0]) and second.dtype == torch.bfloat16


@pytest.mark.skipif(not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg")
@pytest.mark.parametrize("arena", [ring, pool])
def test_a03_packets_arrive_unchanged_through_the_arena(arena):
    files = [
        ("video", media.VIDEO / "mpeg2.mp4"),
        ("audio", media.AUDIO / "stereo-24.flac"),
        ("image", PHOTO),
        ("video", media.VIDEO / "vp9.webm"),
    ]
    memory = arena() if arena is ring else pool(count=2, size=1 << 18)
    got = list(of(work.packets, files, arena=memory, buffer_size=1))
    sent = list(work.packets(files))
    states = [item["again"][0].__getstate__() for item in sent]
    assert min(map(len, states)) >= 4096
    if arena is ring:
        # Each item has two such payloads.
        assert memory.head >= 2 * sum(map(len, states))
    # The pool has two segments, so that later items have overwritten earlier ones.
    for (kind, _), found, expected in zip(files, got, sent, strict=True):
        for packets, original in [(found[kind], expected[kind]), (found["again"][0], expected["again"][0])]:
            assert type(packets) is type(original)
            assert packets.__getstate__() == original.__getstate__()
            frames = [convert_frames(decode_packets(each)) for each in (packets, original)]
            numpy.testing.assert_array_equal(*map(numpy.asarray, frames))


def test_a01_each_received_item_frees_ring_space():
    arena = ring()
    for count, sample in enumerate(of(work.samples, 100, SIZE, arena=arena, buffer_size=1)):
        assert 0 <= arena.head - arena.tail <= arena.capacity
        assert_is_sample(sample, count)
    wait_until(lambda: arena.head == arena.tail)
    # The ring buffer wrapped around several times.
    assert arena.head > 3 * arena.capacity


def test_a01_items_are_copies():
    samples = list(of(work.samples, 60, SIZE, arena=ring()))
    for number, sample in enumerate(samples):
        assert_is_sample(sample, number)
        assert type(sample.fields["raw"][0]) is bytes


def test_a02_views_are_not_copies():
    arena = pool()
    (sample,) = of(work.samples, 1, SIZE, arena=arena)
    place = (sample.pixels.ctypes.data, numpy.asarray(sample.fields["raw"][0]).ctypes.data)
    maps = pathlib.Path("/proc/self/maps").read_text()
    (line,) = [line for line in maps.splitlines() if arena.name in line]
    begin, end = (int(text, 16) for text in line.split()[0].split("-"))
    assert all(begin <= each < end for each in place)


@pytest.mark.parametrize(
    "keep",
    [
        lambda sample: sample.pixels[3:5, ::2],
        lambda sample: sample.pixels.reshape(-1).view(numpy.uint16)[1:],
        lambda sample: sample.fields["raw"][0][100:200],
        lambda sample: memoryview(sample.fields["raw"][0])[5:][5:],
        lambda sample: numpy.asarray(sample.fields["raw"][0])[7:],
    ],
    ids=["slice", "view of a view", "memoryview", "memoryview of a slice", "array of a memoryview"],
)
def test_a02_every_view_keeps_its_segment(keep):
    arena = pool(count=3)
    kept, expected = [], []
    for sample in of(work.Samples, 30, SIZE, arena=arena, buffer_size=1):
        if not kept:
            kept.append(keep(sample))
            expected.append(bytes(kept[0]))
        del sample
    assert bytes(kept[0]) == expected[0]


def test_a02_the_last_view_frees_its_segment():
    # With one segment, the second item arrives only after all views of the first are dropped.
    samples = iter(of(work.samples, 3, SIZE, arena=pool(count=1, acquire_timeout=20)))
    for number in range(3):
        sample = next(samples)
        assert_is_sample(sample, number)
        del sample


def test_a02_keeping_all_segments_is_an_error():
    samples, kept = of(work.samples, 10, SIZE, arena=pool(count=2, acquire_timeout=0.3)), []
    with pytest.raises(BufferError, match=r"2 segments .* within 0.3 s"):
        for sample in samples:
            kept.append(sample)
    assert len(kept) == 2
    for number, sample in enumerate(kept):
        assert_is_sample(sample, number)


def test_a02_a_forked_child_frees_no_segment_of_its_parent():
    done = script(
        """
        pool = SharedMemorySegmentPool(1 << 16, 5)
        samples = iter(iterate_in_subprocess(functools.partial(work.samples, 50, 9000), arena=pool))
        held = [next(samples), next(samples)]
        child = os.fork()
        if child == 0:
            held.clear()
            os._exit(0)
        os.waitpid(child, 0)
        count = sum(1 for _ in samples)
        print(count, *(set(sample.pixels.flat) == {at} for at, sample in enumerate(held)))
        """
    )
    assert (done.stdout, done.stderr) == ("48 True True\n", "")


def test_a02_acquire_timeout_0_fails_immediately():
    samples = of(work.samples, 10, SIZE, arena=pool(count=1, acquire_timeout=0))
    start, kept = time.monotonic(), []
    with pytest.raises(BufferError, match="within 0 s"):
        for sample in samples:
            kept.append(sample)
    assert time.monotonic() - start < 10


def test_a02_views_outlive_iterations_and_the_iterable():
    items = of(work.Samples, 4, SIZE, arena=pool(count=6))
    first = next(iter(items))
    for _ in range(5):
        for number, sample in enumerate(items):
            assert_is_sample(sample, number)
    del items, sample
    gc.collect()
    assert_is_sample(first, 0)


def test_a02_views_do_not_keep_the_process():
    items = of(work.Samples, 4, SIZE, arena=pool(count=6))
    process = items._worker.pid
    iterator = iter(items)
    kept = next(iterator)
    del items, iterator
    gc.collect()
    wait_until(lambda: gone(process), 5)
    assert_is_sample(kept, 0)


@pytest.mark.parametrize("arena", [ring, functools.partial(pool, 4)])
def test_a02_leaving_a_loop_frees_pending_items(arena):
    items = of(work.Samples, 20, SIZE, arena=arena(acquire_timeout=5), buffer_size=2)
    for _ in range(6):
        for number, sample in enumerate(items):
            assert_is_sample(sample, number)
            if number == 2:
                break
    assert [sample.fields["name"] for sample in items] == [str(number) for number in range(20)]


@pytest.mark.parametrize("arena", [lambda: SharedMemoryRingBuffer(8192), lambda: pool(3, 8192)])
def test_a01_a02_an_item_larger_than_the_arena_is_an_error(arena):
    with pytest.raises(BufferError, match=r"needs 20\d\d\d bytes, more than .*8192"):
        list(of(work.samples, 1, SIZE, arena=arena()))


@pytest.mark.parametrize("arena", [ring, functools.partial(pool, 1)])
def test_a01_a02_allocation_fails_after_shutdown(arena):
    arena = arena()
    samples = iter(of(work.Samples, 10_000, SIZE, arena=arena))
    kept = next(samples)
    arena.shutdown_arena()
    with pytest.raises(BufferError, match="shut down"):
        for sample in samples:
            del sample
    assert_is_sample(kept, 0)
    unused = ring()
    unused.shutdown_arena()
    with pytest.raises(ValueError, match="not after a shutdown"):
        of(work.samples, 1, SIZE, arena=unused)


def test_a04_an_arena_serves_one_iterable():
    arena = pool()
    list(of(work.samples, 1, SIZE, arena=arena))
    with pytest.raises(ValueError, match="one iterable only"):
        of(work.samples, 1, SIZE, arena=arena)


def test_a04_pipelines_use_an_arena():
    config = source(work.Samples(9, SIZE)).aggregate(2).add_sink().get_config()
    batches = run_pipeline_in_subprocess(config, num_threads=1, arena=pool(6))
    for _ in range(2):
        number = 0
        for batch in batches:
            for sample in batch:
                assert_is_sample(sample, number)
                number += 1
        assert number == 9
        del batch, sample


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a04_every_start_method_works(method):
    done = script(
        f"""
        pool = SharedMemorySegmentPool(1 << 16, 5)
        items = iterate_in_subprocess(
            functools.partial(work.samples, 9, 10_000), mp_context={method!r}, arena=pool
        )
        print([int(sample.pixels.sum()) // 10_000 for sample in items])
        """
    )
    assert (done.stdout, done.stderr) == (f"{list(range(9))}\n", "")


def names():
    """The names of shared memory objects, and the number of open file descriptors."""
    # Other programs create semaphores of multiprocessing.
    named = [name for name in os.listdir("/dev/shm") if not name.startswith("sem.")]
    return sorted(named), len(os.listdir("/proc/self/fd"))


# promise: R7
@pytest.mark.parametrize("arena", [ring, pool])
def test_a01_a02_a_killed_process_leaves_no_memory(arena):
    list(of(work.samples, 1, SIZE, arena=arena()))
    gc.collect()
    before = names()
    with pytest.raises(RuntimeError, match="SIGKILL"):
        list(of(work.sample_then_kill_oneself, SIZE, arena=arena()))
    gc.collect()
    assert names() == before
    kind = (
        "SharedMemoryRingBuffer(1 << 18)"
        if arena is ring
        else "SharedMemorySegmentPool(1 << 16, 5)"
    )
    done = script(
        f"""
        items = iter(
            iterate_in_subprocess(functools.partial(work.samples, 9, 10_000), arena={kind})
        )
        next(items)
        os.kill(os.getpid(), 9)
        """
    )
    assert done.returncode == -signal.SIGKILL and names() == before


def test_a01_a02_arguments_are_checked():
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="capacity"):
            SharedMemoryRingBuffer(wrong)
        with pytest.raises(ValueError, match="segment_size"):
            SharedMemorySegmentPool(wrong, 1)
        with pytest.raises(ValueError, match="count"):
            SharedMemorySegmentPool(1, wrong)
    with pytest.raises(ValueError, match="acquire_timeout"):
        ring(acquire_timeout=-1)
    with pytest.raises(TypeError, match="acquire_timeout"):
        pool(acquire_timeout="1")


def test_a01_a02_properties_have_the_given_values():
    made = SharedMemoryRingBuffer(1000, acquire_timeout=3)
    assert (made.capacity, made.head, made.tail, made.acquire_timeout) == (1000, 0, 0, 3)
    assert made.name.startswith("spdl-ring-")
    segments = pool(3, 100)
    assert (segments.segment_size, segments.count, segments.acquire_timeout) == (100, 3, 60.0)
    for arena in (made, segments):
        arena.unlink()
        arena.close()
        arena.close()
