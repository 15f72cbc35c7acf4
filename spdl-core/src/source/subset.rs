//! [`Subset`]: chosen items of a data set, as a data set.

use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::source::dataset::Dataset;
use crate::source::sampler::hash;

/// Chosen items of a data set, in a chosen order, as a data set.
///
/// The items are named by their positions in the data set; an item may occur several times. Any order, such as a
/// shuffle, applies to the subset as to other data sets. Memory use: 16 bytes for each run of consecutive positions.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_core::source::Subset;
/// let letters = || vec!['a', 'b', 'c', 'd', 'e'];
/// let all = |subset: &Subset<Vec<char>>| -> spdl_core::Result<String> {
///     (0..subset.len()).map(|position| subset.item(position)).collect()
/// };
/// assert_eq!(all(&Subset::range(letters(), 1..3)?)?, "bc");
/// assert_eq!(all(&Subset::at(letters(), [4, 0, 4])?)?, "eae");
/// assert_eq!(all(&Subset::range(letters(), 0..2)?.repeated(2)?)?, "abab");
/// assert!(Subset::range(letters(), 3..6).is_err());
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct Subset<D> {
    dataset: D,
    runs: Vec<Run>,
    /// The number of chosen items in one pass.
    pass: u64,
    times: u64,
}

/// Consecutive positions.
#[derive(Clone, Copy)]
struct Run {
    /// The number of chosen items before the run.
    before: u64,
    /// The first position in the data set.
    first: u64,
}

impl<D: Dataset> Subset<D> {
    /// The items at `positions`, in this order.
    ///
    /// # Errors
    /// `InvalidArgument` if a position is out of range.
    pub fn at(dataset: D, positions: impl IntoIterator<Item = u64>) -> Result<Self> {
        let mut subset = Subset { dataset, runs: Vec::new(), pass: 0, times: 1 };
        let mut next = None;
        for position in positions {
            subset.check(position..position.saturating_add(1))?;
            if next != Some(position) {
                subset.runs.push(Run { before: subset.pass, first: position });
            }
            subset.pass += 1;
            next = Some(position + 1);
        }
        Ok(subset)
    }

    /// The items at the positions `range`.
    ///
    /// # Errors
    /// `InvalidArgument` if the range exceeds the data set, or ends before it starts.
    pub fn range(dataset: D, range: Range<u64>) -> Result<Self> {
        let mut subset = Subset { dataset, runs: Vec::new(), pass: 0, times: 1 };
        subset.check(range.clone())?;
        subset.runs.push(Run { before: 0, first: range.start });
        subset.pass = range.end - range.start;
        Ok(subset)
    }

    /// All items of the subset `times` times, one pass after the other. Without a shuffle, passes are in the same order.
    ///
    /// # Errors
    /// `InvalidArgument` if `times` is 0, or if there are more than 2⁶⁴ − 1 items.
    pub fn repeated(mut self, times: u64) -> Result<Self> {
        let total = self.times.checked_mul(times);
        match total.filter(|total| *total > 0 && self.pass.checked_mul(*total).is_some()) {
            Some(total) => self.times = total,
            None => {
                return Err(invalid(format!("cannot repeat {} items {times} times", self.len())));
            }
        }
        Ok(self)
    }

    fn check(&self, range: Range<u64>) -> Result<()> {
        let len = self.dataset.len();
        if range.start <= range.end && range.end <= len {
            return Ok(());
        }
        let what = match range.end.checked_sub(range.start) {
            Some(1) => format!("position {}", range.start),
            _ => format!("range {}..{}", range.start, range.end),
        };
        Err(invalid(format!("{what} is out of range for {len} items")))
    }

    /// The data set from which items are chosen.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The chosen positions as ranges of consecutive positions. Repetitions are not included.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let ends = self.runs.iter().skip(1).map(|run| run.before).chain([self.pass]);
        self.runs.iter().zip(ends).map(|(run, end)| run.first..run.first + (end - run.before))
    }

    /// How often the subset has each chosen item: see [`repeated`](Subset::repeated).
    pub fn times(&self) -> u64 {
        self.times
    }

    /// The position in the data set of item `index` of the subset; `None` if the index is out of range.
    pub fn position(&self, index: u64) -> Option<u64> {
        if index >= self.len() {
            return None;
        }
        let index = index % self.pass;
        let run = self.runs[self.runs.partition_point(|run| run.before <= index) - 1];
        Some(run.first + (index - run.before))
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> u64 {
        self.pass * self.times
    }

    fn item(&self, index: u64) -> Result<D::Item> {
        let position = self.position(index).ok_or_else(|| {
            let len = self.len();
            invalid(format!("item index {index} is out of range for {len} items"))
        })?;
        self.dataset.item(position)
    }

    /// A hash of the chosen positions, and of the hash or the number of all items.
    fn content_hash(&self) -> Option<u64> {
        let dataset = match self.dataset.content_hash() {
            Some(hash) => [1, hash],
            None => [0, self.dataset.len()],
        };
        let runs = self.runs.iter().flat_map(|run| [run.before, run.first]);
        Some(hash(dataset.into_iter().chain([self.pass, self.times]).chain(runs)))
    }

    fn key(&self, item: &D::Item) -> Option<Arc<str>> {
        self.dataset.key(item)
    }
}

impl<D: Debug> Debug for Subset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subset({} × {} items of {:?})", self.times, self.pass, self.dataset)
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all<D: Dataset>(dataset: &D) -> Vec<D::Item> {
        (0..dataset.len()).map(|index| dataset.item(index).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn a_subset_has_the_items_at_its_positions(
            positions in prop::collection::vec(0..20u64, 0..40), times in 1..4u64,
        ) {
            let numbers = (100..120).collect::<Vec<u64>>();
            let subset = Subset::at(numbers, positions.clone()).unwrap().repeated(times).unwrap();
            let pass: Vec<u64> = positions.iter().map(|position| 100 + position).collect();
            prop_assert_eq!(all(&subset), pass.repeat(times as usize));
            prop_assert!(subset.item(subset.len()).is_err());
            let runs: Vec<_> = subset.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].end != pair[1].start));
            prop_assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), positions);
        }

        #[test]
        fn subsets_nest(start in 0..10u64, len in 0..10u64, inner in prop::collection::vec(0..10u64, 1..20)) {
            let range = Subset::range((0..20).collect::<Vec<u64>>(), start..start + len).unwrap();
            let fits = inner.iter().all(|position| *position < len);
            let nested = Subset::at(range, inner.clone());
            prop_assert_eq!(nested.is_ok(), fits);
            if let Ok(nested) = nested {
                let expected: Vec<u64> = inner.iter().map(|position| start + position).collect();
                prop_assert_eq!(all(&nested), expected);
            }
        }
    }

    #[test]
    fn different_subsets_have_different_hashes() {
        let numbers = || (0..9).collect::<Vec<u64>>();
        let subsets = [
            Subset::range(numbers(), 0..4).unwrap(),
            Subset::range(numbers(), 1..5).unwrap(),
            Subset::range(numbers(), 0..4).unwrap().repeated(2).unwrap(),
            Subset::range((0..10).collect::<Vec<u64>>(), 0..4).unwrap(),
            Subset::at(numbers(), [0, 1, 3, 2]).unwrap(),
        ];
        let hashes = subsets.iter().map(|subset| subset.content_hash().unwrap());
        assert_eq!(hashes.collect::<std::collections::BTreeSet<_>>().len(), subsets.len());
        let same = Subset::at(numbers(), 0..4).unwrap();
        assert_eq!(same.content_hash(), subsets[0].content_hash());
    }

    #[test]
    fn invalid_positions_and_repetitions_are_refused() {
        let numbers = || vec![1, 2, 3];
        assert!(Subset::at(numbers(), [3]).is_err());
        assert!(Subset::at(numbers(), [u64::MAX]).is_err());
        assert!(Subset::range(numbers(), 2..4).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "an invalid range")]
        let reversed = Subset::range(numbers(), 2..1);
        assert!(reversed.is_err());
        assert!(Subset::range(numbers(), 0..3).unwrap().repeated(0).is_err());
        assert!(Subset::range(numbers(), 0..3).unwrap().repeated(u64::MAX).is_err());
        assert!(Subset::range(numbers(), 3..3).unwrap().is_empty());
    }
}
