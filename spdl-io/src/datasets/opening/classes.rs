//! The names of classes that lie in a column of texts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::labels::Unlabeled;
use super::{DatasetKind, OpenedDataset};
use crate::fetch::{Fetch, Fetcher};
use crate::records::label_text::{LabelFault, LabelText, LabelTexts, is_empty_text};
use crate::records::{FieldRequest, FieldValue, StoredField, StoredRow};

/// The most classes that a column may name; where it names more, it is none of classes.
const MOST_CLASSES: usize = 1_000_000;
/// So many names of fields are told, where one is not there.
const MOST_TOLD: usize = 20;
/// How many parts are read at once.
const CONCURRENCY: usize = 8;

impl OpenedDataset {
    /// Whether this is a list's column of labels, which are labels already, and no field.
    pub fn is_own_label(&self, name: &str) -> bool {
        self.own_labels.contains(&name)
            // It is one where a row has another such column, which comes before it.
            && self.first_samples().next().is_none_or(|row| row.names().all(|field| field != name))
    }

    /// The names for [`with_label_fields`](crate::FetchLabeled::with_label_fields), where this one was asked
    /// for: none where it is a list's own column of labels.
    pub fn label_field<'a>(&self, name: &'a str) -> Option<&'a str> {
        Some(name).filter(|name| !self.is_own_label(name))
    }

    /// Refuses the name of a field that no sample has: a misspelt one would be missing in silence.
    ///
    /// # Errors
    /// `InvalidArgument` with the names there are. Of samples that all are damaged nobody knows.
    pub fn check_field(&self, name: &str) -> Result<()> {
        if self.is_own_label(name) {
            return Ok(());
        }
        let mut there = BTreeSet::new();
        for number in 0..self.samples.len() {
            // What cannot be read is told in its turn.
            let Ok(record) = self.samples.item(number) else { continue };
            for field in record.names() {
                if field == name {
                    return Ok(());
                }
                if there.len() < MOST_TOLD && !there.contains(field) {
                    there.insert(field.to_owned());
                }
            }
        }
        if there.is_empty() {
            return Ok(());
        }
        let there = there.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!("no sample has a field {name:?}; there are {there}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Finds the names of the classes in the field `label`, where it is a column of texts that can be read
    /// without the others, as in Parquet files and lists of files: sorted by their bytes, so that a label is
    /// a name's place among them. Where all texts are whole numbers (`3.0` is one), they are labels as they
    /// stand, and there are no names. An empty text is no name.
    ///
    /// Opening does this for the field that [`FetchLabeled`](crate::FetchLabeled) takes; it is to be called
    /// for another one. Of other kinds of data sets nothing is changed; nor where the classes are
    /// [told](super::OpenOptions::classes_are_told), except in lists.
    ///
    /// # Errors
    /// What the fetcher answers; `Corrupt` or `Truncated` where the column is damaged; `LimitExceeded` for
    /// more than 1,000,000 names; `InvalidArgument`, with the row, for a column of some whole numbers and
    /// some names, and for a number that is not whole.
    pub async fn name_classes(&mut self, label: &str) -> Result<()> {
        if self.kind == DatasetKind::FileList {
            return if self.is_own_label(label) {
                Ok(())
            } else {
                self.name_classes_of_list(label)
            };
        }
        let mut groups = Vec::new();
        let mut first = 0;
        for rows in self.shard_lens.iter().filter(|rows| **rows > 0) {
            // One that cannot be named is no row of a group.
            let row = self.samples.item(first).ok().and_then(|sample| sample.row);
            groups.extend(row.map(|row| (first, *rows, row)));
            first += rows;
        }
        if groups.is_empty() {
            return Ok(());
        }
        let fetcher = &self.fetcher;
        let empty_is_none = self.empty_is_none(label);
        let texts = groups.into_iter().map(|(first, rows, start)| async move {
            let mut texts =
                start.group.texts(fetcher, label, MOST_CLASSES).await?.unwrap_or_default();
            let texts_there = texts.len();
            texts.retain(|text| LabelText::of(text) != LabelText::Empty);
            let empty = match empty_is_none && texts.len() < texts_there {
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
        if self.options.classes_are_told {
            return Ok(());
        }
        let mut column = LabelTexts::default();
        for text in &names {
            if let Err(fault) = column.add(text, 0) {
                let elsewhere = |_| "in another row".to_owned();
                let option = self.options.names.label_field;
                let message = fault.message(text, elsewhere, option, empty_is_none);
                let unplaced = Error::new(ErrorKind::InvalidArgument, message);
                return Err(self.first_fault(label).await?.unwrap_or(unplaced));
            }
        }
        self.classes = if column.are_names() { names.into_iter().collect() } else { Vec::new() };
        Ok(())
    }

    /// The first row whose label does not go with those before it, of a column that was read and has one.
    async fn first_fault(&self, label: &str) -> Result<Option<Error>> {
        let request = FieldRequest::all(Fetch::DEFAULT_MAX_BYTES).only([label]);
        let mut column = LabelTexts::default();
        for number in 0..self.samples.len() {
            let Ok(sample) = self.samples.item(number) else { continue };
            let Some(row) = sample.row else { continue };
            let values = row.group.read(&self.fetcher, row.row, &request).await?;
            let Some(text) = values.first().and_then(|(_, value)| value.as_str()) else { continue };
            if let Err(fault) = column.add(text, number) {
                let empty_is_none = self.empty_is_none(label);
                return Ok(Some(self.at_row(number, text, &fault, empty_is_none)));
            }
        }
        Ok(None)
    }

    /// That a row has no label that goes with the others, by the names of both rows.
    fn at_row(&self, number: u64, text: &str, fault: &LabelFault, empty_is_none: bool) -> Error {
        let name = |number| match self.samples.item(number) {
            Ok(row) => row.key.to_string(),
            Err(_) => format!("row {number}"),
        };
        let place = |number| format!("of {}", name(number));
        let option = self.options.names.label_field;
        let message = fault.message(text, place, option, empty_is_none);
        Error::new(ErrorKind::InvalidArgument, message).with_key(name(number))
    }

    /// Whether an empty text of this field is no label, and no error: of one that is taken by its usual name.
    fn empty_is_none(&self, label: &str) -> bool {
        let takes = |sample| self.fetch_labeled().fields_of(&sample).1;
        self.options.label_field.is_none()
            && self.first_samples().next().and_then(takes).as_deref() == Some(label)
    }

    /// The same of a list, whose fields need not be read. An empty cell names no class.
    fn name_classes_of_list(&mut self, label: &str) -> Result<()> {
        let (mut names, mut column) = (BTreeSet::new(), LabelTexts::default());
        for number in 0..self.samples.len() {
            // What cannot be read is told in its turn.
            let Ok(row) = self.samples.item(number) else { continue };
            let field = row.fields.iter().find(|(name, _)| **name == *label);
            let Some((_, StoredField::Known(value))) = field else { continue };
            let text = match value {
                FieldValue::Integer(number) => Cow::Owned(number.to_string()),
                FieldValue::Float(number) => Cow::Owned(number.to_string()),
                value => Cow::Borrowed(value.as_str().unwrap_or_default()),
            };
            if !names.contains(&*text) && LabelText::of(&text) != LabelText::Empty {
                let added = column.add(&text, number);
                added.map_err(|fault| self.at_row(number, &text, &fault, false))?;
                names.insert(text.into_owned());
                check_count(label, &names)?;
            }
        }
        self.classes = if column.are_names() { names.into_iter().collect() } else { Vec::new() };
        Ok(())
    }

    /// The same for the usual field. Where that is damaged there is a warning, as whoever wants no labels can do
    /// without it; names mixed with numbers are refused.
    #[cfg(feature = "parquet")]
    pub(super) async fn name_usual_classes(mut self) -> Result<Self> {
        if self.options.classes_are_told && self.options.label_field.is_some() {
            return Ok(self);
        }
        let first = (0..self.samples.len()).find_map(|index| self.samples.item(index).ok());
        let label = first.and_then(|sample| self.fetch_labeled().fields_of(&sample).1);
        let Some(label) = label else { return Ok(self) };
        match self.name_classes(&label).await {
            Ok(()) => Ok(self),
            Err(error) if is_damage(&error) => {
                let what = if self.options.classes_are_told { "labels" } else { "classes" };
                let message = format!("the {what} are not known: {}", error.message());
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

/// How many of these rows have an empty text in the field `label`, and the first of them.
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

fn check_count(label: &str, names: &BTreeSet<String>) -> Result<()> {
    if names.len() > MOST_CLASSES {
        let message = format!("the field {label:?} has more than {MOST_CLASSES} texts");
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    Ok(())
}

#[cfg(feature = "parquet")]
fn is_damage(error: &Error) -> bool {
    use ErrorKind::{Corrupt, LimitExceeded, Truncated, Unsupported};
    matches!(error.kind(), Corrupt | LimitExceeded | Truncated | Unsupported)
}
