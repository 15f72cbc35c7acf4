//! `cargo xtask bench checksums`: measures the cost of comparing samples with the checksum files of
//! their shards.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::contest::{self, Contestant, Run, median};
use super::table;
use crate::dataset::{self, Settings, Shape};
use crate::tools::{Output, Workspace, cargo, command};

/// Compare the time to load tar shards with and without checksum files (`SHARD.tar.sums`).
///
/// `spdl pack` packs images into shards with checksum files. A second folder has hard links to the
/// same shards and indexes, without the checksum files, so both folders share the page cache. Two
/// programs load both folders: `spdl bench`, which decodes the images as for training, and a
/// pipeline that only reads the samples. Each folder is loaded once to warm up; then the runs are
/// interleaved. The second folder is loaded twice per round: the ratio of these two runs shows the
/// noise.
///
/// The command writes a table to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench checksums
  cargo xtask bench checksums --repeats 50 --check
  cargo xtask bench checksums --repeats 3 --print-only")]
pub(crate) struct Checksums {
    /// Number of measured runs of each folder
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Fail if the measured cost exceeds the promised value
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

const WITHOUT: &str = "without";
const WITH: &str = "with";
const AGAIN: &str = "without, again";

/// Maximum ratio of the CPU times to load decoded images with and without checksum files. Other
/// programs on the machine affect CPU times less than rates.
const DECODED: f64 = 1.01;

const IMAGES: u32 = 2000;
const EPOCHS_DECODED: u32 = 2;
const EPOCHS_READ: u32 = 20;

/// Two folders of the same shards.
struct Shards {
    with: Vec<PathBuf>,
    without: Vec<PathBuf>,
}

pub(super) fn run(workspace: &Workspace, arguments: &Checksums) -> Result<()> {
    let settings = Settings { shape: Shape::Imagenet, images: IMAGES, classes: 50, seed: 0 };
    let photos = workspace.root.join("assets/photos");
    let data = dataset::prepare(&photos, &workspace.target.join("demo"), settings)?;
    for words in [&["-p", "spdl-cli"][..], &["-p", "spdl-io", "--example", "tar_samples"]] {
        let mut build = cargo();
        build.args(["build", "--release"]).args(words);
        Output::Terminal.run(build.current_dir(&workspace.root))?;
    }
    let shards = pack(workspace, &data)?;

    let decoded = measure(arguments.repeats, &shards, |shards| {
        let mut words: Vec<String> = vec!["bench".into()];
        words.extend(shards.iter().map(|shard| shard.display().to_string()));
        let options = ["--mode", "train", "--json", "--no-checksum", "--epochs"];
        words.extend(options.map(String::from));
        words.push(EPOCHS_DECODED.to_string());
        (workspace.program("release", "spdl"), words)
    })?;
    let read = measure(arguments.repeats, &shards, |shards| {
        let mut words = vec!["pipeline".to_owned(), EPOCHS_READ.to_string()];
        words.extend(shards.iter().map(|shard| shard.display().to_string()));
        (workspace.program("release/examples", "tar_samples"), words)
    })?;

    let table = table_of(&[("decoded", &decoded), ("only read", &read)]);
    let (kept, verdict) = verdict(&decoded);
    let table = format!("{table}\n{}", per_sample(&decoded, &read));
    println!("\n{table}\n{verdict}");
    if !arguments.print_only {
        let text = page(arguments.repeats, shards.with.len(), &table, &verdict);
        table::write(&workspace.root.join("docs/benchmarks/checksums.md"), &text)?;
    }
    ensure!(!arguments.check || kept, "the promise was missed");
    Ok(())
}

fn pack(workspace: &Workspace, data: &Path) -> Result<Shards> {
    let folder = workspace.target.join("bench-checksums");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let (with, without) = (folder.join("with"), folder.join("without"));
    fs::create_dir_all(&without).with_context(|| format!("cannot make {}", without.display()))?;
    let mut pack = command(workspace.program("release", "spdl"));
    pack.arg("pack").args([data, &with]).args(["--shard-size", "32MB"]);
    Output::Terminal.run(&mut pack)?;
    let mut shards = Shards { with: Vec::new(), without: Vec::new() };
    for file in fs::read_dir(&with)? {
        let file = file?.path();
        let is_shard = file.extension().is_some_and(|extension| extension == "tar");
        let is_index = file.extension().is_some_and(|extension| extension == "idx");
        if !is_shard && !is_index {
            continue;
        }
        let link = without.join(file.file_name().unwrap_or_default());
        fs::hard_link(&file, &link).with_context(|| format!("cannot link {}", link.display()))?;
        if is_shard {
            shards.with.push(file);
            shards.without.push(link);
        }
    }
    shards.with.sort();
    shards.without.sort();
    ensure!(!shards.with.is_empty(), "`spdl pack` wrote no shards");
    Ok(shards)
}

/// Interleaves the runs of a program that loads the shards: without checksum files, with them, and
/// without them again.
fn measure(
    repeats: u32,
    shards: &Shards,
    load: impl Fn(&[PathBuf]) -> (PathBuf, Vec<String>),
) -> Result<Vec<Contestant>> {
    let folders = [(WITHOUT, &shards.without), (WITH, &shards.with), (AGAIN, &shards.without)];
    let mut contestants: Vec<Contestant> = folders
        .into_iter()
        .map(|(name, shards)| {
            let (program, words) = load(shards);
            Contestant::new(name, program, words)
        })
        .collect();
    contest::measure_all(&mut contestants, repeats)?;
    ensure!(contestants.len() == 3, "not every folder could be measured");
    Ok(contestants)
}

/// The ratios of a value of the runs to the value of the other's run of the same round.
fn ratios(of: &Contestant, to: &Contestant, value: fn(&Run) -> f64) -> Vec<f64> {
    of.of(value).into_iter().zip(to.of(value)).map(|(of, to)| of / to).collect()
}

/// The median and its 95 % confidence interval, for any distribution: the values whose ranks differ
/// from n / 2 by 0.98 √n.
fn median_and_bounds(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let low = (count / 2.0 - 0.98 * count.sqrt()).max(0.0) as usize;
    let (least, most) = (values[low], values[values.len() - 1 - low]);
    (median(values), least, most)
}

fn table_of(loads: &[(&str, &Vec<Contestant>)]) -> String {
    let mut text = "| images | checksum files | images/s | CPU s/1,000 | others' CPU | ratio of times | 95 % interval | ratio of CPU times | 95 % interval |\n\
                    |---|---|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (title, contestants) in loads {
        for contestant in contestants.iter() {
            let ratio = |value: fn(&Run) -> f64| {
                if contestant.name == WITHOUT {
                    return " | ".to_owned();
                }
                let ratios = ratios(contestant, &contestants[0], value);
                let (median, least, most) = median_and_bounds(ratios);
                format!("{median:.4} | {least:.4}–{most:.4}")
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {title} | {} | {:.0} | {:.4} | {:.0}% | {} | {} |",
                contestant.name,
                contestant.rate(),
                median(contestant.of(|run| run.cpu_s_per_1000)),
                100.0 * median(contestant.of(|run| run.foreign_cpu)),
                ratio(|run| run.seconds),
                ratio(|run| run.cpu_s_per_1000),
            );
        }
    }
    text
}

/// The CPU time per sample of the comparison. Without decoding, the noise is a smaller part of it.
fn per_sample(decoded: &[Contestant], read: &[Contestant]) -> String {
    let cpu_ms = |contestant: &Contestant| median(contestant.of(|run| run.cpu_s_per_1000));
    let ratio = median(ratios(&read[1], &read[0], |run| run.cpu_s_per_1000));
    let cost_ms = (ratio - 1.0) * cpu_ms(&read[0]);
    format!(
        "By the ratio of CPU times of the samples that are only read, the comparison takes {:.1} µs of CPU time per \
         sample: {:.2} % of the CPU time of a decoded image.\n",
        1000.0 * cost_ms,
        100.0 * cost_ms / cpu_ms(&decoded[0]),
    )
}

/// Promised and measured cost, and whether the promise is kept.
fn verdict(decoded: &[Contestant]) -> (bool, String) {
    let [without, with, ..] = decoded else { return (false, String::new()) };
    let ratio = median(ratios(with, without, |run| run.cpu_s_per_1000));
    let kept = ratio <= DECODED;
    let line = format!(
        "loading decoded images takes {ratio:.4} x the CPU time without checksum files; promised: at most {DECODED} x"
    );
    table::verdict(kept, &line)
}

fn page(repeats: u32, shards: usize, table: &str, verdict: &str) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# The cost of checksums beside tar shards\n\n\
         `spdl pack` writes a checksum file (`SHARD.tar.sums`) for each shard. If the file exists, the bytes of \
         each sample are compared with their XXH3 hash when the sample is read. The same {shards} shards with \
         {IMAGES} images of the sizes in ImageNet are loaded with and without checksum files. The shards are in \
         the page cache of a machine with {cpus} CPUs ({cpu}).\n\n\
         - \"decoded\": `spdl bench --mode train --no-checksum`, {EPOCHS_DECODED} epochs. The images are decoded \
         and cropped into uint8 batches of 32 x 224 x 224 x 3.\n\
         - \"only read\": a pipeline over a `WebDataset`, {EPOCHS_READ} epochs. The samples are read, but not \
         decoded, so the time is mostly that of copying them from the page cache.\n\n\
         Runs are interleaved: one warm-up and {repeats} runs of each row. Rates and CPU times are medians; \"others' CPU\" is the share of all CPUs that other programs used. The \
         ratios compare a run with the run without checksum files of the same round; the table shows the median of the {repeats} \
         pairs with its 95 % confidence interval. The rows \"{AGAIN}\" show the noise.\n\n\
         Command: `cargo xtask bench checksums --repeats {repeats}`.\n\n\
         {table}\nPromises:\n\n- {verdict}\n",
        cpu = table::cpu_model(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::contestant;
    use super::*;

    #[test]
    fn the_cost_is_the_median_ratio_of_cpu_times_over_rounds() {
        let cost = |with: [f64; 3]| {
            // The machine was slow in the second round, for all loads.
            let runs = [(WITHOUT, [1.0, 4.0, 1.0]), (WITH, with), (AGAIN, [1.0, 4.0, 1.0])];
            let contestants = runs.map(|(name, times)| {
                let mut contestant = contestant(name, &[1.0; 3]);
                for (run, time) in contestant.runs.iter_mut().zip(times) {
                    run.cpu_s_per_1000 = time;
                }
                contestant
            });
            verdict(&contestants).0
        };
        assert!(cost([1.009, 4.036, 1.009]));
        assert!(!cost([1.011, 4.044, 1.011]));
    }

    #[test]
    fn the_time_per_sample_is_that_of_samples_that_are_only_read() {
        let load = |times: [f64; 2]| {
            times.map(|time| {
                let mut contestant = contestant(WITH, &[1.0]);
                contestant.runs[0].cpu_s_per_1000 = time;
                contestant
            })
        };
        let text = per_sample(&load([0.5, 0.6]), &load([0.02, 0.022]));
        assert!(text.contains(" 2.0 µs ") && text.contains(" 0.40 % "), "{text}");
    }

    #[test]
    fn the_interval_of_the_median_has_symmetric_ranks() {
        let values: Vec<f64> = (1..=15).rev().map(f64::from).collect();
        assert_eq!(median_and_bounds(values), (8.0, 4.0, 12.0));
        assert_eq!(median_and_bounds(vec![2.0]), (2.0, 2.0, 2.0));
    }
}
