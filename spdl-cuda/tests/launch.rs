//! Kernel launches are ordered after their inputs, and before any reuse of their memory. The host never
//! waits.

#![cfg(all(feature = "images", feature = "testing"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use common::simple_kernel::device;
use common::{Chance, into_cuda_memory};
use spdl_core::memory::DeviceMemory;
use spdl_core::{DType, Device, ErrorKind, Result};
use spdl_cuda::kernels::{ImageKernels, ResizePlan, SampleBatch};
use spdl_cuda::pixels::{DevicePlane, SourceImage};
use spdl_cuda::runtime::DeviceAllocator;
use spdl_cuda::testing::{FakeDriver, KernelRead, LiveResources, Schedule, ViolationKind};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory};
use spdl_media::image::CropBox;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Size};

/// The number of seeds. Together with `order.rs` and `images`, more than G1 promises.
const SCHEDULES: u64 = 20_000;

/// Images and samples have 2 x 2 pixels.
const SIDE: u32 = 2;
const BYTES: usize = 12;

fn format() -> TensorSpec {
    TensorSpec::new(Size::new(SIDE, SIDE))
}

/// An image whose first byte is `number`.
fn send(driver: &FakeDriver, device: &CudaDevice, number: usize) -> Result<Arc<CudaMemory>> {
    let mut buffer = device.host_buffer(BYTES)?;
    driver.host_writes(&buffer);
    buffer.fill(number as u8);
    Ok(Arc::from(into_cuda_memory(device.upload(buffer)?.memory)))
}

fn push(batch: &mut SampleBatch, memory: &Arc<CudaMemory>) -> Result<()> {
    let plane = DevicePlane { address: memory.address() as u64, pitch: 3 * u64::from(SIDE) };
    let image = SourceImage::rgb8(SIDE, SIDE, plane)?;
    let side = f64::from(SIDE);
    let whole = CropBox { left: 0.0, top: 0.0, width: side, height: side };
    batch.push(memory, &image, &ResizePlan::new(whole, Size::new(SIDE, SIDE)))
}

fn launch(kernels: &ImageKernels, images: &[Arc<CudaMemory>]) -> Result<Box<CudaMemory>> {
    let mut batch = kernels.batch(&format(), 4)?;
    images.iter().try_for_each(|image| push(&mut batch, image))?;
    Ok(into_cuda_memory(kernels.launch(batch)?.memory))
}

/// Launches a batch of images with these numbers.
fn make(
    driver: &FakeDriver,
    device: &CudaDevice,
    kernels: &ImageKernels,
    numbers: &[usize],
) -> Result<Box<CudaMemory>> {
    let images: Result<Vec<_>> = numbers.iter().map(|at| send(driver, device, *at)).collect();
    launch(kernels, &images?)
}

fn bytes_of(numbers: &[usize]) -> Vec<u8> {
    numbers.iter().flat_map(|number| [*number as u8; BYTES]).collect()
}

/// Batches of a random consumer on a device with random delays. Panics on any violation.
fn run(seed: u64) {
    let (driver, device) = device(Schedule::Seeded(seed));
    let kernels = ImageKernels::new(&device).unwrap();
    let mut chance = Chance(!seed);
    let streams: Vec<ConsumerStream> = (0..2).map(|_| driver.consumer_stream()).collect();
    let mut seen: Vec<(KernelRead, Vec<u8>)> = Vec::new();
    let mut images: Vec<(usize, Arc<CudaMemory>)> = Vec::new();
    let mut held = Vec::new();
    for number in 0..8 {
        images.push((number, send(&driver, &device, number).unwrap()));
        // Images may be in several batches, or in none.
        let chosen: Vec<_> = (0..=chance.below(3)).map(|_| chance.below(images.len())).collect();
        let numbers: Vec<usize> = chosen.iter().map(|at| images[*at].0).collect();
        let sources: Vec<_> = chosen.iter().map(|at| Arc::clone(&images[*at].1)).collect();
        let batch = launch(&kernels, &sources).unwrap();
        drop(sources);
        if chance.below(4) > 0 {
            let stream = &streams[chance.below(2)];
            batch.wait_on(stream).unwrap();
            let kernel = driver.read_by_kernel(stream, batch.address(), batch.len());
            seen.push((kernel, bytes_of(&numbers)));
        }
        held.push(batch);
        if chance.below(2) == 0 {
            held.swap_remove(chance.below(held.len()));
        }
        if chance.below(2) == 0 {
            images.swap_remove(chance.below(images.len()));
        }
        if images.is_empty() {
            images.push((number + 100, send(&driver, &device, number + 100).unwrap()));
        }
    }
    if chance.below(2) == 0 {
        drop((kernels, device));
        drop((held, images));
    } else {
        drop((held, images));
        drop((kernels, device));
    }
    driver.run_all();
    assert_eq!(driver.violations(), [], "seed {seed}");
    for (kernel, bytes) in seen {
        assert_eq!(kernel.bytes(), Some(bytes), "seed {seed}");
    }
    assert_eq!(driver.live_resources(), LiveResources::default(), "seed {seed}");
}

// promise: DEV3, G1
#[test]
fn g1_no_schedule_runs_a_kernel_early_or_overwrites_its_input() {
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get()).min(8) as u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || (thread..SCHEDULES).step_by(threads as usize).for_each(run));
        }
    });
}

/// Launches batches in sequence on a device that works only when the host waits, so that each batch reuses
/// the memory of the last. Returns the number of records and waits.
fn use_everything(driver: &FakeDriver, device: &CudaDevice) -> usize {
    let kernels = ImageKernels::new(device).unwrap();
    let stream = driver.consumer_stream();
    for round in 0..3 {
        // With one image: for several copies on one stream, the wait for the last would suffice.
        let batch = make(driver, device, &kernels, &[round]).unwrap();
        batch.wait_on(&stream).unwrap();
        driver.read_by_kernel(&stream, batch.address(), batch.len());
    }
    // An unused batch, and a copy into its memory.
    drop(make(driver, device, &kernels, &[7]).unwrap());
    let calls = driver.order_calls();
    for number in 0..8 {
        drop(make(driver, device, &kernels, &[number]).unwrap());
        let mut buffer = device.host_buffer(4 * 392).unwrap();
        driver.host_writes(&buffer);
        buffer.fill(1);
        drop(device.upload(buffer).unwrap());
    }
    calls
}

// promise: DEV3
#[test]
fn g1_each_omitted_record_or_wait_of_a_launch_is_detected() {
    let (driver, device) = device(Schedule::Held);
    let count = use_everything(&driver, &device);
    assert_eq!(driver.violations(), []);
    assert!(count > 20, "{count}");
    for left_out in 0..count {
        let (driver, device) = self::device(Schedule::Held);
        driver.skip_order_call(left_out);
        use_everything(&driver, &device);
        assert!(!driver.violations().is_empty(), "omitted record or wait {left_out} not detected");
    }
}

// promise: G2
#[test]
fn g2_launches_do_not_wait_or_allocate_in_the_steady_state() {
    let (driver, device) = device(Schedule::Held);
    let kernels = ImageKernels::new(&device).unwrap();
    let stream = driver.consumer_stream();
    let mut queue = VecDeque::new();
    let mut counts = Vec::new();
    for number in 0..500 {
        // Partial batches among full ones.
        let numbers: Vec<usize> = (0..1 + number % 4).collect();
        queue.push_back(make(&driver, &device, &kernels, &numbers).unwrap());
        if queue.len() > 2 {
            let batch = queue.pop_front().unwrap();
            batch.wait_on(&stream).unwrap();
            driver.read_by_kernel(&stream, batch.address(), batch.len());
        }
        if number % 5 == 0 {
            driver.run_all();
        }
        counts.push((driver.synchronisations(), driver.allocations()));
    }
    assert_eq!(counts[60], counts[499], "(waits, allocations)");
    assert_eq!(driver.calls_of("cuEventSynchronize"), 0);
    assert_eq!(driver.calls_of("cuLaunchKernel"), 500, "one launch per batch");
    assert_eq!(driver.violations(), []);
}

// promise: G11
#[test]
fn g11_any_call_of_a_launch_may_fail_without_leaks_or_races() {
    let batches = |driver: &FakeDriver| -> Result<()> {
        let device = CudaDevice::on(driver.clone(), 0)?;
        let kernels = ImageKernels::new(&device)?;
        let stream = driver.consumer_stream();
        let mut failure = Ok(());
        for number in 0..3 {
            match make(driver, &device, &kernels, &[number, 9]) {
                Ok(batch) => {
                    batch.wait_on(&stream)?;
                    driver.read_by_kernel(&stream, batch.address(), batch.len());
                }
                Err(error) => failure = Err(error),
            }
        }
        failure
    };
    let driver = FakeDriver::new(1, Schedule::Held);
    batches(&driver).unwrap();
    let calls = driver.calls();
    let mut reported = 0;
    for code in [2, 1, 999, 719] {
        // After six failed calls, the library cannot determine whether started work is complete.
        for count in [1, 6] {
            for failing in 0..calls {
                let driver = FakeDriver::new(1, Schedule::Held);
                driver.fail_calls(failing, count, code);
                reported += usize::from(batches(&driver).is_err());
                driver.run_all();
                let case = format!("{count} calls from {failing} on with {code}");
                assert_eq!(driver.violations(), [], "{case}");
                if count == 1 && code != 719 {
                    assert!(
                        driver.live_resources().is_empty(),
                        "{case}: {:?}",
                        driver.live_resources()
                    );
                }
            }
        }
    }
    assert!(reported > 3 * calls, "only {reported} of {} failures reported", 8 * calls);
}

// promise: G11
#[test]
fn g11_memory_is_withheld_after_a_failed_wait_of_a_launch() {
    let (driver, device) = device(Schedule::Held);
    let kernels = ImageKernels::new(&device).unwrap();
    let stream = driver.consumer_stream();
    let image = send(&driver, &device, 1).unwrap();
    let batch = launch(&kernels, std::slice::from_ref(&image)).unwrap();
    batch.wait_on(&stream).unwrap();
    drop(batch);
    let before = device.statistics().slabs;
    // As if the consumer's stream had been captured when the batch was dropped.
    driver.fail_next("cuStreamWaitEvent", 907);
    let error = launch(&kernels, std::slice::from_ref(&image)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // The memory of the samples and of the table.
    let slabs = device.statistics().slabs;
    assert_eq!((slabs.live_bytes, slabs.free_bytes), (before.live_bytes, 0));
    assert_eq!(slabs.withheld_bytes, before.free_bytes);
    launch(&kernels, &[image]).unwrap();
    drop((kernels, device));
    driver.run_all();
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

/// An allocator that records the requested sizes, and returns unusable addresses.
#[derive(Debug, Default)]
struct Addresses(Mutex<Vec<usize>>);

// SAFETY: no test accesses the memory.
unsafe impl DeviceAllocator for Addresses {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.0.lock().unwrap().push(bytes);
        Ok(1 << 50)
    }

    fn free(&self, _: u64, _: usize) {}
}

#[test]
fn b2_batches_of_more_than_4_gibibytes_are_one_allocation() {
    let (_driver, device) = device(Schedule::Prompt);
    let kernels = ImageKernels::new(&device).unwrap();
    let addresses = Arc::new(Addresses::default());
    device.set_allocator(addresses.clone());
    drop(
        kernels
            .batch(ImageTransform::with_size(Size::new(224, 224)).dtype(DType::F32).tensor(), 8000)
            .unwrap(),
    );
    let bytes = 224 * 224 * 3 * 4 * 8000;
    let sizes = addresses.0.lock().unwrap().clone();
    assert!(sizes.len() == 1 && (bytes..bytes + bytes / 8).contains(&sizes[0]), "{sizes:?}");
}

#[test]
fn kernels_match_the_device_or_the_error_names_what_is_missing() {
    let load = |major, minor, code: Option<u32>| {
        let (driver, device) = device(Schedule::Prompt);
        driver.set_compute_capability(major, minor);
        if let Some(code) = code {
            driver.fail_next("cuModuleLoadData", code);
        }
        ImageKernels::new(&device).map(|kernels| kernels.architecture())
    };
    for (major, minor, expected) in [(7, 5, "sm_75"), (8, 9, "sm_80"), (12, 1, "compute_75")] {
        assert_eq!(load(major, minor, None).unwrap(), expected);
    }
    let missing = [
        (7, 0, None, "need 7.5 or higher"),
        (12, 1, Some(221), "the PTX compiler of the driver is missing"),
        (12, 1, Some(222), "install a newer NVIDIA driver"),
        (12, 1, Some(223), "unset CUDA_DISABLE_PTX_JIT"),
    ];
    for (major, minor, code, words) in missing {
        let error = load(major, minor, code).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn invalid_launches_are_refused_and_the_next_batch_succeeds() {
    let (driver, device) = device(Schedule::Held);
    let kernels = ImageKernels::new(&device).unwrap();
    assert_eq!(kernels.architecture(), "sm_90");
    let refused =
        |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let image = send(&driver, &device, 1).unwrap();
    let mut batch = kernels.batch(&format(), 1).unwrap();
    // One byte beyond the memory.
    let plane = DevicePlane { address: image.address() as u64 + 1, pitch: 6 };
    let beyond = SourceImage::rgb8(SIDE, SIDE, plane).unwrap();
    let whole = CropBox { left: 0.0, top: 0.0, width: 2.0, height: 2.0 };
    refused(batch.push(&image, &beyond, &ResizePlan::new(whole, Size::new(SIDE, SIDE))));
    let other = CudaDevice::on(driver.clone(), 0).unwrap();
    refused(push(&mut batch, &send(&driver, &other, 1).unwrap()));
    refused(kernels.launch(kernels.batch(&format(), 1).unwrap()).map(drop));
    push(&mut batch, &image).unwrap();
    refused(push(&mut batch, &image));
    assert_eq!((batch.len(), batch.is_empty()), (1, false));
    let foreign = ImageKernels::new(&other).unwrap();
    refused(foreign.launch(batch).map(drop));
    refused(kernels.batch(&format(), 0).map(drop));
    let mut integers = format();
    integers.format.dtype = DType::I64;
    refused(kernels.batch(&integers, 1).map(drop));
    refused(kernels.batch(&format(), usize::MAX).map(drop));
    drop(kernels.batch(&format(), 1).unwrap());
    launch(&kernels, &[image]).unwrap();
    assert_eq!(device.statistics().slabs.live_bytes, 0);
    drop((kernels, foreign, device, other));
    driver.run_all();
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources(), LiveResources::default());
}

// promise: DEV3
#[test]
fn undeclared_accesses_of_a_kernel_are_reported() {
    let (driver, device) = device(Schedule::Held);
    let kernels = ImageKernels::new(&device).unwrap();
    let image = send(&driver, &device, 1).unwrap();
    let outside = image.address() as u64 + BYTES as u64;
    driver.run_kernels_with(move |kernel| {
        kernel.read(outside - 1, 2);
        let (start, _) = kernel.written()[0];
        kernel.write(outside - 12, &[0]);
        kernel.write(start, &[0]);
    });
    launch(&kernels, &[image]).unwrap();
    driver.run_all();
    let kinds: Vec<_> = driver.violations().iter().map(|found| found.kind).collect();
    assert_eq!(kinds, [ViolationKind::UndeclaredAccess; 2]);
}

// promise: DEV3
#[test]
fn a_slab_is_not_overwritten_before_its_copy_even_if_no_reader_has_waited() {
    for waits in [false, true] {
        let (driver, device) = device(Schedule::Held);
        let kernels = ImageKernels::new(&device).unwrap();
        let stream = driver.consumer_stream();
        let image = send(&driver, &device, 2).unwrap();
        let batch = send(&driver, &device, 1).unwrap();
        batch.record_stream(&stream);
        if waits {
            batch.wait_on(&stream).unwrap();
        }
        drop(batch);
        // The samples reuse the memory of the batch, on another stream than its copy.
        let samples = launch(&kernels, &[image]).unwrap();
        driver.run_all();
        assert_eq!(driver.violations(), [], "the stream has waited: {waits}");
        drop(samples);
    }
}
