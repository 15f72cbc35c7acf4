//! The `spdl` program from outside: run on small folders, as a user would.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod advice;
mod any_data;
mod bench;
mod common;
mod data;
mod data_sets;
mod doctor;
mod lists_and_classes;
mod pack;
mod readme;
mod report;
mod rescue;
mod resume;
mod saving;
mod verify_order;
