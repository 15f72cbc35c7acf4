//! Shuffling of samples in shards that are read sequentially.

use std::fmt::{self, Debug};
use std::sync::Arc;

use super::{Draws, SampleOrder, Sampler, hash, invalid};
use crate::error::Result;
use crate::source::shuffle::Permutation;

/// Shuffles samples in shards (tar or record files) so that few shards are open at a time.
///
/// The shards of an epoch are concatenated in shuffled order. The sequence is divided into windows
/// of `window` samples, and each window is shuffled. The boundaries of the windows are drawn for
/// each epoch. A window contains samples of few shards: see
/// [`open_shards`](ShardWindow::open_shards).
///
/// With [`partitions`](ShardWindow::partitions), each rank can read separate shards, except for
/// shards that cross a boundary between partitions. The order still does not depend on the number
/// of ranks.
///
/// Items are numbered across all shards: the items of shard 1 follow those of shard 0. The order is
/// a function of seed, epoch and position. An epoch takes 16 bytes per shard.
///
/// ```
/// use spdl_core::source::sampler::{Sampler, ShardWindow};
/// // Four shards, of which at most three are open at the same time.
/// let sampler = ShardWindow::new([1000, 1000, 1000, 200], 1000, 7)?;
/// assert_eq!(sampler.open_shards(), 3);
///
/// let order = sampler.order(0)?;
/// let (shard, offset) = order.shard_at(17);
/// assert!(shard < 4 && offset < 1000);
///
/// // As a sampler, it returns the index of the item in the data set.
/// let items = sampler.epoch(3200, 0)?;
/// assert_eq!(items.at(17), shard as u64 * 1000 + offset);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct ShardWindow {
    lens: Arc<[u64]>,
    /// The index of the first item of each shard.
    firsts: Arc<[u64]>,
    items: u64,
    window: u64,
    partitions: u64,
    seed: u64,
}

impl ShardWindow {
    /// Shards with `lens` samples each, shuffled in windows of `window` samples.
    ///
    /// A window of 1 shuffles only the order of the shards. A window of all samples shuffles
    /// everything.
    ///
    /// # Errors
    /// `InvalidArgument` if `window` is 0, or the shards have more than 2⁶³ samples in total.
    pub fn new(lens: impl Into<Vec<u64>>, window: u64, seed: u64) -> Result<Self> {
        if window == 0 {
            return Err(invalid("`window` must be at least 1 sample"));
        }
        let lens = lens.into();
        let mut items = 0u64;
        let mut firsts = Vec::with_capacity(lens.len());
        for len in &lens {
            firsts.push(items);
            items = items
                .checked_add(*len)
                .filter(|items| *items <= 1 << 63)
                .ok_or_else(|| invalid("the shards have more than 2^63 samples in total"))?;
        }
        Ok(ShardWindow {
            lens: lens.into(),
            firsts: firsts.into(),
            items,
            window,
            partitions: 1,
            seed,
        })
    }

    /// Divides the sequence of shards into `partitions` parts with separate windows. Default: 1.
    ///
    /// The sizes of partitions differ by at most one sample. Positions are assigned round-robin:
    /// position `p` belongs to partition `p` modulo `partitions`.
    ///
    /// Rank `r` of `w` reads positions `r`, `r + w` and so on. If `w` divides `partitions`, each
    /// rank therefore reads `partitions` / `w` partitions. Several ranks then read the same shard
    /// only if the shard crosses a boundary between partitions. The order does not depend on `w`.
    /// To be able to change the world size, choose a number of partitions with many divisors, such
    /// as 64 or 840.
    ///
    /// ```
    /// use spdl_core::source::sampler::ShardWindow;
    /// let order = ShardWindow::new([100; 16], 50, 7)?.partitions(8)?.order(0)?;
    /// // Rank 1 of 4 has two partitions of 200 samples, each of two shards.
    /// let mut shards: Vec<_> = (1..1600).step_by(4).map(|p| order.shard_at(p).0).collect();
    /// shards.sort();
    /// shards.dedup();
    /// assert_eq!(shards.len(), 4);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if `partitions` is 0.
    pub fn partitions(mut self, partitions: u64) -> Result<Self> {
        if partitions == 0 {
            return Err(invalid("`partitions` must be at least 1"));
        }
        self.partitions = partitions;
        Ok(self)
    }

    /// An upper bound for the number of shards from which a window has samples, in any epoch.
    ///
    /// A reader that reads the samples of one partition in order needs at most this many open
    /// shards for each window.
    pub fn open_shards(&self) -> usize {
        let mut lens: Vec<u64> = self.lens.iter().copied().filter(|len| *len > 0).collect();
        lens.sort_unstable();
        // The first and the last sample may be in two large shards, with the smallest shards
        // between them.
        let mut left = self.window.min(self.items);
        if left < 2 || lens.len() < 2 {
            return lens.len().min(1);
        }
        left -= 2;
        let inner = lens.iter().take(lens.len() - 2).take_while(|len| {
            let fits = **len <= left;
            left = left.saturating_sub(**len);
            fits
        });
        2 + inner.count()
    }

    /// Returns the order of `epoch`; [`shard_at`](ShardWindowOrder::shard_at) gives the shard and
    /// offset of the sample at a position.
    ///
    /// # Errors
    /// Currently none.
    pub fn order(&self, epoch: u64) -> Result<ShardWindowOrder> {
        let draws = Draws::new(b"a window", self.seed, epoch);
        let shuffle = Permutation::new(self.lens.len() as u64, draws.at(0), 0);
        let mut end = 0;
        let shards = (0..self.lens.len() as u64)
            .map(|place| {
                let shard = shuffle.at(place) as usize;
                end += self.lens[shard];
                PlacedShard { shard, end }
            })
            .collect();
        Ok(ShardWindowOrder {
            firsts: Arc::clone(&self.firsts),
            shards,
            len: self.items,
            window: self.window,
            partitions: self.partitions,
            draws,
        })
    }
}

impl Debug for ShardWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShardWindow { window, partitions, seed, .. } = self;
        let (shards, hash) = (self.lens.len(), hash(self.lens.iter().copied()));
        write!(f, "ShardWindow {{ seed: {seed}, window: {window}")?;
        if *partitions != 1 {
            write!(f, ", partitions: {partitions}")?;
        }
        write!(f, ", shards: {shards} #{hash:016x} }}")
    }
}

impl Sampler for ShardWindow {
    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        if items != self.items {
            let sharded = self.items;
            return Err(invalid(format!(
                "the shards have {sharded} samples, but the data set has {items}"
            )));
        }
        Ok(Arc::new(self.order(epoch)?))
    }

    fn epoch_len(&self, _: u64) -> Option<u64> {
        Some(self.items)
    }
}

/// The order of one epoch of a [`ShardWindow`].
pub struct ShardWindowOrder {
    firsts: Arc<[u64]>,
    /// In the order of the epoch.
    shards: Vec<PlacedShard>,
    len: u64,
    window: u64,
    partitions: u64,
    draws: Draws,
}

/// The samples `start..end` of the sequence, which are shuffled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Window {
    partition: u64,
    /// The number of the window within its partition.
    number: u64,
    start: u64,
    end: u64,
}

#[derive(Clone, Copy)]
struct PlacedShard {
    shard: usize,
    /// One past the last sample in the sequence of all shards.
    end: u64,
}

impl ShardWindowOrder {
    /// Returns the shard of the sample at `position`, and the offset in the shard.
    ///
    /// ```
    /// use spdl_core::source::sampler::ShardWindow;
    /// let order = ShardWindow::new([2, 2], 1, 7)?.order(0)?;
    /// // A window of 1 keeps the order of samples in a shard.
    /// assert_eq!((order.shard_at(0).1, order.shard_at(1).1), (0, 1));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// May panic if `position` is not in `0..len()`. If `shard_at` does not panic for such a
    /// position, the result is unspecified.
    pub fn shard_at(&self, position: u64) -> (usize, u64) {
        let place = self.place(position);
        let at = self.shards.partition_point(|shard| shard.end <= place);
        let start = if at == 0 { 0 } else { self.shards[at - 1].end };
        (self.shards[at].shard, place - start)
    }

    /// The place of the sample at `position` in the sequence of shards.
    fn place(&self, position: u64) -> u64 {
        let (window, inside) = self.window_of(position);
        let seed = self.draws.at(2 * window.partition + 2);
        window.start + Permutation::new(window.end - window.start, seed, window.number).at(inside)
    }

    /// The window of `position`, and the number of its positions before this one.
    fn window_of(&self, position: u64) -> (Window, u64) {
        let (partition, inside) = (position % self.partitions, position / self.partitions);
        let (share, longer) = (self.len / self.partitions, self.len % self.partitions);
        let first = partition * share + partition.min(longer);
        let len = share + u64::from(partition < longer);
        // The number of samples in the first window; 0 stands for a whole window.
        let offset = match self.window < len {
            true => self.draws.below(2 * partition + 1, self.window).0,
            false => 0,
        };
        let (number, start, end) = if inside < offset {
            (0, 0, offset)
        } else {
            let number = (inside - offset) / self.window;
            let start = offset + number * self.window;
            (number + 1, start, start.saturating_add(self.window))
        };
        let window = Window { partition, number, start: first + start, end: first + end.min(len) };
        (window, inside - start)
    }
}

impl Debug for ShardWindowOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardWindowOrder({} samples of {} shards)", self.len, self.shards.len())
    }
}

impl SampleOrder for ShardWindowOrder {
    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, position: u64) -> u64 {
        let (shard, offset) = self.shard_at(position);
        self.firsts[shard] + offset
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::epoch;
    use super::*;
    use crate::error::ErrorKind;
    use crate::source::shuffle::tests::{assert_chi_squared, assert_uniform};
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    fn lens() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(prop_oneof![0u64..60, Just(0), 1u64..4], 0..20)
    }

    proptest! {
        #[test]
        fn every_item_occurs_once_and_windows_touch_few_adjacent_shards(
            lens in lens(), window in 1u64..100, partitions in 1u64..6, seed: u64,
            number in 0u64..3,
        ) {
            let sampler = ShardWindow::new(lens.clone(), window, seed).unwrap();
            let sampler = sampler.partitions(partitions).unwrap();
            let items: u64 = lens.iter().sum();
            let mut found = epoch(&sampler, items, number);
            let order = sampler.order(number).unwrap();
            let sequence: Vec<usize> = order.shards.iter().map(|shard| shard.shard).collect();
            let mut windows: HashMap<Window, HashSet<usize>> = HashMap::new();
            for position in 0..items {
                let (window, inside) = order.window_of(position);
                prop_assert!(inside < window.end - window.start);
                prop_assert!((window.start..window.end).contains(&order.place(position)));
                windows.entry(window).or_default().insert(order.shard_at(position).0);
            }
            for (Window { start, end, .. }, shards) in windows {
                prop_assert!(end - start <= window);
                prop_assert!(shards.len() <= sampler.open_shards());
                // Adjacent in the sequence, except for empty shards.
                let mut places: Vec<usize> = (0..sequence.len())
                    .filter(|&place| shards.contains(&sequence[place]))
                    .collect();
                if let (Some(&first), Some(&last)) = (places.first(), places.last()) {
                    places.extend((first..last).filter(|&place| lens[sequence[place]] == 0));
                    places.sort_unstable();
                    places.dedup();
                    prop_assert_eq!(places, (first..=last).collect::<Vec<_>>());
                }
            }
            for (&item, position) in found.iter().zip(0..) {
                let (shard, offset) = order.shard_at(position);
                prop_assert!(offset < lens[shard]);
                prop_assert_eq!(lens[..shard].iter().sum::<u64>() + offset, item);
            }
            found.sort_unstable();
            prop_assert_eq!(found, (0..items).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_bound_of_open_shards_is_reached() {
        let open = |lens: &[u64], window| ShardWindow::new(lens, window, 0).unwrap().open_shards();
        assert_eq!(open(&[10; 5], 1), 1);
        assert_eq!(open(&[10; 5], 10), 2);
        assert_eq!(open(&[10; 5], 11), 2);
        assert_eq!(open(&[10; 5], 12), 3);
        assert_eq!(open(&[10; 5], 1000), 5);
        assert_eq!(open(&[10, 0, 0], 5), 1);
        assert_eq!(open(&[], 5), 0);
        let sampler = ShardWindow::new([10; 5], 12, 1).unwrap();
        let most = (0..50).map(|number| {
            let order = sampler.order(number).unwrap();
            let windows: HashSet<Window> =
                (0..50).map(|position| order.window_of(position).0).collect();
            let touched = |window: &Window| {
                let shards = (window.start..window.end).map(|at| order.shard_at(at).0);
                shards.collect::<HashSet<_>>().len()
            };
            windows.iter().map(touched).max().unwrap()
        });
        assert_eq!(most.max(), Some(3));
    }

    #[test]
    fn windows_shards_and_boundaries_differ_between_epochs() {
        let sampler = ShardWindow::new([100; 50], 64, 3).unwrap();
        assert_ne!(epoch(&sampler, 5000, 0), epoch(&sampler, 5000, 1));
        let orders: Vec<_> = (0..20).map(|number| sampler.order(number).unwrap()).collect();
        let borders: HashSet<u64> = orders.iter().map(|order| order.window_of(0).0.end).collect();
        let first: HashSet<usize> = orders.iter().map(|order| order.shards[0].shard).collect();
        assert!(borders.len() > 10 && first.len() > 10);
        // Two windows of one epoch are shuffled differently.
        let order = &orders[0];
        let window = |number: u64| -> Vec<u64> {
            let start = order.window_of(0).0.end + number * 64;
            (start..start + 64).map(|position| order.place(position) - start).collect()
        };
        assert_ne!(window(0), window(1));
    }

    #[test]
    fn partitions_give_each_rank_separate_shards() {
        let sampler = ShardWindow::new([40; 24], 100, 3).unwrap().partitions(12).unwrap();
        let order = sampler.order(2).unwrap();
        for world_size in [1, 2, 3, 4, 6, 12] {
            let mut readers = vec![0; 24];
            for rank in 0..world_size {
                let positions = (rank..960).step_by(world_size as usize);
                let shards: HashSet<usize> = positions.map(|at| order.shard_at(at).0).collect();
                shards.into_iter().for_each(|shard| readers[shard] += 1);
            }
            // Each partition has 80 samples: two whole shards.
            assert_eq!(readers, vec![1; 24], "{world_size}");
        }
        // Partitions are shuffled differently, even if each is a single window.
        let sampler = ShardWindow::new([40; 24], 1 << 50, 3).unwrap().partitions(12).unwrap();
        let order = sampler.order(2).unwrap();
        let windows = |partition: u64| -> Vec<u64> {
            (0..80).map(|at| order.place(at * 12 + partition) - partition * 80).collect()
        };
        assert_ne!(windows(0), windows(1));
    }

    #[test]
    fn a_window_of_one_keeps_the_order_within_shards() {
        let sampler = ShardWindow::new([3; 10], 1, 3).unwrap();
        for shard in epoch(&sampler, 30, 0).chunks(3) {
            assert_eq!(shard, [shard[0], shard[0] + 1, shard[0] + 2]);
        }
    }

    #[test]
    fn invalid_arguments_are_refused_and_extremes_work() {
        assert_eq!(ShardWindow::new([1], 0, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(ShardWindow::new([1 << 63, 1], 1, 0).is_err());
        assert!(ShardWindow::new([1], 1, 0).unwrap().partitions(0).is_err());
        assert!(ShardWindow::new([3, 4], 1, 0).unwrap().epoch(8, 0).is_err());
        let huge = ShardWindow::new([1 << 62; 2], u64::MAX, 0).unwrap();
        assert!(huge.epoch(1 << 63, 0).unwrap().at((1 << 63) - 1) < 1 << 63);
    }

    #[test]
    fn the_fingerprint_depends_on_the_shards() {
        let of = |lens: [u64; 2], window, seed| {
            ShardWindow::new(lens, window, seed).unwrap().fingerprint()
        };
        assert_eq!(of([1, 2], 3, 4), of([1, 2], 3, 4));
        let parts = ShardWindow::new([1, 2], 3, 4).unwrap().partitions(2).unwrap().fingerprint();
        for other in [of([2, 1], 3, 4), of([1, 2], 4, 4), of([1, 2], 3, 5), parts] {
            assert_ne!(of([1, 2], 3, 4), other);
        }
        assert!(of([1, 2], u64::MAX, u64::MAX).chars().count() <= 100);
    }

    /// The orders of consecutive seeds, and of consecutive epochs.
    fn orders(lens: &[u64], window: u64, count: u64) -> [Vec<ShardWindowOrder>; 2] {
        let of = |seed| ShardWindow::new(lens, window, seed).unwrap();
        let epochs = of(7);
        [
            (0..count).map(|seed| of(seed).order(0).unwrap()).collect(),
            (0..count).map(|epoch| epochs.order(epoch).unwrap()).collect(),
        ]
    }

    #[test]
    fn all_orders_of_shards_and_all_first_boundaries_are_equally_likely() {
        for shards in [2usize, 3, 4, 5] {
            let all: u64 = (1..=shards as u64).product();
            for orders in orders(&vec![3; shards], 2, 100 * all) {
                let mut counts = HashMap::new();
                for order in orders {
                    let sequence: Vec<usize> = order.shards.iter().map(|it| it.shard).collect();
                    *counts.entry(sequence).or_insert(0u32) += 1;
                }
                assert_eq!(counts.len() as u64, all);
                let counts: Vec<u32> = counts.into_values().collect();
                assert_uniform(&counts, &format!("orders of {shards} shards"));
            }
        }
        for window in [2u64, 3, 8, 17, 64, 1000] {
            let bins = window.min(40);
            for orders in orders(&[5000], window, 4000) {
                let mut counts = vec![0u32; bins as usize];
                for order in orders {
                    // An empty first window is replaced by a whole one.
                    let cut = order.window_of(0).0.end % window;
                    counts[(cut * bins / window) as usize] += 1;
                }
                let share = |bin| (0..window).filter(|cut| cut * bins / window == bin).count();
                let share = |bin| 4000.0 * share(bin) as f64 / window as f64;
                let expected: Vec<f64> = (0..bins).map(share).collect();
                let what = format!("first cuts of windows of {window}");
                assert_chi_squared(&counts, &expected, bins as usize - 1, &what);
            }
        }
    }

    #[test]
    fn a_window_of_all_samples_is_not_cut() {
        for window in [12, 13, 1 << 40] {
            for epoch in 0..50 {
                let order = ShardWindow::new([5, 7], window, 3).unwrap().order(epoch).unwrap();
                let (first, _) = order.window_of(0);
                assert_eq!((first.start, first.end), (0, 12), "window {window}, epoch {epoch}");
            }
        }
    }

    /// The places in the sequence of the samples of window `number`, relative to its start.
    fn whole_window(order: &ShardWindowOrder, number: u64) -> Vec<u64> {
        let start = order.window_of(0).0.end + number * order.window;
        (start..start + order.window).map(|position| order.place(position) - start).collect()
    }

    // promise: CORE7
    #[test]
    fn a_window_is_shuffled_uniformly() {
        for window in [2u64, 3, 4, 5, 8, 15, 16, 17, 31, 64, 100] {
            let cells = window * window;
            let count = (200_000 / window).clamp(2000, 20 * cells.max(200));
            for orders in orders(&[window * 6; 3], window, count) {
                let places = window.min(20);
                let bin = |place: u64| (place * places / window) as usize;
                let mut at = [(); 3].map(|()| vec![0u32; places as usize]);
                // For small windows, counts ordered pairs. For larger windows, counts the distances
                // between adjacent samples.
                let pairs = if window <= 8 { window * (window - 1) } else { window - 1 };
                let mut next = vec![0u32; pairs as usize];
                let mut fixed = [0u32; 4];
                for order in &orders {
                    let found = whole_window(order, 3);
                    let last = found.len() - 1;
                    for (counts, position) in at.iter_mut().zip([0, last / 2, last]) {
                        counts[bin(found[position])] += 1;
                    }
                    let (a, b) = (found[last / 2], found[last / 2 + 1]);
                    let pair = if window <= 8 {
                        a * (window - 1) + if b > a { b - 1 } else { b }
                    } else {
                        (b + window - a) % window - 1
                    };
                    next[pair as usize] += 1;
                    let stay = found.iter().zip(0..).filter(|&(&place, here)| place == here);
                    fixed[stay.count().min(3)] += 1;
                }
                let count = count as f64;
                let share = |bins: usize| (0..window).filter(|&p| bin(p) == bins).count() as f64;
                let expected: Vec<f64> =
                    (0..places as usize).map(|bin| count * share(bin) / window as f64).collect();
                for counts in &at {
                    let what = format!("places in windows of {window}");
                    assert_chi_squared(counts, &expected, places as usize - 1, &what);
                }
                assert_uniform(&next, &format!("neighbours in windows of {window}"));
                if window >= 8 {
                    // The number is very nearly Poisson distributed with mean 1, like for a
                    // permutation of all samples.
                    let mut expected = [1.0, 1.0, 0.5, 0.0].map(|p| p / std::f64::consts::E);
                    expected[3] = 1.0 - expected.iter().sum::<f64>();
                    let expected = expected.map(|p| p * count);
                    assert_chi_squared(&fixed, &expected, 3, &format!("fixed points of {window}"));
                }
            }
        }
    }

    #[test]
    fn the_windows_of_one_order_are_independent() {
        for (window, partitions) in [(16u64, 1), (100, 1), (100, 4), (1000, 1)] {
            let sampler = ShardWindow::new([250_000; 4], window, 5).unwrap();
            let order = sampler.partitions(partitions).unwrap().order(1).unwrap();
            let windows = (1_000_000 / window).min(4000);
            // Pairs to test for independence: the place of a sample and its position; the first
            // samples of two consecutive windows; the first samples of the same window in two
            // adjacent partitions.
            let mut places = vec![0u32; 100];
            let (mut before, mut beside) = (places.clone(), places.clone());
            let first_of = |partition: u64, number: u64| {
                let end = order.window_of(partition).0.end - order.window_of(partition).0.start;
                let start = (end + number * window) * partitions + partition;
                let (found, inside) = order.window_of(start);
                assert_eq!((inside, found.end - found.start), (0, window));
                (order.place(start) - found.start, start)
            };
            let bin = |place: u64| place * 10 / window;
            let share = |bin| (0..window).filter(|place| place * 10 / window == bin).count() as f64;
            for number in 0..windows / partitions - 2 {
                let (first, start) = first_of(0, number);
                let (next, _) = first_of(0, number + 1);
                let (other, _) = first_of(partitions - 1, number);
                before[(bin(first) * 10 + bin(next)) as usize] += 1;
                beside[(bin(first) * 10 + bin(other)) as usize] += 1;
                // Every seventh position, because positions in one window are not independent.
                let inside = number * 7 % window;
                let position = start + inside * partitions;
                let place = order.place(position) - order.window_of(position).0.start;
                places[(bin(inside) * 10 + bin(place)) as usize] += 1;
            }
            let count = f64::from(before.iter().sum::<u32>());
            let cell = |at: u64| share(at / 10) * share(at % 10) / (window * window) as f64;
            let expected: Vec<f64> = (0..100).map(|at| count * cell(at)).collect();
            let what = |what: &str| format!("{what} of {window} in {partitions} partitions");
            assert_chi_squared(&before, &expected, 99, &what("consecutive windows"));
            if partitions > 1 {
                assert_chi_squared(&beside, &expected, 99, &what("windows of adjacent partitions"));
            }
            let rows = (0..100).map(|at: u64| {
                let row = places[(at / 10 * 10) as usize..][..10].iter().sum::<u32>();
                f64::from(row) * share(at % 10) / window as f64
            });
            let expected: Vec<f64> = rows.collect();
            assert_chi_squared(&places, &expected, 90, &what("places"));
        }
    }
}
