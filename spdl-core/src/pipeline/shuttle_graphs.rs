//! Random pipelines under random schedules, by shuttle.
//!
//! `RUSTFLAGS="--cfg spdl_shuttle" cargo test -p spdl-core --release --lib shuttle_`
//!
//! `SPDL_SCHEDULES` is the total number of schedules that these tests try. A failure prints the
//! seed of its graph and the schedule. To replay it, run the test with `SPDL_GRAPH=SEED
//! SPDL_SCHEDULE=SCHEDULE`.

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

/// Default of `SPDL_SCHEDULES`.
const SCHEDULES: usize = 10_000;
/// Number of tests.
const TESTS: usize = 11;
/// Number of schedules per graph.
const SCHEDULES_OF_A_GRAPH: usize = 10;
/// Number of priority changes of a schedule of [`Strategy::Priorities`].
const DEPTH: usize = 3;

/// How schedules are drawn.
#[derive(Clone, Copy, Debug)]
enum Strategy {
    Random,
    /// Few priority changes at random points: PCT (Burckhardt and others 2010).
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
    let graph_text = format!("SPDL_GRAPH={seed}: {graph:?}");
    let run = || Runner::new(scheduler, config()).run(move || check(&graph));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(schedules) => schedules,
        Err(panic) => {
            eprintln!("{graph_text}");
            resume_unwind(panic)
        }
    }
}

/// Returns this test's share of the schedules.
fn share() -> usize {
    let all = variable("SPDL_SCHEDULES").map_or(SCHEDULES, |n| n.parse().expect("a number"));
    all.div_ceil(TESTS)
}

/// Tries this test's share of the schedules on random graphs.
fn try_graphs(first_seed: u64, focus: Focus, strategy: Strategy) {
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
        let tried = match strategy {
            Strategy::Random => {
                try_graph(seed, limits, RandomScheduler::new_from_seed(seed, count))
            }
            Strategy::Priorities => {
                try_graph(seed, limits, PctScheduler::new_from_seed(seed, DEPTH, count))
            }
        };
        assert_eq!(tried, count, "not all schedules were tried");
        left -= count;
        seed += 1;
    }
}

#[test]
fn shuttle_any_graph_random() {
    try_graphs(1, Focus::Anything, Strategy::Random);
}

#[test]
fn shuttle_any_graph_priorities() {
    try_graphs(2, Focus::Anything, Strategy::Priorities);
}

#[test]
fn shuttle_chains_random() {
    try_graphs(3, Focus::Chain, Strategy::Random);
}

#[test]
fn shuttle_joins_priorities() {
    try_graphs(4, Focus::Join, Strategy::Priorities);
}

#[test]
fn shuttle_routes_random() {
    try_graphs(5, Focus::Route, Strategy::Random);
}

#[test]
fn shuttle_a_small_memory_budget_priorities() {
    try_graphs(6, Focus::Memory, Strategy::Priorities);
}

#[test]
fn shuttle_failures_random() {
    try_graphs(7, Focus::Failures, Strategy::Random);
}

#[test]
fn shuttle_a_consumer_that_stops_early_random() {
    try_graphs(8, Focus::Consumer, Strategy::Random);
}

/// Two generators, whose items are merged in turn, wait for each other inside their stages. The
/// number of workers decreases, and some belong to an executor.
fn generators_in_turn(on_executor: bool) {
    let pool = Arc::new(graphs::build::Pool::new(1));
    let generator = |name: &str| {
        let numbers = crate::DatasetSource::new(vec![0, 1]);
        let many = crate::StageOptions::new(name).queue(1);
        crate::PipelineBuilder::new(numbers).flat_map(many, |n| (0..4).map(move |k| Ok(n + k)))
    };
    let both = [generator("left"), generator("right")];
    let builder = crate::PipelineBuilder::merge(both, crate::stage::RoundRobin::default());
    let builder = if on_executor { builder.executor(pool.clone()) } else { builder.threads(2) };
    let mut pipeline = builder.build().expect("the pipeline is valid");
    assert_eq!(pipeline.by_ref().take(3).filter(Result::is_ok).count(), 3);
    pipeline.control().set_threads(1).expect("the number of threads is valid");
    assert_eq!(pipeline.by_ref().filter(Result::is_ok).count(), 13);
    drop(pipeline);
    pool.join();
}

/// As many items as workers meet in each stage. If a worker sleeps although an item waits for it, the
/// other workers wait for it without end.
fn workers_meet_in_every_stage(workers: usize, stages: usize) {
    let mut builder =
        crate::PipelineBuilder::new(crate::DatasetSource::new((0..workers).collect::<Vec<_>>()))
            .threads(workers);
    for stage in 0..stages {
        let all_there = shuttle::sync::Barrier::new(workers);
        builder = builder.map(&format!("stage {stage}"), move |item| {
            all_there.wait();
            Ok(item)
        });
    }
    let pipeline = builder.build().expect("the pipeline is valid");
    assert_eq!(pipeline.filter(Result::is_ok).count(), workers);
}

/// An epoch of one path ends while the other path is ahead. A worker that waits on one path must
/// not have started work on the other.
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
        .expect("the pipeline is valid");
    let got: Vec<usize> = pipeline.map(|item| item.expect("no item fails")).collect();
    assert_eq!(got, [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn shuttle_no_worker_sleeps_while_an_item_waits_random() {
    for (workers, stages) in [(2, 1), (2, 3), (3, 1), (3, 2)] {
        let count = share().div_ceil(8);
        let random = RandomScheduler::new_from_seed(11, count);
        Runner::new(random, config()).run(move || workers_meet_in_every_stage(workers, stages));
        let priorities = PctScheduler::new_from_seed(11, DEPTH, count);
        Runner::new(priorities, config()).run(move || workers_meet_in_every_stage(workers, stages));
    }
}

#[test]
fn shuttle_generators_that_wait_for_each_other_random() {
    for on_executor in [false, true] {
        let count = share().div_ceil(4);
        let random = RandomScheduler::new_from_seed(9, count);
        Runner::new(random, config()).run(move || generators_in_turn(on_executor));
        let priorities = PctScheduler::new_from_seed(9, DEPTH, count);
        Runner::new(priorities, config()).run(move || generators_in_turn(on_executor));
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
