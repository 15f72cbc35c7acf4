//! Whole pipelines: what they deliver, in which order, what they survive, and how they go on.
//!
//! One program, as linking one for each file takes far longer than running them. Tests that count
//! threads or memory, fork, or start themselves again have programs of their own beside this folder.

#[path = "../common/mod.rs"]
mod common;

mod construction;
mod cutting;
mod failure_policies;
mod failures;
mod fingerprint;
mod grouping;
mod hooks;
mod mixing;
mod order;
mod parts;
mod profile;
mod replaying;
mod resume_laws;
mod resuming;
mod retried_randomness;
mod states;
mod stragglers;
