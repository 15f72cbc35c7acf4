//! `cargo xtask bench checksums`: measures the cost of comparing samples with checksums.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::contest::{self, Contestant, Run, median};
use super::store::{self, Server};
use super::table;
use crate::dataset::{self, Settings, Shape};
use crate::tools::{Output, Workspace, cargo, command};

/// Compare the time to load images with and without checksums.
///
/// Checksum files: `spdl pack` packs images into tar shards with checksum files (`SHARD.tar.sums`).
/// A second folder has hard links to the same shards and indexes, without the checksum files, so
/// both folders share the page cache. Two programs load both folders: `spdl bench`, which decodes
/// the images as for training, and a pipeline that only reads the samples.
///
/// Headers of a store: `spdl bench` loads the images from three S3 servers on loopback, which send
/// no checksums, CRC-32C, or MD5. The servers are separate processes, so their CPU time does not count.
///
/// Each source is loaded once to warm up; then the runs are interleaved. The source without checksums is
/// loaded twice per round: the ratio of these two runs shows the noise.
///
/// The command writes a table to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench checksums
  cargo xtask bench checksums --repeats 50 --check
  cargo xtask bench checksums --repeats 3 --print-only")]
pub(crate) struct Checksums {
    /// Number of measured runs of each source
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Fail if the measured cost exceeds the promised value
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

const WITHOUT: &str = "none";
const FILES: &str = "checksum files";
const CRC: &str = "CRC-32C";
const MD5: &str = "MD5";
const AGAIN: &str = "none, again";

/// Maximum ratio of the CPU times to load decoded images with and without checksums; there is no
/// promise for MD5. Other programs on the machine affect CPU times less than rates.
const DECODED: f64 = 1.01;

const IMAGES: u32 = 2000;
const EPOCHS_DECODED: u32 = 2;
const EPOCHS_READ: u32 = 20;

/// Two folders of the same shards: the paths of their files.
struct Shards {
    with: Vec<String>,
    without: Vec<String>,
}

pub(super) fn run(workspace: &Workspace, arguments: &Checksums) -> Result<()> {
    let settings = Settings { shape: Shape::Imagenet, images: IMAGES, classes: 50, seed: 0 };
    let photos = workspace.root.join("assets/photos");
    let data = dataset::prepare(&photos, &workspace.target.join("demo"), settings)?;
    store::build(workspace)?;
    let mut build = cargo();
    build.args(["build", "--release", "-p", "spdl-io", "--example", "tar_samples"]);
    Output::Terminal.run(build.current_dir(&workspace.root))?;
    let shards = pack(workspace, &data)?;

    let program = workspace.program("release", "spdl");
    let bench = |sources: &[String], threads: &[String]| {
        let mut words: Vec<String> = vec!["bench".into()];
        words.extend_from_slice(sources);
        let options = ["--mode", "train", "--json", "--no-checksum", "--epochs"];
        words.extend(options.map(String::from));
        words.push(EPOCHS_DECODED.to_string());
        words.extend_from_slice(threads);
        words
    };
    let folders = [(WITHOUT, &shards.without), (FILES, &shards.with), (AGAIN, &shards.without)];
    let decoded = measure(
        arguments.repeats,
        folders.map(|(name, shards)| Contestant::new(name, program.clone(), bench(shards, &[]))),
    )?;
    let reader = workspace.program("release/examples", "tar_samples");
    let read = measure(
        arguments.repeats,
        folders.map(|(name, shards)| {
            let words = ["pipeline".to_owned(), EPOCHS_READ.to_string()];
            Contestant::new(name, reader.clone(), words.into_iter().chain(shards.clone()).collect())
        }),
    )?;

    let cpus = store::allowed_cpus();
    let last = cpus.last().filter(|_| cpus.len() > 1).copied();
    let threads = ["--threads".to_owned(), cpus.len().saturating_sub(1).max(1).to_string()];
    let start = |checksum| Server::start(workspace, &data, 0, 0.0, checksum, last);
    let (plain, crc, md5) = (start(None)?, start(Some("crc32c"))?, start(Some("md5"))?);
    let stored = measure(
        arguments.repeats,
        [(WITHOUT, &plain), (CRC, &crc), (MD5, &md5), (AGAIN, &plain)].map(|(name, server)| {
            let bucket = format!("s3://{}/", store::BUCKET);
            let mut words = server.environment();
            words.push(program.display().to_string());
            words.extend(bench(&[bucket], &threads));
            Contestant::new(name, PathBuf::from("env"), words)
        }),
    )?;

    let table =
        table_of(&[("decoded", &decoded), ("only read", &read), ("decoded, store", &stored)]);
    let (cost_ms, share) = cost_of_files(&decoded, &read);
    let verdicts = [verdict(FILES, 1.0 + share), verdict(CRC, cpu_ratio(&stored, CRC)?)];
    let table = format!(
        "{table}\nBy the ratio of CPU times of the samples that are only read, the comparison with checksum files takes \
         {:.1} µs of CPU time per sample: {:.2} % of the CPU time of a decoded image.\n{}",
        1000.0 * cost_ms,
        100.0 * share,
        of_md5(&stored)?
    );
    println!("\n{table}");
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
    if !arguments.print_only {
        let text = page(arguments.repeats, shards.with.len(), &threads[1], &table, &verdicts);
        table::write(&workspace.root.join("docs/benchmarks/checksums.md"), &text)?;
    }
    let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
    ensure!(!arguments.check || missed == 0, "{missed} of the promises were missed");
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
            shards.with.push(file.display().to_string());
            shards.without.push(link.display().to_string());
        }
    }
    shards.with.sort();
    shards.without.sort();
    ensure!(!shards.with.is_empty(), "`spdl pack` wrote no shards");
    Ok(shards)
}

/// Interleaves the runs of all sources; the first one has no checksums.
fn measure<const N: usize>(repeats: u32, sources: [Contestant; N]) -> Result<Vec<Contestant>> {
    let mut contestants = Vec::from(sources);
    contest::measure_all(&mut contestants, repeats)?;
    ensure!(contestants.len() == N, "not every source could be measured");
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
    let mut text = "| images | checksums | images/s | CPU s/1,000 | others' CPU | ratio of times | 95 % interval | ratio of CPU times | 95 % interval |\n\
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

/// The CPU time of the comparison with checksum files, in milliseconds per sample, and its share of the CPU time of a
/// decoded image. Without decoding, the noise is a smaller part of it.
fn cost_of_files(decoded: &[Contestant], read: &[Contestant]) -> (f64, f64) {
    let cpu_ms = |contestant: &Contestant| median(contestant.of(|run| run.cpu_s_per_1000));
    let ratio = median(ratios(&read[1], &read[0], |run| run.cpu_s_per_1000));
    let cost_ms = (ratio - 1.0) * cpu_ms(&read[0]);
    (cost_ms, cost_ms / cpu_ms(&decoded[0]))
}

/// The median ratio of the CPU times of a source to those of the first source.
fn cpu_ratio(contestants: &[Contestant], name: &str) -> Result<f64> {
    let found = contestants.iter().find(|contestant| contestant.name == name);
    let found = found.with_context(|| format!("{name} was not measured"))?;
    Ok(median(ratios(found, &contestants[0], |run| run.cpu_s_per_1000)))
}

/// The cost of MD5, which is not promised.
fn of_md5(stored: &[Contestant]) -> Result<String> {
    let ratio = cpu_ratio(stored, MD5)?;
    Ok(format!(
        "\nMD5 increases the CPU time of a decoded image by {:.1} %. MD5 is therefore compared only without TLS, \
         which would detect changed bytes, and if the store sends no CRC. To avoid this cost on a trusted \
         network, disable the comparison by `SourceOptions::verify(false)`, or serve the files without the \
         header `Content-MD5`.\n",
        100.0 * (ratio - 1.0)
    ))
}

/// Promised and measured cost, and whether the promise is kept.
fn verdict(name: &str, ratio: f64) -> (bool, String) {
    let line = format!(
        "{name}: reading, comparing and decoding images takes {ratio:.4} x the CPU time without checksums; \
         promised: at most {DECODED} x"
    );
    table::verdict(ratio <= DECODED, &line)
}

fn page(
    repeats: u32,
    shards: usize,
    threads: &str,
    table: &str,
    verdicts: &[(bool, String)],
) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# The cost of checksums\n\n\
         `spdl pack` writes a checksum file (`SHARD.tar.sums`) for each shard. If the file exists, the bytes of \
         each sample are compared with their XXH3 hash when the sample is read. If a store sends a checksum in the \
         headers of an object, the bytes are compared as they arrive. {IMAGES} images of the sizes in ImageNet \
         are loaded with and without checksums, on a machine with {cpus} CPUs ({cpu}).\n\n\
         - \"decoded\": `spdl bench --mode train --no-checksum` over {shards} shards in the page cache, \
         {EPOCHS_DECODED} epochs. The images are decoded and cropped into uint8 batches of 32 x 224 x 224 x 3.\n\
         - \"only read\": a pipeline over a `WebDataset` of the same shards, {EPOCHS_READ} epochs. The samples are \
         read, but not decoded, so the time is mostly that of copying them from the page cache.\n\
         - \"decoded, store\": the images are files of an S3 server on loopback, without TLS. The number of decoding \
         threads is {threads}. The network thread and the server, a separate process, use the remaining CPU; the \
         CPU time of the server does not count.\n\n\
         Runs are interleaved: one warm-up and {repeats} runs of each row. Rates and CPU times are medians; \"others' \
         CPU\" is the share of all CPUs that other programs used, such as the server. The ratios compare a run \
         with the run without checksums of the same round; the table shows the median of the {repeats} pairs \
         with its 95 % confidence interval. The rows \"{AGAIN}\" show the noise.\n\n\
         Command: `cargo xtask bench checksums --repeats {repeats}`.\n\n\
         {table}{promises}",
        cpu = table::cpu_model(),
        promises = table::promises(verdicts),
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
            let runs = [(WITHOUT, [1.0, 4.0, 1.0]), (MD5, [2.0; 3]), (CRC, with)];
            let contestants = runs.map(|(name, times)| {
                let mut contestant = contestant(name, &[1.0; 3]);
                for (run, time) in contestant.runs.iter_mut().zip(times) {
                    run.cpu_s_per_1000 = time;
                }
                contestant
            });
            verdict(CRC, cpu_ratio(&contestants, CRC).unwrap()).0
        };
        assert!(cost([1.009, 4.036, 1.009]));
        assert!(!cost([1.011, 4.044, 1.011]));
    }

    #[test]
    fn the_time_per_sample_is_that_of_samples_that_are_only_read() {
        let load = |times: [f64; 2]| {
            times.map(|time| {
                let mut contestant = contestant(FILES, &[1.0]);
                contestant.runs[0].cpu_s_per_1000 = time;
                contestant
            })
        };
        let (cost_ms, share) = cost_of_files(&load([0.5, 0.6]), &load([0.02, 0.022]));
        assert!((cost_ms - 0.002).abs() < 1e-9 && (share - 0.004).abs() < 1e-9);
    }

    #[test]
    fn the_interval_of_the_median_has_symmetric_ranks() {
        let values: Vec<f64> = (1..=15).rev().map(f64::from).collect();
        assert_eq!(median_and_bounds(values), (8.0, 4.0, 12.0));
        assert_eq!(median_and_bounds(vec![2.0]), (2.0, 2.0, 2.0));
    }
}
