//! Zip archives: random access to members by the central directory.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the readers: [`ZipSlice`] in memory, [`ZipRanges`] by range requests |
//! | `directory` | [`ZipDirectory`]: the central directory |
//! | `end` | end-of-central-directory records, including Zip64 |
//! | `entry` | [`ZipEntry`], local headers, decompression, [`ZipOptions`] |
//! | `numbers` | little-endian numbers and CRC-32 |

mod directory;
mod end;
mod entry;
mod numbers;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

pub use self::directory::ZipDirectory;
use self::end::{EndRecord, tail};
pub use self::entry::{ZipEntry, ZipKind, ZipMethod, ZipOptions};
use self::numbers::corrupt;
use crate::fetch::{Fetcher, Key};

/// A zip archive in memory.
///
/// ```
/// use spdl_io::archive::ZipSlice;
/// # let mut bytes = b"PK\x05\x06".to_vec();
/// # bytes.resize(22, 0);
/// let archive = ZipSlice::new(bytes)?;
/// for entry in archive.entries() {
///     println!("{}: {} bytes", entry.key, archive.data(entry)?.len());
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ZipSlice {
    archive: Bytes,
    directory: ZipDirectory,
}

impl ZipSlice {
    /// Reads the central directory of an archive, with default limits.
    ///
    /// # Errors
    /// - `Corrupt` or `Truncated` if this is not a zip archive, or if its central directory is damaged.
    /// - `Unsupported` for a multi-part archive, and for an encrypted central directory.
    /// - `LimitExceeded` for a central directory above [`ZipOptions::max_directory_bytes`].
    pub fn new(archive: impl Into<Bytes>) -> Result<Self> {
        ZipSlice::with_options(archive, ZipOptions::default())
    }

    /// Reads the central directory of an archive.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_options(archive: impl Into<Bytes>, options: ZipOptions) -> Result<Self> {
        let archive = archive.into();
        let read = |range| part(&archive, range);
        let directory = ZipDirectory::read(archive.len() as u64, options, read)?;
        Ok(ZipSlice { archive, directory })
    }

    /// The members, in the order of the central directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.directory.entries
    }

    /// The last member with this name.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.directory.find(name)
    }

    /// The uncompressed data of a member. Data stored without compression are returned as a view of
    /// the archive.
    ///
    /// # Errors
    /// - `Corrupt` if the data contradict the checksum, the size or the central directory.
    /// - `Unsupported` for encrypted members, and for compression methods other than DEFLATE.
    /// - `LimitExceeded` for a file above [`ZipOptions::max_file_bytes`].
    pub fn data(&self, entry: &ZipEntry) -> Result<Bytes> {
        let out_of_range = |_| entry.corrupt("the member extends beyond the archive");
        self.directory.data(entry, |range| part(&self.archive, range).map_err(out_of_range))
    }
}

/// A byte range of an archive in memory.
fn part(archive: &Bytes, range: Range<u64>) -> Result<Bytes> {
    match (usize::try_from(range.start), usize::try_from(range.end)) {
        (Ok(start), Ok(end)) if start <= end && end <= archive.len() => {
            Ok(archive.slice(start..end))
        }
        _ => Err(corrupt("byte range extends beyond the zip archive", archive.len() as u64)),
    }
}

impl fmt::Debug for ZipSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZipSlice({} members)", self.entries().len())
    }
}

/// A zip archive in a store, read by range requests: the central directory, then one request per member.
#[derive(Debug)]
pub struct ZipRanges {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    directory: ZipDirectory,
}

impl ZipRanges {
    /// Reads the central directory of the archive `key` of `len` bytes.
    ///
    /// # Errors
    /// The errors of [`ZipSlice::new`] and of the fetcher.
    pub async fn open(
        fetcher: Arc<dyn Fetcher>,
        key: Key,
        len: u64,
        options: ZipOptions,
    ) -> Result<Self> {
        let with_key = |error: Error| error.with_key(key.display_name());
        let tail = tail(len);
        let bytes = fetch(&*fetcher, &key, tail.clone()).await?;
        let end = EndRecord::find(&bytes, tail.start, len).map_err(with_key)?;
        let end = match end.far_record() {
            Some(range) => {
                let bytes = fetch(&*fetcher, &key, range.clone()).await?;
                end.with_record(&bytes, range.start).map_err(with_key)?
            }
            None => end,
        };
        let range = end.directory(&options).map_err(with_key)?;
        let bytes = if tail.start <= range.start {
            let at = |offset: u64| (offset - tail.start) as usize;
            bytes.slice(at(range.start)..at(range.end))
        } else {
            fetch(&*fetcher, &key, range.clone()).await?
        };
        let directory = ZipDirectory::parse(&bytes, &end, range, options).map_err(with_key)?;
        Ok(ZipRanges { fetcher, key, directory })
    }

    /// The members, in the order of the central directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.directory.entries
    }

    /// The members, in the order of the central directory.
    pub(crate) fn into_entries(self) -> Vec<ZipEntry> {
        self.directory.entries
    }

    /// The last member with this name.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.directory.find(name)
    }

    /// The data of a member. Decompression runs on the thread that polls the future.
    ///
    /// # Errors
    /// The errors of [`ZipSlice::data`] and of the fetcher.
    pub async fn data(&self, entry: &ZipEntry) -> Result<Bytes> {
        let range = entry.check(&self.directory.options)?;
        entry.extract(fetch(&*self.fetcher, &self.key, range).await?)
    }
}

async fn fetch(fetcher: &dyn Fetcher, key: &Key, range: Range<u64>) -> Result<Bytes> {
    let wanted = range.end - range.start;
    let bytes = fetcher.read(key, Some(range)).await?;
    if bytes.len() as u64 != wanted {
        let message = format!("expected {wanted} bytes of the zip archive, got {}", bytes.len());
        return Err(Error::new(ErrorKind::Io, message).with_key(key.display_name()));
    }
    Ok(bytes)
}
