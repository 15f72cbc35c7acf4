//! [`Parts`]: the fetch stages of a source that consists of several data sets.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::StoredRecord;
use crate::fetch::address_in;

/// The stage for the samples of each data set, by [`StoredRecord::part`]. Empty if the source is one data set.
#[derive(Clone, Debug)]
pub(super) struct Parts<S>(Arc<[Part<S>]>);

#[derive(Clone, Debug)]
pub(super) struct Part<S> {
    pub(super) stage: S,
    /// The address of the store; `None` for local files.
    pub(super) store: Option<Arc<str>>,
}

impl<S> Parts<S> {
    pub(super) fn new(parts: impl IntoIterator<Item = (S, Option<Arc<str>>)>) -> Self {
        Parts(parts.into_iter().map(|(stage, store)| Part { stage, store }).collect())
    }

    /// The stage for a sample; `None` if the source is one data set.
    pub(super) fn of(&self, item: &StoredRecord) -> Result<Option<&Part<S>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let found = usize::try_from(item.part).ok().and_then(|part| self.0.get(part));
        found.map(Some).ok_or_else(|| {
            let (part, parts) = (item.part, self.0.len());
            let message =
                format!("the sample is of data set {part}, but the stage has only {parts}");
            Error::new(ErrorKind::InvalidArgument, message).with_key(item.key.display_name())
        })
    }

    pub(super) fn map<T>(&self, change: impl Fn(&Part<S>) -> T) -> Parts<T> {
        Parts::new(self.0.iter().map(|part| (change(part), part.store.clone())))
    }

    /// Changes each stage by the stage of the same data set in `others`.
    pub(super) fn zip<T>(&self, others: &Parts<T>, change: impl Fn(S, &T) -> S) -> Self
    where
        S: Clone,
    {
        let pairs = self.0.iter().zip(&*others.0);
        Parts::new(
            pairs.map(|(part, other)| {
                (change(part.stage.clone(), &other.stage), part.store.clone())
            }),
        )
    }
}

impl<S> Part<S> {
    /// Replaces the key of an error by its full address, because the source may have several stores.
    pub(super) fn with_address<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match (error.key(), self.store.as_deref()) {
            (Some(key), store @ Some(_)) => {
                let address = address_in(store, key);
                error.renamed(address)
            }
            _ => error,
        })
    }
}

impl<S> Default for Parts<S> {
    fn default() -> Self {
        Parts(Arc::default())
    }
}
