//! Tools for benchmarks: arguments, progress, quantiles, the CPU clock.
#![allow(dead_code, unreachable_pub, reason = "each benchmark uses some of these tools")]

use std::process::exit;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};

/// The words of the command line: switches (`--json`) and numbers (`--items 1000`).
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Reads the command line. Prints `help` where that is asked for; ends the program at a word
    /// that it does not know.
    pub fn parse(help: &str, switches: &[&str], numbers: &[&str]) -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if word == "--help" || word == "-h" {
                eprintln!("{help}");
                exit(0);
            }
            let complaint = if switches.contains(&word.as_str()) {
                continue;
            } else if numbers.contains(&word.as_str()) {
                match rest.next().map(|number| number.parse::<u64>()) {
                    Some(Ok(1..)) => continue,
                    _ => format!("{word} wants a whole number of at least 1"),
                }
            } else {
                format!("{word:?} is not known")
            };
            eprintln!("error: {complaint}\n\n{help}");
            exit(2);
        }
        Arguments(words)
    }

    /// Whether the switch is there.
    pub fn has(&self, switch: &str) -> bool {
        self.0.iter().any(|word| word == switch)
    }

    /// The number behind `name`.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        let at = self.0.iter().position(|word| word == name);
        at.and_then(|at| self.0.get(at + 1)?.parse().ok()).unwrap_or(default)
    }
}

/// A bar on the terminal, drawn only when it is moved: a thread that redraws it would be measured.
pub fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    ProgressBar::new(steps as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The value below which the share `q` of all values lies, the smallest such; 0 for no values.
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

/// The CPU time that all threads of this process have used.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A figure without decimals that nobody needs.
pub fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

/// `1234567` as `1,234,567`.
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
