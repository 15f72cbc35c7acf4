//! Random graphs of stages on several threads, compared with a single-threaded model.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod api {
    pub(crate) use spdl_core::*;
    pub(crate) use std::thread::{JoinHandle, spawn};
}
mod common;
#[path = "common/graphs/mod.rs"]
mod graphs;

use common::within_seconds;
use graphs::{Choices, Focus, Graph, Limits, check};
use proptest::prelude::*;

/// The time limit for a graph in seconds.
const SECONDS: u64 = 20;

fn check_graph(bytes: &[u8], focus: Focus) {
    let limits = Limits { items: 40, stages: 6, focus };
    let graph = Graph::draw(&mut Choices::new(bytes), limits);
    let text = format!("{graph:?}");
    let run = move || within_seconds(SECONDS, move || check(&graph));
    if let Err(panic) = std::panic::catch_unwind(run) {
        panic!("{}: {text}", message(&*panic));
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_graph_matches_the_model(bytes in bytes()) {
        check_graph(&bytes, Focus::Anything);
    }

    #[test]
    fn chains_match_the_model(bytes in bytes()) {
        check_graph(&bytes, Focus::Chain);
    }

    #[test]
    fn joined_branches_match_the_model(bytes in bytes()) {
        check_graph(&bytes, Focus::Join);
    }

    #[test]
    fn routes_match_the_model(bytes in bytes()) {
        check_graph(&bytes, Focus::Route);
    }

    #[test]
    fn a_small_memory_budget_is_respected_and_stalls_nothing(bytes in bytes()) {
        check_graph(&bytes, Focus::Memory);
    }

    #[test]
    fn failures_affect_no_other_item(bytes in bytes()) {
        check_graph(&bytes, Focus::Failures);
    }

    #[test]
    fn a_consumer_may_stop_at_any_time(bytes in bytes()) {
        check_graph(&bytes, Focus::Consumer);
    }
}
