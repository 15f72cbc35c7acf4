//! [`LmdbDataset`]: LMDB files whose entries are files.
//!
//! | file | what it holds |
//! |---|---|
//! | `tree` | the pages of a file: keys and the places of their values |

mod tree;

use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::tree::Entries;
use super::common::ContentHash;
use super::patterns::FilePatterns;
use super::sharded::{Shard, Sharded, Shards, impl_dataset, impl_openers, read_files};
use super::webdataset::{default_encoding, split_name};
use crate::fetch::{Fetcher, Key};
use crate::records::{Encoding, Extent, StoredRecord};

/// The samples of LMDB files: a folder with `data.mdb`, or a single file.
///
/// The keys of a file determine its layout:
///
/// | keys | sample | fields |
/// |---|---|---|
/// | `000017.jpg`, `000017.cls` | the keys with the same name before the first dot | as in [`WebDataset`](super::WebDataset): `jpg`, `cls` |
/// | `image-000000001`, `label-000000001`, as in data sets of text recognition | the keys with the same number | `image`; `label` as text |
/// | others | each key | `image` if the first value is an image, otherwise `value` |
///
/// - `num-samples` and keys that begin with `__` and end with `__`, such as `__len__`, are no samples.
/// - Opening reads the whole tree, but no values in overflow pages. Samples are in the order of their keys. Each
///   value is read by one range request. No file is mapped or locked: do not write to it during a run.
/// - The format has no checksums.
/// - Memory use: 24 bytes per key, and the key.
/// - The values of the first sample are examined: Python pickles and Caffe's `Datum` messages are
///   `Unsupported`, as are named databases and keys with several values.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_io::datasets::LmdbDataset;
/// # #[cfg(feature = "local")] {
/// # let folder = "tests/data/lmdb/files";
/// let samples = LmdbDataset::open(folder)?; // "data/train_lmdb"
/// let sample = samples.item(0)?; // data/train_lmdb/data.mdb:000000
/// assert!(sample.names().any(|name| name == "jpg"));
/// # assert_eq!((samples.len(), sample.key.as_str()), (60, Some("tests/data/lmdb/files/data.mdb:000000")));
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct LmdbDataset {
    shards: Shards<LmdbFile>,
}

/// Options of [`LmdbDataset`].
#[derive(Clone, Debug)]
pub struct LmdbOptions {
    concurrency: usize,
}

impl Default for LmdbOptions {
    fn default() -> Self {
        LmdbOptions { concurrency: 4 }
    }
}

impl LmdbOptions {
    /// Sets how many files are opened concurrently; 0 means 1. Default: 4.
    #[must_use]
    pub fn concurrency(mut self, files: usize) -> Self {
        self.concurrency = files.max(1);
        self
    }

    #[expect(clippy::unused_self, reason = "the same call for all data sets")]
    fn patterns(&self) -> FilePatterns<'static> {
        PATTERNS
    }
}

pub(super) const PATTERNS: FilePatterns<'static> =
    FilePatterns { in_folder: "data.mdb", index_suffix: None };

impl_openers! {
    LmdbDataset, LmdbOptions, "file `data.mdb`", #[cfg(feature = "local")];
    /// Opens files of a store, in this order.
    ///
    /// # Errors
    /// - `InvalidArgument` for an empty list.
    /// - `Corrupt` for invalid pages and for cycles in the tree; `Truncated` if the tree refers to data beyond
    ///   the end of the file.
    /// - `Unsupported` for named databases, keys with several values, values that are Python pickles or
    ///   messages of Caffe, and for a fetcher without sizes or range requests.
    /// - `LimitExceeded` for keys of more than 4 GiB in total.
    /// - The errors of the fetcher.
}

impl LmdbDataset {
    async fn fetch_keys(
        fetcher: &Arc<dyn Fetcher>,
        files: Vec<Key>,
        options: &LmdbOptions,
    ) -> Result<Self> {
        let read = |key: Key| LmdbFile::open(fetcher, key);
        let files = read_files(files, "LMDB files", options.concurrency, read).await?;
        Ok(LmdbDataset { shards: Shards::new(files)? })
    }
}

/// How the keys of a file become samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// `NAME.FIELD`
    Files,
    /// `FIELD-NUMBER`
    Pairs,
    /// Each value is a sample with this field.
    Values(&'static str),
}

impl Layout {
    /// The sample and the field of a key; `None` if the layout does not fit the key.
    fn split(self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        match self {
            Layout::Files => split_name(key),
            Layout::Pairs => {
                let dash = key.iter().rposition(|&byte| byte == b'-')?;
                let (field, number) = (&key[..dash], &key[dash + 1..]);
                let is_name = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
                let fits = !field.is_empty()
                    && !number.is_empty()
                    && field.iter().all(is_name)
                    && number.iter().all(u8::is_ascii_digit);
                fits.then_some((number, field))
            }
            Layout::Values(field) => Some((key, field.as_bytes())),
        }
    }

    fn encoding(self, field: &str) -> Encoding {
        match (self, field) {
            (Layout::Files, _) => default_encoding(field),
            (Layout::Pairs, "label" | "lexicon" | "text") => Encoding::Text,
            _ => Encoding::Bytes,
        }
    }
}

/// A file, and the entries of each sample.
pub(super) struct LmdbFile {
    key: Key,
    /// A hash of the size and version.
    version: u64,
    layout: Layout,
    entries: Entries,
    /// The numbers of the entries, sorted by sample.
    sorted: Vec<u32>,
    /// The end of the entries of each sample in `sorted`.
    ends: Vec<u32>,
}

/// Whether an entry describes the data set.
fn is_about_all(key: &[u8]) -> bool {
    key == b"num-samples" || (key.len() > 4 && key.starts_with(b"__") && key.ends_with(b"__"))
}

impl LmdbFile {
    async fn open(fetcher: &Arc<dyn Fetcher>, key: Key) -> Result<Self> {
        let object = match fetcher.stat(&key).await {
            // The name may be that of a folder.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument)
                    && !key.as_bytes().ends_with(b".mdb") =>
            {
                let inside = Key::from_bytes(&[key.as_bytes(), b"/data.mdb"].concat());
                fetcher.stat(&inside).await.map_err(|_| error)?
            }
            found => found?,
        };
        let version = object.version_hash();
        let entries = tree::read_entries(fetcher, &object.key, object.size).await?;
        // Lossless: the number of entries is below 2³².
        let mut sorted: Vec<u32> = (0..entries.len() as u32).collect();
        sorted.retain(|&entry| !is_about_all(entries.key(entry as usize)));
        let fits = |layout: Layout| {
            sorted.iter().all(|&entry| layout.split(entries.key(entry as usize)).is_some())
        };
        let first = sorted.first().map(|&entry| entries.key(entry as usize));
        let layout = match first {
            None => Layout::Values("value"),
            Some(_) if fits(Layout::Files) => Layout::Files,
            Some(first) if fits(Layout::Pairs) && has_fields(first, &entries, &sorted) => {
                Layout::Pairs
            }
            Some(_) => Layout::Values("value"),
        };
        let mut file =
            LmdbFile { key: object.key, version, layout, entries, sorted, ends: Vec::new() };
        file.group();
        file.examine(fetcher).await?;
        Ok(file)
    }

    /// The sample of an entry, and its field.
    fn split(&self, entry: u32) -> (&[u8], &[u8]) {
        let key = self.entries.key(entry as usize);
        self.layout.split(key).unwrap_or((key, b"value"))
    }

    fn group(&mut self) {
        let mut sorted = std::mem::take(&mut self.sorted);
        // The sort is stable, so the fields of a sample are in the order of the keys.
        sorted.sort_by(|&one, &other| self.split(one).0.cmp(self.split(other).0));
        let is_last = |at: &usize| {
            let next = sorted.get(at + 1);
            next.is_none_or(|&next| self.split(next).0 != self.split(sorted[*at]).0)
        };
        self.ends = (0..sorted.len()).filter(is_last).map(|at| at as u32 + 1).collect();
        self.ends.shrink_to_fit();
        sorted.shrink_to_fit();
        self.sorted = sorted;
    }

    /// The entries of a sample.
    fn sample(&self, row: usize) -> &[u32] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.sorted[start as usize..self.ends[row] as usize]
    }

    /// Checks that the values of the first sample can be read, and finds the type of its value.
    async fn examine(&mut self, fetcher: &Arc<dyn Fetcher>) -> Result<()> {
        const EXAMINED: u64 = 64;
        if self.layout == Layout::Files || self.ends.is_empty() {
            return Ok(());
        }
        for &entry in self.sample(0).to_vec().iter() {
            let range = self.entries.value(entry as usize);
            if range.is_empty() {
                continue;
            }
            let start = range.start..range.end.min(range.start + EXAMINED);
            let value = fetcher.read(&self.key, Some(start)).await?;
            let message = match &value[..] {
                [0x80, 2..=5, ..] => {
                    "the values are Python pickles, and unpickling executes code; write the images without \
                     pickling them"
                }
                value if is_datum(value, range.end - range.start) => {
                    "the values are `Datum` messages of Caffe; write the encoded images instead"
                }
                value => {
                    if self.layout == Layout::Values("value") && is_image(value) {
                        self.layout = Layout::Values("image");
                    }
                    continue;
                }
            };
            let error = Error::new(ErrorKind::Unsupported, message).with_offset(range.start);
            return Err(error.with_key(self.sample_key(self.split(entry).0).display_name()));
        }
        Ok(())
    }

    /// The key of a sample. A name that is not printable text is written as a hexadecimal number.
    fn sample_key(&self, name: &[u8]) -> Key {
        let is_text = std::str::from_utf8(name).is_ok_and(|name| !name.contains(char::is_control));
        let hexadecimal = || name.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let hexadecimal = if is_text { String::new() } else { format!("0x{}", hexadecimal()) };
        let name = if is_text { name } else { hexadecimal.as_bytes() };
        Key::from_bytes(&[self.key.as_bytes(), b":", name].concat())
    }
}

/// Whether another key has the number of the first one, so that samples have several fields.
fn has_fields(first: &[u8], entries: &Entries, sorted: &[u32]) -> bool {
    let field = |key| Layout::Pairs.split(key).map(|(_, field)| field);
    let last = sorted.last().map(|&entry| entries.key(entry as usize));
    // The keys are sorted by their fields.
    field(first) != last.and_then(field)
}

/// Whether a value begins with the signature of an image format.
fn is_image(value: &[u8]) -> bool {
    let starts: [&[u8]; 6] = [b"\xFF\xD8\xFF", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*"];
    starts.iter().any(|start| value.starts_with(start))
        || (value.starts_with(b"RIFF") && value.get(8..12) == Some(b"WEBP"))
}

/// Whether a value of `size` bytes is Caffe's protocol buffer `Datum`: the fields 1 to 3 with the shape, then
/// field 4 with the pixels.
fn is_datum(mut value: &[u8], size: u64) -> bool {
    let varint = |value: &mut &[u8]| {
        let mut number = 0_u64;
        for shift in (0..63).step_by(7) {
            let (&byte, rest) = value.split_first()?;
            *value = rest;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    };
    for number in 1..=3 {
        if value.first() == Some(&(number << 3)) {
            value = &value[1..];
            if varint(&mut value).is_none() {
                return false;
            }
        }
    }
    if value.first() != Some(&0x22) {
        return false;
    }
    value = &value[1..];
    varint(&mut value).is_some_and(|pixels| pixels < size)
}

impl Shard for LmdbFile {
    fn rows(&self) -> u64 {
        self.ends.len() as u64
    }
}

impl Sharded for LmdbDataset {
    type Shard = LmdbFile;

    fn sample(&self, file: &LmdbFile, row: u64) -> Result<StoredRecord> {
        // Lossless: below the number of samples of the file.
        let entries = file.sample(row as usize);
        let name = entries.first().map_or(&[][..], |&entry| file.split(entry).0);
        let mut record = StoredRecord::new(file.sample_key(name)).with_version(Some(file.version));
        for &entry in entries {
            let field = String::from_utf8_lossy(file.split(entry).1).to_ascii_lowercase();
            if record.names().any(|name| *name == field) {
                let error = Error::new(ErrorKind::Corrupt, format!("duplicate field {field:?}"));
                return Err(error.with_key(record.key.display_name()));
            }
            let encoding = file.layout.encoding(&field);
            let extent = Extent::part(file.key.clone(), file.entries.value(entry as usize));
            record = record.with_stored(field, extent, encoding);
        }
        Ok(record)
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::new("lmdb");
        for file in self.shards.iter() {
            hash.name(&file.key);
            hash.number(file.entries.len() as u64);
            for entry in 0..file.entries.len() {
                hash.bytes(file.entries.key(entry));
                let value = file.entries.value(entry);
                hash.number(value.end - value.start);
            }
        }
        hash
    }
}

impl_dataset!(
    LmdbDataset,
    "samples of each file",
    "the file names, the keys and the sizes of the values"
);

impl fmt::Debug for LmdbDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, files) = (self.shards.total(), self.shards.len());
        write!(f, "LmdbDataset({samples} samples in {files} files)")
    }
}
