//! Parts of benchmark pages: tables, bars, and the description of the machine.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::contest::{Contestant, Run, median};
use super::plot::Bar;

/// A Markdown table of medians, with rates in `unit`. The last column compares with the first row.
pub(super) fn of_medians(contestants: &[Contestant], unit: &str) -> String {
    let width = contestants.iter().map(|contestant| contestant.name.len()).max().unwrap_or(0);
    let digits = unit.len();
    let mut text = format!(
        "| {:<width$} | {unit} | spread | CPU s/1,000 | first ms | mem MB | others' CPU | ours / this |\n\
         |-{}-|-{}:|-------:|------------:|---------:|-------:|------------:|------------:|\n",
        "loader",
        "-".repeat(width),
        "-".repeat(unit.len()),
    );
    for contestant in contestants {
        let (least, most) = range(contestant);
        let rate = contestant.rate();
        let decimals = usize::from(rate < 100.0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {:<width$} | {:>digits$.decimals$} | {:>5.1}% | {:>11} | {:>8.0} | {:>6.0} | {:>10.0}% | {:>11.2} |",
            contestant.name,
            rate,
            100.0 * (most - least) / rate,
            significant(median(contestant.of(|run| run.cpu_s_per_1000))),
            median(contestant.of(|run| run.first_batch_ms)),
            median(contestant.of(|run| run.peak_memory_bytes as f64)) / 1e6,
            100.0 * median(contestant.of(|run| run.foreign_cpu)),
            contestants[0].ratio_to(contestant),
        );
    }
    text
}

/// Formats a value with two decimal places; with four if it is below 0.1.
fn significant(value: f64) -> String {
    if value < 0.1 { format!("{value:.4}") } else { format!("{value:.2}") }
}

/// The minimum and maximum rate.
fn range(contestant: &Contestant) -> (f64, f64) {
    let rates = contestant.of(Run::samples_per_s);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    (least, rates.into_iter().fold(0.0, f64::max))
}

/// One bar per loader.
pub(super) fn bars(contestants: &[Contestant], is_ours: impl Fn(&str) -> bool) -> Vec<Bar> {
    let bar = |contestant: &Contestant| Bar {
        label: contestant.name.to_owned(),
        value: contestant.rate(),
        range: range(contestant),
        ours: is_ours(contestant.name),
    };
    contestants.iter().map(bar).collect()
}

/// The package versions of the other loaders, one loader per line.
pub(super) fn versions(contestants: &[Contestant]) -> String {
    let others = contestants.iter().filter(|contestant| !contestant.versions.is_empty());
    others.map(|contestant| format!("- {}: {}\n", contestant.name, contestant.versions)).collect()
}

/// A section of a page: its note, the table of its loaders with rates in `unit`, and their versions.
pub(super) fn section(title: &str, note: &str, unit: &str, contestants: &[Contestant]) -> String {
    let (table, versions) = (of_medians(contestants, unit), versions(contestants));
    let versions = match versions.is_empty() {
        true => String::new(),
        false => format!("\nVersions:\n\n{versions}"),
    };
    format!("\n## {title}\n\n{note}\n\n{table}{versions}")
}

/// Whether a promise is kept, and the line that reports it.
pub(super) fn verdict(kept: bool, line: &str) -> (bool, String) {
    (kept, format!("{} {line}", if kept { "kept:  " } else { "MISSED:" }))
}

/// The section of a page that lists the promises.
pub(super) fn promises(verdicts: &[(bool, String)]) -> String {
    let lines: String = verdicts.iter().map(|(_, line)| format!("- {line}\n")).collect();
    format!("\n## Promises\n\n{lines}")
}

/// The CPU model.
pub(super) fn cpu_model() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    cpu.map_or("unknown CPU", |(_, name)| name.trim()).to_owned()
}

/// Writes a page and prints its path.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    pub(in crate::bench) fn contestant(name: &'static str, seconds: &[f64]) -> Contestant {
        let run = |&seconds: &f64| Run {
            samples: 1000,
            seconds,
            cpu_s_per_1000: 1.5,
            first_batch_ms: 40.0,
            peak_memory_bytes: 100_000_000,
            foreign_cpu: 0.02,
        };
        let mut contestant = Contestant::new(name, PathBuf::new(), Vec::new());
        contestant.runs = seconds.iter().map(run).collect();
        contestant
    }

    #[test]
    fn ratios_are_medians_of_neighbouring_runs() {
        // The machine was slow in the second round, for both loaders.
        let ours = contestant("ours", &[1.0, 4.0, 1.0]);
        let peer = contestant("peer", &[2.0, 8.0, 2.0]);
        let table = of_medians(&[ours, peer], "samples/s");
        let cells =
            |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let rows: Vec<_> = table.lines().map(cells).collect();
        assert_eq!(rows[2][1..9], ["ours", "1000", "75.0%", "1.50", "40", "100", "2%", "1.00"]);
        assert_eq!(rows[3][1..9], ["peer", "500", "75.0%", "1.50", "40", "100", "2%", "2.00"]);
    }
}
