//! Measures the time from opening a large image folder to its first sample, compared with listing
//! the folder on one thread.
//!
//! ```sh
//! cargo run --release -p spdl-io --example first_sample -- [FOLDER | FILES [REPETITIONS]]
//! ```
//!
//! Without FOLDER, the program creates FILES empty files (default: 1,200,000) in classes of 1,200
//! in a temporary folder. The two measurements alternate, REPETITIONS times each (default: 9). The
//! output shows their medians and the ratio. The folders are in the cache of the operating system.
//! For a cold disk, drop the caches and run once with one repetition.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::{DatasetSource, Error, ErrorKind, PipelineBuilder, Result};
use spdl_io::{Fetch, ImageFolder, LocalFetcher};

const CLASS_SIZE: usize = 1_200;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let temporary = tempfile::tempdir()?;
    let argument = arguments.first().map_or("1200000", String::as_str);
    let folder = match argument.parse() {
        Ok(files) => create_files(temporary.path(), files)?,
        Err(_) => PathBuf::from(argument),
    };
    let repetitions = arguments.get(1).map_or(Ok(9), |it| it.parse()).map_err(|error| {
        Error::new(ErrorKind::InvalidArgument, format!("REPETITIONS is not a number: {error}"))
    })?;

    let (mut first, mut listed) = (Vec::new(), Vec::new());
    let mut files = 0;
    for _ in 0..repetitions {
        first.push(timed(|| first_sample(&folder))?);
        listed.push(timed(|| {
            files = list_with_one_thread(&folder)?;
            Ok(())
        })?);
    }
    let (first, listed) = (median(first), median(listed));
    println!("{files} files, median of {repetitions}");
    println!("first sample, in shuffled order   {:>8.3} s", first.as_secs_f64());
    println!("unsorted listing by one thread    {:>8.3} s", listed.as_secs_f64());
    println!(
        "ratio                             {:>8.3}",
        first.as_secs_f64() / listed.as_secs_f64()
    );
    Ok(())
}

/// Opens the folder and reads the first sample.
fn first_sample(folder: &Path) -> Result<()> {
    let source = DatasetSource::new(ImageFolder::open(folder)?).shuffled(0);
    let mut pipeline = PipelineBuilder::new(source)
        .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
        .build()?;
    match pipeline.next() {
        Some(sample) => sample.map(|_| ()),
        None => Err(Error::new(ErrorKind::NotFound, "the folder holds no samples")),
    }
}

/// Lists all files on one thread, which is the minimum work of any data loader.
fn list_with_one_thread(folder: &Path) -> Result<usize> {
    let mut files = 0;
    let mut pending = vec![folder.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => pending.push(entry.path()),
                false => files += 1,
            }
        }
    }
    Ok(files)
}

fn create_files(folder: &Path, files: usize) -> Result<PathBuf> {
    for file in 0..files {
        let class = folder.join(format!("{:05}", file / CLASS_SIZE));
        if file % CLASS_SIZE == 0 {
            fs::create_dir(&class)?;
        }
        File::create(class.join(format!("{:05}_{file:08}.JPEG", file / CLASS_SIZE)))?;
    }
    Ok(folder.to_path_buf())
}

fn timed(run: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
