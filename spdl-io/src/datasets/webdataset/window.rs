//! The shuffle window of tar shards that are read in parts: as large as the memory for the parts allows.

use spdl_core::source::sampler::ShardWindow;
use spdl_core::{Error, ErrorKind, Result};

use super::grouping::ArchiveShard;
use crate::layers::PartFetcher;

/// The size of a shard, rounded up to parts.
fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(PartFetcher::PART_BYTES).saturating_mul(PartFetcher::PART_BYTES)
}

/// The largest number of bytes of the parts that hold `samples` consecutive samples of a shard.
fn run_bytes(shard: &ArchiveShard, samples: u64) -> u64 {
    let all = rounded(shard.bytes);
    let Some(more) = usize::try_from(samples).ok().filter(|more| *more < shard.len()) else {
        return all;
    };
    let starts = (0..=shard.len() - more).filter_map(|first| {
        let end = shard.end_of(first + more - 1)?;
        let start = shard.start_of(first)? / PartFetcher::PART_BYTES * PartFetcher::PART_BYTES;
        Some(rounded(end).saturating_sub(start))
    });
    starts.max().unwrap_or(all).min(all)
}

/// An upper bound for the bytes of the parts that hold any two consecutive windows of `window` samples. A part that both
/// windows need is then read once.
fn bytes_of(
    shards: &[&ArchiveShard],
    lens: &[u64],
    window: u64,
    is_whole: impl Fn(&ArchiveShard) -> bool,
) -> Result<u64> {
    let samples = window.saturating_mul(2);
    let open = ShardWindow::new(lens, samples, 0)?.open_shards();
    let of_shard = |shard: &&ArchiveShard| match is_whole(shard) {
        true => shard.bytes,
        false => run_bytes(shard, samples),
    };
    let mut bytes: Vec<u64> = shards.iter().map(of_shard).collect();
    bytes.sort_unstable_by(|a, b| b.cmp(a));
    Ok(bytes.into_iter().take(open).fold(0, u64::saturating_add))
}

/// The largest window, at least 1, of which two fit into `max_bytes`.
pub(super) fn largest_window(
    shards: &[&ArchiveShard],
    lens: &[u64],
    max_bytes: u64,
    is_whole: impl Fn(&ArchiveShard) -> bool,
) -> Result<u64> {
    let (mut fits, mut exceeds) = (1, lens.iter().sum::<u64>().saturating_add(1));
    while exceeds - fits > 1 {
        let window = fits + (exceeds - fits) / 2;
        match bytes_of(shards, lens, window, &is_whole)? <= max_bytes {
            true => fits = window,
            false => exceeds = window,
        }
    }
    Ok(fits)
}

/// Checks that the shards of two windows fit into `max_bytes`, if shards are in memory as a whole.
///
/// # Errors
/// `LimitExceeded`, with the largest shard as key.
pub(super) fn check_whole_shards(
    shards: &[&ArchiveShard],
    lens: &[u64],
    (window, max_bytes): (u64, u64),
    is_whole: impl Fn(&ArchiveShard) -> bool,
) -> Result<()> {
    let largest = shards.iter().filter(|shard| is_whole(shard)).max_by_key(|shard| shard.bytes);
    let needed = bytes_of(shards, lens, window, &is_whole)?;
    let Some(largest) = largest.filter(|_| needed > max_bytes) else { return Ok(()) };
    let message = format!(
        "sequential reads need {needed} bytes of memory, but their limit is {max_bytes} bytes: the shards are compressed, or \
         the server does not support range requests, so shards must be in memory as a whole; the largest one has {} bytes; \
         raise the limit, or copy the shards to this machine",
        largest.bytes
    );
    Err(Error::new(ErrorKind::LimitExceeded, message).with_key(largest.key.display_name()))
}
