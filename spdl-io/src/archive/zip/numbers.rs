//! Little-endian numbers and CRC-32 of zip records.

use spdl_core::{Error, ErrorKind};

/// A little-endian number of a record; 0 if out of range. Callers check the length of the record
/// first.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    number(bytes, at, 2) as u16
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    number(bytes, at, 4) as u32
}

pub(super) fn corrupt(message: impl Into<String>, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset)
}

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
