//! Sets of numbers stored as ranges, such as the finished positions of an epoch.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};

/// A set of numbers, stored as sorted, non-adjacent ranges.
///
/// Inserting a number before or after all ranges takes constant time, and right after the first
/// range at most logarithmic time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Vec<[u64; 2]>", try_from = "Vec<[u64; 2]>"))]
pub(crate) struct Ranges(VecDeque<Range<u64>>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of elements.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub(crate) fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator + '_ {
        self.0.iter().cloned()
    }

    /// The index of the first range that ends after `number`.
    fn find(&self, number: u64) -> usize {
        match (self.0.front(), self.0.back()) {
            (Some(first), _) if number < first.end => 0,
            (_, Some(last)) if number >= last.end => self.0.len(),
            _ => self.0.partition_point(|range| range.end <= number),
        }
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.0.get(self.find(number)).is_some_and(|range| range.start <= number)
    }

    /// Whether the set contains no number of `range`, which must not be empty.
    pub(crate) fn is_absent(&self, range: Range<u64>) -> bool {
        self.0.get(self.find(range.start)).is_none_or(|other| other.start >= range.end)
    }

    /// The first number from `from` on that is not in the set.
    pub(crate) fn next_absent(&self, from: u64) -> u64 {
        match self.0.get(self.find(from)) {
            Some(range) if range.start <= from => range.end,
            _ => from,
        }
    }

    /// Adds a number below `u64::MAX`. Returns whether the number is new.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let at = self.find(number);
        if self.0.get(at).is_some_and(|range| range.start <= number) {
            return false;
        }
        let touches_next = self.0.get(at).is_some_and(|range| range.start == number + 1);
        let previous = at.checked_sub(1).filter(|&before| self.0[before].end == number);
        match (previous, touches_next) {
            (Some(before), true) => {
                self.0[before].end = self.0[at].end;
                self.0.remove(at);
            }
            (Some(before), false) => self.0[before].end = number + 1,
            (None, true) => self.0[at].start = number,
            (None, false) => self.0.insert(at, number..number + 1),
        }
        true
    }

    /// Adds a range. Returns the parts that were already in the set.
    pub(crate) fn insert_range(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        if let Some(last) = self.0.back_mut()
            && last.end <= range.start
        {
            match last.end == range.start {
                true => last.end = range.end,
                false => self.0.push_back(range),
            }
            return Vec::new();
        }
        // Joins all ranges that overlap or touch the new range.
        let first = self.0.partition_point(|other| other.end < range.start);
        let end = self.0.partition_point(|other| other.start <= range.end);
        let mut joined = range.clone();
        let mut known = Vec::new();
        for other in self.0.drain(first..end) {
            let common = other.start.max(range.start)..other.end.min(range.end);
            if !common.is_empty() {
                known.push(common);
            }
            joined = joined.start.min(other.start)..joined.end.max(other.end);
        }
        self.0.insert(first, joined);
        known
    }

    /// The numbers that are in at least one of the sets.
    pub(crate) fn union(&self, other: &Ranges) -> Ranges {
        let (mut one, mut two) = (self.iter().peekable(), other.iter().peekable());
        // In ascending order, so that each insertion is at the end.
        let merged = std::iter::from_fn(|| match (one.peek(), two.peek()) {
            (Some(first), Some(second)) if second.start < first.start => two.next(),
            (Some(_), _) => one.next(),
            (None, _) => two.next(),
        });
        merged.collect()
    }

    /// The numbers that are in both sets.
    pub(crate) fn intersection(&self, other: &Ranges) -> Ranges {
        let mut common = Ranges::default();
        let (mut one, mut two) = (self.iter().peekable(), other.iter().peekable());
        while let (Some(first), Some(second)) = (one.peek(), two.peek()) {
            let both = first.start.max(second.start)..first.end.min(second.end);
            let first_ends = first.end < second.end;
            common.insert_range(both);
            if first_ends {
                one.next()
            } else {
                two.next()
            };
        }
        common
    }

    /// The numbers below `end`.
    pub(crate) fn below(&self, end: u64) -> Ranges {
        let below = self.iter().take_while(|range| range.start < end);
        below.map(|range| range.start..range.end.min(end)).collect()
    }

    /// The numbers of `range`, counted from its start.
    pub(crate) fn part(&self, range: Range<u64>) -> Ranges {
        let inside = |own: Range<u64>| {
            let (start, end) = (own.start.max(range.start), own.end.min(range.end));
            (start < end).then(|| start - range.start..end - range.start)
        };
        self.iter().filter_map(inside).collect()
    }

    /// The numbers of `0..end` that are not in the set.
    pub(crate) fn absent_below(&self, end: u64) -> Ranges {
        let mut absent = Ranges::default();
        let mut from = 0;
        for range in self.iter().take_while(|range| range.start < end) {
            absent.insert_range(from..range.start);
            from = range.end;
        }
        absent.insert_range(from..end);
        absent
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Ranges::default();
        for range in ranges {
            set.insert_range(range);
        }
        set
    }
}

impl From<Ranges> for Vec<[u64; 2]> {
    /// One `[start, end]` per range, with `end` excluded.
    fn from(ranges: Ranges) -> Self {
        ranges.iter().map(|range| [range.start, range.end]).collect()
    }
}

impl TryFrom<Vec<[u64; 2]>> for Ranges {
    type Error = Error;

    fn try_from(pairs: Vec<[u64; 2]>) -> Result<Self> {
        let ascending = pairs.windows(2).all(|pair| pair[0][1] < pair[1][0]);
        if !ascending || pairs.iter().any(|pair| pair[0] >= pair[1]) {
            let message = "invalid set of samples: its ranges must be non-empty, ascending and not \
                           adjacent";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(Ranges(pairs.into_iter().map(|[start, end]| start..end).collect()))
    }
}

/// The complement of a set: maps a number to its place in the complement and back, in logarithmic
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Complement {
    taken: Ranges,
    /// How many numbers of the complement precede each range.
    before: Vec<u64>,
}

impl Complement {
    pub(crate) fn of(taken: Ranges) -> Self {
        let mut covered = 0;
        let before = taken.iter().map(|range| {
            let before = range.start - covered;
            covered += range.end - range.start;
            before
        });
        Complement { before: before.collect(), taken }
    }

    pub(crate) fn taken(&self) -> &Ranges {
        &self.taken
    }

    /// How many numbers the first `ranges` ranges contain.
    fn covered(&self, ranges: usize) -> u64 {
        ranges.checked_sub(1).map_or(0, |last| self.taken.0[last].end - self.before[last])
    }

    /// The number at place `k` of the complement; `None` on overflow.
    pub(crate) fn nth(&self, k: u64) -> Option<u64> {
        if self.before.is_empty() {
            return Some(k);
        }
        k.checked_add(self.covered(self.before.partition_point(|&before| before <= k)))
    }

    /// How many numbers of the complement precede `number`, and whether `number` is in the set.
    pub(crate) fn place(&self, number: u64) -> (u64, bool) {
        let at = self.taken.find(number);
        match self.taken.0.get(at) {
            Some(range) if range.start <= number => (self.before[at], true),
            _ => (number - self.covered(at), false),
        }
    }

    /// The numbers at these places of the complement, as ranges.
    pub(crate) fn at_places(&self, places: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut next = places.start;
        std::iter::from_fn(move || {
            let start = self.nth(next).filter(|_| next < places.end)?;
            let at = self.before.partition_point(|&before| before <= next);
            let end = self.before.get(at).map_or(places.end, |&before| before.min(places.end));
            let len = end - next;
            next = end;
            Some(start..start.saturating_add(len))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn plain(ranges: &Ranges) -> BTreeSet<u64> {
        ranges.iter().flatten().collect()
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(numbers in prop::collection::vec(0..60u64, 0..80)) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for number in numbers {
                prop_assert_eq!(ranges.insert(number), set.insert(number));
            }
            prop_assert_eq!(&plain(&ranges), &set);
            prop_assert_eq!(ranges.count(), set.len() as u64);
            let apart = ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.end < b.start);
            prop_assert!(apart, "{ranges:?}");
            for number in 0..62 {
                prop_assert_eq!(ranges.contains(number), set.contains(&number));
                let absent = (number..).find(|number| !set.contains(number));
                prop_assert_eq!(Some(ranges.next_absent(number)), absent);
                for end in number + 1..63 {
                    let none = set.range(number..end).next().is_none();
                    prop_assert_eq!(ranges.is_absent(number..end), none);
                }
            }
            let absent: BTreeSet<_> = (0..40).filter(|number| !set.contains(number)).collect();
            prop_assert_eq!(plain(&ranges.absent_below(40)), absent);
            let pairs = Vec::<[u64; 2]>::from(ranges.clone());
            prop_assert_eq!(Ranges::try_from(pairs).unwrap(), ranges);
        }

        #[test]
        fn inserting_a_range_inserts_its_numbers(
            all in prop::collection::vec((0..50u64, 0..9u64), 0..30),
        ) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (start, len) in all {
                let known = ranges.insert_range(start..start + len);
                let known: Vec<u64> = known.into_iter().flatten().collect();
                let before = (start..start + len).filter(|number| set.contains(number));
                prop_assert_eq!(known, before.collect::<Vec<_>>());
                set.extend(start..start + len);
                prop_assert_eq!(&plain(&ranges), &set);
            }
        }

        #[test]
        fn the_complement_maps_places_to_numbers_and_back(
            all in prop::collection::vec((0..50u64, 0..9u64), 0..20),
        ) {
            let taken: Ranges = all.iter().map(|&(start, len)| start..start + len).collect();
            let set = plain(&taken);
            let rest = Complement::of(taken);
            let numbers = (0..100).filter(|number| !set.contains(number));
            for (k, number) in (0..).zip(numbers) {
                prop_assert_eq!(rest.nth(k), Some(number));
                prop_assert_eq!(rest.place(number), (k, false));
            }
            for &number in &set {
                let before = (0..number).filter(|number| !set.contains(number)).count();
                prop_assert_eq!(rest.place(number), (before as u64, true));
            }
            let spread = rest.at_places(3..20).flatten();
            prop_assert!(spread.eq((3..20).filter_map(|k| rest.nth(k))));
        }

        #[test]
        fn set_operations_match_those_of_a_btree_set(
            one in prop::collection::vec((0..50u64, 0..9u64), 0..20),
            two in prop::collection::vec((0..50u64, 0..9u64), 0..20), end in 0..60u64,
        ) {
            let set = |all: &[(u64, u64)]| -> Ranges {
                all.iter().map(|&(start, len)| start..start + len).collect()
            };
            let (one, two) = (set(&one), set(&two));
            let (all, both) = (&plain(&one) | &plain(&two), &plain(&one) & &plain(&two));
            prop_assert_eq!(one.union(&two), all.iter().map(|&n| n..n + 1).collect());
            prop_assert_eq!(one.intersection(&two), both.iter().map(|&n| n..n + 1).collect());
            let below = plain(&one).range(..end).map(|&n| n..n + 1).collect();
            prop_assert_eq!(one.below(end), below);
        }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for pairs in [vec![[3, 3]], vec![[4, 2]], vec![[0, 2], [2, 3]], vec![[5, 6], [0, 1]]] {
            assert_eq!(Ranges::try_from(pairs).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
