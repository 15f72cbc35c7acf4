//! g2: whether each batch arrives whole at consumers that are late, in memory that is used over and over.

use std::rc::Rc;
use std::time::Duration;

use spdl_core::Device;
use spdl_cuda::CudaDevice;

use crate::Outcome;
use crate::consumer::{Consumer, Kernels, checksum_of};
use crate::copies::{own, said, shown};
use crate::lines::Measuring;
use crate::raw::{Driver, HostKind};

/// How many batches the consumer keeps, and on how many streams it works.
const CASES: [(usize, usize); 6] = [(1, 1), (4, 1), (16, 1), (1, 3), (4, 3), (16, 3)];

/// G1 is a claim about so many batches; where there is time, there are more.
const BATCHES: usize = 100_000;
const MOST_BATCHES: usize = 1_000_000;

pub(crate) fn measure(measuring: &Measuring) -> Outcome {
    let driver = Driver::open()?;
    control(measuring, &driver)?;
    let per_case = if measuring.size.is_tiny() { 300 } else { MOST_BATCHES / CASES.len() };
    let (mut taken, mut corrupted) = (0, 0);
    for (at, (keeps, streams)) in CASES.into_iter().enumerate() {
        let share = (at + 1) as f64 / CASES.len() as f64;
        let is_over = |batch: usize| batch >= per_case || measuring.is_over(share);
        let (case_taken, case_corrupted) = epoch(&driver, keeps, streams, is_over)?;
        let case = format!("consumer keeps {keeps}, on streams: {streams}");
        measuring.figure(&case, "batches", case_taken as f64, "");
        measuring.figure(&case, "corrupted", case_corrupted as f64, "");
        taken += case_taken;
        corrupted += case_corrupted;
    }
    measuring.promise(
        "G1: batches under late consumers",
        corrupted == 0 && taken > 0,
        &format!("{corrupted} corrupted of {taken}"),
        "0",
    );
    if taken < BATCHES && !measuring.size.is_tiny() {
        measuring.note(&format!("there was no time for more than {taken} of {BATCHES} batches"));
    }
    Ok(())
}

/// Sends batches until it is over. How many, and how many were not what they should be.
fn epoch(
    driver: &Rc<Driver>,
    keeps: usize,
    streams: usize,
    is_over: impl Fn(usize) -> bool,
) -> Result<(usize, usize), String> {
    let device = CudaDevice::open(0).map_err(said)?;
    let mut consumer = Consumer::new(driver, streams, keeps)?;
    let mut number = 0;
    while !is_over(number) {
        let (buffer, checksum) = assemble(&device, number)?;
        let memory = own(device.upload(buffer).map_err(said)?.memory)?;
        consumer.take(memory, checksum, lateness(number))?;
        number += 1;
    }
    let found = consumer.finish()?;
    let failures = device.statistics().release_failures;
    if failures > 0 {
        return Err(format!("{failures} things could not be destroyed"));
    }
    Ok(found)
}

/// Batch `number`, and its checksum. They are of three sizes.
fn assemble(
    device: &CudaDevice,
    number: usize,
) -> Result<(spdl_core::memory::HostBuffer, u64), String> {
    let len = (16 << 10) << (number % 3);
    let mut buffer = device.host_buffer(len).map_err(said)?;
    let mut state = number as u32 ^ 0x9e37_79b9;
    for word in buffer.chunks_exact_mut(4) {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        word.copy_from_slice(&state.to_ne_bytes());
    }
    let checksum = checksum_of(&buffer);
    Ok((buffer, checksum))
}

/// Most batches are read a little late, some much later.
fn lateness(number: usize) -> Duration {
    match number {
        _ if number % 5000 == 2500 => Duration::from_millis(100),
        _ if number.is_multiple_of(97) => Duration::from_millis(1),
        _ if number.is_multiple_of(3) => Duration::from_micros(20),
        _ => Duration::ZERO,
    }
}

/// Whether the check finds anything: copies into one place that nobody has ordered must be found.
fn control(measuring: &Measuring, driver: &Rc<Driver>) -> Outcome {
    let bytes = 64 << 10;
    let kernels = Kernels::load(driver)?;
    let (copies, consumer) = (driver.stream()?, driver.stream()?);
    let mut host =
        [driver.host(bytes, HostKind::Allocated)?, driver.host(bytes, HostKind::Allocated)?];
    let (place, sums) = (driver.memory(bytes)?, driver.memory(8)?);
    let mut found = driver.host(8, HostKind::Allocated)?;
    host.iter_mut().zip([1, 2]).for_each(|(host, value)| host.bytes_mut().fill(value));
    let expected = checksum_of(host[0].bytes());
    let tries = if measuring.size.is_tiny() { 5 } else { 50 };
    let mut corrupted = 0;
    for _ in 0..tries {
        found.bytes_mut().fill(0);
        consumer.to_device(&sums, &found, 8)?;
        consumer.synchronize()?;
        copies.to_device(&place, &host[0], bytes)?;
        copies.synchronize()?;
        kernels.delay(&consumer, Duration::from_millis(2))?;
        kernels.checksum(&consumer, place.address, (bytes / 4) as u32, sums.address)?;
        // Nothing lets this wait for the consumer.
        copies.to_device(&place, &host[1], bytes)?;
        copies.synchronize()?;
        consumer.to_host(&found, &sums, 8)?;
        consumer.synchronize()?;
        let word = found.bytes().try_into().map_err(|_| "a sum has 8 bytes")?;
        corrupted += usize::from(u64::from_ne_bytes(word) != expected);
    }
    let case = format!("copies of {} that nobody has ordered", shown(bytes));
    measuring.figure(&case, "corrupted", corrupted as f64, &format!("of {tries}"));
    // A driver that does all work at once has no order to be broken.
    if !measuring.size.is_tiny() {
        measuring.promise(
            "the check of G1 finds what nobody has ordered",
            corrupted > 0,
            &format!("{corrupted} of {tries} corrupted"),
            "more than 0",
        );
    }
    Ok(())
}
