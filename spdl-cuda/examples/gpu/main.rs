//! Tests and measurements on a device, for machines without cargo or network.
//!
//! `cargo xtask gpu` builds this program, packs it with its data, and runs it. Each measurement is
//! a separate process, which prints its results as JSON lines:
//!
//! ```text
//!  process of a measurement ──JSON lines──► suite ──validated──► results.jsonl ──► table
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod comparison;
#[path = "../../tests/common/consumer.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod consumer;
mod copies;
mod exits;
mod faults;
mod images;
mod jpeg;
mod kernels;
mod leaks;
mod lines;
mod machine;
mod order;
#[path = "../../tests/common/raw.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod raw;
mod samples;
mod suite;
mod table;
mod tests_one_by_one;
mod video;
#[path = "../../tests/common/videos.rs"]
mod videos;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::lines::{Measurement, Size};

/// Success, or an error message.
type Outcome = Result<(), String>;

/// Joins the errors of all outcomes into one.
fn join_errors(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let errors: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

const HELP: &str = "\
Tests and measurements of spdl-cuda on a device.

run [OPTIONS]
run table FILE         print the table of an interrupted run, from its results.jsonl

  --only NAMES    run only these, separated by commas: tests, g1 to g8 [default: all]
  --minutes N     total time in minutes; each measurement has a share [default: 9]
  --out FOLDER    folder for results.jsonl, table.md and log.txt [default: results, beside this program]
  --python NAME   interpreter with PyTorch, for comparisons [default: python3]
  --tiny          smallest sizes, to check that everything works

  tests  the tests of spdl-cuda that need a device
  g1     throughput of copies between host and device: sizes, streams, kinds of memory
  g2     integrity of batches under delayed consumers
  g3     JPEGs decoded on the device, alone and as training samples
  g4     a training loop with batches from files, compared with synthetic batches
  g5     videos decoded on the device
  g6     kernels that turn images into samples
  g7     leaks after repeated starts, and after a killed process
  g8     faults: no free memory, captured graphs, no device, a lost device, exits

Without a device, the program prints `SKIPPED: no GPU` with the reason. The exit status is then 0, or 1
if SPDL_REQUIRE_GPU is set.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["--help" | "-h", ..] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        ["table", file] => exit_code(table::print_file(file.as_ref())),
        ["measure", name, seconds, size] => measure(name, seconds, size),
        ["exit", mode] => exits::run(mode),
        _ => match arguments(&words) {
            Ok(arguments) => suite::run(&arguments),
            Err(error) => {
                eprintln!("error: {error}\n\n{HELP}");
                ExitCode::from(2)
            }
        },
    }
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command-line arguments.
struct Arguments {
    only: Vec<String>,
    minutes: f64,
    out: Option<PathBuf>,
    python: String,
    size: Size,
}

fn arguments(words: &[&str]) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        only: Vec::new(),
        minutes: 9.0,
        out: None,
        python: "python3".to_owned(),
        size: Size::Full,
    };
    let mut rest = words.iter();
    while let Some(&word) = rest.next() {
        if word == "--tiny" {
            arguments.size = Size::Tiny;
            continue;
        }
        let mut value = || rest.next().copied().ok_or(format!("missing value for {word}"));
        match word {
            "--only" => arguments.only.extend(value()?.split(',').map(str::to_owned)),
            "--minutes" => {
                let minutes = value()?.parse().ok().filter(|minutes| *minutes > 0.0);
                arguments.minutes =
                    minutes.ok_or("invalid value for --minutes: expected a number above 0")?;
            }
            "--out" => arguments.out = Some(value()?.into()),
            "--python" => arguments.python = value()?.to_owned(),
            _ => return Err(format!("unknown argument {word:?}")),
        }
    }
    if let Some(name) = arguments.only.iter().find(|name| !suite::NAMES.contains(&&***name)) {
        return Err(format!("unknown measurement {name:?}: expected {}", suite::NAMES.join(", ")));
    }
    Ok(arguments)
}

/// Runs a measurement in this process.
fn measure(name: &str, seconds: &str, size: &str) -> ExitCode {
    let seconds = seconds.parse().unwrap_or(0.0);
    let size = if size == "tiny" { Size::Tiny } else { Size::Full };
    let measurement = &Measurement::new(Duration::from_secs_f64(seconds), size);
    exit_code(match name {
        "g1" => copies::measure(measurement),
        "g2" => order::measure(measurement),
        "g3" => jpeg::measure(measurement),
        "g5" => video::measure(measurement),
        "g6" => kernels::measure(measurement),
        "g7" => leaks::measure(measurement),
        "g8" => faults::measure(measurement),
        _ => Err(format!("unknown measurement {name:?}")),
    })
}
