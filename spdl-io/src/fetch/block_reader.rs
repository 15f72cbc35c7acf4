//! [`BlockReader`]: an object that is read by position, in blocks.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use spdl_core::runtime::block_on_in_stage;
use spdl_core::{Error, ErrorKind, Result};

use super::fetcher::check_lengths;
use crate::fetch::{Fetcher, Key, ObjectMeta, ReadRequest};

/// The size of a block. A request for fewer bytes takes about as long.
const BLOCK_BYTES: u64 = 1 << 20;
/// The number of blocks that stay in memory.
const KEPT_BLOCKS: usize = 8;

/// An object that is read by position, as a file is.
///
/// Each read requests the blocks of 1 MiB that it needs. The 8 blocks that were read last stay in memory. All reads
/// are of the version that the object had when it was opened, if the store reports
/// versions. Otherwise, only its size is compared, and only by [`Resilient`](crate::Resilient).
///
/// ```
/// use std::sync::Arc;
/// use spdl_io::fetch::BlockReader;
/// use spdl_io::{Key, MemoryFetcher, block_on};
/// let store = Arc::new(MemoryFetcher::from_iter([("clip.mp4", vec![7; 3_000_000])]));
/// let clip = block_on(BlockReader::open(store, Key::from("clip.mp4")))?;
/// let mut memory = Vec::new();
/// assert_eq!(clip.size(), 3_000_000);
/// assert_eq!(clip.read(1_500_000..1_500_004, &mut memory)?, [7; 4]);
/// # Ok::<(), spdl_io::Error>(())
/// ```
pub struct BlockReader {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    size: u64,
    version: Option<Arc<str>>,
    /// Numbers and bytes of blocks; those that were read last are at the end.
    blocks: Mutex<VecDeque<(u64, Bytes)>>,
}

impl BlockReader {
    /// Reads the first block of an object, whose response has the size and the version.
    ///
    /// # Errors
    /// The errors of [`Fetcher::open`]; if the response has no size, those of [`Fetcher::stat`].
    pub async fn open(fetcher: Arc<dyn Fetcher>, key: Key) -> Result<Self> {
        let body = match fetcher.open(&key, &ReadRequest::first(BLOCK_BYTES)).await {
            Ok(body) => Some(body).filter(|body| body.size.is_some()),
            // A fetcher that ignores that the object may be smaller.
            Err(error) if error.kind() == ErrorKind::Truncated => None,
            Err(error) => return Err(error),
        };
        let mut blocks = VecDeque::new();
        let (size, version) = match body {
            Some(body) => {
                let (size, version) = (body.size.unwrap_or(0), body.version.clone());
                let bytes = body.bytes().await;
                let bytes = bytes.map_err(|error| error.with_key(key.display_name()))?;
                let first = 0..size.min(BLOCK_BYTES);
                check_lengths(&key, &[first], std::slice::from_ref(&bytes))?;
                blocks.push_back((0, bytes));
                (size, version)
            }
            None => {
                let ObjectMeta { size, version, .. } = fetcher.stat(&key).await?;
                (size, version)
            }
        };
        Ok(BlockReader { fetcher, key, size, version, blocks: Mutex::new(blocks) })
    }

    /// The size of the object in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads the bytes of `range` into `memory`, whose content is replaced. The calling thread waits.
    ///
    /// # Errors
    /// `Truncated` with the size as the offset if `range` exceeds the object; `Changed` if the object has changed;
    /// `LimitExceeded` if there is no memory; `Stopped` if the pipeline whose stage calls this function stops; the
    /// errors of the store.
    pub fn read<'a>(&self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let Range { start, end } = range;
        if end > self.size || start > end {
            let size = self.size;
            let message = format!("range {start}..{end} exceeds the object size of {size} bytes");
            let error = Error::new(ErrorKind::Truncated, message).with_offset(size);
            return Err(error.with_key(self.key.display_name()));
        }
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        memory.clear();
        memory.try_reserve_exact(len).map_err(|_| {
            let message = format!("cannot allocate {len} bytes for a part of an object");
            Error::new(ErrorKind::LimitExceeded, message).with_key(self.key.display_name())
        })?;
        let numbers = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let mut found: Vec<_> = {
            let blocks = self.lock();
            blocks.iter().filter(|(number, _)| numbers.contains(number)).cloned().collect()
        };
        let is_found = |number: &u64| found.iter().any(|(other, _)| other == number);
        let missing: Vec<_> = numbers.filter(|number| !is_found(number)).collect();
        if start < end && !missing.is_empty() {
            found.extend(self.read_blocks(&missing)?);
        }
        found.sort_unstable_by_key(|(number, _)| *number);
        for (number, block) in &found {
            let position = number * BLOCK_BYTES;
            let from = start.saturating_sub(position) as usize;
            let to = (end - position).min(block.len() as u64) as usize;
            memory.extend_from_slice(&block[from..to]);
        }
        self.keep(&found);
        Ok(memory)
    }

    /// Reads blocks from the store. Blocks that follow each other are one range.
    fn read_blocks(&self, numbers: &[u64]) -> Result<Vec<(u64, Bytes)>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for number in numbers {
            let start = number * BLOCK_BYTES;
            let end = (start + BLOCK_BYTES).min(self.size);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        let (version, size) = (self.version.as_ref(), Some(self.size));
        let read = self.fetcher.read_version(&self.key, &ranges, version, size);
        let (parts, _) = block_on_in_stage(read)??;
        check_lengths(&self.key, &ranges, &parts)?;
        let mut blocks = Vec::with_capacity(numbers.len());
        for (range, part) in ranges.into_iter().zip(parts) {
            for start in (0..part.len()).step_by(BLOCK_BYTES as usize) {
                let end = part.len().min(start + BLOCK_BYTES as usize);
                let number = (range.start + start as u64) / BLOCK_BYTES;
                blocks.push((number, part.slice(start..end)));
            }
        }
        Ok(blocks)
    }

    /// Keeps the last of these blocks, in place of those that were read before.
    fn keep(&self, read: &[(u64, Bytes)]) {
        let mut blocks = self.lock();
        for (number, block) in &read[read.len().saturating_sub(KEPT_BLOCKS)..] {
            let kept = blocks.iter().position(|(other, _)| other == number);
            let kept = kept.and_then(|place| blocks.remove(place));
            // A copy, because a slice would keep all bytes of its response in memory.
            let kept = kept.unwrap_or_else(|| (*number, Bytes::copy_from_slice(block)));
            blocks.push_back(kept);
        }
        let surplus = blocks.len().saturating_sub(KEPT_BLOCKS);
        blocks.drain(..surplus);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Bytes)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockReader")
            .field("key", &self.key)
            .field("size", &self.size)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spdl_core::block_on;

    use super::*;
    use crate::MemoryFetcher;

    /// A number in each place.
    fn content(bytes: u64) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    fn open(store: &Arc<MemoryFetcher>) -> BlockReader {
        block_on(BlockReader::open(Arc::clone(store) as _, Key::from("a"))).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
        #[test]
        fn ranges_are_the_bytes_of_the_object(
            size in 0..12 * BLOCK_BYTES,
            reads in prop::collection::vec((0.0..1.0, 0.0..1.0), 1..12),
        ) {
            let content = content(size);
            let store = Arc::new(MemoryFetcher::from_iter([("a", content.clone())]));
            let reader = open(&store);
            prop_assert_eq!(reader.size(), size);
            let mut memory = vec![1];
            for (first, second) in reads {
                let place = |share: f64| (share * size as f64) as u64;
                let (start, end) = (place(first).min(place(second)), place(first).max(place(second)));
                let read = reader.read(start..end, &mut memory).unwrap();
                prop_assert!(read == &content[start as usize..end as usize]);
                prop_assert!(reader.lock().len() <= KEPT_BLOCKS);
            }
        }
    }

    #[test]
    fn blocks_stay_in_memory_until_others_are_read() {
        let store = Arc::new(MemoryFetcher::from_iter([("a", content(10 * BLOCK_BYTES + 5))]));
        let reader = open(&store);
        let mut memory = Vec::new();
        let numbers = || reader.lock().iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(), [0]);
        reader.read(3 * BLOCK_BYTES - 1..3 * BLOCK_BYTES + 1, &mut memory).unwrap();
        reader.read(7..9, &mut memory).unwrap();
        assert_eq!(numbers(), [2, 3, 0]);
        reader.read(4 * BLOCK_BYTES..reader.size(), &mut memory).unwrap();
        assert_eq!(numbers(), [0, 4, 5, 6, 7, 8, 9, 10]);
        // Blocks in memory need no store.
        store.insert("a", vec![5; 50]);
        assert_eq!(reader.read(0..2, &mut memory).unwrap(), [0, 1]);
        let error = reader.read(2 * BLOCK_BYTES..2 * BLOCK_BYTES + 1, &mut memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        let error = reader.read(0..reader.size() + 1, &mut memory).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(reader.size())));
    }

    #[test]
    fn a_missing_object_is_an_error() {
        let store = Arc::new(MemoryFetcher::from_iter([("b", vec![0; 9])]));
        let error = block_on(BlockReader::open(store, Key::from("a"))).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("a")));
    }
}
