//! The records at the end of a zip archive, which say where its directory is.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::entry::ZipOptions;
use super::numbers::{corrupt, number, u16_at, u32_at};

/// The record at the end of an archive, without its comment.
const END: usize = 22;
const END_SIGNATURE: u32 = 0x0605_4B50;
/// What says where the record with numbers of 64 bits is; it stands right before the end.
const LOCATOR: usize = 20;
const LOCATOR_SIGNATURE: u32 = 0x0706_4B50;
const END_64: usize = 56;
const END_64_SIGNATURE: u32 = 0x0606_4B50;
/// How much of an archive's end may have to be looked at: the longest comment, and what is before.
const TAIL: u64 = (LOCATOR + END + 0xFFFF + END_64) as u64;

/// The part of an archive of this length that holds its end.
pub(super) fn tail(len: u64) -> Range<u64> {
    len.saturating_sub(TAIL)..len
}

/// What the end of an archive says of its directory.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Where the directory ends: where the records of the end start.
    directory_end: u64,
    directory_size: u64,
    /// As stored: counted from the start of the archive, before which there may be other bytes.
    pub(super) directory_offset: u64,
    pub(super) count: u64,
    /// Where the record with numbers of 64 bits may be, that has not been seen yet, and what the
    /// short record says.
    far_record: Option<Range<u64>>,
}

impl End {
    /// Looks for the end in the last bytes of an archive, which start at `start`.
    pub(super) fn find(tail: &[u8], start: u64, len: u64) -> Result<Self> {
        let signature = END_SIGNATURE.to_le_bytes();
        let fits = |&at: &usize| {
            tail[at..].starts_with(&signature)
                && at + END + usize::from(u16_at(tail, at + 20)) <= tail.len()
        };
        let last = tail.len().checked_sub(END);
        let at = last.and_then(|last| (0..=last).rev().find(fits)).ok_or_else(|| {
            let message = "there is no end of a zip archive: this is none, or it is cut";
            Error::new(ErrorKind::Truncated, message).with_offset(len)
        })?;
        let record = &tail[at..];
        let offset = start + at as u64;
        let disks = [u16_at(record, 4), u16_at(record, 6)];
        let counts = [u16_at(record, 8), u16_at(record, 10)];
        if counts[0] != counts[1] || disks.iter().any(|&disk| disk != 0 && disk != 0xFFFF) {
            let message = "a zip archive in several parts";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
        }
        let end = End {
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
                    let message = "a zip archive in several parts";
                    return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
                }
                // Right before the locator, but where it has been extended.
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
                                Ok(End { far_record: Some(stated..stated_end), ..end })
                            }
                            None => end.without_record(locator_offset),
                        }
                    }
                }
            }
            _ => Ok(end),
        }
    }

    /// What has to be read for the record with numbers of 64 bits.
    pub(super) fn far_record(&self) -> Option<Range<u64>> {
        self.far_record.clone()
    }

    /// The short end alone, where what looks like a long one is none. A name may look like it.
    fn without_record(self, offset: u64) -> Result<Self> {
        let needs_it = self.count == 0xFFFF
            || self.directory_size == 0xFFFF_FFFF
            || self.directory_offset == 0xFFFF_FFFF;
        if needs_it {
            return Err(corrupt("the long end of a zip archive is missing", offset));
        }
        Ok(End { far_record: None, ..self })
    }

    /// Takes the record with numbers of 64 bits in, which stands at `offset`.
    pub(super) fn with_record(self, record: &[u8], offset: u64) -> Result<Self> {
        if record.len() < END_64 || u32_at(record, 0) != END_64_SIGNATURE {
            return self.without_record(offset);
        }
        let end = End {
            directory_end: offset,
            directory_size: number(record, 40, 8),
            directory_offset: number(record, 48, 8),
            count: number(record, 32, 8),
            far_record: None,
        };
        if number(record, 24, 8) != end.count {
            let message = "a zip archive in several parts";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
        }
        // The short record says the same, or that it cannot.
        let agrees = |short: u64, long: u64, cannot: u64| short == long || short == cannot;
        if !agrees(self.count, end.count, 0xFFFF)
            || !agrees(self.directory_size, end.directory_size, 0xFFFF_FFFF)
            || !agrees(self.directory_offset, end.directory_offset, 0xFFFF_FFFF)
        {
            return Err(corrupt("the two ends of a zip archive contradict each other", offset));
        }
        Ok(end)
    }

    /// Where the directory is.
    pub(super) fn directory(&self, options: &ZipOptions) -> Result<Range<u64>> {
        let start = self.directory_end.checked_sub(self.directory_size);
        let start = start.filter(|&start| start >= self.directory_offset).ok_or_else(|| {
            let message = "the directory of a zip archive does not fit before its end";
            corrupt(message, self.directory_end)
        })?;
        if self.directory_size > options.max_directory_bytes {
            let message = format!(
                "the directory of a zip archive holds {} bytes, of {} allowed",
                self.directory_size, options.max_directory_bytes
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(start));
        }
        Ok(start..self.directory_end)
    }
}
