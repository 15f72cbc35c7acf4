//! The subset of the Thrift compact protocol that Parquet headers need.

use spdl_core::{Error, ErrorKind, Result};

/// The maximum nesting depth of a header.
const MAX_DEPTH: u32 = 16;

/// Type codes of the compact protocol.
const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

pub(super) struct Thrift<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Thrift<'_> {
    /// Reads a field header: returns its type, and stores its number in `id`. `None` at the end.
    pub(super) fn field(&mut self, id: &mut i64) -> Result<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        match byte >> 4 {
            // Field numbers have 16 bits; other readers truncate them as well.
            0 => *id = i64::from(self.zigzag()? as i16),
            // Saturation yields an unknown field number.
            delta => *id = id.saturating_add(i64::from(delta)),
        }
        Ok(Some(byte & 0xF))
    }

    pub(super) fn skip(&mut self, kind: u8, depth: u32) -> Result<()> {
        if depth == MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} nested values in a Parquet header");
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        match kind {
            // Booleans, whose value is the type.
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.take(8)?,
            BINARY => {
                let len = self.varint()?;
                self.take(len)?;
            }
            // A set is encoded like a list.
            LIST | 10 => {
                let (len, kind) = self.list()?;
                for _ in 0..len {
                    // In a list, a boolean takes one byte.
                    match kind {
                        1 | 2 => self.take(1)?,
                        kind => self.skip(kind, depth + 1)?,
                    }
                }
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return Err(Error::new(ErrorKind::Corrupt, "malformed Parquet header")),
        }
        Ok(())
    }

    /// The number of items of a list, and their type.
    pub(super) fn list(&mut self) -> Result<(u64, u8)> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Ok((len, head & 0xF))
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.take(1)?;
        byte.ok_or_else(truncated)
    }

    fn take(&mut self, len: u64) -> Result<()> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        self.at = end.filter(|end| *end <= self.bytes.len()).ok_or_else(truncated)?;
        Ok(())
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::new(ErrorKind::Corrupt, "varint longer than ten bytes in a Parquet header"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(super) fn size(&mut self) -> Result<u64> {
        let size = self.zigzag()?;
        u64::try_from(size).map_err(|_| {
            Error::new(ErrorKind::Corrupt, format!("negative size {size} in a Parquet header"))
        })
    }
}

fn truncated() -> Error {
    Error::new(ErrorKind::Truncated, "the data end inside a Parquet header")
}
