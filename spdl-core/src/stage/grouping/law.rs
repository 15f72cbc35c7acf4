//! The law that all aggregators keep that tell their members: fed with just what is held, a fresh
//! one goes on as if nothing had happened. Checked at every point of an epoch.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::stage::aggregate::{Aggregator, ExactResume};

/// An aggregate, with what was said about it. Members are items by their place among all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told<O> {
    pub(super) aggregate: O,
    pub(super) members: Vec<usize>,
    pub(super) carry: u64,
}

/// What an aggregator made of an epoch.
pub(super) struct FedEpoch<O> {
    pub(super) told: Vec<Told<O>>,
    /// The items that it refused, by their place.
    pub(super) refused: Vec<usize>,
    pub(super) left_out: u64,
    /// The most items held after taking one in.
    pub(super) most_held: usize,
    /// Where one could stop: how many items had been given, which were held, how many aggregates
    /// had come, and the carry.
    points: Vec<(usize, Vec<usize>, usize, u64)>,
}

fn exact<T, A: Aggregator<T>>(aggregator: &mut A) -> &mut dyn ExactResume {
    aggregator.exact_resume().expect("it supports exact resume")
}

/// Gives `places` of `items` to an aggregator.
fn run<T: Clone, A: Aggregator<T>>(
    mut aggregator: A,
    carry: u64,
    items: &[T],
    places: &[usize],
) -> FedEpoch<A::Out> {
    let mut epoch = FedEpoch {
        told: Vec::new(),
        refused: Vec::new(),
        left_out: 0,
        most_held: 0,
        points: vec![(0, Vec::new(), 0, carry)],
    };
    if carry > 0 {
        exact(&mut aggregator).resume(carry);
    }
    let mut taken = Vec::new();
    let mut held = BTreeSet::new();
    let mut carry = carry;
    let tell = |aggregator: &mut A, aggregate, taken: &[usize], held: &mut BTreeSet<usize>| {
        let members = exact(aggregator).inputs();
        let members: Vec<usize> = members.iter().map(|&number| taken[number as usize]).collect();
        assert!(members.iter().all(|place| held.remove(place)), "{members:?} were held");
        Told { aggregate, members, carry: exact(aggregator).carry() }
    };
    for (given, &place) in places.iter().enumerate() {
        let mut answer = match aggregator.accumulate(items[place].clone()) {
            Ok(answer) => {
                taken.push(place);
                held.insert(place);
                answer
            }
            Err(_) => {
                epoch.refused.push(place);
                None
            }
        };
        while let Some(aggregate) = answer {
            let told = tell(&mut aggregator, aggregate, &taken, &mut held);
            carry = told.carry;
            epoch.told.push(told);
            let all: Vec<usize> = held.iter().copied().collect();
            epoch.points.push((given + 1, all, epoch.told.len(), carry));
            answer = aggregator.more().unwrap();
        }
        assert_eq!(exact(&mut aggregator).carry(), carry, "it changes with an aggregate only");
        epoch.most_held = epoch.most_held.max(held.len());
        let all = held.iter().copied().collect();
        epoch.points.push((given + 1, all, epoch.told.len(), carry));
    }
    let mut answer = aggregator.flush().unwrap();
    while let Some(aggregate) = answer {
        let told = tell(&mut aggregator, aggregate, &taken, &mut held);
        epoch.told.push(told);
        let all = held.iter().copied().collect();
        let carry = exact(&mut aggregator).carry();
        epoch.points.push((places.len(), all, epoch.told.len(), carry));
        answer = aggregator.flush_more().unwrap();
    }
    epoch.left_out = aggregator.left_out();
    assert_eq!(held.len() as u64, epoch.left_out, "every item comes out once, or is left out");
    epoch
}

/// Runs an epoch, and from every point of it the rest with a fresh aggregator.
pub(super) fn holds<T: Clone, A: Aggregator<T>>(
    make: impl Fn() -> A,
    items: &[T],
) -> FedEpoch<A::Out>
where
    A::Out: Clone + Debug + PartialEq,
{
    let all: Vec<usize> = (0..items.len()).collect();
    let whole = run(make(), 0, items, &all);
    for (given, held, told, carry) in &whole.points {
        let places: Vec<usize> = held.iter().copied().chain(*given..items.len()).collect();
        let rest = run(make(), *carry, items, &places);
        assert_eq!(rest.told, whole.told[*told..], "after {given} items, {told} aggregates");
        assert_eq!(rest.left_out, whole.left_out);
    }
    whole
}
