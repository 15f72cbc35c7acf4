//! [`LabelRule`]: which field holds the class label of a sample, and what its values mean.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::classes::Classes;
use super::label_text::is_empty_text;
use super::read_fields::field_key;
use crate::records::{Encoding, FieldValue, Record, StoredField, StoredRecord, no_such_field};

/// The default label fields. The first one that a sample has is used.
pub(crate) const LABEL_FIELDS: [&str; 4] = ["cls", "label", "class", "image/class/label"];

#[derive(Clone, Debug)]
pub(super) struct LabelRule {
    /// The first of these fields that a sample has holds the label; otherwise, the data set assigned
    /// it.
    pub(super) fields: Vec<Arc<str>>,
    /// Whether each sample must have a label field.
    pub(super) is_required: bool,
    /// Whether empty text means that the sample has no label. Otherwise, and if a label is required,
    /// empty text is an error.
    pub(super) allows_empty: bool,
    /// Whether samples without a label are dropped.
    pub(super) drops_unlabeled: bool,
    pub(super) classes: Classes,
}

/// The label field of a sample that is being read.
pub(super) struct LabelField {
    pub(super) name: Arc<str>,
    /// Where the text starts in its object.
    offset: Option<u64>,
}

impl LabelField {
    /// A field whose value is in memory.
    pub(super) fn new(name: Arc<str>) -> Self {
        LabelField { name, offset: None }
    }
}

impl Default for LabelRule {
    fn default() -> Self {
        LabelRule {
            fields: LABEL_FIELDS.map(Into::into).into(),
            is_required: false,
            allows_empty: false,
            drops_unlabeled: false,
            classes: Classes::default(),
        }
    }
}

impl LabelRule {
    /// The label field of a sample.
    pub(super) fn field_of(&self, item: &StoredRecord) -> Option<Arc<str>> {
        let exists = |wanted: &&Arc<str>| item.names().any(|name| *name == ***wanted);
        self.fields.iter().find(exists).cloned()
    }

    /// The rule for data sets that assigned all labels.
    pub(super) fn of_assigned() -> Self {
        LabelRule { fields: Vec::new(), ..LabelRule::default() }
    }

    /// # Errors
    /// `NotFound` if the sample must have a label field and has none; `MissingValue` if the sample has no label, and
    /// such samples are dropped.
    pub(super) fn check(&self, item: &StoredRecord, found: Option<&Arc<str>>) -> Result<()> {
        match found {
            None if self.drops_unlabeled && (self.is_required || item.label < 0) => {
                Err(unlabeled().with_key(item.key.display_name()))
            }
            None if self.is_required => {
                Err(no_such_field(&item.key, self.fields.iter().map(|name| &**name), item.names()))
            }
            _ => Ok(()),
        }
    }

    /// Prepares the read of a label field: its text is not parsed, because it may be a class name.
    pub(super) fn prepare(item: &mut StoredRecord, name: Arc<str>) -> LabelField {
        let mut offset = None;
        for (own, field) in &mut item.fields {
            if let (true, StoredField::At(extent, encoding @ Encoding::Integer)) =
                (*own == name, field)
            {
                *encoding = Encoding::Bytes;
                offset = extent.range.as_ref().map(|range| range.start);
            }
        }
        LabelField { name, offset }
    }

    pub(super) fn empty_is_unlabeled(&self) -> bool {
        self.allows_empty && !self.is_required
    }

    /// The label of a sample, from the value of its label field.
    ///
    /// # Errors
    /// `InvalidArgument` if the value is neither an integer nor a class name; `MissingValue` if there is no value or a
    /// negative number, and such samples are dropped.
    pub(super) fn label(
        &self,
        record: &Record,
        field: &LabelField,
        value: &FieldValue,
    ) -> Result<i64> {
        let empty = (self.empty_is_unlabeled() && is_empty_text(value)).then_some(record.label);
        let number = self.classes.number(value).or(empty);
        let key = || field_key(&record.key, &field.name).display_name();
        if self.drops_unlabeled && number.map_or_else(|| has_no_text(value), |number| number < 0) {
            return Err(unlabeled().with_key(key()));
        }
        number.ok_or_else(|| {
            let key = key();
            let error = self.classes.invalid_label(value).with_key(key);
            field.offset.map_or(error.clone(), |offset| error.with_offset(offset))
        })
    }
}

fn unlabeled() -> Error {
    Error::new(ErrorKind::MissingValue, "the sample has no label")
}

/// Whether a value is null, or empty text.
fn has_no_text(value: &FieldValue) -> bool {
    let has_no_bytes = || value.as_bytes().is_some_and(|bytes| bytes.trim_ascii().is_empty());
    *value == FieldValue::Null || is_empty_text(value) || has_no_bytes()
}
