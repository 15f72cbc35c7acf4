//! The command line of the program: its subcommands, and the function that runs each.

use clap::{Parser, Subcommand};

use super::bench::arguments::BenchArguments;
use super::cat::arguments::CatArguments;
use super::doctor::DoctorArguments;
use super::ls::LsArguments;
use super::pack::arguments::PackArguments;
use super::stat::arguments::StatArguments;
use super::verify::arguments::VerifyArguments;
use super::verify_order::VerifyOrderArguments;
use super::{bench, cat, doctor, ls, pack, stat, verify, verify_order};
use crate::ui::failure::Failure;

/// Turns images into training batches and measures how fast that goes, and packs data sets into shards
#[derive(Debug, Parser)]
#[command(
    name = "spdl",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "\
Examples:
  spdl bench photos/                    how fast is this folder, and what limits?
  spdl bench photos/ --mode train --epochs 3 --report report.html
                                        the same for training, with charts in a file
  spdl bench photos/ --json             the figures for a program
  spdl verify-order rank*.state         is anything missing or done twice?
  spdl pack photos/ shards/ --shuffle 7 tar shards with index, checksums and manifest
  spdl ls shards/                       which shards, or samples, are there?
  spdl cat shards/ cat/1.jpg > 1.jpg    a field of a sample
  spdl verify shards/                   is every byte sound, and every image whole?
  spdl stat shards/ --html shards.html  counts, sizes, histograms, a contact sheet
  spdl doctor                           what of CUDA can be used here?

`spdl COMMAND --help` explains every option.

Exit codes:
  0  done
  1  the run failed; standard error says why, in one line
  2  the command line makes no sense
Ctrl-C ends the program at once, by its signal (130 in a shell): no figures, no report."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(BenchArguments),
    VerifyOrder(VerifyOrderArguments),
    Pack(PackArguments),
    Ls(LsArguments),
    Cat(CatArguments),
    Verify(VerifyArguments),
    Stat(StatArguments),
    Doctor(DoctorArguments),
}

impl Cli {
    /// Runs the subcommand.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.command {
            Command::Bench(arguments) => bench::run::run(arguments),
            Command::VerifyOrder(arguments) => verify_order::run(arguments),
            Command::Pack(arguments) => pack::run::run(arguments),
            Command::Ls(arguments) => ls::run(arguments),
            Command::Cat(arguments) => cat::run::run(arguments),
            Command::Verify(arguments) => verify::run::run(arguments),
            Command::Stat(arguments) => stat::run::run(arguments),
            Command::Doctor(arguments) => doctor::run(arguments),
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
