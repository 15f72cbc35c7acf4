//! Class names that are read from a label column.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::labels::Unlabeled;
use super::{DatasetKind, OpenedDataset};
use crate::datasets::common::with_context;
use crate::fetch::{Fetch, Fetcher, Key};
use crate::records::label_text::{InvalidLabel, LabelColumn, LabelText, is_empty_text};
use crate::records::{FieldRequest, FieldValue, StoredField, StoredRecord, StoredRow};

/// The maximum number of classes of a column.
const MAX_CLASSES: usize = 1_000_000;
/// The maximum number of field names in a message.
const MAX_LISTED: usize = 20;
/// The number of groups that are read concurrently.
const CONCURRENCY: usize = 8;

impl OpenedDataset {
    /// Whether `name` is the label column of a file list. The labels of that column are already assigned to the
    /// samples, so the samples have no such field.
    pub fn is_own_label(&self, name: &str) -> bool {
        self.own_labels.contains(&name)
            // If a list has several label columns, the first one is the label, and the others are
            // fields.
            && self.first_samples().next().is_none_or(|row| row.names().all(|field| field != name))
    }

    /// The argument for [`with_label_fields`](crate::FetchLabeled::with_label_fields) if the label field
    /// `name` is requested: `None` for the label column of a file list.
    pub fn label_field<'a>(&self, name: &'a str) -> Option<&'a str> {
        Some(name).filter(|name| !self.is_own_label(name))
    }

    /// Checks that at least one sample has the field `name`, to detect misspelt names.
    ///
    /// # Errors
    /// `InvalidArgument` if no sample has it; the message lists up to 20 existing fields. `Unsupported` for
    /// a column of Parquet files whose type is not supported. If no sample can be read, the result is `Ok`.
    pub fn check_field(&self, name: &str) -> Result<()> {
        if self.is_own_label(name) {
            return Ok(());
        }
        let mut found = BTreeSet::new();
        for number in 0..self.samples.len() {
            // The pipeline reports damaged samples.
            let Ok(record) = self.samples.item(number) else { continue };
            if let Some(error) = record.row.as_ref().and_then(|row| row.group.unsupported(name)) {
                return Err(error);
            }
            for field in record.names() {
                if field == name {
                    return Ok(());
                }
                if found.len() < MAX_LISTED && !found.contains(field) {
                    found.insert(field.to_owned());
                }
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let found = found.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!("no sample has a field {name:?}: the fields are {found}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Reads the class names from the field `label`.
    ///
    /// The class names are the distinct texts of the field, sorted by their bytes. A label is an index. If all
    /// texts are integers (`3.0` counts as an integer), these integers are the labels, and there are no class
    /// names. Empty texts are not class names. The class names of a column of integers are those of its `ClassLabel`
    /// in the metadata of Hugging Face's `datasets`, in Parquet files and Arrow tables; without one, there are none.
    ///
    /// Opening a data set already reads the class names of the default label field of
    /// [`FetchLabeled`](crate::FetchLabeled). Call this method for another field. The method
    /// changes only the class names of Parquet files, file lists and
    /// [samples of other programs](Self::of_samples). With
    /// [`external_classes`](super::OpenOptions::external_classes), only those of file lists change.
    ///
    /// # Errors
    /// - The errors of the fetcher.
    /// - `Corrupt` or `Truncated` if the column is damaged.
    /// - `LimitExceeded` for more than 1,000,000 distinct texts.
    /// - `InvalidArgument`, with the row, for a mixture of integers and names, and for a number that is not
    ///   an integer.
    /// - `InvalidArgument` for a column of lists, booleans or only nulls.
    /// - `InvalidArgument`, with the first keys of two files, if the `ClassLabel`s of the files differ.
    pub async fn name_classes(&mut self, label: &str) -> Result<()> {
        if self.kind == DatasetKind::FileList {
            return if self.is_own_label(label) {
                Ok(())
            } else {
                self.name_classes_of_list(label)
            };
        }
        let (mut groups, mut keys, mut first) = (Vec::new(), Vec::new(), 0);
        for rows in self.shard_lens.iter().filter(|rows| **rows > 0) {
            // If the first sample of a group is bad, the group is skipped.
            if let Ok(StoredRecord { row: Some(row), key, .. }) = self.samples.item(first) {
                groups.push((first, *rows, row));
                keys.push(key);
            }
            first += rows;
        }
        if groups.is_empty() {
            return Ok(());
        }
        if let Some(error) = groups.iter().find_map(|(_, _, row)| row.group.no_labels(label)) {
            return Err(error);
        }
        let fetcher = &self.fetcher;
        let may_be_empty = self.may_be_empty(label);
        let declared = groups.iter().map(|(_, _, row)| row.group.class_names(label));
        let declared = declared_classes(label, declared.zip(&keys));
        let texts = groups.into_iter().map(|(first, rows, start)| async move {
            let mut texts =
                start.group.texts(fetcher, label, MAX_CLASSES).await?.unwrap_or_default();
            let all_texts = texts.len();
            texts.retain(|text| LabelText::parse(text) != LabelText::Empty);
            let empty = match may_be_empty && texts.len() < all_texts {
                true => count_empty(fetcher, &start, rows, label).await?,
                false => None,
            };
            Ok::<_, Error>((texts, empty.map(|(count, row)| (count, first + row))))
        });
        let (mut names, mut empty) = (BTreeSet::new(), None);
        let mut texts = stream::iter(texts).buffer_unordered(CONCURRENCY);
        while let Some((texts, more)) = texts.try_next().await? {
            names.extend(texts);
            check_count(label, &names)?;
            empty = match (empty, more) {
                (Some((count, first)), Some((more, row))) => Some((count + more, row.min(first))),
                (one, other) => one.or(other),
            };
        }
        drop(texts);
        if let Some((count, first)) = empty {
            self.unlabeled = Some(Unlabeled::in_column(count, &*self.samples, first));
        }
        if self.options.has_external_classes {
            return Ok(());
        }
        let mut column = LabelColumn::default();
        for text in &names {
            if let Err(invalid) = column.add(text, 0) {
                let elsewhere = |_| "in another row".to_owned();
                let without_row = invalid.error(text, elsewhere, may_be_empty);
                return Err(self.first_invalid_label(label).await?.unwrap_or(without_row));
            }
        }
        self.classes = match column.are_names() {
            true => names.into_iter().collect(),
            false => declared?,
        };
        Ok(())
    }

    /// The error of the first row whose label contradicts an earlier label.
    async fn first_invalid_label(&self, label: &str) -> Result<Option<Error>> {
        let request = FieldRequest::all(Fetch::DEFAULT_MAX_BYTES).only([label]);
        let mut column = LabelColumn::default();
        for number in 0..self.samples.len() {
            let Ok(sample) = self.samples.item(number) else { continue };
            let Some(row) = sample.row else { continue };
            let values = row.group.read(&self.fetcher, row.row, &request).await?;
            let Some((_, value)) = values.first() else { continue };
            let text = match value {
                FieldValue::Float(number) => Cow::Owned(number.to_string()),
                value => Cow::Borrowed(value.as_str().unwrap_or_default()),
            };
            if let Err(invalid) = column.add(&text, number) {
                let may_be_empty = self.may_be_empty(label);
                let error = self.at_row(number, &text, &invalid, may_be_empty);
                return Ok(Some(match value {
                    FieldValue::Float(_) => {
                        let holds = format!("column {label:?} holds floating-point numbers");
                        with_context(error, &holds)
                    }
                    _ => error,
                }));
            }
        }
        Ok(None)
    }

    /// The error for the label of a row, with the keys of both rows.
    fn at_row(&self, number: u64, text: &str, invalid: &InvalidLabel, may_be_empty: bool) -> Error {
        let name = |number| match self.samples.item(number) {
            Ok(row) => row.key.to_string(),
            Err(_) => format!("row {number}"),
        };
        let position_name = |number| format!("of {}", name(number));
        invalid.error(text, position_name, may_be_empty).with_key(name(number))
    }

    /// Whether an empty text of this field means no label. True for a default label field.
    fn may_be_empty(&self, label: &str) -> bool {
        let takes = |sample| self.fetch_labeled().fields_of(&sample).1;
        self.options.label_field.is_none()
            && self.first_samples().next().and_then(takes).as_deref() == Some(label)
    }

    /// [`name_classes`](Self::name_classes) for a file list, whose fields are in memory.
    fn name_classes_of_list(&mut self, label: &str) -> Result<()> {
        let (mut names, mut column) = (BTreeSet::new(), LabelColumn::default());
        for number in 0..self.samples.len() {
            // The pipeline reports damaged samples.
            let Ok(row) = self.samples.item(number) else { continue };
            let field = row.fields.iter().find(|(name, _)| **name == *label);
            let Some((_, StoredField::Known(value))) = field else { continue };
            let text = match value {
                FieldValue::Integer(number) => Cow::Owned(number.to_string()),
                FieldValue::Float(number) => Cow::Owned(number.to_string()),
                value => Cow::Borrowed(value.as_str().unwrap_or_default()),
            };
            if !names.contains(&*text) && LabelText::parse(&text) != LabelText::Empty {
                let added = column.add(&text, number);
                added.map_err(|invalid| self.at_row(number, &text, &invalid, false))?;
                names.insert(text.into_owned());
                check_count(label, &names)?;
            }
        }
        self.classes = if column.are_names() { names.into_iter().collect() } else { Vec::new() };
        Ok(())
    }

    /// [`name_classes`](Self::name_classes) for the default label field. Damage to the column becomes a
    /// warning, because the caller may not need labels.
    ///
    /// # Errors
    /// The other errors of [`name_classes`](Self::name_classes), such as a mixture of names and numbers.
    pub async fn name_default_classes(mut self) -> Result<Self> {
        if self.options.has_external_classes && self.options.label_field.is_some() {
            return Ok(self);
        }
        let first = (0..self.samples.len()).find_map(|index| self.samples.item(index).ok());
        let label = first.and_then(|sample| self.fetch_labeled().fields_of(&sample).1);
        let Some(label) = label else { return Ok(self) };
        match self.name_classes(&label).await {
            Ok(()) => Ok(self),
            Err(error) if is_damage(&error) => {
                let what = if self.options.has_external_classes { "labels" } else { "class names" };
                let message = format!("cannot read the {what}: {}", error.message());
                let warning = Error::new(error.kind(), message);
                self.warnings.push(match error.key() {
                    Some(key) => warning.with_key(key),
                    None => warning,
                });
                Ok(self)
            }
            Err(error) => Err(error),
        }
    }
}

/// The number of rows with an empty text in the field `label`, and the first such row.
async fn count_empty(
    fetcher: &Arc<dyn Fetcher>,
    start: &StoredRow,
    rows: u64,
    label: &str,
) -> Result<Option<(u64, u64)>> {
    let request = FieldRequest::all(Fetch::DEFAULT_MAX_BYTES).only([label]);
    let (mut count, mut first) = (0, None);
    for row in 0..rows {
        let values = start.group.read(fetcher, start.row + row, &request).await?;
        if values.first().is_some_and(|(_, value)| is_empty_text(value)) {
            count += 1;
            first.get_or_insert(row);
        }
    }
    Ok(first.map(|first| (count, first)))
}

/// The class names that all groups declare, with the first key of each.
///
/// # Errors
/// `InvalidArgument` if the names of two groups differ.
fn declared_classes<'a>(
    label: &str,
    mut groups: impl Iterator<Item = (Option<&'a [String]>, &'a Key)>,
) -> Result<Vec<String>> {
    let Some((names, key)) = groups.next() else { return Ok(Vec::new()) };
    let Some((others, other_key)) = groups.find(|(others, _)| *others != names) else {
        return Ok(names.unwrap_or_default().to_vec());
    };
    let (names, others) = (names.unwrap_or_default(), others.unwrap_or_default());
    let same = names.iter().zip(others).take_while(|(one, other)| one == other).count();
    let shown = |names: &[String]| match names.get(same) {
        Some(name) => format!("{name:?}"),
        None => "absent".to_owned(),
    };
    let message = format!(
        "the class names of column {label:?} differ: class {same} is {} for {key}, but {} for {other_key}; set the \
         class names, or open the files as separate data sets, whose classes are joined by name",
        shown(names),
        shown(others)
    );
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

fn check_count(label: &str, names: &BTreeSet<String>) -> Result<()> {
    if names.len() > MAX_CLASSES {
        let message = format!("field {label:?} has more than {MAX_CLASSES} distinct text values");
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    Ok(())
}

fn is_damage(error: &Error) -> bool {
    use ErrorKind::{Corrupt, LimitExceeded, Truncated, Unsupported};
    matches!(error.kind(), Corrupt | LimitExceeded | Truncated | Unsupported)
}
