//! Samples of images in an upload: ordered after the upload and earlier writes, and before any reuse of the
//! memory.

#![cfg(all(feature = "images", feature = "testing", feature = "python"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::into_cuda_memory;
use common::simple_kernel::{self, device};
use spdl_core::memory::{DeviceMemory, Upload};
use spdl_core::{Device, ErrorKind, Result};
use spdl_cuda::kernels::{ImageKernels, ResizePlan};
use spdl_cuda::pixels::{DevicePlane, SourceImage};
use spdl_cuda::python::{cuda_memory, samples_of};
use spdl_cuda::testing::{FakeDriver, LiveResources, Schedule};
use spdl_cuda::{CudaDevice, CudaMemory};
use spdl_media::Size;
use spdl_media::image::CropBox;
use spdl_media::transform::TensorSpec;

const SIDE: u32 = 2;
const BYTES: usize = 12;

/// Uploads two images together.
fn send(driver: &FakeDriver, device: &CudaDevice, number: u8) -> Result<Upload> {
    let mut buffer = device.host_buffer(2 * BYTES)?;
    driver.host_writes(&buffer);
    buffer[..BYTES].fill(number);
    buffer[BYTES..].fill(number + 100);
    device.upload(buffer)
}

fn images(upload: &Upload, offset: usize) -> Vec<(SourceImage, ResizePlan)> {
    let side = f64::from(SIDE);
    let whole = CropBox { left: 0.0, top: 0.0, width: side, height: side };
    let image = |at: usize| {
        let address = (upload.memory.address() + offset + at * BYTES) as u64;
        let plane = DevicePlane { address, pitch: 3 * u64::from(SIDE) };
        SourceImage::rgb8(SIDE, SIDE, plane).unwrap()
    };
    [0, 1].map(|at| (image(at), ResizePlan::new(whole, Size::new(SIDE, SIDE)))).to_vec()
}

fn make(device: &CudaDevice, kernels: &ImageKernels, upload: &Upload) -> Result<Box<CudaMemory>> {
    let format = TensorSpec::new(Size::new(SIDE, SIDE));
    let made = samples_of(device, kernels, upload, &images(upload, 0), &format, None)?;
    Ok(into_cuda_memory(made.memory))
}

// promise: G1
#[test]
fn g1_no_schedule_overwrites_an_upload_before_its_samples_are_complete() {
    for seed in 0..500 {
        let (driver, device) = device(Schedule::Seeded(seed));
        let kernels = ImageKernels::new(&device).unwrap();
        let stream = driver.consumer_stream();
        let mut seen = Vec::new();
        for number in 0..6 {
            let upload = send(&driver, &device, number).unwrap();
            let samples = make(&device, &kernels, &upload).unwrap();
            drop(upload);
            samples.wait_on(&stream).unwrap();
            seen.push((number, driver.read_by_kernel(&stream, samples.address(), samples.len())));
        }
        drop((kernels, device));
        driver.run_all();
        assert_eq!(driver.violations(), [], "seed {seed}");
        for (number, seen) in seen {
            let expected = [[number; BYTES], [number + 100; BYTES]].concat();
            assert_eq!(seen.bytes(), Some(expected), "seed {seed}");
        }
        assert_eq!(driver.live_resources(), LiveResources::default(), "seed {seed}");
    }
}

// promise: G1
#[test]
fn g1_samples_are_ordered_after_earlier_work_of_the_stream() {
    for seed in 0..200 {
        let (driver, device) = device(Schedule::Seeded(seed));
        let kernels = ImageKernels::new(&device).unwrap();
        let stream = driver.consumer_stream();
        let upload = send(&driver, &device, 1).unwrap();
        let memory = cuda_memory(&upload).unwrap();
        memory.wait_on(&stream).unwrap();
        driver.write_by_kernel(&stream, memory.address(), 2 * BYTES, 77);
        let format = TensorSpec::new(Size::new(SIDE, SIDE));
        let samples =
            samples_of(&device, &kernels, &upload, &images(&upload, 0), &format, Some(&stream));
        let samples = into_cuda_memory(samples.unwrap().memory);
        samples.wait_on(&stream).unwrap();
        let seen = driver.read_by_kernel(&stream, samples.address(), samples.len());
        drop((upload, samples, kernels, device));
        driver.run_all();
        assert_eq!(driver.violations(), [], "seed {seed}");
        assert_eq!(seen.bytes(), Some(vec![77; 2 * BYTES]), "seed {seed}");
    }
}

#[test]
fn images_outside_of_the_upload_or_of_the_device_are_refused() {
    let (driver, device) = device(Schedule::Prompt);
    let kernels = ImageKernels::new(&device).unwrap();
    let upload = send(&driver, &device, 1).unwrap();
    let format = TensorSpec::new(Size::new(SIDE, SIDE));
    let outside = images(&upload, 1);
    let error = samples_of(&device, &kernels, &upload, &outside, &format, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let (_, other) = self::device(Schedule::Prompt);
    let inside = images(&upload, 0);
    let error = samples_of(&other, &kernels, &upload, &inside, &format, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(driver.violations(), []);
}

// promise: G11
#[test]
fn g11_any_driver_call_may_fail_during_samples_of_an_upload() {
    let epoch = |driver: &FakeDriver| -> Result<()> {
        driver.run_kernels_with(simple_kernel::run);
        let device = CudaDevice::on(driver.clone(), 0)?;
        let kernels = ImageKernels::new(&device)?;
        let upload = send(driver, &device, 1)?;
        make(&device, &kernels, &upload).map(drop)
    };
    let driver = FakeDriver::new(1, Schedule::Held);
    epoch(&driver).unwrap();
    let mut errors = 0;
    for failing in 0..driver.calls() {
        for code in [2, 999] {
            let driver = FakeDriver::new(1, Schedule::Held);
            driver.fail_calls(failing, 1, code);
            errors += usize::from(epoch(&driver).is_err());
            assert_eq!(driver.violations(), [], "call {failing} with {code}");
            assert!(
                driver.live_resources().is_empty(),
                "call {failing}: {:?}",
                driver.live_resources()
            );
        }
    }
    assert!(errors > driver.calls() / 2, "{errors} of {}", 2 * driver.calls());
}
