//! Joins equally spaced ranges into runs, for short messages.

use std::fmt;
use std::ops::Range;

/// A run: ranges of equal length at equal distances. A single range is a run of one range.
///
/// For example, the remaining positions of one of several ranks form a run.
///
/// `Display` writes `7`, `3..9` (9 excluded), `every 2nd from 128 to 1998` or `2 of every 3 from 1
/// to 98` (last number included).
///
/// ```
/// use spdl_core::source::RangeRun;
/// let ranges = [1..2, 4..5, 7..8, 10..11, 20..30];
/// let runs: Vec<_> = RangeRun::of(ranges.into_iter()).collect();
/// assert_eq!((runs.len(), runs[0].step(), runs[0].count()), (2, 3, 4));
/// assert_eq!(runs[0].to_string(), "every 3rd from 1 to 10");
/// assert_eq!(runs[1].to_string(), "20..30");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRun {
    first: Range<u64>,
    step: u64,
    count: u64,
}

/// Fewer equally spaced ranges remain single ranges.
const MIN_COUNT: u64 = 3;

impl RangeRun {
    /// Joins three or more consecutive ranges of equal length and distance into runs.
    ///
    /// The ranges must be in ascending order, and no range may be empty. Before the iterator
    /// returns a run, it reads at most two ranges beyond the run.
    pub fn of(ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = RangeRun> {
        Runs { ranges, buffered: [None, None] }
    }

    /// The first range.
    pub fn first(&self) -> Range<u64> {
        self.first.clone()
    }

    /// The distance between the starts of adjacent ranges; 1 for a single range.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The number of ranges.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// One past the last number of the last range.
    pub fn end(&self) -> u64 {
        self.first.end + self.step * (self.count - 1)
    }

    /// The number of positions in all ranges.
    pub fn positions(&self) -> u64 {
        (self.first.end - self.first.start) * self.count
    }
}

impl fmt::Display for RangeRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RangeRun { first: Range { start, end }, step, count } = self;
        match (end - start, count) {
            (1, 1) => write!(f, "{start}"),
            (_, 1) => write!(f, "{start}..{end}"),
            (1, _) => {
                let ending = match (step % 100, step % 10) {
                    (11..=13, _) => "th",
                    (_, 1) => "st",
                    (_, 2) => "nd",
                    (_, 3) => "rd",
                    _ => "th",
                };
                write!(f, "every {step}{ending} from {start} to {}", self.end() - 1)
            }
            (len, _) => write!(f, "{len} of every {step} from {start} to {}", self.end() - 1),
        }
    }
}

struct Runs<I> {
    ranges: I,
    /// The next two ranges if they were read but not yet returned.
    buffered: [Option<Range<u64>>; 2],
}

impl<I: Iterator<Item = Range<u64>>> Runs<I> {
    fn take(&mut self) -> Option<Range<u64>> {
        let [first, second] = &mut self.buffered;
        match first.take() {
            Some(range) => {
                *first = second.take();
                Some(range)
            }
            None => self.ranges.next(),
        }
    }
}

impl<I: Iterator<Item = Range<u64>>> Iterator for Runs<I> {
    type Item = RangeRun;

    fn next(&mut self) -> Option<RangeRun> {
        let first = self.take()?;
        let alone = RangeRun { first: first.clone(), step: 1, count: 1 };
        let Some(second) = self.take() else { return Some(alone) };
        let (len, step) = (first.end - first.start, second.start - first.start);
        let mut run = RangeRun { first, step, count: 1 };
        let fits = |run: &RangeRun, next: &Range<u64>| {
            next.end - next.start == len && next.start == run.first.start + step * run.count
        };
        let mut next = Some(second.clone());
        while next.as_ref().is_some_and(|range| fits(&run, range)) {
            run.count += 1;
            next = self.take();
        }
        if run.count >= MIN_COUNT {
            self.buffered[0] = next;
            return Some(run);
        }
        self.buffered = match run.count {
            1 => [next, None],
            _ => [Some(second), next],
        };
        Some(alone)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<String> {
        RangeRun::of(ranges.into_iter()).map(|run| run.to_string()).collect()
    }

    fn every(step: u64, len: u64, count: u64) -> impl Iterator<Item = Range<u64>> {
        (0..count).map(move |at| at * step..at * step + len)
    }

    #[test]
    fn equally_spaced_ranges_are_joined() {
        assert_eq!(texts([]), [""; 0]);
        assert_eq!(texts(every(2, 1, 2)), ["0", "2"]);
        assert_eq!(texts(every(2, 1, 3)), ["every 2nd from 0 to 4"]);
        assert_eq!(texts(every(3, 2, 50)), ["2 of every 3 from 0 to 148"]);
        assert_eq!(
            texts([0..1, 2..3, 4..6, 8..10, 12..14]),
            ["0", "2", "2 of every 4 from 4 to 13"]
        );
        for (step, word) in [(3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st")] {
            assert_eq!(texts(every(step, 1, 3)), [format!("every {word} from 0 to {}", 2 * step)]);
        }
    }

    proptest! {
        #[test]
        fn runs_contain_exactly_the_ranges(gaps in prop::collection::vec((1..4u64, 1..3u64), 0..60)) {
            let mut at = 0;
            let mut ranges = Vec::new();
            for (gap, len) in gaps {
                ranges.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let runs: Vec<_> = RangeRun::of(ranges.iter().cloned()).collect();
            let mut again = Vec::new();
            for run in &runs {
                let Range { start, end } = run.first();
                again.extend((0..run.count()).map(|n| start + n * run.step()..end + n * run.step()));
                prop_assert_eq!(again.last().map(|last| last.end), Some(run.end()));
                prop_assert!(run.count() == 1 || run.count() >= MIN_COUNT);
            }
            let positions: u64 = runs.iter().map(RangeRun::positions).sum();
            let expected: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            prop_assert_eq!(positions, expected);
            prop_assert_eq!(again, ranges);
        }
    }
}
