//! Interrupted runs, and their resume.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use spdl_core::{DatasetSource, PipelineBuilder, Shard, StateFile};

use crate::common::{Folder, Run, bench, finish, image_name, spdl};

/// The options that determine the batches.
const SETTINGS: [&str; 8] = ["--mode", "train", "--epochs", "3", "--batch", "7", "--size", "32"];

/// A folder of images, and a checkpoint file.
struct Training {
    images: Folder,
    beside: Folder,
}

impl Training {
    fn new(images: u32) -> Self {
        Training { images: Folder::with_images(images, 3), beside: Folder::new() }
    }

    fn state(&self) -> PathBuf {
        self.beside.join("run.state")
    }

    fn run(&self, more: &[&str]) -> Run {
        bench(self.images.path(), &[&SETTINGS[..], &["--json"], more].concat())
    }

    /// Starts a run that saves after every batch, and resumes if a checkpoint exists.
    fn start(&self) -> Child {
        let mut command = spdl();
        command.arg("bench").arg(self.images.path()).args(SETTINGS).arg("--json");
        command.arg("--save-state").arg(self.state());
        if StateFile::new(self.state()).exists() {
            command.arg("--resume").arg(self.state());
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Resumes and runs to the end.
    fn finish(&self) -> Run {
        finish(self.start().wait_with_output().unwrap())
    }

    fn steps(&self) -> u64 {
        StateFile::new(self.state()).load().map_or(0, |state| state.steps())
    }
}

fn checksum(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{}", run.stderr);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(json["checksum"].is_string());
    json["checksum"].clone()
}

/// Random numbers from 0 to `most`, by SplitMix64.
fn random(state: &mut u64, most: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % (most + 1)
}

/// Damages the state file in place, as a crash of the machine may: a part of it is written, the
/// rest is missing or zero.
fn tear(path: &Path, seed: &mut u64) {
    let mut bytes = std::fs::read(path).unwrap();
    let len = bytes.len();
    let written = random(seed, len as u64 - 1) as usize;
    bytes.truncate(written);
    if random(seed, 1) == 0 {
        bytes.resize(len, 0);
    }
    // Into the same inode, not into a new file.
    std::fs::write(path, bytes).unwrap();
}

// promise: R11
#[test]
fn killed_runs_resume_to_the_same_checksum() {
    let kills = std::env::var("SPDL_RESUME_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let training = Training::new(300);
    let beside = text(&training.beside.join("undisturbed.state"));
    let undisturbed = checksum(&training.run(&["--save-state", &beside]));
    // The same bytes, number of batches, and outcomes of samples.
    let reached = StateFile::new(&beside).load().unwrap();
    assert_eq!((reached.epoch(), reached.steps()), (3, 3 * 43));
    let previous = training.beside.join("run.state.previous");
    let (mut seed, mut killed, mut advanced, mut torn, mut ended) = (7, 0, 0, 0, 0);
    while killed < kills {
        let before = training.steps();
        let mut child = training.start();
        // On a busy machine, most runs take longer than 120 ms to their first step.
        let waits = random(&mut seed, 3) == 0;
        while waits && training.steps() <= before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(random(&mut seed, 120)));
        child.kill().unwrap();
        let run = child.wait_with_output().unwrap();
        if run.status.signal() == Some(9) {
            killed += 1;
            advanced += u32::from(training.steps() > before);
            let is_torn = random(&mut seed, 2) == 0 && previous.exists();
            if is_torn && std::fs::metadata(training.state()).is_ok_and(|it| it.len() > 0) {
                torn += 1;
                tear(&training.state(), &mut seed);
                let state = StateFile::new(training.state()).recover();
                let (_, damage) = state.expect("the previous state is another file");
                assert!(damage.is_some(), "the damage must be found");
            }
        } else {
            // The run ended before the kill; the next one starts new.
            assert_eq!(checksum(&finish(run)), undisturbed);
            assert_eq!(StateFile::new(training.state()).load().unwrap(), reached);
            ended += 1;
            for file in ["run.state", "run.state.previous"] {
                let _ = std::fs::remove_file(training.beside.join(file));
            }
        }
    }
    assert_eq!(checksum(&training.finish()), undisturbed);
    assert_eq!(StateFile::new(training.state()).load().unwrap(), reached);
    println!("{killed} kills, {advanced} after new steps, {torn} torn state files, {ended} ends");
    assert!(advanced * 10 >= killed, "only {advanced} of {killed} kills were after new steps");
    assert!(torn * 10 >= killed, "only {torn} state files of {killed} were torn");
}

#[test]
fn a_signal_stops_a_run_and_saves_a_checkpoint() {
    for signal in ["TERM", "INT"] {
        let training = Training::new(300);
        let undisturbed = checksum(&training.run(&[]));
        let child = training.start();
        while training.steps() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut kill = Command::new("kill");
        let sent = kill.arg(format!("-{signal}")).arg(child.id().to_string()).status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let result = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            println!("SKIPPED: the run ended before SIG{signal}");
            continue;
        }
        let number = if signal == "TERM" { 15 } else { 2 };
        assert_eq!(output.status.signal(), Some(number), "{result}");
        let steps = training.steps();
        let words = [format!("stopped after {steps} batches"), "--resume".into()];
        assert!(words.iter().all(|word| result.contains(word)), "{result}");
        // The results so far are printed.
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json["images"].as_u64().unwrap() > 0);
        assert_eq!(checksum(&training.finish()), undisturbed);
    }
}

#[test]
fn a_complete_run_resumes_to_the_same_checksum() {
    let training = Training::new(20);
    let undisturbed = checksum(&training.run(&["--save-state", &text(&training.state())]));
    let again = training.finish();
    assert_eq!(checksum(&again), undisturbed);
    let json: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(json["images"], 0);
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_changed_option_prevents_a_resume() {
    let training = Training::new(20);
    let state = text(&training.state());
    assert_eq!(training.run(&["--save-state", &state]).code, 0);
    let resume = ["--resume", &state];
    for (other, words) in [
        (["--seed", "8"], ["seed", "8"]),
        (["--batch", "5"], ["batch", "5"]),
        (["--mode", "eval"], ["--mode was train, is eval", "--allow-change mode"]),
        (["--size", "33"], ["33", "32"]),
        (["--layout", "nchw-u8"], ["--layout was nhwc-u8, is nchw-u8", "--allow-change layout"]),
    ] {
        let run = training.run(&[&resume[..], &other].concat());
        assert_eq!(run.code, 1, "{other:?}");
        let line = run.line();
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    // One renamed image, then one more image.
    std::fs::rename(
        training.images.join("class-0/0000.png"),
        training.images.join("class-0/a.png"),
    )
    .unwrap();
    let run = training.run(&resume);
    assert!(run.code == 1 && run.line().contains("contents was"), "{}", run.line());
    training.images.add("class-0/more.png", &crate::common::png(99));
    let run = training.run(&resume);
    assert!(run.code == 1 && run.line().contains("items was 20, is 21"), "{}", run.line());
}

#[test]
fn a_checkpoint_without_checksum_requires_no_checksum() {
    let training = Training::new(20);
    let state = text(&training.state());
    assert_eq!(training.run(&["--save-state", &state, "--no-checksum"]).code, 0);
    let run = training.run(&["--resume", &state]);
    assert!(run.code == 2 && run.line().contains("--no-checksum"), "{}", run.line());
    assert_eq!(training.run(&["--resume", &state, "--no-checksum"]).code, 0);
}

#[test]
fn an_invalid_checkpoint_file_is_an_error() {
    let training = Training::new(2);
    let file = training.beside.join("rubbish");
    std::fs::write(&file, "rubbish").unwrap();
    for path in [text(&file), text(&training.beside.join("none"))] {
        for arguments in [&["--resume", &path][..], &["verify-order", &path]] {
            let run = match arguments {
                ["verify-order", ..] => finish(spdl().args(arguments).output().unwrap()),
                _ => training.run(arguments),
            };
            assert_eq!(run.code, 1);
            assert!(run.line().contains(&path), "{}", run.line());
        }
    }
}

/// The numbers of steps after which the end of an epoch is known, for two and three ranks.
const ENDS: [usize; 4] = [50, 33, 66, 100];

/// Checkpoints of all ranks over 100 positions, after the given steps.
fn ranks(folder: &Folder, steps: &[usize]) -> Vec<PathBuf> {
    let world = steps.len() as u64;
    let rank = |(rank, &steps): (usize, &usize)| {
        let numbers = DatasetSource::new((0..100).collect::<Vec<u32>>()).shuffled(1);
        let shard = Shard::new(rank as u64, world).unwrap();
        let builder = PipelineBuilder::new(numbers).shard(shard).deterministic().epochs(0..3);
        let mut pipeline = builder.build().unwrap();
        // Epoch by epoch, so that the end of the last one is known.
        let mut left = steps;
        while left > 0 {
            let mut epoch = pipeline.next_epoch().unwrap();
            let taken = epoch.by_ref().take(left).count();
            left -= taken;
            if left > 0 || ENDS.contains(&steps) {
                assert_eq!(epoch.count(), 0);
            }
        }
        let path = folder.join(format!("rank{rank}.state"));
        StateFile::new(&path).save(&pipeline.state().unwrap()).unwrap();
        path
    };
    steps.iter().enumerate().map(rank).collect()
}

// promise: CORE6
#[test]
fn verify_order_lists_missing_and_repeated_positions() {
    let folder = Folder::new();
    let verify = |states: &[&PathBuf], more: &[&str]| {
        finish(spdl().arg("verify-order").args(states).args(more).output().unwrap())
    };
    let states = ranks(&folder, &[10, 8]);
    let all: Vec<_> = states.iter().collect();
    let run = verify(&all, &[]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("18 of 100"), "{}", run.stdout);
    let json: Value = serde_json::from_str(&verify(&all, &["--json"]).stdout).unwrap();
    let expected = serde_json::json!({
        "epoch": 0, "positions": 100, "done": 18, "missing": [[17, 18], [19, 100]], "repeated": [],
        "missing_positions": 82, "repeated_positions": 0, "remainder": [], "ahead": [],
        "ended": false, "over": false, "absent_ranks": 0,
    });
    assert_eq!(json, expected);
    let run = verify(&all, &["--complete"]);
    assert!(run.code == 1 && run.line().contains("82"), "{}", run.line());
    // Rank 0 twice, as after a copying mistake.
    let run = verify(&[&states[0], &states[0]], &[]);
    assert!(run.code == 1 && run.line().contains("done more than once"), "{}", run.line());
    assert_eq!(verify(&[], &[]).code, 2);
}

#[test]
fn ranks_share_the_images_of_an_epoch() {
    let folder = Folder::with_images(10, 1);
    let images = |more: &[&str]| {
        let run = bench(folder.path(), &[&["--json"], more].concat());
        let json: Value = serde_json::from_str(&run.stdout).unwrap();
        json["images"].as_u64().unwrap()
    };
    assert_eq!(images(&["--rank", "0", "--world-size", "3"]), 3);
    assert_eq!(images(&["--rank", "2", "--world-size", "3"]), 3);
    let run = bench(folder.path(), &["--rank", "3", "--world-size", "3"]);
    assert!(run.code == 2 && run.line().contains("rank 3"), "{}", run.line());
    let run = bench(folder.path(), &["--rank", "0"]);
    assert!(run.code == 2 && run.line().contains("--world-size"), "{}", run.line());
}

#[test]
fn verify_order_handles_epoch_ends_remainders_and_ranks_ahead() {
    let verify = |steps: &[usize], more: &[&str]| {
        let folder = Folder::new();
        let states = ranks(&folder, steps);
        let run = finish(spdl().arg("verify-order").args(&states).args(more).output().unwrap());
        (run.code, run.stdout.trim_end().to_owned(), run.stderr)
    };
    let complete = |steps: &[usize], words: &str| {
        let (code, result, error) = verify(steps, &["--complete"]);
        assert_eq!((code, result.as_str()), (0, words), "{steps:?}: {error}");
    };
    // Three ranks leave one of 100 positions; before and after the end of the epoch.
    let (code, result, error) = verify(&[32, 32, 32], &["--complete"]);
    let missing = "epoch 0: 96 of 100 positions done, 3 missing: 96..99, none repeated, \
                   assigned to no rank: 99";
    assert_eq!((code, result.as_str()), (1, missing), "{error}");
    complete(&[33, 33, 33], "epoch 0 has ended; epoch 1 (100 positions) has not started");
    // One rank has ended the epoch, or has begun the next one.
    for (steps, ahead) in [([32, 33, 32], 1), ([32, 40, 32], 1), ([32, 66, 32], 2)] {
        let words = format!(
            "epoch 0: 97 of 100 positions done, 2 missing: 96, 98, none repeated, assigned to no rank: \
             99; rank 1 is already in epoch {ahead}"
        );
        let (code, result, error) = verify(&steps, &[]);
        assert_eq!((code, result.as_str()), (0, words.as_str()), "{error}");
        assert_eq!(verify(&steps, &["--complete"]).0, 1);
    }
    let (_, result, _) = verify(&[34, 33, 33], &["--json"]);
    let json: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(
        (&json["epoch"], &json["done"], &json["ended"]),
        (&1.into(), &1.into(), &false.into())
    );
    let (_, result, _) = verify(&[33, 66, 33], &["--json"]);
    let json: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(json["ahead"], serde_json::json!([{"rank": 1, "epoch": 2}]));
    let (_, result, _) = verify(&[33, 33, 33], &["--json"]);
    let json: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(
        (&json["ended"], &json["remainder"]),
        (&true.into(), &serde_json::json!([[99, 100]]))
    );
    // A run that has not begun has ended no epoch.
    let (code, result, _) = verify(&[0, 0], &["--complete"]);
    assert_eq!(
        (code, result.as_str()),
        (1, "epoch 0: 0 of 100 positions done, 100 missing: 0..100, none repeated")
    );
}

#[test]
fn the_checkpoints_of_all_ranks_resume_with_another_world_size() {
    let images = Folder::with_images(60, 3);
    let beside = Folder::new();
    let state = |rank: u32| text(&beside.join(format!("rank{rank}.state")));
    let run = |world: u32, rank: u32, more: &[&str]| {
        let shard = ["--rank", &rank.to_string(), "--world-size", &world.to_string()];
        bench(
            images.path(),
            &[&["--json", "--batch", "3", "--size", "32"], &shard[..], more].concat(),
        )
    };
    let count = |run: &Run| -> u64 {
        assert_eq!(run.code, 0, "{}", run.stderr);
        let json: Value = serde_json::from_str(&run.stdout).unwrap();
        assert!(json["checksum"].is_string());
        json["images"].as_u64().unwrap()
    };
    // Two ranks after one of two epochs.
    for rank in 0..2 {
        let more = ["--epochs", "1", "--save-state", &state(rank)];
        assert_eq!(count(&run(2, rank, &more)), 30);
    }
    let both = ["--epochs", "2", "--resume", &state(0), &state(1)];
    let total: u64 = (0..3).map(|rank| count(&run(3, rank, &both))).sum();
    assert_eq!(total, 60, "all of the second epoch");
    // The same command line for the start and for all restarts.
    let new = text(&beside.join("new.state"));
    let line = [&both[..], &["--save-state", &new, "--auto-resume"]].concat();
    assert_eq!(count(&run(3, 0, &line)), 20);
    let again = run(3, 0, &line);
    assert!(again.code == 0 && again.json()["images"] == 0, "{}{}", again.stdout, again.stderr);
    // One file is not enough, and a repeated file is an error.
    let run_one = run(3, 0, &["--epochs", "2", "--resume", &state(0)]);
    assert_eq!(run_one.code, 2);
    assert!(
        run_one.line().contains("rank 0 of 2") && run_one.line().contains("all ranks"),
        "{}",
        run_one.line()
    );
    let twice = run(3, 0, &["--epochs", "2", "--resume", &state(0), &state(0)]);
    assert!(
        twice.code == 1 && twice.line().contains("duplicate state of rank 0"),
        "{}",
        twice.line()
    );
}

#[test]
fn allow_change_accepts_a_changed_option() {
    let training = Training::new(20);
    let state = text(&training.state());
    assert_eq!(training.run(&["--save-state", &state]).code, 0);
    let other = ["--resume", &state, "--size", "40"];
    let refused = training.run(&other);
    assert_eq!(refused.code, 1);
    let result = refused.line();
    let words = [
        "run.state: the checkpoint is of a different run: --size was 32, is 40;",
        "--allow-change size",
    ];
    assert!(words.iter().all(|word| result.contains(word)), "{result}");
    for part in ["size", "stage decode"] {
        let allowed = training.run(&[&other[..], &["--allow-change", part]].concat());
        assert_eq!(allowed.code, 0, "{}", allowed.stderr);
    }
    let run = training.run(&["--allow-change", "size"]);
    assert!(run.code == 2 && run.line().contains("--resume"), "{}", run.line());
}

#[test]
fn a_data_set_smaller_than_a_batch_does_not_change_the_batch_size() {
    let training = Training::new(20);
    let state = text(&training.state());
    assert_eq!(training.run(&["--epochs", "1", "--save-state", &state]).code, 0);
    for number in 6..20 {
        std::fs::remove_file(training.images.join(image_name(number, 3))).unwrap();
    }
    // 6 images, fewer than the batch size 7.
    let refused = training.run(&["--resume", &state]);
    let result = refused.line();
    assert!(refused.code == 1 && result.contains("source items was 20, is 6"), "{result}");
    assert!(!result.contains("batch"), "{result}");
    let allowed = ["--resume", &state, "--allow-change", "source"];
    let run = training.run(&allowed);
    assert_eq!(run.code, 0, "{}", run.stderr);
    // Another --batch is a change for any number of images.
    let other = training.run(&[&allowed[..], &["--batch", "5"]].concat());
    assert!(other.code == 1 && other.line().contains("--batch was 7, is 5"), "{}", other.line());
}

#[test]
fn a_corrupt_checkpoint_is_replaced_by_the_previous_one() {
    let training = Training::new(60);
    let undisturbed = checksum(&training.run(&[]));
    let state = text(&training.state());
    assert_eq!(training.run(&["--save-state", &state]).code, 0);
    let steps = training.steps();
    std::fs::write(training.state(), "{\"file\":\"spdl st").unwrap();
    let run = training.run(&["--resume", &state]);
    let result = &run.stderr;
    for words in ["warning", &state, "truncated", "run.state.previous", "of step"] {
        assert!(result.contains(words), "{words}: {result}");
    }
    assert_eq!(checksum(&run), undisturbed);
    let verify = finish(spdl().args(["verify-order", &state]).output().unwrap());
    assert!(verify.code == 0 && verify.stderr.contains("truncated"), "{}", verify.stderr);
    // A valid checkpoint causes no warning.
    assert_eq!(training.run(&["--save-state", &state, "--overwrite-state"]).code, 0);
    assert_eq!(training.steps(), steps);
    assert!(!training.run(&["--resume", &state]).stderr.contains("warning"));
}

#[test]
fn an_unwritable_checkpoint_path_fails_before_the_run() {
    let training = Training::new(2);
    let file = training.beside.join("file");
    std::fs::write(&file, "").unwrap();
    let places = [
        training.beside.join("none/run.state"),
        file.join("run.state"),
        training.beside.path().to_owned(),
    ];
    for place in places {
        let run = training.run(&["--save-state", &text(&place)]);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.stderr);
        let line = run.line();
        assert!(line.contains("cannot save checkpoints") && line.contains(&text(&place)), "{line}");
    }
}
