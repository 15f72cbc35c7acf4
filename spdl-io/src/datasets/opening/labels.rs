//! Checks whether samples have labels, and the warnings about missing labels.

use std::collections::BTreeSet;
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind};

use super::{DatasetKind, OpenedDataset};
use crate::datasets::WebDataset;
use crate::datasets::file_list::{FILE_FIELD, FileLists, LABEL_COLUMNS};
use crate::records::{FetchLabeled, LABEL_FIELDS, Remedy, StoredRecord};

/// The number of samples that are examined.
const EXAMINED: u64 = 1000;
/// The maximum number of field names in a message.
const MAX_LISTED: usize = 20;

/// The number of samples with an image but without a label.
#[derive(Clone, Debug)]
pub(super) struct Unlabeled {
    count: u64,
    /// The number of samples with an image.
    of: u64,
    /// The key of the first sample without a label.
    first: Arc<str>,
}

impl Unlabeled {
    /// For archives whose folders are not classes. `None` if all samples have a label.
    pub(super) fn in_archives(samples: &WebDataset, fetch: &FetchLabeled) -> Option<Self> {
        let (of, count, first) = samples.without_label(fetch);
        Some(Unlabeled { count, of, first: first?.display_name() })
    }

    /// For file lists. `None` if each row has a label.
    pub(super) fn in_lists(list: &FileLists) -> Option<Self> {
        let (count, first) = list.unlabeled()?;
        let first = list.item(first).ok()?.key.display_name();
        Some(Unlabeled { count, of: list.len(), first })
    }

    /// For a column with `count` empty texts, of which the first is in row `first`.
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
    /// Whether the data set assigns the classes, by folders or by the rows of a list, instead of a field.
    pub fn has_own_classes(&self) -> bool {
        match self.kind {
            DatasetKind::ImageFolder | DatasetKind::FileList => true,
            _ => self.first_samples().any(|sample| sample.label >= 0),
        }
    }

    /// The number of classes that were derived from folder names in tar shards or zip archives; `None` if no
    /// folders are classes. A caller should report the number, because the classes are a guess.
    pub fn classes_in_folders(&self) -> Option<usize> {
        let is_archive = matches!(self.kind, DatasetKind::TarShards | DatasetKind::ZipShards);
        let is_guess = is_archive && self.has_own_classes();
        is_guess.then_some(self.classes.len())
    }

    /// A warning if samples have no label, and therefore get the label −1.
    ///
    /// The warning states that no sample has a label, or how many samples have none. Callers that
    /// do not use labels can ignore the warning. If
    /// [`label_field`](super::OpenOptions::label_field) is set to a field other than the label
    /// column of a file list, each sample without this field is an error instead.
    ///
    /// In tar shards, file lists and the label column of Parquet files, all samples are counted.
    /// Otherwise, the first 1,000 samples are examined, and the result is `None` if one of them has
    /// a label. The result is also `None` for data sets without labels: a folder of images, and a
    /// list of paths.
    pub fn unlabeled(&self) -> Option<Error> {
        let named = self.options.label_field.as_deref();
        if named.is_some_and(|name| !self.is_own_label(name)) {
            return None;
        }
        match &self.unlabeled {
            Some(some) if some.count < some.of || self.kind.has_columns() => {
                Some(self.some_unlabeled(some))
            }
            _ => self.all_unlabeled(),
        }
    }

    /// The warning if some, but not all samples have no label, or if all texts of the label column
    /// of Parquet files are empty.
    fn some_unlabeled(&self, unlabeled: &Unlabeled) -> Error {
        let Unlabeled { count, of, first } = unlabeled;
        let reason = match self.kind {
            DatasetKind::FileList | DatasetKind::Parquet | DatasetKind::Samples => {
                "the label is empty or missing in these rows".to_owned()
            }
            _ => format!("none of the fields {} exists", quoted(LABEL_FIELDS)),
        };
        let have = if *count == 1 { "has" } else { "have" };
        let message = format!(
            "{count} of {of} samples {have} no label and will get the label -1, starting with this \
             one: {reason}"
        );
        Error::new(ErrorKind::NotFound, message).with_key(first.clone())
    }

    /// The warning if no sample has a label.
    fn all_unlabeled(&self) -> Option<Error> {
        let fetch = self.fetch_labeled();
        let (mut others, mut is_known) = (BTreeSet::new(), false);
        for sample in self.first_samples() {
            is_known = true;
            let (image, label) = fetch.fields_of(&sample);
            if sample.label >= 0 || label.is_some() {
                return None;
            }
            let more = sample.names().filter(|name| image.as_deref() != Some(*name));
            others.extend(more.take(MAX_LISTED).map(str::to_owned));
        }
        if self.kind == DatasetKind::FileList {
            others.remove(FILE_FIELD);
        }
        let reason = match self.kind {
            // No sample could be read.
            _ if !is_known => return None,
            DatasetKind::ImageFolder => return None,
            DatasetKind::FileList if !self.has_named_columns => return None,
            DatasetKind::FileList => {
                format!("none of the columns {} exists", quoted(LABEL_COLUMNS))
            }
            DatasetKind::TarShards | DatasetKind::ZipShards => format!(
                "none of the fields {} exists, and no folder names a class (names of splits, such as \
                 `train`, and of hashes, such as `3f`, do not count)",
                quoted(LABEL_FIELDS)
            ),
            _ => format!("none of the fields {} exists", quoted(LABEL_FIELDS)),
        };
        let are_all = self.unlabeled.is_some() || self.samples.len() <= EXAMINED;
        let samples = match are_all {
            true => "no sample".to_owned(),
            false => format!("none of the first {EXAMINED} samples"),
        };
        let has_others = !others.is_empty();
        let other_fields = match (has_others, self.kind) {
            (true, DatasetKind::FileList) => {
                format!("other columns are {}", quoted(others.iter().take(MAX_LISTED)))
            }
            (true, _) => format!("other fields are {}", quoted(others.iter().take(MAX_LISTED))),
            (false, DatasetKind::TarShards | DatasetKind::ZipShards) => {
                "the archives contain only images; put the images into one folder per class, or add \
                 a `.cls` member for each"
                    .to_owned()
            }
            (false, DatasetKind::FileList) => "the path column is the only column".to_owned(),
            (false, _) => "the image is the only field".to_owned(),
        };
        let message =
            format!("{samples} has a label, so all labels are -1: {reason}; {other_fields}");
        let warning = Error::new(ErrorKind::NotFound, message);
        Some(if has_others { warning.with_source(Remedy::LabelField) } else { warning })
    }

    /// The first samples that can be read.
    pub(super) fn first_samples(&self) -> impl Iterator<Item = StoredRecord> {
        (0..self.samples.len().min(EXAMINED)).filter_map(|number| self.samples.item(number).ok())
    }
}

fn quoted(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names = names.into_iter().map(|name| format!("`{}`", name.as_ref()));
    names.collect::<Vec<_>>().join(", ")
}
