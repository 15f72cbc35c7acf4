//! A member of a zip archive: what is known of it, and its data out of the part of the archive that
//! holds them.

use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::numbers::{corrupt, crc32, number, u16_at, u32_at};
use crate::fetch::Key;

/// A header before a member's data, without name and extra fields.
pub(super) const LOCAL: usize = 30;
const LOCAL_SIGNATURE: u32 = 0x0403_4B50;
/// No deflated byte stands for more than this many.
const MAX_DEFLATE_RATIO: u64 = 1_032;

/// One member of a zip archive, as the central directory describes it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipEntry {
    /// Its name in UTF-8; that of old archives is decoded from code page 437. It may be absolute, or
    /// climb with `..`, and is never used as a path here.
    pub key: Key,
    /// What it is.
    pub kind: ZipKind,
    /// The length of its data in bytes.
    pub size: u64,
    /// Their length in the archive in bytes.
    pub compressed_size: u64,
    /// Where in the archive its local header starts.
    pub header_offset: u64,
    /// How the data are stored.
    pub method: ZipMethod,
    /// Whether they are encrypted. Reading them is `Unsupported`.
    pub is_encrypted: bool,
    pub(super) crc32: u32,
    /// The name as stored.
    pub(super) raw_name: Bytes,
    /// Where the next member, or the directory, starts.
    pub(super) limit: u64,
}

/// What a member of a zip archive is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZipKind {
    /// A file with its data.
    File,
    /// A folder: its name ends with a slash.
    Directory,
    /// A link by name, which is its data.
    SymbolicLink,
}

/// How the data of a member are stored.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZipMethod {
    /// As they are.
    Stored,
    /// By DEFLATE.
    Deflated,
    /// By another method, of this number. Reading them is `Unsupported`.
    Other(u16),
}

/// What a reader of zip archives allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZipOptions {
    pub(super) max_directory_bytes: u64,
    pub(super) max_file_bytes: u64,
}

impl Default for ZipOptions {
    /// 256 MiB for the central directory, 1 GiB for a file.
    fn default() -> Self {
        ZipOptions { max_directory_bytes: 256 << 20, max_file_bytes: 1 << 30 }
    }
}

impl ZipOptions {
    /// The most bytes of the central directory, of which there are 46 and a name for each member.
    /// Default: 256 MiB.
    #[must_use]
    pub fn max_directory_bytes(mut self, max_directory_bytes: u64) -> Self {
        self.max_directory_bytes = max_directory_bytes;
        self
    }

    /// The most bytes of one file that is read into memory, once decompressed. Default: 1 GiB.
    #[must_use]
    pub fn max_file_bytes(mut self, max_file_bytes: u64) -> Self {
        self.max_file_bytes = max_file_bytes;
        self
    }
}

impl ZipEntry {
    /// The checksum that the data should have, once decompressed: CRC-32.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    pub(super) fn corrupt(&self, message: impl Into<String>) -> Error {
        corrupt(message, self.header_offset).with_key(self.key.display_name())
    }

    /// What has to be read for the data: the local header and all that may belong to it.
    pub(super) fn check(&self, options: &ZipOptions) -> Result<Range<u64>> {
        let refuse = |kind: ErrorKind, message: String| {
            let error = Error::new(kind, message).with_key(self.key.display_name());
            Err(error.with_offset(self.header_offset))
        };
        if self.is_encrypted {
            return refuse(ErrorKind::Unsupported, "is encrypted".to_owned());
        }
        if self.size > options.max_file_bytes {
            let limit = options.max_file_bytes;
            let message = format!("holds {} bytes, but at most {limit} are allowed", self.size);
            return refuse(ErrorKind::LimitExceeded, message);
        }
        let can_be = match self.method {
            ZipMethod::Stored => self.size == self.compressed_size,
            ZipMethod::Deflated => {
                self.size <= self.compressed_size.saturating_mul(MAX_DEFLATE_RATIO)
            }
            ZipMethod::Other(method) => {
                let message = format!("is compressed by method {method}, which is not known here");
                return refuse(ErrorKind::Unsupported, message);
            }
        };
        if !can_be {
            let (size, compressed) = (self.size, self.compressed_size);
            let message = format!("cannot be {size} bytes, stored as {compressed}");
            return Err(self.corrupt(message));
        }
        let most = (LOCAL + self.raw_name.len() + 0xFFFF) as u64 + self.compressed_size;
        Ok(self.header_offset..self.limit.min(self.header_offset.saturating_add(most)))
    }

    /// Takes the data out of the part of the archive that [`check`](Self::check) asked for.
    pub(super) fn extract(&self, span: Bytes) -> Result<Bytes> {
        let start = self.check_local(&span)?;
        let compressed = usize::try_from(self.compressed_size).ok();
        let end = compressed.and_then(|len| start.checked_add(len));
        let end = end
            .filter(|&end| end <= span.len())
            .ok_or_else(|| self.corrupt("reaches into the next member or the directory"))?;
        let stored = span.slice(start..end);
        let data = match self.method {
            ZipMethod::Deflated => self.inflate(&stored)?,
            _ => stored,
        };
        let crc = crc32(&data);
        if crc != self.crc32 {
            let message = format!("has the checksum {crc:08x} and should have {:08x}", self.crc32);
            return Err(self.corrupt(message));
        }
        Ok(data)
    }

    /// Compares the local header with the directory. Returns where the data start.
    pub(super) fn check_local(&self, span: &[u8]) -> Result<usize> {
        if span.len() < LOCAL || u32_at(span, 0) != LOCAL_SIGNATURE {
            return Err(self.corrupt("has no local header where the directory says"));
        }
        let (name_len, extra_len) = (usize::from(u16_at(span, 26)), usize::from(u16_at(span, 28)));
        let flags = u16_at(span, 6);
        let method = match self.method {
            ZipMethod::Stored => 0,
            ZipMethod::Deflated => 8,
            ZipMethod::Other(other) => other,
        };
        if span.get(LOCAL..LOCAL + name_len) != Some(&self.raw_name[..]) {
            return Err(self.corrupt("has another name in its local header"));
        }
        if u16_at(span, 8) != method || (flags & 1 != 0) != self.is_encrypted {
            return Err(self.corrupt("is stored otherwise by its local header"));
        }
        // Where data were written before their size was known, it stands behind them.
        let is_behind = flags & 1 << 3 != 0;
        let values = [
            (number(span, 14, 4), u64::from(self.crc32), false),
            (number(span, 18, 4), self.compressed_size, true),
            (number(span, 22, 4), self.size, true),
        ];
        for (local, central, may_be_long) in values {
            let agrees = local == central
                || (is_behind && local == 0)
                || (may_be_long && local == 0xFFFF_FFFF);
            if !agrees {
                return Err(self.corrupt("has another size or checksum in its local header"));
            }
        }
        Ok(LOCAL + name_len + extra_len)
    }

    fn inflate(&self, stored: &[u8]) -> Result<Bytes> {
        let no_memory = || {
            let message = format!("cannot get memory for {} bytes", self.size);
            Error::new(ErrorKind::LimitExceeded, message).with_key(self.key.display_name())
        };
        let len = usize::try_from(self.size).map_err(|_| no_memory())?;
        let mut data = Vec::new();
        // One byte more shows that there is more.
        data.try_reserve_exact(len + 1).map_err(|_| no_memory())?;
        let mut inflate = flate2::Decompress::new(false);
        let status = inflate.decompress_vec(stored, &mut data, flate2::FlushDecompress::Finish);
        match status {
            Ok(flate2::Status::StreamEnd)
                if data.len() == len && inflate.total_in() == stored.len() as u64 =>
            {
                Ok(data.into())
            }
            Ok(_) => Err(self.corrupt(format!("does not decompress to {len} bytes"))),
            Err(error) => Err(self.corrupt("cannot be decompressed").with_source(error)),
        }
    }
}
