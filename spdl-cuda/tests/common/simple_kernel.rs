//! What a fake device does in place of the kernels: little, but with the memory that they use.

use spdl_cuda::testing::RunningKernel;

/// The bytes of an entry of the table, and where in it its fields are.
const ENTRY: usize = 392;
const OUTPUT: usize = 336;
const SIZE: usize = 368;

fn number(entry: &[u8], at: usize) -> u64 {
    entry[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

/// What the work of a library leaves in an image of so many bytes.
pub(crate) fn decoded_byte(bytes: u64) -> u8 {
    (bytes / 3 % 251) as u8
}

/// For NHWC bytes without mirroring: every value of a sample becomes the first byte of its image. Work
/// of libraries fills what it writes with one byte.
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
