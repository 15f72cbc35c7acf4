//! Whether samples have labels, and what is told where none has one.

use std::collections::BTreeSet;
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind};

use super::{DatasetKind, OpenedDataset};
use crate::datasets::file_list::{FILE_FIELD, LABEL_COLUMNS};
use crate::datasets::{FileList, WebDataset};
use crate::records::{FetchLabeled, LABEL_FIELDS, StoredRecord};

/// So many samples are looked at.
const LOOKED_AT: u64 = 1000;
/// So many names of fields are told.
const MOST_TOLD: usize = 20;

/// How many samples have no label, of all that have an image.
#[derive(Clone, Debug)]
pub(super) struct Unlabeled {
    count: u64,
    of: u64,
    /// The first of them.
    first: Arc<str>,
}

impl Unlabeled {
    /// Of tar shards whose folders are no classes; `None` where all samples have a label.
    pub(super) fn in_tar(samples: &WebDataset, fetch: &FetchLabeled) -> Option<Self> {
        let (of, count, first) = samples.without_label(fetch);
        Some(Unlabeled { count, of, first: first?.display_name() })
    }

    /// Of a list; `None` where each row has a label.
    pub(super) fn in_list(list: &FileList) -> Option<Self> {
        let (count, first) = list.unlabeled()?;
        let first = list.item(first).ok()?.key.display_name();
        Some(Unlabeled { count, of: list.len(), first })
    }

    /// Of a column in which `count` texts are empty, and that of the sample `first` before all others.
    pub(super) fn in_column(
        count: u64,
        samples: &dyn Dataset<Item = StoredRecord>,
        first: u64,
    ) -> Self {
        let name = samples.item(first).map(|sample| sample.key.display_name());
        let first = name.unwrap_or_else(|_| format!("row {first}").into());
        Unlabeled { count, of: samples.len(), first }
    }
}

impl OpenedDataset {
    /// Whether the classes are the data set's own, and not those of a field: they are folders, in tar
    /// archives too, or the rows of a list name them.
    pub fn has_own_classes(&self) -> bool {
        match self.kind {
            DatasetKind::ImageFolder | DatasetKind::FileList => true,
            _ => self.first_samples().any(|sample| sample.label >= 0),
        }
    }

    /// How many classes were found in the folders of tar shards: a guess, which is to be told.
    pub fn classes_in_folders(&self) -> Option<usize> {
        let is_guess = self.kind == DatasetKind::TarShards && self.has_own_classes();
        is_guess.then_some(self.classes.len())
    }

    /// A warning where samples have no label, so that theirs is −1: all, with the names of fields that there
    /// are, or some among others, of tar shards, lists and columns of texts, with how many. It is for whoever wants labels;
    /// where a field was [named](super::OpenOptions::label_field), each sample without it is an error.
    ///
    /// Of other kinds than tar shards and lists, the first 1,000 samples are looked at. `None` where one of
    /// these has a label, and where nobody can expect any: of images in one folder, and of a list of lines.
    pub fn unlabeled(&self) -> Option<Error> {
        let named = self.options.label_field.as_deref();
        if named.is_some_and(|name| !self.is_own_label(name)) {
            return None;
        }
        match &self.unlabeled {
            Some(some) if some.count < some.of || self.kind == DatasetKind::Parquet => {
                Some(self.some_unlabeled(some))
            }
            _ => self.all_unlabeled(),
        }
    }

    /// That some samples have no label, and others have one; or that all texts of a column are empty.
    fn some_unlabeled(&self, unlabeled: &Unlabeled) -> Error {
        let Unlabeled { count, of, first } = unlabeled;
        let advice = match self.kind {
            DatasetKind::FileList => "their cells in the column of labels are empty".to_owned(),
            DatasetKind::Parquet => "their texts in the column of labels are empty".to_owned(),
            _ => format!("they have none of the fields {}", quoted(LABEL_FIELDS)),
        };
        let (have, theirs) = if *count == 1 {
            ("has", "it gets the label -1")
        } else {
            ("have", "they get the label -1")
        };
        let beside = if count < of { ", beside others that have one" } else { "" };
        let message = format!(
            "{count} of {of} samples {have} no label, this one first: {theirs}{beside} ({advice})"
        );
        Error::new(ErrorKind::NotFound, message).with_key(first.clone())
    }

    /// That no sample has a label, if that is so.
    fn all_unlabeled(&self) -> Option<Error> {
        let fetch = self.fetch_labeled();
        let (mut there, mut is_known) = (BTreeSet::new(), false);
        for sample in self.first_samples() {
            is_known = true;
            let (image, label) = fetch.fields_of(&sample);
            if sample.label >= 0 || label.is_some() {
                return None;
            }
            let others = sample.names().filter(|name| image.as_deref() != Some(*name));
            there.extend(others.take(MOST_TOLD).map(str::to_owned));
        }
        if self.kind == DatasetKind::FileList {
            there.remove(FILE_FIELD);
        }
        let looked_for = match self.kind {
            // Of samples that all are damaged nobody knows.
            _ if !is_known => return None,
            DatasetKind::ImageFolder => return None,
            DatasetKind::FileList if !self.has_named_columns => return None,
            DatasetKind::FileList => format!("the columns {}", quoted(LABEL_COLUMNS)),
            DatasetKind::TarShards => format!(
                "the fields {}, and in folders, which are no classes where all are named as parts \
                 (`train`, `val`) or as hashes are (`00`, `3f`)",
                quoted(LABEL_FIELDS)
            ),
            _ => format!("the fields {}", quoted(LABEL_FIELDS)),
        };
        let are_all = self.unlabeled.is_some() || self.samples.len() <= LOOKED_AT;
        let samples = match are_all {
            true => "no sample".to_owned(),
            false => format!("none of the first {LOOKED_AT} samples"),
        };
        let advice = match (there.is_empty(), self.kind) {
            (false, _) => format!(
                "There are {}; {} says which one is the label",
                quoted(there.iter().take(MOST_TOLD)),
                self.options.names.label_field,
            ),
            (true, DatasetKind::TarShards) => {
                "There is nothing but images: put them into folders of classes, or add a `.cls` \
                 beside each"
                    .to_owned()
            }
            (true, DatasetKind::FileList) => {
                "There is no column beside that of the files".to_owned()
            }
            (true, _) => "There is no field beside the image".to_owned(),
        };
        let message = format!(
            "{samples} has a label, so all are -1: they were looked for in {looked_for}. {advice}"
        );
        Some(Error::new(ErrorKind::NotFound, message))
    }

    /// Those of the first samples that can be read.
    pub(super) fn first_samples(&self) -> impl Iterator<Item = StoredRecord> {
        (0..self.samples.len().min(LOOKED_AT)).filter_map(|number| self.samples.item(number).ok())
    }
}

fn quoted(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names = names.into_iter().map(|name| format!("`{}`", name.as_ref()));
    names.collect::<Vec<_>>().join(", ")
}
