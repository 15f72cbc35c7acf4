//! Measures the throughput of reading samples of tar shards without decoding: by a pipeline, as a
//! stream, or from memory. `cargo xtask bench tar` compares it with other loaders.
//!
//! ```sh
//! cargo run --release -p spdl-io --example tar_samples -- MODE EPOCHS SHARD...
//! ```
//!
//! MODE is `pipeline`, `stream:THREADS` or `slice:THREADS`, for example `stream:2`. Prints a JSON
//! object: `samples`, `bytes` of their fields, `seconds` from opening the shards to the last
//! sample, `cpu_s_per_1000` (CPU seconds per 1000 samples), and `first_batch_ms` (time to the first
//! sample).
#![expect(clippy::print_stdout, reason = "the program prints a JSON object")]

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use spdl_core::{DatasetSource, Error, ErrorKind, PipelineBuilder, Result};
use spdl_io::archive::{TarFile, TarSlice, TarStream};
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::{FetchRecord, FieldValue, LocalFetcher};

/// Counters of the samples read.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    samples: u64,
    bytes: u64,
    first: Option<Duration>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, epochs, shards @ ..] = &arguments[..] else {
        return Err(invalid("expected arguments: MODE EPOCHS SHARD...".into()));
    };
    let epochs = number(epochs)?;
    let (cpu_before, start) = (cpu_time(), Instant::now());
    let totals = match mode.split_once(':') {
        None if mode == "pipeline" => through_a_pipeline(shards, epochs, start)?,
        Some(("stream", threads)) => {
            let shard = |shard: &String, totals: &mut Totals| {
                count(TarStream::new(File::open(shard)?).files(), totals, start)
            };
            in_threads(shards, epochs, number(threads)?, shard)?
        }
        Some(("slice", threads)) => {
            let shard = |shard: &String, totals: &mut Totals| {
                count(TarSlice::new(fs::read(shard)?).files(), totals, start)
            };
            in_threads(shards, epochs, number(threads)?, shard)?
        }
        _ => return Err(invalid(format!("unknown MODE {mode:?}"))),
    };
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_time().saturating_sub(cpu_before).as_secs_f64();
    let first = totals.first.unwrap_or_default().as_secs_f64() * 1e3;
    let Totals { samples, bytes, .. } = totals;
    println!(
        "{{\"samples\": {samples}, \"bytes\": {bytes}, \"seconds\": {seconds}, \
         \"cpu_s_per_1000\": {}, \"first_batch_ms\": {first}}}",
        1000.0 * cpu / samples.max(1) as f64
    );
    Ok(())
}

/// Reads all samples by a pipeline, as in a user's program.
fn through_a_pipeline(shards: &[String], epochs: u64, start: Instant) -> Result<Totals> {
    let samples = WebDataset::open_files(shards, &WebDatasetOptions::default())?;
    let pipeline = PipelineBuilder::new(DatasetSource::new(samples))
        .async_stage("fetch", FetchRecord::new(Arc::new(LocalFetcher::new())))
        .epochs(0..epochs)
        .build()?;
    let mut totals = Totals::default();
    for record in pipeline {
        let record = record?;
        for name in ["jpg", "cls"] {
            totals.bytes += match record.get(name)? {
                FieldValue::Bytes(bytes) => bytes.len() as u64,
                // A decoded integer counts the bytes of its text.
                FieldValue::Integer(number) => number.to_string().len() as u64,
                other => return Err(invalid(format!("{name} is {}", other.kind()))),
            };
        }
        totals.samples += 1;
        totals.first.get_or_insert_with(|| start.elapsed());
    }
    Ok(totals)
}

/// Each thread reads the next shard, until all were read `epochs` times.
fn in_threads(
    shards: &[String],
    epochs: u64,
    threads: u64,
    read: impl Fn(&String, &mut Totals) -> Result<()> + Sync,
) -> Result<Totals> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Totals> {
        let mut totals = Totals::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number as u64 >= epochs * shards.len() as u64 {
                return Ok(totals);
            }
            read(&shards[number % shards.len()], &mut totals)?;
        }
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Totals::default();
        for thread in started {
            let panicked = |_| Error::new(ErrorKind::Panicked, "a thread panicked");
            let totals = thread.join().map_err(panicked)??;
            all.samples += totals.samples;
            all.bytes += totals.bytes;
            all.first = all.first.into_iter().chain(totals.first).min();
        }
        Ok(all)
    })
}

/// Counts samples: adjacent members with the same name up to the first dot.
fn count(
    files: impl Iterator<Item = Result<TarFile>>,
    totals: &mut Totals,
    start: Instant,
) -> Result<()> {
    let mut last = Vec::new();
    for file in files {
        let file = file?;
        let name = file.entry.key.as_bytes();
        let end = name.iter().position(|&byte| byte == b'.').unwrap_or(name.len());
        if name[..end] != last[..] {
            totals.samples += 1;
            totals.first.get_or_insert_with(|| start.elapsed());
            last.clear();
            last.extend_from_slice(&name[..end]);
        }
        totals.bytes += file.data.len() as u64;
    }
    Ok(())
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn number(word: &str) -> Result<u64> {
    word.parse().map_err(|_| invalid(format!("{word:?} is not a number")))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
