//! The command line of the program: its subcommands, and the function that runs each.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use super::bench::arguments::BenchArguments;
use super::bench::profile::ProfileArguments;
use super::bench::tune::TuneArguments;
use super::cat::arguments::CatArguments;
use super::doctor::DoctorArguments;
use super::ls::LsArguments;
use super::options::worker_threads;
use super::pack::arguments::PackArguments;
use super::plan::arguments::PlanArguments;
use super::stat::arguments::StatArguments;
#[cfg(feature = "top")]
use super::top::arguments::TopArguments;
use super::verify::arguments::VerifyArguments;
use super::verify_order::VerifyOrderArguments;
use super::{bench, cat, doctor, ls, pack, plan, process_limits, stat, verify, verify_order};
use crate::ui::failure::Failure;

/// Benchmarks data loading, packs data sets into shards, and inspects data sets
#[derive(Debug, Parser)]
#[command(
    name = "spdl",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "\
Examples:
  spdl bench photos/                    measure images per second, and find the bottleneck
  spdl bench photos/ --mode train --epochs 3 --report report.html
                                        load as in training, and write an HTML report
  spdl bench photos/ --json             the results as JSON
  spdl bench clips/ --frames 16 --every 0.5s
                                        measure clips of videos per second
  spdl bench speech/ --mel 80           measure log-mel spectrograms of audio
  spdl plan --step-ms 87 --batch 128 --devices 8 -- photos/
                                        cores, memory, requests/s that a training needs
  spdl profile photos/ --step-time 87ms would a training step of 87 ms wait for data?
  spdl tune photos/ --json              let a program search for the best settings
  spdl verify-order rank*.state         find samples that are missing or processed twice
  spdl pack photos/ shards/ --shuffle 7 write tar shards with indexes, checksums and a manifest
  spdl ls shards/                       list the shards, or the samples
  spdl cat shards/ cat/1.jpg > 1.jpg    extract one field of a sample
  spdl verify shards/                   verify all checksums; decode images, audio and video
  spdl stat shards/ --html shards.html  counts, sizes, durations, histograms, a contact sheet
  spdl top /tmp/train.sock              watch a running pipeline, and what limits it
  spdl doctor                           check the CUDA driver and libraries

`spdl COMMAND --help` explains all options of a command.

Exit codes:
  0  success
  1  the command failed; standard error gives the reason in one line
  2  invalid command line
`spdl bench --help` lists further codes of --baseline.
Ctrl-C terminates the program with SIGINT (exit code 130 in a shell), without results or report."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(Box<BenchArguments>),
    Plan(Box<PlanArguments>),
    Profile(Box<ProfileArguments>),
    Tune(Box<TuneArguments>),
    VerifyOrder(VerifyOrderArguments),
    Pack(PackArguments),
    Ls(LsArguments),
    Cat(CatArguments),
    Verify(VerifyArguments),
    Stat(StatArguments),
    Doctor(DoctorArguments),
    #[cfg(feature = "top")]
    Top(TopArguments),
}

impl Command {
    /// The number of worker threads.
    fn threads(&self) -> usize {
        match self {
            Command::Bench(arguments) => worker_threads(arguments.threads),
            Command::Profile(arguments) => worker_threads(arguments.load.threads),
            Command::Tune(arguments) => worker_threads(arguments.load.threads),
            Command::Pack(arguments) => worker_threads(arguments.threads),
            Command::Verify(arguments) => worker_threads(arguments.threads),
            Command::Stat(arguments) => worker_threads(arguments.threads),
            _ => 1,
        }
    }
}

impl Cli {
    /// Keeps the words of the command line for `spdl bench`.
    pub(crate) fn with_words(mut self, words: Vec<OsString>) -> Self {
        if let Command::Bench(arguments) = &mut self.command {
            arguments.words = words;
        }
        self
    }

    /// Runs the subcommand.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        process_limits::check_address_space(self.command.threads())?;
        match &self.command {
            Command::Bench(arguments) => bench::run::run(arguments),
            Command::Plan(arguments) => plan::run::run(arguments),
            Command::Profile(arguments) => bench::profile::run(arguments),
            Command::Tune(arguments) => bench::tune::run(arguments),
            Command::VerifyOrder(arguments) => verify_order::run(arguments),
            Command::Pack(arguments) => pack::run::run(arguments),
            Command::Ls(arguments) => ls::run(arguments),
            Command::Cat(arguments) => cat::run::run(arguments),
            Command::Verify(arguments) => verify::run::run(arguments),
            Command::Stat(arguments) => stat::run::run(arguments),
            Command::Doctor(arguments) => doctor::run(arguments),
            #[cfg(feature = "top")]
            Command::Top(arguments) => super::top::run::run(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_defined() {
        Cli::command().debug_assert();
    }
}
