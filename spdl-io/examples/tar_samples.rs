//! How fast the samples of tar shards come, without decoding them: through a pipeline, as a stream,
//! and as slices of shards that were read whole. `cargo xtask bench tar` runs it beside others.
//!
//! ```sh
//! cargo run --release -p spdl-io --example tar_samples -- WAY EPOCHS SHARD...
//! ```
//!
//! WAY is `pipeline`, or `stream` or `slice` with the number of threads behind it, as in `stream:2`.
//! It prints a JSON object: `samples`, `bytes` of their fields, `seconds` from opening the shards to
//! the last sample, `cpu_s_per_1000` samples, and `first_batch_ms`, when the first sample was there.
#![expect(clippy::print_stdout, reason = "a JSON object is what it is for")]

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

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    samples: u64,
    bytes: u64,
    first: Option<Duration>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, epochs, shards @ ..] = &arguments[..] else {
        return Err(wrong("WAY EPOCHS SHARD... are needed".into()));
    };
    let epochs = number(epochs)?;
    let (cpu_before, start) = (cpu_time(), Instant::now());
    let seen = match way.split_once(':') {
        None if way == "pipeline" => through_a_pipeline(shards, epochs, start)?,
        Some(("stream", threads)) => {
            let shard = |shard: &String, seen: &mut Seen| {
                count(TarStream::new(File::open(shard)?).files(), seen, start)
            };
            in_threads(shards, epochs, number(threads)?, shard)?
        }
        Some(("slice", threads)) => {
            let shard = |shard: &String, seen: &mut Seen| {
                count(TarSlice::new(fs::read(shard)?).files(), seen, start)
            };
            in_threads(shards, epochs, number(threads)?, shard)?
        }
        _ => return Err(wrong(format!("{way:?} is no way"))),
    };
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_time().saturating_sub(cpu_before).as_secs_f64();
    let first = seen.first.unwrap_or_default().as_secs_f64() * 1e3;
    let Seen { samples, bytes, .. } = seen;
    println!(
        "{{\"samples\": {samples}, \"bytes\": {bytes}, \"seconds\": {seconds}, \
         \"cpu_s_per_1000\": {}, \"first_batch_ms\": {first}}}",
        1000.0 * cpu / samples.max(1) as f64
    );
    Ok(())
}

/// What a user writes.
fn through_a_pipeline(shards: &[String], epochs: u64, start: Instant) -> Result<Seen> {
    let samples = WebDataset::open_files(shards, &WebDatasetOptions::default())?;
    let pipeline = PipelineBuilder::new(DatasetSource::new(samples))
        .async_stage("fetch", FetchRecord::new(Arc::new(LocalFetcher::new())))
        .epochs(0..epochs)
        .build()?;
    let mut seen = Seen::default();
    for record in pipeline {
        let record = record?;
        for name in ["jpg", "cls"] {
            seen.bytes += match record.get(name)? {
                FieldValue::Bytes(bytes) => bytes.len() as u64,
                // Decoded already; as text it has so many digits.
                FieldValue::Integer(number) => number.to_string().len() as u64,
                other => return Err(wrong(format!("{name} is {}", other.kind()))),
            };
        }
        seen.samples += 1;
        seen.first.get_or_insert_with(|| start.elapsed());
    }
    Ok(seen)
}

/// Each thread takes the next shard until all were read `epochs` times.
fn in_threads(
    shards: &[String],
    epochs: u64,
    threads: u64,
    read: impl Fn(&String, &mut Seen) -> Result<()> + Sync,
) -> Result<Seen> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Seen> {
        let mut seen = Seen::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number as u64 >= epochs * shards.len() as u64 {
                return Ok(seen);
            }
            read(&shards[number % shards.len()], &mut seen)?;
        }
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Seen::default();
        for thread in started {
            let panicked = |_| Error::new(ErrorKind::Panicked, "a thread panicked");
            let seen = thread.join().map_err(panicked)??;
            all.samples += seen.samples;
            all.bytes += seen.bytes;
            all.first = all.first.into_iter().chain(seen.first).min();
        }
        Ok(all)
    })
}

/// Members that follow each other and share a name up to the first dot are a sample.
fn count(
    files: impl Iterator<Item = Result<TarFile>>,
    seen: &mut Seen,
    start: Instant,
) -> Result<()> {
    let mut last = Vec::new();
    for file in files {
        let file = file?;
        let name = file.entry.key.as_bytes();
        let end = name.iter().position(|&byte| byte == b'.').unwrap_or(name.len());
        if name[..end] != last[..] {
            seen.samples += 1;
            seen.first.get_or_insert_with(|| start.elapsed());
            last.clear();
            last.extend_from_slice(&name[..end]);
        }
        seen.bytes += file.data.len() as u64;
    }
    Ok(())
}

/// The CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn number(word: &str) -> Result<u64> {
    word.parse().map_err(|_| wrong(format!("{word:?} is no number")))
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
