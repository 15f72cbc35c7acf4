//! The end-of-central-directory records of a zip archive.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::entry::ZipOptions;
use super::numbers::{corrupt, number, u16_at, u32_at};

/// The size of the end-of-central-directory record without its comment, in bytes.
const END: usize = 22;
const END_SIGNATURE: u32 = 0x0605_4B50;
/// The size of the Zip64 end-of-central-directory locator, directly before the end record, in bytes.
const LOCATOR: usize = 20;
const LOCATOR_SIGNATURE: u32 = 0x0706_4B50;
const END_64: usize = 56;
const END_64_SIGNATURE: u32 = 0x0606_4B50;
/// The maximum size of the end records and the comment, in bytes.
const TAIL: u64 = (LOCATOR + END + 0xFFFF + END_64) as u64;

/// The byte range of an archive of `len` bytes that holds the end records.
pub(super) fn tail(len: u64) -> Range<u64> {
    len.saturating_sub(TAIL)..len
}

/// The location of the central directory, from the end-of-central-directory records.
#[derive(Clone, Debug)]
pub(super) struct EndRecord {
    /// The end of the central directory, which is the start of the end records.
    directory_end: u64,
    directory_size: u64,
    /// As stored: relative to the start of the archive. Other data may precede the archive in the file.
    pub(super) directory_offset: u64,
    pub(super) count: u64,
    /// The byte range of the Zip64 record, if it still must be read.
    far_record: Option<Range<u64>>,
}

impl EndRecord {
    /// Finds the record in the last bytes of an archive, which start at `start`.
    pub(super) fn find(tail: &[u8], start: u64, len: u64) -> Result<Self> {
        let signature = END_SIGNATURE.to_le_bytes();
        let fits = |&at: &usize| {
            tail[at..].starts_with(&signature)
                && at + END + usize::from(u16_at(tail, at + 20)) <= tail.len()
        };
        let last = tail.len().checked_sub(END);
        let at = last.and_then(|last| (0..=last).rev().find(fits)).ok_or_else(|| {
            let message = "end-of-central-directory record not found: not a zip file, or truncated";
            Error::new(ErrorKind::Truncated, message).with_offset(len)
        })?;
        let record = &tail[at..];
        let offset = start + at as u64;
        let disks = [u16_at(record, 4), u16_at(record, 6)];
        let counts = [u16_at(record, 8), u16_at(record, 10)];
        if counts[0] != counts[1] || disks.iter().any(|&disk| disk != 0 && disk != 0xFFFF) {
            let message = "multi-part zip archives are not supported";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
        }
        let end = EndRecord {
            directory_end: offset,
            directory_size: number(record, 12, 4),
            directory_offset: number(record, 16, 4),
            count: u64::from(counts[1]),
            far_record: None,
        };
        let locator = at.checked_sub(LOCATOR).map(|at| &tail[at..at + LOCATOR]);
        match locator {
            Some(locator) if u32_at(locator, 0) == LOCATOR_SIGNATURE => {
                let locator_offset = offset - LOCATOR as u64;
                if u32_at(locator, 16) > 1 {
                    let message = "multi-part zip archives are not supported";
                    return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
                }
                // The record precedes the locator directly, unless it has an extensible data sector.
                let near = (at - LOCATOR).checked_sub(END_64).map(|at| &tail[at..at + END_64]);
                match near {
                    Some(near) if u32_at(near, 0) == END_64_SIGNATURE => {
                        end.with_record(near, locator_offset - END_64 as u64)
                    }
                    _ => {
                        let stated = number(locator, 8, 8);
                        let stated_end = stated.checked_add(END_64 as u64);
                        match stated_end.filter(|&end| end <= locator_offset) {
                            Some(stated_end) => {
                                Ok(EndRecord { far_record: Some(stated..stated_end), ..end })
                            }
                            None => end.without_record(locator_offset),
                        }
                    }
                }
            }
            _ => Ok(end),
        }
    }

    /// The byte range to read for the Zip64 record.
    pub(super) fn far_record(&self) -> Option<Range<u64>> {
        self.far_record.clone()
    }

    /// Uses only the plain record, if there is no Zip64 record at the stated offset. The bytes of a file name
    /// may look like a Zip64 locator.
    fn without_record(self, offset: u64) -> Result<Self> {
        let needs_it = self.count == 0xFFFF
            || self.directory_size == 0xFFFF_FFFF
            || self.directory_offset == 0xFFFF_FFFF;
        if needs_it {
            let message = "Zip64 end-of-central-directory record not found";
            return Err(corrupt(message, offset));
        }
        Ok(EndRecord { far_record: None, ..self })
    }

    /// Applies the Zip64 record at `offset`.
    pub(super) fn with_record(self, record: &[u8], offset: u64) -> Result<Self> {
        if record.len() < END_64 || u32_at(record, 0) != END_64_SIGNATURE {
            return self.without_record(offset);
        }
        let end = EndRecord {
            directory_end: offset,
            directory_size: number(record, 40, 8),
            directory_offset: number(record, 48, 8),
            count: number(record, 32, 8),
            far_record: None,
        };
        if number(record, 24, 8) != end.count {
            let message = "multi-part zip archives are not supported";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
        }
        // The plain record must hold the same values, or the marker for a Zip64 value.
        let agrees = |plain: u64, zip64: u64, marker: u64| plain == zip64 || plain == marker;
        if !agrees(self.count, end.count, 0xFFFF)
            || !agrees(self.directory_size, end.directory_size, 0xFFFF_FFFF)
            || !agrees(self.directory_offset, end.directory_offset, 0xFFFF_FFFF)
        {
            let message = "the Zip64 and non-Zip64 end-of-central-directory records disagree";
            return Err(corrupt(message, offset));
        }
        Ok(end)
    }

    /// The byte range of the central directory.
    pub(super) fn directory(&self, options: &ZipOptions) -> Result<Range<u64>> {
        let start = self.directory_end.checked_sub(self.directory_size);
        let start = start.filter(|&start| start >= self.directory_offset).ok_or_else(|| {
            let message = "invalid size or offset of the zip central directory";
            corrupt(message, self.directory_end)
        })?;
        if self.directory_size > options.max_directory_bytes {
            let message = format!(
                "zip central directory of {} bytes exceeds the limit of {} bytes",
                self.directory_size, options.max_directory_bytes
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(start));
        }
        Ok(start..self.directory_end)
    }
}
