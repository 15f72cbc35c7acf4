//! Zip archives, member by member in any order, by their central directory: in memory ([`ZipSlice`]), and
//! by ranges of a store ([`ZipRanges`]).

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
use self::end::{End, tail};
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
    /// Reads the directory of an archive, within default limits.
    ///
    /// # Errors
    /// `Corrupt` and `Truncated` where this is no zip archive or its directory is damaged;
    /// `Unsupported` for one in several parts; `LimitExceeded`.
    pub fn new(archive: impl Into<Bytes>) -> Result<Self> {
        ZipSlice::with_options(archive, ZipOptions::default())
    }

    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_options(archive: impl Into<Bytes>, options: ZipOptions) -> Result<Self> {
        let archive = archive.into();
        let read = |range| part(&archive, range);
        let directory = ZipDirectory::read(archive.len() as u64, options, read)?;
        Ok(ZipSlice { archive, directory })
    }

    /// The members, in the order of the directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.directory.entries
    }

    /// The member with this name; of several, the last.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.directory.find(name)
    }

    /// The data of a member of this archive: a part of it where they are stored as they are.
    ///
    /// # Errors
    /// `Corrupt` where they contradict their checksum, their size or the directory; `Unsupported`
    /// where they are encrypted, or compressed by something else than DEFLATE; `LimitExceeded` for a
    /// file larger than [`ZipOptions::max_file_bytes`].
    pub fn data(&self, entry: &ZipEntry) -> Result<Bytes> {
        let behind = |_| entry.corrupt("lies behind the end of the archive");
        self.directory.data(entry, |range| part(&self.archive, range).map_err(behind))
    }
}

/// A part of an archive in memory.
fn part(archive: &Bytes, range: Range<u64>) -> Result<Bytes> {
    match (usize::try_from(range.start), usize::try_from(range.end)) {
        (Ok(start), Ok(end)) if start <= end && end <= archive.len() => {
            Ok(archive.slice(start..end))
        }
        _ => Err(corrupt("the archive ends before that", archive.len() as u64)),
    }
}

impl fmt::Debug for ZipSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZipSlice({} members)", self.entries().len())
    }
}

/// A zip archive that a [`Fetcher`] reads by ranges: its directory, and those members that are asked
/// for, each by one request.
#[derive(Debug)]
pub struct ZipRanges {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    directory: ZipDirectory,
}

impl ZipRanges {
    /// Reads the directory of the archive that is stored under `key` and holds `len` bytes.
    ///
    /// # Errors
    /// As [`ZipSlice::new`], and what the fetcher answers.
    pub async fn open(
        fetcher: Arc<dyn Fetcher>,
        key: Key,
        len: u64,
        options: ZipOptions,
    ) -> Result<Self> {
        let named = |error: Error| error.with_key(key.display_name());
        let tail = tail(len);
        let bytes = fetch(&*fetcher, &key, tail.clone()).await?;
        let end = End::find(&bytes, tail.start, len).map_err(named)?;
        let end = match end.far_record() {
            Some(range) => {
                let bytes = fetch(&*fetcher, &key, range.clone()).await?;
                end.with_record(&bytes, range.start).map_err(named)?
            }
            None => end,
        };
        let range = end.directory(&options).map_err(named)?;
        let bytes = if tail.start <= range.start {
            let at = |offset: u64| (offset - tail.start) as usize;
            bytes.slice(at(range.start)..at(range.end))
        } else {
            fetch(&*fetcher, &key, range.clone()).await?
        };
        let directory = ZipDirectory::parse(&bytes, &end, range, options).map_err(named)?;
        Ok(ZipRanges { fetcher, key, directory })
    }

    /// The members, in the order of the directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.directory.entries
    }

    /// The member with this name; of several, the last.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.directory.find(name)
    }

    /// The data of a member of this archive. They are decompressed where the future is polled.
    ///
    /// # Errors
    /// As [`ZipSlice::data`], and what the fetcher answers.
    pub async fn data(&self, entry: &ZipEntry) -> Result<Bytes> {
        let range = entry.check(&self.directory.options)?;
        entry.extract(fetch(&*self.fetcher, &self.key, range).await?)
    }
}

async fn fetch(fetcher: &dyn Fetcher, key: &Key, range: Range<u64>) -> Result<Bytes> {
    let wanted = range.end - range.start;
    let bytes = fetcher.read(key, Some(range)).await?;
    if bytes.len() as u64 != wanted {
        let message = format!("{} bytes came for a range of {wanted}", bytes.len());
        return Err(Error::new(ErrorKind::Io, message).with_key(key.display_name()));
    }
    Ok(bytes)
}
