//! Rows of a list that are addresses, and not paths.

use spdl_core::{Error, ErrorKind, Result};

use super::{FileList, ListFormat, located};
use crate::{Address, Key};

/// What rows mean that are addresses.
pub(super) enum RowAddresses {
    /// Keys, for fetchers that know what to do with them.
    AsTheyStand,
    /// Objects of the store with this address; files of this machine where there is none.
    InStore(Option<Box<str>>),
}

impl RowAddresses {
    /// The key of a row that is an address in the list's own store; `None` for a path.
    ///
    /// # Errors
    /// `InvalidArgument` where it lies elsewhere, or holds a password or a signature.
    pub(super) fn key_of(&self, path: &[u8]) -> Option<Result<Key>> {
        let RowAddresses::InStore(store) = self else { return None };
        let text = std::str::from_utf8(path).ok().filter(|text| text.contains("://"))?;
        match Address::parse(text) {
            // What stands before the colon is no scheme.
            Ok(address) if address.scheme() == "file" && address.key().as_bytes() == path => None,
            Ok(address) => Some(own_key(&address, store.as_deref())),
            Err(error) => Some(Err(error)),
        }
    }
}

/// The key of an address in that store.
fn own_key(address: &Address, store: Option<&str>) -> Result<Key> {
    let is_own = match store {
        None => address.scheme() == "file",
        Some(store) if address.scheme().starts_with("http") => {
            address.store().eq_ignore_ascii_case(store)
        }
        Some(store) => address.store() == store,
    };
    let fault = if !is_own {
        "it lies elsewhere than the list, and files of a list are read from the list's own store"
    } else if address.user().is_some() || address.query().is_some() {
        "it holds a password or a signature, and files of a list are read with those of the list"
    } else {
        return Ok(address.key().clone());
    };
    let message = format!("the file {address} of a row cannot be read: {fault}");
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

impl FileList {
    /// The same list where rows that are addresses must lie in this store, and are read from it; of none,
    /// they are files of this machine.
    ///
    /// # Errors
    /// `InvalidArgument` for the first row that lies elsewhere, or holds a password or a signature.
    pub(crate) fn in_store(mut self, store: Option<&str>) -> Result<Self> {
        self.addresses = RowAddresses::InStore(store.map(Into::into));
        // JSON may write a slash in several ways.
        let is_odd = |pair: &[u8]| {
            pair == b":/" || (self.format == ListFormat::JsonLines && pair.contains(&b'\\'))
        };
        if !self.text.windows(2).any(is_odd) {
            return Ok(self);
        }
        for &start in &self.starts {
            let start = start as usize;
            let (row, end) = self.row(&self.text, start)?;
            let Some(Err(error)) = self.addresses.key_of(&row.path) else { continue };
            // Where it is written otherwise, the row is where it is.
            let written = self.text[start..end].windows(row.path.len());
            let at = written.into_iter().position(|text| text == &*row.path).unwrap_or(0);
            let error = located(error.with_offset((start + at) as u64), &self.text);
            return Err(match &self.shown {
                Some(shown) => error.with_key(shown.clone()),
                None => error,
            });
        }
        Ok(self)
    }
}
