//! Whole pipelines under random schedules, by shuttle.
//!
//! `RUSTFLAGS="--cfg spdl_shuttle" cargo test -p spdl-core --release --lib shuttle_`
//!
//! `SPDL_SCHEDULES` is how many schedules to try in all these tests together. What fails tells the
//! seed of its graph and the schedule; `SPDL_GRAPH=SEED SPDL_SCHEDULE=SCHEDULE` with the name of the
//! test tries just those again.

// promise of this file: R18

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

mod api {
    pub(crate) use crate::*;
    pub(crate) use shuttle::thread::{JoinHandle, spawn};
}
#[path = "../../tests/common/graphs/mod.rs"]
mod graphs;

use graphs::{Choices, Focus, Graph, Limits, check};

/// How many schedules all tests try together, unless `SPDL_SCHEDULES` says otherwise.
const SCHEDULES: usize = 10_000;
/// How many tests there are.
const TESTS: usize = 10;
/// How many schedules are tried of a graph.
const SCHEDULES_OF_A_GRAPH: usize = 10;
/// How many changes of priority a schedule has where these are few.
const DEPTH: usize = 3;

/// How schedules are drawn.
#[derive(Clone, Copy, Debug)]
enum Way {
    Random,
    /// Few changes of priority, at random places (Burckhardt and others 2010).
    Priorities,
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.failure_persistence = FailurePersistence::Print;
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut rng = crate::SampleRng::new(seed, crate::SampleId::default(), "graph");
    (0..120).map(|_| (rng.unit() * 256.0) as u8).collect()
}

fn try_graph(seed: u64, limits: Limits, scheduler: impl Scheduler + 'static) -> usize {
    let graph = Graph::draw(&mut Choices::new(&bytes(seed)), limits);
    let told = format!("SPDL_GRAPH={seed}: {graph:?}");
    let run = || Runner::new(scheduler, config()).run(move || check(&graph));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(schedules) => schedules,
        Err(panic) => {
            eprintln!("{told}");
            resume_unwind(panic)
        }
    }
}

/// This test's share of the schedules.
fn share() -> usize {
    let all = variable("SPDL_SCHEDULES").map_or(SCHEDULES, |n| n.parse().expect("a number"));
    all.div_ceil(TESTS)
}

/// Tries this test's share of the schedules, each graph with a few.
fn try_graphs(first_seed: u64, focus: Focus, way: Way) {
    let limits = Limits { items: 6, stages: 6, focus };
    if let (Some(seed), Some(schedule)) = (variable("SPDL_GRAPH"), variable("SPDL_SCHEDULE")) {
        let scheduler = ReplayScheduler::new_from_encoded(schedule.trim());
        try_graph(seed.parse().expect("a number"), limits, scheduler);
        return;
    }
    let mut left = share();
    let only = variable("SPDL_GRAPH").map(|seed| seed.parse::<u64>().expect("a number"));
    let mut seed = only.unwrap_or(first_seed * 1_000_000);
    while left > 0 {
        let count = if only.is_some() { left } else { left.min(SCHEDULES_OF_A_GRAPH) };
        let tried = match way {
            Way::Random => try_graph(seed, limits, RandomScheduler::new_from_seed(seed, count)),
            Way::Priorities => {
                try_graph(seed, limits, PctScheduler::new_from_seed(seed, DEPTH, count))
            }
        };
        assert_eq!(tried, count, "schedules that were tried");
        left -= count;
        seed += 1;
    }
}

#[test]
fn shuttle_any_graph_random() {
    try_graphs(1, Focus::Anything, Way::Random);
}

#[test]
fn shuttle_any_graph_priorities() {
    try_graphs(2, Focus::Anything, Way::Priorities);
}

#[test]
fn shuttle_chains_random() {
    try_graphs(3, Focus::Chain, Way::Random);
}

#[test]
fn shuttle_joins_priorities() {
    try_graphs(4, Focus::Join, Way::Priorities);
}

#[test]
fn shuttle_routes_random() {
    try_graphs(5, Focus::Route, Way::Random);
}

#[test]
fn shuttle_a_small_memory_budget_priorities() {
    try_graphs(6, Focus::Memory, Way::Priorities);
}

#[test]
fn shuttle_failures_random() {
    try_graphs(7, Focus::Failures, Way::Random);
}

#[test]
fn shuttle_a_consumer_that_leaves_random() {
    try_graphs(8, Focus::Consumer, Way::Random);
}

/// Two generators whose items are wanted in turn wait for each other inside their stages, with
/// fewer and fewer workers, some of them lent.
fn generators_in_turn(lent: bool) {
    let pool = Arc::new(graphs::build::Pool::new(1));
    let generator = |name: &str| {
        let numbers = crate::DatasetSource::new(vec![0, 1]);
        let many = crate::StageOptions::new(name).queue(1);
        crate::PipelineBuilder::new(numbers).flat_map(many, |n| (0..4).map(move |k| Ok(n + k)))
    };
    let both = [generator("left"), generator("right")];
    let builder = crate::PipelineBuilder::merge(both, crate::stage::RoundRobin::default());
    let builder = if lent { builder.executor(pool.clone()) } else { builder.threads(2) };
    let mut pipeline = builder.build().expect("is sound");
    assert_eq!(pipeline.by_ref().take(3).filter(Result::is_ok).count(), 3);
    pipeline.control().set_threads(1).expect("may be set");
    assert_eq!(pipeline.by_ref().filter(Result::is_ok).count(), 13);
    drop(pipeline);
    pool.join();
}

/// An epoch of one path ends while the other one is far ahead: whoever waits on one of them must
/// not have begun something on the other.
fn epochs_of_two_paths() {
    type Items = crate::PipelineBuilder<usize>;
    let many = |name: &str| crate::StageOptions::new(name).queue(1);
    let (left, right) = (many("left"), many("right"));
    let paths = [
        crate::pipeline::path(|path: Items| {
            path.flat_map(left, |n| [Ok(n), Ok(n)]).map("same", Ok)
        }),
        crate::pipeline::path(|path: Items| path.flat_map(right, |n| [Ok(n), Ok(n)])),
    ];
    let pipeline = crate::PipelineBuilder::new(crate::DatasetSource::new(vec![0, 1, 2, 3]))
        .route("way", |n| Ok(n % 2), paths)
        .epochs(0..2)
        .threads(2)
        .deterministic()
        .build()
        .expect("is sound");
    let got: Vec<usize> = pipeline.map(|item| item.expect("nothing fails")).collect();
    assert_eq!(got, [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn shuttle_generators_that_wait_for_each_other_random() {
    for lent in [false, true] {
        let count = share().div_ceil(4);
        let random = RandomScheduler::new_from_seed(9, count);
        Runner::new(random, config()).run(move || generators_in_turn(lent));
        let priorities = PctScheduler::new_from_seed(9, DEPTH, count);
        Runner::new(priorities, config()).run(move || generators_in_turn(lent));
    }
}

#[test]
fn shuttle_epochs_of_two_paths_random() {
    let count = share().div_ceil(2);
    let random = RandomScheduler::new_from_seed(10, count);
    Runner::new(random, config()).run(epochs_of_two_paths);
    let priorities = PctScheduler::new_from_seed(10, DEPTH, count);
    Runner::new(priorities, config()).run(epochs_of_two_paths);
}
