//! Tar archives: what their members are, and how they are read.

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

/// One member of a tar archive, as its headers describe it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// Its name, byte for byte as stored; it may be empty, absolute, or climb with `..`, and is
    /// never used as a path here.
    pub key: Key,
    /// What it is.
    pub kind: TarKind,
    /// What a link leads to; `None` for all else.
    pub link_target: Option<Key>,
    /// The length of its data in the archive, in bytes.
    pub size: u64,
    /// Where in the archive its first header starts, that of a long name included.
    pub header_offset: u64,
    /// Where in the archive its data start.
    pub data_offset: u64,
    /// When it was changed, in whole seconds since 1970, rounded down; `None` where that was not
    /// said in an understandable way.
    pub mtime: Option<i64>,
}

impl TarEntry {
    /// Where in the archive its data lie.
    pub fn data_range(&self) -> Range<u64> {
        self.data_offset..self.data_offset.saturating_add(self.size)
    }

    /// Whether a reader of files passes over it: what is no file, and has no data that would be
    /// missed. A hard link is a file, whose data are elsewhere.
    pub fn is_no_file(&self) -> bool {
        match self.kind {
            TarKind::File | TarKind::HardLink | TarKind::Sparse => false,
            TarKind::Other(_) => self.size == 0,
            _ => true,
        }
    }

    /// The error where an archive of this length ends inside the data of this member: `Truncated`.
    pub fn data_cut(&self, archive_len: u64) -> Error {
        let there = archive_len.saturating_sub(self.data_offset).min(self.size);
        let message =
            format!("the archive ends after {there} of this member's {} bytes", self.size);
        Error::new(ErrorKind::Truncated, message)
            .with_key(self.key.display_name())
            .with_offset(archive_len)
    }

    /// Refuses what has no data that could be read as a file's.
    ///
    /// # Errors
    /// `Unsupported` for sparse files, links and members of an unknown kind; `InvalidArgument` for
    /// what is no file.
    pub fn check_readable(&self) -> Result<()> {
        let (kind, message) = match (self.kind, &self.link_target) {
            (TarKind::File, _) => return Ok(()),
            (TarKind::Sparse, _) => (
                ErrorKind::Unsupported,
                "a sparse file, whose holes are not filled here".to_owned(),
            ),
            (TarKind::Other(_), _) => {
                (ErrorKind::Unsupported, format!("{}, which cannot be read", self.kind))
            }
            (_, Some(target)) => {
                let message = format!("{} to {target}, with no data of its own", self.kind);
                (ErrorKind::Unsupported, message)
            }
            _ => (ErrorKind::InvalidArgument, format!("{}, which has no data", self.kind)),
        };
        Err(Error::new(kind, message)
            .with_key(self.key.display_name())
            .with_offset(self.header_offset))
    }
}

/// What a member of a tar archive is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TarKind {
    /// A file with its data.
    File,
    /// Another name of a file that came before. Reading it is `Unsupported`.
    HardLink,
    /// A link by name.
    SymbolicLink,
    /// A device that is read byte by byte.
    CharacterDevice,
    /// A device that is read block by block.
    BlockDevice,
    /// A folder.
    Directory,
    /// A pipe with a name.
    Fifo,
    /// A file that is stored without its holes. Reading it is `Unsupported`.
    Sparse,
    /// Something else, by its letter: a volume's label is `V`. Reading it is `Unsupported`.
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
            TarKind::Directory => "a folder",
            TarKind::Fifo => "a pipe",
            TarKind::Sparse => "a sparse file",
            TarKind::Other(flag) => {
                return write!(f, "a member of the kind '{}'", flag.escape_ascii());
            }
        })
    }
}

/// A file of an archive, with its data.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarFile {
    /// What its headers say.
    pub entry: TarEntry,
    /// Its contents.
    pub data: Bytes,
}

/// What a reader of tar archives allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TarOptions {
    max_extension_bytes: usize,
    max_file_bytes: u64,
    missing_end: bool,
    after_end: AfterEnd,
}

/// What becomes of bytes behind an archive's end marker: two zero blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AfterEnd {
    /// They are not looked at, as GNU tar does it. A lone zero block, too, is an end.
    #[default]
    Ignore,
    /// Zero bytes fill the archive up; others, also behind a lone zero block, are `Corrupt`. Where
    /// archives may have been joined, this finds them.
    Refuse,
    /// Archives that were joined are read as one: zero blocks are passed over, as by GNU tar's
    /// `--ignore-zeros`. The end of the last one need not have a marker.
    Continue,
}

impl Default for TarOptions {
    /// 16 MiB for an extended header, 1 GiB for a file; the end marker must be there, and what
    /// follows it is not looked at.
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
    /// The most bytes of one header of names and records before a member. Default: 16 MiB.
    #[must_use]
    pub fn max_extension_bytes(mut self, max_extension_bytes: usize) -> Self {
        self.max_extension_bytes = max_extension_bytes;
        self
    }

    /// The most bytes of one file that is read into memory. Larger ones are `LimitExceeded`, and
    /// those behind them can still be read. Default: 1 GiB.
    #[must_use]
    pub fn max_file_bytes(mut self, max_file_bytes: u64) -> Self {
        self.max_file_bytes = max_file_bytes;
        self
    }

    /// Whether an archive may end behind any member. If not, one that ends without its end marker is
    /// `Truncated`, once all its members are delivered: it may have been cut there. Default: no.
    #[must_use]
    pub fn accept_missing_end(mut self, accept: bool) -> Self {
        self.missing_end = accept;
        self
    }

    /// What becomes of bytes behind the end marker. Default: they are not looked at.
    #[must_use]
    pub fn after_end(mut self, after_end: AfterEnd) -> Self {
        self.after_end = after_end;
        self
    }

    /// What of it decides which members there are.
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

    fn behind_end(&self) -> AfterEnd {
        self.after_end
    }

    /// Refuses a file that is too large to be read.
    fn check_file(&self, entry: &TarEntry) -> Result<()> {
        if entry.size <= self.max_file_bytes {
            return Ok(());
        }
        let message =
            format!("holds {} bytes, but at most {} are allowed", entry.size, self.max_file_bytes);
        Err(Error::new(ErrorKind::LimitExceeded, message)
            .with_key(entry.key.display_name())
            .with_offset(entry.header_offset))
    }
}
