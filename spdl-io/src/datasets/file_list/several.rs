//! [`FileLists`]: several lists with the same columns as one data set.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::{BoxFields, FileList};
use crate::datasets::common::ContentHash;
use crate::datasets::sharded::{Shard, Shards};
use crate::records::StoredRecord;

/// Lists, one after the other.
///
/// The classes are the names of all lists, sorted, if the lists have different names.
pub(crate) struct FileLists {
    lists: Shards<FileList>,
    classes: Vec<String>,
}

impl Shard for FileList {
    fn rows(&self) -> u64 {
        self.len()
    }
}

impl FileLists {
    /// `lists` must not be empty.
    ///
    /// # Errors
    /// `InvalidArgument` for lists of different formats or columns, and if the labels of one list are integers, and
    /// those of another one are names.
    pub(crate) fn new(mut lists: Vec<FileList>) -> Result<Self> {
        for list in &lists[1..] {
            list.check_like(&lists[0])?;
        }
        let first = lists[0].classes.clone();
        if lists.iter().all(|list| list.classes == first) {
            return Ok(FileLists { lists: Shards::new(lists)?, classes: first });
        }
        let has_numbers =
            |list: &&FileList| list.classes.is_empty() && list.labels.iter().any(|it| *it >= 0);
        if let Some(list) = lists.iter().find(has_numbers) {
            let message =
                "the labels of this list are integers, and those of another list are names";
            return Err(list.named(Error::new(ErrorKind::InvalidArgument, message)));
        }
        let classes: BTreeSet<String> =
            lists.iter().flat_map(|list| list.classes.iter().cloned()).collect();
        let classes: Vec<String> = classes.into_iter().collect();
        for list in &mut lists {
            list.number_by(&classes);
        }
        Ok(FileLists { lists: Shards::new(lists)?, classes })
    }

    fn first(&self) -> Option<&FileList> {
        self.lists.iter().next()
    }

    /// The number of rows without a label, and the first such row.
    pub(crate) fn unlabeled(&self) -> Option<(u64, u64)> {
        let (mut start, mut all) = (0, None);
        for list in self.lists.iter() {
            if let Some((count, row)) = list.unlabeled {
                let (before, first) = all.unwrap_or((0, start + row));
                all = Some((before + count, first));
            }
            start += list.len();
        }
        all
    }

    /// Whether the labels come from the default column `name`.
    pub(crate) fn has_label_column(&self, name: &str) -> bool {
        self.lists.iter().any(|list| list.has_label_column(name))
    }

    /// Whether the columns have names.
    pub(crate) fn has_named_columns(&self) -> bool {
        self.first().is_some_and(|list| list.columns.are_named)
    }

    /// The fields with one value per box that annotations define.
    pub(crate) fn box_fields(&self) -> BoxFields {
        self.first().map_or(&[], |list| list.box_fields)
    }

    /// The class names; a label is an index.
    pub(crate) fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The errors of samples whose annotations are missing or damaged.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Error> {
        self.lists.iter().flat_map(|list| list.failures.values())
    }

    /// The first local path for which `condition` holds.
    pub(crate) fn first_path(&self, condition: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        self.lists.iter().find_map(|list| list.first_path(&condition))
    }
}

impl FileList {
    /// # Errors
    /// `InvalidArgument` if the other list has another format or other columns.
    fn check_like(&self, other: &FileList) -> Result<()> {
        let (own, others) = (self.column_names(), other.column_names());
        if self.format == other.format && own == others {
            return Ok(());
        }
        let message = format!(
            "cannot open several lists with different columns: this one is {}, and {:?} is {}",
            shown(self, &own),
            other.name.as_deref().unwrap_or_default(),
            shown(other, &others),
        );
        Err(self.named(Error::new(ErrorKind::InvalidArgument, message)))
    }

    /// The sorted names of the columns of CSV with a header.
    fn column_names(&self) -> Vec<&str> {
        if !self.columns.are_named {
            return Vec::new();
        }
        let mut names: Vec<&str> = self.columns.names.iter().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// Numbers the labels by another list of names, which has all names of this list.
    fn number_by(&mut self, classes: &[String]) {
        let number = |name: &String| classes.binary_search(name).map_or(-1, |at| at as i64);
        let numbers: Vec<i64> = self.classes.iter().map(number).collect();
        for label in &mut self.labels {
            *label = usize::try_from(*label).map_or(-1, |label| numbers[label]);
        }
        self.classes = classes.to_vec();
    }

    fn named(&self, error: Error) -> Error {
        match &self.name {
            Some(name) => error.with_key(Arc::clone(name)),
            None => error,
        }
    }
}

/// The format and the columns of a list, for messages.
fn shown(list: &FileList, names: &[&str]) -> String {
    match names {
        [] => format!("{:?} without a header", list.format),
        names => format!("{:?} with the columns {}", list.format, names.join(", ")),
    }
}

impl Dataset for FileLists {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.lists.total()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let (list, row) = self.lists.locate(index)?;
        list.item(row)
    }

    /// A hash of the texts of the lists, independent of their location.
    fn content_hash(&self) -> Option<u64> {
        let mut hashes = self.lists.iter().filter_map(FileList::content_hash);
        if self.lists.len() == 1 {
            return hashes.next();
        }
        let mut hash = ContentHash::new("lists");
        hashes.for_each(|list| hash.number(list));
        Some(hash.finish())
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}

impl fmt::Debug for FileLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lists.iter()).finish()
    }
}
