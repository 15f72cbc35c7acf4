//! `spdl verify-order`: compatible checkpoints, and the description of positions.

use std::path::PathBuf;

use serde_json::{Value, json};
use spdl_core::{DatasetSource, PipelineBuilder, Shard, StateFile};

use crate::common::{Folder, Run, bench, finish, spdl};

/// Saves the checkpoint of a rank after some steps.
fn state(
    folder: &Folder,
    name: &str,
    seed: u64,
    items: u32,
    rank: (u64, u64),
    steps: usize,
) -> PathBuf {
    let numbers = DatasetSource::new((0..items).collect::<Vec<u32>>()).shuffled(seed);
    let builder = PipelineBuilder::new(numbers).seed(seed).deterministic();
    let builder = builder.shard(Shard::new(rank.0, rank.1).unwrap());
    let mut pipeline = builder.build().unwrap();
    assert_eq!(pipeline.by_ref().take(steps).count(), steps);
    let path = folder.join(name);
    StateFile::new(&path).save(&pipeline.state().unwrap()).unwrap();
    path
}

fn verify(states: &[&PathBuf], more: &[&str]) -> Run {
    finish(spdl().arg("verify-order").args(states).args(more).output().unwrap())
}

#[test]
fn checkpoints_of_different_runs_are_an_error() {
    let folder = Folder::new();
    let own = state(&folder, "a.state", 5, 2000, (0, 2), 10);
    let seed = state(&folder, "b.state", 6, 2000, (1, 2), 10);
    let data = state(&folder, "c.state", 5, 1999, (1, 2), 10);
    for (other, words) in [(&seed, "seed is 5 and 6"), (&data, "source items is 2000 and 1999")] {
        let run = verify(&[&own, other], &[]);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""));
        let files = [own.to_str().unwrap(), other.to_str().unwrap()];
        assert!(files.iter().all(|file| run.line().contains(file)), "{}", run.line());
        let line = run.line();
        assert!(line.contains("the checkpoints are of different runs"), "{line}");
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn repeated_positions_are_explained() {
    let folder = Folder::new();
    let of_two = state(&folder, "two.state", 5, 2000, (0, 2), 100);
    let of_three = state(&folder, "three.state", 5, 2000, (0, 3), 100);
    let run = verify(&[&of_two, &of_three], &[]);
    assert_eq!(run.code, 1);
    for words in [
        "34 positions of epoch 0 done more than once",
        "differ in world size or remainder",
        "two.state are of 2 ranks",
        "three.state are of 3 ranks",
        "only the most recent ones",
    ] {
        assert!(run.line().contains(words), "{words}: {}", run.line());
    }
    let run = verify(&[&of_two, &of_two], &[]);
    let line = run.line();
    assert!(line.contains("; rank 0 of 2 is in ") && !line.contains("differ"), "{line}");
}

#[test]
fn periodic_positions_are_described_by_their_step() {
    let folder = Folder::new();
    let states = [
        state(&folder, "0.state", 5, 2000, (0, 2), 64),
        state(&folder, "1.state", 5, 2000, (1, 2), 1000),
    ];
    let states: Vec<_> = states.iter().collect();
    let result = "epoch 0: 1064 of 2000 positions done, 936 missing: every 2nd from 128 to 1998, none \
                repeated\n";
    assert_eq!(verify(&states, &[]).stdout, result);
    let json: Value = serde_json::from_str(&verify(&states, &["--json"]).stdout).unwrap();
    assert_eq!(json["missing"], json!([[128, 1999, 2]]));
    // One of three ranks.
    let one = state(&folder, "of3.state", 5, 2000, (2, 3), 666);
    let result = "epoch 0: 666 of 2000 positions done, 1332 missing: 2 of every 3 from 0 to 1996, none \
                repeated, assigned to no rank: 1998..2000\nno checkpoint given for ranks 0, 1 of 3: their \
                positions are unknown\n";
    assert_eq!(verify(&[&one], &[]).stdout, result);
    let json: Value = serde_json::from_str(&verify(&[&one], &["--json"]).stdout).unwrap();
    assert_eq!(json["missing"], json!([[0, 1996, 3], [1, 1997, 3]]));
}

#[test]
fn ranks_without_checkpoint_are_listed() {
    let folder = Folder::new();
    let path = |rank: u64| format!("{rank}.state");
    let states: Vec<_> =
        (0..12).map(|rank| state(&folder, &path(rank), 5, 24, (rank, 12), 2)).collect();
    let all: Vec<_> = states.iter().collect();
    let run = verify(&all, &["--complete"]);
    assert_eq!(
        (run.code, run.stdout.contains("no checkpoint given")),
        (0, false),
        "{}",
        run.stdout
    );
    // All known positions are done; the others are unknown.
    for (given, result) in [
        (&all[..11], "no checkpoint given for rank 11 of 12"),
        (&all[10..], "no checkpoint given for ranks 0, 1, 2, 3, 4, 5, 6, 7 … of 12"),
    ] {
        let run = verify(given, &[]);
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains(result), "{}", run.stdout);
        let run = verify(given, &["--complete"]);
        assert_eq!(run.code, 1);
        let json = verify(given, &["--json"]).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["absent_ranks"], 12 - given.len());
    }
    // The epoch has ended for the given ranks, but one rank is missing.
    let ended = ["e0.state", "e1.state"].map(|name| {
        let numbers = DatasetSource::new((0..24).collect::<Vec<u32>>());
        let rank = u64::from(name == "e1.state");
        let builder =
            PipelineBuilder::new(numbers).shard(Shard::new(rank, 2).unwrap()).epochs(0..2);
        let mut pipeline = builder.deterministic().build().unwrap();
        assert_eq!(pipeline.next_epoch().unwrap().count(), 12);
        let path = folder.join(name);
        StateFile::new(&path).save(&pipeline.state().unwrap()).unwrap();
        path
    });
    assert_eq!(verify(&[&ended[0], &ended[1]], &["--complete"]).code, 0);
    let run = verify(&[&ended[0]], &["--complete"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.line().contains("no checkpoint given for rank 1 of 2"), "{}", run.line());
}

#[test]
fn the_last_epoch_of_a_run_has_no_successor() {
    let (images, beside) = (Folder::with_images(6, 2), Folder::new());
    let path = beside.join("run.state");
    let arguments = ["--epochs", "2", "--save-state", path.to_str().unwrap()];
    assert_eq!(bench(images.path(), &arguments).code, 0);
    let over = || {
        let json: Value = serde_json::from_str(&verify(&[&path], &["--json"]).stdout).unwrap();
        (json["ended"].clone(), json["over"].clone())
    };
    let run = verify(&[&path], &["--complete"]);
    assert_eq!((run.code, &*run.stdout), (0, "epoch 1, the last epoch of the run, is complete\n"));
    assert_eq!(over(), (json!(true), json!(true)));
    // The same checkpoint in a run of three epochs.
    let file = StateFile::new(&path);
    let mut state = file.load().unwrap();
    state.notes.insert("spdl bench epochs".into(), "3".into());
    file.save(&state).unwrap();
    let result = "epoch 1 has ended; epoch 2 (6 positions) has not started\n";
    assert_eq!(verify(&[&path], &[]).stdout, result);
    assert_eq!(over(), (json!(true), json!(false)));
}
