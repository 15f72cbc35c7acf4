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

    /// How many classes were found in the folders of tar shards: a guess, which is to be told.
    pub fn classes_in_folders(&self) -> Option<usize> {
        let is_guess = self.kind == DatasetKind::TarShards && self.has_own_classes();
        is_guess.then_some(self.classes.len())
    }

    /// A warning where no sample has a label by the [usual names](crate::FetchLabeled::new), so that all
    /// are −1, with the names that there are. It is for whoever wants labels, and has not said which field
    /// they are.
    ///
    /// The first 1,000 samples are looked at. `None` where one of them has a label, and where nobody can
    /// expect any: of images in one folder, and of a list of nothing but files.
    pub fn unlabeled(&self) -> Option<Error> {
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
            there.remove("file");
        }
        let looked_for = match self.kind {
            // Of samples that all are damaged nobody knows.
            _ if !is_known => return None,
            DatasetKind::ImageFolder => return None,
            DatasetKind::FileList if there.is_empty() => return None,
            DatasetKind::FileList => format!("the columns {}", quoted(LABEL_COLUMNS)),
            DatasetKind::TarShards => format!(
                "the fields {}, and in folders, which are no classes where all are named as parts \
                 (`train`, `val`) or are numbers of one length (`00`, `3f`)",
                quoted(LABEL_FIELDS)
            ),
            _ => format!("the fields {}", quoted(LABEL_FIELDS)),
        };
        let samples = match self.samples.len() <= LOOKED_AT {
            true => "no sample".to_owned(),
            false => format!("none of the first {LOOKED_AT} samples"),
        };
        let advice = match (there.is_empty(), self.kind) {
            (false, _) => format!(
                "There are {}; `label_field` of Python's `ImageLoader`, `--label-field`, or \
                 `FetchLabeled::with_label_fields` in Rust says which one is the label",
                quoted(there.iter().take(MOST_TOLD))
            ),
            (true, DatasetKind::TarShards) => {
                "There is nothing but images: put them into folders of classes, or add a `.cls` \
                 beside each"
                    .to_owned()
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
