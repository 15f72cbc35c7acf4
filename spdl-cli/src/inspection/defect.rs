//! What is wrong with a data set, and how it is told.

use spdl_core::{Error, ErrorKind};
use spdl_io::Key;

use crate::ui::format::printable;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Defect {
    /// The number of its archive; 0 for files of a folder.
    pub(crate) archive: usize,
    /// The member, where it is one.
    pub(crate) name: Option<Key>,
    pub(crate) offset: Option<u64>,
    pub(crate) kind: ErrorKind,
    pub(crate) reason: String,
}

impl Defect {
    pub(crate) fn new(archive: usize, name: Option<Key>, error: &Error) -> Self {
        // The offset is told by itself.
        let mut reason = error.message().to_owned();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let told = error.to_string();
            // A cause may be for programs alone.
            if !told.is_empty() {
                reason = format!("{reason}: {told}");
            }
            cause = error.source();
        }
        Defect { archive, name, offset: error.offset(), kind: error.kind(), reason }
    }

    pub(crate) fn corrupt(archive: usize, name: Option<Key>, reason: impl Into<String>) -> Self {
        Defect { archive, name, offset: None, kind: ErrorKind::Corrupt, reason: reason.into() }
    }

    /// That the data of a member, which begin there in the archive, are damaged.
    pub(crate) fn in_member(archive: usize, name: Key, start: Option<u64>, error: &Error) -> Self {
        let mut defect = Defect::new(archive, Some(name), error);
        // Offsets of decoders are those in the member.
        defect.offset = start.map(|start| start + defect.offset.unwrap_or(0)).or(defect.offset);
        defect
    }

    /// The kind and the reason, for people.
    pub(crate) fn describe(&self) -> String {
        format!("{}: {}", self.kind, printable(&self.reason))
    }
}
