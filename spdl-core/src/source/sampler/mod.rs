//! Samplers: the items of each epoch and their order.
//!
//! A [`Sampler`] returns an order for each epoch. A [`SampleOrder`] is a function from a position
//! of the epoch to an item of the data set. Any position can be queried at any time, always with
//! the same result. [`NumpyRandom`] and [`Weighted`] without replacement compute a list at the
//! start of an epoch. The other samplers compute positions on demand.
//!
//! | task | sampler |
//! |---|---|
//! | the data set's order | [`Sequential`] |
//! | each item once, shuffled | [`Shuffled`] |
//! | items drawn by weight | [`Weighted`] |
//! | several passes per epoch | [`Repeated`] |
//! | a range of positions or items | [`Limited`] |
//! | several data sets in given proportions | [`Mixture`] over [`Concatenated`] |
//! | items in shards that are read sequentially | [`ShardWindow`] |
//! | the order of a NumPy program | [`NumpyRandom`] |
//! | another order | an implementation of `Sampler` |
//!
//! [`Repeated`], [`Limited`] and [`Distributed`] wrap another sampler. All samplers except
//! [`Distributed`] return the order of *all* ranks, and each pipeline reads the part of its rank.
//! [`Distributed`] is for programs that divide the order themselves.
//!
//! ```
//! use spdl_core::source::sampler::{Limited, Repeated, Sampler, Shuffled};
//! // In each epoch, three passes over the first 90 items of a data set, each newly shuffled.
//! let training = Repeated::passes(Limited::items(Shuffled::new(7), 0..90)?, 3)?;
//! let order = training.epoch(100, 0)?;
//! assert_eq!(order.len(), 270);
//! assert!((0..270).all(|position| order.at(position) < 90));
//! # Ok::<(), spdl_core::Error>(())
//! ```

mod mixture;
mod numpy;
mod weighted;
mod window;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

pub use mixture::{Concatenated, Mixed, Mixture, Part, Until};
pub use numpy::{Distributed, NumpyRandom};
pub use weighted::Weighted;
pub use window::{ShardWindow, ShardWindowOrder};

use crate::error::{Error, ErrorKind, Result};
use crate::source::shuffle::{Permutation, mix};

/// Determines the items of an epoch and their order.
///
/// A sampler does not refer to a data set: its methods receive the number of items. Several data
/// sets can use one sampler.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::source::sampler::{SampleOrder, Sampler};
/// use spdl_core::{DatasetSource, PipelineBuilder, Result};
///
/// /// The last item first.
/// #[derive(Debug)]
/// struct Backwards;
/// #[derive(Debug)]
/// struct BackwardsOrder(u64);
///
/// impl Sampler for Backwards {
///     fn epoch(&self, items: u64, _epoch: u64) -> Result<Arc<dyn SampleOrder>> {
///         Ok(Arc::new(BackwardsOrder(items)))
///     }
///     fn epoch_len(&self, items: u64) -> Option<u64> {
///         Some(items)
///     }
/// }
/// impl SampleOrder for BackwardsOrder {
///     fn len(&self) -> u64 {
///         self.0
///     }
///     fn at(&self, position: u64) -> u64 {
///         self.0 - 1 - position
///     }
/// }
///
/// let letters = DatasetSource::new(vec!['a', 'b', 'c']).sampler(Backwards);
/// let all = PipelineBuilder::new(letters).build()?.collect::<Result<String>>()?;
/// assert_eq!(all, "cba");
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub trait Sampler: Debug + Send + Sync + 'static {
    /// Returns the order of `epoch`, counted from 0, over a data set of `items` items.
    ///
    /// The result depends only on the sampler and the arguments.
    ///
    /// # Errors
    /// `InvalidArgument` if the sampler does not support this number of items or this epoch.
    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>>;

    /// The number of positions in an epoch, if it is equal for all epochs and known without
    /// computing an order. Default: `None`.
    fn epoch_len(&self, items: u64) -> Option<u64> {
        let _ = items;
        None
    }

    /// Describes the sampler in at most 100 characters. Samplers with different orders must have
    /// different fingerprints.
    ///
    /// A resumed run compares fingerprints to detect a different order. The default is the `Debug`
    /// text, which must therefore contain everything that affects the order. If the `Debug` text is
    /// longer than 100 characters, the default truncates it and appends a hash.
    fn fingerprint(&self) -> String {
        shortened(format!("{self:?}"))
    }

    /// The fingerprints of the parts of a composite sampler, by name.
    ///
    /// The sampler itself is first, with an empty name, followed by parts such as `weights` or
    /// `part 0`. The [fingerprint](crate::State::fingerprint) of a state contains them as `source
    /// order`, `source order weights` and `source order part 0`. If a state is rejected, the error
    /// lists the parts that differ. Default: only [`fingerprint`](Sampler::fingerprint).
    fn fingerprint_parts(&self) -> Vec<(String, String)> {
        vec![(String::new(), self.fingerprint())]
    }
}

/// The fingerprint parts of a wrapper of `sampler`; `words` describe the wrapper.
fn wrapped_parts(words: &str, sampler: &impl Sampler) -> Vec<(String, String)> {
    let mut parts = sampler.fingerprint_parts();
    if let Some((_, own)) = parts.first_mut() {
        *own = shortened(format!("{words} {own}"));
    }
    parts
}

/// The order of one epoch: a function from a position to an item.
///
/// ```
/// use spdl_core::source::sampler::{SampleOrder, Sampler, Shuffled};
/// let order = Shuffled::new(7).epoch(1000, 3)?;
/// // Any position can be queried without computing earlier ones.
/// let (late, early) = (order.at(999), order.at(0));
/// assert_ne!(late, early);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub trait SampleOrder: Debug + Send + Sync {
    /// The number of positions. An item may occur several times or not at all.
    fn len(&self) -> u64;

    /// Whether there are no positions.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the index in the data set of the item at `position`.
    ///
    /// # Panics
    /// May panic if `position` is not in `0..len()`. If `at` does not panic for such a position,
    /// the result is unspecified.
    fn at(&self, position: u64) -> u64;
}

macro_rules! forward_sampler {
    ($($pointer:ident)*) => { $(
        impl<S: Sampler + ?Sized> Sampler for $pointer<S> {
            fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
                S::epoch(self, items, epoch)
            }

            fn epoch_len(&self, items: u64) -> Option<u64> {
                S::epoch_len(self, items)
            }

            fn fingerprint(&self) -> String {
                S::fingerprint(self)
            }

            fn fingerprint_parts(&self) -> Vec<(String, String)> {
                S::fingerprint_parts(self)
            }
        }
    )* };
}
forward_sampler!(Arc Box);

/// Each item once, in the order of the data set.
///
/// ```
/// use spdl_core::source::sampler::{Sampler, Sequential};
/// assert_eq!(Sequential.epoch(10, 0)?.at(3), 3);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequential;

#[derive(Debug)]
struct SequentialOrder(u64);

impl Sampler for Sequential {
    fn epoch(&self, items: u64, _: u64) -> Result<Arc<dyn SampleOrder>> {
        Ok(Arc::new(SequentialOrder(items)))
    }

    fn epoch_len(&self, items: u64) -> Option<u64> {
        Some(items)
    }
}

impl SampleOrder for SequentialOrder {
    fn len(&self) -> u64 {
        self.0
    }

    fn at(&self, position: u64) -> u64 {
        position
    }
}

/// Each item once, shuffled in each epoch by a [`Permutation`] of seed and epoch.
///
/// Takes constant memory, and on average constant time per position, for any number of items.
///
/// ```
/// use spdl_core::source::sampler::{Sampler, Shuffled};
/// let order = Shuffled::new(7).epoch(1 << 40, 0)?;
/// assert!(order.at(123_456_789_012) < 1 << 40);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffled {
    seed: u64,
}

impl Shuffled {
    /// Shuffles with `seed`.
    pub fn new(seed: u64) -> Self {
        Shuffled { seed }
    }
}

impl Sampler for Shuffled {
    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        Ok(Arc::new(Permutation::new(items, self.seed, epoch)))
    }

    fn epoch_len(&self, items: u64) -> Option<u64> {
        Some(items)
    }
}

impl SampleOrder for Permutation {
    fn len(&self) -> u64 {
        self.len()
    }

    fn at(&self, position: u64) -> u64 {
        self.at(position)
    }
}

/// Repeats another sampler: several passes per epoch, or each item several times in a row.
///
/// ```
/// use spdl_core::source::sampler::{Repeated, Sampler, Sequential};
/// let items = |sampler: &dyn Sampler| -> spdl_core::Result<Vec<u64>> {
///     let order = sampler.epoch(3, 0)?;
///     Ok((0..order.len()).map(|position| order.at(position)).collect())
/// };
/// assert_eq!(items(&Repeated::passes(Sequential, 2)?)?, [0, 1, 2, 0, 1, 2]);
/// assert_eq!(items(&Repeated::in_a_row(Sequential, 2)?)?, [0, 0, 1, 1, 2, 2]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Repeated<S> {
    sampler: S,
    times: u32,
    in_a_row: bool,
}

impl<S: Sampler> Repeated<S> {
    /// Runs `times` passes of `sampler` in each epoch.
    ///
    /// Pass `p` of epoch `e` is epoch `e · times + p` (modulo 2⁶⁴) of `sampler`. A sampler that
    /// shuffles each epoch therefore shuffles each pass differently. The orders of all passes of an
    /// epoch are in memory at the same time.
    ///
    /// # Errors
    /// `InvalidArgument` if `times` is 0.
    pub fn passes(sampler: S, times: u32) -> Result<Self> {
        Repeated { sampler, times, in_a_row: false }.checked()
    }

    /// Returns each item of `sampler` `times` times in a row, for example for several augmentations
    /// of an image in one batch.
    ///
    /// # Errors
    /// `InvalidArgument` if `times` is 0.
    pub fn in_a_row(sampler: S, times: u32) -> Result<Self> {
        Repeated { sampler, times, in_a_row: true }.checked()
    }

    fn checked(self) -> Result<Self> {
        match self.times {
            0 => Err(invalid("`times` must be at least 1")),
            _ => Ok(self),
        }
    }

    fn words(&self) -> String {
        let how = if self.in_a_row { "each item" } else { "passes" };
        format!("{how} {} times:", self.times)
    }
}

#[derive(Debug)]
struct PassesOrder {
    passes: Vec<Arc<dyn SampleOrder>>,
    /// The end position of each pass.
    ends: Vec<u64>,
}

#[derive(Debug)]
struct InARowOrder {
    order: Arc<dyn SampleOrder>,
    times: u64,
    len: u64,
}

impl<S: Sampler> Sampler for Repeated<S> {
    fn fingerprint(&self) -> String {
        shortened(format!("{} {}", self.words(), self.sampler.fingerprint()))
    }

    fn fingerprint_parts(&self) -> Vec<(String, String)> {
        wrapped_parts(&self.words(), &self.sampler)
    }

    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        let times = u64::from(self.times);
        let too_many = || invalid(format!("{times} times {items} items exceed 2^64 - 1 positions"));
        if self.in_a_row {
            let order = self.sampler.epoch(items, epoch)?;
            let len = order.len().checked_mul(times).ok_or_else(too_many)?;
            return Ok(Arc::new(InARowOrder { order, times, len }));
        }
        let first = epoch.wrapping_mul(times);
        let (mut passes, mut ends, mut end) = (Vec::new(), Vec::new(), 0u64);
        for pass in 0..times {
            let order = self.sampler.epoch(items, first.wrapping_add(pass))?;
            end = end.checked_add(order.len()).ok_or_else(too_many)?;
            passes.push(order);
            ends.push(end);
        }
        Ok(Arc::new(PassesOrder { passes, ends }))
    }

    fn epoch_len(&self, items: u64) -> Option<u64> {
        self.sampler.epoch_len(items)?.checked_mul(u64::from(self.times))
    }
}

impl SampleOrder for PassesOrder {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn at(&self, position: u64) -> u64 {
        let pass = self.ends.partition_point(|&end| end <= position);
        let before = if pass == 0 { 0 } else { self.ends[pass - 1] };
        self.passes[pass].at(position - before)
    }
}

impl SampleOrder for InARowOrder {
    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, position: u64) -> u64 {
        self.order.at(position / self.times)
    }
}

/// Restricts another sampler to a range of positions or of items.
///
/// ```
/// use spdl_core::source::sampler::{Limited, Sampler, Shuffled};
/// // The first 1000 positions of each shuffled epoch.
/// let order = Limited::positions(Shuffled::new(7), 0..1000)?.epoch(1_000_000, 0)?;
/// assert_eq!(order.len(), 1000);
///
/// // A fixed subset in all epochs: items 900 to 999, shuffled.
/// let validation = Limited::items(Shuffled::new(7), 900..1000)?.epoch(1000, 5)?;
/// assert!((0..100).all(|position| validation.at(position) >= 900));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limited<S> {
    sampler: S,
    start: u64,
    end: u64,
    of: LimitOf,
}

#[derive(Clone, Copy, Debug)]
enum LimitOf {
    Positions,
    Items,
}

impl<S: Sampler> Limited<S> {
    /// The positions `range` of each epoch of `sampler`. Positions beyond the end are ignored.
    ///
    /// # Errors
    /// `InvalidArgument` if `range` ends before it starts.
    pub fn positions(sampler: S, range: Range<u64>) -> Result<Self> {
        Limited { sampler, start: range.start, end: range.end, of: LimitOf::Positions }.checked()
    }

    /// The items `range` of the data set, ordered by `sampler`. Items beyond the end are ignored.
    /// `sampler` receives only the number of these items.
    ///
    /// # Errors
    /// `InvalidArgument` if `range` ends before it starts.
    pub fn items(sampler: S, range: Range<u64>) -> Result<Self> {
        Limited { sampler, start: range.start, end: range.end, of: LimitOf::Items }.checked()
    }

    fn checked(self) -> Result<Self> {
        if self.start > self.end {
            let (start, end) = (self.start, self.end);
            return Err(invalid(format!("invalid range {start}..{end}: it ends before it starts")));
        }
        Ok(self)
    }

    fn words(&self) -> String {
        format!("{:?} {}..{} of", self.of, self.start, self.end)
    }

    /// The start and length of the range, restricted to `available`.
    fn within(&self, available: u64) -> (u64, u64) {
        let start = self.start.min(available);
        (start, self.end.min(available) - start)
    }
}

#[derive(Debug)]
struct LimitedOrder {
    order: Arc<dyn SampleOrder>,
    len: u64,
    /// The offset added to each position.
    positions: u64,
    /// The offset added to each item.
    items: u64,
}

impl<S: Sampler> Sampler for Limited<S> {
    fn fingerprint(&self) -> String {
        shortened(format!("{} {}", self.words(), self.sampler.fingerprint()))
    }

    fn fingerprint_parts(&self) -> Vec<(String, String)> {
        wrapped_parts(&self.words(), &self.sampler)
    }

    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        Ok(Arc::new(match self.of {
            LimitOf::Positions => {
                let order = self.sampler.epoch(items, epoch)?;
                let (positions, len) = self.within(order.len());
                LimitedOrder { order, len, positions, items: 0 }
            }
            LimitOf::Items => {
                let (start, items) = self.within(items);
                let order = self.sampler.epoch(items, epoch)?;
                LimitedOrder { len: order.len(), order, positions: 0, items: start }
            }
        }))
    }

    fn epoch_len(&self, items: u64) -> Option<u64> {
        Some(match self.of {
            LimitOf::Positions => self.within(self.sampler.epoch_len(items)?).1,
            LimitOf::Items => self.sampler.epoch_len(self.within(items).1)?,
        })
    }
}

impl SampleOrder for LimitedOrder {
    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, position: u64) -> u64 {
        self.order.at(position + self.positions) + self.items
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// A 64-bit hash for fingerprints: applies the finaliser of SplitMix64 after each word.
pub(crate) fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words
        .into_iter()
        .fold(0x5350_444c, |hash, word| mix(hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The maximum length of a fingerprint in characters.
const FINGERPRINT_CHARS: usize = 100;

/// Truncates a text longer than `FINGERPRINT_CHARS` and appends a hash of the whole text.
pub(crate) fn shortened(text: String) -> String {
    if text.chars().count() <= FINGERPRINT_CHARS {
        return text;
    }
    let hash = hash(text.bytes().map(u64::from));
    let beginning: String = text.chars().take(FINGERPRINT_CHARS - 18).collect();
    format!("{beginning}… {hash:016x}")
}

/// Random numbers by index: the SplitMix64 sequence for a key of purpose, seed and stream.
#[derive(Clone, Copy, Debug)]
struct Draws(u64);

impl Draws {
    fn new(purpose: &[u8; 8], seed: u64, stream: u64) -> Self {
        let purpose = u64::from_le_bytes(*purpose);
        Draws(mix(mix(seed ^ purpose) ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// Draw number `n`: 64 uniform bits.
    fn at(self, n: u64) -> u64 {
        mix(self.0.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Draw number `n` as an integer in `0..below`, and the remainder as a fraction of 2⁶⁴. The
    /// bias is at most `below` / 2⁶⁴.
    fn below(self, n: u64, below: u64) -> (u64, u64) {
        let wide = u128::from(self.at(n)) * u128::from(below);
        ((wide >> 64) as u64, wide as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn all(order: &dyn SampleOrder) -> Vec<u64> {
        (0..order.len()).map(|position| order.at(position)).collect()
    }

    pub(super) fn epoch(sampler: &dyn Sampler, items: u64, epoch: u64) -> Vec<u64> {
        let order = sampler.epoch(items, epoch).unwrap();
        if let Some(len) = sampler.epoch_len(items) {
            assert_eq!(len, order.len());
        }
        all(&*order)
    }

    proptest! {
        #[test]
        fn passes_are_epochs_of_the_inner_sampler(
            items in 0u64..40, times in 1u32..5, seed: u64, number in 0u64..4,
        ) {
            let repeated = Repeated::passes(Shuffled::new(seed), times).unwrap();
            let times = u64::from(times);
            let expected: Vec<u64> = (number * times..(number + 1) * times)
                .flat_map(|pass| epoch(&Shuffled::new(seed), items, pass))
                .collect();
            prop_assert_eq!(epoch(&repeated, items, number), expected);
        }

        #[test]
        fn items_in_a_row_keep_the_inner_order(items in 0u64..40, times in 1u32..5, seed: u64) {
            let repeated = Repeated::in_a_row(Shuffled::new(seed), times).unwrap();
            let expected: Vec<u64> = epoch(&Shuffled::new(seed), items, 2)
                .into_iter()
                .flat_map(|item| std::iter::repeat_n(item, times as usize))
                .collect();
            prop_assert_eq!(epoch(&repeated, items, 2), expected);
        }

        #[test]
        fn a_limit_of_positions_is_a_slice_of_the_order(
            items in 0u64..40, start in 0u64..50, more in 0u64..50, seed: u64,
        ) {
            let whole = epoch(&Shuffled::new(seed), items, 1);
            let limited = Limited::positions(Shuffled::new(seed), start..start + more).unwrap();
            let end = (start + more).min(items) as usize;
            let expected = whole.get(start as usize..end).unwrap_or(&[]);
            prop_assert_eq!(epoch(&limited, items, 1), expected);
        }

        #[test]
        fn a_limit_of_items_contains_exactly_those(
            items in 0u64..40, start in 0u64..50, more in 0u64..50, seed: u64,
        ) {
            let limited = Limited::items(Shuffled::new(seed), start..start + more).unwrap();
            let mut found = epoch(&limited, items, 1);
            found.sort_unstable();
            prop_assert_eq!(found, (start..(start + more).min(items)).collect::<Vec<_>>());
        }
    }

    // feature: E04
    #[test]
    fn a_shuffled_epoch_is_the_permutation_of_seed_and_epoch() {
        let permutation = Permutation::new(1000, 3, 4);
        assert_eq!(epoch(&Shuffled::new(3), 1000, 4), all(&permutation));
        assert_eq!(epoch(&Sequential, 4, 9), [0, 1, 2, 3]);
        assert!(Sequential.epoch(0, 0).unwrap().is_empty());
        assert!(!Sequential.epoch(1, 0).unwrap().is_empty());
    }

    #[test]
    fn invalid_arguments_are_errors() {
        let kind = |error: Error| error.kind();
        for error in [
            Repeated::passes(Sequential, 0).unwrap_err(),
            Repeated::in_a_row(Sequential, 0).unwrap_err(),
            Repeated::in_a_row(Sequential, 3).unwrap().epoch(u64::MAX / 2, 0).unwrap_err(),
            Repeated::passes(Sequential, 3).unwrap().epoch(u64::MAX / 2, 0).unwrap_err(),
            #[expect(clippy::reversed_empty_ranges, reason = "an invalid range is the test")]
            Limited::positions(Sequential, 3..2).unwrap_err(),
        ] {
            assert_eq!(kind(error), ErrorKind::InvalidArgument);
        }
    }

    /// A sampler whose `Debug` text lacks a part of its fingerprint.
    struct HiddenSeed(u64);

    impl std::fmt::Debug for HiddenSeed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("HiddenSeed")
        }
    }

    impl Sampler for HiddenSeed {
        fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
            Shuffled::new(self.0).epoch(items, epoch)
        }

        fn epoch_len(&self, items: u64) -> Option<u64> {
            Some(items)
        }

        fn fingerprint(&self) -> String {
            format!("secret {}", self.0)
        }
    }

    #[test]
    fn wrappers_contain_the_fingerprint_of_the_inner_sampler() {
        let fingerprints = |seed| {
            [
                Repeated::passes(HiddenSeed(seed), 2).unwrap().fingerprint(),
                Repeated::in_a_row(HiddenSeed(seed), 2).unwrap().fingerprint(),
                Limited::positions(HiddenSeed(seed), 0..5).unwrap().fingerprint(),
                Limited::items(HiddenSeed(seed), 0..5).unwrap().fingerprint(),
                Limited::items(HiddenSeed(seed), 0..6).unwrap().fingerprint(),
                Distributed::new(HiddenSeed(seed), 0, 2).unwrap().fingerprint(),
                Distributed::new(HiddenSeed(seed), 1, 2).unwrap().fingerprint(),
            ]
        };
        let all: std::collections::BTreeSet<_> =
            fingerprints(1).into_iter().chain(fingerprints(2)).collect();
        assert_eq!(all.len(), 14, "{all:?}");
    }

    #[test]
    fn fingerprints_are_short_and_differ() {
        let deep = |seed| {
            let mut sampler: Arc<dyn Sampler> = Arc::new(Shuffled::new(seed));
            for _ in 0..20 {
                sampler = Arc::new(Repeated::passes(sampler, 2).unwrap());
            }
            sampler.fingerprint()
        };
        assert_eq!(Shuffled::new(7).fingerprint(), "Shuffled { seed: 7 }");
        assert_eq!(deep(1), deep(1));
        assert_ne!(deep(1), deep(2));
        assert_eq!(deep(1).chars().count(), FINGERPRINT_CHARS - 18 + 18);
        let boxed: Box<dyn Sampler> = Box::new(Sequential);
        assert_eq!(boxed.fingerprint(), "Sequential");
        assert_eq!(epoch(&boxed, 3, 0), [0, 1, 2]);
    }
}
