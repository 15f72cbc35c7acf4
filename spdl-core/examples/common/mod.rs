//! Helpers for benchmarks: arguments, progress bar, quantiles, CPU time.
#![allow(dead_code, unreachable_pub, reason = "each benchmark uses some of these tools")]

use std::process::exit;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};

/// Command-line arguments: switches (`--json`) and numbers (`--items 1000`).
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Parses the command line. `--help` prints `help`; an invalid argument ends the program.
    pub fn parse(help: &str, switches: &[&str], numbers: &[&str]) -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let mut remaining = words.iter();
        while let Some(word) = remaining.next() {
            if word == "--help" || word == "-h" {
                eprintln!("{help}");
                exit(0);
            }
            let error = if switches.contains(&word.as_str()) {
                continue;
            } else if numbers.contains(&word.as_str()) {
                match remaining.next().map(|number| number.parse::<u64>()) {
                    Some(Ok(1..)) => continue,
                    _ => format!("{word} requires an integer of at least 1"),
                }
            } else {
                format!("unexpected argument {word:?}")
            };
            eprintln!("error: {error}\n\n{help}");
            exit(2);
        }
        Arguments(words)
    }

    /// Whether the switch is present.
    pub fn has(&self, switch: &str) -> bool {
        self.0.iter().any(|word| word == switch)
    }

    /// The number after the option `name`, or `default`.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        let at = self.0.iter().position(|word| word == name);
        at.and_then(|at| self.0.get(at + 1)?.parse().ok()).unwrap_or(default)
    }
}

/// A progress bar without a thread that redraws it, which would affect the measurement.
pub fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    ProgressBar::new(steps as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The `q`-quantile by nearest rank; 0 if there are no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The smallest value.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// CPU time of all threads of this process.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Rounds to a number of decimals.
pub fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

/// Formats `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
