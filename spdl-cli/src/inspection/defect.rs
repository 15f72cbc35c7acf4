//! A defect of a data set.

use spdl_core::{Error, ErrorKind};
use spdl_io::Key;

use crate::ui::format::printable;

/// A corrupt, missing or unreadable part of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Defect {
    /// The index of the archive with the defect, counted from 0; 0 for data sets without archives.
    pub(crate) archive: usize,
    /// The name of the member; `None` for defects of the archive itself.
    pub(crate) name: Option<Key>,
    pub(crate) offset: Option<u64>,
    pub(crate) kind: ErrorKind,
    pub(crate) reason: String,
}

impl Defect {
    pub(crate) fn new(archive: usize, name: Option<Key>, error: &Error) -> Self {
        // The text omits the offset, because the offset is a separate field.
        let mut reason = error.message().to_owned();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let message = error.to_string();
            // A source error without a message is not useful to a person.
            if !message.is_empty() {
                reason = format!("{reason}: {message}");
            }
            cause = error.source();
        }
        Defect { archive, name, offset: error.offset(), kind: error.kind(), reason }
    }

    pub(crate) fn corrupt(archive: usize, name: Option<Key>, reason: impl Into<String>) -> Self {
        Defect { archive, name, offset: None, kind: ErrorKind::Corrupt, reason: reason.into() }
    }

    /// A defect in the data of a member. `start` is the offset of the data in the archive.
    pub(crate) fn in_member(archive: usize, name: Key, start: Option<u64>, error: &Error) -> Self {
        let mut defect = Defect::new(archive, Some(name), error);
        // Decoders report offsets within the member.
        defect.offset = start.map(|start| start + defect.offset.unwrap_or(0)).or(defect.offset);
        defect
    }

    /// The error kind and the reason.
    pub(crate) fn describe(&self) -> String {
        format!("{}: {}", self.kind, printable(&self.reason))
    }
}
