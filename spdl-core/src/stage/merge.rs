//! [`MergePolicy`]: selects the branch of a merge that provides the next item. [`ZipLength`]: when a zip ends.

use std::fmt::{self, Debug};

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::source::random::SampleRng;
use crate::source::sample::SampleId;

/// Selects the branch of a [merge](crate::PipelineBuilder::merge) that provides the next item.
///
/// The crate provides [`Arrival`], [`RoundRobin`] and [`WeightedMerge`]. The merged order is
/// deterministic if the order of each branch is deterministic and the policy's choices depend only
/// on the arguments of its methods.
///
/// ```
/// use spdl_core::{DatasetSource, PipelineBuilder};
/// use spdl_core::stage::{Choice, MergePolicy};
///
/// /// All items of the first branch, then all items of the second, and so on.
/// #[derive(Debug)]
/// struct Concatenate;
/// impl MergePolicy for Concatenate {
///     fn choose(&mut self, open: &[bool]) -> Choice {
///         Choice::Branch(open.iter().position(|&open| open).unwrap_or(0))
///     }
/// }
///
/// let numbers = |n: std::ops::Range<i32>| PipelineBuilder::new(DatasetSource::new(n.collect::<Vec<_>>()));
/// let all = PipelineBuilder::merge([numbers(0..3), numbers(10..12)], Concatenate).build()?;
/// assert_eq!(all.collect::<spdl_core::Result<Vec<_>>>()?, [0, 1, 2, 10, 11]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub trait MergePolicy: Debug + Send + 'static {
    /// Chooses a branch. `open[i]` is `true` if branch `i` may have more items in this epoch. At
    /// least one branch is open.
    fn choose(&mut self, open: &[bool]) -> Choice;

    /// Checks that the policy supports this number of branches. The default accepts every number.
    ///
    /// # Errors
    /// Any error fails the build of the pipeline.
    fn check(&self, branches: usize) -> Result<()> {
        let _ = branches;
        Ok(())
    }

    /// Whether the policy chooses branches, instead of [`Choice::Any`] for all items. Default: `true`.
    ///
    /// A run that resumes within an epoch repeats the choices of the earlier run, so that the next choice is the same.
    fn chooses(&self) -> bool {
        true
    }

    /// Called before the first choice of each epoch, even if the epoch is empty.
    ///
    /// # Errors
    /// Any error ends the pipeline.
    fn start_epoch(&mut self, epoch: u64, branches: usize, seed: u64) -> Result<()> {
        let _ = (epoch, branches, seed);
        Ok(())
    }
}

/// The choice of a [`MergePolicy`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first branch that has an item ready.
    Any,
    /// The branch of this number, which must be open. The merge waits for the branch's next item.
    Branch(usize),
    /// No branch: the epoch of the merge ends. The remaining items of the epoch are left out, and
    /// [`Statistics::left_out`](crate::Statistics::left_out) counts them.
    EndEpoch,
}

/// How many items an epoch of [`zip_all`](crate::PipelineBuilder::zip_all) has.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZipLength {
    /// As many as the shortest branch. Further items of the other branches are left out, and
    /// [`Statistics::left_out`](crate::Statistics::left_out) counts them.
    #[default]
    Shortest,
    /// As many as each branch. If the branches have different numbers of items, the pipeline fails with
    /// `InvalidArgument`.
    Equal,
}

/// The [`MergePolicy`] that forwards items in the order in which they are ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival;

impl MergePolicy for Arrival {
    fn choose(&mut self, _: &[bool]) -> Choice {
        Choice::Any
    }

    fn chooses(&self) -> bool {
        false
    }
}

/// The [`MergePolicy`] that takes one item of each branch in turn, and skips branches that have
/// ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

impl MergePolicy for RoundRobin {
    fn choose(&mut self, open: &[bool]) -> Choice {
        let branches = open.len();
        let mut turns = (0..branches).map(|step| (self.next + step) % branches);
        let at = turns.find(|&at| open[at]).unwrap_or(0);
        self.next = (at + 1) % branches;
        Choice::Branch(at)
    }

    fn start_epoch(&mut self, _: u64, _: usize, _: u64) -> Result<()> {
        self.next = 0;
        Ok(())
    }
}

/// The [`MergePolicy`] that draws a branch at random for each item, with given weights.
///
/// Branches that have ended are not drawn. The draws depend only on the weights, the pipeline's
/// seed, the epoch and the open branches. To draw items of one data set by weight, use
/// [`sampler::Weighted`](crate::source::sampler::Weighted).
pub struct WeightedMerge {
    weights: Vec<f64>,
    rng: Option<SampleRng>,
}

impl Debug for WeightedMerge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightedMerge({:?})", self.weights)
    }
}

impl WeightedMerge {
    /// Creates a policy that draws branch `i` with a probability proportional to `weights[i]`.
    ///
    /// # Errors
    /// `InvalidArgument` if any weight is zero, negative, infinite or NaN.
    pub fn new(weights: impl Into<Vec<f64>>) -> Result<Self> {
        let weights = weights.into();
        match weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            Some(weight) => {
                let message =
                    format!("invalid branch weight {weight}; weights must be finite and positive");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
            None => Ok(WeightedMerge { weights, rng: None }),
        }
    }
}

impl MergePolicy for WeightedMerge {
    fn choose(&mut self, open: &[bool]) -> Choice {
        let weight = |at: usize| if open[at] { self.weights[at] } else { 0.0 };
        let total: f64 = (0..open.len()).map(weight).sum();
        let mut remaining = self.rng.as_mut().map_or(0.0, SampleRng::unit) * total;
        let last = open.iter().rposition(|&open| open).unwrap_or(0);
        for (at, _) in open.iter().enumerate().filter(|(_, open)| **open) {
            remaining -= self.weights[at];
            if remaining < 0.0 {
                return Choice::Branch(at);
            }
        }
        Choice::Branch(last)
    }

    fn check(&self, branches: usize) -> Result<()> {
        if branches == self.weights.len() {
            return Ok(());
        }
        let weights = self.weights.len();
        let message =
            format!("a merge of {branches} branches has {weights} weights; give one per branch");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    fn start_epoch(&mut self, epoch: u64, branches: usize, seed: u64) -> Result<()> {
        self.check(branches)?;
        let header = ItemHeader::new(SampleId { epoch, index: 0 }, None);
        self.rng = Some(SampleRng::new(seed, header.id, "weighted merge"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_weights_and_skip_ended_branches() {
        let mut policy = WeightedMerge::new([1.0, 3.0, 6.0]).unwrap();
        policy.start_epoch(0, 3, 7).unwrap();
        let mut counts = [0u32; 3];
        for _ in 0..10_000 {
            match policy.choose(&[true, true, true]) {
                Choice::Branch(at) => counts[at] += 1,
                other => panic!("{other:?}"),
            }
        }
        for (count, expected) in counts.into_iter().zip([1000.0, 3000.0, 6000.0]) {
            assert!((f64::from(count) - expected).abs() < 5.0 * f64::sqrt(expected), "{counts:?}");
        }
        for _ in 0..100 {
            assert_eq!(policy.choose(&[false, true, false]), Choice::Branch(1));
        }
    }

    #[test]
    fn draws_depend_on_seed_and_epoch() {
        let draws = |seed, epoch| {
            let mut policy = WeightedMerge::new([1.0, 1.0]).unwrap();
            policy.start_epoch(epoch, 2, seed).unwrap();
            (0..64).map(|_| policy.choose(&[true, true])).collect::<Vec<_>>()
        };
        assert_eq!(draws(1, 0), draws(1, 0));
        assert_ne!(draws(1, 0), draws(2, 0));
        assert_ne!(draws(1, 0), draws(1, 1));
    }

    #[test]
    fn invalid_weights_are_errors() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(WeightedMerge::new([1.0, weight]).is_err(), "{weight}");
        }
        assert!(WeightedMerge::new([1.0]).unwrap().start_epoch(0, 2, 0).is_err());
    }

    #[test]
    fn round_robin_skips_ended_branches_and_restarts_each_epoch() {
        let mut policy = RoundRobin::default();
        policy.start_epoch(0, 3, 0).unwrap();
        let turns = [[true; 3], [true, false, true], [true, false, true], [true; 3]];
        let chosen: Vec<_> = turns.iter().map(|open| policy.choose(open)).collect();
        assert_eq!(chosen, [0, 2, 0, 1].map(Choice::Branch));
        policy.start_epoch(1, 3, 0).unwrap();
        assert_eq!(policy.choose(&[true; 3]), Choice::Branch(0));
    }
}
