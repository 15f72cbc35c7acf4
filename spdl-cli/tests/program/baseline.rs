//! `spdl bench --baseline`: methods, conclusions and exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Folder, Run, bench, finish, spdl};

/// Writes a baseline with these options and rates.
fn baseline(folder: &Folder, arguments: Option<&[&str]>, rates: &[f64]) -> PathBuf {
    let path = folder.join("old.json");
    let object = json!({"arguments": arguments, "epoch_images_per_s": rates});
    fs::write(&path, object.to_string()).unwrap();
    path
}

/// A program that prints this rate in the JSON object of `spdl bench`.
fn program(folder: &Folder, rate: f64) -> PathBuf {
    script(folder, &format!("rate-{rate}"), &format!("echo '{{\"images_per_s\": {rate}}}'"))
}

/// A program that runs these commands.
fn script(folder: &Folder, name: &str, commands: &str) -> PathBuf {
    let (text, path) = (folder.join("text"), folder.join(name));
    fs::write(&text, format!("#!/bin/sh\n{commands}\n")).unwrap();
    // Another process writes the program: a descriptor that this process has open for writing may
    // be inherited by the children of other tests, and then the program cannot be run.
    let install = Command::new("install").args(["-m", "755"]).arg(&text).arg(&path).status();
    assert!(install.unwrap().success());
    path
}

fn compare(images: &Path, baseline: &Path, more: &[&str]) -> Run {
    bench(images, &[&["--json", "--baseline", baseline.to_str().unwrap()], more].concat())
}

fn object(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr))
}

#[test]
fn stored_rates_are_compared_with_the_epochs_of_this_run() {
    let (images, folder) = (Folder::with_images(40, 2), Folder::new());
    let epochs = &["--epochs", "6"][..];
    // This run is neither a thousand times slower nor faster by chance.
    for (rate, conclusion, code) in [(1.0, "faster", 0), (1e9, "slower", 3)] {
        let old = baseline(&folder, None, &[5.0, rate, rate * 1.01, rate]);
        let run = compare(images.path(), &old, epochs);
        let object = object(&run);
        assert_eq!((run.code, &object["conclusion"]), (code, &conclusion.into()));
        assert_eq!(object["method"], "stored");
        // The first epoch does not count.
        assert_eq!(object["baseline_images_per_s"].as_array().unwrap().len(), 3);
        assert_eq!(object["images_per_s"].as_array().unwrap().len(), 5);
    }
    // Rates whose noise is too large.
    let old = baseline(&folder, None, &[5.0, 1e-3, 1e12]);
    let run = compare(images.path(), &old, epochs);
    assert_eq!((run.code, &object(&run)["conclusion"]), (4, &"cannot-tell".into()));
    assert!(run.line().contains("cannot tell"), "{}", run.stderr);
}

#[test]
fn a_run_is_its_own_baseline() {
    let (images, folder) = (Folder::with_images(40, 2), Folder::new());
    let run = bench(images.path(), &["--json", "--epochs", "4", "--threads", "1"]);
    let path = images.path().to_str().unwrap();
    let options = ["--size", "24", "--batch", "16", "--epochs", "4", "--threads", "1"];
    assert_eq!(run.json()["arguments"], json!([&[path][..], &options].concat()));
    let old = folder.join("old.json");
    fs::write(&old, &run.stdout).unwrap();
    // Equal options: a run of the same program would compare it with itself.
    let same = compare(images.path(), &old, &["--epochs", "4", "--threads", "1"]);
    assert_eq!(object(&same)["method"], "stored");
    // Other options: both run alternately.
    let other = compare(images.path(), &old, &["--epochs", "4", "--threads", "2", "--rounds", "2"]);
    let other = object(&other);
    assert_eq!(other["method"], "interleaved");
    assert_eq!(other["baseline_images_per_s"].as_array().unwrap().len(), 2);
    assert_eq!(other["images_per_s"].as_array().unwrap().len(), 2);
}

#[test]
fn an_older_program_runs_alternately_with_this_one() {
    let (images, folder) = (Folder::with_images(20, 2), Folder::new());
    let old = baseline(&folder, Some(&["photos"]), &[1.0]);
    for (rate, conclusion, code) in [(1e-3, "faster", 0), (1e9, "slower", 3)] {
        let program = program(&folder, rate);
        let more = ["--baseline-program", program.to_str().unwrap(), "--rounds", "3"];
        let run = compare(images.path(), &old, &more);
        let object = object(&run);
        assert_eq!((run.code, &object["conclusion"]), (code, &conclusion.into()), "{object}");
        assert_eq!(object["baseline_images_per_s"], json!([rate, rate, rate]));
    }
    // The text has a table, and a sentence with the interval.
    let program = program(&folder, 1e9);
    let mut command = spdl();
    command.arg("bench").arg(images.path()).arg("--baseline").arg(&old);
    command.arg("--baseline-program").arg(&program).args(["--rounds", "2"]);
    let run = finish(command.output().unwrap());
    assert_eq!(run.code, 3);
    let header: Vec<&str> = run.stdout.lines().next().unwrap().split("  ").collect();
    assert_eq!((header[0], header.last()), ("round", Some(&"this run/s")), "{}", run.stdout);
    assert!(run.stdout.contains("confidence interval of"), "{}", run.stdout);
    assert!(run.stderr.contains("spdl: round 2 of 2: "), "{}", run.stderr);
    assert!(run.stderr.ends_with("spdl: slower than the baseline\n"), "{}", run.stderr);
}

#[test]
fn a_failed_round_and_unsuitable_baselines_are_errors() {
    let (images, folder) = (Folder::with_images(20, 2), Folder::new());
    let failing = script(&folder, "failing", "echo why >&2\nexit 7");
    let old = baseline(&folder, Some(&["photos"]), &[1.0]);
    let run = compare(images.path(), &old, &["--baseline-program", failing.to_str().unwrap()]);
    assert_eq!(run.code, 1);
    assert!(run.line().contains("why"), "{}", run.stderr);

    // A baseline may not make the program write files.
    let report = folder.join("report.html");
    let writes = ["photos", "--report", report.to_str().unwrap()];
    let old = baseline(&folder, Some(&writes), &[1.0]);
    let run = compare(images.path(), &old, &[]);
    assert_eq!(run.code, 1);
    assert!(run.line().contains("do not load data") && !report.exists(), "{}", run.stderr);

    for (rates, more, words) in [
        (&[1.0, 2.0][..], &["--epochs", "5"][..], "too short"),
        (&[1.0, 2.0, 2.0], &["--epochs", "2"], "at least 3 epochs"),
        (&[1.0, 2.0, 2.0], &["--epochs", "5", "--baseline-program", "x"], "`arguments`"),
    ] {
        let old = baseline(&folder, None, rates);
        let run = compare(images.path(), &old, more);
        assert_ne!(run.code, 0);
        assert!(run.line().contains(words), "{}", run.stderr);
    }
    fs::write(&old, "{}").unwrap();
    assert!(compare(images.path(), &old, &[]).line().contains("epoch_images_per_s"));
    let missing = bench(images.path(), &["--baseline", "no/such.json"]);
    assert!(missing.code == 1 && missing.line().contains("no/such.json"), "{}", missing.stderr);
}
