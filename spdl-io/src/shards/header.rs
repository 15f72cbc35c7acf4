//! Tar headers of a member: ustar (POSIX.1-1988), and pax (POSIX.1-2001) for long names.

use spdl_core::{Error, ErrorKind, Result};

pub(super) const BLOCK: usize = 512;
/// Size of the end-of-archive marker: two zero blocks.
pub(super) const END: usize = 2 * BLOCK;
/// Largest size of a member that this module writes: the size field of ustar holds 11 octal digits.
/// Larger members would need the pax keyword `size`.
const MAX_SIZE: u64 = (1 << 33) - 1;
const NAME_BYTES: usize = 100;
const PREFIX_BYTES: usize = 155;

/// Builds the headers of a file of `size` bytes. The headers depend only on name and size.
///
/// # Errors
/// `LimitExceeded` if the size is 8 GiB or more.
pub(super) fn headers(name: &[u8], size: u64) -> Result<Vec<u8>> {
    if size > MAX_SIZE {
        let message = format!("the field has {size} bytes; the limit per field is {MAX_SIZE}");
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    if let Some((prefix, rest)) = split(name) {
        return Ok(block(prefix, rest, size, b'0').to_vec());
    }
    let records = records(name);
    let mut headers = block(b"", b"././@PaxHeader", records.len() as u64, b'x').to_vec();
    headers.extend_from_slice(&records);
    headers.resize(padded(headers.len()), 0);
    // Programs without pax support see the truncated name.
    headers.extend_from_slice(&block(b"", &name[..NAME_BYTES], size, b'0'));
    Ok(headers)
}

/// Rounds a length up to whole blocks.
pub(super) fn padded(len: usize) -> usize {
    len.next_multiple_of(BLOCK)
}

/// Splits a name into the prefix and name fields of ustar. Returns `None` if it does not fit.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= NAME_BYTES {
        return Some((b"", name));
    }
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let mut splits = slashes.map(|(at, _)| (&name[..at], &name[at + 1..]));
    splits.find(|(prefix, rest)| {
        (1..=PREFIX_BYTES).contains(&prefix.len()) && (1..=NAME_BYTES).contains(&rest.len())
    })
}

/// Builds the pax records that hold the name.
fn records(name: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    if std::str::from_utf8(name).is_err() {
        // The default character set of pax is UTF-8.
        append_record(&mut records, b"hdrcharset", b"BINARY");
    }
    append_record(&mut records, b"path", name);
    records
}

/// Appends `length keyword=value`, where the length includes its own digits.
fn append_record(records: &mut Vec<u8>, keyword: &[u8], value: &[u8]) {
    let rest = keyword.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(len.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(keyword);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn block(prefix: &[u8], name: &[u8], size: u64, kind: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // The checksum is computed with spaces in its own field.
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    put(345, prefix);
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::TarSlice;

    #[test]
    fn names_of_any_length_are_preserved() {
        let folder = "f".repeat(60);
        for (name, blocks) in [
            ("a.jpg".to_owned(), 1),
            ("x".repeat(100), 1),
            ("x".repeat(101), 3),
            (format!("{folder}/{}", "x".repeat(100)), 1),
            (format!("{folder}/{}", "x".repeat(101)), 3),
            (format!("{folder}/{folder}/{folder}/{folder}/{folder}.jpg"), 3),
            ("ö".repeat(400), 4),
        ] {
            let mut archive = headers(name.as_bytes(), 0).unwrap();
            assert_eq!(archive.len(), blocks * BLOCK, "{name}");
            archive.resize(archive.len() + END, 0);
            let entries: Vec<_> = TarSlice::new(archive).collect::<Result<_>>().unwrap();
            assert_eq!(entries.len(), 1);
            assert_eq!(entries[0].key.as_bytes(), name.as_bytes());
        }
    }

    #[test]
    fn pax_record_lengths_include_their_own_digits() {
        for len in [0, 1, 86, 87, 88, 89, 90, 985, 986, 987, 988, 989, 990, 991] {
            let mut record = Vec::new();
            append_record(&mut record, b"path", &vec![b'x'; len]);
            let stated = record.split(|&byte| byte == b' ').next().unwrap();
            assert_eq!(std::str::from_utf8(stated).unwrap(), record.len().to_string());
        }
    }

    #[test]
    fn files_of_8_gib_are_rejected() {
        assert!(headers(b"a", MAX_SIZE).is_ok());
        let error = headers(b"a", MAX_SIZE + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}
