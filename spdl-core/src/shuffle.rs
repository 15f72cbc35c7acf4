//! The shuffle as arithmetic: a keyed bijection instead of a shuffled list.

/// A pseudo-random order of `0..len` that is computed, not stored.
///
/// [`at`](Permutation::at) tells which item comes at a position, for any position and in any order
/// of asking, in constant time and memory. It is a Feistel network of eight rounds over the
/// smallest even number of bits that holds `len`, walked along its cycles until the result falls
/// below `len` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
///
/// ```
/// use spdl_core::Permutation;
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
}

impl Permutation {
    /// The order of `len` items in `epoch` of a run with `seed`.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut state = mix(seed ^ 0x5350_444c_0000_0001).wrapping_add(mix(epoch));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Permutation { len, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// How many items there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item at `position`. A position outside `0..len` is returned as it is.
    pub fn at(&self, position: u64) -> u64 {
        if position >= self.len {
            return position;
        }
        // The domain is less than four times `len`, so this takes fewer than four rounds on
        // average; it ends, since the walk comes back to `position` itself at the latest.
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
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_item_comes_exactly_once(len in 0u64..3000, seed: u64, epoch in 0u64..4) {
            let order = Permutation::new(len, seed, epoch);
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let item = order.at(position);
                prop_assert!(item < len);
                prop_assert!(!std::mem::replace(&mut seen[item as usize], true));
            }
        }

        #[test]
        fn large_domains_stay_inside(len in (1u64 << 40)..(1 << 63), position: u64, seed: u64) {
            let order = Permutation::new(len, seed, 0);
            prop_assert!(order.at(position % len) < len);
        }
    }

    #[test]
    fn all_orders_of_four_items_are_about_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for seed in 0..24_000 {
            let order = Permutation::new(4, seed, 0);
            let items: Vec<u64> = (0..4).map(|position| order.at(position)).collect();
            *counts.entry(items).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        let chi_squared: f64 =
            counts.values().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        // 23 degrees of freedom: 49.7 is exceeded once in a thousand.
        assert!(chi_squared < 60.0, "{chi_squared}");
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        let order = Permutation::new(100_000, 1, 0);
        let kept = (0..99_999).filter(|&n| order.at(n).abs_diff(order.at(n + 1)) == 1).count();
        assert!(kept < 20, "{kept} of 99,999; 2 are expected");
    }
}
