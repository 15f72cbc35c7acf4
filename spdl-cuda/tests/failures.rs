//! Each driver call may fail: the result is an error of the right kind, without leaks.

// promise of this file: G11
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{LEN, bytes_of, send};
use spdl_core::memory::DeviceMemory;
use spdl_core::{Device, Error, ErrorKind, Result};
use spdl_cuda::driver::DriverError;
use spdl_cuda::testing::{FakeDriver, KernelRead, Schedule};
use spdl_cuda::{ConsumerStream, CudaDevice};

/// Out of memory, invalid value, device unavailable, not initialised, unknown, newer driver.
const TRANSIENT: [u32; 6] = [2, 1, 46, 3, 999, 4242];

/// Illegal address, launch failure, uncorrectable ECC error.
const STICKY: [u32; 3] = [700, 719, 214];

/// A short epoch with one consumer that continues after failures. Checks the batches that arrive, and
/// returns the failures.
fn epoch(driver: &FakeDriver) -> Vec<Error> {
    let stream = driver.consumer_stream();
    let mut failures = Vec::new();
    let mut seen = Vec::new();
    match CudaDevice::on(driver.clone(), 0) {
        Ok(device) => {
            for number in 0..5 {
                let len = LEN * (1 + number % 3 * 8);
                match step(driver, &device, &stream, number, len) {
                    Ok(kernel) => seen.push((kernel, bytes_of(number, len))),
                    Err(error) => failures.push(error),
                }
            }
        }
        Err(error) => failures.push(error),
    }
    driver.run_all();
    for (kernel, holds) in seen {
        assert_eq!(kernel.bytes(), Some(holds));
    }
    failures
}

fn step(
    driver: &FakeDriver,
    device: &CudaDevice,
    stream: &ConsumerStream,
    number: usize,
    len: usize,
) -> Result<KernelRead> {
    device.description()?;
    let batch = send(driver, device, number, len)?;
    batch.wait_on(stream)?;
    let seen = driver.read_by_kernel(stream, batch.address(), len);
    let download = batch.download(Some(stream))?;
    let host = download.wait()?;
    driver.host_reads(&host);
    assert_eq!(*host, bytes_of(number, len)[..]);
    drop(device.host_buffer(len)?);
    Ok(seen)
}

/// The number of calls of an epoch without failures.
fn calls() -> usize {
    let driver = FakeDriver::new(1, Schedule::Held);
    assert!(epoch(&driver).is_empty());
    assert!(driver.live_resources().is_empty());
    driver.calls()
}

fn cause(error: &Error) -> DriverError {
    *std::error::Error::source(error).unwrap().downcast_ref::<DriverError>().unwrap()
}

#[test]
fn g11_any_single_call_may_fail_without_leaks_or_races() {
    let calls = calls();
    assert!(calls > 100, "{calls}");
    let mut reported = 0;
    for code in TRANSIENT {
        for failing in 0..calls {
            for schedule in [Schedule::Held, Schedule::Prompt, Schedule::Seeded(failing as u64)] {
                let driver = FakeDriver::new(1, schedule);
                driver.fail_calls(failing, 1, code);
                let failures = epoch(&driver);
                let case = format!("call {failing} with code {code}, {schedule:?}");
                assert_eq!(driver.violations(), [], "{case}");
                assert!(
                    driver.live_resources().is_empty(),
                    "{case}: {:?}",
                    driver.live_resources()
                );
                for error in &failures {
                    assert_eq!(cause(error).code, code, "{case}");
                    assert!(!error.is_fatal(), "{case}");
                }
                reported += failures.len();
            }
        }
    }
    assert!(reported > calls * TRANSIENT.len(), "only {reported} failures reported");
}

#[test]
fn g11_several_consecutive_calls_may_fail_without_races() {
    let calls = calls();
    for count in 2..12 {
        for failing in 0..calls {
            let driver = FakeDriver::new(1, Schedule::Held);
            driver.fail_calls(failing, count, 999);
            epoch(&driver);
            assert_eq!(driver.violations(), [], "{count} calls from {failing} on");
        }
    }
}

#[test]
fn g11_a_lost_device_stays_lost_and_memory_in_use_is_not_freed() {
    let calls = calls();
    for code in STICKY {
        for failing in 0..calls {
            let driver = FakeDriver::new(1, Schedule::Held);
            driver.fail_calls(failing, usize::MAX, code);
            let failures = epoch(&driver);
            let case = format!("from call {failing} on with code {code}");
            assert_eq!(driver.violations(), [], "{case}");
            for error in &failures {
                assert!(error.is_fatal(), "{case}: {error}");
                assert_eq!(error.kind(), ErrorKind::Io, "{case}");
                assert!(error.message().contains("restart"), "{case}: {error}");
            }
        }
    }
}

#[test]
fn memory_that_a_failed_download_may_read_is_not_overwritten() {
    let mut failures = 0;
    for failing in 0..30 {
        let driver = FakeDriver::new(1, Schedule::Held);
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let batch = send(&driver, &device, 1, LEN).unwrap();
        // If the record after the copy fails, the end of the copy is unknown, because waits fail as well.
        driver.fail_calls(failing, 5, 999);
        failures += usize::from(batch.download(None).is_err());
        driver.fail_calls(0, 0, 999);
        drop(batch);
        let _next = send(&driver, &device, 2, LEN).unwrap();
        assert_eq!(driver.violations(), [], "5 calls from {failing} on");
    }
    assert!(failures > 10, "{failures}");
}

#[test]
fn a_lost_device_gets_no_further_calls() {
    let driver = FakeDriver::new(1, Schedule::Prompt);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    driver.fail_calls(0, 2, 700);
    assert!(batch.wait_on(&driver.consumer_stream()).unwrap_err().is_fatal());
    let calls = driver.calls();
    assert!(batch.wait_on(&driver.consumer_stream()).unwrap_err().is_fatal());
    let buffer = spdl_core::memory::BufferPool::new().take(LEN).unwrap();
    let error = device.upload(buffer).unwrap_err();
    assert_eq!((cause(&error).code, error.is_fatal()), (700, true));
    assert_eq!(driver.calls(), calls);
}

#[test]
fn failed_destructions_are_counted() {
    let driver = FakeDriver::new(1, Schedule::Prompt);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    drop(device.buffers().take(LEN).unwrap());
    // The pool has no capacity for both, and frees the old buffer.
    driver.fail_next("cuMemHostUnregister", 999);
    drop(device.buffers().take(200 * LEN).unwrap());
    assert_eq!(device.statistics().release_failures, 1);
    assert_eq!(driver.live_resources().abandoned, 1);
    drop(device);
    assert!(driver.live_resources().is_empty());
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    let error = CudaDevice::on(FakeDriver::new(2, Schedule::Prompt), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let report = error.report();
    assert!(report.contains("open CUDA device 2; invalid device ordinal"), "{report}");
}
