//! Tests of whole pipelines: outputs, order, failures and resuming.
//!
//! One program, because linking one program per file takes far longer than running it. Tests that
//! count threads or memory, fork, or restart themselves are separate programs next to this folder.

#[path = "../common/mod.rs"]
mod common;

mod construction;
mod cutting;
mod failure_policies;
mod failures;
mod fingerprint;
mod grouping;
mod hooks;
mod joined;
mod mixing;
mod order;
mod parts;
mod profile;
mod replaying;
mod resume_laws;
mod resuming;
mod retried_randomness;
mod stalls;
mod starvation;
mod states;
mod stragglers;
mod tuning;
