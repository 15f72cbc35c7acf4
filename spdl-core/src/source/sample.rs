//! Who a sample is: its epoch and its position in it; and a value with its class.

use std::fmt;
use std::mem::size_of;

use crate::memory::footprint::{Footprint, fixed_heap, heap};

/// The identity of a sample within a run.
///
/// It decides the sample's randomness, its place in an ordered output and its line in a report. It
/// does not depend on threads, queues or timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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

impl Footprint for SampleId {
    const FIXED: Option<usize> = Some(size_of::<SampleId>());
    fn footprint(&self) -> usize {
        size_of::<SampleId>()
    }
}

impl<T: Footprint> Footprint for Labeled<T> {
    const FIXED: Option<usize> = match fixed_heap::<T>() {
        Some(heap) => Some(size_of::<Self>() + heap),
        None => None,
    };
    fn footprint(&self) -> usize {
        heap(&self.value).saturating_add(size_of::<Self>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labeled_value_holds_its_value_and_its_label() {
        let bytes = bytes::Bytes::from(vec![0; 1000]);
        let labeled = Labeled { value: bytes, label: 3 };
        assert_eq!(labeled.footprint(), size_of_val(&labeled) + 1000);
        assert_eq!(<Labeled<u64> as Footprint>::FIXED, Some(16));
        assert_eq!(SampleId::default().footprint(), 16);
    }
}
