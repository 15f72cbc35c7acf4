//! The chart of the README: speed ratios from the committed benchmark pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;

use super::plot::{self, Bar};
use super::table;
use crate::tools::Workspace;

/// Draw docs/benchmarks/ratios.svg from the tables in docs/benchmarks, without measuring.
#[derive(Debug, Args)]
pub(crate) struct Ratios {}

/// For each bar: its label, the benchmark page, and the name of the row on that page.
const ROWS: [(&str, &str, &str); 13] = [
    ("evaluation crop: spdl (Python, C++)", "images-eval.md", "spdl (Python, C++)"),
    ("evaluation crop: DALI, CPU", "images-eval.md", "DALI, CPU"),
    ("evaluation crop: tf.data", "images-eval.md", "tf.data, antialias"),
    ("evaluation crop: torch + torchvision", "images-eval.md", "torch DataLoader: torchvision"),
    ("training crop: spdl (Python, C++)", "images-train.md", "spdl (Python, C++)"),
    ("training crop: DALI, CPU", "images-train.md", "DALI, CPU"),
    ("training crop: tf.data", "images-train.md", "tf.data, antialias"),
    ("training crop: torch + torchvision", "images-train.md", "torch DataLoader: torchvision"),
    (
        "photographs: simplejpeg + OpenCV",
        "photos-eval.md",
        "thread pool: simplejpeg, scaled, + OpenCV area",
    ),
    (
        "photographs: libjpeg-turbo, decode only",
        "photos-eval.md",
        "libjpeg-turbo alone, decode only",
    ),
    ("from Python: spdl (Python, C++)", "python.md", "spdl (Python, C++)"),
    ("from Python: torch + torchvision", "python.md", "torch DataLoader: torchvision"),
    ("tar shards: webdataset", "tar.md", "webdataset"),
];

pub(super) fn run(workspace: &Workspace, _arguments: &Ratios) -> Result<()> {
    let folder = workspace.root.join("docs/benchmarks");
    table::write(&folder.join("ratios.svg"), &svg(&folder)?)
}

fn svg(folder: &Path) -> Result<String> {
    let bars: Result<Vec<Bar>> = ROWS.into_iter().map(|row| bar(folder, row)).collect();
    let unit = "rate of SPDL in Rust / rate of the other loader, on 2 CPUs; 1 is equal speed";
    Ok(plot::bars_in_order("How many times as fast: SPDL in Rust", unit, &bars?, 1))
}

fn bar(folder: &Path, (label, page, row): (&str, &str, &str)) -> Result<Bar> {
    let text =
        fs::read_to_string(folder.join(page)).with_context(|| format!("cannot read {page}"))?;
    let value = ratio(&text, row).with_context(|| format!("{page} has no row {row:?}"))?;
    Ok(Bar { label: label.to_owned(), value, range: (value, value), ours: false })
}

/// The value in the last column of the first row with this name.
fn ratio(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.trim_end_matches('|').split('|').collect();
        (cells[0].trim() == name).then(|| cells[cells.len() - 1].trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_chart_shows_the_committed_figures() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks");
        let committed = fs::read_to_string(folder.join("ratios.svg")).unwrap();
        assert_eq!(svg(&folder).unwrap(), committed, "run `cargo xtask bench ratios`");
    }

    #[test]
    fn the_ratio_is_the_last_column_of_the_first_row_with_the_name() {
        let page = "| loader | rate | ours / this |\n|--|--:|--:|\n| a | 1 | 1.00 |\n| b | 2 | 0.50 |\n| b | 3 | 9 |";
        assert_eq!(ratio(page, "b"), Some(0.5));
        assert_eq!(ratio(page, "c"), None);
    }
}
