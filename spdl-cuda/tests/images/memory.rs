//! Images that need much device memory: groups are split, and the host decodes the largest images.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use spdl_core::{DatasetSource, Error, ErrorKind, Labeled, OnError, PipelineBuilder, Result};
use spdl_cuda::CudaDevice;
use spdl_cuda::images::FallbackReason;
use spdl_cuda::runtime::DeviceAllocator;
use spdl_cuda::testing::{FakeDriver, Schedule};

use super::common::nvjpeg_stub::{jpeg, stub};
use super::common::simple_kernel::decoded_byte;
use super::{HOST, SAMPLE, fake, image, images, read_batch, run};

/// An allocator that refuses a number of large allocations.
#[derive(Debug)]
struct LimitedAllocator {
    driver: FakeDriver,
    /// Larger allocations are refused while `refusals` is positive.
    max_bytes: usize,
    refusals: AtomicUsize,
    /// The sizes of successful allocations.
    sizes: Mutex<Vec<usize>>,
}

// SAFETY: the memory belongs to the fake device, which needs no alignment, and has no other user.
unsafe impl DeviceAllocator for LimitedAllocator {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let refuse = |left: usize| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if bytes > self.max_bytes && self.refusals.fetch_update(order, order, refuse).is_ok() {
            return Err(Error::new(ErrorKind::LimitExceeded, "allocation refused"));
        }
        self.sizes.lock().unwrap().push(bytes);
        let exhausted = || Error::new(ErrorKind::LimitExceeded, "memory exhausted");
        self.driver.allocate_elsewhere(bytes).ok_or_else(exhausted)
    }

    fn free(&self, address: u64, _: usize) {
        self.driver.free_elsewhere(address);
    }
}

fn limited(max_bytes: usize, refusals: usize) -> (FakeDriver, CudaDevice, Arc<LimitedAllocator>) {
    let (driver, device) = fake(Schedule::Seeded(5));
    let allocator = Arc::new(LimitedAllocator {
        driver: driver.clone(),
        max_bytes,
        refusals: refusals.into(),
        sizes: Mutex::default(),
    });
    device.set_allocator(allocator.clone());
    (driver, device, allocator)
}

/// Square JPEGs with these sides.
fn squares(sides: impl IntoIterator<Item = u16>) -> PipelineBuilder<Labeled<Bytes>> {
    let files = sides.into_iter().enumerate();
    let files =
        files.map(|(at, side)| Labeled { value: jpeg(0xC0, side, side).into(), label: at as i64 });
    PipelineBuilder::new(DatasetSource::new(files.collect::<Vec<_>>())).deterministic()
}

fn decoded(side: u64) -> Vec<u8> {
    vec![decoded_byte(3 * side * side); SAMPLE]
}

// promise: G9
#[test]
fn g9_a_large_group_is_decoded_in_parts_of_the_maximum_size() {
    let stub = stub();
    for (group_bytes, images_per_part) in [(1, 1), (70_000, 2), (u64::MAX, 8)] {
        let (driver, device, allocator) = limited(usize::MAX, 0);
        let images = images(&device, stub.search()).group_bytes(group_bytes);
        let pipeline = images.attach(squares([100; 24]), "decode").unwrap();
        let samples = run(&driver, pipeline).unwrap();
        assert_eq!(samples.len(), 24);
        assert!(samples.iter().all(|(_, bytes)| *bytes == decoded(100)));
        let largest = allocator.sizes.lock().unwrap().iter().copied().max().unwrap();
        // Each image has 30,000 bytes. Allocations have some reserve.
        let bytes = 30_000 * images_per_part;
        assert!((bytes..=bytes * 5 / 4).contains(&largest), "{group_bytes}: {largest}");
        assert_eq!(images.statistics().fallbacks, []);
        assert_eq!(driver.violations(), []);
    }
}

// promise: G5
#[test]
fn g5_a_group_that_exceeds_device_memory_is_halved_until_it_fits() {
    let stub = stub();
    let (driver, device, allocator) = limited(70_000, usize::MAX);
    let images = images(&device, stub.search());
    let pipeline = images.attach(squares([100; 13]), "decode").unwrap();
    let samples = run(&driver, pipeline).unwrap();
    let labels: Vec<i64> = samples.iter().map(|(label, _)| *label).collect();
    assert_eq!(labels, (0..13).collect::<Vec<_>>());
    assert!(samples.iter().all(|(_, bytes)| *bytes == decoded(100)));
    let statistics = images.statistics();
    assert_eq!((statistics.hardware + statistics.hybrid, statistics.host), (13, 0));
    assert!(allocator.sizes.lock().unwrap().iter().all(|bytes| *bytes <= 70_000));
    drop((images, device, allocator));
    assert_eq!(driver.violations(), []);
}

#[test]
fn g5_the_host_decodes_and_counts_an_image_that_exceeds_device_memory() {
    let stub = stub();
    // Twelve refusals: for all three images, for the last two, and for the large one, each with and without
    // reserve, before and after memory is freed. The upload after decoding on the host succeeds.
    let (driver, device, allocator) = limited(100_000, 12);
    let images = images(&device, stub.search());
    let pipeline = images.attach(squares([100, 200, 90]), "decode").unwrap();
    let samples = run(&driver, pipeline).unwrap();
    let expected = [decoded(100), vec![HOST; SAMPLE], decoded(90)];
    assert!(samples.iter().map(|(_, bytes)| bytes).eq(&expected));
    assert_eq!(allocator.refusals.load(Ordering::SeqCst), 0);
    let statistics = images.statistics();
    assert_eq!((statistics.hardware + statistics.hybrid, statistics.host), (2, 1));
    assert_eq!((statistics.fallbacks, statistics.failed), (vec![(FallbackReason::TooLarge, 1)], 0));
    assert_eq!(driver.violations(), []);
}

// promise: G5
#[test]
fn g5_an_image_that_never_fits_into_memory_fails_alone() {
    let stub = stub();
    let (driver, device, _allocator) = limited(100_000, usize::MAX);
    let images = images(&device, stub.search());
    let files = squares([100, 90, 200, 100, 90, 200]).on_error(OnError::SKIP);
    let samples = run(&driver, images.attach(files, "decode").unwrap()).unwrap();
    let labels: Vec<i64> = samples.iter().map(|(label, _)| *label).collect();
    assert_eq!(labels, [0, 1, 3, 4]);
    let statistics = images.statistics();
    assert_eq!(statistics.fallbacks, [(FallbackReason::TooLarge, 2)]);
    // The host has decoded both images, and their uploads failed.
    assert_eq!((statistics.host, statistics.failed), (0, 2));
    let pipeline = images.attach(squares([200]), "decode").unwrap();
    let error = pipeline.build().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(driver.violations(), []);
}

// promise: G2
#[test]
fn g2_image_batches_do_not_wait_or_allocate_in_the_steady_state() {
    const BATCHES: usize = 300;
    let stub = stub();
    let (driver, device) = fake(Schedule::Prompt);
    let stream = driver.consumer_stream();
    let images = images(&device, stub.search());
    // The sizes vary, and the host decodes some images.
    let numbers = (0..).filter(|number| image(*number).1.is_some()).take(8 * BATCHES);
    let files: Vec<_> =
        numbers.map(|number| Labeled { value: image(number).0.into(), label: 1_i64 }).collect();
    let files = PipelineBuilder::new(DatasetSource::new(files));
    let mut counts = Vec::new();
    for batch in images.attach(files, "decode").unwrap().build().unwrap() {
        read_batch(&driver, &batch.unwrap(), &stream).unwrap();
        counts.push((driver.synchronisations(), driver.allocations()));
    }
    assert_eq!(counts.len(), BATCHES);
    // A stage may run further ahead than before and then allocates, up to a bound. So only few batches may
    // allocate.
    let late = &counts[BATCHES / 3..];
    let changes = late.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes < late.len() / 8, "(waits, allocations) of batches: {counts:?}");
    assert!(driver.calls_of("cuLaunchKernel") >= BATCHES);
    assert_eq!(driver.calls_of("cuEventSynchronize"), 0);
    assert_eq!(driver.violations(), []);
}

#[test]
fn names_of_fallback_reasons_are_unique() {
    let mut names: Vec<&str> = FallbackReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(FallbackReason::TooLarge.as_str(), "too-large");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FallbackReason::ALL.len());
}
