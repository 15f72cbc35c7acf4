//! Images that need much of the device's memory, and none that is asked for in vain.

// promise of this file: G5

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
use super::{HOST, SAMPLE, fake, image, images, look, run};

/// The allocator of a framework that gives away little at once.
#[derive(Debug)]
struct Meagre {
    driver: FakeDriver,
    /// The most that it gives.
    most: usize,
    /// How often it gives no more than that.
    refusals: AtomicUsize,
    given: Mutex<Vec<usize>>,
}

// SAFETY: this is memory of the fake device, of any alignment, and used by nobody else.
unsafe impl DeviceAllocator for Meagre {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let refuse = |left: usize| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if bytes > self.most && self.refusals.fetch_update(order, order, refuse).is_ok() {
            return Err(Error::new(ErrorKind::LimitExceeded, "so much at once there is not"));
        }
        self.given.lock().unwrap().push(bytes);
        let none_left = || Error::new(ErrorKind::LimitExceeded, "there is no more");
        self.driver.allocate_elsewhere(bytes).ok_or_else(none_left)
    }

    fn free(&self, address: u64, _: usize) {
        self.driver.free_elsewhere(address);
    }
}

fn meagre(most: usize, refusals: usize) -> (FakeDriver, CudaDevice, Arc<Meagre>) {
    let (driver, device) = fake(Schedule::Seeded(5));
    let meagre = Arc::new(Meagre {
        driver: driver.clone(),
        most,
        refusals: refusals.into(),
        given: Mutex::default(),
    });
    device.set_allocator(meagre.clone());
    (driver, device, meagre)
}

/// JPEGs with so many rows and columns.
fn squares(sides: impl IntoIterator<Item = u16>) -> PipelineBuilder<Labeled<Bytes>> {
    let files = sides.into_iter().enumerate();
    let files =
        files.map(|(at, side)| Labeled { value: jpeg(0xC0, side, side).into(), label: at as i64 });
    PipelineBuilder::new(DatasetSource::new(files.collect::<Vec<_>>())).deterministic()
}

fn decoded(side: u64) -> Vec<u8> {
    vec![decoded_byte(3 * side * side); SAMPLE]
}

#[test]
fn g9_a_group_of_many_pixels_is_decoded_in_parts_of_so_many_bytes() {
    let stub = stub();
    for (group_bytes, at_once) in [(1, 1), (70_000, 2), (u64::MAX, 8)] {
        let (driver, device, meagre) = meagre(usize::MAX, 0);
        let images = images(&device, stub.search()).group_bytes(group_bytes);
        let pipeline = images.attach(squares([100; 24]), "decode").unwrap();
        let samples = run(&driver, pipeline).unwrap();
        assert_eq!(samples.len(), 24);
        assert!(samples.iter().all(|(_, bytes)| *bytes == decoded(100)));
        let given = meagre.given.lock().unwrap().iter().copied().max().unwrap();
        // Of 30,000 bytes each, and some to spare.
        let bytes = 30_000 * at_once;
        assert!((bytes..=bytes * 5 / 4).contains(&given), "{group_bytes}: {given}");
        assert_eq!(images.statistics().fallbacks, []);
        assert_eq!(driver.violations(), []);
    }
}

#[test]
fn g5_a_group_that_is_too_large_for_the_device_is_halved_until_it_is_not() {
    let stub = stub();
    let (driver, device, meagre) = meagre(70_000, usize::MAX);
    let images = images(&device, stub.search());
    let pipeline = images.attach(squares([100; 13]), "decode").unwrap();
    let samples = run(&driver, pipeline).unwrap();
    let labels: Vec<i64> = samples.iter().map(|(label, _)| *label).collect();
    assert_eq!(labels, (0..13).collect::<Vec<_>>());
    assert!(samples.iter().all(|(_, bytes)| *bytes == decoded(100)));
    let statistics = images.statistics();
    assert_eq!((statistics.hardware + statistics.hybrid, statistics.host), (13, 0));
    assert!(meagre.given.lock().unwrap().iter().all(|bytes| *bytes <= 70_000));
    drop((images, device, meagre));
    assert_eq!(driver.violations(), []);
}

#[test]
fn g5_an_image_that_is_too_large_for_the_device_alone_is_for_the_host_and_counted() {
    let stub = stub();
    // All three at once, the last two, and the large one: each is asked for with some to spare and
    // without, twice, as room is made. When the host has decoded it, there is room.
    let (driver, device, meagre) = meagre(100_000, 12);
    let images = images(&device, stub.search());
    let pipeline = images.attach(squares([100, 200, 90]), "decode").unwrap();
    let samples = run(&driver, pipeline).unwrap();
    let expected = [decoded(100), vec![HOST; SAMPLE], decoded(90)];
    assert!(samples.iter().map(|(_, bytes)| bytes).eq(&expected));
    assert_eq!(meagre.refusals.load(Ordering::SeqCst), 0);
    let statistics = images.statistics();
    assert_eq!((statistics.hardware + statistics.hybrid, statistics.host), (2, 1));
    assert_eq!((statistics.fallbacks, statistics.failed), (vec![(FallbackReason::TooLarge, 1)], 0));
    assert_eq!(driver.violations(), []);
}

#[test]
fn g5_an_image_for_which_there_is_never_room_fails_alone() {
    let stub = stub();
    let (driver, device, _meagre) = meagre(100_000, usize::MAX);
    let images = images(&device, stub.search());
    let files = squares([100, 90, 200, 100, 90, 200]).on_error(OnError::SKIP);
    let samples = run(&driver, images.attach(files, "decode").unwrap()).unwrap();
    let labels: Vec<i64> = samples.iter().map(|(label, _)| *label).collect();
    assert_eq!(labels, [0, 1, 3, 4]);
    let statistics = images.statistics();
    assert_eq!(statistics.fallbacks, [(FallbackReason::TooLarge, 2)]);
    // The host has decoded both, and they are nowhere.
    assert_eq!((statistics.host, statistics.failed), (0, 2));
    let pipeline = images.attach(squares([200]), "decode").unwrap();
    let error = pipeline.build().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(driver.violations(), []);
}

#[test]
fn g2_in_the_steady_state_batches_of_images_wait_for_nothing_and_allocate_nothing() {
    const BATCHES: usize = 300;
    let stub = stub();
    let (driver, device) = fake(Schedule::Prompt);
    let stream = driver.consumer_stream();
    let images = images(&device, stub.search());
    // Of changing sizes; some are decoded by the host.
    let numbers = (0..).filter(|number| image(*number).1.is_some()).take(8 * BATCHES);
    let files: Vec<_> =
        numbers.map(|number| Labeled { value: image(number).0.into(), label: 1_i64 }).collect();
    let files = PipelineBuilder::new(DatasetSource::new(files));
    let mut counts = Vec::new();
    for batch in images.attach(files, "decode").unwrap().build().unwrap() {
        look(&driver, &batch.unwrap(), &stream).unwrap();
        counts.push((driver.synchronisations(), driver.allocations()));
    }
    assert_eq!(counts.len(), BATCHES);
    // Now and then a stage runs further ahead of the next one than before, and needs something more for
    // that, which has a bound. No batch needs anything for itself.
    let late = &counts[BATCHES / 3..];
    let changes = late.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes < late.len() / 8, "(waits, allocations) of batches: {counts:?}");
    assert!(driver.calls_of("cuLaunchKernel") >= BATCHES);
    assert_eq!(driver.calls_of("cuEventSynchronize"), 0);
    assert_eq!(driver.violations(), []);
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let mut names: Vec<&str> = FallbackReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(FallbackReason::TooLarge.as_str(), "too-large");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FallbackReason::ALL.len());
}
