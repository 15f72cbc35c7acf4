//! Identity of a sample, and values with a label.

use std::fmt;
use std::mem::size_of;
use std::ops::Range;

use crate::memory::footprint::{Footprint, fixed_heap, heap};

/// The identity of a sample within a run: its epoch and position.
///
/// Together with the seed and the stage, the identity determines the random numbers of the sample.
/// The identity also determines the sample's place in ordered outputs and reports. The identity
/// does not depend on threads, queues or timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SampleId {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The position in the global order of the epoch, counted from 0. Samples that
    /// [`Remainder::Pad`](crate::source::Remainder::Pad) repeats have indices from the end of the
    /// epoch on. If a pipeline merges or zips several sources, the indices of source *n*, counted from 0 in the
    /// order of the branches, begin at *n* · 2⁴⁸.
    pub index: u64,
}

/// The distance between the first indices of the sources of one pipeline.
const SOURCE_INDICES: u64 = 1 << 48;

impl SampleId {
    /// The indices of the samples of source number `source`.
    pub(crate) fn indices_of(source: usize) -> Range<u64> {
        let start = (source as u64).saturating_mul(SOURCE_INDICES);
        start..start.saturating_add(SOURCE_INDICES)
    }

    /// The number of the source.
    pub(crate) fn source(self) -> usize {
        (self.index / SOURCE_INDICES) as usize
    }
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, sample {}", self.epoch, self.index % SOURCE_INDICES)?;
        match self.source() {
            0 => Ok(()),
            source => write!(f, " of source {source}"),
        }
    }
}

/// A value with its class label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labeled<T> {
    /// The value: first a key, then the bytes that were read, then the decoded data.
    pub value: T,
    /// The class, counted from 0; −1 without a label.
    pub label: i64,
}

impl<T> Labeled<T> {
    /// Applies `f` to the value and keeps the label.
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
    fn the_footprint_of_a_labeled_value_includes_value_and_label() {
        let bytes = bytes::Bytes::from(vec![0; 1000]);
        let labeled = Labeled { value: bytes, label: 3 };
        assert_eq!(labeled.footprint(), size_of_val(&labeled) + 1000);
        assert_eq!(<Labeled<u64> as Footprint>::FIXED, Some(16));
        assert_eq!(SampleId::default().footprint(), 16);
    }
}
