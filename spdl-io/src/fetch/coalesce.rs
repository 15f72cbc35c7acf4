//! Coalescing of nearby byte ranges into one read.

use std::ops::Range;

/// Several ranges that one read covers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CoalescedRange {
    pub(crate) range: Range<u64>,
    /// Indices of the requested ranges within this range.
    pub(crate) members: Vec<usize>,
    /// Number of bytes in gaps, which belong to no requested range.
    pub(crate) gap_bytes: u64,
}

/// Coalesces ranges with gaps of at most `gap` bytes into ranges of at most `limit` bytes.
///
/// A range longer than `limit` is coalesced only with ranges that lie within it. The end of each
/// range must not be below its start.
pub(crate) fn coalesce(ranges: &[Range<u64>], gap: u64, limit: u64) -> Vec<CoalescedRange> {
    let mut indices: Vec<usize> = (0..ranges.len()).collect();
    indices.sort_by_key(|&index| (ranges[index].start, ranges[index].end));
    let mut all: Vec<CoalescedRange> = Vec::new();
    for index in indices {
        let Range { start, end } = ranges[index].clone();
        if let Some(last) = all.last_mut() {
            let between = start.saturating_sub(last.range.end);
            let joined_end = last.range.end.max(end);
            let fits = joined_end == last.range.end || joined_end - last.range.start <= limit;
            if between <= gap && fits {
                last.range.end = joined_end;
                last.gap_bytes += between;
                last.members.push(index);
                continue;
            }
        }
        all.push(CoalescedRange { range: start..end, members: vec![index], gap_bytes: 0 });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(range: Range<u64>, members: &[usize], gap_bytes: u64) -> CoalescedRange {
        CoalescedRange { range, members: members.to_vec(), gap_bytes }
    }

    #[test]
    fn ranges_are_coalesced_within_the_gap_and_the_limit() {
        let ranges = [100..110, 0..10, 15..20, 121..130];
        let expected =
            [joined(0..20, &[1, 2], 5), joined(100..110, &[0], 0), joined(121..130, &[3], 0)];
        assert_eq!(coalesce(&ranges, 10, 1000), expected);
        let expected = [joined(0..20, &[1, 2], 5), joined(100..130, &[0, 3], 11)];
        assert_eq!(coalesce(&ranges, 11, 1000), expected);
        assert_eq!(
            coalesce(&ranges, 100, 20),
            [joined(0..20, &[1, 2], 5), joined(100..110, &[0], 0), joined(121..130, &[3], 0),]
        );
        assert_eq!(coalesce(&[], 1, 1), []);
    }

    proptest! {
        #[test]
        fn coalesced_ranges_cover_all_ranges_within_the_limits(
            ranges in prop::collection::vec((0..1000u64, 0..100u64), 0..30),
            gap in 0..50u64,
            limit in 0..200u64,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let all = coalesce(&ranges, gap, limit);
            let mut members: Vec<_> = all.iter().flat_map(|joined| joined.members.clone()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, (0..ranges.len()).collect::<Vec<_>>());
            for joined in &all {
                let inside: Vec<_> = joined.members.iter().map(|&index| &ranges[index]).collect();
                prop_assert_eq!(inside.iter().map(|range| range.start).min(), Some(joined.range.start));
                prop_assert_eq!(inside.iter().map(|range| range.end).max(), Some(joined.range.end));
                let longest = inside.iter().map(|range| range.end - range.start).max().unwrap();
                prop_assert!(joined.range.end - joined.range.start <= limit.max(longest));
                let requested = joined.range.clone().filter(|byte| inside.iter().any(|range| range.contains(byte)));
                prop_assert_eq!(requested.count() as u64 + joined.gap_bytes, joined.range.end - joined.range.start);
            }
                        // Coalesced ranges are sorted by their start.
            for pair in all.windows(2) {
                prop_assert!(pair[0].range.start <= pair[1].range.start);
            }
        }
    }
}
