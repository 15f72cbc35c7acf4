//! Whether samples have labels, and what is told where none has one.

use std::collections::BTreeSet;

use spdl_core::{Dataset, Error, ErrorKind};

use super::{DatasetKind, OpenedDataset};
use crate::StoredRecord;
use crate::datasets::file_list::LABEL_COLUMNS;
use crate::fetch_record::LABEL_FIELDS;

/// So many samples are looked at.
const LOOKED_AT: u64 = 1000;
/// So many names of fields are told.
const MOST_TOLD: usize = 20;

impl OpenedDataset {
    /// Whether the classes are the data set's own, and not those of a field: they are folders, in tar
    /// archives too, or the rows of a list name them.
    pub fn has_own_classes(&self) -> bool {
        match self.kind {
            DatasetKind::ImageFolder | DatasetKind::FileList => true,
            _ => self.first_samples().any(|sample| sample.label >= 0),
        }
    }

    /// A warning where no sample has a label by the [usual names](crate::FetchLabeled::new), so that all
    /// are −1, with the names that there are. It is for whoever wants labels, and has not said which field
    /// they are.
    ///
    /// The first 1,000 samples are looked at. `None` where one of them has a label, and where nobody can
    /// expect any: of images in one folder, and of a list of nothing but files.
    pub fn unlabeled(&self) -> Option<Error> {
        let fetch = self.fetch_labeled();
        let mut there = BTreeSet::new();
        for sample in self.first_samples() {
            if sample.label >= 0 || fetch.fields_of(&sample).1.is_some() {
                return None;
            }
            there.extend(sample.names().take(MOST_TOLD).map(str::to_owned));
        }
        let looked_for = match self.kind {
            DatasetKind::ImageFolder => return None,
            DatasetKind::FileList => {
                there.remove("file");
                format!("the columns {}", quoted(LABEL_COLUMNS))
            }
            DatasetKind::TarShards => format!(
                "the fields {}, and in folders that are classes for certain",
                quoted(LABEL_FIELDS)
            ),
            _ => format!("the fields {}", quoted(LABEL_FIELDS)),
        };
        if there.is_empty() {
            return None;
        }
        let samples = match self.samples.len() <= LOOKED_AT {
            true => "no sample".to_owned(),
            false => format!("none of the first {LOOKED_AT} samples"),
        };
        let there = quoted(there.iter().take(MOST_TOLD));
        let message = format!(
            "{samples} has a label, so all are -1: they were looked for in {looked_for}. There are \
             {there}; `label_field` of Python's `ImageLoader`, `--label-field`, or \
             `FetchLabeled::with_label_fields` in Rust says which one is the label"
        );
        Some(Error::new(ErrorKind::NotFound, message))
    }

    /// Those of the first samples that can be read.
    fn first_samples(&self) -> impl Iterator<Item = StoredRecord> {
        (0..self.samples.len().min(LOOKED_AT)).filter_map(|number| self.samples.item(number).ok())
    }
}

fn quoted(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names = names.into_iter().map(|name| format!("`{}`", name.as_ref()));
    names.collect::<Vec<_>>().join(", ")
}
