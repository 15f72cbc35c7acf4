//! The names of classes that lie in a column of texts.

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::{DatasetKind, OpenedDataset};
use crate::label_text::{LabelFault, LabelText, LabelTexts};
use crate::{Fetch, FieldRequest, FieldValue, StoredField};

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
    /// stand, and there are no names.
    ///
    /// Opening does this for the field that [`FetchLabeled`](crate::FetchLabeled) takes; it is to be called
    /// for another one. Of other kinds of data sets nothing is changed.
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
            groups.extend(row.map(|row| row.group));
            first += rows;
        }
        if groups.is_empty() {
            return Ok(());
        }
        let fetcher = &self.fetcher;
        let texts = groups.into_iter().map(|group| async move {
            let texts = group.texts(fetcher, label, MOST_CLASSES).await?;
            Ok::<_, Error>(texts.unwrap_or_default())
        });
        let mut names = BTreeSet::new();
        let mut texts = stream::iter(texts).buffer_unordered(CONCURRENCY);
        while let Some(texts) = texts.try_next().await? {
            names.extend(texts);
            check_count(label, &names)?;
        }
        drop(texts);
        let mut column = LabelTexts::default();
        for text in &names {
            if let Err(fault) = column.add(text, 0) {
                let elsewhere = |_| "in another row".to_owned();
                let message = fault.message(text, elsewhere, self.options.names.label_field);
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
                return Ok(Some(self.at_row(number, text, &fault)));
            }
        }
        Ok(None)
    }

    /// That a row has no label that goes with the others, by the names of both rows.
    fn at_row(&self, number: u64, text: &str, fault: &LabelFault) -> Error {
        let name = |number| match self.samples.item(number) {
            Ok(row) => row.key.to_string(),
            Err(_) => format!("row {number}"),
        };
        let place = |number| format!("of {}", name(number));
        let message = fault.message(text, place, self.options.names.label_field);
        Error::new(ErrorKind::InvalidArgument, message).with_key(name(number))
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
                added.map_err(|fault| self.at_row(number, &text, &fault))?;
                names.insert(text.into_owned());
                check_count(label, &names)?;
            }
        }
        self.classes = if column.are_names() { names.into_iter().collect() } else { Vec::new() };
        Ok(())
    }

    /// The same for the usual field, where what is wrong with it alone does not matter to whoever wants no
    /// labels.
    #[cfg(feature = "parquet")]
    pub(super) async fn name_usual_classes(mut self) -> Result<Self> {
        let first = (0..self.samples.len()).find_map(|index| self.samples.item(index).ok());
        let label = first.and_then(|sample| self.fetch_labeled().fields_of(&sample).1);
        let Some(label) = label else { return Ok(self) };
        match self.name_classes(&label).await {
            Ok(()) => Ok(self),
            Err(error) if is_damage(&error) => {
                let message = format!("the classes are not known: {}", error.message());
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
