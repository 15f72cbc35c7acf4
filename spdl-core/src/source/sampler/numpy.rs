//! The orders that NumPy's random generator produces, bit for bit.

use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::sync::Arc;

use super::weighted::ListedOrder;
use super::{SampleOrder, Sampler, hash, invalid};
use crate::error::{Error, ErrorKind, Result};

/// Draws the items that NumPy draws, bit for bit (tested against NumPy 2.4).
///
/// Implements `np.random.default_rng(seed).choice(n, size, replace, p)` and `.permutation(n)`.
///
/// All epochs have the same order, unless [`each_epoch`](NumpyRandom::each_epoch) is set. The order
/// is computed at the start of an epoch. The order takes 8 bytes per draw. Computing the order
/// temporarily takes more memory. [`Shuffled`](super::Shuffled) needs only constant memory. The
/// example below is one rank of a distributed random sampler, `choice(n, draws // world_size *
/// world_size, …)[rank::world_size]`:
///
/// ```
/// use spdl_core::source::sampler::{Distributed, NumpyRandom, Sampler};
/// let (rank, world_size) = (1, 3);
/// let all = NumpyRandom::new(0).multiple_of(world_size)?;
/// let order = Distributed::new(all, rank, world_size)?.epoch(10, 0)?;
/// let items: Vec<u64> = (0..order.len()).map(|position| order.at(position)).collect();
/// // list(np.random.default_rng(0).choice(10, 9, replace=False)[1::3])
/// assert_eq!(items, [2, 9, 0]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct NumpyRandom {
    seed: u64,
    draws: Option<u64>,
    multiple_of: u64,
    each_epoch: bool,
    permutation: bool,
    replace: Option<bool>,
    probabilities: Option<Arc<[f64]>>,
}

impl NumpyRandom {
    /// Draws `np.random.default_rng(seed).choice(n, n, replace=False)` of `n` items.
    pub fn new(seed: u64) -> Self {
        NumpyRandom {
            seed,
            draws: None,
            multiple_of: 1,
            each_epoch: false,
            permutation: false,
            replace: None,
            probabilities: None,
        }
    }

    /// Draws `np.random.default_rng(seed).permutation(n)`, which differs from `choice`.
    ///
    /// ```
    /// use spdl_core::source::sampler::{NumpyRandom, Sampler};
    /// let order = NumpyRandom::permutation(0).epoch(10, 0)?;
    /// let items: Vec<u64> = (0..10).map(|position| order.at(position)).collect();
    /// assert_eq!(items, [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn permutation(seed: u64) -> Self {
        NumpyRandom { permutation: true, ..NumpyRandom::new(seed) }
    }

    /// Sets the number of draws. Default: the number of items. Ignored by `permutation`.
    #[must_use]
    pub fn draws(mut self, draws: u64) -> Self {
        self.draws = Some(draws);
        self
    }

    /// Rounds the number of draws down to a multiple of `world_size` before drawing. NumPy may draw
    /// the items in another order if the number of draws differs. For `permutation`, the last items
    /// of the permutation are left out instead.
    ///
    /// # Errors
    /// `InvalidArgument` if `world_size` is 0.
    pub fn multiple_of(mut self, world_size: u64) -> Result<Self> {
        if world_size == 0 {
            return Err(invalid("`world_size` must be at least 1"));
        }
        self.multiple_of = world_size;
        Ok(self)
    }

    /// Draws with `p = weights / np.sum(weights)`, by default with replacement. `permutation`
    /// ignores the weights, but their number must equal the number of items.
    ///
    /// # Errors
    /// `InvalidArgument` if a weight is negative, infinite or NaN, or their sum is 0 or infinite.
    pub fn weights(self, weights: impl Into<Vec<f64>>) -> Result<Self> {
        let mut weights = weights.into();
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
            let found = weights[at];
            return Err(invalid(format!(
                "invalid weight {found} of item {at}: weights must be finite and not negative"
            )));
        }
        let total = numpy_sum(&weights);
        if !total.is_finite() || total <= 0.0 {
            return Err(invalid(format!(
                "the sum of the weights is {total}; it must be positive and finite"
            )));
        }
        weights.iter_mut().for_each(|weight| *weight /= total);
        self.probabilities(weights)
    }

    /// Draws with probabilities `p`, without scaling, by default with replacement. `permutation`
    /// ignores the probabilities, but their number must equal the number of items.
    ///
    /// # Errors
    /// `InvalidArgument` if a probability is negative or NaN, or their sum differs from 1 by more
    /// than 1.5·10⁻⁸, the tolerance of NumPy.
    pub fn probabilities(mut self, p: impl Into<Vec<f64>>) -> Result<Self> {
        let p = p.into();
        if let Some(at) = p.iter().position(|p| p.is_nan() || *p < 0.0) {
            let found = p[at];
            return Err(invalid(format!(
                "invalid probability {found} of item {at}: expected a number of at least 0"
            )));
        }
        let (mut sum, mut lost) = (0.0, 0.0);
        for p in &p {
            let term = p - lost;
            let next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
        if sum.is_nan() || f64::abs(sum - 1.0) > f64::EPSILON.sqrt() {
            return Err(invalid(format!("the sum of the probabilities is {sum}; it must be 1")));
        }
        self.probabilities = Some(p.into());
        Ok(self)
    }

    /// Sets whether an item may be drawn more than once. Default: true with weights or
    /// probabilities, otherwise false. Ignored by `permutation`.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = Some(replace);
        self
    }

    /// Uses the seed `seed + epoch` in each epoch. With seed 0 this equals a sampler for which
    /// `shuffle(seed=epoch)` is called before each epoch.
    #[must_use]
    pub fn each_epoch(mut self) -> Self {
        self.each_epoch = true;
        self
    }

    fn size(&self, items: u64) -> u64 {
        let draws = if self.permutation { items } else { self.draws.unwrap_or(items) };
        draws / self.multiple_of * self.multiple_of
    }
}

impl Debug for NumpyRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NumpyRandom { seed, multiple_of, .. } = self;
        let what = if self.permutation { "permutation" } else { "choice" };
        write!(f, "NumpyRandom {{ {what}, seed: {seed}")?;
        if self.each_epoch {
            f.write_str(" + epoch")?;
        }
        if let Some(draws) = self.draws {
            write!(f, ", draws: {draws}")?;
        }
        if *multiple_of != 1 {
            write!(f, " by {multiple_of}")?;
        }
        if let Some(replace) = self.replace {
            write!(f, ", replace: {replace}")?;
        }
        if let Some(p) = &self.probabilities {
            write!(f, ", p: #{:016x}", hash(p.iter().map(|p| p.to_bits())))?;
        }
        f.write_str(" }")
    }
}

impl Sampler for NumpyRandom {
    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        let seed = if self.each_epoch { self.seed.wrapping_add(epoch) } else { self.seed };
        let (size, mut generator) = (self.size(items), Pcg64::new(seed));
        if items == 0 || items > i64::MAX as u64 {
            return Err(invalid(format!(
                "cannot compute NumPy's order of {items} items: expected 1 to 2^63 - 1 items"
            )));
        }
        let replace = self.replace.unwrap_or(self.probabilities.is_some());
        if !replace && size > items {
            let message =
                format!("cannot draw {size} items without replacement from {items} items");
            return Err(invalid(message));
        }
        let drawn = match &self.probabilities {
            Some(p) if p.len() as u64 != items => {
                let given = p.len();
                return Err(invalid(format!(
                    "{given} weights or probabilities for {items} items; give one per item"
                )));
            }
            _ if self.permutation => {
                let mut all = all_of(items)?;
                for at in (1..all.len()).rev() {
                    all.swap(at, generator.masked(at as u64) as usize);
                }
                all.truncate(size as usize);
                all
            }
            Some(p) if replace => {
                let cumulative = cumulative(p);
                let mut drawn = with_capacity(size)?;
                drawn.extend((0..size).map(|_| find(&cumulative, generator.unit())));
                drawn
            }
            Some(p) => weighted_without_replacement(&mut generator, p, size)?,
            None if replace => {
                let mut drawn = with_capacity(size)?;
                drawn.extend((0..size).map(|_| generator.at_most(items - 1)));
                drawn
            }
            None => without_replacement(&mut generator, items, size)?,
        };
        Ok(Arc::new(ListedOrder(drawn)))
    }

    fn epoch_len(&self, items: u64) -> Option<u64> {
        Some(self.size(items))
    }
}

/// One rank's part of an order: positions `rank`, `rank + world_size` and so on.
///
/// For programs that divide the order themselves. A pipeline divides the order of its source
/// without this sampler.
///
/// With [`Sequential`](super::Sequential) it is a distributed deterministic sampler. With
/// [`NumpyRandom`] it is a distributed random sampler.
///
/// ```
/// use spdl_core::source::sampler::{Distributed, Sampler, Sequential};
/// let items = |sampler: Distributed<Sequential>| -> spdl_core::Result<Vec<u64>> {
///     let order = sampler.epoch(10, 0)?;
///     Ok((0..order.len()).map(|position| order.at(position)).collect())
/// };
/// assert_eq!(items(Distributed::new(Sequential, 0, 4)?)?, [0, 4]);
/// assert_eq!(items(Distributed::new(Sequential, 0, 4)?.drop_last_round(false))?, [0, 4, 8]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Distributed<S> {
    sampler: S,
    rank: u64,
    world_size: u64,
    drop_last_round: bool,
}

impl<S: Sampler> Distributed<S> {
    /// The part of rank `rank` of `world_size` ranks. A round is one position for each rank.
    /// Positions of an incomplete last round are dropped, so all ranks have the same number of
    /// positions.
    ///
    /// # Errors
    /// `InvalidArgument` unless `rank < world_size`.
    pub fn new(sampler: S, rank: u64, world_size: u64) -> Result<Self> {
        if rank >= world_size {
            return Err(invalid(format!(
                "rank {rank} is out of range for a world size of {world_size}; ranks count from 0"
            )));
        }
        Ok(Distributed { sampler, rank, world_size, drop_last_round: true })
    }

    /// Sets whether an incomplete last round is dropped. Default: true. If an incomplete last round
    /// is kept, the first ranks have one position more than the others.
    #[must_use]
    pub fn drop_last_round(mut self, drop: bool) -> Self {
        self.drop_last_round = drop;
        self
    }

    fn len_of(&self, all: u64) -> u64 {
        let extra = !self.drop_last_round && self.rank < all % self.world_size;
        all / self.world_size + u64::from(extra)
    }
}

#[derive(Debug)]
struct DistributedOrder {
    order: Arc<dyn SampleOrder>,
    len: u64,
    rank: u64,
    world_size: u64,
}

impl<S: Sampler> Sampler for Distributed<S> {
    fn fingerprint(&self) -> String {
        let Distributed { sampler, rank, world_size, drop_last_round } = self;
        let rounds = if *drop_last_round { "whole rounds" } else { "all" };
        super::shortened(format!(
            "{rounds} for rank {rank} of {world_size}: {}",
            sampler.fingerprint()
        ))
    }

    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        let order = self.sampler.epoch(items, epoch)?;
        let (len, rank, world_size) = (self.len_of(order.len()), self.rank, self.world_size);
        Ok(Arc::new(DistributedOrder { order, len, rank, world_size }))
    }

    fn epoch_len(&self, items: u64) -> Option<u64> {
        Some(self.len_of(self.sampler.epoch_len(items)?))
    }
}

impl SampleOrder for DistributedOrder {
    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, position: u64) -> u64 {
        self.order.at(position * self.world_size + self.rank)
    }
}

/// NumPy's default generator: PCG XSL RR 128/64 (O'Neill, 2014), seeded by `SeedSequence`.
struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of the last 64-bit number, if only the lower half was used.
    half: Option<u32>,
}

impl Pcg64 {
    fn new(seed: u64) -> Self {
        let [high, low, stream_high, stream_low] = seed_sequence(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let increment = wide(stream_high, stream_low) << 1 | 1;
        let mut generator = Pcg64 { state: increment, increment, half: None };
        generator.state = generator.state.wrapping_add(wide(high, low));
        generator.step();
        generator
    }

    fn step(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let both = self.next_u64();
        self.half = Some((both >> 32) as u32);
        both as u32
    }

    /// A multiple of 2⁻⁵³ in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in `0..=most` by Lemire's method with rejection, with 32 bits if 32 bits are
    /// sufficient.
    fn at_most(&mut self, most: u64) -> u64 {
        const MOST_32: u64 = u32::MAX as u64;
        match most {
            0 => 0,
            MOST_32 => u64::from(self.next_u32()),
            u64::MAX => self.next_u64(),
            1..MOST_32 => {
                let count = most as u32 + 1;
                let reject_below = count.wrapping_neg() % count;
                loop {
                    let wide = u64::from(self.next_u32()) * u64::from(count);
                    if wide as u32 >= reject_below {
                        return wide >> 32;
                    }
                }
            }
            _ => {
                let count = most + 1;
                let reject_below = count.wrapping_neg() % count;
                loop {
                    let wide = u128::from(self.next_u64()) * u128::from(count);
                    if wide as u64 >= reject_below {
                        return (wide >> 64) as u64;
                    }
                }
            }
        }
    }

    /// A number in `0..=most` by masked rejection: draws 32 or 64 bits and keeps the fewest
    /// sufficient bits, until the number is in range.
    fn masked(&mut self, most: u64) -> u64 {
        let mask = u64::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
        loop {
            let bits = if most <= u64::from(u32::MAX) {
                u64::from(self.next_u32())
            } else {
                self.next_u64()
            };
            if bits & mask <= most {
                return bits & mask;
            }
        }
    }
}

/// The first four 64-bit words of NumPy's `SeedSequence(seed)` with a pool of four words.
fn seed_sequence(seed: u64) -> [u64; 4] {
    const POOL: usize = 4;
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash_word = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mix_words = |x: u32, y: u32| {
        let value = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
        value ^ value >> 16
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash_word);
    for from in 0..POOL {
        for to in (0..POOL).filter(|&to| to != from) {
            pool[to] = mix_words(pool[to], hash_word(pool[from]));
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let mut word = |at: usize| {
        let value = pool[at % POOL] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    };
    std::array::from_fn(|at| word(2 * at) | word(2 * at + 1) << 32)
}

/// An empty list with capacity for `len` items; `LimitExceeded` if the allocation fails.
fn with_capacity(len: u64) -> Result<Vec<u64>> {
    let mut items = Vec::new();
    match usize::try_from(len).map(|len| items.try_reserve_exact(len)) {
        Ok(Ok(())) => Ok(items),
        _ => {
            let message = format!("not enough memory for NumPy's order of {len} items");
            Err(Error::new(ErrorKind::LimitExceeded, message))
        }
    }
}

fn all_of(items: u64) -> Result<Vec<u64>> {
    let mut all = with_capacity(items)?;
    all.extend(0..items);
    Ok(all)
}

/// Shuffles the items at indices `first` and above.
fn shuffle(generator: &mut Pcg64, items: &mut [u64], first: usize) {
    for at in (first..items.len()).rev() {
        items.swap(at, generator.at_most(at as u64) as usize);
    }
}

/// Draws `size` of `items` items without replacement. If `items` exceeds 10,000 and `size` exceeds
/// 2 % of `items`, a list of all items is partially shuffled. Otherwise Floyd's algorithm draws.
fn without_replacement(generator: &mut Pcg64, items: u64, size: u64) -> Result<Vec<u64>> {
    if items > 10_000 && size > items / 50 {
        let mut all = all_of(items)?;
        let first = (items - size) as usize;
        shuffle(generator, &mut all, first.max(1));
        return Ok(all.split_off(first));
    }
    let mut seen = HashSet::new();
    let mut drawn = with_capacity(size)?;
    drawn.extend((items - size..items).map(|last| {
        let item = generator.at_most(last);
        let item = if seen.insert(item) { item } else { last };
        seen.insert(item);
        item
    }));
    shuffle(generator, &mut drawn, 1);
    Ok(drawn)
}

fn cumulative(p: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut sums: Vec<f64> = p
        .iter()
        .map(|p| {
            sum += p;
            sum
        })
        .collect();
    sums.iter_mut().for_each(|part| *part /= sum);
    sums
}

/// The first item whose cumulative probability exceeds `unit`.
fn find(cumulative: &[f64], unit: f64) -> u64 {
    cumulative.partition_point(|sum| *sum <= unit) as u64
}

/// Draws as many items as are missing, drops duplicates, and repeats with the remaining items.
fn weighted_without_replacement(generator: &mut Pcg64, p: &[f64], size: u64) -> Result<Vec<u64>> {
    let positive = p.iter().filter(|p| **p > 0.0).count() as u64;
    if positive < size {
        return Err(invalid(format!(
            "cannot draw {size} items without replacement: only {positive} items have a positive \
             weight or probability"
        )));
    }
    let mut left = p.to_vec();
    let mut drawn: Vec<u64> = Vec::with_capacity(size as usize);
    let mut seen = HashSet::new();
    while (drawn.len() as u64) < size {
        let missing = size - drawn.len() as u64;
        let sums = cumulative(&left);
        let units: Vec<f64> = (0..missing).map(|_| generator.unit()).collect();
        let items = units.into_iter().map(|unit| find(&sums, unit));
        drawn.extend(items.filter(|item| seen.insert(*item)));
        drawn.iter().for_each(|&item| left[item as usize] = 0.0);
    }
    Ok(drawn)
}

/// `np.sum` of contiguous doubles: pairwise summation with eight accumulators and blocks of up to
/// 128.
fn numpy_sum(values: &[f64]) -> f64 {
    const LANES: usize = 8;
    if values.len() < LANES {
        return values.iter().sum();
    }
    if values.len() > 128 {
        let half = values.len() / 2;
        let (first, second) = values.split_at(half - half % LANES);
        return numpy_sum(first) + numpy_sum(second);
    }
    let mut rows = values.chunks_exact(LANES);
    let mut sums = [0.0; LANES];
    for row in &mut rows {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    rows.remainder().iter().fold(sum, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::super::Sequential;
    use super::super::tests::epoch;
    use super::*;
    use proptest::prelude::*;

    /// Generated by `make_numpy_order.py` in the same folder.
    const GOLDEN: &str = include_str!("../../../tests/golden/numpy_order.tsv");

    fn weights(kind: &str, items: u64) -> Vec<f64> {
        let weight = |at: u64| match kind {
            "integer" => (at * 7919 % 101) as f64,
            "harmonic" => 1.0 / (1 + at) as f64,
            "sparse" => {
                if at % 3 == 1 {
                    (1 + at % 5) as f64
                } else {
                    0.0
                }
            }
            other => panic!("{other}"),
        };
        (0..items).map(weight).collect()
    }

    // feature: Q02
    #[test]
    fn drawn_items_equal_those_of_numpy() {
        let mut lines = 0;
        for line in GOLDEN.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [kind, seed, items, draws, weighted, replace, hash, first] = fields[..] else {
                panic!("{line}");
            };
            let number = |text: &str| -> u64 { text.parse().unwrap() };
            lines += 1;
            if kind == "sum" {
                let sum = numpy_sum(&weights(weighted, number(items)));
                assert_eq!(format!("{:016x}", sum.to_bits()), hash, "{line}");
                continue;
            }
            let (seed, items) = (number(seed), number(items));
            let mut sampler = match kind {
                "permutation" => NumpyRandom::permutation(seed),
                _ => NumpyRandom::new(seed).draws(number(draws)).replace(replace == "True"),
            };
            if weighted != "none" {
                sampler = sampler.weights(weights(weighted, items)).unwrap();
            }
            let found = epoch(&sampler, items, 0);
            let text: Vec<String> = found.iter().take(8).map(u64::to_string).collect();
            assert_eq!(text.join(","), first, "{line}");
            let fnv = found.iter().fold(0xcbf2_9ce4_8422_2325_u64, |fnv, item| {
                (fnv ^ item).wrapping_mul(0x0000_0100_0000_01b3)
            });
            assert_eq!(
                (found.len() as u64, format!("{fnv:016x}").as_str()),
                (number(draws), hash),
                "{line}"
            );
        }
        assert!(lines > 100);
    }

    // feature: Q02
    #[test]
    fn replacement_is_the_default_only_with_weights() {
        let weighted = NumpyRandom::new(3).weights([1.0, 1.0, 2.0]).unwrap();
        assert_eq!(epoch(&weighted, 3, 0), epoch(&weighted.clone().replace(true), 3, 0));
        let plain = NumpyRandom::new(3);
        assert_eq!(epoch(&plain, 30, 0), epoch(&plain.clone().replace(false), 30, 0));
    }

    // feature: Q02
    #[test]
    fn the_number_of_draws_is_rounded_down_before_drawing() {
        let rounded = NumpyRandom::new(0).multiple_of(3).unwrap();
        // default_rng(0).choice(10, 9, replace=False)
        assert_eq!(epoch(&rounded, 10, 0), epoch(&NumpyRandom::new(0).draws(9), 10, 0));
        assert_eq!(rounded.draws(2).epoch_len(10), Some(0));
    }

    // feature: Q02
    #[test]
    fn only_the_seed_decides_without_each_epoch() {
        let same = NumpyRandom::new(3);
        assert_eq!(epoch(&same, 100, 0), epoch(&same, 100, 5));
        let other = same.clone().each_epoch();
        assert_eq!(epoch(&other, 100, 5), epoch(&NumpyRandom::new(8), 100, 0));
    }

    // feature: Q02
    #[test]
    fn arguments_that_numpy_refuses_are_refused() {
        let p = |p: Vec<f64>| NumpyRandom::new(0).probabilities(p);
        let errors = [
            NumpyRandom::new(0).draws(11).epoch(10, 0).unwrap_err(),
            NumpyRandom::new(0).epoch(0, 0).unwrap_err(),
            NumpyRandom::new(0).epoch(1 << 63, 0).unwrap_err(),
            NumpyRandom::new(0).multiple_of(0).unwrap_err(),
            NumpyRandom::new(0).weights([1.0, -1.0, 2.0]).unwrap_err(),
            // Divided by their negative sum, they would be positive.
            NumpyRandom::new(0).weights([-1.0, -2.0]).unwrap_err(),
            NumpyRandom::new(0).weights([0.0]).unwrap_err(),
            NumpyRandom::new(0).weights([f64::MAX, f64::MAX]).unwrap_err(),
            NumpyRandom::new(0).weights([]).unwrap_err(),
            NumpyRandom::new(0).weights([1.0, f64::NAN]).unwrap_err(),
            NumpyRandom::new(0).weights([1.0, f64::INFINITY]).unwrap_err(),
            NumpyRandom::new(0).weights([1.0]).unwrap().epoch(2, 0).unwrap_err(),
            p(vec![0.5, 0.4]).unwrap_err(),
            p(vec![1.5, -0.5]).unwrap_err(),
            p(vec![f64::NAN]).unwrap_err(),
            p(vec![]).unwrap_err(),
            p(vec![1.0, 0.0]).unwrap().replace(false).epoch(2, 0).unwrap_err(),
            Distributed::new(Sequential, 3, 3).unwrap_err(),
            Distributed::new(Sequential, 0, 0).unwrap_err(),
        ];
        let negative = NumpyRandom::new(0).weights([1.0, -1.0, 2.0]).unwrap_err();
        assert!(negative.to_string().contains("invalid weight -1 of item 1"), "{negative}");
        let error = NumpyRandom::new(0).epoch(1 << 62, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    proptest! {
        // feature: Q01
        #[test]
        fn ranks_divide_an_order_round_robin(items in 0u64..60, world_size in 1u64..9, drop: bool) {
            let ranks: Vec<Vec<u64>> = (0..world_size)
                .map(|rank| {
                    let rank = Distributed::new(Sequential, rank, world_size).unwrap();
                    epoch(&rank.drop_last_round(drop), items, 0)
                })
                .collect();
            let total = if drop { items / world_size * world_size } else { items };
            let mut together: Vec<u64> = ranks.concat();
            together.sort_unstable();
            prop_assert_eq!(together, (0..total).collect::<Vec<_>>());
            for (rank, items) in (0u64..).zip(ranks) {
                prop_assert!(items.iter().all(|item| item % world_size == rank));
                prop_assert!(items.is_sorted());
                prop_assert!(!drop || items.len() as u64 == total / world_size);
            }
        }
    }

    #[test]
    fn fingerprints_depend_on_all_settings_that_decide_the_order() {
        let base = NumpyRandom::new(1);
        let all = [
            NumpyRandom::permutation(1),
            NumpyRandom::new(2),
            base.clone().draws(4),
            base.clone().multiple_of(4).unwrap(),
            base.clone().replace(true),
            base.clone().each_epoch(),
            base.clone().weights([1.0, 2.0]).unwrap(),
            base.clone().weights([2.0, 1.0]).unwrap(),
            base,
        ];
        let all: HashSet<String> = all.iter().map(Sampler::fingerprint).collect();
        assert_eq!(all.len(), 9);
        assert!(all.iter().all(|text| text.chars().count() <= 100));
    }
}
