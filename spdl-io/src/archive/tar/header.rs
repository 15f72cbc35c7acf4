//! One header block of a tar archive.

use spdl_core::{Error, ErrorKind, Result};

/// The size of a block in bytes. A header is one block; data are padded to whole blocks.
pub(super) const BLOCK: usize = 512;

/// A header block with a valid checksum.
#[derive(Clone, Copy)]
pub(super) struct TarHeader<'a> {
    block: &'a [u8; BLOCK],
    offset: u64,
}

impl<'a> TarHeader<'a> {
    /// Parses the block at `offset` of the archive.
    ///
    /// # Errors
    /// `Corrupt` if the checksum does not match.
    pub(super) fn parse(block: &'a [u8; BLOCK], offset: u64) -> Result<Self> {
        let header = TarHeader { block, offset };
        // A blank field means 0, which is a possible sum of signed bytes.
        let stored = header.number(148..156, "checksum")?.or(Some(0));
        // The checksum field itself is summed as spaces.
        let (before, rest) = block.split_at(148);
        let after = &rest[8..];
        let spaces = 8 * i64::from(b' ');
        let unsigned = |bytes: &[u8]| i64::from(bytes.iter().map(|&b| u32::from(b)).sum::<u32>());
        if stored == Some(spaces + unsigned(before) + unsigned(after)) {
            return Ok(header);
        }
        // Some old programs sum signed bytes.
        let signed = |bytes: &[u8]| -> i64 { bytes.iter().map(|&b| i64::from(b as i8)).sum() };
        if stored == Some(spaces + signed(before) + signed(after)) {
            return Ok(header);
        }
        Err(corrupt("invalid tar header: checksum mismatch", offset))
    }

    /// The type flag of the member.
    pub(super) fn type_flag(&self) -> u8 {
        self.block[156]
    }

    /// The name field, without the prefix of POSIX archives.
    pub(super) fn name(&self) -> &'a [u8] {
        text(&self.block[..100])
    }

    /// The prefix field of POSIX archives. GNU archives use these bytes for other data.
    pub(super) fn prefix(&self) -> &'a [u8] {
        match &self.block[257..263] {
            b"ustar\0" => text(&self.block[345..500]),
            _ => &[],
        }
    }

    /// The target of a link.
    pub(super) fn link_target(&self) -> &'a [u8] {
        text(&self.block[157..257])
    }

    /// The size of the data, in bytes.
    pub(super) fn size(&self) -> Result<u64> {
        let size = self.number(124..136, "size")?.unwrap_or(0);
        u64::try_from(size)
            .map_err(|_| corrupt(format!("negative size {size} in a tar header"), self.offset))
    }

    /// The modification time, in seconds since 1970; `None` if the field is invalid.
    pub(super) fn mtime(&self) -> Option<i64> {
        self.number(136..148, "mtime").ok().flatten()
    }

    /// Whether further blocks with the map of a sparse file follow, in the old GNU format.
    pub(super) fn has_more_sparse_map(&self) -> bool {
        self.block[482] != 0
    }

    /// The number in a field: octal digits or base 256; `None` if the field is blank.
    fn number(&self, field: std::ops::Range<usize>, name: &str) -> Result<Option<i64>> {
        let bytes = &self.block[field];
        let bad = || {
            let field = bytes.escape_ascii();
            let message =
                format!("invalid number in the {name} field of a tar header: \"{field}\"");
            corrupt(message, self.offset)
        };
        match bytes[0] {
            0x80 | 0xFF => base_256(bytes).map(Some).ok_or_else(bad),
            _ => octal(bytes).ok_or_else(bad),
        }
    }
}

/// A text field, which ends at the first zero byte or at the end of the field.
fn text(field: &[u8]) -> &[u8] {
    until_zero(field)
}

/// The bytes before the first zero byte.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Octal digits, after spaces, up to a space, a zero byte or the end of the field. `None` for invalid
/// characters; `Some(None)` for a blank field.
fn octal(field: &[u8]) -> Option<Option<i64>> {
    let field = field.trim_ascii_start();
    if field.iter().all(|&byte| byte == 0) {
        return Some(None);
    }
    let count = field.iter().take_while(|byte| matches!(byte, b'0'..=b'7')).count();
    let (digits, rest) = field.split_at(count);
    // Programs disagree on digits after a zero byte.
    if digits.is_empty() || !matches!(rest.first(), None | Some(b' ' | 0)) {
        return None;
    }
    // No overflow: a field has at most 12 digits of 3 bits.
    Some(Some(digits.iter().fold(0, |value, digit| value << 3 | i64::from(digit - b'0'))))
}

/// A big-endian number in two's complement after a marker byte; `None` if it does not fit in 64 bits.
fn base_256(field: &[u8]) -> Option<i64> {
    let start = if field[0] == 0xFF { -1 } else { 0 };
    // No overflow: a field has at most 12 bytes.
    let value: i128 = field[1..].iter().fold(start, |value, &byte| value << 8 | i128::from(byte));
    i64::try_from(value).ok()
}

pub(super) fn corrupt(message: impl Into<String>, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_numbers_of_all_common_programs_are_read() {
        assert_eq!(octal(b"00000001234\0"), Some(Some(0o1234)));
        assert_eq!(octal(b"      1234 \0"), Some(Some(0o1234)));
        assert_eq!(octal(b"777777777777"), Some(Some((1 << 36) - 1)));
        assert_eq!(octal(b"\0\0\0\0\0\0\0\0\0\0\0\0"), Some(None));
        assert_eq!(octal(b"            "), Some(None));
        assert_eq!(octal(b"\0\0\0\x000016\0\0\0"), None);
        assert_eq!(octal(b"0000000123x\0"), None);
        assert_eq!(octal(b"00000000008\0"), None);
        assert_eq!(octal(b"-0000000001\0"), None);
    }

    #[test]
    fn base_256_is_limited_to_64_bits() {
        assert_eq!(base_256(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(1 << 33));
        assert_eq!(base_256(b"\x80\0\0\0\0\0\x02\x01"), Some(0x201));
        assert_eq!(base_256(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX));
        assert_eq!(base_256(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None);
        assert_eq!(base_256(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None);
        assert_eq!(base_256(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Some(-1));
        assert_eq!(base_256(b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff"), None);
    }

    #[test]
    fn checksums_of_signed_bytes_are_accepted() {
        let mut block = [0; BLOCK];
        block[..4].copy_from_slice("größe".as_bytes()[..4].try_into().unwrap());
        let with_sum = |sum: i64| {
            let mut block = block;
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            block
        };
        let spaces = 8 * 32;
        let signed: i64 = block.iter().map(|&byte| i64::from(byte as i8)).sum();
        let unsigned: i64 = block.iter().map(|&byte| i64::from(byte)).sum();
        assert_ne!(signed, unsigned);
        for sum in [signed, unsigned] {
            assert!(TarHeader::parse(&with_sum(spaces + sum), 0).is_ok());
            let error = TarHeader::parse(&with_sum(spaces + sum + 1), 7).err().unwrap();
            assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(7)));
        }
    }
}
