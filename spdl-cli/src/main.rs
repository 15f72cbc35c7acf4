//! `spdl`: how fast does a folder of images become training batches, and what limits it? And what does a
//! data set hold, packed or not?
//!
//! ```text
//! arguments ──► bench ──► output (text or JSON) ──► standard output
//!               │   └───► report (HTML) ──────────► a file
//!               ├── source     what lies at the addresses, and a cache in front of it
//!               ├── progress   on standard error, for people
//!               ├── verdict    what limits
//!               ├── saving     how far it has come, in a file
//!               └── watch      snapshots of the statistics, for the report
//!           ──► pack ───► shards in a folder
//!           ──► data ───► ls, cat, verify, stat: what shards, archives and folders hold
//!           ──► doctor ─► what of CUDA can be used here
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod changes;
mod data;
mod delivery;
mod doctor;
mod failure;
mod format;
mod machine;
mod opened;
mod output;
mod pack;
mod progress;
mod report;
mod sample_files;
mod saving;
mod source;
mod verdict;
mod verify_order;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Cli, Command};

fn main() -> ExitCode {
    keep_stages_quiet();
    let result = match Cli::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::VerifyOrder(arguments) => verify_order::run(&arguments),
        Command::Pack(arguments) => pack::run(&arguments),
        Command::Ls(arguments) => data::ls::run(&arguments),
        Command::Cat(arguments) => data::cat::run(&arguments),
        Command::Verify(arguments) => data::verify::run(&arguments),
        Command::Stat(arguments) => data::stat::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

/// A panic in a stage becomes an error of the sample, and is told as such. Rust's own message about
/// it would only come between; whoever sets `RUST_BACKTRACE` wants to see it.
fn keep_stages_quiet() {
    if std::env::var_os("RUST_BACKTRACE").is_some() {
        return;
    }
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let in_a_stage =
            std::thread::current().name().is_some_and(|name| name.starts_with("spdl-"));
        if !in_a_stage {
            default(panic);
        }
    }));
}
