//! `cargo xtask bench overhead | scaling | stragglers | saving`: measures the scheduler alone with
//! examples of `spdl-core`.

use anyhow::Result;
use clap::Args;

use crate::tools::{Output, Workspace, cargo};

/// Measure the overhead of the scheduler in ns per item and per stage, compared with plain
/// channels.
///
/// Pipelines of 1 and 3 stages forward small integers unchanged. They have concurrency 2 and 2
/// worker threads, and are measured in completion order and in input order; pipelines of 3 stages
/// are also measured with other queue sizes than the default. Runs of the cases are interleaved;
/// medians and minima are shown. The command also measures heap allocations per item, the cost of
/// the tuner and of a monitor socket that is read, the time to the first item, the time to stop, and
/// the CPU use of an idle pipeline.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench overhead
  cargo xtask bench overhead --json     print [{stages, concurrency, order, ns_per_item_stage}]")]
pub(crate) struct Overhead {
    /// Number of items in each run; a tenth for queues of fewer than 64 items [default: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    items: Option<u64>,
    /// Number of runs of each case [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Measure only pipelines with default queues, and print the results as a JSON array
    #[arg(long)]
    json: bool,
    /// Print all results as a JSON object instead of tables
    #[arg(long, conflicts_with = "json")]
    json_all: bool,
}

/// Measure how throughput scales if stages sleep, with 2 to 256 items in flight and 1 to 64
/// workers.
///
/// Efficiency is the ideal time divided by the measured time. A second table compares shorter
/// sleeps with the same sleeps in plain threads.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench scaling
  cargo xtask bench scaling --sleep-ms 20")]
pub(crate) struct Scaling {
    /// Time that a stage sleeps for each item in the first table, in milliseconds [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    sleep_ms: Option<u64>,
    /// Print a JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Measure the effect of stragglers: 1 % of the items take 50 times as long as the others.
///
/// Shows how long the consumer waits for a batch (p50 and p99), in completion order and in input
/// order. The consumer either works between two batches, or requests the next batch immediately.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench stragglers
  cargo xtask bench stragglers --batches 1000")]
pub(crate) struct Stragglers {
    /// Number of batches in each run [default: 250]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Print a JSON array instead of tables
    #[arg(long)]
    json: bool,
}

/// Measure how saving checkpoint states affects a pipeline: time of the call, size of the state,
/// and throughput.
///
/// A pipeline that takes 100 µs per sample saves its state after each batch of 32 samples, in
/// completion order and in input order. The state is saved in memory, to a file in the background,
/// or to a file while the consumer waits. Each run is compared with an interleaved run that saves
/// no states.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench saving
  cargo xtask bench saving --batches 2000")]
pub(crate) struct Saving {
    /// Number of batches in each run [default: 600]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Number of pairs of runs for each case [default: 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Print a JSON array instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn overhead(workspace: &Workspace, arguments: &Overhead) -> Result<()> {
    let numbers = [("--items", arguments.items), ("--rounds", arguments.rounds)];
    let switches = [("--json", arguments.json), ("--json-all", arguments.json_all)];
    run(workspace, "overhead", &words(&numbers, &switches))
}

pub(crate) fn scaling(workspace: &Workspace, arguments: &Scaling) -> Result<()> {
    let numbers = [("--sleep-ms", arguments.sleep_ms)];
    run(workspace, "scaling", &words(&numbers, &[("--json", arguments.json)]))
}

pub(crate) fn stragglers(workspace: &Workspace, arguments: &Stragglers) -> Result<()> {
    let numbers = [("--batches", arguments.batches)];
    run(workspace, "stragglers", &words(&numbers, &[("--json", arguments.json)]))
}

pub(crate) fn saving(workspace: &Workspace, arguments: &Saving) -> Result<()> {
    let numbers = [("--batches", arguments.batches), ("--rounds", arguments.rounds)];
    run(workspace, "saving", &words(&numbers, &[("--json", arguments.json)]))
}

/// The options that the user set, as command-line arguments.
fn words(numbers: &[(&str, Option<u64>)], switches: &[(&str, bool)]) -> Vec<String> {
    let numbers = numbers
        .iter()
        .filter_map(|(name, number)| number.map(|number| [(*name).to_owned(), number.to_string()]));
    let switches = switches.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned());
    numbers.flatten().chain(switches).collect()
}

/// Builds and runs an example; only the example's output goes to standard output.
fn run(workspace: &Workspace, example: &str, words: &[String]) -> Result<()> {
    Output::Terminal.run(
        cargo()
            .args([
                "run",
                "--release",
                "-p",
                "spdl-core",
                "--features",
                "serde",
                "--example",
                example,
            ])
            .arg("--")
            .args(words)
            .current_dir(&workspace.root),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_options_are_passed_on() {
        let numbers = [("--items", Some(7)), ("--rounds", None)];
        let switches = [("--json", true), ("--json-all", false)];
        assert_eq!(words(&numbers, &switches), ["--items", "7", "--json"]);
    }
}
