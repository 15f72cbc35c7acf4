//! Tests of the `spdl` program on small folders.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

mod advice;
mod any_data;
mod baseline;
mod bench;
mod common;
mod data;
mod data_sets;
mod doctor;
mod limits;
mod lists_and_classes;
mod media;
mod pack;
mod plan;
mod readme;
mod report;
mod rescue;
mod resume;
mod saving;
mod spec;
#[cfg(feature = "top")]
mod top;
mod tuning;
mod verify_order;
