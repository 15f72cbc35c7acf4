//! One header block of a tar archive: its fields, and the numbers in them.

use spdl_core::{Error, ErrorKind, Result};

/// The size of a block in bytes; every header is one, and data are padded to a multiple of it.
pub(super) const BLOCK: usize = 512;

/// The bytes of a header block, its checksum proven.
#[derive(Clone, Copy)]
pub(super) struct Header<'a> {
    block: &'a [u8; BLOCK],
    offset: u64,
}

impl<'a> Header<'a> {
    /// Takes the block at byte `offset` of the archive for a header.
    ///
    /// # Errors
    /// `Corrupt` where the checksum says that it is none.
    pub(super) fn parse(block: &'a [u8; BLOCK], offset: u64) -> Result<Self> {
        let header = Header { block, offset };
        // A blank field is as good as 0, which a sum of signed bytes may be.
        let stored = header.number(148..156, "checksum")?.or(Some(0));
        // While the sum was taken, its own field held spaces.
        let (before, rest) = block.split_at(148);
        let after = &rest[8..];
        let spaces = 8 * i64::from(b' ');
        let unsigned = |bytes: &[u8]| i64::from(bytes.iter().map(|&b| u32::from(b)).sum::<u32>());
        if stored == Some(spaces + unsigned(before) + unsigned(after)) {
            return Ok(header);
        }
        // Some old programs took the bytes for signed.
        let signed = |bytes: &[u8]| -> i64 { bytes.iter().map(|&b| i64::from(b as i8)).sum() };
        if stored == Some(spaces + signed(before) + signed(after)) {
            return Ok(header);
        }
        Err(corrupt("this is no tar header: its checksum is wrong", offset))
    }

    /// What kind of member it is, as a letter.
    pub(super) fn type_flag(&self) -> u8 {
        self.block[156]
    }

    /// The name, without the prefix that POSIX archives put in front of it.
    pub(super) fn name(&self) -> &'a [u8] {
        text(&self.block[..100])
    }

    /// What stands before the name and a slash, in archives of POSIX: those of GNU keep other things
    /// there.
    pub(super) fn prefix(&self) -> &'a [u8] {
        match &self.block[257..263] {
            b"ustar\0" => text(&self.block[345..500]),
            _ => &[],
        }
    }

    /// What a link leads to.
    pub(super) fn link_target(&self) -> &'a [u8] {
        text(&self.block[157..257])
    }

    /// The length of the data in bytes.
    pub(super) fn size(&self) -> Result<u64> {
        let size = self.number(124..136, "size")?.unwrap_or(0);
        u64::try_from(size)
            .map_err(|_| corrupt(format!("a header says {size} bytes of data"), self.offset))
    }

    /// When the file was changed, in whole seconds since 1970; `None` where that cannot be read, as
    /// nothing depends on it.
    pub(super) fn mtime(&self) -> Option<i64> {
        self.number(136..148, "mtime").ok().flatten()
    }

    /// Whether blocks with more of a sparse file's map follow, in the old format of GNU.
    pub(super) fn has_more_sparse_map(&self) -> bool {
        self.block[482] != 0
    }

    /// The number in a field: octal digits, or base 256; `None` where the field is blank.
    fn number(&self, field: std::ops::Range<usize>, name: &str) -> Result<Option<i64>> {
        let bytes = &self.block[field];
        let bad = || {
            let field = bytes.escape_ascii();
            corrupt(format!("the field {name} of a header is no number: \"{field}\""), self.offset)
        };
        match bytes[0] {
            0x80 | 0xFF => base_256(bytes).map(Some).ok_or_else(bad),
            _ => octal(bytes).ok_or_else(bad),
        }
    }
}

/// A field of text ends with its first zero byte, or with the field.
fn text(field: &[u8]) -> &[u8] {
    until_zero(field)
}

/// The bytes before the first zero byte.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Octal digits, after spaces, up to a space, a zero byte or the end of the field. `None` where
/// there is something else; `Some(None)` where there is nothing.
fn octal(field: &[u8]) -> Option<Option<i64>> {
    let field = field.trim_ascii_start();
    if field.iter().all(|&byte| byte == 0) {
        return Some(None);
    }
    let count = field.iter().take_while(|byte| matches!(byte, b'0'..=b'7')).count();
    let (digits, rest) = field.split_at(count);
    // Of digits behind a zero byte, some programs say that they are none.
    if digits.is_empty() || !matches!(rest.first(), None | Some(b' ' | 0)) {
        return None;
    }
    // 12 digits of 3 bits each: no field holds more.
    Some(Some(digits.iter().fold(0, |value, digit| value << 3 | i64::from(digit - b'0'))))
}

/// A number in two's complement, most significant byte first, whose first byte only says that it is
/// one. `None` where it does not fit 64 bits.
fn base_256(field: &[u8]) -> Option<i64> {
    let start = if field[0] == 0xFF { -1 } else { 0 };
    // No field has more than 12 bytes.
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
    fn octal_numbers_are_read_as_all_programs_write_them() {
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
    fn base_256_holds_what_fits_64_bits() {
        assert_eq!(base_256(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(1 << 33));
        assert_eq!(base_256(b"\x80\0\0\0\0\0\x02\x01"), Some(0x201));
        assert_eq!(base_256(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX));
        assert_eq!(base_256(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None);
        assert_eq!(base_256(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None);
        assert_eq!(base_256(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Some(-1));
        assert_eq!(base_256(b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff"), None);
    }

    #[test]
    fn a_sum_of_signed_bytes_is_as_good() {
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
            assert!(Header::parse(&with_sum(spaces + sum), 0).is_ok());
            let error = Header::parse(&with_sum(spaces + sum + 1), 7).err().unwrap();
            assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(7)));
        }
    }
}
