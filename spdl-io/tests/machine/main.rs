//! What a machine refuses or does badly: open files, room on a disk, bytes that cannot be read, memory,
//! the time of day, names. Each test is run once more in a process of its own, where that holds for
//! nobody else.
#![cfg(all(target_os = "linux", feature = "testing", feature = "cache", feature = "http"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]
#![expect(clippy::print_stdout, reason = "what was found, and why a test did not run")]

mod broken_disk;
mod clock;
mod full_disk;
mod memory;
mod names;
mod open_files;
mod own_process;
mod shards;
mod slow_disk;

use bytes::Bytes;

/// Bytes that differ from place to place.
fn contents(seed: usize, len: usize) -> Bytes {
    (0..len).map(|place| (place * 31 + place / 256 + seed * 7) as u8).collect()
}
