//! Where the records of a TFRecord file lie.
//!
//! A record is its length (8 bytes, little-endian), the masked CRC-32C of those 8 bytes, the data, and
//! their masked CRC-32C; records follow each other without anything between.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::datasets::common::u32_at;
use crate::datasets::crc32c::masked_crc32c;
use crate::fetch::{Fetcher, Key};

/// The bytes of a record before its data: length and checksum.
pub(super) const HEADER: u64 = 12;
/// All bytes of a record but its data.
pub(super) const FRAME: u64 = HEADER + 4;

/// How much is read at once where records are small, in bytes, and where they are large, so that only
/// the next header is wanted.
const WINDOW: u64 = 256 << 10;
const SMALL_WINDOW: u64 = 4 << 10;

/// The end of each record in an object of `size` bytes, by one walk over the headers.
pub(super) async fn walk(fetcher: &Arc<dyn Fetcher>, key: &Key, size: u64) -> Result<Vec<u64>> {
    let mut ends = Vec::new();
    let mut at = 0;
    let mut record_len = 0;
    let (mut window, mut start) = (Bytes::new(), 0);
    while at < size {
        if size - at < FRAME {
            let message = format!("the file ends {} bytes into a record's header", size - at);
            return Err(located(Error::new(ErrorKind::Truncated, message), key, at));
        }
        let header = at.checked_sub(start).and_then(|skip| window_part(&window, skip));
        let Some(header) = header else {
            let len = if record_len > WINDOW { SMALL_WINDOW } else { WINDOW };
            window = fetcher.read(key, Some(at..size.min(at + len))).await?;
            start = at;
            continue;
        };
        let len = check_header(&header).map_err(|error| {
            // What is compressed as a whole starts with other bytes.
            let compressed = at == 0 && compression(&header).is_some();
            let error = if compressed { whole_file_compressed(&header) } else { error };
            located(error, key, at)
        })?;
        let room = size - at - FRAME;
        if len > room {
            let message = format!("a record of {len} bytes, of which the file holds {room}");
            return Err(located(Error::new(ErrorKind::Truncated, message), key, at));
        }
        at += FRAME + len;
        record_len = len;
        ends.push(at);
    }
    ends.shrink_to_fit();
    Ok(ends)
}

fn window_part(window: &[u8], skip: u64) -> Option<[u8; HEADER as usize]> {
    let skip = usize::try_from(skip).ok()?;
    window.get(skip..)?.first_chunk().copied()
}

fn located(error: Error, key: &Key, at: u64) -> Error {
    error.with_key(key.display_name()).with_offset(at)
}

/// The length of a record's data.
pub(super) fn check_header(header: &[u8; HEADER as usize]) -> Result<u64> {
    let (len, _) = header.split_at(8);
    if !agrees(len, u32_at(header, 8)) {
        let message = "the length of a record does not agree with its checksum";
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(len.iter().rev().fold(0, |len, &byte| len << 8 | u64::from(byte)))
}

/// The data of a record, from all its bytes. Offsets of errors are within these.
pub(super) fn check_record(record: &Bytes, verify: bool) -> Result<Bytes> {
    let header = record.first_chunk().ok_or_else(|| {
        Error::new(ErrorKind::Truncated, "the record's header is cut").with_offset(0)
    })?;
    let len = check_header(header).map_err(|error| error.with_offset(0))?;
    let end = record.len().saturating_sub(4);
    if Some(len) != (record.len() as u64).checked_sub(FRAME) {
        let message = format!("a record of {len} bytes, where {} were expected", record.len());
        return Err(Error::new(ErrorKind::Corrupt, message).with_offset(0));
    }
    let data = record.slice(HEADER as usize..end);
    if verify && !agrees(&data, u32_at(record, end)) {
        let message = "the data of a record do not agree with their checksum";
        return Err(Error::new(ErrorKind::Corrupt, message).with_offset(HEADER));
    }
    Ok(data)
}

/// Whether data are those of a checksum. A fuzzer cannot guess one, so for it they always are.
fn agrees(data: &[u8], checksum: Option<u32>) -> bool {
    cfg!(fuzzing) || checksum == Some(masked_crc32c(data))
}

/// By which name a file is known that is compressed as a whole.
fn compression(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1F, 0x8B, ..] => Some("gzip"),
        // Deflate with a window of 32 KiB, by all levels of zlib.
        [0x78, 0x01 | 0x5E | 0x9C | 0xDA, ..] => Some("zlib"),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => Some("Zstandard"),
        _ => None,
    }
}

fn whole_file_compressed(start: &[u8]) -> Error {
    let name = compression(start).unwrap_or("something");
    let message = format!(
        "compressed by {name} as a whole, so that single records cannot be read: decompress the file"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// The end of each record by an index as `tfrecord2idx` writes it: a line for each record, with its
/// offset and its size, both in bytes. `None` where it is not of a file of `size` bytes.
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
