//! [`Record`]: a sample with the values of its fields, and [`FieldRequest`].

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;
use crate::records::FieldValue;

/// Which fields of a sample to read, and their maximum total size.
#[derive(Clone, Debug)]
pub struct FieldRequest {
    names: Option<Arc<[Arc<str>]>>,
    max_bytes: u64,
}

impl FieldRequest {
    /// Requests all fields, with at most `max_bytes` bytes in total.
    pub fn all(max_bytes: u64) -> Self {
        FieldRequest { names: None, max_bytes }
    }

    /// Requests only these fields. Duplicate names are ignored.
    #[must_use]
    pub fn only<N: Into<Arc<str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let mut unique: Vec<Arc<str>> = Vec::new();
        for name in names.into_iter().map(Into::into) {
            if !unique.contains(&name) {
                unique.push(name);
            }
        }
        self.names = Some(unique.into());
        self
    }

    /// The names of the requested fields; `None` for all.
    pub fn names(&self) -> Option<&[Arc<str>]> {
        self.names.as_deref()
    }

    /// Whether the field of this name is requested.
    pub fn wants(&self, name: &str) -> bool {
        self.names().is_none_or(|names| names.iter().any(|wanted| **wanted == *name))
    }

    /// The maximum total size of the fields of a sample, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }
}

/// A sample with the values of its fields.
///
/// ```
/// use spdl_io::{FieldValue, Record};
/// let mut record = Record::new("shard-000000.tar:0001").with_field("txt", FieldValue::Text("cat".into()));
/// assert_eq!(record.get("txt")?.as_str(), Some("cat"));
/// assert!(record.get("jpg").unwrap_err().message().contains("txt"));
/// assert_eq!(record.take("txt")?, FieldValue::Text("cat".into()));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The name of the sample in messages.
    pub key: Key,
    /// The class label, counted from 0; −1 if the sample has no label, or if the label is one of the fields.
    pub label: i64,
    /// Names and values, in the order of the request, or else of the sample. Names are unique.
    pub fields: Vec<(Arc<str>, FieldValue)>,
}

impl Record {
    /// A sample without fields and without a label.
    pub fn new(key: impl Into<Key>) -> Self {
        Record { key: key.into(), label: -1, fields: Vec::new() }
    }

    /// Sets the class label.
    #[must_use]
    pub fn with_label(mut self, label: i64) -> Self {
        self.label = label;
        self
    }

    /// Adds a field.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<Arc<str>>, value: FieldValue) -> Self {
        self.fields.push((name.into(), value));
        self
    }

    /// The names of the fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// The value of a field.
    ///
    /// # Errors
    /// `NotFound` if there is no field of this name. The message lists up to 20 existing fields.
    pub fn get(&self, name: &str) -> Result<&FieldValue> {
        let found = self.fields.iter().find(|(found, _)| **found == *name);
        found.map(|(_, value)| value).ok_or_else(|| self.lacks(name))
    }

    /// Removes a field and returns its value.
    ///
    /// # Errors
    /// The errors of [`get`](Record::get).
    pub fn take(&mut self, name: &str) -> Result<FieldValue> {
        let at = self.fields.iter().position(|(found, _)| **found == *name);
        at.map(|at| self.fields.remove(at).1).ok_or_else(|| self.lacks(name))
    }

    fn lacks(&self, name: &str) -> Error {
        no_such_field(&self.key, [name], self.names())
    }
}

/// The error for a missing field with one of the `wanted` names. It lists up to 20 existing fields.
pub(crate) fn no_such_field<'a, 'w>(
    key: &Key,
    wanted: impl IntoIterator<Item = &'w str>,
    names: impl Iterator<Item = &'a str>,
) -> Error {
    const MAX_LISTED: usize = 20;
    let name = in_quotes(wanted);
    let mut listed: Vec<_> = names.take(MAX_LISTED + 1).collect();
    let has_more = listed.len() > MAX_LISTED;
    listed.truncate(MAX_LISTED);
    let message = match listed.is_empty() {
        true => format!("no field {name}: the sample has no fields"),
        false => {
            let more = if has_more { ", ..." } else { "" };
            format!("no field {name}: the sample has the fields {}{more}", listed.join(", "))
        }
    };
    Error::new(ErrorKind::NotFound, message).with_key(key.display_name())
}

/// Alternative names for a message, without duplicates: the first three, and how many others.
fn in_quotes<'w>(wanted: impl IntoIterator<Item = &'w str>) -> String {
    const MAX_SHOWN: usize = 3;
    let mut names: Vec<String> = Vec::new();
    for name in wanted.into_iter().map(|name| format!("{name:?}")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match names.len().checked_sub(MAX_SHOWN).filter(|&more| more > 0) {
        None => names.join(" or "),
        Some(more) => format!("{} or {more} other usual names", names[..MAX_SHOWN].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_names_are_shortened() {
        let names = in_quotes(["image", "jpg", "png", "image", "webp", "gif"]);
        assert_eq!(names, "\"image\", \"jpg\", \"png\" or 2 other usual names");
        assert_eq!(in_quotes(["a", "b", "a", "c"]), "\"a\" or \"b\" or \"c\"");
    }
}
