//! [`FileListOptions`]: the path and label columns of a list, and its size limit.

use super::columns::{FILE_FIELD, LABEL_COLUMNS};

/// Options of [`FileList`](super::FileList).
#[derive(Clone, Debug)]
pub struct FileListOptions {
    pub(super) path: Option<String>,
    /// A path column that is tried before the default ones.
    pub(super) first_path: Option<String>,
    pub(super) label: Option<String>,
    /// Further columns that name files.
    pub(super) files: Vec<String>,
    /// Path columns that are tried after the default ones.
    pub(super) other_paths: Vec<String>,
    /// The label columns that are tried if `label` is not set.
    pub(super) default_labels: Vec<&'static str>,
    /// Columns that the caller reads as values.
    pub(super) values: Vec<String>,
    pub(super) max_bytes: u64,
}

impl Default for FileListOptions {
    /// Default column names, and a limit of 1 GiB.
    fn default() -> Self {
        FileListOptions {
            path: None,
            first_path: None,
            label: None,
            files: Vec::new(),
            other_paths: Vec::new(),
            default_labels: LABEL_COLUMNS.to_vec(),
            values: Vec::new(),
            max_bytes: 1 << 30,
        }
    }
}

impl FileListOptions {
    /// Sets the path column. The first CSV row is then a header.
    #[must_use]
    pub fn path_column(mut self, name: impl Into<String>) -> Self {
        self.path = Some(name.into());
        self
    }

    /// Sets the label column. The first CSV row is then a header.
    #[must_use]
    pub fn label_column(mut self, name: impl Into<String>) -> Self {
        self.label = Some(name.into());
        self
    }

    /// Sets further columns that name files, such as the masks of images. The field with the name of the
    /// column then holds the bytes of the file; it is null if the cell is empty, or if a JSON object lacks a
    /// member that another one has. Default: none.
    #[must_use]
    pub fn file_columns(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.files = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets columns that are tried as the path column after the default ones. Default: none.
    #[must_use]
    pub fn other_path_columns(
        mut self,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.other_paths = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the columns that the caller reads as values, if it reads no files. A CSV list that has one of them
    /// needs no path column. Default: none.
    #[must_use]
    pub fn value_columns(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.values = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the maximum size of a list, in bytes, which must be below 4 GiB (larger values count as
    /// 4 GiB − 1). Default: 1 GiB.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Sets the path column to the column `name`. Every path column becomes the field `file`. If
    /// `name` is `file`, the column `file` is therefore tried first, and then the default path
    /// columns.
    pub(crate) fn image_field(mut self, name: &str) -> Self {
        match name {
            FILE_FIELD => self.first_path = Some(name.to_owned()),
            _ => self.path = Some(name.to_owned()),
        }
        self
    }

    /// Removes all default label columns except `name`.
    pub(crate) fn label_field(mut self, name: &str) -> Self {
        self.default_labels.retain(|column| *column == name);
        self
    }

    pub(super) fn limit(&self) -> u64 {
        self.max_bytes.min(u64::from(u32::MAX))
    }
}
