//! Tests and measurements on a device, for machines that have neither cargo nor a network.
//!
//! `cargo xtask gpu` builds this program, puts what it needs beside it, and runs it. It runs each
//! measurement as a process of its own, which says what it finds line by line:
//!
//! ```text
//!  measurement's process ──JSON lines──► suite ──checked──► results.jsonl, at once ──► table
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

use crate::lines::{Measuring, Size};

/// Why something did not work, in words.
type Outcome = Result<(), String>;

/// All of them were run, whatever became of each: what did not work is said together.
fn together(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let wrong: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

const HELP: &str = "\
Tests and measurements of spdl-cuda on a device.

run [OPTIONS]
run table FILE         the table of a run that was broken off, from its results.jsonl

  --only NAMES    tests, g1 to g8, with commas between [default: all]
  --minutes N     time for all of them together; each has its share [default: 9]
  --out FOLDER    for results.jsonl, table.md and log.txt [default: results, beside this program]
  --python NAME   an interpreter with PyTorch, for what is compared with it [default: python3]
  --tiny          the smallest sizes: whether everything works, not how fast

  tests  the tests of spdl-cuda that need a device
  g1     copies between host and device: sizes, streams, kinds of memory
  g2     batches under consumers that are late: whether each arrives whole
  g3     JPEGs decoded on the device, and made samples for training there
  g4     a training loop: batches from files beside batches that are there already
  g5     video decoded on the device
  g6     images to samples: the kernels
  g7     what is left behind by starting and stopping, and by processes that are killed
  g8     faults: no memory, captured graphs, no device, a device that is lost, exits

Without a device it prints `SKIPPED: no GPU` with the reason and ends with 0, or with 1 where
SPDL_REQUIRE_GPU=1.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["--help" | "-h", ..] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        ["table", file] => told(table::of_file(file.as_ref())),
        ["measure", name, seconds, size] => measure(name, seconds, size),
        ["exit", way] => exits::end(way),
        _ => match arguments(&words) {
            Ok(arguments) => suite::run(&arguments),
            Err(error) => {
                eprintln!("error: {error}\n\n{HELP}");
                ExitCode::from(2)
            }
        },
    }
}

fn told(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the user asks for.
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
        let mut value = || rest.next().copied().ok_or(format!("{word} wants a value"));
        match word {
            "--only" => arguments.only.extend(value()?.split(',').map(str::to_owned)),
            "--minutes" => {
                let minutes = value()?.parse().ok().filter(|minutes| *minutes > 0.0);
                arguments.minutes = minutes.ok_or("--minutes wants a number above 0")?;
            }
            "--out" => arguments.out = Some(value()?.into()),
            "--python" => arguments.python = value()?.to_owned(),
            _ => return Err(format!("{word:?} is not known")),
        }
    }
    if let Some(name) = arguments.only.iter().find(|name| !suite::NAMES.contains(&&***name)) {
        return Err(format!(
            "no measurement is named {name:?}; they are: {}",
            suite::NAMES.join(", ")
        ));
    }
    Ok(arguments)
}

/// A measurement, in the process that the suite has started for it.
fn measure(name: &str, seconds: &str, size: &str) -> ExitCode {
    let seconds = seconds.parse().unwrap_or(0.0);
    let size = if size == "tiny" { Size::Tiny } else { Size::Full };
    let measuring = &Measuring::new(Duration::from_secs_f64(seconds), size);
    told(match name {
        "g1" => copies::measure(measuring),
        "g2" => order::measure(measuring),
        "g3" => jpeg::measure(measuring),
        "g5" => video::measure(measuring),
        "g6" => kernels::measure(measuring),
        "g7" => leaks::measure(measuring),
        "g8" => faults::measure(measuring),
        _ => Err(format!("{name:?} is no measurement of this program")),
    })
}
