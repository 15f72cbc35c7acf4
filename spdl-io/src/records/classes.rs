//! The numbers of classes, however a label says them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::records::label_text::{LabelText, whole};
use crate::records::{FieldValue, OptionNames, shown};

/// The names of classes with their numbers; empty where labels are numbers alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    numbers: Arc<HashMap<Box<str>, i64>>,
    /// A hash of the names in their order.
    #[cfg(feature = "cache")]
    hash: u128,
    /// What a message calls the option that tells the names.
    option_names: OptionNames,
}

impl Classes {
    /// Of a name that is there twice the first one counts.
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
            option_names: OptionNames::default(),
        }
    }

    pub(super) fn with_option_names(self, option_names: OptionNames) -> Self {
        Classes { option_names, ..self }
    }

    pub(super) fn option_names(&self) -> OptionNames {
        self.option_names
    }

    /// What ends a sample's name in a cache, as its label is kept there as a number; nothing where there
    /// are no names.
    #[cfg(feature = "cache")]
    pub(super) fn in_cache(&self) -> Vec<u8> {
        match self.numbers.is_empty() {
            true => Vec::new(),
            // No name of a field has a zero.
            false => [&[0][..], &self.hash.to_le_bytes()].concat(),
        }
    }

    /// The number that a label says. A text is a name, or else a whole number, `3.0` too; bytes, as in a
    /// file `1.cls`, are a whole number, or else a name. `None` for what is neither.
    pub(super) fn number(&self, label: &FieldValue) -> Option<i64> {
        let by_name =
            |text: &str| self.numbers.get(text).or_else(|| self.numbers.get(text.trim())).copied();
        let by_digits = |text: &str| LabelText::of(text).number();
        match label {
            FieldValue::Bytes(bytes) => {
                let text = std::str::from_utf8(bytes).ok()?;
                by_digits(text).or_else(|| by_name(text))
            }
            label => match label.as_str() {
                Some(text) => by_name(text).or_else(|| by_digits(text)),
                None => label.as_i64().or_else(|| whole(label.as_f64()?)),
            },
        }
    }

    /// Why a label says no number.
    pub(super) fn refusal(&self, label: &FieldValue) -> String {
        let text = match label {
            FieldValue::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            label => label.as_str(),
        };
        let Some(text) = text else {
            let found = match label.as_f64() {
                Some(number) => format!("{number}"),
                None => label.kind().to_owned(),
            };
            return format!("a whole number was expected, but this is {found}");
        };
        let text = shown(text.trim());
        match self.numbers.len() {
            0 => {
                let told =
                    self.option_names.classes.map(|option| format!(", or as {option} tells them"));
                format!(
                    "a whole number was expected, and {text} found. The names of classes can be labels \
                     where all of them are known before the first sample: from a column of a Parquet file \
                     or of a list of files{}",
                    told.unwrap_or_default()
                )
            }
            known => format!(
                "the label is {text}, which is neither a whole number nor one of the {known} classes"
            ),
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
    fn a_text_is_a_name_or_digits_and_a_file_is_digits_or_a_name() {
        // The folders of a set of digits, sorted by their names.
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
    fn a_label_that_is_no_class_is_told() {
        let refusal = |classes: &Classes, label| classes.refusal(&label);
        let (none, two) = (Classes::default(), Classes::new(["cat", "dog"]));
        assert!(
            refusal(&none, bytes("cat")).starts_with("a whole number was expected, and \"cat\"")
        );
        assert!(refusal(&two, text("cow")).contains("\"cow\", which is neither"));
        assert!(refusal(&two, text("cow")).contains("one of the 2 classes"));
        let other = "a whole number was expected, but this is 0.5";
        assert_eq!(refusal(&two, FieldValue::Float(0.5)), other);
        assert!(refusal(&two, FieldValue::Null).ends_with("but this is null"));
        let names = |classes| OptionNames { classes, ..OptionNames::default() };
        let told = none.clone().with_option_names(names(Some("`classes=`")));
        assert!(refusal(&told, bytes("cat")).ends_with(", or as `classes=` tells them"));
        let told = none.with_option_names(names(None));
        assert!(refusal(&told, bytes("cat")).ends_with("or of a list of files"));
    }
}
