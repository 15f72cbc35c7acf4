//! The framing of records in a TFRecord file.
//!
//! A record consists of the length (8 bytes, little-endian), the masked CRC-32C of the length, the data,
//! and the masked CRC-32C of the data.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::datasets::common::u32_at;
use crate::datasets::sharded::walk_records;
use crate::fetch::{Fetcher, Key};

/// The size of length and checksum before the data, in bytes.
pub(super) const HEADER: u64 = 12;
/// The size of a record without its data, in bytes.
pub(super) const FRAME: u64 = HEADER + 4;

/// The end of each record in an object of `size` bytes, by one pass over the headers.
pub(super) async fn walk(fetcher: &Arc<dyn Fetcher>, key: &Key, size: u64) -> Result<Vec<u64>> {
    let mut is_first = true;
    let header = |header: &[u8; HEADER as usize]| {
        let len = check_header(header).map_err(|error| {
            // A compressed file starts with a magic number instead of a record.
            let compressed = is_first && compression(header).is_some();
            if compressed { compressed_file(header) } else { error }
        })?;
        is_first = false;
        Ok((FRAME.saturating_add(len), true))
    };
    walk_records(fetcher, key, size, header).await
}

/// The length of the data, from a record header.
pub(super) fn check_header(header: &[u8; HEADER as usize]) -> Result<u64> {
    let (len, _) = header.split_at(8);
    if !matches_crc(len, u32_at(header, 8)) {
        let message = "CRC-32C mismatch of a record length";
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(len.iter().rev().fold(0, |len, &byte| len << 8 | u64::from(byte)))
}

/// The data of a complete record. Offsets of errors are relative to the record.
pub(super) fn check_record(record: &Bytes, verify: bool) -> Result<Bytes> {
    let header = record.first_chunk().ok_or_else(|| {
        Error::new(ErrorKind::Truncated, "the record ends inside its header").with_offset(0)
    })?;
    let len = check_header(header).map_err(|error| error.with_offset(0))?;
    let end = record.len().saturating_sub(4);
    if Some(len) != (record.len() as u64).checked_sub(FRAME) {
        let found = (record.len() as u64).saturating_sub(FRAME);
        let message = format!("record has {found} bytes of data, but its length field is {len}");
        return Err(Error::new(ErrorKind::Corrupt, message).with_offset(0));
    }
    let data = record.slice(HEADER as usize..end);
    if verify && !matches_crc(&data, u32_at(record, end)) {
        let message = "CRC-32C mismatch of record data";
        return Err(Error::new(ErrorKind::Corrupt, message).with_offset(HEADER));
    }
    Ok(data)
}

/// Whether data match a masked CRC-32C. Always true for fuzzing, because a fuzzer cannot guess checksums.
fn matches_crc(data: &[u8], checksum: Option<u32>) -> bool {
    cfg!(fuzzing) || checksum == Some(masked_crc32c(data))
}

/// The masked CRC-32C of TFRecord: the checksum rotated by 15 bits, plus a constant.
pub(super) fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The compression format of a file, by its first bytes.
fn compression(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1F, 0x8B, ..] => Some("gzip"),
        // DEFLATE with a window of 32 KiB, for each level of zlib.
        [0x78, 0x01 | 0x5E | 0x9C | 0xDA, ..] => Some("zlib"),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => Some("Zstandard"),
        _ => None,
    }
}

fn compressed_file(start: &[u8]) -> Error {
    let name = compression(start).unwrap_or("an unknown format");
    let message = format!(
        "the file is compressed with {name}, which prevents random access; decompress the file"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// The end of each record, from an index of `tfrecord2idx`: one line per record, with offset and size in
/// bytes. `None` if the index does not match a file of `size` bytes.
pub(super) fn parse_index(text: &[u8], size: u64) -> Option<Vec<u64>> {
    let mut ends = Vec::new();
    let mut at = 0_u64;
    for line in std::str::from_utf8(text).ok()?.lines() {
        let (offset, len) = line.trim_end().split_once(' ')?;
        let (offset, len): (u64, u64) = (offset.parse().ok()?, len.trim().parse().ok()?);
        if offset != at || len < FRAME {
            return None;
        }
        at = at.checked_add(len)?;
        ends.push(at);
    }
    ends.shrink_to_fit();
    (at == size).then_some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_checksums_match_tensorflow() {
        // The check value of CRC-32C, masked.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(masked_crc32c(b"123456789"), 0xC78A_B0E5);
    }
}
