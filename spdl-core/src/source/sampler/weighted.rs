//! Weighted random sampling, with and without replacement.

use std::fmt::{self, Debug};
use std::sync::Arc;

use super::{Draws, SampleOrder, Sampler, hash, invalid};
use crate::error::Result;

/// Draws items at random with probability proportional to their weight.
///
/// Items of weight 0 are never drawn. Items whose weight, divided by the largest weight, underflows
/// to 0 are not drawn either. With replacement, nor are items whose weight is less than 2⁻⁶⁴ of the
/// mean weight.
///
/// *With replacement*, positions are independent draws, and an item may occur many times. A draw is
/// a function of seed, epoch and position, and takes constant time (Walker's alias method in the
/// form of Vose, 1991). The table takes 16 bytes per item and is computed once.
///
/// *Without replacement*, an item occurs at most once in an epoch. The order is the order of
/// successive draws from the remaining items, so items with large weights tend to be early. Each
/// item with a positive weight gets a random key, and the items with the smallest keys are drawn
/// (Efraimidis and Spirakis, 2006). The keys are computed at the start of an epoch, in O(n log n)
/// time and 16 bytes per item. The epoch then keeps 8 bytes per draw.
///
/// ```
/// use spdl_core::source::sampler::{Sampler, Weighted};
/// let order = Weighted::with_replacement([1.0, 0.0, 3.0], 4000, 7)?.epoch(3, 0)?;
/// let count = |item| (0..4000).filter(|&position| order.at(position) == item).count();
/// assert_eq!(count(1), 0);
/// assert!((2900..3100).contains(&count(2)));
///
/// let order = Weighted::without_replacement([1.0, 0.0, 3.0], 2, 7)?.epoch(3, 0)?;
/// assert_eq!(order.at(0) + order.at(1), 2);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Weighted {
    draws: u64,
    seed: u64,
    items: u64,
    fingerprint: u64,
    method: Method,
}

#[derive(Clone)]
enum Method {
    WithReplacement(Arc<[AliasEntry]>),
    WithoutReplacement(Arc<[f64]>),
}

impl Weighted {
    /// Draws `draws` items independently in each epoch.
    ///
    /// # Errors
    /// `InvalidArgument` if a weight is negative, infinite or NaN, or no weight is positive.
    pub fn with_replacement(
        weights: impl Into<Vec<f64>>,
        draws: u64,
        seed: u64,
    ) -> Result<Weighted> {
        let weights = scaled(weights.into())?;
        let (items, fingerprint) = (weights.len() as u64, fingerprint(&weights));
        let method = Method::WithReplacement(alias_table(weights));
        Ok(Weighted { draws, seed, items, fingerprint, method })
    }

    /// Draws `draws` different items in each epoch.
    ///
    /// # Errors
    /// `InvalidArgument` if a weight is negative, infinite or NaN, or if fewer than `draws` weights
    /// are positive, or if no weight is positive.
    pub fn without_replacement(
        weights: impl Into<Vec<f64>>,
        draws: u64,
        seed: u64,
    ) -> Result<Weighted> {
        let weights = scaled(weights.into())?;
        let positive = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
        if draws > positive {
            let message = format!(
                "cannot draw {draws} items without replacement: only {positive} items have a \
                 positive weight"
            );
            return Err(invalid(message));
        }
        let (items, fingerprint) = (weights.len() as u64, fingerprint(&weights));
        let method = Method::WithoutReplacement(weights.into());
        Ok(Weighted { draws, seed, items, fingerprint, method })
    }
}

impl Debug for Weighted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Weighted { draws, seed, items, fingerprint, .. } = self;
        let replacement = matches!(self.method, Method::WithReplacement(_));
        write!(
            f,
            "Weighted {{ seed: {seed}, draws: {draws}, replacement: {replacement}, weights: \
             {items} #{fingerprint:016x} }}"
        )
    }
}

impl Sampler for Weighted {
    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        if items != self.items {
            let weights = self.items;
            return Err(invalid(format!("{weights} weights for {items} items; give one per item")));
        }
        Ok(match &self.method {
            Method::WithReplacement(table) => {
                let draws = Draws::new(b"weighted", self.seed, epoch);
                Arc::new(AliasOrder { table: Arc::clone(table), draws, len: self.draws })
            }
            Method::WithoutReplacement(weights) => {
                let draws = Draws::new(b"arrivals", self.seed, epoch);
                Arc::new(ListedOrder(without_replacement(weights, self.draws, draws)))
            }
        })
    }

    fn epoch_len(&self, _: u64) -> Option<u64> {
        Some(self.draws)
    }
}

/// Divides the weights by the largest, so that sums cannot overflow.
pub(super) fn scaled(mut weights: Vec<f64>) -> Result<Vec<f64>> {
    let wrong = weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0));
    if let Some(at) = wrong {
        let weight = weights[at];
        return Err(invalid(format!(
            "invalid weight {weight} of item {at}: weights must be finite and not negative"
        )));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        let items = weights.len();
        return Err(invalid(format!("none of the {items} weights is positive")));
    }
    for weight in &mut weights {
        *weight /= largest;
    }
    Ok(weights)
}

fn fingerprint(weights: &[f64]) -> u64 {
    hash(weights.iter().map(|weight| weight.to_bits()))
}

/// A column of the alias table: its item with probability `keep` / 2⁶⁴, otherwise `other`.
#[derive(Clone, Copy, Debug)]
struct AliasEntry {
    keep: u64,
    other: u64,
}

/// Builds columns of equal height, each shared by at most two items.
fn alias_table(mut heights: Vec<f64>) -> Arc<[AliasEntry]> {
    let total: f64 = heights.iter().sum();
    let columns = heights.len() as f64;
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for (item, height) in heights.iter_mut().enumerate() {
        *height = *height / total * columns;
        if *height < 1.0 { low.push(item) } else { high.push(item) }
    }
    // An item that remains at the end fills its column alone. This is never an item of weight 0:
    // while one remains, another item exceeds its column by far more than the rounding error.
    let mut table: Vec<AliasEntry> =
        (0..heights.len() as u64).map(|item| AliasEntry { keep: 0, other: item }).collect();
    while let (Some(&below), Some(&above)) = (low.last(), high.last()) {
        low.pop();
        // Below 2⁶⁴, because the height is below 1.
        let keep = (heights[below] * 2f64.powi(64)) as u64;
        table[below] = AliasEntry { keep, other: above as u64 };
        heights[above] -= 1.0 - heights[below];
        if heights[above] < 1.0 {
            high.pop();
            low.push(above);
        }
    }
    table.into()
}

#[derive(Debug)]
struct AliasOrder {
    table: Arc<[AliasEntry]>,
    draws: Draws,
    len: u64,
}

impl SampleOrder for AliasOrder {
    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, position: u64) -> u64 {
        let (column, rest) = self.draws.below(position, self.table.len() as u64);
        let entry = self.table[column as usize];
        if rest < entry.keep { column } else { entry.other }
    }
}

/// An order that is stored as a list.
pub(super) struct ListedOrder(pub(super) Vec<u64>);

impl Debug for ListedOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListedOrder({} positions)", self.0.len())
    }
}

impl SampleOrder for ListedOrder {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn at(&self, position: u64) -> u64 {
        self.0[position as usize]
    }
}

/// Exponential order statistics: each item arrives after an exponentially distributed time with its
/// weight as the rate. Returns the first `draws` items in order of arrival.
fn without_replacement(weights: &[f64], draws: u64, numbers: Draws) -> Vec<u64> {
    let mut arrivals: Vec<(f64, u64)> = weights
        .iter()
        .zip(0u64..)
        .filter(|(weight, _)| **weight > 0.0)
        .map(|(weight, item)| {
            // In (0, 1], so the logarithm is finite.
            let unit = ((numbers.at(item) >> 11) + 1) as f64 / (1u64 << 53) as f64;
            (-unit.ln() / weight, item)
        })
        .collect();
    let by_time = |a: &(f64, u64), b: &(f64, u64)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let draws = draws as usize;
    if draws < arrivals.len() {
        arrivals.select_nth_unstable_by(draws, by_time);
        arrivals.truncate(draws);
    }
    arrivals.sort_unstable_by(by_time);
    arrivals.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::epoch;
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn weights() -> impl Strategy<Value = Vec<f64>> {
        let weight = prop_oneof![3 => 0.0..10.0, 1 => Just(0.0), 1 => 1e-300..1e300];
        proptest::collection::vec(weight, 1..40).prop_filter("all zero", |weights: &Vec<f64>| {
            weights.iter().any(|&weight| weight > 0.0)
        })
    }

    proptest! {
        #[test]
        fn the_alias_table_has_the_probabilities_of_the_weights(weights in weights()) {
            let scaled = scaled(weights.clone()).unwrap();
            let total: f64 = scaled.iter().sum();
            let table = alias_table(scaled.clone());
            let mut found = vec![0.0; weights.len()];
            for (item, entry) in table.iter().enumerate() {
                let keep = entry.keep as f64 / 2f64.powi(64);
                found[item] += keep / weights.len() as f64;
                found[entry.other as usize] += (1.0 - keep) / weights.len() as f64;
            }
            for (found, weight) in found.iter().zip(&scaled) {
                prop_assert!((found - weight / total).abs() < 1e-13, "{found} {}", weight / total);
                prop_assert!(*weight > 0.0 || *found == 0.0);
            }
        }

        #[test]
        fn zero_weights_are_never_drawn(weights in weights(), seed: u64) {
            let sampler = Weighted::with_replacement(weights.clone(), 200, seed).unwrap();
            for item in epoch(&sampler, weights.len() as u64, 0) {
                prop_assert!(weights[item as usize] > 0.0);
            }
        }

        #[test]
        fn without_replacement_no_item_occurs_twice(
            weights in weights(), seed: u64, less in 0u64..5,
        ) {
            let positive = weights.iter().filter(|&&weight| weight > 0.0).count() as u64;
            let all = Weighted::without_replacement(weights.clone(), positive, seed).unwrap();
            let all = epoch(&all, weights.len() as u64, 3);
            let mut sorted = all.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), all.len());
            prop_assert!(all.iter().all(|&item| weights[item as usize] > 0.0));
            // Fewer draws are a prefix of more draws.
            let few = positive.saturating_sub(less);
            let fewer = Weighted::without_replacement(weights.clone(), few, seed).unwrap();
            prop_assert_eq!(&epoch(&fewer, weights.len() as u64, 3), &all[..few as usize]);
        }
    }

    #[test]
    fn rounding_never_assigns_a_column_to_an_item_of_weight_zero() {
        let numbers = Draws::new(b"test its", 1, 1);
        for table in 0..300 {
            let weight = |item: u64| (numbers.at(table * 1000 + item) >> 11) as f64;
            let mut weights: Vec<f64> = (0..200).map(weight).collect();
            weights[..3].fill(0.0);
            for (item, entry) in alias_table(scaled(weights.clone()).unwrap()).iter().enumerate() {
                assert!(weights[entry.other as usize] > 0.0);
                assert!(weights[item] > 0.0 || entry.keep == 0);
            }
        }
    }

    #[test]
    fn the_largest_finite_weights_are_supported() {
        let sampler = Weighted::with_replacement([f64::MAX, f64::MAX, 0.0], 1000, 1).unwrap();
        let first = epoch(&sampler, 3, 0).iter().filter(|item| **item == 0).count();
        assert!((400..600).contains(&first), "{first}");
    }

    /// Asserts a deviation of at most five sigma, which one count in 1.7 million exceeds.
    fn assert_counts(counts: &[u32], draws: f64, probabilities: &[f64]) {
        for (&count, &p) in counts.iter().zip(probabilities) {
            let off = (f64::from(count) - draws * p).abs();
            assert!(off <= 5.0 * (draws * p * (1.0 - p)).sqrt(), "{counts:?} {probabilities:?}");
        }
    }

    // feature: Q02
    // promise: CORE7
    #[test]
    fn draws_follow_the_weights_in_each_epoch_and_across_epochs() {
        let sampler = Weighted::with_replacement([5.0, 0.0, 1.0, 0.5, 3.5], 100_000, 1).unwrap();
        let probabilities = [0.5, 0.0, 0.1, 0.05, 0.35];
        for number in 0..3 {
            let mut counts = [0u32; 5];
            epoch(&sampler, 5, number).iter().for_each(|&item| counts[item as usize] += 1);
            assert_counts(&counts, 1e5, &probabilities);
        }
        let mut counts = [0u32; 5];
        for number in 0..20_000 {
            counts[sampler.epoch(5, number).unwrap().at(17) as usize] += 1;
        }
        assert_counts(&counts, 2e4, &probabilities);
        assert_ne!(epoch(&sampler, 5, 0), epoch(&sampler, 5, 1));
    }

    // feature: Q02
    #[test]
    fn without_replacement_follows_successive_draws() {
        let sampler = Weighted::without_replacement([1.0, 2.0, 5.0], 2, 9).unwrap();
        let mut counts = [0u32; 9];
        for number in 0..100_000 {
            let items = epoch(&sampler, 3, number);
            counts[(items[0] * 3 + items[1]) as usize] += 1;
        }
        // P(first a, then b) = w(a) / 8 · w(b) / (8 − w(a)).
        let mut probabilities = [0.0; 9];
        let weights = [1.0, 2.0, 5.0];
        for a in 0..3 {
            for b in (0..3).filter(|&b| b != a) {
                probabilities[a * 3 + b] = weights[a] / 8.0 * weights[b] / (8.0 - weights[a]);
            }
        }
        assert_counts(&counts, 1e5, &probabilities);
    }

    #[test]
    fn invalid_weights_are_refused() {
        for wrong in [vec![], vec![0.0], vec![1.0, -1.0], vec![f64::NAN], vec![f64::INFINITY]] {
            let error = Weighted::with_replacement(wrong.clone(), 1, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(Weighted::without_replacement(wrong, 1, 0).is_err());
        }
        let error = Weighted::with_replacement([1.0, -1.0], 1, 0).unwrap_err();
        assert!(error.to_string().contains("invalid weight -1 of item 1"), "{error}");
        assert!(Weighted::without_replacement([1.0, 0.0], 2, 0).is_err());
        assert!(Weighted::with_replacement([1.0], 1, 0).unwrap().epoch(2, 0).is_err());
    }

    #[test]
    fn the_fingerprint_depends_on_the_weights() {
        let of = |weights: [f64; 2], draws, seed| {
            Weighted::with_replacement(weights, draws, seed).unwrap().fingerprint()
        };
        assert_eq!(of([1.0, 2.0], 1, 0), of([1.0, 2.0], 1, 0));
        for other in [of([2.0, 1.0], 1, 0), of([1.0, 2.0], 2, 0), of([1.0, 2.0], 1, 1)] {
            assert_ne!(of([1.0, 2.0], 1, 0), other);
        }
        assert!(of([1.0, 2.0], u64::MAX, u64::MAX).chars().count() <= 100);
        let without = Weighted::without_replacement([1.0, 2.0], 1, 0).unwrap().fingerprint();
        assert_ne!(of([1.0, 2.0], 1, 0), without);
    }
}
