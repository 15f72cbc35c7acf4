//! A replacement of the image kernels for the fake driver, which accesses the same memory.

use spdl_cuda::CudaDevice;
use spdl_cuda::testing::{FakeDriver, RunningKernel, Schedule};

/// The size of a table entry, and the offsets of its fields.
const ENTRY: usize = 392;
const OUTPUT: usize = 336;
const SIZE: usize = 368;

/// A device of the fake driver that runs this kernel.
pub(crate) fn device(schedule: Schedule) -> (FakeDriver, CudaDevice) {
    let driver = FakeDriver::new(1, schedule);
    driver.run_kernels_with(run);
    let device = CudaDevice::on(driver.clone(), 0).expect("no fault is injected");
    (driver, device)
}

fn number(entry: &[u8], at: usize) -> u64 {
    entry[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

/// The value of every byte of an image of `bytes` bytes that a library decodes.
pub(crate) fn decoded_byte(bytes: u64) -> u8 {
    (bytes / 3 % 251) as u8
}

/// Sets every value of a sample (NHWC bytes, no flips) to the first byte of its image. Library work fills
/// its output with one value.
pub(crate) fn run(kernel: &mut RunningKernel<'_>) {
    if !kernel.name().starts_with("image_") {
        for (address, bytes) in kernel.written() {
            kernel.write(address, &vec![decoded_byte(bytes); bytes as usize]);
        }
        return;
    }
    let Ok(table) = kernel.argument(0).try_into().map(u64::from_ne_bytes) else { return };
    for image in 0..u64::from(kernel.grid()[2]) {
        let entry = kernel.read(table + image * ENTRY as u64, ENTRY);
        if entry.len() < ENTRY {
            return;
        }
        let first = kernel.read(number(&entry, 0), 1);
        let size = number(&entry, SIZE);
        let values = 3 * (size & 0xffff_ffff) * (size >> 32);
        let sample = vec![first.first().copied().unwrap_or(0); values as usize];
        kernel.write(number(&entry, OUTPUT), &sample);
    }
}
