//! How a list is read: which columns are path and label, and how long it may be.

use super::columns::{FILE_FIELD, LABEL_COLUMNS};
use crate::records::OptionNames;

/// How a [`FileList`](super::FileList) is read.
#[derive(Clone, Debug)]
pub struct FileListOptions {
    pub(super) path: Option<String>,
    /// What is looked for as a path before the usual names.
    pub(super) first_path: Option<String>,
    pub(super) label: Option<String>,
    /// Whether labels are looked for by their usual names; by one of these alone, where there are some.
    pub(super) usual_labels: Vec<&'static str>,
    pub(super) max_bytes: u64,
    pub(super) option_names: OptionNames,
}

impl Default for FileListOptions {
    /// Columns by their usual names, and lists of up to 1 GiB.
    fn default() -> Self {
        let option_names = OptionNames {
            image_field: "`FileListOptions::path_column`",
            label_field: "`FileListOptions::label_column`",
            ..OptionNames::default()
        };
        FileListOptions {
            path: None,
            first_path: None,
            label: None,
            usual_labels: LABEL_COLUMNS.to_vec(),
            max_bytes: 1 << 30,
            option_names,
        }
    }
}

impl FileListOptions {
    /// The column that names the file. The first row of CSV is then a header.
    #[must_use]
    pub fn path_column(mut self, name: impl Into<String>) -> Self {
        self.path = Some(name.into());
        self
    }

    /// The column that names the class. The first row of CSV is then a header.
    #[must_use]
    pub fn label_column(mut self, name: impl Into<String>) -> Self {
        self.label = Some(name.into());
        self
    }

    /// The most bytes of a list; more than 4 GiB are never read. Default: 1 GiB.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The field of a data set that is its image: the column of this name, or, of `file`, which is what the
    /// field of the files is called, another one where there is none of that name.
    pub(crate) fn image_field(mut self, name: &str) -> Self {
        match name {
            FILE_FIELD => self.first_path = Some(name.to_owned()),
            _ => self.path = Some(name.to_owned()),
        }
        self
    }

    /// Takes this one alone of the usual columns of labels, or none of them.
    pub(crate) fn label_field(mut self, name: &str) -> Self {
        self.usual_labels.retain(|usual| *usual == name);
        self
    }

    /// Calls options so in messages.
    pub(crate) fn option_names(mut self, names: OptionNames) -> Self {
        self.option_names = names;
        self
    }

    pub(super) fn limit(&self) -> u64 {
        self.max_bytes.min(u64::from(u32::MAX))
    }
}
