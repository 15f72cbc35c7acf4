//! Reads the parts of a file that a sample needs.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use spdl_core::source::StageRng;
use spdl_core::{Error, ErrorKind, Result};

use super::index_cache::{FileIndex, IndexCache};
use super::partial_file::{PartialFile, RestOfFile};
use super::select_parts::{PartSelection, SelectParts};
use crate::fetch::coalesce::coalesce;
use crate::fetch::{Fetcher, ItemMemory, Key, ReadMemory, ReadRequest, check_lengths};
use crate::files::IoThreads;
use crate::records::{Extent, Remedy};

/// Files of at most this number of bytes are read whole, by one request.
pub(crate) const WHOLE_BYTES: u64 = 1 << 20;
/// The bytes that take as long as a request: ranges with smaller gaps are read together.
const REQUEST_BYTES: u64 = 256 << 10;
/// The bytes at the start of an object of unknown size that the first request reads. A smaller object is
/// then complete.
const FIRST_BYTES: u64 = 256 << 10;
/// The least number of bytes that are read for headers. The number doubles with each request.
const HEADER_BYTES: u64 = 64 << 10;
/// Ranges of this number of bytes are no headers: they are read as they are.
const TABLE_BYTES: u64 = 32 << 10;
/// Tables that start this near to the end of a file are read up to its end.
const TAIL_BYTES: u64 = 1 << 20;
/// The maximum number of requests for headers and tables. A file that needs more is read whole.
const MAX_INDEX_READS: u32 = 8;
/// Selections among more bytes run on a separate thread.
const LARGE_INDEX: u64 = 128 << 10;
/// Time after which an idle thread ends.
const LINGER: Duration = Duration::from_secs(5);

/// How files are read in parts, by all samples of a stage.
#[derive(Clone, Debug)]
pub(super) struct PartReader {
    pub(super) indices: IndexCache,
    threads: Arc<OnceLock<IoThreads>>,
    /// Whether the store has sent a whole object in response to a range request.
    lacks_ranges: Arc<AtomicBool>,
}

/// The file that is read for one sample, and the selectors of its parts.
pub(super) struct FileRequest<'a> {
    pub(super) fetcher: &'a Arc<dyn Fetcher>,
    pub(super) extent: &'a Extent,
    /// The selectors, and the random numbers of the stages that decode their samples.
    pub(super) selectors: &'a [(Arc<dyn SelectParts>, StageRng)],
    pub(super) memory: &'a ItemMemory<'a>,
}

/// What was read of a file.
pub(super) enum FileRead {
    /// The parts that the sample needs.
    Parts(PartialFile),
    /// The whole file, because it is small.
    Whole(Bytes),
    /// Nothing that is used: the file should be read whole.
    Nothing,
}

/// What is known about an object whose file is read.
struct OpenedFile {
    file: PartialFile,
    version: Option<Arc<str>>,
    object_size: Option<u64>,
}

impl PartReader {
    pub(super) fn new() -> Self {
        let (indices, threads) = (IndexCache::default(), Arc::default());
        PartReader { indices, threads, lacks_ranges: Arc::default() }
    }

    fn threads(&self) -> &IoThreads {
        self.threads.get_or_init(|| {
            let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
            IoThreads::new("spdl-index", threads, LINGER)
        })
    }

    /// Whether a file may be read in parts, as far as it is known before the first request.
    pub(super) fn may_read(&self, fetcher: &dyn Fetcher, extent: &Extent) -> bool {
        let size = extent.size().or(extent.object_size);
        fetcher.capability().ranges
            && !self.lacks_ranges.load(Ordering::Relaxed)
            // Only a whole file can be compared with its checksum. Part indexes have checksums of parts.
            && (extent.xxh3.is_none() || extent.part_index.is_some())
            && size.is_none_or(|size| size > WHOLE_BYTES)
    }

    /// Reads the parts of a file that the selectors select.
    ///
    /// # Errors
    /// The errors of the fetcher; `Changed` if the object changes between two requests; `LimitExceeded` if
    /// the parts have more bytes than allowed.
    pub(super) async fn read(&self, request: &FileRequest<'_>) -> Result<FileRead> {
        let Extent { object, .. } = request.extent;
        let start = request.start();
        let known = match request.extent.part_index {
            None => self.indices.get(object, start, request.version()),
            Some(_) => None,
        };
        let is_known = known.is_some();
        let read = match self.read_once(request, known).await {
            // The object may have changed after the index was cached.
            Err(error) if error.kind() == ErrorKind::Changed && is_known => {
                self.indices.remove(object, start);
                self.read_once(request, None).await
            }
            read => read,
        };
        match read {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                // The error of a store without ranges. Others are reported by the read of the whole file.
                self.lacks_ranges.store(true, Ordering::Relaxed);
                Ok(FileRead::Nothing)
            }
            read => read,
        }
    }

    async fn read_once(
        &self,
        request: &FileRequest<'_>,
        known: Option<FileIndex>,
    ) -> Result<FileRead> {
        let is_cached = known.is_some();
        let opened = match known {
            Some(FileIndex { file, version, object_size }) => {
                Some(OpenedFile { file, version: Some(version), object_size })
            }
            None => request.open().await?,
        };
        let Some(mut opened) = opened else { return Ok(FileRead::Nothing) };
        let has_part_index = opened.file.part_index().is_some();
        if opened.file.size() <= FIRST_BYTES
            && let Some((_, bytes)) = opened.file.parts().next()
        {
            return Ok(FileRead::Whole(bytes.clone()));
        }
        let mut selectors = request.selectors.iter();
        let mut selector = selectors.next();
        let mut index_reads = 0;
        let mut wanted = Vec::new();
        while let Some((current, rng)) = selector {
            let selection;
            (opened.file, selection) = self.select(current, opened.file, *rng).await?;
            match selection {
                Ok(PartSelection::Whole) => return Ok(FileRead::Nothing),
                Ok(PartSelection::Index(ranges)) => {
                    let missing = widened(&opened.file, &ranges, index_reads);
                    index_reads += 1;
                    if missing.is_empty() || index_reads > MAX_INDEX_READS {
                        return Ok(FileRead::Nothing);
                    }
                    request.add(&mut opened, &missing).await?;
                }
                Ok(PartSelection::Sample(ranges)) => {
                    wanted.extend(ranges);
                    selector = selectors.next();
                }
                // The stage that decodes the sample finds the same fault.
                Err(_) => selector = selectors.next(),
            }
        }
        if let (false, Some(version)) = (is_cached || has_part_index, &opened.version) {
            let OpenedFile { file, object_size, .. } = &opened;
            let (file, version) = (file.clone(), Arc::clone(version));
            let index = FileIndex { file, version, object_size: *object_size };
            self.indices.put(&request.extent.object, request.start(), &index);
        }
        let missing = joined(&opened.file, &wanted);
        request.add(&mut opened, &missing).await?;
        let is_valid =
            |(selector, _): &(Arc<dyn SelectParts>, _)| selector.check(&opened.file).is_ok();
        if has_part_index && !request.selectors.iter().all(is_valid) {
            return Ok(FileRead::Nothing);
        }
        Ok(FileRead::Parts(request.finish(opened)))
    }

    /// Calls a selector. Many bytes are parsed on another thread, because this one polls other reads.
    async fn select(
        &self,
        selector: &Arc<dyn SelectParts>,
        file: PartialFile,
        rng: StageRng,
    ) -> Result<(PartialFile, Result<PartSelection>)> {
        if file.bytes_in_memory() <= LARGE_INDEX {
            let selection = selector.select(&file, &rng);
            return Ok((file, selection));
        }
        let selector = Arc::clone(selector);
        let select = move || {
            let selection = selector.select(&file, &rng);
            Ok((file, selection))
        };
        self.threads().run(select).await
    }
}

impl FileRequest<'_> {
    /// The position of the file in its object.
    fn start(&self) -> u64 {
        self.extent.range.as_ref().map_or(0, |range| range.start)
    }

    /// The version that the object must have.
    fn version(&self) -> Option<&Arc<str>> {
        self.extent.version.as_ref().filter(|_| self.fetcher.capability().versions)
    }

    fn first_bytes(&self) -> u64 {
        self.selectors.iter().map(|(selector, _)| selector.first_bytes()).max().unwrap_or(0)
    }

    /// Reads the start of the file; `None` if the file is small, or its size is unknown.
    async fn open(&self) -> Result<Option<OpenedFile>> {
        let object = &self.extent.object;
        let mut version = self.version().cloned();
        let mut object_size = self.extent.object_size;
        let mut size = self.extent.size().or(object_size);
        if size.is_none() && self.fetcher.capability().local_versions {
            let meta = self.fetcher.stat(object).await?;
            (size, object_size) = (Some(meta.size), Some(meta.size));
            version = version.or(meta.version);
        }
        let Some(size) = size else { return self.open_unknown(version).await };
        if size <= WHOLE_BYTES {
            return Ok(None);
        }
        let mut opened = OpenedFile { file: PartialFile::new(size), version, object_size };
        match &self.extent.part_index {
            Some(index) => opened.file = opened.file.with_part_index(index.clone()),
            None => {
                let first = 0..self.first_bytes().min(size);
                self.add(&mut opened, &[first]).await?;
            }
        }
        Ok(Some(opened))
    }

    /// Reads the start of an object of unknown size by one request, whose response has the size.
    async fn open_unknown(&self, version: Option<Arc<str>>) -> Result<Option<OpenedFile>> {
        let object = &self.extent.object;
        self.memory.reserve(FIRST_BYTES).await;
        let request = ReadRequest { version, ..ReadRequest::first(FIRST_BYTES) };
        let body = match self.fetcher.open(object, &request).await {
            Ok(body) => body,
            // A fetcher that ignores that the object may be smaller.
            Err(error) if error.kind() == ErrorKind::Truncated => return Ok(None),
            Err(error) => return Err(error),
        };
        let (Some(size), version) = (body.size, body.version.clone()) else { return Ok(None) };
        if size == 0 || FIRST_BYTES < size && size <= WHOLE_BYTES {
            return Ok(None);
        }
        let bytes = body.bytes().await.map_err(|error| error.with_key(object.display_name()))?;
        let first = 0..size.min(FIRST_BYTES);
        check_lengths(object, &[first], std::slice::from_ref(&bytes))?;
        let mut file = PartialFile::new(size);
        file.insert(0, bytes);
        Ok(Some(OpenedFile { file, version, object_size: Some(size) }))
    }

    /// Reads ranges of the file, which are not in memory yet.
    async fn add(&self, opened: &mut OpenedFile, ranges: &[Range<u64>]) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let object = &self.extent.object;
        let more = ranges.iter().map(|range| range.end - range.start).sum();
        let total = opened.file.bytes_in_memory().saturating_add(more);
        self.check_limit(object, total)?;
        self.memory.reserve(total).await;
        let start = self.start();
        let in_object: Vec<_> =
            ranges.iter().map(|range| start + range.start..start + range.end).collect();
        let (version, size) = (opened.version.as_ref(), opened.object_size);
        let (parts, found) = self.fetcher.read_version(object, &in_object, version, size).await?;
        check_lengths(object, &in_object, &parts)?;
        opened.version = opened.version.take().or(found);
        for (range, bytes) in ranges.iter().zip(parts) {
            opened.file.insert(range.start, bytes);
        }
        Ok(())
    }

    fn check_limit(&self, object: &Key, bytes: u64) -> Result<()> {
        let max_bytes = self.memory.max_bytes();
        if bytes <= max_bytes {
            return Ok(());
        }
        let message = format!(
            "the sample needs {bytes} bytes of its file, but at most {max_bytes} are allowed"
        );
        let error = Error::new(ErrorKind::LimitExceeded, message);
        Err(error.with_key(object.display_name()).with_source(Remedy::MaxFileBytes))
    }

    /// The file, with the store from which later stages can read other parts.
    fn finish(&self, opened: OpenedFile) -> PartialFile {
        let OpenedFile { file, version, object_size } = opened;
        let allowed = self.memory.max_bytes().saturating_sub(file.bytes_in_memory());
        file.with_rest(RestOfFile {
            fetcher: Arc::clone(self.fetcher),
            object: self.extent.object.clone(),
            start: self.start(),
            version,
            object_size,
            allowed: AtomicU64::new(allowed),
        })
    }
}

/// The missing parts of ranges. After a single header, other headers and tables follow.
fn widened(file: &PartialFile, ranges: &[Range<u64>], index_reads: u32) -> Vec<Range<u64>> {
    let least = (HEADER_BYTES << index_reads.min(16)).min(TAIL_BYTES);
    let size = file.size();
    let is_one = ranges.len() == 1;
    let wide = |Range { start, end }: Range<u64>| {
        if end - start >= TABLE_BYTES || !is_one {
            start..end
        } else if size - start <= TAIL_BYTES {
            start..size
        } else {
            start..end.max(start.saturating_add(least).min(size))
        }
    };
    let missing = ranges.iter().flat_map(|range| file.missing(range.clone()));
    joined(file, &missing.map(wide).collect::<Vec<_>>())
}

/// The missing parts of ranges. Parts that are near to each other are joined.
fn joined(file: &PartialFile, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let missing: Vec<_> = ranges.iter().flat_map(|range| file.missing(range.clone())).collect();
    let joined = coalesce(&missing, REQUEST_BYTES, u64::MAX);
    joined.into_iter().map(|joined| joined.range).collect()
}
