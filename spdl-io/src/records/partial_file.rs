//! [`PartialFile`]: a file of which only some parts are in memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use spdl_core::runtime::block_on_in_stage;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{Fetcher, Key, check_lengths};
use crate::records::Remedy;

/// A file of which only some parts are in memory.
///
/// [`FetchFields`](super::FetchFields) reads the parts that a sample needs. If a later stage reads
/// other bytes, [`read`](Self::read) requests them from the store, from the same version of the
/// object, and waits for the response.
///
/// ```
/// use spdl_io::records::PartialFile;
/// let mut file = PartialFile::new(1000);
/// file.insert(100, "moov....".into());
/// assert_eq!(file.get(100..104), Some(&b"moov"[..]));
/// assert_eq!(file.missing(90..104), [90..100]);
/// assert_eq!((file.size(), file.bytes_in_memory()), (1000, 8));
/// let mut memory = Vec::new();
/// assert_eq!(file.read(104..108, &mut memory)?, b"....");
/// assert!(file.read(104..109, &mut memory).is_err());
/// # Ok::<(), spdl_io::Error>(())
/// ```
#[derive(Clone)]
pub struct PartialFile {
    size: u64,
    /// Positions and bytes, sorted, without overlaps. No part is empty.
    parts: Vec<(u64, Bytes)>,
    part_index: Option<Bytes>,
    rest: Option<Arc<RestOfFile>>,
}

/// Where the other parts of a file are read.
pub(super) struct RestOfFile {
    pub(super) fetcher: Arc<dyn Fetcher>,
    pub(super) object: Key,
    /// The position of the file in the object.
    pub(super) start: u64,
    pub(super) version: Option<Arc<str>>,
    /// The size of the object, if it is known.
    pub(super) object_size: Option<u64>,
    /// The number of bytes that may still be read.
    pub(super) allowed: AtomicU64,
}

impl PartialFile {
    /// A file of `size` bytes, of which none are in memory.
    pub fn new(size: u64) -> Self {
        PartialFile { size, parts: Vec::new(), part_index: None, rest: None }
    }

    pub(super) fn with_rest(mut self, rest: RestOfFile) -> Self {
        self.rest = Some(Arc::new(rest));
        self
    }

    /// Sets where the parts of the file are, so that its headers and tables need not be read.
    #[must_use]
    pub fn with_part_index(mut self, part_index: Bytes) -> Self {
        self.part_index = Some(part_index);
        self
    }

    /// Where the parts of the file are, as [`IndexParts`](crate::shards::IndexParts) has stored it.
    pub fn part_index(&self) -> Option<&[u8]> {
        self.part_index.as_deref()
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The number of bytes that are in memory.
    pub fn bytes_in_memory(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// The positions and the bytes of the parts in memory, in the order of the file.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.parts.iter().map(|(start, bytes)| (*start, bytes))
    }

    /// Adds the bytes from position `start` on. Bytes that are in memory already, and those beyond the
    /// end of the file, are ignored.
    pub fn insert(&mut self, start: u64, bytes: Bytes) {
        let end = start.saturating_add(bytes.len() as u64).min(self.size);
        for gap in self.missing(start..end) {
            // Inside `bytes`, whose length is a `usize`.
            let part = bytes.slice((gap.start - start) as usize..(gap.end - start) as usize);
            let at = self.parts.partition_point(|(other, _)| *other < gap.start);
            self.parts.insert(at, (gap.start, part));
        }
    }

    /// The bytes of `range` if one part in memory has all of them.
    pub fn get(&self, range: Range<u64>) -> Option<&[u8]> {
        let at = self.parts.partition_point(|(start, _)| *start <= range.start);
        let Some((start, bytes)) = at.checked_sub(1).map(|at| &self.parts[at]) else {
            return range.is_empty().then_some(&[]);
        };
        let bound = |at: u64| usize::try_from(at.checked_sub(*start)?).ok();
        match bytes.get(bound(range.start)?..bound(range.end)?) {
            None if range.is_empty() => Some(&[]),
            found => found,
        }
    }

    /// The parts of `range` that are not in memory, in the order of the file. Those beyond the end of
    /// the file are omitted.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let end = range.end.min(self.size);
        let mut at = range.start;
        let mut missing = Vec::new();
        let first = self.parts.partition_point(|(start, part)| start + part.len() as u64 <= at);
        for (start, part) in &self.parts[first..] {
            if *start >= end {
                break;
            }
            if at < *start {
                missing.push(at..*start);
            }
            at = start + part.len() as u64;
        }
        if at < end {
            missing.push(at..end);
        }
        missing
    }

    /// The bytes of `range`. If they are in several parts, they are copied into `memory`, whose content is
    /// replaced. Bytes that are not in memory are read from the store; the calling thread waits.
    ///
    /// # Errors
    /// `Truncated` with the size as the offset if `range` exceeds the file; `InvalidArgument` if bytes are
    /// not in memory and the file has no store; `LimitExceeded` if the sample would exceed the limit of its
    /// bytes; `Changed` if the object has changed; `Stopped` if the pipeline whose stage calls this function
    /// stops; the errors of the store.
    pub fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        if range.end > self.size || range.start > range.end {
            let Range { start, end } = range;
            let size = self.size;
            let message = format!("range {start}..{end} exceeds the file size of {size} bytes");
            return Err(Error::new(ErrorKind::Truncated, message).with_offset(size));
        }
        if let Some(bytes) = self.get(range.clone()) {
            return Ok(bytes);
        }
        let gaps = self.missing(range.clone());
        let read = if gaps.is_empty() { Vec::new() } else { self.read_gaps(&gaps)? };
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        memory.clear();
        memory.try_reserve_exact(len).map_err(|_| {
            let message = format!("cannot allocate {len} bytes for a part of a file");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        let gaps = gaps.iter().map(|gap| gap.start).zip(&read);
        let mut pieces: Vec<_> = gaps.chain(self.parts()).collect();
        pieces.sort_unstable_by_key(|(start, _)| *start);
        for (start, bytes) in pieces {
            let end = start + bytes.len() as u64;
            if end > range.start && start < range.end {
                let from = range.start.saturating_sub(start) as usize;
                let to = (range.end.min(end) - start) as usize;
                memory.extend_from_slice(&bytes[from..to]);
            }
        }
        Ok(memory)
    }

    /// Reads parts that are not in memory.
    fn read_gaps(&self, gaps: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let Some(rest) = &self.rest else {
            let Range { start, end } = gaps[0].clone();
            let message = format!("bytes {start} to {end} of the file were not read");
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_offset(start));
        };
        let bytes: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
        let take = |allowed: u64| allowed.checked_sub(bytes);
        if rest.allowed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            let message = format!(
                "the sample needs {} bytes of its file, more than allowed",
                self.bytes_in_memory().saturating_add(bytes)
            );
            let error = Error::new(ErrorKind::LimitExceeded, message);
            return Err(error.with_source(Remedy::MaxFileBytes));
        }
        let ranges: Vec<_> =
            gaps.iter().map(|gap| rest.start + gap.start..rest.start + gap.end).collect();
        let (version, size) = (rest.version.as_ref(), rest.object_size);
        let read = rest.fetcher.read_version(&rest.object, &ranges, version, size);
        let (parts, _) = block_on_in_stage(read)??;
        check_lengths(&rest.object, &ranges, &parts)?;
        Ok(parts)
    }
}

/// Files are equal if they have the same size and the same parts in memory.
impl PartialEq for PartialFile {
    fn eq(&self, other: &Self) -> bool {
        (self.size, &self.parts) == (other.size, &other.parts)
    }
}

impl fmt::Debug for PartialFile {
    /// Shows positions, not bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> =
            self.parts().map(|(start, part)| start..start + part.len() as u64).collect();
        f.debug_struct("PartialFile")
            .field("size", &self.size)
            .field("parts", &parts)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RestOfFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestOfFile").field("object", &self.object).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryFetcher;
    use proptest::prelude::*;
    use spdl_core::block_on;

    fn rest(fetcher: &Arc<MemoryFetcher>, start: u64, allowed: u64) -> RestOfFile {
        let fetcher: Arc<dyn Fetcher> = Arc::clone(fetcher) as _;
        let object = Key::from("a");
        let version = block_on(fetcher.stat(&object)).unwrap().version;
        let allowed = AtomicU64::new(allowed);
        RestOfFile { fetcher, object, start, version, object_size: None, allowed }
    }

    proptest! {
        #[test]
        fn parts_are_the_bytes_of_the_file(
            inserted in prop::collection::vec((0..100u64, 0..30u64), 0..12),
            read in (0..100u64, 0..100u64),
        ) {
            let content: Vec<u8> = (0..100).collect();
            let store = Arc::new(MemoryFetcher::from_iter([("a", [&[9; 7][..], &content].concat())]));
            let mut file = PartialFile::new(100);
            let mut known = [false; 100];
            for (start, len) in inserted {
                let end = (start + len).min(100);
                file.insert(start, Bytes::copy_from_slice(&content[start as usize..end as usize]));
                known[start as usize..end as usize].fill(true);
            }
            prop_assert_eq!(file.bytes_in_memory(), known.iter().filter(|it| **it).count() as u64);
            let range = read.0.min(read.1)..read.0.max(read.1);
            let expected = &content[range.start as usize..range.end as usize];
            let missing = file.missing(range.clone());
            let is_missing = |at: u64| missing.iter().any(|gap| gap.contains(&at));
            for at in range.clone() {
                prop_assert_eq!(is_missing(at), !known[at as usize]);
            }
            if let Some(bytes) = file.get(range.clone()) {
                prop_assert_eq!(bytes, expected);
            }
            let mut memory = vec![1, 2, 3];
            let alone = file.read(range.clone(), &mut memory).map(<[u8]>::to_vec);
            match missing.is_empty() {
                true => prop_assert_eq!(&alone.unwrap()[..], expected),
                false => prop_assert_eq!(alone.unwrap_err().kind(), ErrorKind::InvalidArgument),
            }
            let file = file.with_rest(rest(&store, 7, 100));
            prop_assert_eq!(file.read(range, &mut memory).unwrap(), expected);
        }
    }

    #[test]
    fn later_reads_have_the_version_and_the_limit_of_the_file() {
        let store = Arc::new(MemoryFetcher::from_iter([("a", vec![5; 50])]));
        let file = PartialFile::new(50).with_rest(rest(&store, 0, 20));
        let mut memory = Vec::new();
        assert_eq!(file.read(10..22, &mut memory).unwrap(), [5; 12]);
        let error = file.read(30..39, &mut memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!(Remedy::of(&error), Some(Remedy::MaxFileBytes));
        store.insert("a", vec![5; 50]);
        let error = file.read(30..31, &mut memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        let error = file.read(30..51, &mut memory).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(50)));
    }
}
