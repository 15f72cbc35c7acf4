//! [`JsonLines`]: rows of JSON Lines that name no files, such as a text corpus.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Dataset, Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::columns::field_of;
use super::rows::json_line;
use crate::archive::decompress;
use crate::datasets::common::{ContentHash, check_size, row_key};
use crate::datasets::sharded::{Shard, Sharded, Shards, impl_dataset, read_files};
use crate::fetch::{Fetcher, Key};
use crate::layers::{CachedBytes, PartCache, default_part_cache_bytes};
use crate::records::{FieldRequest, FieldValue, LABEL_FIELDS, PackedRows, Remedy, StoredRecord};

/// The size of a read while the rows are counted, in bytes.
const WINDOW: u64 = 4 << 20;
/// How many files are opened concurrently.
const CONCURRENCY: usize = 8;
/// The maximum size of a compressed file, before and after decompression, in bytes.
const MAX_COMPRESSED: u64 = 1 << 30;

/// The rows of JSON Lines files. Each row is read when its sample is needed, by one range request.
///
/// Opening reads the files once, to find the rows. Memory use: 8 bytes per row. A compressed file is decompressed
/// as a whole when one of its rows is needed; a cache limits the memory of decompressed files.
pub(crate) struct JsonLines {
    shards: Shards<Arc<JsonLinesFile>>,
}

/// A file, and the end of each row. Blank lines belong to the row after them.
pub(crate) struct JsonLinesFile {
    key: Key,
    start: u64,
    ends: Vec<u64>,
    hash: u64,
    names: Vec<Arc<str>>,
    is_compressed: bool,
    parts: Arc<PartCache<Key, Decompressed>>,
}

struct Decompressed(Bytes);

impl CachedBytes for Decompressed {
    fn cached_bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

impl JsonLines {
    /// Opens files. `fields` are the members that are read: the alternative names of each field.
    ///
    /// # Errors
    /// The errors of the fetcher; `LimitExceeded` for a compressed file of more than 1 GiB.
    pub(crate) async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        files: Vec<Key>,
        fields: &[Vec<String>],
    ) -> Result<Self> {
        let parts = Arc::new(PartCache::new(default_part_cache_bytes()));
        let read = |key: Key| {
            let parts = Arc::clone(&parts);
            async move {
                let mut file = JsonLinesFile {
                    is_compressed: is_compressed(&key),
                    key,
                    start: 0,
                    ends: Vec::new(),
                    hash: 0,
                    names: Vec::new(),
                    parts,
                };
                let name = file.key.display_name();
                file.find_rows(fetcher).await.map_err(|it| it.with_key(Arc::clone(&name)))?;
                file.find_names(fetcher, fields).await.map_err(|it| it.with_key(name))?;
                Ok(file)
            }
        };
        let found = read_files(files, "JSON Lines files", CONCURRENCY, read).await?;
        Ok(JsonLines { shards: Shards::new(found.into_iter().map(Arc::new).collect())? })
    }

    /// Whether the rows of a file are read together.
    pub(crate) fn is_compressed(&self) -> bool {
        self.shards.iter().any(|file| file.is_compressed)
    }
}

/// Whether a file name is that of JSON Lines: `.jsonl` or `.ndjson`, and optionally `.gz` or `.zst`.
pub(crate) fn is_json_lines(key: &Key) -> bool {
    let name = key.as_bytes().to_ascii_lowercase();
    let name = name.strip_suffix(b".gz").or(name.strip_suffix(b".zst")).unwrap_or(&name);
    name.ends_with(b".jsonl") || name.ends_with(b".ndjson")
}

/// Whether a file name ends with `.gz` or `.zst`.
pub(crate) fn is_compressed(key: &Key) -> bool {
    let name = key.as_bytes().to_ascii_lowercase();
    name.ends_with(b".gz") || name.ends_with(b".zst")
}

/// Finds the ends of the rows in consecutive parts of a file.
struct RowEnds {
    ends: Vec<u64>,
    at: u64,
    is_blank: bool,
    hash: XxHash3_128,
}

impl RowEnds {
    fn add(&mut self, part: &[u8]) {
        self.hash.write(part);
        for line in part.split_inclusive(|&byte| byte == b'\n') {
            // A byte order mark at the start of the file is no row.
            let mark = if self.at == 0 { start_of(line) as usize } else { 0 };
            self.at += line.len() as u64;
            self.is_blank &= line[mark..].iter().all(u8::is_ascii_whitespace);
            if line.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if !std::mem::replace(&mut self.is_blank, true) {
            self.ends.push(self.at);
        }
    }
}

impl JsonLinesFile {
    async fn find_rows(&mut self, fetcher: &Arc<dyn Fetcher>) -> Result<()> {
        let hash = XxHash3_128::new();
        let mut rows = RowEnds { ends: Vec::new(), at: 0, is_blank: true, hash };
        if self.is_compressed {
            let text = decompressed(&self.key, fetcher, &self.parts).await?;
            self.start = start_of(&text.0);
            rows.add(&text.0);
        } else {
            let size = fetcher.stat(&self.key).await?.size;
            while rows.at < size {
                let part =
                    fetcher.read(&self.key, Some(rows.at..size.min(rows.at + WINDOW))).await?;
                if part.is_empty() {
                    let message = format!("the file ends after {} of {size} bytes", rows.at);
                    return Err(Error::new(ErrorKind::Truncated, message).with_offset(rows.at));
                }
                if rows.at == 0 {
                    self.start = start_of(&part);
                }
                rows.add(&part);
            }
        }
        rows.end_line();
        rows.ends.shrink_to_fit();
        (self.ends, self.hash) = (rows.ends, rows.hash.finish_128() as u64);
        Ok(())
    }

    /// Sets the names of the fields: for each field the names that the first row has. If it has none of them, other
    /// rows may have any.
    async fn find_names(
        &mut self,
        fetcher: &Arc<dyn Fetcher>,
        fields: &[Vec<String>],
    ) -> Result<()> {
        let mut first = serde_json::Map::new();
        if !self.ends.is_empty() {
            let (text, _) = self.text(fetcher, 0, u64::MAX).await?;
            first = json_line(&text, 0).unwrap_or_default();
        }
        let mut names = Vec::new();
        for alternatives in fields {
            let found = alternatives.iter().filter(|name| first.contains_key(name.as_str()));
            let found: Vec<_> = found.collect();
            names.extend(if found.is_empty() { alternatives.iter().collect() } else { found });
        }
        let labels = LABEL_FIELDS.into_iter().filter(|name| first.contains_key(*name));
        let mut names: Vec<&str> = names.into_iter().map(String::as_str).chain(labels).collect();
        names.sort_unstable();
        names.dedup();
        self.names = names.into_iter().map(Into::into).collect();
        Ok(())
    }

    /// The offsets of a row: its start, and the end, exclusive.
    fn extent(&self, row: u64) -> Option<(u64, u64)> {
        let row = usize::try_from(row).ok()?;
        let end = *self.ends.get(row)?;
        Some((row.checked_sub(1).map_or(self.start, |before| self.ends[before]), end))
    }

    /// The text of a row without blank lines before it, and its offset in the file.
    async fn text(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        max_bytes: u64,
    ) -> Result<(Bytes, u64)> {
        let Some((start, end)) = self.extent(row) else {
            let message =
                format!("row {row} is out of range: the file has {} rows", self.ends.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        check_size(end - start, max_bytes).map_err(|it| it.with_source(Remedy::MaxFileBytes))?;
        let text = match self.is_compressed {
            false => fetcher.read(&self.key, Some(start..end)).await?,
            true => {
                let (key, fetcher) = (self.key.clone(), Arc::clone(fetcher));
                let threads = Arc::clone(&self.parts);
                let read = || async move { decompressed(&key, &fetcher, &threads).await };
                let text = self.parts.get(self.key.clone(), read).await?;
                // Copy, so that a row does not keep the whole file in memory.
                Bytes::copy_from_slice(&text.0[start as usize..end as usize])
            }
        };
        let blank = text.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
        Ok((text.slice(blank..), start + blank as u64))
    }
}

/// The offset after the byte order mark.
fn start_of(text: &[u8]) -> u64 {
    if text.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 }
}

async fn decompressed(
    key: &Key,
    fetcher: &Arc<dyn Fetcher>,
    parts: &PartCache<Key, Decompressed>,
) -> Result<Decompressed> {
    let compressed = fetcher.read_whole(key, &MAX_COMPRESSED).await?;
    let work = move || decompress(&compressed, MAX_COMPRESSED).map(Decompressed);
    parts.threads().run(work).await.map_err(|error| error.with_key(key.display_name()))
}

#[async_trait]
impl PackedRows for JsonLinesFile {
    fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    fn object(&self) -> Option<&Key> {
        Some(&self.key)
    }

    async fn row_bytes(
        &self,
        _: &Arc<dyn Fetcher>,
        row: u64,
        _: &FieldRequest,
    ) -> Result<Option<u64>> {
        Ok(self.extent(row).map(|(start, end)| end - start))
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        // Errors name the sample, and the offset in the text of the file.
        let named = |error: Error| error.with_key(row_key(&self.key, row).display_name());
        let text = self.text(fetcher, row, request.max_bytes()).await;
        let (text, start) = text.map_err(named)?;
        let located = |error: Error| {
            let offset = start + error.offset().unwrap_or_default();
            named(error).with_offset(offset)
        };
        if let Err(error) = std::str::from_utf8(&text) {
            let invalid = Error::new(ErrorKind::Corrupt, "invalid UTF-8");
            return Err(located(
                invalid.with_offset(error.valid_up_to() as u64).with_source(error),
            ));
        }
        let mut members = json_line(&text, 0).map_err(located)?;
        let names = self.names.iter().filter(|name| request.wants(name));
        let values = names.map(|name| {
            let value = members.remove(&**name).map_or(FieldValue::Null, field_of);
            (Arc::clone(name), value)
        });
        Ok(values.collect())
    }
}

impl Shard for Arc<JsonLinesFile> {
    fn rows(&self) -> u64 {
        self.ends.len() as u64
    }
}

impl Sharded for JsonLines {
    type Shard = Arc<JsonLinesFile>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        let shard = Arc::clone(shard);
        Ok(StoredRecord::new(row_key(&shard.key, row)).with_row(shard, row))
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::new("json lines");
        for file in self.shards.iter() {
            hash.name(&file.key);
            hash.number(file.hash);
        }
        hash
    }
}

impl_dataset!(JsonLines, "rows of each file", "the names and contents of the files");

impl fmt::Debug for JsonLinesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonLinesFile({} with {} rows)", self.key, self.ends.len())
    }
}

impl fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, files) = (self.shards.total(), self.shards.len());
        write!(f, "JsonLines({rows} rows in {files} files)")
    }
}
