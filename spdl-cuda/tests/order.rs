//! Nothing is overwritten or read too early, whatever streams do when, and nobody waits for that.

// feature of this file: C03
// promise of this file: DEV3, R13
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::{Chance, LEN, assemble, bytes_of, own, send};
use spdl_core::memory::DeviceMemory;
use spdl_core::{Device, Error, ErrorKind, Result};
use spdl_cuda::runtime::DeviceAllocator;
use spdl_cuda::testing::{FakeDriver, KernelRead, LiveResources, Schedule, ViolationKind};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory};

/// As many as the promise G1 names.
const SCHEDULES: u64 = 100_000;

/// A batch on the device, and what a kernel that reads it has to see.
struct Held {
    memory: Box<CudaMemory>,
    holds: Vec<u8>,
    /// Whether some stream has used it.
    used: bool,
    /// The stream that has changed it: only that one knows when.
    changed_on: Option<usize>,
}

struct Consumer {
    driver: FakeDriver,
    streams: Vec<ConsumerStream>,
    seen: Vec<(KernelRead, Vec<u8>)>,
    chance: Chance,
}

impl Consumer {
    /// Uses a batch on one stream, or several.
    fn use_it(&mut self, batch: &mut Held) {
        let (address, len) = (batch.memory.address(), batch.memory.len());
        let some = self.chance.below(self.streams.len());
        let first = batch.changed_on.unwrap_or(some);
        if batch.changed_on.is_none() && self.chance.below(6) == 0 {
            // A stream that is said to use it, and waits for nothing. What it is told may come too early.
            batch.memory.record_stream(&self.streams[some]);
            batch.used = true;
            if self.chance.below(2) == 0 {
                self.fetch(batch, Some(some));
            }
            return;
        }
        let others =
            if batch.changed_on.is_some() { 0 } else { self.chance.below(self.streams.len()) };
        for at in 0..=others {
            let stream = &self.streams[(first + at) % self.streams.len()];
            batch.memory.wait_on(stream).unwrap();
            for _ in 0..=self.chance.below(2) {
                let seen = self.driver.read_by_kernel(stream, address, len);
                self.seen.push((seen, batch.holds.clone()));
            }
        }
        if !batch.used && others == 0 && self.chance.below(3) == 0 {
            let value = self.chance.below(256) as u8;
            self.driver.write_by_kernel(&self.streams[first], address, len, value);
            batch.holds.fill(value);
            batch.changed_on = Some(first);
        }
        batch.used = true;
        if self.chance.below(5) == 0 {
            self.fetch(batch, batch.changed_on);
        }
    }

    /// Copies a batch to the host, and looks at it or not.
    fn fetch(&mut self, batch: &Held, after: Option<usize>) {
        let download = batch.memory.download(after.map(|at| &self.streams[at])).unwrap();
        if self.chance.below(2) == 0 {
            let host = download.wait().unwrap();
            self.driver.host_reads(&host);
            assert_eq!(*host, batch.holds[..]);
        }
    }
}

/// One epoch of an arbitrary consumer on an arbitrarily slow device; it panics where anything is wrong.
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
        held.push(Held { memory, holds: bytes_of(number, len), used: false, changed_on: None });
        if let Some(batch) = held.get_mut(chance.below(depth + 2)) {
            consumer.use_it(batch);
        }
        while held.len() > depth {
            let dropped = chance.below(held.len());
            held.swap_remove(dropped);
        }
    }
    // The device may go before its last batches, or after them.
    if chance.below(2) == 0 {
        drop(device);
        held.clear();
    } else {
        held.clear();
        drop(device);
    }
    driver.run_all();
    assert_eq!(driver.violations(), [], "seed {seed}");
    for (seen, holds) in &consumer.seen {
        assert_eq!(seen.bytes().as_ref(), Some(holds), "seed {seed}: a kernel saw other bytes");
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

/// Uses everything once, on a device that does nothing unless somebody waits for it. Returns how many
/// records and waits that took; those behind them are for batches that do not come.
fn use_everything(driver: &FakeDriver) -> usize {
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let (one, two) = (driver.consumer_stream(), driver.consumer_stream());
    let read = |batch: &CudaMemory, stream| {
        batch.wait_on(stream).unwrap();
        driver.read_by_kernel(stream, batch.address(), LEN);
    };
    // Two consumers read a batch, and another takes its place.
    let first = send(driver, &device, 1, LEN).unwrap();
    read(&first, &one);
    read(&first, &two);
    drop(first);
    let second = send(driver, &device, 2, LEN).unwrap();
    // It is copied back as it came, while a third one is on its way.
    let download = second.download(None).unwrap();
    let third = send(driver, &device, 3, LEN).unwrap();
    drop(second);
    let fourth = send(driver, &device, 4, LEN).unwrap();
    read(&fourth, &two);
    driver.host_reads(&download.wait().unwrap());
    // A kernel changes another, which is copied back behind that, and read once more.
    third.wait_on(&one).unwrap();
    driver.write_by_kernel(&one, third.address(), LEN, 9);
    let download = third.download(Some(&one)).unwrap();
    driver.read_by_kernel(&one, third.address(), LEN);
    drop(third);
    let fifth = send(driver, &device, 5, LEN).unwrap();
    drop(download);
    // Buffers whose copies are not done are not written again, and none of them is freed.
    let downloaded = fifth.download(None).unwrap();
    drop((fourth, fifth));
    drop(assemble(driver, &device, 6, LEN).unwrap());
    read(&send(driver, &device, 7, LEN).unwrap(), &two);
    drop(assemble(driver, &device, 8, LEN).unwrap());
    // Others take the places of all of them.
    let last: Vec<_> = (9..15).map(|number| send(driver, &device, number, LEN).unwrap()).collect();
    last.iter().for_each(|batch| read(batch, &one));
    driver.host_reads(&downloaded.wait().unwrap());
    driver.order_calls()
}

// promise: G1
#[test]
fn g1_every_record_and_wait_is_needed_and_the_driver_reports_each_that_is_left_out() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let count = use_everything(&driver);
    assert_eq!(driver.violations(), []);
    assert!(count > 20, "{count}");
    for left_out in 0..count {
        let driver = FakeDriver::new(1, Schedule::Held);
        driver.skip_order_call(left_out);
        use_everything(&driver);
        let violations = driver.violations();
        assert!(!violations.is_empty(), "nobody missed record or wait {left_out} of {count}");
    }
}

#[test]
fn a_stream_that_is_only_said_to_use_a_batch_is_not_behind_its_copy() {
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
    // Once it has waited it is, and stays so.
    batch.wait_on(&stream).unwrap();
    batch.record_stream(&stream);
    let waits = driver.calls_of("cuStreamWaitEvent");
    drop(batch.download(Some(&stream)).unwrap());
    assert_eq!(driver.calls_of("cuStreamWaitEvent") - waits, 1);
}

#[test]
fn a_download_behind_the_event_of_its_producer_needs_no_stream() {
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
    // Nothing but the end of the copy is recorded.
    assert_eq!(driver.calls_of("cuEventRecord") - records, 1);
    assert_eq!(driver.violations(), []);
}

#[test]
fn a_full_device_gets_back_what_nobody_knew_who_used() {
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

#[test]
fn a_full_device_that_does_not_settle_forgets_no_memory() {
    let mut kept = 0;
    for failing in 0..30 {
        let driver = FakeDriver::new(1, Schedule::Held);
        driver.set_memory(2 * 4096);
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let stream = driver.consumer_stream();
        let [unsure, free] = [1, 2].map(|number| send(&driver, &device, number, 4096).unwrap());
        unsure.wait_on(&stream).unwrap();
        driver.fail_next("cuEventRecord", 400);
        drop(unsure);
        drop(free);
        // Room is made by a wait, which is tried twice.
        let buffer = spdl_core::memory::BufferPool::new().take(LEN).unwrap();
        driver.fail_calls(failing, 8, 999);
        let sent = device.upload(buffer);
        driver.fail_calls(0, 0, 999);
        if device.statistics().release_failures > 0 {
            // It did settle, and what could not be freed is the driver's for ever.
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

#[test]
fn memory_that_a_copy_cannot_wait_for_is_not_tried_again() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    batch.wait_on(&stream).unwrap();
    drop(batch);
    // As where the stream was captured then.
    driver.fail_next("cuStreamWaitEvent", 907);
    let error = send(&driver, &device, 2, LEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("during the capture of a CUDA graph"), "{error}");
    let slabs = device.statistics().slabs;
    assert_eq!((slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes), (0, 0, 512));
    drop(send(&driver, &device, 3, LEN).unwrap());
}

#[test]
fn what_goes_wrong_is_called_by_its_name() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let kinds = || driver.violations().iter().map(|found| found.kind).collect::<Vec<_>>();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    let address = batch.address();
    // A consumer that does not wait.
    driver.read_by_kernel(&stream, address, LEN);
    assert_eq!(kinds(), [ViolationKind::ReadBeforeWrite]);
    // One that does not tell that it goes on, so that the next batch comes too early.
    drop(batch);
    let _next = send(&driver, &device, 2, LEN).unwrap();
    assert_eq!(kinds()[1..], [ViolationKind::OverwrittenInUse]);
    // And one that reads what is no memory.
    driver.read_by_kernel(&stream, address + (1 << 40), LEN);
    assert_eq!(kinds()[2..], [ViolationKind::InvalidAddress]);
}

#[test]
fn a_buffer_that_is_written_behind_the_back_of_its_copy_is_noticed_untold() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let mut buffer = device.buffers().take(LEN).unwrap();
    let bytes = buffer.as_mut_ptr();
    let _upload = device.upload(buffer).unwrap();
    // SAFETY: the device holds the buffer, so the memory exists, and reads it only when it is told.
    unsafe { bytes.write(1) };
    driver.run_all();
    assert_eq!(driver.violations()[0].kind, ViolationKind::HostAccessDuringCopy);
}

// promise: G2
#[test]
fn g2_in_the_steady_state_nobody_waits_and_nothing_is_allocated() {
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

// promise: G9
#[test]
fn g9_there_are_never_more_slabs_than_batches_were_held_at_once_and_two() {
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
        // The device has done nothing at all yet, and still no more memory is taken.
        let slabs = device.statistics().slabs;
        assert!(slabs.allocations <= depth + 2, "depth {depth}: {slabs:?}");
    }
}

// promise: G9
#[test]
fn slabs_of_sizes_that_are_gone_are_freed_when_their_readers_are_done() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    for (number, len) in [4096, 8192, 16384].into_iter().enumerate() {
        let batch = send(&driver, &device, number, len).unwrap();
        batch.wait_on(&stream).unwrap();
        driver.read_by_kernel(&stream, batch.address(), len);
    }
    assert_eq!(driver.live_resources().allocated_bytes, 4096 + 8192 + 16384, "all are still read");
    driver.run_all();
    drop(send(&driver, &device, 3, 16384).unwrap());
    assert_eq!(driver.live_resources().allocated_bytes, 16384);
    drop(device);
    driver.run_all();
    assert_eq!(driver.violations(), []);
}

#[test]
fn a_slab_is_not_freed_while_a_batch_that_nobody_wants_is_still_copied_into_it() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    drop(send(&driver, &device, 0, 4096).unwrap());
    drop(send(&driver, &device, 1, 8192).unwrap());
    assert_eq!(driver.live_resources().allocated_bytes, 4096 + 8192);
    driver.run_all();
    drop(send(&driver, &device, 2, 8192).unwrap());
    assert_eq!(driver.live_resources().allocated_bytes, 8192);
    assert_eq!(driver.violations(), []);
}

// promise: G9
#[test]
fn where_the_device_is_full_slabs_of_other_sizes_make_room() {
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

/// The allocator of a framework.
#[derive(Debug)]
struct Framework(FakeDriver);

// SAFETY: this is memory of the fake device, of any alignment, and used by nobody else.
unsafe impl DeviceAllocator for Framework {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let none_left = || Error::new(ErrorKind::LimitExceeded, "the framework has no more");
        self.0.allocate_elsewhere(bytes).ok_or_else(none_left)
    }

    fn free(&self, address: u64, _: usize) {
        self.0.free_elsewhere(address);
    }
}

#[test]
fn memory_of_another_allocator_goes_back_to_it_when_it_is_not_used_any_more() {
    let driver = FakeDriver::new(1, Schedule::Held);
    driver.set_memory(4 * 4096);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let drivers_own = send(&driver, &device, 0, 4096).unwrap();
    device.set_allocator(Arc::new(Framework(driver.clone())));
    let stream = driver.consumer_stream();
    for (number, len) in [4096, 4096, 3 * 4096, 2 * 4096].into_iter().enumerate() {
        let batch = send(&driver, &device, number, len).unwrap();
        batch.wait_on(&stream).unwrap();
        driver.read_by_kernel(&stream, batch.address(), len);
    }
    assert_eq!(send(&driver, &device, 9, 4 * 4096).unwrap_err().kind(), ErrorKind::LimitExceeded);
    drop(drivers_own);
    assert_eq!((driver.calls_of("cuMemAlloc_v2"), driver.calls_of("cuMemFree_v2")), (1, 0));
    drop(device);
    assert_eq!(driver.calls_of("cuMemFree_v2"), 1);
    driver.run_all();
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

#[test]
fn a_consumer_stream_that_is_gone_costs_its_slab_and_nothing_else() {
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

#[test]
fn what_a_thread_uses_on_its_own_default_stream_may_be_dropped_by_another() {
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

#[test]
fn an_empty_batch_is_ready_like_any_other() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let upload = device.upload(device.host_buffer(0).unwrap()).unwrap();
    assert!(!upload.ready.is_done().unwrap(), "nothing before it is done");
    upload.ready.wait().unwrap();
    drop(upload.ready);
    assert!(own(upload.memory).download(None).unwrap().wait().unwrap().is_empty());
    let copies = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"];
    assert_eq!(
        copies.map(|function| driver.calls_of(function)),
        [0, 0],
        "there is nothing to copy"
    );
    drop(device);
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

#[test]
fn memory_that_is_not_locked_is_held_until_its_copy_is_done_as_well() {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let pool = spdl_core::memory::BufferPool::new();
    let mut buffer = pool.take(LEN).unwrap();
    buffer.fill(5);
    let batch = own(device.upload(buffer).unwrap().memory);
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
fn a_graph_that_somebody_captures_is_not_broken_off_and_the_thread_is_left_as_it_was() {
    let driver = FakeDriver::new(1, Schedule::Held);
    driver.set_foreign_capture(true);
    use_everything(&driver);
    assert_eq!(driver.violations(), []);
    assert!(driver.is_strict());
    assert_eq!(driver.live_resources().current_contexts, 0);
}
