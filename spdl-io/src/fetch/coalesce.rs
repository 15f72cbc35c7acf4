//! Ranges near each other, read as one.

use std::ops::Range;

/// Several ranges that are read as one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) range: Range<u64>,
    /// Which of the ranges lie in it, by their places.
    pub(crate) members: Vec<usize>,
    /// How many of its bytes nobody asked for.
    pub(crate) unasked: u64,
}

/// Joins ranges with at most `gap` bytes between them into ones of at most `limit` bytes; a longer
/// one stays alone, unless others lie within it. No range may end before it starts.
pub(crate) fn join(ranges: &[Range<u64>], gap: u64, limit: u64) -> Vec<Joined> {
    let mut places: Vec<usize> = (0..ranges.len()).collect();
    places.sort_by_key(|&place| (ranges[place].start, ranges[place].end));
    let mut all: Vec<Joined> = Vec::new();
    for place in places {
        let Range { start, end } = ranges[place].clone();
        if let Some(last) = all.last_mut() {
            let between = start.saturating_sub(last.range.end);
            let joined_end = last.range.end.max(end);
            let fits = joined_end == last.range.end || joined_end - last.range.start <= limit;
            if between <= gap && fits {
                last.range.end = joined_end;
                last.unasked += between;
                last.members.push(place);
                continue;
            }
        }
        all.push(Joined { range: start..end, members: vec![place], unasked: 0 });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(range: Range<u64>, members: &[usize], unasked: u64) -> Joined {
        Joined { range, members: members.to_vec(), unasked }
    }

    #[test]
    fn near_ranges_are_joined_and_far_ones_are_not() {
        let ranges = [100..110, 0..10, 15..20, 121..130];
        let expected =
            [joined(0..20, &[1, 2], 5), joined(100..110, &[0], 0), joined(121..130, &[3], 0)];
        assert_eq!(join(&ranges, 10, 1000), expected);
        let expected = [joined(0..20, &[1, 2], 5), joined(100..130, &[0, 3], 11)];
        assert_eq!(join(&ranges, 11, 1000), expected);
        assert_eq!(
            join(&ranges, 100, 20),
            [joined(0..20, &[1, 2], 5), joined(100..110, &[0], 0), joined(121..130, &[3], 0),]
        );
        assert_eq!(join(&[], 1, 1), []);
    }

    proptest! {
        #[test]
        fn every_range_lies_in_one_that_keeps_the_limits(
            ranges in prop::collection::vec((0..1000u64, 0..100u64), 0..30),
            gap in 0..50u64,
            limit in 0..200u64,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let all = join(&ranges, gap, limit);
            let mut members: Vec<_> = all.iter().flat_map(|joined| joined.members.clone()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, (0..ranges.len()).collect::<Vec<_>>());
            for joined in &all {
                let inside: Vec<_> = joined.members.iter().map(|&place| &ranges[place]).collect();
                prop_assert_eq!(inside.iter().map(|range| range.start).min(), Some(joined.range.start));
                prop_assert_eq!(inside.iter().map(|range| range.end).max(), Some(joined.range.end));
                let longest = inside.iter().map(|range| range.end - range.start).max().unwrap();
                prop_assert!(joined.range.end - joined.range.start <= limit.max(longest));
                let asked = joined.range.clone().filter(|byte| inside.iter().any(|range| range.contains(byte)));
                prop_assert_eq!(asked.count() as u64 + joined.unasked, joined.range.end - joined.range.start);
            }
            // The fewest bytes that nobody asked for: none between two that are not joined.
            for pair in all.windows(2) {
                prop_assert!(pair[0].range.start <= pair[1].range.start);
            }
        }
    }
}
