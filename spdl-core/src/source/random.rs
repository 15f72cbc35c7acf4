//! Random numbers per sample and stage, independent of threads.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::fmt;

use crate::source::sample::SampleId;

/// A random number generator for one sample in one stage.
///
/// The sequence is a pure function of seed, epoch, index and stage name. The sequence does not
/// depend on the number of threads or the order of execution, and is the same after a retry or a
/// restart. The generator is ChaCha with 8 rounds. Its 256-bit key consists of the seed, the epoch,
/// the index and a hash of the stage name, 64 bits each, so two samples of a run never share a key.
/// If earlier stages derived several items from one sample, the hash also depends on the item.
///
/// ```
/// use spdl_core::{SampleId, SampleRng};
/// let id = SampleId { epoch: 1, index: 42 };
/// let mut a = SampleRng::new(7, id, "decode");
/// let mut b = SampleRng::new(7, id, "decode");
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!((0.0..1.0).contains(&a.unit()));
/// ```
pub struct SampleRng(ChaCha8Rng);

/// The identity of an item, from which generators for the item are created.
///
/// An `ItemRng` outlives the call of the stage that received it. See
/// [`StageContext::item_rng`](crate::StageContext::item_rng).
#[derive(Clone, Copy, Debug)]
pub struct ItemRng {
    pub(crate) id: SampleId,
    pub(crate) lineage: u64,
}

impl ItemRng {
    /// Epoch and position of the item.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// The generator of the item in the stage `stage` of a pipeline with seed `seed`, as
    /// [`StageContext::rng_of`](crate::StageContext::rng_of) returns it.
    pub fn rng_of(&self, seed: u64, stage: &str) -> SampleRng {
        SampleRng::for_stage(seed, self.id, self.lineage, stage_number(stage))
    }
}

/// The random numbers of one item in one stage.
///
/// Another stage can draw from it, before or after the stage. See
/// [`AsyncContext::rng_in`](crate::AsyncContext::rng_in).
///
/// ```
/// use spdl_core::source::StageRng;
/// use spdl_core::{FillContext, SampleId};
/// let id = SampleId { epoch: 1, index: 42 };
/// let (cx, early) = (FillContext::new(7, id, "decode", None), StageRng::new(7, id, "decode"));
/// assert_eq!(early.rng().next_u64(), cx.rng().next_u64());
/// assert_eq!(early.rng_of_part("clip").next_u64(), cx.rng_of_part("clip").next_u64());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StageRng {
    pub(crate) seed: u64,
    pub(crate) id: SampleId,
    pub(crate) lineage: u64,
    /// The hash of the name of the stage.
    pub(crate) stage: u64,
}

impl StageRng {
    /// The random numbers of sample `id` in stage `stage` of a run with `seed`.
    pub fn new(seed: u64, id: SampleId, stage: &str) -> Self {
        StageRng { seed, id, lineage: 0, stage: stage_number(stage) }
    }

    /// The generator that the stage has for the item. Every call returns a new generator with the same
    /// sequence.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.id, self.lineage, self.stage)
    }

    /// The generator that the stage has for a part of the item: see
    /// [`FillContext::rng_of_part`](crate::FillContext::rng_of_part).
    pub fn rng_of_part(&self, part: &str) -> SampleRng {
        let stage = purpose_number(purpose_number(self.stage, "/"), part);
        SampleRng::for_stage(self.seed, self.id, self.lineage, stage)
    }
}

impl SampleRng {
    /// The generator of sample `id` in stage `stage` of a run with `seed`.
    pub fn new(seed: u64, id: SampleId, stage: &str) -> Self {
        SampleRng::for_stage(seed, id, 0, stage_number(stage))
    }

    pub(crate) fn for_stage(seed: u64, id: SampleId, lineage: u64, stage: u64) -> Self {
        let mut key = [0; 32];
        let words = [seed, id.epoch, id.index, stage ^ lineage];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        SampleRng(ChaCha8Rng::from_seed(key))
    }

    /// Returns 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a uniform number in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniform number in `[low, high)`, or `low` if the range is empty. Rounding can make
    /// the result equal to `high`.
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low).max(0.0) * self.unit()
    }

    /// Returns a uniform integer in `0..n`, without bias (Lemire's method with rejection); 0 if `n`
    /// is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let reject_below = n.wrapping_neg() % n;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            if wide as u64 >= reject_below {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Returns true with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

impl fmt::Debug for SampleRng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SampleRng")
    }
}

/// The 64-bit FNV-1a hash of a stage name.
pub(crate) fn stage_number(name: &str) -> u64 {
    purpose_number(0xcbf2_9ce4_8422_2325, name)
}

/// Continues the hash of `stage` with `purpose`: the hash of both names joined.
pub(crate) fn purpose_number(stage: u64, purpose: &str) -> u64 {
    purpose
        .bytes()
        .fold(stage, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purpose_has_a_separate_stream() {
        assert_eq!(purpose_number(stage_number("fetch"), "/retry"), stage_number("fetch/retry"));
        assert_ne!(purpose_number(stage_number("fetch"), "/retry"), stage_number("fetch"));
    }

    // promise: R14
    #[test]
    fn every_part_of_the_identity_changes_the_stream() {
        let id = SampleId { epoch: 0, index: 0 };
        let first = |seed, id, stage| SampleRng::new(seed, id, stage).next_u64();
        let base = first(1, id, "a");
        assert_eq!(base, first(1, id, "a"));
        assert_ne!(base, first(2, id, "a"));
        assert_ne!(base, first(1, SampleId { epoch: 1, index: 0 }, "a"));
        assert_ne!(base, first(1, SampleId { epoch: 0, index: 1 }, "a"));
        assert_ne!(base, first(1, id, "b"));
    }

    // promise: CORE7
    #[test]
    fn draws_are_uniform_across_samples() {
        // The first draws of 60,000 adjacent samples in 6 bins: each has 10,000 ± 5 sigma.
        let mut bins = [0u32; 6];
        for index in 0..60_000 {
            let mut rng = SampleRng::new(0, SampleId { epoch: 0, index }, "crop");
            bins[rng.below(6) as usize] += 1;
        }
        let sigma = (60_000.0_f64 * (1.0 / 6.0) * (5.0 / 6.0)).sqrt();
        for count in bins {
            assert!((f64::from(count) - 10_000.0).abs() < 5.0 * sigma, "{bins:?}");
        }
    }

    // promise: R14
    #[test]
    fn a_million_draws_are_distinct_and_streams_are_uncorrelated() {
        const SAMPLES: u64 = 6250;
        let stages = [stage_number("crop"), stage_number("flip")];
        let stream = |seed, epoch, index, stage: usize, lineage| {
            let id = SampleId { epoch, index };
            let mut rng = SampleRng::for_stage(seed, id, lineage, stages[stage]);
            [(); 8].map(|()| rng.next_u64())
        };
        let mut all = Vec::with_capacity(1_000_000);
        for (seed, epoch, stage) in (0..20).map(|at| (at % 2, at / 4, at as usize / 2 % 2)) {
            all.extend((0..SAMPLES).flat_map(|index| stream(seed, epoch, index, stage, 0)));
        }
        assert_eq!(all.len(), 1_000_000);
        all.sort_unstable();
        // By chance, two draws are equal once in 30 million times.
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));

        // Pairs the draws of a stream with the draws of a stream that differs in one part of the
        // key.
        let unit = |draw: u64| (draw >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        let correlated = |what: &str, pairs: Vec<[u64; 2]>| {
            let sum: f64 = pairs.iter().map(|&[a, b]| unit(a) * unit(b)).sum();
            // Each product has variance 1/144. The probability of more than 4.5 sigma is 7 in a
            // million.
            let sigmas = 12.0 * sum / (pairs.len() as f64).sqrt();
            assert!(sigmas.abs() < 4.5, "{what}: {sigmas} sigma");
        };
        let base = |index| stream(0, 0, index, 0, 0);
        let beside = |what: &str, other: &dyn Fn(u64) -> [u64; 8]| {
            let pairs = (0..SAMPLES).flat_map(|at| {
                let (one, other) = (base(at), other(at));
                (0..8).map(move |draw| [one[draw], other[draw]])
            });
            correlated(what, pairs.collect());
        };
        beside("seed", &|index| stream(1, 0, index, 0, 0));
        beside("epoch", &|index| stream(0, 1, index, 0, 0));
        beside("index", &|index| stream(0, 0, index + 1, 0, 0));
        beside("stage", &|index| stream(0, 0, index, 1, 0));
        beside("lineage", &|index| stream(0, 0, index, 0, 1));
        let next = |index| base(index).windows(2).map(|two| [two[0], two[1]]).collect::<Vec<_>>();
        correlated("the next draw", (0..SAMPLES).flat_map(next).collect());
    }

    #[test]
    fn draws_from_empty_and_single_ranges_are_valid() {
        let mut rng = SampleRng::new(0, SampleId::default(), "x");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        assert_eq!(rng.range(3.0, 3.0), 3.0);
        assert!(!rng.chance(0.0));
        assert!(rng.chance(1.0));
    }
}
