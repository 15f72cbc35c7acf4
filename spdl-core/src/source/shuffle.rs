//! Shuffling by a keyed permutation that is computed per position.

/// A pseudo-random permutation of `0..len` that is computed, not stored.
///
/// [`at`](Permutation::at) returns the item at any position in constant memory, and on average in
/// constant time. The permutation is a Feistel network of eight rounds on the smallest even number
/// of bits that can represent `len - 1`. Cycle walking restricts the network to `0..len` (Black and
/// Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). For at most 16 items such a network
/// cannot produce all permutations, so a table is shuffled instead.
///
/// ```
/// use spdl_core::source::Permutation;
/// let order = Permutation::new(5, 42, 0);
/// let mut items: Vec<u64> = (0..5).map(|position| order.at(position)).collect();
/// items.sort();
/// assert_eq!(items, [0, 1, 2, 3, 4]);
/// ```
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; 8],
    /// For at most 16 items: the item at each position, 4 bits each.
    table: u64,
}

/// The maximum number of items in the table.
const TABLE_LEN: u64 = 16;

impl Permutation {
    /// The permutation of `len` items for `seed` and `epoch`.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut state = mix(seed ^ 0x5350_444c_0000_0001).wrapping_add(mix(epoch));
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        let half_bits = bits.div_ceil(2).max(1);
        if len > TABLE_LEN {
            return Permutation { len, half_bits, keys: [(); 8].map(|()| next()), table: 0 };
        }
        let mut table = 0xfedc_ba98_7654_3210_u64;
        for last in (1..len).rev() {
            // The bias is below 2⁻⁶⁰.
            let other = ((u128::from(next()) * u128::from(last + 1)) >> 64) as u64;
            let differ = (table >> (4 * last) ^ table >> (4 * other)) & 15;
            table ^= differ << (4 * last) ^ differ << (4 * other);
        }
        Permutation { len, half_bits, keys: [0; 8], table }
    }

    /// The number of items.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the item at `position`. A position outside `0..len` is returned unchanged.
    pub fn at(&self, position: u64) -> u64 {
        if position >= self.len {
            return position;
        }
        if self.len <= TABLE_LEN {
            return self.table >> (4 * position) & 15;
        }
        // The domain has fewer than 4 × `len` values, so the walk takes fewer than 4 steps on
        // average. The walk ends, because its cycle contains `position`.
        let mut item = self.encrypt(position);
        while item >= self.len {
            item = self.encrypt(item);
        }
        item
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits & mask, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014; constants of Stafford's variant 13).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_item_occurs_exactly_once(len in 0u64..3000, seed: u64, epoch in 0u64..4) {
            let order = Permutation::new(len, seed, epoch);
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let item = order.at(position);
                prop_assert!(item < len);
                prop_assert!(!std::mem::replace(&mut seen[item as usize], true));
            }
        }

        #[test]
        fn items_of_large_domains_are_in_range(len in (1u64 << 40)..(1 << 63), position: u64, seed: u64) {
            let order = Permutation::new(len, seed, 0);
            prop_assert!(order.at(position % len) < len);
        }
    }

    /// Asserts that `counts` fit `expected` by a chi-squared test at a significance level of 10⁻⁴.
    /// Seeds are fixed, so a test that passes always passes. The quantile is the approximation of
    /// Wilson and Hilferty (1931), with 3.719 as the quantile of the normal distribution.
    pub(crate) fn assert_chi_squared(counts: &[u32], expected: &[f64], freedom: usize, what: &str) {
        let terms = counts.iter().zip(expected);
        let statistic: f64 = terms.map(|(&n, &e)| (f64::from(n) - e).powi(2) / e).sum();
        let spread = 2.0 / (9.0 * freedom as f64);
        let bound = freedom as f64 * (1.0 - spread + 3.719 * spread.sqrt()).powi(3);
        assert!(statistic < bound, "{what}: {statistic} with {freedom} degrees of freedom");
    }

    pub(crate) fn assert_uniform(counts: &[u32], what: &str) {
        let total: u32 = counts.iter().sum();
        let expected = vec![f64::from(total) / counts.len() as f64; counts.len()];
        assert_chi_squared(counts, &expected, counts.len() - 1, what);
    }

    /// The permutations of consecutive seeds, and of consecutive epochs.
    fn orders(len: u64, count: u64) -> [Vec<Permutation>; 2] {
        [
            (0..count).map(|seed| Permutation::new(len, seed, 0)).collect(),
            (0..count).map(|epoch| Permutation::new(len, 7, epoch)).collect(),
        ]
    }

    #[test]
    fn all_orders_of_few_items_are_equally_likely() {
        for len in 2..=6u64 {
            let all: u64 = (1..=len).product();
            for orders in orders(len, all * 100) {
                let mut counts = std::collections::HashMap::new();
                for order in orders {
                    let items: Vec<u64> = (0..len).map(|position| order.at(position)).collect();
                    *counts.entry(items).or_insert(0u32) += 1;
                }
                assert_eq!(counts.len() as u64, all);
                let counts: Vec<u32> = counts.into_values().collect();
                assert_uniform(&counts, &format!("orders of {len}"));
            }
        }
    }

    #[test]
    fn a_permutation_of_any_length_takes_less_than_100_bytes() {
        // All fields are numbers, so nothing is allocated elsewhere.
        assert!(size_of::<Permutation>() < 100);
    }

    #[test]
    fn half_of_the_orders_of_sixteen_items_are_odd() {
        let odd = |order: &Permutation| {
            let pairs = (0..16).flat_map(|second| (0..second).map(move |first| (first, second)));
            pairs.filter(|&(first, second)| order.at(first) > order.at(second)).count() % 2 == 1
        };
        for orders in orders(16, 2000) {
            let count = orders.iter().filter(|order| odd(order)).count() as u32;
            assert_uniform(&[count, 2000 - count], "odd and even orders");
        }
    }

    const LENS: [u64; 20] =
        [2, 3, 4, 5, 7, 8, 15, 16, 17, 18, 31, 33, 63, 65, 100, 257, 1000, 4096, 65_537, 1_000_000];

    #[test]
    fn every_item_is_equally_likely_at_a_position() {
        for len in LENS {
            let bins = len.min(40);
            for orders in orders(len, 4000) {
                for position in [0, len / 2, len - 1] {
                    // A bin contains items with one remainder, or adjacent items.
                    let mut remainders = vec![0u32; bins as usize];
                    let mut neighbours = remainders.clone();
                    for order in &orders {
                        let item = order.at(position);
                        remainders[(item % bins) as usize] += 1;
                        neighbours[(item * bins / len) as usize] += 1;
                    }
                    let share = |bin: u64, of: &dyn Fn(u64) -> u64| {
                        4000.0 * (0..len).filter(|&item| of(item) == bin).count() as f64
                            / len as f64
                    };
                    let shares = |of: &dyn Fn(u64) -> u64| -> Vec<f64> {
                        if len > 10_000 {
                            return vec![4000.0 / bins as f64; bins as usize];
                        }
                        (0..bins).map(|bin| share(bin, of)).collect()
                    };
                    let what = format!("item at position {position} of {len}");
                    let freedom = bins as usize - 1;
                    let expected = shares(&|item| item % bins);
                    assert_chi_squared(&remainders, &expected, freedom, &what);
                    let expected = shares(&|item| item * bins / len);
                    assert_chi_squared(&neighbours, &expected, freedom, &what);
                }
            }
        }
    }

    #[test]
    fn every_pair_of_items_is_equally_likely_at_adjacent_positions() {
        // Few items: each ordered pair at the first two and the last two positions.
        for len in [2u64, 3, 4, 5, 7, 8, 15, 16, 17, 18, 20, 31] {
            for orders in orders(len, 20 * len * (len - 1)) {
                for position in [0, len - 2] {
                    let mut counts = vec![0u32; (len * (len - 1)) as usize];
                    for order in &orders {
                        let (first, second) = (order.at(position), order.at(position + 1));
                        let second = if second > first { second - 1 } else { second };
                        counts[(first * (len - 1) + second) as usize] += 1;
                    }
                    let what = format!("pair of items from position {position} of {len}");
                    assert_uniform(&counts, &what);
                }
            }
        }
        // More items: differences of adjacent items modulo `len`, over many permutations.
        for len in [33u64, 63, 64, 65, 100, 127, 257] {
            for orders in orders(len, 40 * len) {
                for position in [0, len / 2, len - 2] {
                    let mut steps = vec![0u32; len as usize - 1];
                    for order in &orders {
                        let (first, second) = (order.at(position), order.at(position + 1));
                        steps[((second + len - first) % len - 1) as usize] += 1;
                    }
                    let what = format!("difference of two items from position {position} of {len}");
                    assert_uniform(&steps, &what);
                }
            }
        }
        // Many items: differences of adjacent items modulo `len` in one permutation, in 40 equal
        // bins.
        for len in [1000u64, 4096, 65_537, 1_000_000] {
            for (seed, epoch) in [(1, 0), (2, 0), (7, 1)] {
                let order = Permutation::new(len, seed, epoch);
                let (mut steps, mut items) = (vec![0u32; 40], vec![0u32; 400]);
                let mut last = order.at(0);
                for position in 1..len.min(100_000) {
                    let item = order.at(position);
                    let step = (item + len - last) % len - 1;
                    steps[(step * 40 / (len - 1)) as usize] += 1;
                    items[(last * 20 / len * 20 + item * 20 / len) as usize] += 1;
                    last = item;
                }
                let what = format!("differences of neighbours in an order of {len} items");
                assert_uniform(&steps, &what);
                let what = format!("pairs of neighbours in an order of {len} items");
                assert_uniform(&items, &what);
            }
        }
    }

    #[test]
    fn the_number_of_fixed_points_is_poisson_distributed() {
        // The number of fixed points is very nearly Poisson distributed with mean 1.
        for len in [7u64, 8, 15, 16, 17, 31, 33, 64, 100, 257, 1000] {
            let count = (200_000 / len).clamp(1000, 5000);
            for orders in orders(len, count) {
                let mut counts = [0u32; 5];
                for order in orders {
                    let fixed = (0..len).filter(|&position| order.at(position) == position).count();
                    counts[fixed.min(4)] += 1;
                }
                let mut expected = [1.0, 1.0, 0.5, 1.0 / 6.0, 0.0].map(|p| p / std::f64::consts::E);
                expected[4] = 1.0 - expected.iter().sum::<f64>();
                let expected = expected.map(|p| p * count as f64);
                let what = format!("fixed points in orders of {len} items");
                assert_chi_squared(&counts, &expected, 4, &what);
            }
        }
        // The mean is one fixed point per permutation. Ten permutations have more than 24 fixed
        // points once in 10,000 times.
        for len in [10_000u64, 100_000] {
            let fixed = |order: &Permutation| {
                (0..len).filter(|&position| order.at(position) == position).count()
            };
            let all: usize = orders(len, 10)[0].iter().map(fixed).sum();
            assert!((1..=24).contains(&all), "{all} fixed points in 10 orders of {len}");
        }
        let order = Permutation::new(1_000_000, 1, 1);
        let fixed = (0..1_000_000).filter(|&position| order.at(position) == position).count();
        assert!(fixed <= 6, "{fixed} fixed points; 6 are exceeded once in 10,000 times");
    }

    #[test]
    fn positions_and_items_are_independent_in_one_order() {
        for len in [1000u64, 4096, 65_537, 1_000_000] {
            let order = Permutation::new(len, 5, 3);
            let mut counts = vec![0u32; 256];
            // All positions, or the first of each sixteenth.
            let each = (len / 16).min(5000);
            for part in 0..16 {
                for position in part * (len / 16)..part * (len / 16) + each {
                    counts[(part * 16 + order.at(position) * 16 / len) as usize] += 1;
                }
            }
            assert_uniform(&counts, &format!("items by position in an order of {len} items"));
        }
    }
}
