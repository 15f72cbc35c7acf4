//! Tar archives: their members, the parser, and its readers.
//!
//! | file | what it holds |
//! |---|---|
//! | `header`, `extended` | one header block; pax extended headers |
//! | `parser` | [`TarParser`]: a state machine without I/O |
//! | `slice`, `stream` | [`TarSlice`], [`TarStream`]: the parser over memory, and over a stream |
//! | `walk`, `ranges` | the parser over a file or object that is read in parts; [`TarRanges`] |

mod extended;
mod header;
mod parser;
mod ranges;
mod slice;
mod stream;
mod walk;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;

pub use parser::{TarEvent, TarParser};
pub use ranges::TarRanges;
pub use slice::TarSlice;
pub use stream::TarStream;
pub(super) use walk::{HeaderWalk, Step, WindowSizes};

/// One member of a tar archive, from its headers.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// The name, as stored. It may be empty, absolute, or contain `..`. Never use it as a path.
    pub key: Key,
    /// The type.
    pub kind: TarKind,
    /// The target of a link; `None` for other types.
    pub link_target: Option<Key>,
    /// The size of the data in the archive, in bytes.
    pub size: u64,
    /// The offset of the first header of the member, including extended headers.
    pub header_offset: u64,
    /// The offset of the data.
    pub data_offset: u64,
    /// The modification time, in seconds since 1970, rounded down; `None` if it is missing or invalid.
    pub mtime: Option<i64>,
}

impl TarEntry {
    /// The byte range of the data in the archive.
    pub fn data_range(&self) -> Range<u64> {
        self.data_offset..self.data_offset.saturating_add(self.size)
    }

    /// Whether [`TarSlice::files`] skips the member: a directory, a symbolic link, a device, a
    /// pipe, or a member of another type without data. Hard links and sparse files are not skipped.
    pub fn is_not_a_file(&self) -> bool {
        match self.kind {
            TarKind::File | TarKind::HardLink | TarKind::Sparse => false,
            TarKind::Other(_) => self.size == 0,
            _ => true,
        }
    }

    /// The `Truncated` error for an archive of `archive_len` bytes that ends inside the data.
    pub fn truncated(&self, archive_len: u64) -> Error {
        let available = archive_len.saturating_sub(self.data_offset).min(self.size);
        let message =
            format!("the archive ends after {available} of {} bytes of this member", self.size);
        Error::new(ErrorKind::Truncated, message)
            .with_key(self.key.display_name())
            .with_offset(archive_len)
    }

    /// Checks that the member is a regular file, not a sparse one.
    ///
    /// # Errors
    /// `Unsupported` for sparse files, links and members of unknown type; `InvalidArgument` for other
    /// members that are not files.
    pub fn check_readable(&self) -> Result<()> {
        let (kind, message) = match (self.kind, &self.link_target) {
            (TarKind::File, _) => return Ok(()),
            (TarKind::Sparse, _) => {
                (ErrorKind::Unsupported, "sparse files are not supported".to_owned())
            }
            (TarKind::Other(_), _) => {
                (ErrorKind::Unsupported, format!("cannot read {}", self.kind))
            }
            (_, Some(target)) => {
                let message = format!("cannot read {} to {target}: links have no data", self.kind);
                (ErrorKind::Unsupported, message)
            }
            _ => (ErrorKind::InvalidArgument, format!("cannot read {}: it has no data", self.kind)),
        };
        Err(Error::new(kind, message)
            .with_key(self.key.display_name())
            .with_offset(self.header_offset))
    }
}

/// The type of a tar member.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TarKind {
    /// A file with its data.
    File,
    /// A hard link to an earlier file. Reading the member fails with `Unsupported`.
    HardLink,
    /// A symbolic link.
    SymbolicLink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A sparse file. Reading the member fails with `Unsupported`.
    Sparse,
    /// Another type, by its type flag, such as `V` for a volume label. Reading the member fails with
    /// `Unsupported`.
    Other(u8),
}

impl fmt::Display for TarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TarKind::File => "a file",
            TarKind::HardLink => "a hard link",
            TarKind::SymbolicLink => "a symbolic link",
            TarKind::CharacterDevice => "a character device",
            TarKind::BlockDevice => "a block device",
            TarKind::Directory => "a directory",
            TarKind::Fifo => "a named pipe",
            TarKind::Sparse => "a sparse file",
            TarKind::Other(flag) => {
                return write!(f, "a member of type '{}'", flag.escape_ascii());
            }
        })
    }
}

/// A file of an archive, with its data.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarFile {
    /// The member.
    pub entry: TarEntry,
    /// The content.
    pub data: Bytes,
}

/// Limits and options of tar readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TarOptions {
    max_extension_bytes: usize,
    max_file_bytes: u64,
    missing_end: bool,
    after_end: AfterEnd,
}

/// How to handle data after the end-of-archive marker, which is two zero blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AfterEnd {
    /// Ignore the data, like GNU tar. A single zero block also ends the archive.
    #[default]
    Ignore,
    /// Accept zero padding only. Other data, even after a single zero block, fail with `Corrupt`. This setting
    /// detects concatenated archives.
    Refuse,
    /// Read concatenated archives as one: zero blocks are skipped, like GNU tar's `--ignore-zeros`. The last
    /// archive needs no end-of-archive marker.
    Continue,
}

impl Default for TarOptions {
    /// 16 MiB per extended header, 1 GiB per file. The end-of-archive marker is required; data after it
    /// are ignored.
    fn default() -> Self {
        TarOptions {
            max_extension_bytes: 16 << 20,
            max_file_bytes: 1 << 30,
            missing_end: false,
            after_end: AfterEnd::Ignore,
        }
    }
}

impl TarOptions {
    /// Sets the maximum size of an extended header, in bytes. Default: 16 MiB.
    #[must_use]
    pub fn max_extension_bytes(mut self, max_extension_bytes: usize) -> Self {
        self.max_extension_bytes = max_extension_bytes;
        self
    }

    /// Sets the maximum size of a file that is read into memory, in bytes. Reading a larger file
    /// fails with `LimitExceeded`; the following files can still be read. Default: 1 GiB.
    #[must_use]
    pub fn max_file_bytes(mut self, max_file_bytes: u64) -> Self {
        self.max_file_bytes = max_file_bytes;
        self
    }

    /// Sets whether the end-of-archive marker may be missing. If `accept` is false, an archive without the
    /// marker fails with `Truncated` after its last member. Default: false.
    #[must_use]
    pub fn accept_missing_end(mut self, accept: bool) -> Self {
        self.missing_end = accept;
        self
    }

    /// Sets how to handle data after the end-of-archive marker. Default: [`AfterEnd::Ignore`].
    #[must_use]
    pub fn after_end(mut self, after_end: AfterEnd) -> Self {
        self.after_end = after_end;
        self
    }

    /// The options that determine the list of members, as bits.
    pub(super) fn bits(&self) -> u32 {
        let after_end = match self.after_end {
            AfterEnd::Ignore => 0,
            AfterEnd::Refuse => 2,
            AfterEnd::Continue => 4,
        };
        u32::from(self.missing_end) | after_end
    }

    fn extension_limit(&self) -> usize {
        self.max_extension_bytes
    }

    fn accepts_missing_end(&self) -> bool {
        self.missing_end
    }

    fn after_end_marker(&self) -> AfterEnd {
        self.after_end
    }

    /// Checks the size limit of a file.
    fn check_file(&self, entry: &TarEntry) -> Result<()> {
        if entry.size <= self.max_file_bytes {
            return Ok(());
        }
        let message = format!(
            "size of {} bytes exceeds the limit of {} bytes",
            entry.size, self.max_file_bytes
        );
        Err(Error::new(ErrorKind::LimitExceeded, message)
            .with_key(entry.key.display_name())
            .with_offset(entry.header_offset))
    }
}
