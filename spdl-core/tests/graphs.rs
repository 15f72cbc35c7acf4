//! Random graphs of stages on real threads, compared with what one thread would make of them.
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

/// How long a graph may take.
const SECONDS: u64 = 20;

fn holds(bytes: &[u8], focus: Focus) {
    let limits = Limits { items: 40, stages: 6, focus };
    let graph = Graph::draw(&mut Choices::new(bytes), limits);
    let told = format!("{graph:?}");
    let run = move || within_seconds(SECONDS, move || check(&graph));
    if let Err(panic) = std::panic::catch_unwind(run) {
        panic!("{}: {told}", words(&*panic));
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
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
    fn any_graph_delivers_what_it_promises(bytes in bytes()) {
        holds(&bytes, Focus::Anything);
    }

    #[test]
    fn chains_deliver_what_they_promise(bytes in bytes()) {
        holds(&bytes, Focus::Chain);
    }

    #[test]
    fn joined_branches_deliver_what_they_promise(bytes in bytes()) {
        holds(&bytes, Focus::Join);
    }

    #[test]
    fn routes_deliver_what_they_promise(bytes in bytes()) {
        holds(&bytes, Focus::Route);
    }

    #[test]
    fn a_small_memory_budget_is_kept_and_stalls_nothing(bytes in bytes()) {
        holds(&bytes, Focus::Memory);
    }

    #[test]
    fn failures_lose_nothing_else(bytes in bytes()) {
        holds(&bytes, Focus::Failures);
    }

    #[test]
    fn a_consumer_may_leave_at_any_moment(bytes in bytes()) {
        holds(&bytes, Focus::Consumer);
    }
}
