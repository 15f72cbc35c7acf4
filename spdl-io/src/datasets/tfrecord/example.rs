//! [`parse_example`]: `tf.train.Example` and `tf.train.SequenceExample`.
//!
//! The messages are defined by TensorFlow's `example.proto` and `feature.proto`. This module reads the
//! subset of the protocol buffer wire format that they need.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::records::{FieldRequest, FieldValue};

/// The maximum number of features of a record.
const MAX_FEATURES: usize = 4096;
/// The maximum number of byte strings or steps in a list. Each item takes more memory than its encoding.
const MAX_ITEMS: usize = 1 << 20;

/// Parses the requested features of a serialised `tf.train.Example`, in their order.
///
/// - A feature with one value becomes [`FieldValue::Bytes`], [`FieldValue::Integer`] or
///   [`FieldValue::Float`].
/// - A feature with several values, or with an empty list, becomes a [`FieldValue::List`] of bytes,
///   [`FieldValue::Integers`] or [`FieldValue::Floats`].
/// - A feature whose `kind` is not set becomes [`FieldValue::Null`].
/// - Text is returned as bytes, because TensorFlow stores text and bytes alike.
/// - For a `SequenceExample`, the context features come first. Each feature list becomes a
///   [`FieldValue::List`] with one item per step.
///
/// Bytes share the memory of the record.
///
/// ```
/// use spdl_io::datasets::parse_example;
/// use spdl_io::{Bytes, FieldValue};
/// use spdl_io::records::FieldRequest;
/// // features { feature { key: "label" value { int64_list { value: 7 } } } }
/// let record = Bytes::from_static(b"\x0a\x10\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07");
/// let features = parse_example(&record, &FieldRequest::all(1 << 20))?;
/// assert_eq!(features, [("label".into(), FieldValue::Integer(7))]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// - `Truncated` if a field is longer than its message, with the offset in the record.
/// - `Corrupt` for an invalid message, with the offset in the record.
/// - `LimitExceeded` for more than 4,096 requested features, and for lists of more than 1,048,576
///   byte strings or steps.
/// - `LimitExceeded` if the fields exceed the limit of the request.
pub fn parse_example(
    record: &Bytes,
    request: &FieldRequest,
) -> Result<Vec<(Arc<str>, FieldValue)>> {
    let mut parser = FeatureParser { record, request, fields: Vec::new(), bytes: 0 };
    let mut message = ProtoMessage::whole(record);
    while let Some(part) = message.next_field()? {
        match part {
            // `Example.features`, or `SequenceExample.context`.
            ProtoField { number: 1, value: ProtoValue::Bytes(at, len) } => {
                parser.map(message.inside(at, len), FeatureParser::feature)?;
            }
            ProtoField { number: 2, value: ProtoValue::Bytes(at, len) } => {
                parser.map(message.inside(at, len), FeatureParser::sequence)?;
            }
            ProtoField { number: 1 | 2, .. } => return Err(message.wrong_type()),
            _ => {}
        }
    }
    Ok(parser.fields)
}

struct FeatureParser<'a> {
    record: &'a Bytes,
    request: &'a FieldRequest,
    fields: Vec<(Arc<str>, FieldValue)>,
    /// The total size of the fields, in bytes.
    bytes: u64,
}

type ReadValue<'a> = fn(&mut FeatureParser<'a>, ProtoMessage<'a>) -> Result<FieldValue>;

impl<'a> FeatureParser<'a> {
    /// A map from names to features: one message per entry. If a name occurs several times, the last entry is
    /// used, as the protocol buffer specification requires.
    fn map(&mut self, mut map: ProtoMessage<'a>, read: ReadValue<'a>) -> Result<()> {
        while let Some(part) = map.next_field()? {
            let ProtoField { number: 1, value } = part else { continue };
            let ProtoValue::Bytes(at, len) = value else { return Err(map.wrong_type()) };
            let mut entry = map.inside(at, len);
            let mut name = "";
            let mut feature = ProtoMessage { bytes: map.bytes, at, end: at };
            while let Some(part) = entry.next_field()? {
                match part {
                    ProtoField { number: 1, value: ProtoValue::Bytes(at, len) } => {
                        name =
                            std::str::from_utf8(&entry.bytes[at..at + len]).map_err(|error| {
                                corrupt("invalid UTF-8 in a feature name", at).with_source(error)
                            })?;
                    }
                    ProtoField { number: 2, value: ProtoValue::Bytes(at, len) } => {
                        feature = entry.inside(at, len);
                    }
                    ProtoField { number: 1 | 2, .. } => return Err(entry.wrong_type()),
                    _ => {}
                }
            }
            if !self.request.wants(name) {
                continue;
            }
            let value = read(self, feature)?;
            match self.fields.iter().position(|(found, _)| **found == *name) {
                Some(before) => self.fields[before].1 = value,
                None if self.fields.len() == MAX_FEATURES => {
                    return Err(too_many(MAX_FEATURES, "features in a record", at));
                }
                None => self.fields.push((name.into(), value)),
            }
        }
        Ok(())
    }

    fn sequence(&mut self, mut list: ProtoMessage<'a>) -> Result<FieldValue> {
        let mut steps = Vec::new();
        while let Some(part) = list.next_field()? {
            let ProtoField { number: 1, value } = part else { continue };
            let ProtoValue::Bytes(at, len) = value else { return Err(list.wrong_type()) };
            if steps.len() == MAX_ITEMS {
                return Err(too_many(MAX_ITEMS, "steps in a sequence", at));
            }
            self.count(size_of::<FieldValue>(), at)?;
            steps.push(self.feature(list.inside(at, len))?);
        }
        Ok(FieldValue::List(steps))
    }

    fn feature(&mut self, mut feature: ProtoMessage<'a>) -> Result<FieldValue> {
        let mut found: Option<(u32, FeatureList)> = None;
        while let Some(part) = feature.next_field()? {
            let ProtoField { number: kind @ 1..=3, value } = part else { continue };
            let ProtoValue::Bytes(at, len) = value else { return Err(feature.wrong_type()) };
            // If the kinds differ, the last one is used; lists of the same kind are merged.
            let mut list = match found.take() {
                Some((before, list)) if before == kind => list,
                _ => FeatureList::of(kind),
            };
            let mut values = feature.inside(at, len);
            while let Some(part) = values.next_field()? {
                if part.number == 1 {
                    self.push(&mut list, part.value, &values)?;
                }
            }
            found = Some((kind, list));
        }
        Ok(found.map_or(FieldValue::Null, |(_, list)| list.into_field()))
    }

    fn push(
        &mut self,
        list: &mut FeatureList,
        value: ProtoValue,
        values: &ProtoMessage<'a>,
    ) -> Result<()> {
        match (list, value) {
            (FeatureList::Bytes(list), ProtoValue::Bytes(at, len)) => {
                if list.len() == MAX_ITEMS {
                    return Err(too_many(MAX_ITEMS, "byte strings in a list", at));
                }
                self.count(len + size_of::<FieldValue>(), at)?;
                list.push(FieldValue::Bytes(self.record.slice(at..at + len)));
            }
            (FeatureList::Floats(list), ProtoValue::Bytes(at, len)) => {
                let (floats, rest) = values.bytes[at..at + len].as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(corrupt("size of a packed float list is not a multiple of 4", at));
                }
                self.count(floats.len() * 8, at)?;
                list.extend(floats.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))));
            }
            (FeatureList::Floats(list), ProtoValue::Fixed32(bits)) => {
                self.count(8, values.at)?;
                list.push(f64::from(f32::from_bits(bits)));
            }
            (FeatureList::Integers(list), ProtoValue::Bytes(at, len)) => {
                let mut packed = values.inside(at, len);
                while packed.at < packed.end {
                    self.count(8, packed.at)?;
                    list.push(packed.varint()? as i64);
                }
            }
            (FeatureList::Integers(list), ProtoValue::Varint(number)) => {
                self.count(8, values.at)?;
                list.push(number as i64);
            }
            _ => return Err(values.wrong_type()),
        }
        Ok(())
    }

    fn count(&mut self, bytes: usize, at: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        let allowed = self.request.max_bytes();
        if self.bytes <= allowed {
            return Ok(());
        }
        let message = format!("the features exceed the limit of {allowed} bytes");
        Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(at as u64))
    }
}

enum FeatureList {
    Bytes(Vec<FieldValue>),
    Floats(Vec<f64>),
    Integers(Vec<i64>),
}

impl FeatureList {
    fn of(kind: u32) -> FeatureList {
        match kind {
            1 => FeatureList::Bytes(Vec::new()),
            2 => FeatureList::Floats(Vec::new()),
            _ => FeatureList::Integers(Vec::new()),
        }
    }

    fn into_field(self) -> FieldValue {
        match self {
            FeatureList::Bytes(mut list) if list.len() == 1 => {
                list.pop().unwrap_or(FieldValue::Null)
            }
            FeatureList::Bytes(list) => FieldValue::List(list),
            FeatureList::Floats(list) => match list[..] {
                [one] => FieldValue::Float(one),
                _ => FieldValue::Floats(list),
            },
            FeatureList::Integers(list) => match list[..] {
                [one] => FieldValue::Integer(one),
                _ => FieldValue::Integers(list),
            },
        }
    }
}

/// A protocol buffer message: a sequence of numbered fields.
#[derive(Clone, Copy)]
struct ProtoMessage<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

struct ProtoField {
    number: u32,
    value: ProtoValue,
}

enum ProtoValue {
    Varint(u64),
    Fixed64,
    /// The offset and the length, in the record.
    Bytes(usize, usize),
    Fixed32(u32),
}

impl<'a> ProtoMessage<'a> {
    fn whole(bytes: &'a [u8]) -> Self {
        ProtoMessage { bytes, at: 0, end: bytes.len() }
    }

    /// The embedded message of a [`ProtoValue::Bytes`].
    fn inside(&self, at: usize, len: usize) -> Self {
        ProtoMessage { bytes: self.bytes, at, end: at + len }
    }

    fn next_field(&mut self) -> Result<Option<ProtoField>> {
        if self.at == self.end {
            return Ok(None);
        }
        let start = self.at;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number =
            number.ok_or_else(|| corrupt("invalid protocol buffer field number", start))?;
        let value = match tag & 7 {
            0 => ProtoValue::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                ProtoValue::Fixed64
            }
            2 => {
                let len = self.varint()?;
                // A length beyond `usize` exceeds the message.
                let at = self.take(usize::try_from(len).unwrap_or(usize::MAX))?;
                ProtoValue::Bytes(at, self.at - at)
            }
            5 => {
                let at = self.take(4)?;
                ProtoValue::Fixed32(
                    crate::datasets::common::u32_at(self.bytes, at).unwrap_or_default(),
                )
            }
            kind => {
                let message = format!("unknown protocol buffer wire type {kind}");
                return Err(corrupt(message, start));
            }
        };
        Ok(Some(ProtoField { number, value }))
    }

    /// Skips `len` bytes, and returns their offset.
    fn take(&mut self, len: usize) -> Result<usize> {
        let at = self.at;
        if len > self.end - at {
            let message = format!(
                "the message ends after {} of {len} bytes of a protocol buffer field",
                self.end - at
            );
            return Err(Error::new(ErrorKind::Truncated, message).with_offset(at as u64));
        }
        self.at += len;
        Ok(at)
    }

    /// A variable-length integer of at most ten bytes.
    fn varint(&mut self) -> Result<u64> {
        let start = self.at;
        let mut number = 0;
        for shift in (0..70).step_by(7) {
            if self.at == self.end {
                let error = Error::new(ErrorKind::Truncated, "the message ends inside a varint");
                return Err(error.with_offset(start as u64));
            }
            let byte = self.bytes[self.at];
            self.at += 1;
            // Only one bit of the tenth byte fits.
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(corrupt("varint longer than ten bytes", start))
    }

    fn wrong_type(&self) -> Error {
        corrupt("protocol buffer wire type does not match tf.train.Example", self.at)
    }
}

fn corrupt(message: impl Into<String>, at: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(at as u64)
}

fn too_many(allowed: usize, what: &str, at: usize) -> Error {
    let message = format!("more than {allowed} {what}");
    Error::new(ErrorKind::LimitExceeded, message).with_offset(at as u64)
}
