//! [`ZipEntry`]: a member of a zip archive, its local header and its data.

use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::numbers::{corrupt, crc32, number, u16_at, u32_at};
use crate::fetch::Key;

/// The size of a local header without name and extra fields, in bytes.
pub(super) const LOCAL: usize = 30;
const LOCAL_SIGNATURE: u32 = 0x0403_4B50;
/// The message for a member that overlaps the next one or the central directory.
pub(super) const OVERLAP: &str = "the member overlaps the next member or the central directory";
/// The maximum compression ratio of DEFLATE.
const MAX_DEFLATE_RATIO: u64 = 1_032;

/// One member of a zip archive, from the central directory.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipEntry {
    /// The name in UTF-8. Names of old archives are decoded from code page 437. The name may be
    /// absolute, or contain `..`. Never use it as a path.
    pub key: Key,
    /// The type.
    pub kind: ZipKind,
    /// The uncompressed size of the data, in bytes.
    pub size: u64,
    /// The compressed size of the data, in bytes.
    pub compressed_size: u64,
    /// The offset of the local header.
    pub header_offset: u64,
    /// The compression method.
    pub method: ZipMethod,
    /// Whether the data are encrypted. Reading encrypted data fails with `Unsupported`.
    pub is_encrypted: bool,
    pub(super) crc32: u32,
    /// The name, as stored.
    pub(super) raw_name: Bytes,
    /// The start of the next member, or of the central directory.
    pub(super) limit: u64,
}

/// The type of a zip member.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZipKind {
    /// A file with its data.
    File,
    /// A directory: the name ends with a slash.
    Directory,
    /// A symbolic link. The data are its target.
    SymbolicLink,
}

/// The compression method of a zip member.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZipMethod {
    /// No compression.
    Stored,
    /// DEFLATE.
    Deflated,
    /// Another method, by its number. Reading the data fails with `Unsupported`.
    Other(u16),
}

/// Limits of zip readers.
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
    /// Sets the maximum size of the central directory, in bytes. Each member takes 46 bytes, plus
    /// its name, extra fields and comment. Default: 256 MiB.
    #[must_use]
    pub fn max_directory_bytes(mut self, max_directory_bytes: u64) -> Self {
        self.max_directory_bytes = max_directory_bytes;
        self
    }

    /// Sets the maximum uncompressed size of a file, in bytes. Default: 1 GiB.
    #[must_use]
    pub fn max_file_bytes(mut self, max_file_bytes: u64) -> Self {
        self.max_file_bytes = max_file_bytes;
        self
    }
}

impl ZipEntry {
    /// The expected CRC-32 of the uncompressed data.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    pub(super) fn corrupt(&self, message: impl Into<String>) -> Error {
        corrupt(message, self.header_offset).with_key(self.key.display_name())
    }

    /// The byte range to read for the data, including the local header.
    pub(crate) fn check(&self, options: &ZipOptions) -> Result<Range<u64>> {
        let refuse = |kind: ErrorKind, message: String| {
            let error = Error::new(kind, message).with_key(self.key.display_name());
            Err(error.with_offset(self.header_offset))
        };
        if self.is_encrypted {
            let message = "encrypted zip members are not supported";
            return refuse(ErrorKind::Unsupported, message.to_owned());
        }
        if self.size > options.max_file_bytes {
            let limit = options.max_file_bytes;
            let message = format!("size of {} bytes exceeds the limit of {limit} bytes", self.size);
            return refuse(ErrorKind::LimitExceeded, message);
        }
        let is_possible = match self.method {
            ZipMethod::Stored => self.size == self.compressed_size,
            ZipMethod::Deflated => {
                self.size <= self.compressed_size.saturating_mul(MAX_DEFLATE_RATIO)
            }
            ZipMethod::Other(method) => {
                let message = format!("unsupported zip compression method {method}");
                return refuse(ErrorKind::Unsupported, message);
            }
        };
        if !is_possible {
            let (size, compressed) = (self.size, self.compressed_size);
            let message = format!(
                "impossible sizes: {compressed} compressed bytes for {size} uncompressed bytes"
            );
            return Err(self.corrupt(message));
        }
        let max_len = (LOCAL + self.raw_name.len() + 0xFFFF) as u64 + self.compressed_size;
        Ok(self.header_offset..self.limit.min(self.header_offset.saturating_add(max_len)))
    }

    /// The data, from the byte range that [`check`](Self::check) returned.
    pub(crate) fn extract(&self, span: Bytes) -> Result<Bytes> {
        let start = self.check_local(&span)?;
        let compressed = usize::try_from(self.compressed_size).ok();
        let end = compressed.and_then(|len| start.checked_add(len));
        let end = end.filter(|&end| end <= span.len()).ok_or_else(|| self.corrupt(OVERLAP))?;
        let stored = span.slice(start..end);
        let data = match self.method {
            ZipMethod::Deflated => self.inflate(&stored)?,
            _ => stored,
        };
        let crc = crc32(&data);
        if crc != self.crc32 {
            let message = format!("CRC-32 mismatch: expected {:08x}, got {crc:08x}", self.crc32);
            return Err(self.corrupt(message));
        }
        Ok(data)
    }

    /// Checks the local header against the central directory. Returns the offset of the data.
    pub(super) fn check_local(&self, span: &[u8]) -> Result<usize> {
        if span.len() < LOCAL || u32_at(span, 0) != LOCAL_SIGNATURE {
            let message = "no local header at the offset that the central directory states";
            return Err(self.corrupt(message));
        }
        let (name_len, extra_len) = (usize::from(u16_at(span, 26)), usize::from(u16_at(span, 28)));
        let flags = u16_at(span, 6);
        let method = match self.method {
            ZipMethod::Stored => 0,
            ZipMethod::Deflated => 8,
            ZipMethod::Other(other) => other,
        };
        if span.get(LOCAL..LOCAL + name_len) != Some(&self.raw_name[..]) {
            return Err(self.corrupt("local header and central directory disagree on the name"));
        }
        if u16_at(span, 8) != method || (flags & 1 != 0) != self.is_encrypted {
            let message =
                "local header and central directory disagree on compression or encryption";
            return Err(self.corrupt(message));
        }
        // With this flag, a data descriptor after the data holds size and checksum.
        let has_descriptor = flags & 1 << 3 != 0;
        let values = [
            (number(span, 14, 4), u64::from(self.crc32), false),
            (number(span, 18, 4), self.compressed_size, true),
            (number(span, 22, 4), self.size, true),
        ];
        for (local, central, may_be_long) in values {
            let agrees = local == central
                || (has_descriptor && local == 0)
                || (may_be_long && local == 0xFFFF_FFFF);
            if !agrees {
                let message = "local header and central directory disagree on size or checksum";
                return Err(self.corrupt(message));
            }
        }
        Ok(LOCAL + name_len + extra_len)
    }

    fn inflate(&self, stored: &[u8]) -> Result<Bytes> {
        let no_memory = || {
            let message = format!("cannot allocate {} bytes", self.size);
            Error::new(ErrorKind::LimitExceeded, message).with_key(self.key.display_name())
        };
        let len = usize::try_from(self.size).map_err(|_| no_memory())?;
        let mut data = Vec::new();
        // One additional byte detects data beyond the stated size.
        data.try_reserve_exact(len + 1).map_err(|_| no_memory())?;
        let mut inflate = flate2::Decompress::new(false);
        let status = inflate.decompress_vec(stored, &mut data, flate2::FlushDecompress::Finish);
        match status {
            Ok(flate2::Status::StreamEnd)
                if data.len() == len && inflate.total_in() == stored.len() as u64 =>
            {
                Ok(data.into())
            }
            Ok(_) => Err(self.corrupt(format!(
                "the compressed data are not exactly one DEFLATE stream that decompresses to {len} \
                 bytes"
            ))),
            Err(error) => Err(self.corrupt("cannot decompress the data").with_source(error)),
        }
    }
}
