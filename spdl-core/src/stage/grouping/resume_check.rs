//! Test helper: checks the law of [`ExactResume`] at every point of an epoch.
//!
//! A new aggregator that accumulates only the held items returns the same remaining aggregates.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::stage::aggregate::{Aggregator, ExactResume};

/// An aggregate with its inputs, as indices into the items, and its carry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Emitted<O> {
    pub(super) aggregate: O,
    pub(super) members: Vec<usize>,
    pub(super) carry: u64,
}

/// The results of an aggregator in one epoch.
pub(super) struct EpochResults<O> {
    pub(super) emitted: Vec<Emitted<O>>,
    /// Indices of the rejected items.
    pub(super) rejected: Vec<usize>,
    pub(super) left_out: u64,
    /// The maximum number of held items.
    pub(super) max_held: usize,
    checkpoints: Vec<Checkpoint>,
}

/// A point of the epoch from which it can be resumed.
struct Checkpoint {
    /// Number of items passed to the aggregator.
    passed: usize,
    /// Indices of the held items.
    held: Vec<usize>,
    /// Number of aggregates emitted.
    emitted: usize,
    carry: u64,
}

fn exact<T, A: Aggregator<T>>(aggregator: &mut A) -> &mut dyn ExactResume {
    aggregator.exact_resume().expect("the aggregator supports exact resume")
}

/// Passes the items at `indices` to an aggregator.
fn run<T: Clone, A: Aggregator<T>>(
    mut aggregator: A,
    carry: u64,
    items: &[T],
    indices: &[usize],
) -> EpochResults<A::Out> {
    let mut epoch = EpochResults {
        emitted: Vec::new(),
        rejected: Vec::new(),
        left_out: 0,
        max_held: 0,
        checkpoints: vec![Checkpoint { passed: 0, held: Vec::new(), emitted: 0, carry }],
    };
    if carry > 0 {
        exact(&mut aggregator).resume(carry);
    }
    let mut accepted = Vec::new();
    let mut held = BTreeSet::new();
    let mut carry = carry;
    let emitted = |aggregator: &mut A, aggregate, accepted: &[usize], held: &mut BTreeSet<_>| {
        let members = exact(aggregator).inputs();
        let members: Vec<usize> = members.iter().map(|&n| accepted[n as usize]).collect();
        assert!(members.iter().all(|index| held.remove(index)), "{members:?} were held");
        Emitted { aggregate, members, carry: exact(aggregator).carry() }
    };
    for (at, &index) in indices.iter().enumerate() {
        let passed = at + 1;
        let mut result = match aggregator.accumulate(items[index].clone()) {
            Ok(result) => {
                accepted.push(index);
                held.insert(index);
                result
            }
            Err(_) => {
                epoch.rejected.push(index);
                None
            }
        };
        while let Some(aggregate) = result {
            epoch.emitted.push(emitted(&mut aggregator, aggregate, &accepted, &mut held));
            carry = exact(&mut aggregator).carry();
            epoch.add_checkpoint(passed, &held, carry);
            result = aggregator.more().unwrap();
        }
        let after = exact(&mut aggregator).carry();
        assert_eq!(after, carry, "the carry changed, but no aggregate was emitted");
        epoch.max_held = epoch.max_held.max(held.len());
        epoch.add_checkpoint(passed, &held, carry);
    }
    let mut result = aggregator.flush().unwrap();
    while let Some(aggregate) = result {
        epoch.emitted.push(emitted(&mut aggregator, aggregate, &accepted, &mut held));
        let carry = exact(&mut aggregator).carry();
        epoch.add_checkpoint(indices.len(), &held, carry);
        result = aggregator.flush_more().unwrap();
    }
    epoch.left_out = aggregator.left_out();
    assert_eq!(held.len() as u64, epoch.left_out, "every item must be emitted or left out");
    epoch
}

impl<O> EpochResults<O> {
    fn add_checkpoint(&mut self, passed: usize, held: &BTreeSet<usize>, carry: u64) {
        let held = held.iter().copied().collect();
        self.checkpoints.push(Checkpoint { passed, held, emitted: self.emitted.len(), carry });
    }
}

/// Runs an epoch, and resumes it from every checkpoint with a new aggregator.
pub(super) fn run_and_resume<T: Clone, A: Aggregator<T>>(
    make: impl Fn() -> A,
    items: &[T],
) -> EpochResults<A::Out>
where
    A::Out: Clone + Debug + PartialEq,
{
    let all: Vec<usize> = (0..items.len()).collect();
    let whole = run(make(), 0, items, &all);
    for Checkpoint { passed, held, emitted, carry } in &whole.checkpoints {
        let indices: Vec<usize> = held.iter().copied().chain(*passed..items.len()).collect();
        let resumed = run(make(), *carry, items, &indices);
        let expected = &whole.emitted[*emitted..];
        let place = format!("resumed after {passed} items and {emitted} aggregates");
        assert_eq!(resumed.emitted, expected, "{place}");
        assert_eq!(resumed.left_out, whole.left_out);
    }
    whole
}
