//! The `spdl` program: benchmarks data loading, packs data sets into shards, and inspects them.
//!
//! | module | content | may import |
//! |---|---|---|
//! | `ui` | formatted values, tables, HTML pages, messages, the error line | nothing |
//! | `datasets` | opens the data sets that the command line names | `ui` |
//! | `inspection` | archives, samples and members, for `ls`, `cat`, `verify`, `stat` | `ui`, `datasets` |
//! | `commands` | one file or folder for each subcommand | all of these |
//!
//! Terms are defined in the
//! [glossary](https://github.com/spdl-rs/spdl/blob/main/docs/glossary.md).
#![forbid(unsafe_code)]

mod commands;
mod datasets;
mod inspection;
mod ui;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::command_line::Cli;
use crate::commands::process_limits;

fn main() -> ExitCode {
    process_limits::prepare();
    silence_stage_panics();
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Suppresses Rust's panic message for panics in stages, unless `RUST_BACKTRACE` is set.
///
/// The pipeline catches these panics and reports them as errors of the samples.
fn silence_stage_panics() {
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
