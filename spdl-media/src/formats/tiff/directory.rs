//! The first directory of a file, and the changes that make the crate `tiff` accept it.

use std::io::{self, Read, Seek, SeekFrom};

use tiff::decoder::Decoder;
use tiff::tags::Tag;

use super::tags::{BLACK_IS_ZERO, LONG, PALETTE, YCBCR};

pub(super) type Reader<'a> = Decoder<PatchedFile<'a>>;

/// The compression of the strips or tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    /// Decompressed by the crate `tiff`.
    Other,
    /// CCITT. The crate supports only a part of it.
    Ccitt(Ccitt),
    /// JPEG. The crate decodes it without a size limit, and invents missing data.
    Jpeg { is_old: bool },
}

/// CCITT compressions, with their TIFF numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ccitt {
    ModifiedHuffman = 2,
    Group3 = 3,
    Group4 = 4,
}

/// A file with some bytes replaced, followed by zeros.
pub(super) struct PatchedFile<'a> {
    pub(super) file: &'a [u8],
    /// Offset, replacement, and its length in bytes.
    pub(super) patches: [Option<(usize, [u8; 4], usize)>; 2],
    pub(super) zeros: usize,
    pub(super) at: u64,
}

impl Read for PatchedFile<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let end = self.file.len() + self.zeros;
        let start = usize::try_from(self.at).unwrap_or(usize::MAX).min(end);
        let count = target.len().min(end - start);
        let stored = &self.file[start.min(self.file.len())..];
        let stored = &stored[..stored.len().min(count)];
        let (from_file, zeros) = target[..count].split_at_mut(stored.len());
        from_file.copy_from_slice(stored);
        zeros.fill(0);
        for &(place, bytes, length) in self.patches.iter().flatten() {
            for (offset, &byte) in bytes[..length].iter().enumerate() {
                let at = (place + offset).checked_sub(start);
                if let Some(target) = at.and_then(|at| from_file.get_mut(at)) {
                    *target = byte;
                }
            }
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for PatchedFile<'_> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        let moved = match position {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => ((self.file.len() + self.zeros) as u64).checked_add_signed(by),
        };
        self.at = moved.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Values of the first directory. They are read before the crate `tiff` parses the file, because
/// the crate rejects some valid files.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) is_little: bool,
    pub(super) photometric: Option<u64>,
    /// The offset of the 2-byte value of the tag.
    pub(super) photometric_at: usize,
    pub(super) compression: Option<u64>,
    /// If the page has only one strip: the offset of its 4-byte length, and its maximum length in
    /// bytes.
    pub(super) strip: Option<(usize, u64)>,
    /// Whether the file ends with the directory, so that the offset of the next directory is
    /// missing.
    pub(super) is_last: bool,
}

impl Directory {
    pub(super) fn read(encoded: &[u8]) -> Option<Directory> {
        let little = encoded.first() == Some(&b'I');
        let number = |at: usize, bytes: usize| {
            let field = encoded.get(at..at.checked_add(bytes)?)?;
            let shift = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
            Some(match little {
                true => field.iter().rev().fold(0, shift),
                false => field.iter().fold(0, shift),
            })
        };
        let big = number(2, 2)? == 43;
        let (directory, count_bytes, entry_bytes) =
            if big { (number(8, 8)?, 8, 20) } else { (number(4, 4)?, 2, 12) };
        let directory = usize::try_from(directory).ok()?;
        let mut found = Directory { is_little: little, ..Directory::default() };
        let (mut start, mut length) = (None, None);
        let entries = number(directory, count_bytes)?;
        // If the entry count is too large, the loop ends at the end of the file.
        for entry in 0..entries {
            let offset = usize::try_from(entry).ok()?.checked_mul(entry_bytes)?;
            let at = directory.checked_add(count_bytes)?.checked_add(offset)?;
            let value = at.checked_add(if big { 12 } else { 8 })?;
            let Some(tag) = number(at, 2) else { return Some(found) };
            let is = |name: Tag| tag == u64::from(name.to_u16());
            let is_one = !big && number(at + 4, 4) == Some(1);
            if is(Tag::PhotometricInterpretation) {
                (found.photometric, found.photometric_at) = (number(value, 2), value);
            } else if is(Tag::Compression) {
                found.compression = number(value, 2);
            } else if is_one && is(Tag::StripOffsets) && number(at + 2, 2) == Some(LONG) {
                start = number(value, 4);
            } else if is_one && is(Tag::StripByteCounts) && number(at + 2, 2) == Some(LONG) {
                length = number(value, 4).map(|length| (value, length));
            }
        }
        if let (Some(start), Some((at, length))) = (start, length) {
            let most = (encoded.len() as u64).saturating_sub(start);
            found.strip = (length > most).then_some((at, most));
        }
        let end = (entries as usize).checked_mul(entry_bytes)?.checked_add(directory + count_bytes);
        found.is_last = end == Some(encoded.len());
        Some(found)
    }

    pub(super) fn compression(&self) -> Compression {
        match (self.compression, self.photometric) {
            (Some(2), _) => Compression::Ccitt(Ccitt::ModifiedHuffman),
            (Some(3), _) => Compression::Ccitt(Ccitt::Group3),
            (Some(4), _) => Compression::Ccitt(Ccitt::Group4),
            (Some(6), Some(YCBCR)) => Compression::Jpeg { is_old: true },
            (Some(7), _) => Compression::Jpeg { is_old: false },
            _ => Compression::Other,
        }
    }

    /// The file, changed so that the crate accepts it. Palette indices, which the crate does not
    /// support, are declared grey and converted here. The length of the only strip is reduced to
    /// the file size.
    pub(super) fn readable<'a>(&self, file: &'a [u8]) -> PatchedFile<'a> {
        let patch = |at: usize, value: u64, length: usize| {
            let [a, b, c, d, ..] = value.to_le_bytes();
            let mut bytes = [a, b, c, d];
            if !self.is_little {
                bytes[..length].reverse();
            }
            Some((at, bytes, length))
        };
        let grey = match self.photometric {
            Some(PALETTE) => patch(self.photometric_at, BLACK_IS_ZERO, 2),
            _ => None,
        };
        let strip = self.strip.and_then(|(at, most)| patch(at, most, 4));
        let zeros = if self.is_last { 8 } else { 0 };
        PatchedFile { file, patches: [grey, strip], zeros, at: 0 }
    }
}
