//! Failures of the machine: limits of open files, disk space, I/O errors, memory, wall clock, name
//! lookups. Each test runs in a separate process under its limits.
#![cfg(all(target_os = "linux", feature = "testing", feature = "cache", feature = "http"))]
#![expect(clippy::unwrap_used, reason = "test helpers report failures by panics")]
#![expect(clippy::print_stdout, reason = "prints findings and the reasons of skipped tests")]

mod blocked_reads;
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

/// Bytes that differ by position.
fn contents(seed: usize, len: usize) -> Bytes {
    (0..len).map(|place| (place * 31 + place / 256 + seed * 7) as u8).collect()
}
