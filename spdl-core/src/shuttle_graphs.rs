//! Whole pipelines under random schedules, by shuttle.
//!
//! `RUSTFLAGS="--cfg spdl_shuttle" cargo test -p spdl-core --release --lib shuttle_`
//!
//! `SPDL_SCHEDULES` is how many schedules to try in all these tests together. What fails tells the
//! seed of its graph and the schedule; `SPDL_GRAPH=SEED SPDL_SCHEDULE=SCHEDULE` with the name of the
//! test tries just those again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

mod api {
    pub(crate) use crate::*;
    pub(crate) use shuttle::thread::{JoinHandle, spawn};
}
#[path = "../tests/common/graphs/mod.rs"]
mod graphs;

use graphs::{Choices, Focus, Graph, Limits, check};

/// How many schedules all tests try together, unless `SPDL_SCHEDULES` says otherwise.
const SCHEDULES: usize = 10_000;
/// How many tests there are.
const TESTS: usize = 8;
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

/// Tries this test's share of the schedules, each graph with a few.
fn try_graphs(first_seed: u64, focus: Focus, way: Way) {
    let limits = Limits { items: 6, stages: 6, focus };
    if let (Some(seed), Some(schedule)) = (variable("SPDL_GRAPH"), variable("SPDL_SCHEDULE")) {
        let scheduler = ReplayScheduler::new_from_encoded(schedule.trim());
        try_graph(seed.parse().expect("a number"), limits, scheduler);
        return;
    }
    let all = variable("SPDL_SCHEDULES").map_or(SCHEDULES, |n| n.parse().expect("a number"));
    let mut left = all.div_ceil(TESTS);
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
