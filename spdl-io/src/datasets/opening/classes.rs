//! The names of classes that lie in a column of texts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::{DatasetKind, OpenedDataset};
use crate::datasets::file_list::LABEL_COLUMNS;
use crate::{FieldValue, StoredField, StoredRecord};

/// The most classes that a column may name; where it names more, it is none of classes.
const MOST_CLASSES: usize = 1_000_000;
/// So many names of fields are told, where one is not there.
const MOST_TOLD: usize = 20;
/// How many parts are read at once.
const CONCURRENCY: usize = 8;

impl OpenedDataset {
    /// Whether this is a list's column of labels, which are labels already, and no field.
    pub fn is_own_label(&self, name: &str) -> bool {
        self.kind == DatasetKind::FileList
            && LABEL_COLUMNS.contains(&name)
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
    /// a name's place among them. Where all texts are whole numbers, they are labels as they stand, and there
    /// are no names; where some are not, the numbers of a list are names as well.
    ///
    /// Opening does this for the field that [`FetchLabeled`](crate::FetchLabeled) takes; it is to be called
    /// for another one. Of other kinds of data sets nothing is changed.
    ///
    /// # Errors
    /// What the fetcher answers; `Corrupt` or `Truncated` where the column is damaged; `LimitExceeded` for
    /// more than 1,000,000 names.
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
        self.take_names(names);
        Ok(())
    }

    /// The same of a list, whose fields need not be read. An empty cell names no class.
    fn name_classes_of_list(&mut self, label: &str) -> Result<()> {
        let (mut names, mut has_numbers) = (BTreeSet::new(), false);
        for number in 0..self.samples.len() {
            // What cannot be read is told in its turn.
            let Ok(row) = self.samples.item(number) else { continue };
            let field = row.fields.iter().find(|(name, _)| **name == *label);
            let Some((_, StoredField::Known(value))) = field else { continue };
            let text = match value {
                FieldValue::Integer(number) => {
                    has_numbers = true;
                    Cow::Owned(number.to_string())
                }
                value => Cow::Borrowed(value.as_str().unwrap_or_default()),
            };
            if !text.trim().is_empty() && !names.contains(&*text) {
                names.insert(text.into_owned());
                check_count(label, &names)?;
            }
        }
        self.take_names(names);
        if has_numbers && !self.classes.is_empty() {
            let (rows, column) = (Arc::clone(&self.samples), label.into());
            self.samples = Arc::new(NumbersAsNames { rows, column });
        }
        Ok(())
    }

    /// Texts that are all whole numbers are no names.
    fn take_names(&mut self, names: BTreeSet<String>) {
        let are_numbers = names.iter().all(|name| name.trim().parse::<i64>().is_ok());
        self.classes = if are_numbers { Vec::new() } else { names.into_iter().collect() };
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

/// A list of which the whole numbers in one column are names of classes, as others there are texts.
#[derive(Debug)]
struct NumbersAsNames {
    rows: Arc<dyn Dataset<Item = StoredRecord>>,
    column: Arc<str>,
}

impl Dataset for NumbersAsNames {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.rows.len()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let mut row = self.rows.item(index)?;
        for (name, field) in &mut row.fields {
            if let (true, StoredField::Known(value)) = (*name == self.column, field)
                && let FieldValue::Integer(number) = value
            {
                *value = FieldValue::Text(number.to_string().into());
            }
        }
        Ok(row)
    }

    fn content_hash(&self) -> Option<u64> {
        self.rows.content_hash()
    }

    fn key(&self, row: &StoredRecord) -> Option<Arc<str>> {
        self.rows.key(row)
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
