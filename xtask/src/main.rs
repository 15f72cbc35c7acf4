//! Development tasks of SPDL in Rust: `cargo xtask demo`, `test`, `soak`, `wheel`, `bench`, `corpus`,
//! `ffmpeg`, `fuzz`, `features`, `tidy`, `sbom`, `kernels`, `gpu`.
//!
//! Each task installs the tools and Python packages that it needs below `target/`, and prints their
//! names. If it runs as root, it also installs Debian packages. This crate depends on no other
//! crate of the workspace, so that it compiles even if another crate does not.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "prints results")]

mod acceptance;
mod bench;
mod bundle;
mod corpus;
mod dataset;
mod demo;
mod engine_bench;
mod feature_checks;
mod ffmpeg;
mod fuzz;
mod gpu;
mod kernels;
mod sbom;
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
/// Each task installs the tools and Python packages that it needs below target/, and prints their
/// names. If it runs as root, it also installs Debian packages. A new machine needs rustup, gcc and
/// Python 3.10 or newer.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true,
    after_help = "Examples:
  cargo xtask demo                  load 2,000 JPEGs as training batches, with a report
  cargo xtask test                  run all checks that must pass before a change is merged
  cargo xtask test --only clippy    run one step
  cargo xtask soak                  run longer tests, fuzzing, network faults
  cargo xtask wheel                 build the Python wheel, in target/wheels
  cargo xtask ffmpeg                build the FFmpeg library of the wheel
  cargo xtask bench images          compare our speed with usual Python loaders
  cargo xtask corpus DIR            decode all files of a folder in child processes
  cargo xtask fuzz                  run each fuzz target for a minute
  cargo xtask features              list which features and promises have tests
  cargo xtask tidy                  check layers, words, names and other rules
  cargo xtask sbom                  write a software bill of materials
  cargo xtask kernels               compile the CUDA kernels
  cargo xtask gpu                   run tests and measurements that need a CUDA device
  cargo xtask bench overhead        measure the scheduler's time per item and stage
  cargo xtask bench plan            compare the plans of `spdl plan` with measured runs
  cargo xtask bench tar             compare reading of tar shards with webdataset and upstream

Each task has its own help: cargo xtask TASK --help"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Demo(demo::DemoArguments),
    Test(test::TestArguments),
    Soak(soak::SoakArguments),
    Wheel(wheel::WheelArguments),
    Ffmpeg(ffmpeg::FfmpegArguments),
    #[command(subcommand)]
    Bench(bench::Benchmark),
    Corpus(corpus::CorpusArguments),
    Fuzz(fuzz::FuzzArguments),
    Gpu(gpu::GpuArguments),
    Kernels(kernels::KernelsArguments),
    Features(acceptance::FeaturesArguments),
    Tidy(tidy::TidyArguments),
    Sbom(sbom::SbomArguments),
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
        Task::Ffmpeg(arguments) => ffmpeg::run(&workspace, &arguments)?,
        Task::Bench(benchmark) => bench::run(&workspace, &benchmark)?,
        Task::Corpus(arguments) => return corpus::run(&workspace, &arguments),
        Task::Features(arguments) => return acceptance::run(&workspace, &arguments),
        Task::Sbom(arguments) => sbom::run(&workspace, &arguments)?,
        Task::Tidy(arguments) => return tidy::run(&workspace, &arguments),
        Task::Fuzz(arguments) => return fuzz::run(&workspace, &arguments),
        Task::Gpu(arguments) => return gpu::run(&workspace, &arguments),
        Task::Kernels(arguments) => kernels::run(&workspace, &arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
