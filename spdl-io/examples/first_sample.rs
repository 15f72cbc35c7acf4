//! How long it takes from a folder of many files to the first sample, next to listing the folder
//! with one thread and nothing else.
//!
//! ```sh
//! cargo run --release -p spdl-io --example first_sample -- [FOLDER | FILES [REPETITIONS]]
//! ```
//!
//! Without FOLDER, FILES empty files (1,200,000) in classes of 1,200 are made in a temporary folder.
//! The two take turns; their medians (of 9) and the ratio are shown. The system knows the folders
//! already then; for a cold disk, drop its caches and run once with one repetition.
#![expect(clippy::print_stdout, reason = "a table is what it is for")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::{DatasetSource, Error, ErrorKind, PipelineBuilder, Result};
use spdl_io::{Fetch, ImageFolder, LocalFetcher};

const CLASS: usize = 1_200;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let made = tempfile::tempdir()?;
    let what = arguments.first().map_or("1200000", String::as_str);
    let folder = match what.parse() {
        Ok(files) => make(made.path(), files)?,
        Err(_) => PathBuf::from(what),
    };
    let repetitions = arguments.get(1).map_or(Ok(9), |it| it.parse()).map_err(|error| {
        Error::new(ErrorKind::InvalidArgument, format!("REPETITIONS is no number: {error}"))
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
    println!("names by one thread, unsorted     {:>8.3} s", listed.as_secs_f64());
    println!(
        "ratio                             {:>8.3}",
        first.as_secs_f64() / listed.as_secs_f64()
    );
    Ok(())
}

/// From the path of the folder to the bytes of one file.
fn first_sample(folder: &Path) -> Result<()> {
    let source = DatasetSource::new(ImageFolder::open(folder)?).shuffled(0);
    let mut pipeline = PipelineBuilder::new(source)
        .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
        .build()?;
    match pipeline.next() {
        Some(sample) => sample.map(|_| ()),
        None => Err(Error::new(ErrorKind::NotFound, "there is no sample")),
    }
}

/// What any loader has to do at least.
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

fn make(folder: &Path, files: usize) -> Result<PathBuf> {
    for file in 0..files {
        let class = folder.join(format!("{:05}", file / CLASS));
        if file % CLASS == 0 {
            fs::create_dir(&class)?;
        }
        File::create(class.join(format!("{:05}_{file:08}.JPEG", file / CLASS)))?;
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
