//! Which branch of a merge the next item comes from.

use std::fmt::{self, Debug};

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::source::random::SampleRng;
use crate::source::sample::SampleId;

/// Decides from which branch of a [merge](crate::PipelineBuilder::merge) the next item comes.
///
/// [`Arrival`], [`RoundRobin`] and [`WeightedMerge`] are ready-made. With a policy that looks at nothing
/// but its arguments, and deterministic branches, the merged order is deterministic.
///
/// ```
/// use spdl_core::{DatasetSource, PipelineBuilder};
/// use spdl_core::stage::{Choice, MergePolicy};
///
/// /// Everything of the first branch, then everything of the second, and so on.
/// #[derive(Debug)]
/// struct InTurn;
/// impl MergePolicy for InTurn {
///     fn choose(&mut self, open: &[bool]) -> Choice {
///         Choice::Branch(open.iter().position(|&open| open).unwrap_or(0))
///     }
/// }
///
/// let numbers = |n: std::ops::Range<i32>| PipelineBuilder::new(DatasetSource::new(n.collect::<Vec<_>>()));
/// let all = PipelineBuilder::merge([numbers(0..3), numbers(10..12)], InTurn).build()?;
/// assert_eq!(all.collect::<spdl_core::Result<Vec<_>>>()?, [0, 1, 2, 10, 11]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub trait MergePolicy: Debug + Send + 'static {
    /// Chooses a branch. `open[i]` says whether branch `i` may have more items in this epoch; at
    /// least one is open.
    fn choose(&mut self, open: &[bool]) -> Choice;

    /// Whether the policy fits so many branches: asked when the pipeline is built.
    ///
    /// # Errors
    /// Why it does not.
    fn check(&self, branches: usize) -> Result<()> {
        let _ = branches;
        Ok(())
    }

    /// Called before the first choice of each epoch, also of one that may turn out not to come.
    ///
    /// # Errors
    /// Whatever keeps the epoch from starting; it ends the pipeline.
    fn start_epoch(&mut self, epoch: u64, branches: usize, seed: u64) -> Result<()> {
        let _ = (epoch, branches, seed);
        Ok(())
    }
}

/// What a [`MergePolicy`] has chosen.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Whichever has an item first.
    Any,
    /// This branch, which must be open: it is waited for.
    Branch(usize),
    /// No item any more in this epoch: what the branches still have of it is left out, and counted
    /// in [`Statistics::left_out`](crate::Statistics::left_out).
    EndEpoch,
}

/// Items in the order in which they get ready; no branch waits for another one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival;

impl MergePolicy for Arrival {
    fn choose(&mut self, _: &[bool]) -> Choice {
        Choice::Any
    }
}

/// One item of each branch in turn; a branch that has ended is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

impl MergePolicy for RoundRobin {
    fn choose(&mut self, open: &[bool]) -> Choice {
        let branches = open.len();
        let turn = (0..branches).map(|step| (self.next + step) % branches);
        let at = turn.into_iter().find(|&at| open[at]).unwrap_or(0);
        self.next = (at + 1) % branches;
        Choice::Branch(at)
    }

    fn start_epoch(&mut self, _: u64, _: usize, _: u64) -> Result<()> {
        self.next = 0;
        Ok(())
    }
}

/// Draws a branch at random for each item, with given weights; a branch that has ended is left out.
/// The draws are a function of the pipeline's seed and the epoch. To draw items of one data set by
/// weight, there is [`sampler::Weighted`](crate::source::sampler::Weighted).
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
    /// Draws branch `i` with a probability proportional to `weights[i]`.
    ///
    /// # Errors
    /// `InvalidArgument` unless all weights are finite and positive.
    pub fn new(weights: impl Into<Vec<f64>>) -> Result<Self> {
        let weights = weights.into();
        match weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            Some(weight) => {
                let message = format!("a branch has the weight {weight}; it must be positive");
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
        let mut left = self.rng.as_mut().map_or(0.0, SampleRng::unit) * total;
        let last = open.iter().rposition(|&open| open).unwrap_or(0);
        for (at, _) in open.iter().enumerate().filter(|(_, open)| **open) {
            left -= self.weights[at];
            if left < 0.0 {
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
        let message = format!("there are {weights} weights for {branches} branches");
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
    fn weights_are_kept_and_ended_branches_left_out() {
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
    fn draws_follow_from_seed_and_epoch() {
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
    fn weights_that_make_no_sense_are_refused() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(WeightedMerge::new([1.0, weight]).is_err(), "{weight}");
        }
        assert!(WeightedMerge::new([1.0]).unwrap().start_epoch(0, 2, 0).is_err());
    }

    #[test]
    fn round_robin_skips_what_has_ended_and_starts_anew() {
        let mut policy = RoundRobin::default();
        policy.start_epoch(0, 3, 0).unwrap();
        let turns = [[true; 3], [true, false, true], [true, false, true], [true; 3]];
        let chosen: Vec<_> = turns.iter().map(|open| policy.choose(open)).collect();
        assert_eq!(chosen, [0, 2, 0, 1].map(Choice::Branch));
        policy.start_epoch(1, 3, 0).unwrap();
        assert_eq!(policy.choose(&[true; 3]), Choice::Branch(0));
    }
}
