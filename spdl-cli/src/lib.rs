//! The `spdl` program: benchmarks data loading, packs data sets into shards, and inspects them.
//!
//! [`run`] is the program as a function, for `main.rs` and for the command of the Python package.
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

use std::ffi::OsString;

use clap::Parser;

use crate::commands::command_line::Cli;
use crate::commands::process_limits;
pub use crate::commands::process_limits::{allocator_settings, restart_with_allocator_settings};

/// Runs the program with the arguments of a command line, whose first one is the name of the program.
/// Returns the exit code: 0, 1 for a failure, which one line on standard error explains, 2 for an invalid
/// command line.
///
/// Installs a handler of the signal SIGXFSZ and a panic hook.
///
/// ```
/// assert_eq!(spdl_cli::run(["spdl", "stat", "no/such/folder"]), 1);
/// assert_eq!(spdl_cli::run(["spdl", "--no-such-option"]), 2);
/// ```
pub fn run<T: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = T>) -> u8 {
    process_limits::prepare();
    silence_stage_panics();
    let words: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let outcome = match Cli::try_parse_from(&words) {
        Ok(command) => command.with_words(words).run(),
        Err(usage) => {
            // Fails only if standard output or standard error is closed.
            drop(usage.print());
            return u8::try_from(usage.exit_code()).unwrap_or(u8::MAX);
        }
    };
    match outcome {
        Ok(()) => 0,
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
