//! The binary form of lists and dictionaries in LitData: a tag before each value.

use bytes::Bytes;
use serde_json::Value;
use spdl_core::{Error, ErrorKind, Result};

use crate::datasets::common::u32_at;
use crate::records::{Encoding, FieldValue};

const TAG_INTEGERS: u8 = 2;
const TAG_FLOATS: u8 = 3;

/// The maximum nesting of dictionaries.
const MAX_DEPTH: usize = 64;

/// A list or dictionary of LitData, as JSON or in the binary form.
pub(super) fn tagged(bytes: &Bytes) -> Result<FieldValue> {
    let mut reader = TaggedReader { bytes, at: 1 };
    let value = match bytes.first() {
        Some(&TAG_INTEGERS) => FieldValue::Integers(reader.words(|word| word as i64)?),
        Some(&TAG_FLOATS) => FieldValue::Floats(reader.words(f64::from_bits)?),
        Some(0..=0x20) => {
            reader.at = 0;
            FieldValue::Json(reader.value(0)?)
        }
        _ => return Encoding::Json.decode(bytes.clone()),
    };
    if reader.at != bytes.len() {
        let message = format!("{} unexpected bytes after the value", bytes.len() - reader.at);
        return Err(reader.wrong(message));
    }
    Ok(value)
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

struct TaggedReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> TaggedReader<'a> {
    fn wrong(&self, message: String) -> Error {
        Error::new(ErrorKind::Corrupt, message).with_offset(self.at as u64)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return Err(self.wrong("the value is truncated".into())) };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn count(&mut self) -> Result<usize> {
        Ok(u32_at(self.take(4)?, 0).unwrap_or_default() as usize)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(word_of(self.take(8)?))
    }

    fn words<T>(&mut self, number: impl Fn(u64) -> T) -> Result<Vec<T>> {
        let count = self.count()?;
        let words = self.take(count.saturating_mul(8))?.chunks_exact(8);
        Ok(words.map(|word| number(word_of(word))).collect())
    }

    fn text(&mut self) -> Result<String> {
        let len = self.count()?;
        let text = self.take(len)?;
        String::from_utf8(text.to_vec()).map_err(|_| self.wrong("invalid UTF-8".into()))
    }

    /// Calls `read` for each element. Every element takes at least one byte, so memory is bounded.
    fn list(&mut self, mut read: impl FnMut(&mut Self) -> Result<Value>) -> Result<Value> {
        let count = self.count()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list.into())
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        let tag = self.take(1)?[0];
        Ok(match tag {
            0 => {
                let len = self.count()?;
                let (start, text) = (self.at, self.take(len)?);
                serde_json::from_slice(text).map_err(|error| {
                    let wrong = Error::new(ErrorKind::Corrupt, "invalid JSON");
                    wrong.with_source(error).with_offset(start as u64)
                })?
            }
            1 => self.list(|it| Ok(it.text()?.into()))?,
            TAG_INTEGERS => self.words(|word| word as i64)?.into(),
            TAG_FLOATS => self.words(f64::from_bits)?.into(),
            4 => self.list(|it| Ok((it.take(1)?[0] != 0).into()))?,
            5 if depth < MAX_DEPTH => {
                let mut members = serde_json::Map::new();
                for _ in 0..self.count()? {
                    let name = self.text()?;
                    members.insert(name, self.value(depth + 1)?);
                }
                members.into()
            }
            6 => {
                let rows = self.count()?;
                let mut names = Vec::new();
                for _ in 0..self.count()? {
                    names.push(self.text()?);
                }
                if names.is_empty() && rows > 0 {
                    return Err(self.wrong("records without fields".into()));
                }
                let mut list = Vec::new();
                for _ in 0..rows {
                    let mut members = serde_json::Map::new();
                    for name in &names {
                        let tag = self.take(1)?[0];
                        members.insert(
                            name.clone(),
                            self.scalar(tag.wrapping_sub(0x10), [0, 1, 2, 3, 4])?,
                        );
                    }
                    list.push(Value::from(members));
                }
                list.into()
            }
            tag => self.scalar(tag, [11, 7, 8, 9, 10])?,
        })
    }

    /// A value whose tag is one of the tags of null, text, integer, floating-point number and boolean.
    fn scalar(&mut self, tag: u8, tags: [u8; 5]) -> Result<Value> {
        Ok(match tags.iter().position(|it| *it == tag) {
            Some(0) => Value::Null,
            Some(1) => self.text()?.into(),
            Some(2) => (self.word()? as i64).into(),
            Some(3) => f64::from_bits(self.word()?).into(),
            Some(_) => (self.take(1)?[0] != 0).into(),
            None => return Err(self.wrong(format!("unknown tag {tag}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary, as LitData's function `_nested_dumps` encodes it.
    const DICTIONARY: &[u8] = b"\x05\x04\0\0\0\x04\0\0\0none\x0b\x01\0\0\0n\x08\xfe\xff\xff\xff\xff\xff\xff\xff\
        \x04\0\0\0deep\x05\x03\0\0\0\x01\0\0\0f\x09\0\0\0\0\0\0\xe0?\x03\0\0\0yes\x0a\x01\x01\0\0\0s\
        \x07\x02\0\0\0\xc3\x9f\x01\0\0\0l\x02\x01\0\0\0\x01\0\0\0\0\0\0\0";

    #[test]
    fn dictionaries_and_json_are_read() {
        let expected = serde_json::json!({
            "none": null, "n": -2, "deep": {"f": 0.5, "yes": true, "s": "ß"}, "l": [1]
        });
        let found = tagged(&Bytes::from_static(DICTIONARY)).unwrap();
        assert_eq!(found, FieldValue::Json(expected.clone()));
        let text = expected.to_string().into_bytes();
        assert_eq!(tagged(&text.into()).unwrap(), FieldValue::Json(expected));
    }

    #[test]
    fn damage_deep_nesting_and_endless_lists_are_errors() {
        for len in 0..DICTIONARY.len() {
            let error = tagged(&DICTIONARY[..len].to_vec().into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
        }
        let deep = [5, 1, 0, 0, 0, 0, 0, 0, 0].repeat(1000);
        let records = [6, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0].to_vec();
        let numbers = [2, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0].to_vec();
        for bytes in [deep, records, numbers, [DICTIONARY, b"x"].concat()] {
            assert_eq!(tagged(&bytes.into()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
