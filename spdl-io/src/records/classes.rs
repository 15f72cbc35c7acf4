//! [`Classes`]: converts labels, stored as class names or as digits, to class numbers.

use std::collections::HashMap;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind};

use crate::records::label_text::{LabelText, to_integer};
use crate::records::{FieldValue, Remedy, abbreviated};

/// Class names with their numbers. Empty if labels are numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    numbers: Arc<HashMap<Box<str>, i64>>,
    /// The number of each class in another list of classes, or -1 if that list lacks it. Empty if numbers are not
    /// converted.
    others: Arc<[i64]>,
    /// A hash of the names in their order.
    #[cfg(feature = "cache")]
    hash: u128,
}

impl Classes {
    /// A duplicate name keeps its first number.
    pub(super) fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut numbers = HashMap::new();
        #[cfg(feature = "cache")]
        let mut hasher = twox_hash::XxHash3_128::new();
        for (number, name) in (0_i64..).zip(names) {
            let name = name.as_ref();
            #[cfg(feature = "cache")]
            {
                hasher.write(&(name.len() as u64).to_le_bytes());
                hasher.write(name.as_bytes());
            }
            numbers.entry(name.into()).or_insert(number);
        }
        Classes {
            #[cfg(feature = "cache")]
            hash: if numbers.is_empty() { 0 } else { hasher.finish_128() },
            numbers: Arc::new(numbers),
            others: Arc::default(),
        }
    }

    /// Converts each class number to that of another list of classes, in which it is -1 if it is not in that list.
    pub(super) fn renumbered(mut self, others: Arc<[i64]>) -> Self {
        #[cfg(feature = "cache")]
        if !others.is_empty() {
            let mut hasher = twox_hash::XxHash3_128::new();
            hasher.write(&self.hash.to_le_bytes());
            others.iter().for_each(|number| hasher.write(&number.to_le_bytes()));
            self.hash = hasher.finish_128();
        }
        self.others = others;
        self
    }

    /// The suffix of a cache key, because a cached class number is valid only for these names. Empty if there
    /// are no names.
    #[cfg(feature = "cache")]
    pub(super) fn cache_suffix(&self) -> Vec<u8> {
        match self.numbers.is_empty() {
            true => Vec::new(),
            // Field names contain no zero byte.
            false => [&[0][..], &self.hash.to_le_bytes()].concat(),
        }
    }

    /// The class number of a label; `None` if the label is neither an integer nor a known name, or if the class is
    /// not in the other list of classes.
    ///
    /// Text is looked up as a class name first, and otherwise parsed as an integer (`3.0` counts as an
    /// integer). Bytes, such as the content of a file `1.cls`, are parsed first, and otherwise looked up.
    pub(super) fn number(&self, label: &FieldValue) -> Option<i64> {
        match self.own_number(label)? {
            number @ 0.. if !self.others.is_empty() => {
                let other = usize::try_from(number).ok().and_then(|at| self.others.get(at));
                other.copied().filter(|other| *other >= 0)
            }
            number => Some(number),
        }
    }

    fn own_number(&self, label: &FieldValue) -> Option<i64> {
        let by_name =
            |text: &str| self.numbers.get(text).or_else(|| self.numbers.get(text.trim())).copied();
        let by_digits = |text: &str| LabelText::parse(text).number();
        match label {
            FieldValue::Bytes(bytes) => {
                let text = std::str::from_utf8(bytes).ok()?;
                by_digits(text).or_else(|| by_name(text))
            }
            label => match label.as_str() {
                Some(text) => by_name(text).or_else(|| by_digits(text)),
                None => label.as_i64().or_else(|| to_integer(label.as_f64()?)),
            },
        }
    }

    /// The error for a label that is neither an integer nor a known name.
    pub(super) fn invalid_label(&self, label: &FieldValue) -> Error {
        let error = |message: String| Error::new(ErrorKind::InvalidArgument, message);
        if let Some(number) = self.own_number(label) {
            let known = self.others.iter().filter(|other| **other >= 0).count();
            return error(format!("label {number} is none of the {known} classes"));
        }
        let text = match label {
            FieldValue::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            label => label.as_str(),
        };
        let Some(text) = text else {
            let found = match label.as_f64() {
                Some(number) => format!("{number}"),
                None => label.kind().to_owned(),
            };
            return error(format!("expected an integer label, found {found}"));
        };
        let text = abbreviated(text.trim());
        match self.numbers.len() {
            0 => error(format!(
                "expected an integer label, found {text}: the class names are unknown (only \
                 Parquet files, Arrow tables and file lists have a column from which class names are read)"
            ))
            .with_source(Remedy::Classes),
            known => error(format!(
                "label {text} is neither an integer nor one of the {known} class names"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> FieldValue {
        FieldValue::Text(text.into())
    }

    fn bytes(text: &str) -> FieldValue {
        FieldValue::Bytes(text.as_bytes().to_vec().into())
    }

    #[test]
    fn text_prefers_names_and_bytes_prefer_digits() {
        // Class folders whose names are digits, in sorted order.
        let classes = Classes::new(["0", "10", "2", "cat"]);
        for (label, number) in [
            (text("2"), Some(2)),
            (text("10"), Some(1)),
            (text("7"), Some(7)),
            (text(" cat\n"), Some(3)),
            (text("Cat"), None),
            (bytes("2\n"), Some(2)),
            (bytes("10"), Some(10)),
            (bytes("cat\n"), Some(3)),
            (bytes("dog"), None),
            (FieldValue::Integer(1), Some(1)),
            (FieldValue::Json("cat".into()), Some(3)),
            (text("1.0"), Some(1)),
            (text("10.0"), Some(10)),
            (text("1.5"), None),
            (bytes("2.0\n"), Some(2)),
            (FieldValue::Float(1.0), Some(1)),
            (FieldValue::Float(1.5), None),
            (FieldValue::Float(f64::NAN), None),
            (FieldValue::Json(3.0.into()), Some(3)),
            (FieldValue::Null, None),
        ] {
            assert_eq!(classes.number(&label), number, "{label:?}");
        }
        assert_eq!(Classes::default().number(&bytes(" 7\n")), Some(7));
        assert_eq!(Classes::default().number(&text("cat")), None);
    }

    #[test]
    fn numbers_are_converted_to_those_of_another_list() {
        let classes = Classes::new(["cat", "dog", "owl"]).renumbered([4, -1, 0].into());
        assert_eq!(classes.number(&text("cat")), Some(4));
        assert_eq!(classes.number(&FieldValue::Integer(2)), Some(0));
        assert_eq!(classes.number(&bytes("0")), Some(4));
        assert_eq!(classes.number(&FieldValue::Integer(-1)), Some(-1));
        for label in [text("dog"), FieldValue::Integer(3)] {
            assert_eq!(classes.number(&label), None, "{label:?}");
            assert!(classes.invalid_label(&label).message().ends_with("none of the 2 classes"));
        }
        #[cfg(feature = "cache")]
        assert_ne!(classes.cache_suffix(), Classes::new(["cat", "dog", "owl"]).cache_suffix());
    }

    #[test]
    fn errors_name_the_label_and_the_remedy() {
        let (none, two) = (Classes::default(), Classes::new(["cat", "dog"]));
        let error = none.invalid_label(&bytes("cat"));
        assert!(error.message().starts_with("expected an integer label, found \"cat\""), "{error}");
        assert_eq!(Remedy::of(&error), Some(Remedy::Classes));
        for (label, message) in [
            (text("cow"), "label \"cow\" is neither an integer nor one of the 2 class names"),
            (FieldValue::Float(0.5), "expected an integer label, found 0.5"),
            (FieldValue::Null, "expected an integer label, found null"),
        ] {
            let error = two.invalid_label(&label);
            assert_eq!((error.message(), Remedy::of(&error)), (message, None));
        }
    }
}
