//! The source positions and weights of each target position along one axis.

use std::ops::Range;

use super::filter::ResizeFilter;

/// The maximum number of fraction bits: with more, a weighted sum of bytes would exceed 32 bits.
const MAX_BITS: u32 = 22;
/// The maximum weight in 16 bits, reduced by 1 so that rounding cannot exceed it.
const MAX_WEIGHT: f64 = i16::MAX as f64 - 1.0;
/// Weights below this become 0 after rounding.
const NEGLIGIBLE: f64 = 1e-8;

/// The parameters of an axis. Positions are counted from the start of the whole component, not of its
/// decoded part, so that rounding does not depend on which part is decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisRequest {
    /// The start of the source interval.
    pub(super) start: f64,
    /// The length of the source interval.
    pub(super) extent: f64,
    /// The positions that the filter may use; not empty.
    pub(super) first: u32,
    pub(super) end: u32,
    /// The first decoded position.
    pub(super) origin: u32,
    /// The number of target positions; not 0.
    pub(super) target: usize,
    pub(super) filter: ResizeFilter,
    /// The number of source positions, if target positions are counted from the other end;
    /// otherwise `None`.
    pub(super) turned: Option<u32>,
    /// Whether target positions are stored in reverse.
    pub(super) reversed: bool,
}

/// The source interval, relative to an integer position near its start.
struct SourceInterval {
    start: f64,
    /// Source positions per target position.
    scale: f64,
    /// The positions that the filter may use.
    bounds: Range<i64>,
}

/// `value.floor() as i64`, for values far from the limits of `i64`. Without SSE 4.1, `f64::floor`
/// is a function call.
#[inline]
fn floor(value: f64) -> i64 {
    let towards_zero = value as i64;
    towards_zero - i64::from(towards_zero as f64 > value)
}

impl AxisRequest {
    /// The source interval, and the integer position to which it is relative. The interval is
    /// counted from the end that comes first in the upright image, so that ties round in the same
    /// way as for an upright image.
    fn interval(&self) -> (SourceInterval, i64) {
        let (start, first, end) = match self.turned {
            None => (self.start, i64::from(self.first), i64::from(self.end)),
            Some(length) => (
                f64::from(length) - self.start - self.extent,
                i64::from(length) - i64::from(self.end),
                i64::from(length) - i64::from(self.first),
            ),
        };
        let base = start.floor();
        let part = SourceInterval {
            start: start - base,
            scale: self.extent / self.target as f64,
            bounds: first - base as i64..end - base as i64,
        };
        (part, base as i64)
    }

    /// The approximate memory of the weights in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let stretch = (self.extent / self.target as f64).max(1.0);
        let window = (2.0 * self.filter.support() * stretch + 2.0)
            .min(f64::from(self.end - self.first) + 2.0);
        let bytes = (size_of::<f64>() + size_of::<i32>()) as f64;
        // A cast from `f64` saturates.
        (window * self.target as f64 * bytes) as u64
    }
}

/// The resize of one axis in the form that the kernel needs. Source positions are grouped in pairs,
/// counted from the first needed position. All target positions have the same number of pairs.
#[derive(Debug, Default)]
pub(super) struct Axis {
    /// The source positions with non-zero weights.
    pub(super) source: Range<usize>,
    /// Fraction bits of a weight.
    pub(super) bits: u32,
    /// Pairs per target position.
    pub(super) pairs: usize,
    /// The first pair of each target position.
    pub(super) first_pairs: Vec<u32>,
    /// Two weights per pair: the lower 16 bits belong to the first position.
    pub(super) weights: Vec<i32>,
    /// Whether the last target position is complete first.
    descends: bool,
    /// The parameters of the current weights.
    request: Option<AxisRequest>,
    /// The range of source positions (window) of each target position.
    windows: Vec<(i64, i64)>,
    /// The weights of all windows.
    exact: Vec<f64>,
}

impl Axis {
    /// The number of source pairs.
    pub(super) fn source_pairs(&self) -> usize {
        self.source.len().div_ceil(2)
    }

    /// The memory of the current weights in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.exact.len() * size_of::<f64>() + self.weights.len() * size_of::<i32>()
    }

    /// The allocated memory in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.exact.capacity() * size_of::<f64>() + self.weights.capacity() * size_of::<i32>()
    }

    /// The number of target positions, in the order of completion, that are complete after the
    /// first `pairs` source pairs; `done` of them were complete before.
    pub(super) fn ready(&self, done: usize, pairs: usize) -> usize {
        let rest = self.in_order(done..self.first_pairs.len());
        done + rest.take_while(|&first| first + self.pairs <= pairs).count()
    }

    /// The number of source pairs to buffer if `step` pairs arrive at a time and each target
    /// position is computed as soon as it is complete. The result is a multiple of `step`.
    pub(super) fn kept_pairs(&self, step: usize) -> usize {
        let (mut known, mut kept) = (0, 1);
        for first in self.in_order(0..self.first_pairs.len()) {
            // A position is computed only after all positions before it.
            known = (first + self.pairs).div_ceil(step).max(known);
            kept = kept.max(known - first / step);
        }
        kept * step
    }

    /// The target positions with these indices in the order of completion.
    pub(super) fn positions(&self, numbers: Range<usize>) -> Range<usize> {
        let all = self.first_pairs.len();
        if self.descends { all - numbers.end..all - numbers.start } else { numbers }
    }

    /// The first pairs of these positions.
    fn in_order(&self, numbers: Range<usize>) -> impl Iterator<Item = usize> {
        let first_pairs = &self.first_pairs[self.positions(numbers)];
        let (mut ascending, mut descending) = (first_pairs.iter(), first_pairs.iter().rev());
        std::iter::from_fn(move || {
            let next = if self.descends { descending.next() } else { ascending.next() };
            next.map(|&first| first as usize)
        })
    }

    /// Computes the weights, unless the current weights are for the same parameters.
    pub(super) fn prepare(&mut self, request: &AxisRequest) {
        if self.request.as_ref() == Some(request) {
            return;
        }
        self.request = None;
        let (part, base) = request.interval();
        self.windows.clear();
        self.exact.clear();
        match request.filter {
            ResizeFilter::Nearest => self.compute_nearest(&part, request.target),
            filter => self.compute_weights(&part, request.target, filter),
        }
        self.rebase(base, request);
        self.quantize();
        if request.reversed {
            self.first_pairs.reverse();
            let pairs = self.pairs;
            self.weights.reverse();
            self.weights.chunks_exact_mut(pairs).for_each(<[i32]>::reverse);
        }
        self.descends = self.first_pairs.first() > self.first_pairs.last();
        self.request = Some(*request);
    }

    /// Nearest neighbour: one source position per target position.
    fn compute_nearest(&mut self, part: &SourceInterval, target: usize) {
        let SourceInterval { start, scale, bounds } = part;
        self.windows.extend((0..target).map(|at| {
            let middle = start + (at as f64 + 0.5) * scale;
            let position = floor(middle).clamp(bounds.start, bounds.end - 1);
            (position, position + 1)
        }));
        self.exact.resize(target, 1.0);
    }

    /// Pillow's windows and weights.
    fn compute_weights(&mut self, part: &SourceInterval, target: usize, filter: ResizeFilter) {
        let SourceInterval { start, scale, bounds } = part;
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let per_stretch = 1.0 / stretch;
        for at in 0..target {
            let middle = start + (at as f64 + 0.5) * scale;
            let from = floor(middle - support + 0.5);
            let from = from.clamp(bounds.start, bounds.end - 1);
            let to = floor(middle + support + 0.5);
            let to = to.clamp(from + 1, bounds.end);
            let before = self.exact.len();
            let distance = |position: i64| (position as f64 - middle + 0.5) * per_stretch;
            match filter {
                // A separate loop for the most common filter, which the compiler optimises.
                ResizeFilter::Bilinear => {
                    self.exact
                        .extend((from..to).map(|p| ResizeFilter::Bilinear.weight(distance(p))));
                }
                _ => self.exact.extend((from..to).map(|p| filter.weight(distance(p)))),
            }
            let weights = &mut self.exact[before..];
            let sum: f64 = weights.iter().sum();
            let window = if sum > 0.0 {
                let per_sum = 1.0 / sum;
                weights.iter_mut().for_each(|weight| *weight *= per_sum);
                // Zero weights at the ends of a window are removed, because they would cost as much
                // time as others.
                let negligible = |weight: &&f64| weight.abs() < NEGLIGIBLE;
                let ahead = weights.iter().take_while(negligible).count();
                let behind = weights.iter().rev().take_while(negligible).count();
                self.exact.truncate(self.exact.len() - behind);
                self.exact.drain(before..before + ahead);
                (from + ahead as i64, to - behind as i64)
            } else {
                self.exact.truncate(before);
                self.exact.push(1.0);
                (from, from + 1)
            };
            self.windows.push(window);
        }
    }

    /// Makes the windows relative to the first decoded position.
    fn rebase(&mut self, base: i64, request: &AxisRequest) {
        let origin = i64::from(request.origin);
        let mut rest = &mut self.exact[..];
        for window in &mut self.windows {
            let (weights, after) = rest.split_at_mut((window.1 - window.0) as usize);
            rest = after;
            let (from, to) = (window.0 + base, window.1 + base);
            *window = match request.turned {
                None => (from - origin, to - origin),
                Some(length) => {
                    weights.reverse();
                    (i64::from(length) - to - origin, i64::from(length) - from - origin)
                }
            };
        }
    }

    /// Converts windows to pairs, and weights to 16 bits.
    fn quantize(&mut self) {
        let from = self.windows.iter().map(|window| window.0).min().unwrap_or(0);
        let to = self.windows.iter().map(|window| window.1).max().unwrap_or(1);
        self.source = from as usize..to as usize;
        let pairs_of = |window: &(i64, i64)| {
            let first = (window.0 - from) as usize / 2;
            (first, ((window.1 - from) as usize).div_ceil(2) - first)
        };
        self.pairs = self.windows.iter().map(|window| pairs_of(window).1).max().unwrap_or(1);
        let last_first = self.source_pairs() - self.pairs;
        let largest = self.exact.iter().fold(0.0, |largest: f64, weight| largest.max(weight.abs()));
        self.bits = ((MAX_WEIGHT / largest).log2().floor() as u32).min(MAX_BITS);
        let unit = f64::from(1u32 << self.bits);
        self.first_pairs.clear();
        self.weights.clear();
        self.weights.resize(self.windows.len() * self.pairs, 0);
        let mut exact = self.exact.iter();
        for (window, weights) in self.windows.iter().zip(self.weights.chunks_exact_mut(self.pairs))
        {
            let first = pairs_of(window).0.min(last_first);
            self.first_pairs.push(first as u32);
            // Rounding the running sum instead of each weight preserves the sum of the weights.
            let (mut sum, mut rounded) = (0.0, 0);
            let offset = (window.0 - from) as usize - 2 * first;
            let length = (window.1 - window.0) as usize;
            for (at, weight) in (offset..offset + length).zip(exact.by_ref()) {
                sum += weight * unit;
                let next = floor(sum + 0.5) as i32;
                let weight = u32::from((next - rounded) as i16 as u16);
                rounded = next;
                weights[at / 2] |= (weight << (16 * (at % 2))) as i32;
            }
        }
    }
}

/// The unquantised weights of an axis, in the order of the target.
#[derive(Clone, Debug)]
pub(crate) struct AxisTaps {
    /// The first source position of each target position, and the range of its weights.
    windows: Vec<(u32, Range<usize>)>,
    weights: Vec<f32>,
}

impl AxisTaps {
    /// The weights for `target` positions from the interval of `extent` positions after `start`. The filter uses
    /// only the `count` positions after `first`. `count` and `target` are not 0.
    pub(crate) fn new(
        start: f64,
        extent: f64,
        first: u32,
        count: u32,
        target: usize,
        filter: ResizeFilter,
    ) -> Self {
        let end = first.saturating_add(count.max(1));
        let (turned, reversed) = (None, false);
        let request =
            AxisRequest { start, extent, first, end, origin: 0, target, filter, turned, reversed };
        let (part, base) = request.interval();
        let mut axis = Axis::default();
        match filter {
            ResizeFilter::Nearest => axis.compute_nearest(&part, target),
            filter => axis.compute_weights(&part, target, filter),
        }
        axis.rebase(base, &request);
        let mut before = 0;
        let windows = axis.windows.iter().map(|&(from, to)| {
            let range = before..before + (to - from) as usize;
            before = range.end;
            (from as u32, range)
        });
        let windows = windows.collect();
        AxisTaps { windows, weights: axis.exact.iter().map(|weight| *weight as f32).collect() }
    }

    /// The first source position and the weights of a target position.
    pub(crate) fn taps(&self, at: usize) -> (u32, &[f32]) {
        let (first, range) = &self.windows[at];
        (*first, &self.weights[range.clone()])
    }

    /// The source positions that have weights.
    pub(crate) fn range(&self) -> Range<u32> {
        let ends = self.windows.iter().map(|(first, range)| (*first, first + range.len() as u32));
        let all = ends.fold((u32::MAX, 0), |all, (first, end)| (all.0.min(first), all.1.max(end)));
        all.0..all.1
    }

    /// Whether each target position is a copy of a source position.
    pub(crate) fn is_copy(&self) -> bool {
        self.windows.iter().all(|(_, range)| range.len() == 1)
    }

    /// The first source position of each target position.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u32> {
        self.windows.iter().map(|(first, _)| *first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// For each target position, the weights by source position.
    fn weights(axis: &Axis, length: usize) -> Vec<Vec<i64>> {
        let targets = axis.first_pairs.iter().zip(axis.weights.chunks(axis.pairs));
        targets
            .map(|(&first, weights)| {
                let mut row = vec![0; length + 2];
                for (pair, weight) in weights.iter().enumerate() {
                    let at = axis.source.start + 2 * (first as usize + pair);
                    row[at] = i64::from(*weight as i16);
                    row[at + 1] = i64::from((*weight >> 16) as i16);
                }
                row
            })
            .collect()
    }

    #[test]
    fn floor_rounds_down() {
        for value in [-2.0, -1.5, -1e-9, -0.0, 0.0, 0.5, 1.0, 1.999_999, 65_500.25] {
            assert_eq!(floor(value), value.floor() as i64, "{value}");
        }
    }

    proptest! {
        #[test]
        fn weights_sum_up_to_one_and_stay_within_their_bounds(
            length in 1u32..300, target in 1usize..80, start in 0.0..1.0f64, extent in 0.01..1.0f64,
            bounds: (u32, u32), origin: u32, filter in 0usize..5, turned: bool, reversed: bool,
        ) {
            let first = bounds.0 % length;
            let end = first + 1 + bounds.1 % (length - first);
            let origin = origin % (first + 1);
            let start = start * f64::from(length);
            let request = AxisRequest {
                start, extent: (f64::from(length) - start) * extent, first, end, origin, target,
                filter: ResizeFilter::ALL[filter], turned: turned.then_some(length), reversed,
            };
            let (first, end) = ((first - origin) as usize, (end - origin) as usize);
            let length = length as usize;
            let mut axis = Axis::default();
            axis.prepare(&request);
            prop_assert!(axis.source.start >= first && axis.source.end <= end);
            let rows = weights(&axis, length);
            prop_assert_eq!(rows.len(), target);
            for row in rows {
                prop_assert_eq!(row.iter().sum::<i64>(), 1 << axis.bits);
                prop_assert!(row.iter().map(|weight| weight.abs()).sum::<i64>() * 255 < 1 << 31);
                for (at, weight) in row.iter().enumerate() {
                    prop_assert!(*weight == 0 || (first..end).contains(&at));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn positions_are_computed_once_while_their_pairs_are_kept(
            length in 1u32..900, target in 1usize..300, extent in 0.01..1.0f64, filter in 0usize..5,
            step in 1usize..40, turned: bool, reversed: bool,
        ) {
            let mut axis = Axis::default();
            axis.prepare(&AxisRequest {
                start: 0.0, extent: f64::from(length) * extent, first: 0, end: length, origin: 0,
                target, filter: ResizeFilter::ALL[filter], turned: turned.then_some(length), reversed,
            });
            check_kept(&axis, step);
        }
    }

    /// Checks that each position is computed once, while all of its pairs are still buffered.
    fn check_kept(axis: &Axis, step: usize) {
        let kept = axis.kept_pairs(step);
        assert_eq!(kept % step, 0);
        let (mut done, mut seen) = (0, vec![false; axis.first_pairs.len()]);
        for end in (step..axis.source_pairs() + step).step_by(step) {
            let ready = axis.ready(done, end.min(axis.source_pairs()));
            for position in axis.positions(done..ready) {
                let first = axis.first_pairs[position] as usize;
                assert!(first + axis.pairs <= end && first + kept >= end, "{position}, {step}");
                assert!(!std::mem::replace(&mut seen[position], true));
            }
            done = ready;
        }
        assert!(seen.into_iter().all(|seen| seen));
    }

    #[test]
    fn pairs_are_kept_while_an_earlier_position_is_pending() {
        // Enlarged by a factor of 3: every third target position coincides with a source position
        // and needs only that source position. The first pair of such a target position is
        // therefore after the first pair of the next one.
        for filter in [ResizeFilter::Bicubic, ResizeFilter::Lanczos3] {
            let mut axis = Axis::default();
            axis.prepare(&AxisRequest {
                start: 0.0,
                extent: 20.0,
                first: 0,
                end: 20,
                origin: 0,
                target: 60,
                filter,
                turned: None,
                reversed: false,
            });
            assert!(!axis.first_pairs.is_sorted(), "{filter}");
            (1..20).for_each(|step| check_kept(&axis, step));
        }
    }

    #[test]
    fn weights_have_as_many_bits_as_fit() {
        // The largest weight of the three cases is 1, 1/2, and less than 1/1000.
        for (length, bits) in [(1, 14), (2, 15), (2000, MAX_BITS)] {
            let mut axis = Axis::default();
            axis.prepare(&AxisRequest {
                start: 0.0,
                extent: f64::from(length),
                first: 0,
                end: length,
                origin: 0,
                target: 1,
                filter: ResizeFilter::Area,
                turned: None,
                reversed: false,
            });
            assert_eq!(axis.bits, bits, "of {length}");
        }
    }

    #[test]
    fn without_resize_only_the_pixel_itself_has_a_weight() {
        for filter in ResizeFilter::ALL {
            let mut axis = Axis::default();
            axis.prepare(&AxisRequest {
                start: 5.0,
                extent: 7.0,
                first: 2,
                end: 22,
                origin: 2,
                target: 7,
                filter,
                turned: None,
                reversed: false,
            });
            assert_eq!((axis.source.clone(), axis.pairs), (3..10, 1), "{filter}");
            for (at, row) in weights(&axis, 20).iter().enumerate() {
                assert_eq!(row[at + 3], 1 << axis.bits);
            }
        }
    }
}
