//! The fields of the first directory of a file.

use spdl_core::{Error, ErrorKind, Result};

use super::super::errors;
use super::errors::NAME;
use super::tags::Tag;

/// The first directory of a classic TIFF or BigTIFF. Directories after it are never read, so a loop
/// of directories has no effect.
pub(super) struct Directory<'a> {
    pub(super) file: &'a [u8],
    is_little: bool,
    fields: Vec<Field>,
}

struct Field {
    tag: u16,
    kind: u16,
    count: u64,
    /// The offset of the values in the file.
    start: u64,
}

/// The maximum number of fields: that of classic TIFF.
const MAX_FIELDS: u64 = u16::MAX as u64;

impl<'a> Directory<'a> {
    pub(super) fn read(file: &'a [u8]) -> Result<Directory<'a>> {
        let is_little = file.first() == Some(&b'I');
        let number = |at: u64, length: usize| {
            let bytes = slice(file, at, length as u64).ok_or_else(|| {
                let message = "truncated tiff: the file ends inside the first directory";
                Error::new(ErrorKind::Truncated, message).with_offset(file.len() as u64)
            })?;
            Ok::<u64, Error>(unsigned(bytes, is_little))
        };
        let is_big = number(2, 2)? == 43;
        // The lengths of the entry count, of an entry, and of the values inside an entry.
        let (start, count_bytes, entry_bytes, inline) = if is_big {
            if (number(4, 2)?, number(6, 2)?) != (8, 0) {
                return Err(errors::corrupt(NAME, "offsets of a BigTIFF must have 8 bytes"));
            }
            (number(8, 8)?, 8, 20, 8)
        } else {
            (number(4, 4)?, 2, 12, 4)
        };
        let count = number(start, count_bytes)?;
        if count == 0 || count > MAX_FIELDS {
            return Err(errors::corrupt(NAME, format!("directory with {count} fields")));
        }
        let mut fields = Vec::new();
        for index in 0..count {
            let at = start + count_bytes as u64 + index * entry_bytes;
            let (tag, kind) = (number(at, 2)? as u16, number(at + 2, 2)? as u16);
            let count = number(at + 4, inline)?;
            let value = at + 4 + inline as u64;
            let is_inline = count.saturating_mul(type_bytes(kind)) <= inline as u64;
            let stored = number(value, inline)?;
            fields.push(Field { tag, kind, count, start: if is_inline { value } else { stored } });
        }
        Ok(Directory { file, is_little, fields })
    }

    pub(super) fn is_little(&self) -> bool {
        self.is_little
    }

    /// The values of a tag; `None` if the tag is missing or has no values.
    pub(super) fn values(&self, tag: Tag) -> Result<Option<Values<'a>>> {
        let Some(field) = self.fields.iter().find(|field| field.tag == tag as u16) else {
            return Ok(None);
        };
        let value_bytes = type_bytes(field.kind);
        if value_bytes == 0 {
            let message = format!("tag {tag:?} has the unknown type {}", field.kind);
            return Err(errors::corrupt(NAME, message));
        }
        let length = field.count.saturating_mul(value_bytes);
        let Some(bytes) = slice(self.file, field.start, length) else {
            let message = format!("truncated tiff: the values of tag {tag:?} are missing");
            let error = Error::new(ErrorKind::Truncated, message);
            return Err(error.with_offset(self.file.len() as u64));
        };
        let values = Values { tag, kind: field.kind, bytes, is_little: self.is_little };
        Ok((field.count > 0).then_some(values))
    }

    /// The value of a tag with one value. libtiff ignores such a tag if it has more values, so they
    /// are corrupt here. Only the tag `Compression` may have one value per sample.
    pub(super) fn number(&self, tag: Tag) -> Result<Option<u64>> {
        let Some(values) = self.values(tag)? else { return Ok(None) };
        if values.len() != 1 && tag != Tag::Compression {
            let message = format!("tag {tag:?} has {} values: expected 1", values.len());
            return Err(errors::corrupt(NAME, message));
        }
        // No such tag needs more than 32 bits; libtiff ignores larger values.
        let value = values.number(0)?;
        u32::try_from(value).map(|value| Some(value.into())).map_err(|_| values.invalid(0))
    }

    /// The value of a tag that must be present.
    pub(super) fn required(&self, tag: Tag) -> Result<u64> {
        let missing = || errors::corrupt(NAME, format!("missing tag {tag:?}"));
        self.number(tag)?.ok_or_else(missing)
    }
}

/// The values of a tag.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    tag: Tag,
    kind: u16,
    pub(super) bytes: &'a [u8],
    is_little: bool,
}

impl Values<'_> {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / type_bytes(self.kind).max(1) as usize
    }

    fn value(&self, index: usize) -> Option<&[u8]> {
        self.bytes.chunks_exact(type_bytes(self.kind).max(1) as usize).nth(index)
    }

    fn invalid(&self, index: usize) -> Error {
        let Values { tag, kind, .. } = self;
        let message = format!("invalid value {index} of tag {tag:?} (type {kind})");
        errors::corrupt(NAME, message)
    }

    /// An unsigned integer. As in libtiff, the types UNDEFINED, IFD and IFD8 are no integers.
    pub(super) fn number(&self, index: usize) -> Result<u64> {
        let bytes = self.value(index).ok_or_else(|| self.invalid(index))?;
        let value = unsigned(bytes, self.is_little);
        let is_negative = value >> (8 * bytes.len() - 1) != 0;
        match self.kind {
            BYTE | SHORT | LONG | LONG8 => Ok(value),
            SBYTE | SSHORT | SLONG | SLONG8 if !is_negative => Ok(value),
            _ => Err(self.invalid(index)),
        }
    }

    /// A number that may have a fraction.
    pub(super) fn float(&self, index: usize) -> Result<f32> {
        let bytes = self.value(index).ok_or_else(|| self.invalid(index))?;
        let value = match self.kind {
            RATIONAL => {
                let (above, below) = bytes.split_at(4);
                let (above, below) =
                    (unsigned(above, self.is_little), unsigned(below, self.is_little));
                if below == 0 { f32::NAN } else { above as f32 / below as f32 }
            }
            REAL => f32::from_bits(unsigned(bytes, self.is_little) as u32),
            _ => self.number(index)? as f32,
        };
        if value.is_finite() { Ok(value) } else { Err(self.invalid(index)) }
    }

    /// The value that all of the first `count` values have. A single value counts for all.
    pub(super) fn common(&self, count: usize) -> Result<Option<u64>> {
        let first = self.number(0)?;
        if self.len() > 1 && self.len() < count {
            return Err(self.invalid(self.len()));
        }
        for index in 1..count.min(self.len()) {
            if self.number(index)? != first {
                return Ok(None);
            }
        }
        Ok(Some(first))
    }
}

/// Field types.
const BYTE: u16 = 1;
const SHORT: u16 = 3;
const LONG: u16 = 4;
const RATIONAL: u16 = 5;
const SBYTE: u16 = 6;
const UNDEFINED: u16 = 7;
const SSHORT: u16 = 8;
const SLONG: u16 = 9;
const REAL: u16 = 11;
const IFD: u16 = 13;
const LONG8: u16 = 16;
const SLONG8: u16 = 17;
const IFD8: u16 = 18;

/// The size of a value in bytes; 0 for an unknown type.
fn type_bytes(kind: u16) -> u64 {
    match kind {
        BYTE | 2 | SBYTE | UNDEFINED => 1,
        SHORT | SSHORT => 2,
        LONG | SLONG | REAL | IFD => 4,
        RATIONAL | 10 | 12 | LONG8 | SLONG8 | IFD8 => 8,
        _ => 0,
    }
}

fn slice(file: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    let end = usize::try_from(at.checked_add(length)?).ok()?;
    file.get(usize::try_from(at).ok()?..end)
}

/// An unsigned integer of up to 8 bytes.
fn unsigned(bytes: &[u8], is_little: bool) -> u64 {
    let shift = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
    match is_little {
        true => bytes.iter().rev().fold(0, shift),
        false => bytes.iter().fold(0, shift),
    }
}
