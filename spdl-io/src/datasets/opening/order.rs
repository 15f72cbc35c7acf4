//! [`ReadOrder`]: in which orders the samples of a data set can be read fast.

use std::ops::Range;
use std::sync::Arc;

use spdl_core::Result;
use spdl_core::source::sampler::{
    Mixture, Part, Sampler, Sequential, ShardWindow, Shuffled, Until,
};

/// The shuffle window of row groups, which are read as a whole, in samples.
const WINDOW: u64 = 10_000;

/// The maximum number of groups or parts of a repeated data set, which bounds the memory of their list.
const MAX_GROUPS: usize = 1 << 22;

/// In which orders the samples of a data set can be read fast, and the order of a mixture.
#[derive(Clone, Debug)]
pub(super) enum ReadOrder {
    /// All orders are equally fast.
    Any,
    /// Consecutive samples of these numbers are read together.
    Groups { lens: Arc<[u64]>, window: GroupWindow },
    /// Consecutive parts with separate orders, at least one of which has groups.
    Parts(Arc<[(u64, ReadOrder)]>),
    /// Parts that are mixed in proportion to their weights.
    Mixed(Arc<[MixedPart]>, Until),
}

/// The shuffle window of groups, in samples.
#[derive(Clone, Copy, Debug)]
pub(super) enum GroupWindow {
    /// [`WINDOW`].
    Fixed,
    /// The samples of two windows fit into a limited memory.
    OfMemory(u64),
}

impl GroupWindow {
    fn samples(self) -> u64 {
        match self {
            GroupWindow::Fixed => WINDOW,
            GroupWindow::OfMemory(samples) => samples,
        }
    }

    /// The window of `chosen` of `all` samples of the groups, which need the same memory.
    fn of_chosen(self, chosen: u64, all: u64) -> Self {
        match self {
            GroupWindow::Fixed => GroupWindow::Fixed,
            GroupWindow::OfMemory(samples) => {
                let samples = u128::from(samples) * u128::from(chosen) / u128::from(all.max(1));
                GroupWindow::OfMemory(u64::try_from(samples).unwrap_or(u64::MAX).max(1))
            }
        }
    }
}

/// A part of a mixture.
#[derive(Clone, Debug)]
pub(super) struct MixedPart {
    pub(super) items: u64,
    pub(super) weight: f64,
    pub(super) order: ReadOrder,
}

impl ReadOrder {
    /// The order of groups with these numbers of samples.
    pub(super) fn of_groups(lens: impl Into<Arc<[u64]>>) -> Self {
        ReadOrder::Groups { lens: lens.into(), window: GroupWindow::Fixed }
    }

    /// The shuffle window in samples, if there is one for all samples.
    pub(super) fn window(&self) -> Option<u64> {
        match self {
            ReadOrder::Groups { window, .. } => Some(window.samples()),
            _ => None,
        }
    }

    /// The order of parts that follow each other.
    pub(super) fn of_parts(parts: Vec<(u64, ReadOrder)>) -> Self {
        match parts.iter().all(|(_, order)| matches!(order, ReadOrder::Any)) {
            true => ReadOrder::Any,
            false => ReadOrder::Parts(parts.into()),
        }
    }

    /// The order of the samples in these ranges, repeated. If there are too many groups or parts, all orders
    /// count as equally fast.
    pub(super) fn of_runs(&self, runs: &[Range<u64>], times: u64) -> Self {
        let times = usize::try_from(times).unwrap_or(usize::MAX);
        let has_room =
            |groups: usize| groups.checked_mul(times).is_some_and(|all| all <= MAX_GROUPS);
        let sum = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum();
        match self {
            ReadOrder::Groups { lens, .. } if !has_room(lens.len()) => ReadOrder::Any,
            ReadOrder::Parts(parts) if !has_room(parts.len()) => ReadOrder::Any,
            ReadOrder::Groups { lens, window } => {
                let chosen = by_part(runs, lens.iter().copied());
                let all = chosen.iter().map(|(group, _)| lens[*group]).sum();
                let lens: Vec<u64> = chosen.iter().map(|(_, ranges)| sum(ranges)).collect();
                let window = window.of_chosen(lens.iter().sum(), all);
                ReadOrder::Groups { lens: lens.repeat(times).into(), window }
            }
            ReadOrder::Parts(parts) => {
                let chosen = by_part(runs, parts.iter().map(|(len, _)| *len));
                // Otherwise, each sample may become a part.
                if !chosen.is_sorted_by(|one, next| one.0 < next.0) {
                    return ReadOrder::Any;
                }
                let pass: Vec<_> = chosen
                    .iter()
                    .map(|(part, ranges)| (sum(ranges), parts[*part].1.of_runs(ranges, 1)))
                    .collect();
                ReadOrder::of_parts(vec![pass; times].concat())
            }
            other => other.clone(),
        }
    }

    /// The sampler, shuffled or in the order of the data set.
    ///
    /// # Errors
    /// The errors of [`Mixture::new`].
    pub(super) fn sampler(&self, shuffled: bool, seed: u64) -> Result<Arc<dyn Sampler>> {
        Ok(match self {
            ReadOrder::Mixed(..) => Arc::new(self.mixture(shuffled, seed)?),
            _ if !shuffled => Arc::new(Sequential),
            ReadOrder::Any => Arc::new(Shuffled::new(seed)),
            ReadOrder::Groups { lens, window } => {
                Arc::new(ShardWindow::new(lens.to_vec(), window.samples(), seed)?)
            }
            ReadOrder::Parts(_) => Arc::new(self.mixture(shuffled, seed)?),
        })
    }

    /// The mixture of parts. Parts without weights are mixed in proportion to their numbers of samples, so that an
    /// epoch has each sample once.
    fn mixture(&self, shuffled: bool, seed: u64) -> Result<Mixture> {
        let (parts, until): (Vec<MixedPart>, _) = match self {
            ReadOrder::Mixed(parts, until) => (parts.to_vec(), *until),
            ReadOrder::Parts(parts) => {
                let part = |(items, order): &(u64, ReadOrder)| MixedPart {
                    items: *items,
                    weight: *items as f64,
                    order: order.clone(),
                };
                (parts.iter().map(part).collect(), Until::AllExhausted)
            }
            _ => (Vec::new(), Until::AllExhausted),
        };
        let parts = (1_u64..).zip(parts).map(|(number, MixedPart { items, weight, order })| {
            let part_seed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            Ok(match order {
                ReadOrder::Mixed(..) => Part::mixture(order.mixture(shuffled, part_seed)?, weight),
                order => Part::new(items, weight).sampler(order.sampler(shuffled, part_seed)?),
            })
        });
        Mixture::new(parts.collect::<Result<Vec<_>>>()?, until, seed)
    }

    pub(super) fn is_mixture(&self) -> bool {
        matches!(self, ReadOrder::Mixed(..))
    }
}

/// The ranges by the part that contains them, as ranges within the part. Adjacent ranges of a part are joined.
fn by_part(runs: &[Range<u64>], lens: impl Iterator<Item = u64>) -> Vec<(usize, Vec<Range<u64>>)> {
    let ends: Vec<u64> = lens
        .scan(0, |end, len| {
            *end += len;
            Some(*end)
        })
        .collect();
    let mut found: Vec<(usize, Vec<Range<u64>>)> = Vec::new();
    for run in runs {
        let mut start = run.start;
        while start < run.end {
            let part = ends.partition_point(|&end| end <= start);
            let before = part.checked_sub(1).map_or(0, |last| ends[last]);
            let end = ends[part].min(run.end);
            match found.last_mut() {
                Some((last, ranges)) if *last == part => ranges.push(start - before..end - before),
                _ => {
                    let range = start - before..end - before;
                    found.push((part, vec![range]));
                }
            }
            start = end;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::slice;

    use proptest::prelude::*;

    use super::*;

    fn order() -> impl Strategy<Value = (u64, ReadOrder)> {
        let groups = prop::collection::vec(1..30u64, 1..6);
        prop_oneof![
            (1..60u64).prop_map(|len| (len, ReadOrder::Any)),
            groups.prop_map(|lens| (lens.iter().sum(), ReadOrder::of_groups(lens))),
        ]
    }

    fn all(order: &ReadOrder, items: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let sampler = order.sampler(true, seed).unwrap();
        let order = sampler.epoch(items, epoch).unwrap();
        assert_eq!(sampler.epoch_len(items), Some(order.len()));
        (0..order.len()).map(|position| order.at(position)).collect()
    }

    #[test]
    fn the_groups_of_a_source_that_is_repeated_very_often_are_not_listed() {
        let groups = ReadOrder::of_groups([3, 4]);
        let parts = ReadOrder::of_parts(vec![(7, groups.clone()), (2, ReadOrder::Any)]);
        let run = 0..7;
        for order in [&groups, &parts] {
            let repeated = |times| order.of_runs(slice::from_ref(&run), times);
            assert!(!matches!(repeated(2), ReadOrder::Any));
            for times in [1 << 32, u64::MAX] {
                assert!(matches!(repeated(times), ReadOrder::Any), "{times}");
            }
        }
    }

    proptest! {
        #[test]
        fn shuffled_parts_have_each_sample_once(
            parts in prop::collection::vec(order(), 1..6), seed: u64, epoch in 0..3u64,
        ) {
            let items = parts.iter().map(|(len, _)| len).sum();
            let order = ReadOrder::of_parts(parts);
            let mut found = all(&order, items, seed, epoch);
            if items > 20 {
                prop_assert_ne!(&found, &all(&order, items, seed, epoch + 1));
            }
            found.sort_unstable();
            prop_assert_eq!(found, (0..items).collect::<Vec<_>>());
        }

        #[test]
        fn chosen_samples_keep_their_groups(
            parts in prop::collection::vec(order(), 1..6),
            positions in prop::collection::btree_set(0..100_u64, 1..60),
            times in 1..3u64,
        ) {
            let items: u64 = parts.iter().map(|(len, _)| len).sum();
            let positions: Vec<u64> = positions.into_iter().filter(|at| *at < items).collect();
            prop_assume!(!positions.is_empty());
            let runs: Vec<Range<u64>> = positions.iter().map(|&at| at..at + 1).collect();
            let chosen = ReadOrder::of_parts(parts.clone()).of_runs(&runs, times);
            let len = positions.len() as u64 * times;
            let mut found = all(&chosen, len, 7, 0);
            found.sort_unstable();
            prop_assert_eq!(found, (0..len).collect::<Vec<_>>());
            // The ends of all groups, or of parts without groups.
            let mut ends = vec![0];
            for (items, order) in &parts {
                let lens = match order {
                    ReadOrder::Groups { lens, .. } => lens.to_vec(),
                    _ => vec![*items],
                };
                lens.iter().for_each(|len| ends.push(ends[ends.len() - 1] + len));
            }
            let count = |range: Range<u64>| positions.iter().filter(|at| range.contains(at)).count();
            let expected = ends.windows(2).map(|pair| count(pair[0]..pair[1]) as u64);
            let expected: Vec<u64> = expected.filter(|count| *count > 0).collect();
            if !matches!(chosen, ReadOrder::Any) {
                prop_assert_eq!(groups_of(&chosen, len), expected.repeat(times as usize));
            }
        }
    }

    fn groups_of(order: &ReadOrder, items: u64) -> Vec<u64> {
        match order {
            ReadOrder::Groups { lens, .. } => lens.to_vec(),
            ReadOrder::Parts(parts) => {
                parts.iter().flat_map(|(len, order)| groups_of(order, *len)).collect()
            }
            _ => vec![items],
        }
    }

    #[test]
    fn the_window_of_chosen_samples_needs_the_same_memory() {
        let window = GroupWindow::OfMemory(40);
        let order = ReadOrder::Groups { lens: [100, 100, 100].into(), window };
        let window = |runs: &[Range<u64>], times| match order.of_runs(runs, times) {
            ReadOrder::Groups { window, .. } => window.samples(),
            other => panic!("{other:?}"),
        };
        let of_one = |run: Range<u64>, times| window(slice::from_ref(&run), times);
        assert_eq!((of_one(0..300, 2), of_one(0..100, 1)), (40, 40));
        assert_eq!((window(&[0..50, 100..150], 1), of_one(7..8, 1)), (20, 1));
        let fixed = ReadOrder::of_groups([100]).of_runs(&[0..1, 5..6], 1);
        assert!(matches!(fixed, ReadOrder::Groups { window: GroupWindow::Fixed, .. }));
    }

    #[test]
    fn samples_in_another_order_than_their_parts_have_no_groups() {
        let parts = vec![(3, ReadOrder::Any), (3, ReadOrder::of_groups([3]))];
        let order = ReadOrder::of_parts(parts).of_runs(&[4..5, 0..1, 5..6], 1);
        assert!(matches!(order, ReadOrder::Any));
    }
}
