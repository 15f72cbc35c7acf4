//! Zip archives as shards: their members by number, and the members of a sample.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::grouping::ArchiveShard;
use crate::archive::{ZipEntry, ZipKind, ZipMethod, ZipOptions, ZipRanges};
use crate::datasets::common::check_size;
use crate::fetch::{Fetcher, Key, ObjectMeta};
use crate::files::IoThreads;
use crate::records::{Encoding, FieldRequest, FieldValue, PackedRows};

/// The members of a zip archive, sorted by the parts of their paths.
pub(super) struct ZipArchive {
    pub(super) key: Key,
    pub(super) entries: Vec<ZipEntry>,
    options: ZipOptions,
    /// Threads that decompress, which would block the thread that polls the futures.
    threads: Arc<IoThreads>,
}

/// Opens a zip archive.
pub(super) async fn fetch(
    fetcher: &Arc<dyn Fetcher>,
    object: &ObjectMeta,
    threads: Arc<IoThreads>,
) -> Result<ArchiveShard> {
    let (key, options) = (object.key.clone(), ZipOptions::default());
    let archive = ZipRanges::open(Arc::clone(fetcher), key.clone(), object.size, options).await?;
    let mut entries = archive.into_entries();
    entries.retain(|entry| entry.kind == ZipKind::File);
    // Zip programs store members in any order. Sorted, the members of a sample follow each other.
    entries.sort_by(|a, b| parts_of(a).cmp(parts_of(b)));
    ArchiveShard::of_zip(ZipArchive { key, entries, options, threads }, object.size)
}

/// The folders and the name of a member.
fn parts_of(entry: &ZipEntry) -> impl Iterator<Item = &[u8]> {
    entry.key.as_bytes().split(|byte| *byte == b'/')
}

impl ZipArchive {
    /// The byte range that is read for a member.
    pub(super) fn range(&self, number: usize) -> Result<Range<u64>> {
        self.entries[number].check(&self.options)
    }

    /// Extracts members from their byte ranges, and verifies their CRC-32.
    ///
    /// # Errors
    /// The index of the first damaged member, and its error.
    fn extract(&self, members: &[(usize, Bytes)]) -> Result<Vec<Bytes>, (usize, Error)> {
        let one = |(at, (number, span)): (usize, &(usize, Bytes))| {
            self.entries[*number].extract(span.clone()).map_err(|error| (at, error))
        };
        members.iter().enumerate().map(one).collect()
    }
}

/// The members of a sample.
pub(super) struct ZipSample {
    pub(super) archive: Arc<ZipArchive>,
    /// The name of the sample in messages.
    pub(super) key: Key,
    pub(super) names: Vec<Arc<str>>,
    /// The number of each member in the archive, and its encoding.
    pub(super) members: Vec<(usize, Encoding)>,
}

impl ZipSample {
    fn requested(&self, request: &FieldRequest) -> Vec<usize> {
        (0..self.names.len()).filter(|&at| request.wants(&self.names[at])).collect()
    }

    fn bytes(&self, requested: &[usize]) -> u64 {
        let sizes = requested.iter().map(|&at| self.archive.entries[self.members[at].0].size);
        sizes.fold(0, u64::saturating_add)
    }

    fn in_field(&self, at: usize, error: Error) -> Error {
        let key = [self.key.as_bytes(), b".", self.names[at].as_bytes()].concat();
        error.renamed(Key::from_bytes(&key).display_name())
    }
}

#[async_trait]
impl PackedRows for ZipSample {
    fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    fn object(&self) -> Option<&Key> {
        Some(&self.archive.key)
    }

    async fn row_bytes(
        &self,
        _: &Arc<dyn Fetcher>,
        _: u64,
        request: &FieldRequest,
    ) -> Result<Option<u64>> {
        Ok(Some(self.bytes(&self.requested(request))))
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        _: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let requested = self.requested(request);
        check_size(self.bytes(&requested), request.max_bytes())
            .map_err(|error| error.with_key(self.key.display_name()))?;
        let numbers = requested.iter().map(|&at| self.members[at].0);
        let ranges: Vec<_> =
            numbers.clone().map(|number| self.archive.range(number)).collect::<Result<_>>()?;
        let spans = match &ranges[..] {
            [] => Vec::new(),
            [range] => vec![fetcher.read(&self.archive.key, Some(range.clone())).await?],
            ranges => fetcher.read_ranges(&self.archive.key, ranges).await?,
        };
        if spans.len() != ranges.len() {
            let message =
                format!("{fetcher:?} returned ranges that differ from the requested ones");
            return Err(
                Error::new(ErrorKind::Internal, message).with_key(self.archive.key.display_name())
            );
        }
        let is_deflated =
            |number: usize| self.archive.entries[number].method == ZipMethod::Deflated;
        let is_slow = numbers.clone().any(is_deflated);
        let spans: Vec<_> = numbers.zip(spans).collect();
        let extracted = match is_slow {
            true => {
                let archive = Arc::clone(&self.archive);
                self.archive.threads.run(move || Ok(archive.extract(&spans))).await?
            }
            false => self.archive.extract(&spans),
        };
        let extracted = extracted.map_err(|(at, error)| self.in_field(requested[at], error))?;
        let decoded = requested.iter().zip(extracted).map(|(&at, bytes)| {
            let value = self.members[at].1.decode(bytes);
            let value = value.map_err(|error| self.in_field(at, error))?;
            Ok((Arc::clone(&self.names[at]), value))
        });
        decoded.collect()
    }
}

impl fmt::Debug for ZipSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZipSample({} with {:?})", self.key, self.names)
    }
}
