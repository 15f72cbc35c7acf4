//! g2: whether batches stay intact until delayed consumers read them, in memory that is reused.

use std::rc::Rc;
use std::time::Duration;

use spdl_core::Device;
use spdl_cuda::CudaDevice;

use crate::Outcome;
use crate::consumer::{Consumer, Kernels, checksum_of};
use crate::copies::{cuda_memory, message, size_text};
use crate::lines::Measurement;
use crate::raw::{Driver, HostKind};

/// For each case: the number of batches that the consumer holds, and the number of its streams.
const CASES: [(usize, usize); 6] = [(1, 1), (4, 1), (16, 1), (1, 3), (4, 3), (16, 3)];

/// G1 is a promise for this number of batches. If time is left, more batches are checked.
const BATCHES: usize = 100_000;
const MAX_BATCHES: usize = 1_000_000;

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    let driver = Driver::open()?;
    control(measurement, &driver)?;
    let per_case = if measurement.size.is_tiny() { 300 } else { MAX_BATCHES / CASES.len() };
    let (mut checked, mut corrupted) = (0, 0);
    for (at, (holds, streams)) in CASES.into_iter().enumerate() {
        let share = (at + 1) as f64 / CASES.len() as f64;
        let is_over = |batch: usize| batch >= per_case || measurement.is_over(share);
        let (case_checked, case_corrupted) = epoch(&driver, holds, streams, is_over)?;
        let case = format!("consumer holds {holds} batches, streams: {streams}");
        measurement.figure(&case, "batches", case_checked as f64, "");
        measurement.figure(&case, "corrupted", case_corrupted as f64, "");
        checked += case_checked;
        corrupted += case_corrupted;
    }
    measurement.promise(
        "G1: batches under delayed consumers",
        corrupted == 0 && checked > 0,
        &format!("{corrupted} corrupted of {checked}"),
        "0",
    );
    if checked < BATCHES && !measurement.size.is_tiny() {
        measurement.note(&format!("only {checked} of {BATCHES} batches checked: out of time"));
    }
    Ok(())
}

/// Uploads batches until `is_over`. Returns the number of batches, and how many were corrupted.
fn epoch(
    driver: &Rc<Driver>,
    holds: usize,
    streams: usize,
    is_over: impl Fn(usize) -> bool,
) -> Result<(usize, usize), String> {
    let device = CudaDevice::open(0).map_err(message)?;
    let mut consumer = Consumer::new(driver, streams, holds)?;
    let mut number = 0;
    while !is_over(number) {
        let (buffer, checksum) = assemble(&device, number)?;
        let memory = cuda_memory(device.upload(buffer).map_err(message)?.memory)?;
        consumer.take(memory, checksum, delay(number))?;
        number += 1;
    }
    let found = consumer.finish()?;
    let failures = device.statistics().release_failures;
    if failures > 0 {
        return Err(format!("{failures} driver objects could not be destroyed"));
    }
    Ok(found)
}

/// Batch `number`, of one of three sizes, and its checksum.
fn assemble(
    device: &CudaDevice,
    number: usize,
) -> Result<(spdl_core::memory::HostBuffer, u64), String> {
    let len = (16 << 10) << (number % 3);
    let mut buffer = device.host_buffer(len).map_err(message)?;
    let mut state = number as u32 ^ 0x9e37_79b9;
    for word in buffer.chunks_exact_mut(4) {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        word.copy_from_slice(&state.to_ne_bytes());
    }
    let checksum = checksum_of(&buffer);
    Ok((buffer, checksum))
}

/// The delay of the consumer for batch `number`.
fn delay(number: usize) -> Duration {
    match number {
        _ if number % 5000 == 2500 => Duration::from_millis(100),
        _ if number.is_multiple_of(97) => Duration::from_millis(1),
        _ if number.is_multiple_of(3) => Duration::from_micros(20),
        _ => Duration::ZERO,
    }
}

/// Tests the detection of corruption: unordered copies into one buffer must be detected.
fn control(measurement: &Measurement, driver: &Rc<Driver>) -> Outcome {
    let bytes = 64 << 10;
    let kernels = Kernels::load(driver)?;
    let (copies, consumer) = (driver.stream()?, driver.stream()?);
    let mut host =
        [driver.host(bytes, HostKind::Allocated)?, driver.host(bytes, HostKind::Allocated)?];
    let (place, sums) = (driver.memory(bytes)?, driver.memory(8)?);
    let mut found = driver.host(8, HostKind::Allocated)?;
    host.iter_mut().zip([1, 2]).for_each(|(host, value)| host.bytes_mut().fill(value));
    let expected = checksum_of(host[0].bytes());
    let tries = if measurement.size.is_tiny() { 5 } else { 50 };
    let mut corrupted = 0;
    for _ in 0..tries {
        found.bytes_mut().fill(0);
        consumer.to_device(&sums, &found, 8)?;
        consumer.synchronize()?;
        copies.to_device(&place, &host[0], bytes)?;
        copies.synchronize()?;
        kernels.delay(&consumer, Duration::from_millis(2))?;
        kernels.checksum(&consumer, place.address, (bytes / 4) as u32, sums.address)?;
        // Not ordered after the consumer.
        copies.to_device(&place, &host[1], bytes)?;
        copies.synchronize()?;
        consumer.to_host(&found, &sums, 8)?;
        consumer.synchronize()?;
        let word = found.bytes().try_into().map_err(|_| "a sum has 8 bytes")?;
        corrupted += usize::from(u64::from_ne_bytes(word) != expected);
    }
    let case = format!("unordered copies of {}", size_text(bytes));
    measurement.figure(&case, "corrupted", corrupted as f64, &format!("of {tries}"));
    // The driver stub of the tests executes all work synchronously.
    if !measurement.size.is_tiny() {
        measurement.promise(
            "the check for corruption detects unordered copies",
            corrupted > 0,
            &format!("{corrupted} of {tries} corrupted"),
            "more than 0",
        );
    }
    Ok(())
}
