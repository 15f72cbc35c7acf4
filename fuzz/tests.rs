//! Runs fuzz targets as ordinary tests: on seed files, and on mutants of them for a limited time.
//!
//! A panic and a hang are findings: the input is written to a file, and the test fails with the
//! command that reproduces it. The mutants are the same on every run; only their number depends on
//! the speed of the machine. `cargo xtask fuzz` runs the same targets with libFuzzer.

#[path = "mutate.rs"]
mod mutate;

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Seconds per target; the variable `SPDL_FUZZ_SECONDS` replaces this value.
const SECONDS: u64 = 2;

/// Time limit of one input.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Size limit of seed files.
const LARGEST_SEED: usize = 64 << 10;

/// Runs `target` on every seed, then on mutants until the time is over.
///
/// The variable `SPDL_FUZZ_SEED` is the seed of the mutants (default: 0).
pub(crate) fn fuzz(name: &str, seeds: &[Vec<u8>], target: fn(&[u8])) {
    fuzz_from(name, seeds, target, false);
}

/// Like [`fuzz`], for a target that calls functions of C: a crash ends the process, so each input is written to a file
/// before it runs.
#[allow(dead_code, reason = "some packages have no such target")]
pub(crate) fn fuzz_native(name: &str, seeds: &[Vec<u8>], target: fn(&[u8])) {
    fuzz_from(name, seeds, target, true);
}

fn fuzz_from(name: &str, seeds: &[Vec<u8>], target: fn(&[u8]), writes_inputs: bool) {
    assert!(!seeds.is_empty(), "fuzz target {name:?} has no seeds");
    let number = |variable: &str, default: u64| {
        env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let limit = Duration::from_secs(number("SPDL_FUZZ_SECONDS", SECONDS));
    let seed = number("SPDL_FUZZ_SEED", 0);
    let (inputs, watched) = mpsc::channel();
    let watchdog = {
        let name = name.to_owned();
        std::thread::spawn(move || watch(&name, &watched))
    };
    let run = |input: Vec<u8>| {
        inputs.send(input.clone()).expect("the watchdog ends last");
        if writes_inputs {
            reproduce(name, &input);
        }
        if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
            panic!("fuzz target {name:?} panics; {}", reproduce(name, &input));
        }
    };
    let start = Instant::now();
    seeds.iter().cloned().for_each(run);
    let mut mutants = 0_u32;
    while start.elapsed() < limit {
        let index = mutants as usize % seeds.len();
        let other = (mutants as usize / seeds.len() + index) % seeds.len();
        run(mutate::mutant(&seeds[index], &seeds[other], name, seed, mutants));
        mutants += 1;
    }
    drop(inputs);
    watchdog.join().expect("the watchdog does not panic");
    eprintln!("{name}: {} seeds, {mutants} mutants", seeds.len());
}

/// Ends the process if the target takes too long on one input.
fn watch(name: &str, inputs: &mpsc::Receiver<Vec<u8>>) {
    let mut current = Vec::new();
    loop {
        match inputs.recv_timeout(TIMEOUT) {
            Ok(input) => current = input,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let command = reproduce(name, &current);
                eprintln!("fuzz target {name:?} takes more than {TIMEOUT:?}; {command}");
                process::exit(101);
            }
        }
    }
}

/// Writes an input to a file and returns the command that runs the target on it.
fn reproduce(name: &str, input: &[u8]) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    match fs::write(&path, input) {
        Ok(()) => {
            format!("reproduce with: cargo xtask fuzz --target {name} --input {}", path.display())
        }
        Err(error) => format!("cannot write the input to {}: {error}", path.display()),
    }
}

/// The files of a folder of this package with one of these extensions, up to 64 KiB each.
pub(crate) fn files(folder: &str, extensions: &[&str]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry of the folder").path())
        .collect();
    paths.sort();
    let has_extension = |path: &PathBuf| {
        path.extension().is_some_and(|own| extensions.iter().any(|extension| own == *extension))
    };
    let read = |path: PathBuf| fs::read(&path).expect("a readable file");
    let files = paths.into_iter().filter(has_extension).map(read);
    files.filter(|file| file.len() <= LARGEST_SEED).collect()
}
