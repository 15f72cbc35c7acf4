//! Runs a graph and compares its output with the expected one.

use std::sync::Arc;

use super::super::api::pipeline::Monitor;
use super::super::api::{Error, ErrorKind, Pipeline};
use super::build::{Packet, Pool, Tools};
use super::expect::{Atom, Expected};
use super::{Consumer, Graph};

/// Above the number of measured stages of any graph.
const MAX_MEASURED: usize = 20;

/// The items that the consumer received.
#[derive(Debug, Default)]
struct Got {
    /// The items of each epoch.
    epochs: Vec<Vec<Vec<Atom>>>,
    error: Option<Error>,
    /// Whether the pipeline was consumed to its end.
    to_the_end: bool,
    /// Whether the consumer used `next_epoch`.
    by_epoch: bool,
}

/// Runs the graph and checks its output.
///
/// # Panics
/// If the output is not the expected one.
pub(crate) fn check(graph: &Graph) {
    let expected = graph.expected();
    let tools = Tools { alive: Arc::new(()), pool: Arc::new(Pool::new(graph.threads)) };
    let max_atoms = expected.max_atoms.max(8);
    let mut items = 1;
    let mut pipeline = loop {
        match graph.build_with(&tools, max_atoms, items) {
            // The minimum budget, or slightly more.
            Ok(pipeline) if graph.slack == 0 => break pipeline,
            Ok(_) => break graph.build_with(&tools, max_atoms, items + graph.slack).expect("fits"),
            Err(error) => {
                assert!(items < MAX_MEASURED, "does not build: {error:?}");
                items += 1;
            }
        }
    };
    let monitor = pipeline.monitor();
    let got = take(graph, &mut pipeline, &monitor);
    drop(pipeline);
    tools.pool.join();
    assert_eq!(Arc::strong_count(&tools.alive), 1, "an item or a stage is left");
    let memory = monitor.statistics().memory;
    assert_eq!(memory.live_bytes, 0, "memory is still counted");
    compare(graph, &expected, &got, &monitor);
}

fn check_memory(monitor: &Monitor) {
    let memory = monitor.statistics().memory;
    assert!(
        memory.peak_bytes <= memory.limit_bytes + memory.overdrawn_bytes,
        "over the budget: {memory:?}"
    );
}

fn take(graph: &Graph, pipeline: &mut Pipeline<Packet>, monitor: &Monitor) -> Got {
    let mut got = Got::default();
    let most = match graph.consumer {
        Consumer::ByEpoch | Consumer::PartOfEpochs(_) => return by_epoch(graph, pipeline, monitor),
        Consumer::TakesAll => usize::MAX,
        Consumer::DropsAfter(most) | Consumer::StopsAfter(most) => most,
    };
    let mut all = Vec::new();
    while all.len() < most && got.error.is_none() {
        match pipeline.next() {
            Some(Ok(item)) => all.push(item.atoms),
            Some(Err(error)) => got.error = Some(error),
            None => {
                got.to_the_end = true;
                break;
            }
        }
        check_memory(monitor);
    }
    if got.error.is_some() {
        assert!(pipeline.next().is_none(), "an item after the error");
        got.to_the_end = true;
    }
    if matches!(graph.consumer, Consumer::StopsAfter(_)) {
        pipeline.stop();
        assert!(pipeline.next().is_none(), "an item after the end");
    }
    // Items contain their epoch; epochs must be in order.
    for item in all {
        let epoch = item[0].0 as usize;
        assert!(got.epochs.len() <= epoch + 1, "epochs overtake each other");
        got.epochs.resize(epoch + 1, Vec::new());
        got.epochs[epoch].push(item);
    }
    got
}

fn by_epoch(graph: &Graph, pipeline: &mut Pipeline<Packet>, monitor: &Monitor) -> Got {
    let most = match graph.consumer {
        Consumer::PartOfEpochs(most) => most,
        _ => usize::MAX,
    };
    let mut got = Got { to_the_end: true, by_epoch: true, ..Got::default() };
    while let Some(mut epoch) = pipeline.next_epoch() {
        let number = epoch.number() as usize;
        let mut items = Vec::new();
        while items.len() < most {
            match epoch.next() {
                Some(Ok(item)) => items.push(item.atoms),
                Some(Err(error)) => {
                    assert!(got.error.is_none(), "two errors");
                    got.error = Some(error);
                }
                None => break,
            }
            check_memory(monitor);
        }
        assert!(items.iter().all(|item| item[0].0 as usize == number), "of another epoch");
        if got.epochs.len() <= number {
            got.epochs.resize(number + 1, Vec::new());
        }
        got.epochs[number].extend(items);
    }
    got
}

fn sorted<T: Ord + Clone>(items: &[T]) -> Vec<T> {
    let mut items = items.to_vec();
    items.sort_unstable();
    items
}

/// The items without repetitions.
fn firsts<T: Copy + Ord>(items: &[T]) -> Vec<T> {
    let mut seen = std::collections::BTreeSet::new();
    items.iter().copied().filter(|item| seen.insert(*item)).collect()
}

/// Whether `part` is a subsequence of `whole`.
fn is_in<T: PartialEq>(part: &[T], whole: &[T]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|item| whole.any(|other| other == item))
}

fn compare(graph: &Graph, expected: &Expected, got: &Got, monitor: &Monitor) {
    for (number, epoch) in got.epochs.iter().enumerate() {
        let alike = |item: &Vec<Atom>| item.iter().all(|atom| atom.0 as usize == number);
        assert!(epoch.iter().all(|item| !item.is_empty() && alike(item)), "epochs are mixed");
    }
    let may_fail = graph.raises() && expected.dropped > 0;
    if let Some(error) = &got.error {
        assert!(may_fail, "unexpected error: {error:?}");
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Panicked),
            "not the error of an item: {error:?}"
        );
    }
    let whole = got.to_the_end && got.error.is_none();
    if got.to_the_end && may_fail && !expected.cut {
        assert!(got.error.is_some(), "the failure is not returned");
    }
    let none = Vec::new();
    let epochs = expected.epochs.len().max(got.epochs.len());
    let mut broken_off = false;
    for number in 0..epochs {
        let want = expected.epochs.get(number).unwrap_or(&none);
        let have = got.epochs.get(number).unwrap_or(&none);
        let context = || format!("epoch {number}: expected {want:?}, got {have:?}");
        if whole {
            if expected.mixed {
                assert_eq!(sorted(&want.concat()), sorted(&have.concat()), "{}", context());
            } else if expected.ordered {
                assert_eq!(want, have, "{}", context());
            } else {
                assert_eq!(sorted(want), sorted(have), "{}", context());
            }
            continue;
        }
        // Batches of an incomplete run may be incomplete, so atoms are compared.
        let (want, have) = (want.concat(), have.concat());
        if expected.ordered && !expected.mixed {
            assert!(is_in(&have, &want), "{}", context());
            if !expected.parted {
                // Copies of an incomplete batch may repeat atoms, so repetitions are ignored.
                let (want, have) = (firsts(&want), firsts(&have));
                assert!(want.starts_with(&have), "a gap: {}", context());
                assert!(have.is_empty() || !broken_off, "an epoch is missing: {}", context());
                broken_off |= have.len() < want.len();
            }
        } else {
            assert!(is_in(&sorted(&have), &sorted(&want)), "{}", context());
        }
    }
    if whole {
        let statistics = monitor.statistics();
        if !expected.cut {
            assert_eq!(statistics.dropped_total, expected.dropped, "dropped");
        }
        assert_eq!(statistics.left_out, expected.left_out, "left out");
        if got.by_epoch {
            assert_eq!(got.epochs.len(), expected.epochs.len(), "epochs");
        }
    }
}
