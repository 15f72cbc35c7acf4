//! Who an item is: the identity that travels with every sample from the source to the batch.

use std::fmt;
use std::sync::Arc;

/// The identity of a sample within a run.
///
/// It decides the sample's randomness, its place in an ordered output and its line in a report. It
/// does not depend on threads, queues or timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleId {
    /// The pass over the data, counted from 0.
    pub epoch: u64,
    /// The position in the epoch's global order, counted from 0.
    pub index: u64,
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, sample {}", self.epoch, self.index)
    }
}

/// A value with its class: what an image folder yields, a fetch carries on, and a batch takes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labeled<T> {
    /// The value: first a key, later bytes.
    pub value: T,
    /// The class, counted from 0; −1 where there is none.
    pub label: i64,
}

impl<T> Labeled<T> {
    /// The same label on another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Labeled<U> {
        Labeled { value: f(self.value), label: self.label }
    }
}

/// An item on its way: the value, who it is, and what people call it.
#[derive(Debug)]
pub(crate) struct Envelope<T> {
    pub(crate) id: SampleId,
    /// The path, object key or member name, for messages.
    pub(crate) key: Option<Arc<str>>,
    pub(crate) value: T,
}

impl<T> Envelope<T> {
    pub(crate) fn with<U>(&self, value: U) -> Envelope<U> {
        Envelope { id: self.id, key: self.key.clone(), value }
    }
}
