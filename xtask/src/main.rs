//! Development tasks of SPDL in Rust: `cargo xtask demo`, `test`, `soak`, `wheel`, `bench`, `corpus`,
//! `fuzz`, `features`, `kernels`, `gpu`.
//!
//! Each task does all its own set-up below `target/` and says what it installs. The tasks depend on
//! no crate of the workspace, so that they build, and can report, when one of those does not.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this program's results are what it prints")]

mod acceptance;
mod bench;
mod corpus;
mod dataset;
mod demo;
mod engine_bench;
mod feature_checks;
mod fuzz;
mod gpu;
mod kernels;
mod soak;
mod steps;
mod test;
mod tidy;
mod tools;
mod venv;
mod wheel;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::tools::Workspace;

/// Development tasks of SPDL in Rust.
///
/// Every task does its own set-up below target/ and says what it installs. A fresh machine needs
/// rustup, gcc and Python 3.10 or newer.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true,
    after_help = "Examples:
  cargo xtask demo                  see 2,000 JPEGs become training batches, with a report
  cargo xtask test                  everything that must hold before a change is merged
  cargo xtask test --only clippy    one step of it
  cargo xtask soak                  the long versions of tests, and faults for half an hour
  cargo xtask wheel                 the Python wheel, in target/wheels
  cargo xtask bench images          speed against the usual Python loaders
  cargo xtask corpus DIR            every file of a folder through every decoder, in child processes
  cargo xtask fuzz                  a minute of every fuzz target
  cargo xtask features              which of upstream's features work here, by their tests
  cargo xtask kernels               the CUDA kernels, compiled for devices
  cargo xtask gpu                   tests and measurements that need a CUDA device
  cargo xtask bench overhead        what the scheduler costs per item and stage
  cargo xtask bench tar             tar shards against webdataset and upstream

Each task has its own help: cargo xtask TASK --help"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Demo(demo::Arguments),
    Test(test::Arguments),
    Soak(soak::Arguments),
    Wheel(wheel::Arguments),
    #[command(subcommand)]
    Bench(bench::Benchmark),
    Corpus(corpus::Arguments),
    Fuzz(fuzz::Arguments),
    Gpu(gpu::Arguments),
    Kernels(kernels::Arguments),
    Features(acceptance::Arguments),
    Tidy(tidy::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match task {
        Task::Demo(arguments) => demo::run(&workspace, &arguments)?,
        Task::Test(arguments) => return test::run(&workspace, &arguments),
        Task::Soak(arguments) => return soak::run(&workspace, &arguments),
        Task::Wheel(arguments) => wheel::run(&workspace, &arguments)?,
        Task::Bench(benchmark) => bench::run(&workspace, &benchmark)?,
        Task::Corpus(arguments) => return corpus::run(&workspace, &arguments),
        Task::Features(arguments) => return acceptance::run(&workspace, &arguments),
        Task::Tidy(arguments) => return tidy::run(&workspace, &arguments),
        Task::Fuzz(arguments) => return fuzz::run(&workspace, &arguments),
        Task::Gpu(arguments) => return gpu::run(&workspace, &arguments),
        Task::Kernels(arguments) => kernels::run(&workspace, &arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
