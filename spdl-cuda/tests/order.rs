//! No batch is overwritten or read too early under any schedule of the streams. The host never waits.

#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::{Chance, LEN, assemble, bytes_of, into_cuda_memory, send};
use spdl_core::memory::DeviceMemory;
use spdl_core::{Device, Error, ErrorKind, Result};
use spdl_cuda::runtime::DeviceAllocator;
use spdl_cuda::testing::{FakeDriver, KernelRead, LiveResources, Schedule, ViolationKind};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory};

/// The number of seeds of the promise G1.
const SCHEDULES: u64 = 100_000;

/// A batch on the device, and the bytes that a kernel must read.
struct Held {
    memory: Box<CudaMemory>,
    expected: Vec<u8>,
    /// Whether any stream has used the batch.
    used: bool,
    /// The stream that has written the batch. Later accesses must use this stream.
    written_on: Option<usize>,
}

struct Consumer {
    driver: FakeDriver,
    streams: Vec<ConsumerStream>,
    seen: Vec<(KernelRead, Vec<u8>)>,
    chance: Chance,
}

impl Consumer {
    /// Uses a batch on one stream or several.
    fn use_batch(&mut self, batch: &mut Held) {
        let (address, len) = (batch.memory.address(), batch.memory.len());
        let random = self.chance.below(self.streams.len());
        let first = batch.written_on.unwrap_or(random);
        if batch.written_on.is_none() && self.chance.below(6) == 0 {
            // A recorded stream that has not waited for the copy.
            batch.memory.record_stream(&self.streams[random]);
            batch.used = true;
            if self.chance.below(2) == 0 {
                self.download(batch, Some(random));
            }
            return;
        }
        let others =
            if batch.written_on.is_some() { 0 } else { self.chance.below(self.streams.len()) };
        for at in 0..=others {
            let stream = &self.streams[(first + at) % self.streams.len()];
            batch.memory.wait_on(stream).unwrap();
            for _ in 0..=self.chance.below(2) {
                let seen = self.driver.read_by_kernel(stream, address, len);
                self.seen.push((seen, batch.expected.clone()));
            }
        }
        if !batch.used && others == 0 && self.chance.below(3) == 0 {
            let value = self.chance.below(256) as u8;
            self.driver.write_by_kernel(&self.streams[first], address, len, value);
            batch.expected.fill(value);
            batch.written_on = Some(first);
        }
        batch.used = true;
        if self.chance.below(5) == 0 {
            self.download(batch, batch.written_on);
        }
    }

    /// Copies a batch to the host. Half of the copies are read, the others dropped.
    fn download(&mut self, batch: &Held, after: Option<usize>) {
        let download = batch.memory.download(after.map(|at| &self.streams[at])).unwrap();
        if self.chance.below(2) == 0 {
            let host = download.wait().unwrap();
            self.driver.host_reads(&host);
            assert_eq!(*host, batch.expected[..]);
        }
    }
}

/// One epoch of a random consumer on a device with random delays. Panics on any violation.
fn run(seed: u64) {
    let driver = FakeDriver::new(1, Schedule::Seeded(seed));
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let mut chance = Chance(!seed);
    let streams = (0..1 + seed % 3).map(|_| driver.consumer_stream()).collect();
    let depth = 1 + (seed / 3 % 4) as usize;
    let mut consumer =
        Consumer { driver: driver.clone(), streams, seen: Vec::new(), chance: chance.clone() };
    let mut held: Vec<Held> = Vec::new();
    for number in 0..14 {
        let len = if chance.below(8) == 0 { 1 + chance.below(3 * LEN) } else { LEN };
        let memory = send(&driver, &device, number, len).unwrap();
        let expected = bytes_of(number, len);
        held.push(Held { memory, expected, used: false, written_on: None });
        if let Some(batch) = held.get_mut(chance.below(depth + 2)) {
            consumer.use_batch(batch);
        }
        while held.len() > depth {
            let dropped = chance.below(held.len());
            held.swap_remove(dropped);
        }
    }
    // The device is dropped before or after its last batches.
    if chance.below(2) == 0 {
        drop(device);
        held.clear();
    } else {
        held.clear();
        drop(device);
    }
    driver.run_all();
    assert_eq!(driver.violations(), [], "seed {seed}");
    for (seen, expected) in &consumer.seen {
        assert_eq!(seen.bytes().as_ref(), Some(expected), "seed {seed}: a kernel read other bytes");
    }
    assert_eq!(driver.live_resources(), LiveResources::default(), "seed {seed}");
}

// promise: G1
#[test]
fn g1_no_schedule_of_streams_overwrites_or_reads_a_batch_too_early() {
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get()).min(8) as u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || (thread..SCHEDULES).step_by(threads as usize).for_each(run));
        }
    });
}

/// Uses all operations once, on a device that works only when the host waits. Returns the number of
/// records and waits before the final drops.
fn use_everything(driver: &FakeDriver) -> usize {
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let (one, two) = (driver.consumer_stream(), driver.consumer_stream());
    let read = |batch: &CudaMemory, stream| {
        batch.wait_on(stream).unwrap();
        driver.read_by_kernel(stream, batch.address(), LEN);
    };
    // Two consumers read a batch, and another batch reuses its memory.
    let first = send(driver, &device, 1, LEN).unwrap();
    read(&first, &one);
    read(&first, &two);
    drop(first);
    let second = send(driver, &device, 2, LEN).unwrap();
    // A download while a third batch is uploaded.
    let download = second.download(None).unwrap();
    let third = send(driver, &device, 3, LEN).unwrap();
    drop(second);
    let fourth = send(driver, &device, 4, LEN).unwrap();
    read(&fourth, &two);
    driver.host_reads(&download.wait().unwrap());
    // A kernel writes a batch, which is then downloaded and read again.
    third.wait_on(&one).unwrap();
    driver.write_by_kernel(&one, third.address(), LEN, 9);
    let download = third.download(Some(&one)).unwrap();
    driver.read_by_kernel(&one, third.address(), LEN);
    drop(third);
    let fifth = send(driver, &device, 5, LEN).unwrap();
    drop(download);
    // Buffers with copies in flight are neither reused nor freed.
    let downloaded = fifth.download(None).unwrap();
    drop((fourth, fifth));
    drop(assemble(driver, &device, 6, LEN).unwrap());
    read(&send(driver, &device, 7, LEN).unwrap(), &two);
    drop(assemble(driver, &device, 8, LEN).unwrap());
    // Further batches reuse all memory.
    let last: Vec<_> = (9..15).map(|number| send(driver, &device, number, LEN).unwrap()).collect();
    last.iter().for_each(|batch| read(batch, &one));
    driver.host_reads(&downloaded.wait().unwrap());
    driver.order_calls()
}

// promise: G1
#[test]
fn g1_each_omitted_record_or_wait_is_detected() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let count = use_everything(&driver);
    assert_eq!(driver.violations(), []);
    assert!(count > 20, "{count}");
    for left_out in 0..count {
        let driver = FakeDriver::new(1, Schedule::Held);
        driver.skip_order_call(left_out);
        use_everything(&driver);
        let violations = driver.violations();
        assert!(
            !violations.is_empty(),
            "omitted record or wait {left_out} of {count} not detected"
        );
    }
}

// promise: G1
#[test]
fn a_recorded_stream_is_not_ordered_after_the_copy() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    batch.record_stream(&stream);
    let download = batch.download(Some(&stream)).unwrap();
    let host = download.wait().unwrap();
    driver.host_reads(&host);
    assert_eq!(*host, bytes_of(1, LEN)[..]);
    assert_eq!(driver.violations(), []);
    // After a wait, the stream is ordered after the copy.
    batch.wait_on(&stream).unwrap();
    batch.record_stream(&stream);
    let waits = driver.calls_of("cuStreamWaitEvent");
    drop(batch.download(Some(&stream)).unwrap());
    assert_eq!(driver.calls_of("cuStreamWaitEvent") - waits, 1);
}

// promise: G1
#[test]
fn a_download_after_an_event_of_the_producer_needs_no_stream() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    batch.wait_on(&stream).unwrap();
    driver.write_by_kernel(&stream, batch.address(), LEN, 9);
    let written = driver.consumer_event(&stream);
    assert!(!device.is_complete(&written).unwrap());
    let records = driver.calls_of("cuEventRecord");
    let host = batch.download_part(0, LEN, None, Some(&written)).unwrap().wait().unwrap();
    driver.host_reads(&host);
    assert_eq!(*host, [9; LEN]);
    assert!(device.is_complete(&written).unwrap());
    // Only the end of the copy is recorded.
    assert_eq!(driver.calls_of("cuEventRecord") - records, 1);
    assert_eq!(driver.violations(), []);
}

#[test]
fn withheld_memory_is_reused_when_the_device_is_full() {
    let driver = FakeDriver::new(1, Schedule::Held);
    driver.set_memory(2 * 4096);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let batch = send(&driver, &device, 1, 4096).unwrap();
    batch.wait_on(&stream).unwrap();
    driver.read_by_kernel(&stream, batch.address(), 4096);
    driver.fail_next("cuEventRecord", 400);
    drop(batch);
    assert_eq!(device.statistics().slabs.withheld_bytes, 4096);
    let held: Vec<_> = (2..4).map(|number| send(&driver, &device, number, 4096).unwrap()).collect();
    let slabs = device.statistics().slabs;
    assert_eq!((slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes), (2 * 4096, 0, 0));
    drop((held, device));
    driver.run_all();
    assert_eq!(driver.violations(), []);
    assert!(driver.live_resources().is_empty());
}

// promise: G11
#[test]
fn a_full_device_keeps_track_of_memory_while_calls_fail() {
    let mut kept = 0;
    for failing in 0..30 {
        let driver = FakeDriver::new(1, Schedule::Held);
        driver.set_memory(2 * 4096);
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let stream = driver.consumer_stream();
        let [withheld, free] = [1, 2].map(|number| send(&driver, &device, number, 4096).unwrap());
        withheld.wait_on(&stream).unwrap();
        driver.fail_next("cuEventRecord", 400);
        drop(withheld);
        drop(free);
        // The device frees memory after a wait, which is tried twice.
        let buffer = spdl_core::memory::BufferPool::new().take(LEN).unwrap();
        driver.fail_calls(failing, 8, 999);
        let sent = device.upload(buffer);
        driver.fail_calls(0, 0, 999);
        if device.statistics().release_failures > 0 {
            // The wait succeeded, and a failed release left memory to the driver.
            continue;
        }
        let slabs = device.statistics().slabs;
        let bytes = slabs.live_bytes + slabs.free_bytes + slabs.withheld_bytes;
        assert_eq!(bytes, driver.live_resources().allocated_bytes, "8 calls from {failing} on");
        kept += usize::from(sent.is_err() && bytes == 2 * 4096);
        drop((sent, device));
        driver.run_all();
        assert_eq!(driver.violations(), []);
    }
    assert!(kept > 0);
}

// promise: G11
#[test]
fn memory_is_withheld_after_a_failed_wait_of_a_copy() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    batch.wait_on(&stream).unwrap();
    drop(batch);
    // As if the stream had been captured when the batch was dropped.
    driver.fail_next("cuStreamWaitEvent", 907);
    let error = send(&driver, &device, 2, LEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("during the capture of a CUDA graph"), "{error}");
    let slabs = device.statistics().slabs;
    assert_eq!((slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes), (0, 0, 512));
    drop(send(&driver, &device, 3, LEN).unwrap());
}

#[test]
fn violations_have_the_right_kind() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let kinds = || driver.violations().iter().map(|found| found.kind).collect::<Vec<_>>();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    let address = batch.address();
    // A read without a wait.
    driver.read_by_kernel(&stream, address, LEN);
    assert_eq!(kinds(), [ViolationKind::ReadBeforeWrite]);
    // The consumer does not record its use, so the next upload overwrites the batch.
    drop(batch);
    let _next = send(&driver, &device, 2, LEN).unwrap();
    assert_eq!(kinds()[1..], [ViolationKind::OverwrittenInUse]);
    // A read at an invalid address.
    driver.read_by_kernel(&stream, address + (1 << 40), LEN);
    assert_eq!(kinds()[2..], [ViolationKind::InvalidAddress]);
}

// promise: G1
#[test]
fn a_write_to_a_buffer_during_its_copy_is_detected() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let mut buffer = device.buffers().take(LEN).unwrap();
    let bytes = buffer.as_mut_ptr();
    let _upload = device.upload(buffer).unwrap();
    // SAFETY: the device holds the buffer, so the memory exists. The fake device reads it in `run_all`.
    unsafe { bytes.write(1) };
    driver.run_all();
    assert_eq!(driver.violations()[0].kind, ViolationKind::HostAccessDuringCopy);
}

// promise: G2
#[test]
fn g2_uploads_do_not_wait_or_allocate_in_the_steady_state() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let streams = [driver.consumer_stream(), driver.consumer_stream()];
    let mut queue = std::collections::VecDeque::new();
    let mut counts = Vec::new();
    for number in 0..1000 {
        queue.push_back(send(&driver, &device, number, LEN).unwrap());
        if queue.len() > 2 {
            let batch = queue.pop_front().unwrap();
            batch.wait_on(&streams[number % 2]).unwrap();
            driver.read_by_kernel(&streams[number % 2], batch.address(), LEN);
        }
        // The device is up to five batches behind.
        if number % 5 == 0 {
            driver.run_all();
        }
        counts.push((driver.synchronisations(), driver.allocations()));
    }
    assert_eq!(counts[50], counts[999], "(waits, allocations)");
    let statistics = device.statistics();
    assert!(statistics.slabs.allocations <= 2 + 1 + 1, "{statistics:?}");
    assert!(device.buffers().statistics().allocations <= 5 + 2, "{:?}", device.buffers());
    assert_eq!(driver.calls_of("cuEventSynchronize"), 0);
}

// promise: G3
#[test]
fn a_wait_for_a_short_copy_does_not_sleep() {
    for (schedule, sleeps) in [(Schedule::Prompt, 0), (Schedule::Held, 1)] {
        let driver = FakeDriver::new(1, schedule);
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let upload = device.upload(device.host_buffer(LEN).unwrap()).unwrap();
        upload.ready.wait().unwrap();
        assert_eq!(driver.calls_of("cuEventSynchronize"), sleeps);
    }
}

// promise: G9
#[test]
fn g9_slabs_are_at_most_the_held_batches_plus_two() {
    for depth in 0..6 {
        let driver = FakeDriver::new(1, Schedule::Held);
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let stream = driver.consumer_stream();
        let mut queue = std::collections::VecDeque::new();
        for number in 0..100 {
            queue.push_back(send(&driver, &device, number, LEN).unwrap());
            if queue.len() > depth {
                let batch = queue.pop_front().unwrap();
                batch.wait_on(&stream).unwrap();
                driver.read_by_kernel(&stream, batch.address(), LEN);
            }
        }
        // The device has not done any work yet.
        let slabs = device.statistics().slabs;
        assert!(slabs.allocations <= depth + 2, "depth {depth}: {slabs:?}");
    }
}

// promise: G9
#[test]
fn slabs_of_unused_sizes_are_freed_after_their_last_read() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    for pages in 1..=8 {
        let batch = send(&driver, &device, pages, pages * 4096).unwrap();
        batch.wait_on(&stream).unwrap();
        driver.read_by_kernel(&stream, batch.address(), pages * 4096);
    }
    let all_pages = (1..=8).sum::<usize>();
    assert_eq!(driver.live_resources().allocated_bytes, all_pages * 4096, "all are still read");
    driver.run_all();
    drop(send(&driver, &device, 9, 8 * 4096).unwrap());
    // The oldest are freed, until the others fit a batch of 8 pages and two spare slabs.
    assert_eq!(driver.live_resources().allocated_bytes, (6 + 7 + 8) * 4096);
    drop(device);
    driver.run_all();
    assert_eq!(driver.violations(), []);
}

// promise: G1
#[test]
fn a_slab_of_a_dropped_batch_is_not_freed_during_its_copy() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    for pages in 1..=8 {
        drop(send(&driver, &device, pages, pages * 4096).unwrap());
    }
    let all_pages = (1..=8).sum::<usize>();
    assert_eq!(driver.live_resources().allocated_bytes, all_pages * 4096);
    driver.run_all();
    drop(send(&driver, &device, 9, 8 * 4096).unwrap());
    assert_eq!(driver.live_resources().allocated_bytes, (6 + 7 + 8) * 4096);
    assert_eq!(driver.violations(), []);
}

// promise: G9
#[test]
fn batches_of_varying_sizes_reuse_slabs() {
    let mut chance = Chance(7);
    let random: Vec<usize> = (0..1000).map(|_| 4096 + chance.below(28 << 10)).collect();
    let alternating = (0..1000).map(|number| 4096 << (number % 3)).collect();
    for (lens, max_allocations) in [(alternating, 12), (random, 100)] {
        for held in [1, 4] {
            let driver = FakeDriver::new(1, Schedule::Prompt);
            let device = CudaDevice::on(driver.clone(), 0).unwrap();
            let mut queue = std::collections::VecDeque::new();
            let mut largest = 0;
            for (number, len) in lens.iter().copied().enumerate() {
                queue.push_back(send(&driver, &device, number, len).unwrap());
                if queue.len() > held {
                    queue.pop_front();
                }
                largest = largest.max(len);
                let slabs = device.statistics().slabs;
                let bytes = slabs.live_bytes + slabs.free_bytes;
                assert!(bytes <= slabs.peak_bytes + 2 * (largest + largest / 8), "{slabs:?}");
            }
            let slabs = device.statistics().slabs;
            assert!(slabs.allocations <= max_allocations, "{held} held: {slabs:?}");
        }
    }
}

// promise: G9
#[test]
fn slabs_of_other_sizes_are_freed_when_the_device_is_full() {
    let driver = FakeDriver::new(1, Schedule::Held);
    driver.set_memory(10 * 4096);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let held: Vec<_> = (0..8).map(|number| send(&driver, &device, number, 4096).unwrap()).collect();
    for batch in &held {
        batch.wait_on(&stream).unwrap();
        driver.read_by_kernel(&stream, batch.address(), 4096);
    }
    let error = send(&driver, &device, 8, 3 * 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    drop(held);
    send(&driver, &device, 9, 3 * 4096).unwrap();
    drop(device);
    driver.run_all();
    assert_eq!(driver.violations(), []);
    assert!(driver.live_resources().is_empty());
}

/// The allocator of a training framework.
#[derive(Debug)]
struct Framework(FakeDriver);

// SAFETY: the memory belongs to the fake device, which needs no alignment, and has no other user.
unsafe impl DeviceAllocator for Framework {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let exhausted = || Error::new(ErrorKind::LimitExceeded, "framework memory exhausted");
        self.0.allocate_elsewhere(bytes).ok_or_else(exhausted)
    }

    fn free(&self, address: u64, _: usize) {
        self.0.free_elsewhere(address);
    }
}

// promise: G1
#[test]
fn memory_of_a_custom_allocator_is_returned_after_its_last_use() {
    let driver = FakeDriver::new(1, Schedule::Held);
    driver.set_memory(4 * 4096);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let of_driver = send(&driver, &device, 0, 4096).unwrap();
    device.set_allocator(Arc::new(Framework(driver.clone())));
    let stream = driver.consumer_stream();
    for (number, len) in [4096, 4096, 3 * 4096, 2 * 4096].into_iter().enumerate() {
        let batch = send(&driver, &device, number, len).unwrap();
        batch.wait_on(&stream).unwrap();
        driver.read_by_kernel(&stream, batch.address(), len);
    }
    assert_eq!(send(&driver, &device, 9, 4 * 4096).unwrap_err().kind(), ErrorKind::LimitExceeded);
    drop(of_driver);
    assert_eq!((driver.calls_of("cuMemAlloc_v2"), driver.calls_of("cuMemFree_v2")), (1, 0));
    drop(device);
    assert_eq!(driver.calls_of("cuMemFree_v2"), 1);
    driver.run_all();
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

// promise: G1
#[test]
fn only_the_slab_of_a_destroyed_consumer_stream_is_withheld() {
    let driver = FakeDriver::new(1, Schedule::Prompt);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    batch.wait_on(&stream).unwrap();
    driver.end_consumer_stream(&stream);
    drop(batch);
    let slabs = device.statistics().slabs;
    assert_eq!((slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes), (0, 0, 512));
    drop(send(&driver, &device, 2, LEN).unwrap());
    assert_eq!(device.statistics().slabs.allocations, 2);
    drop(device);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

// promise: G1
#[test]
fn a_batch_used_on_a_per_thread_stream_may_be_dropped_by_another_thread() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let used_by_a_thread = |number| {
        let batch = send(&driver, &device, number, LEN).unwrap();
        std::thread::scope(|scope| {
            let user = scope.spawn(|| {
                let stream = ConsumerStream::per_thread_default();
                batch.wait_on(&stream).unwrap();
                driver.read_by_kernel(&stream, batch.address(), LEN);
            });
            user.join().unwrap();
        });
        batch
    };
    drop(used_by_a_thread(1));
    drop(used_by_a_thread(2));
    assert_eq!(device.statistics().slabs.allocations, 1);
    // The legacy default stream is the same in all threads.
    let batch = send(&driver, &device, 3, LEN).unwrap();
    batch.wait_on(&ConsumerStream::legacy_default()).unwrap();
    driver.read_by_kernel(&ConsumerStream::legacy_default(), batch.address(), LEN);
    drop(batch);
    let _last = send(&driver, &device, 4, LEN).unwrap();
    assert_eq!(device.statistics().slabs.allocations, 1);
    driver.run_all();
    assert_eq!(driver.violations(), []);
}

// promise: G1
#[test]
fn an_empty_batch_completes_in_order() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let upload = device.upload(device.host_buffer(0).unwrap()).unwrap();
    assert!(!upload.ready.is_done().unwrap(), "earlier work is not complete");
    upload.ready.wait().unwrap();
    drop(upload.ready);
    assert!(into_cuda_memory(upload.memory).download(None).unwrap().wait().unwrap().is_empty());
    let copies = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"];
    assert_eq!(copies.map(|function| driver.calls_of(function)), [0, 0], "no copies");
    drop(device);
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

// promise: G1
#[test]
fn pageable_memory_is_held_until_its_copy_is_complete() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let pool = spdl_core::memory::BufferPool::new();
    let mut buffer = pool.take(LEN).unwrap();
    buffer.fill(5);
    let batch = into_cuda_memory(device.upload(buffer).unwrap().memory);
    assert_eq!(pool.statistics().live_bytes, LEN);
    let stream = driver.consumer_stream();
    batch.wait_on(&stream).unwrap();
    let seen = driver.read_by_kernel(&stream, batch.address(), LEN);
    driver.run_all();
    assert_eq!(seen.bytes(), Some(vec![5; LEN]));
    drop(device.host_buffer(1).unwrap());
    assert_eq!(pool.statistics().live_bytes, 0);
}

// promise: DEV2
#[test]
fn a_foreign_capture_is_not_invalidated_and_the_capture_mode_is_restored() {
    let driver = FakeDriver::new(1, Schedule::Held);
    driver.set_foreign_capture(true);
    use_everything(&driver);
    assert_eq!(driver.violations(), []);
    assert!(driver.is_strict());
    assert_eq!(driver.live_resources().current_contexts, 0);
}
