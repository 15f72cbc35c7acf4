//! The shuffle window of tar shards that are read in parts: as large as the memory for the parts allows.

use spdl_core::source::sampler::ShardWindow;
use spdl_core::{Error, ErrorKind, Result};

use super::grouping::ArchiveShard;
use crate::layers::PartFetcher;
use crate::records::Remedy;

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
    let error = Error::new(ErrorKind::LimitExceeded, message);
    Err(error.with_key(largest.key.display_name()).with_source(Remedy::SequentialMemory))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::archive::{ArchiveStamp, TarEntry, TarIndex, TarKind, TarOptions};
    use crate::fetch::Key;

    const MIB: u64 = 1 << 20;

    /// A shard of samples of these sizes, in MiB.
    fn shard(number: usize, sizes: &[u64]) -> ArchiveShard {
        let mut offset = 0;
        let entries = sizes.iter().enumerate().map(|(at, size)| {
            let header_offset = offset;
            offset += size * MIB;
            Ok(TarEntry {
                key: format!("{at}.bin").into(),
                kind: TarKind::File,
                link_target: None,
                size: size * MIB - 512,
                header_offset,
                data_offset: header_offset + 512,
                mtime: None,
            })
        });
        let stamp = ArchiveStamp::new(sizes.iter().sum::<u64>() * MIB + 1024);
        let index = TarIndex::from_entries(entries, stamp, TarOptions::default()).unwrap();
        ArchiveShard::new(Key::from(format!("{number}.tar")), &index, None, None).unwrap()
    }

    proptest! {
        #[test]
        fn the_parts_of_two_windows_fit(
            sizes in prop::collection::vec(prop::collection::vec(1..12_u64, 0..20), 1..7),
            max in 8..80_u64, seed: u64,
        ) {
            let shards: Vec<_> = sizes.iter().zip(0..).map(|(sizes, at)| shard(at, sizes)).collect();
            let shards: Vec<_> = shards.iter().collect();
            let lens: Vec<u64> = shards.iter().map(|shard| shard.len() as u64).collect();
            let max_bytes = max * MIB;
            let window = largest_window(&shards, &lens, max_bytes, |_| false).unwrap();
            let all: u64 = lens.iter().sum();
            prop_assert!(window >= 1 && window <= all.max(1));
            // The sequence of samples before they are shuffled.
            let order = ShardWindow::new(&*lens, 1, seed).unwrap().order(0).unwrap();
            let parts: Vec<Vec<((usize, u64), u64)>> = (0..all).map(|position| {
                let (shard, sample) = order.shard_at(position);
                let (sample, part) = (sample as usize, PartFetcher::PART_BYTES);
                let start = shards[shard].start_of(sample).unwrap() / part;
                let end = shards[shard].end_of(sample).unwrap().div_ceil(part);
                let size = |at: u64| ((at + 1) * part).min(shards[shard].bytes) - at * part;
                (start..end).map(|at| ((shard, at), size(at))).collect()
            }).collect();
            let most = parts.windows(parts.len().min(2 * window as usize).max(1)).map(|run| {
                let parts: HashMap<_, _> = run.iter().flatten().copied().collect();
                parts.values().sum::<u64>()
            });
            let most = most.max().unwrap_or(0);
            prop_assert!(most <= max_bytes || window == 1, "{most} of {max_bytes}, {window}");
            // Not much memory is left unused.
            let bytes: u64 = shards.iter().map(|shard| shard.bytes).sum();
            if bytes + 16 * MIB * lens.len() as u64 <= max_bytes {
                prop_assert_eq!(window, all.max(1));
            }
        }
    }

    #[test]
    fn whole_shards_must_fit() {
        let shards = [shard(0, &[10; 4]), shard(1, &[10; 5]), shard(2, &[10; 3])];
        let (shards, lens) = (shards.iter().collect::<Vec<_>>(), [4, 5, 3]);
        let check = |window, mib| check_whole_shards(&shards, &lens, (window, mib * MIB), |_| true);
        // Two samples are in up to two shards.
        assert!(check(1, 91).is_ok());
        let error = check(1, 90).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::LimitExceeded, Some("1.tar")));
        assert!(error.message().contains("52429824 bytes"), "{error}");
        assert!(check_whole_shards(&shards, &lens, (1, 10 * MIB), |_| false).is_ok());
        let largest = |mib| largest_window(&shards, &lens, mib * MIB, |_| true).unwrap();
        assert_eq!((largest(1), largest(95), largest(1000)), (1, 2, 12));
    }
}
