//! The time of each decoding step, per image.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::ensure;

use crate::tools::{Output, Workspace, cargo, command};

/// The output of the example `decode_speed` of `spdl-media` on one thread.
///
/// Prints the reason and returns `None` if the example fails.
pub(super) fn measure(workspace: &Workspace, data: &Path) -> Option<String> {
    let mut build = cargo();
    build.args(["build", "--release", "-p", "spdl-media", "--example", "decode_speed"]);
    let program = workspace.program("release/examples", "decode_speed");
    let figures = Output::Terminal.run(build.current_dir(&workspace.root)).and_then(|()| {
        let output = command(program).arg(data).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "decode_speed failed: {}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    match figures {
        Ok(text) => Some(text),
        Err(error) => {
            println!("SKIPPED: time of each decoding step: {error:#}");
            None
        }
    }
}

/// Cases of `decode_speed`, each with the name of the work that it adds to the previous case. All
/// cases decode the whole image.
type Steps = [(&'static str, &'static str); 3];

const ENTROPY: &str = "entropy, skipped";
const TO_RGB: Steps = [
    (ENTROPY, "entropy decoding"),
    ("planes", "inverse transform"),
    ("RGB", "upsampling and colour"),
];
const TO_BATCH: Steps = [
    (ENTROPY, "entropy decoding"),
    ("planes", "inverse transform"),
    ("fill eval, whole", "crop, resize, colour, writing"),
];

/// The names and medians in lines such as `planes, region   123.4   120.1`, which consist of a
/// name, a median and a minimum in µs.
pub(super) fn medians(text: &str) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    for line in text.lines() {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let last = words.pop().and_then(|word| word.parse::<f64>().ok());
        let middle = words.pop().and_then(|word| word.parse::<f64>().ok());
        if let (Some(median), Some(_)) = (middle, last) {
            figures.push((words.join(" "), median));
        }
    }
    figures
}

fn find(figures: &[(String, f64)], name: &str) -> Option<f64> {
    figures.iter().find(|(found, _)| found == name).map(|(_, time)| *time)
}

/// The time that each step adds; empty if a step was not measured.
fn added(title: &str, steps: Steps, figures: &[(String, f64)]) -> String {
    let [Some(first), Some(second), Some(whole)] = steps.map(|(step, _)| find(figures, step))
    else {
        return String::new();
    };
    let mut table = format!("| {title} | µs | share |\n|---|--:|--:|\n");
    for ((_, name), time) in steps.into_iter().zip([first, second - first, whole - second]) {
        let _ = writeln!(table, "| {name} | {time:.0} | {:.0} % |", 100.0 * time / whole);
    }
    table.push('\n');
    table
}

/// The times as tables.
pub(super) fn table(text: &str) -> String {
    let figures = medians(text);
    let mut table = added("whole image to RGB", TO_RGB, &figures);
    table += &added("whole image into a batch", TO_BATCH, &figures);
    if let Some(entropy) = find(&figures, ENTROPY) {
        let rest: Vec<_> = figures.iter().filter(|(name, _)| name.starts_with("fill")).collect();
        if !rest.is_empty() {
            table.push_str(
                "| into a batch | µs | time of entropy decoding the whole file, relative to this time |\n\
                 |---|--:|--:|\n",
            );
            for (name, time) in rest {
                let _ = writeln!(table, "| {name} | {time:.0} | {:.0} % |", 100.0 * entropy / time);
            }
            table.push('\n');
        }
    }
    let _ = write!(table, "```text\n{}\n```\n", text.trim_end());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_time_that_each_step_adds() {
        let text = "2 images of x: µs per image, median and minimum:\n\
            entropy, skipped         60.0      59.0\nplanes      80.0   79.0\n\
            RGB   100.0 99.0\nfill eval nhwc-u8  120.0 110.0\nfill eval, whole  160.0 150.0\n";
        let tables = table(text);
        for row in [
            "| entropy decoding | 60 | 60 % |",
            "| inverse transform | 20 | 20 % |",
            "| upsampling and colour | 20 | 20 % |",
            "| entropy decoding | 60 | 38 % |",
            "| crop, resize, colour, writing | 80 | 50 % |",
            "| fill eval nhwc-u8 | 120 | 50 % |",
        ] {
            assert!(tables.contains(row), "{row} in {tables}");
        }
        // Steps without a translation keep their names.
        assert_eq!(table("decode 9"), "```text\ndecode 9\n```\n");
    }
}
