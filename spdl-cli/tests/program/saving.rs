//! The checkpoint file: when it is replaced, and the messages about it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spdl_core::StateFile;

use crate::common::{Folder, Run, bench, finish, image_name, png, spdl};

/// Twenty images in batches of four, and a folder for other files.
struct Training {
    images: Folder,
    beside: Folder,
}

impl Training {
    fn new() -> Self {
        Training { images: Folder::with_images(20, 2), beside: Folder::new() }
    }

    fn file(&self, name: &str) -> String {
        self.beside.join(name).to_str().unwrap().to_owned()
    }

    fn run(&self, more: &[&str]) -> Run {
        let settings = ["--mode", "train", "--batch", "4"];
        bench(self.images.path(), &[&settings[..], more].concat())
    }

    /// Saves the checkpoint of a run that failed in the first of two epochs.
    fn break_off(&self, file: &str) {
        let image = self.images.join(image_name(7, 2));
        fs::write(&image, b"no image").unwrap();
        let run = self.run(&["--epochs", "2", "--seed", "3", "--save-state", file]);
        assert_eq!(run.code, 1, "{}", run.stdout);
        fs::write(&image, png(7)).unwrap();
        let state = StateFile::new(file).load().unwrap();
        assert!(state.epoch() == 0 && state.steps() > 0, "{state:?}");
    }
}

fn names(folder: &Folder) -> Vec<String> {
    let files = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_checkpoints_are_replaced() {
    let training = Training::new();
    let notes = training.file("notes");
    fs::write(&notes, "dear diary").unwrap();
    let image = training.images.join(image_name(0, 2));
    let pipe = training.file("pipe");
    let mut places =
        vec![notes, image.to_str().unwrap().to_owned(), "/dev/full".into(), "/dev/null".into()];
    match std::process::Command::new("mkfifo").arg(&pipe).status() {
        Ok(made) if made.success() => places.push(pipe),
        _ => println!("SKIPPED: mkfifo is not installed"),
    }
    for place in &places {
        let kind = fs::symlink_metadata(place).unwrap().file_type();
        let run = training.run(&["--save-state", place, "--overwrite-state"]);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{place}");
        let line = run.line();
        assert!(line.contains("cannot save checkpoints") && line.contains(place), "{line}");
        assert_eq!(fs::symlink_metadata(place).unwrap().file_type(), kind);
        let read = training.run(&["--resume", place]);
        assert!(read.code == 1 && read.line().contains(place), "{}", read.line());
    }
    // An unnamed pipe, as of `<(command)`.
    for [first, second] in [["--resume", "/dev/stdin"], ["--save-state", "/dev/stdin"]] {
        let mut command = spdl();
        command.arg("bench").arg(training.images.path()).args([first, second]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = finish(child.spawn().unwrap().wait_with_output().unwrap());
        assert!(run.code == 1 && run.line().contains("is a pipe"), "{}", run.line());
    }
    assert_eq!(fs::read(&places[0]).unwrap(), b"dear diary");
    assert_eq!(fs::read(image).unwrap(), png(0));
}

#[test]
fn an_incomplete_run_is_not_overwritten_by_default() {
    let training = Training::new();
    let undisturbed = training.run(&["--epochs", "2", "--seed", "3", "--json"]).json();
    let file = training.file("run.state");
    training.break_off(&file);
    let before = StateFile::new(&file).load().unwrap();
    let settings = ["--epochs", "2", "--seed", "3", "--save-state", &file, "--json"];
    let run = training.run(&settings);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    for words in [&file, "incomplete run, epoch 0, step", "--auto-resume", "--overwrite-state"] {
        assert!(run.line().contains(words), "{}", run.line());
    }
    assert_eq!(StateFile::new(&file).load().unwrap(), before);
    // Also with fewer epochs, or with --resume from another file.
    assert_eq!(training.run(&["--save-state", &file]).code, 1);
    let other = training.file("other.state");
    fs::copy(&file, &other).unwrap();
    let elsewhere = [&settings[..], &["--resume", &other]].concat();
    assert_eq!(training.run(&elsewhere).code, 1);
    // An unreadable checkpoint is not overwritten either.
    let damaged = training.file("damaged.state");
    fs::write(&damaged, "{\"file\":\"spdl state\",").unwrap();
    let run = training.run(&["--save-state", &damaged]);
    assert!(run.code == 1 && run.line().contains("truncated"), "{}", run.line());

    let json = training.run(&[&settings[..], &["--auto-resume"]].concat()).json();
    assert_eq!(json["checksum"], undisturbed["checksum"]);
    // A complete run may be overwritten.
    assert_eq!(training.run(&settings).json()["images"], 40);
    training.break_off(&training.file("again.state"));
    let again = ["--save-state", &training.file("again.state"), "--overwrite-state", "--json"];
    assert_eq!(training.run(&again).json()["images"], 20);
}

#[test]
fn one_command_line_starts_and_resumes() {
    let training = Training::new();
    let undisturbed = training.run(&["--epochs", "2", "--seed", "3", "--json"]).json();
    let file = training.file("run.state");
    let line = ["--epochs", "2", "--seed", "3", "--save-state", &file, "--auto-resume", "--json"];
    let first = training.run(&line).json();
    assert_eq!((&first["resumed"], &first["complete"]), (&Value::Null, &json!(false)));
    assert_eq!(first["checksum"], undisturbed["checksum"]);
    // An empty file, as `mktemp` creates.
    fs::write(&file, "").unwrap();
    // Absent if a busy machine wrote only the last checkpoint.
    drop(fs::remove_file(format!("{file}.previous")));
    assert_eq!(training.run(&line).json()["resumed"], Value::Null);
    fs::remove_file(&file).unwrap();
    drop(fs::remove_file(format!("{file}.previous")));
    training.break_off(&file);
    let rest = training.run(&line).json();
    assert_eq!(rest["checksum"], undisturbed["checksum"]);
    assert_eq!(rest["resumed"]["epoch"], 0);
    assert_eq!(names(&training.beside), ["run.state", "run.state.previous"]);
}

#[test]
fn a_resumed_run_prints_its_position_and_totals() {
    let training = Training::new();
    let file = training.file("run.state");
    let damaged = image_name(5, 2);
    let sound = training.images.join(&damaged);
    fs::write(&sound, b"no image").unwrap();
    let settings = ["--seed", "3", "--on-error", "skip", "--save-state", &file];
    assert_eq!(training.run(&settings).code, 0);
    let state = fs::read(&file).unwrap();
    let run = training.run(&[&settings[..], &["--resume", &file, "--epochs", "3"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let expected = "spdl: resuming in epoch 1 at step 0: 20 of 60 images already done";
    assert_eq!(run.line(), expected);
    for line in
        ["images          38", "images, total   57", "dropped         2", "dropped, total  3"]
    {
        assert!(run.stdout.lines().any(|result| result == line), "{line}: {}", run.stdout);
    }
    fs::write(&file, state).unwrap();
    let run =
        training.run(&[&settings[..], &["--auto-resume", "--epochs", "3", "--json"]].concat());
    assert_eq!(run.stderr, "");
    let json = run.json();
    assert_eq!(
        json["resumed"],
        json!({"epoch": 1, "step": 0, "steps": 5, "images": 19, "dropped": 1})
    );
    assert_eq!(json["total"], json!({"images": 57, "dropped": 3}));
    assert_eq!((&json["images"], &json["complete"]), (&json!(38), &json!(false)));
}

#[test]
fn a_complete_run_is_reported_as_complete() {
    let training = Training::new();
    let file = training.file("run.state");
    let line = ["--epochs", "2", "--save-state", &file, "--auto-resume"];
    let checksum = training.run(&[&line[..], &["--json"]].concat()).json()["checksum"].clone();
    let run = training.run(&line);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.stderr, "");
    let result = "The run was already complete: 2 epochs, 40 images delivered, 0 dropped.";
    assert!(run.stdout.lines().any(|line| line == result), "{}", run.stdout);
    let sum = format!("checksum  {}", checksum.as_str().unwrap());
    assert!(run.stdout.contains(&sum), "{}", run.stdout);
    assert!(!run.stdout.contains("too little") && !run.stdout.contains("queue"), "{}", run.stdout);
    let report = training.file("report.html");
    let json = training.run(&[&line[..], &["--json", "--report", &report]].concat()).json();
    assert_eq!((&json["complete"], &json["checksum"]), (&json!(true), &checksum));
    assert_eq!(json["total"], json!({"images": 40, "dropped": 0}));
    assert!(fs::read_to_string(report).unwrap().contains(result));
}

#[test]
fn a_checkpoint_beyond_the_epochs_is_an_error() {
    let training = Training::new();
    let file = training.file("run.state");
    assert_eq!(training.run(&["--epochs", "2", "--save-state", &file]).code, 0);
    let run = training.run(&["--epochs", "1", "--resume", &file]);
    assert_eq!(run.code, 2);
    let line = run.line();
    assert!(line.contains("is in epoch 2") && line.contains("beyond --epochs 1"), "{line}");
    // In the epoch after the last one.
    let broken = training.file("broken.state");
    training.break_off(&broken);
    let mut value: Value = serde_json::from_str(&fs::read_to_string(&broken).unwrap()).unwrap();
    value["state"]["epoch"] = json!(1);
    let mut state: spdl_core::State = serde_json::from_value(value["state"].clone()).unwrap();
    state.notes.clear();
    let moved = training.file("moved.state");
    StateFile::new(&moved).save(&state).unwrap();
    let settings = ["--seed", "3", "--no-checksum", "--resume", &moved];
    let run = training.run(&[&settings[..], &["--epochs", "1"]].concat());
    assert!(run.code == 2 && run.line().contains("beyond --epochs 1"), "{}", run.line());
    assert_eq!(training.run(&[&settings[..], &["--epochs", "2"]].concat()).code, 0);
}

#[test]
fn two_runs_cannot_save_to_one_file() {
    let training = Training::new();
    let file = training.file("run.state");
    let mut command = spdl();
    command.arg("bench").arg(training.images.path()).args(["--epochs", "1000000"]);
    command.args(["--save-state", &file, "--json"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = command.spawn().unwrap();
    let start = Instant::now();
    while !Path::new(&file).exists() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    for way in ["--auto-resume", "--overwrite-state"] {
        let run = training.run(&["--save-state", &file, way]);
        assert_eq!(run.code, 1);
        let line = run.line();
        assert!(line.contains("another process or thread saves states to this file"), "{line}");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let stale = training.file(&format!("run.state.{}.partial", u32::MAX));
    fs::write(&stale, "{").unwrap();
    let run = training.run(&["--save-state", &file, "--overwrite-state"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(names(&training.beside), ["run.state", "run.state.previous"]);
}

#[test]
fn checkpoints_that_all_ranks_resume_from_are_not_replaced() {
    let training = Training::new();
    let states = [0, 1].map(|rank| {
        let file = training.file(&format!("rank{rank}.state"));
        let rank = rank.to_string();
        let shard = ["--rank", &rank, "--world-size", "2", "--save-state", &file];
        assert_eq!(training.run(&shard).code, 0);
        file
    });
    let go_on = |save: &str| {
        let resume = ["--epochs", "2", "--resume", &states[0], &states[1]];
        let shard = ["--rank", "0", "--world-size", "3", "--save-state", save];
        training.run(&[&resume[..], &shard].concat())
    };
    let run = go_on(&states[0]);
    assert!(run.code == 2 && run.line().contains("other ranks resume from"), "{}", run.line());
    let run = go_on(&training.file("of3.rank0.state"));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.line(), "spdl: resuming in epoch 1 at step 0: 20 images already done");
    // Another --remainder is another division among ranks.
    let uneven = ["--rank", "0", "--world-size", "2", "--remainder", "uneven"];
    let run = training.run(&[&uneven[..], &["--epochs", "2", "--resume", &states[0]]].concat());
    assert_eq!(run.code, 2);
    for words in ["--remainder drop", "--remainder uneven", "all ranks"] {
        assert!(run.line().contains(words), "{}", run.line());
    }
    // The message contains no Rust names.
    let one_missing = ["--epochs", "2", "--resume", &states[0], &states[0]];
    let run = training.run(&[&one_missing[..], &["--rank", "0", "--world-size", "3"]].concat());
    assert!(run.code == 1 && !run.line().contains("State::"), "{}", run.line());
}

#[test]
fn the_text_mentions_images_that_no_rank_delivers() {
    let folder = Folder::with_images(20, 2);
    let run = |rank: &str, more: &[&str]| {
        bench(folder.path(), &[&["--rank", rank, "--world-size", "3"], more].concat())
    };
    let text = run("0", &[]).stdout;
    let result = "2 images of each epoch are left out, so that all 3 ranks have the same number";
    assert!(text.contains(result) && text.contains("rank 0 of 3"), "{text}");
    assert!(run("0", &["--remainder", "pad"]).stdout.contains("1 image of each epoch is repeated"));
    let text = run("0", &["--remainder", "uneven"]).stdout;
    assert!(!text.contains("left out") && !text.contains("repeated"), "{text}");
    for (remainder, images, left_out) in
        [("drop", [6, 6, 6], 2), ("pad", [7, 7, 7], 0), ("uneven", [7, 7, 6], 0)]
    {
        for (rank, expected) in ["0", "1", "2"].into_iter().zip(images) {
            let json = run(rank, &["--remainder", remainder, "--json"]).json();
            assert_eq!((&json["images"], &json["left_out"]), (&json!(expected), &json!(left_out)));
        }
    }
    assert!(!bench(folder.path(), &[]).stdout.contains("left out"));
}

#[test]
fn help_lines_fit_100_columns() {
    for command in [&["--help"][..], &["bench", "--help"], &["verify-order", "--help"]] {
        let run = finish(spdl().args(command).env("COLUMNS", "200").output().unwrap());
        let long = run.stdout.lines().find(|line| line.chars().count() > 100);
        assert_eq!((run.code, long), (0, None));
        // A line with a single lower-case word is the rest of a line that was wrapped twice.
        for pair in run.stdout.lines().collect::<Vec<_>>().windows(2) {
            let alone = pair[1].trim_end().starts_with(char::is_lowercase)
                && pair[1].split_whitespace().count() == 1;
            assert!(!(alone && pair[0].chars().count() > 80), "{pair:?}");
        }
    }
    let help = finish(spdl().args(["bench", "--help"]).output().unwrap()).stdout;
    for words in ["FILE.previous", "--auto-resume", "--overwrite-state", "FILE.lock"] {
        assert!(help.contains(words), "{words}");
    }
}
