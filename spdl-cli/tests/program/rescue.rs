//! What is whole of a damaged set: `spdl pack` makes a sound one of it, and `spdl cat` reads it.

// promise of this file: CLI3

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Folder, Run, by_shell, command_in, damaged, finish, image_name, png, spdl};

fn run(command: &str, paths: &[&Path], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(paths).args(arguments).output().unwrap())
}

/// A set of 30 images in three shards of twelve, twelve and six; its name needs quotation marks.
fn packed() -> (Folder, PathBuf) {
    let (source, place) = (Folder::with_images(30, 3), Folder::new());
    let set = place.join("my set");
    let told = run("pack", &[source.path(), &set], &["--shard-samples", "12"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    (place, set)
}

/// The key of a sample of a shard, and where the data of a field of it begin.
fn place_of(shard: &Path, number: usize, field: &str) -> (String, usize) {
    let listed = run("ls", &[shard], &["--json"]).stdout;
    let sample: Value = serde_json::from_str(listed.lines().nth(number).unwrap()).unwrap();
    let offset = sample["fields"][field]["offset"].as_u64().unwrap() as usize;
    (sample["key"].as_str().unwrap().to_owned(), offset)
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

type Damage = fn(&Path);

/// Ways to damage a set, and how many of its 30 samples are whole then.
const DAMAGE: [(&str, Damage, u64); 8] = [
    ("a shard is missing", |set| fs::remove_file(set.join("shard-000001.tar")).unwrap(), 18),
    (
        "a shard is cut behind the third of its samples",
        |set| {
            let shard = set.join("shard-000001.tar");
            let (_, at) = place_of(&shard, 3, "png");
            change(&shard, |bytes| bytes.truncate(at - 512));
        },
        // The third one may lack members, too.
        20,
    ),
    (
        "a header is damaged",
        |set| {
            let shard = set.join("shard-000001.tar");
            let (_, at) = place_of(&shard, 3, "png");
            change(&shard, |bytes| bytes[at - 512..at - 400].fill(0xff));
        },
        20,
    ),
    (
        "an image is damaged",
        |set| {
            let shard = set.join("shard-000000.tar");
            let (_, at) = place_of(&shard, 5, "png");
            change(&shard, |bytes| bytes[at + 60] ^= 1);
        },
        29,
    ),
    (
        "a class is another one, which no decoder sees",
        |set| {
            let shard = set.join("shard-000000.tar");
            let (_, at) = place_of(&shard, 5, "cls");
            change(&shard, |bytes| bytes[at] ^= 1);
        },
        29,
    ),
    (
        "an archive that nobody names",
        |set| {
            fs::copy(set.join("shard-000000.tar"), set.join("stray.tar")).unwrap();
        },
        30,
    ),
    (
        "a shard is longer",
        |set| change(&set.join("shard-000002.tar"), |it| it.extend([0; 512])),
        30,
    ),
    (
        "checksums are missing",
        |set| fs::remove_file(set.join("shard-000000.tar.sums")).unwrap(),
        30,
    ),
];

#[test]
fn the_command_that_verify_tells_makes_a_sound_set_of_a_damaged_one() {
    for (what, damage, whole) in DAMAGE {
        let (_place, set) = packed();
        damage(&set);
        let told = run("verify", &[&set], &[]);
        assert_eq!(told.code, 1, "{what}: {}", told.stdout);
        let command = command_in(&told.stdout);
        assert!(command.contains("my set-rescued'"), "{command}");
        let told = by_shell(&format!("{command} --json"), &[]);
        assert_eq!(told.code, 0, "{what}: {}", told.stderr);
        let json: Value = serde_json::from_str(&told.stdout).unwrap();
        let [samples, skipped, lost] =
            ["samples", "skipped", "lost"].map(|name| json[name].as_u64().unwrap());
        assert_eq!(samples, whole, "{what}: {json}");
        assert_eq!(samples + skipped + lost, 30, "{what}: {json}");
        assert_eq!(json["classes"], 3, "{what}");
        let rescued = set.with_file_name("my set-rescued");
        let told = run("verify", &[&rescued], &[]);
        assert!(told.code == 0 && told.stdout.contains("all valid"), "{what}: {}", told.stdout);
        // Each image is the one that it was.
        for line in run("ls", &[&rescued], &["--samples"]).stdout.lines() {
            let number: u32 = line.rsplit('/').next().unwrap().parse().unwrap();
            assert_eq!(line, image_name(number, 3).trim_end_matches(".png"));
            let image = spdl().arg("cat").arg(&rescued).arg(format!("{line}.png")).output();
            assert_eq!(image.unwrap().stdout, png(number), "{what}");
        }
    }
}

#[test]
fn what_was_lost_is_told_and_nothing_is_lost_in_silence() {
    let (place, set) = packed();
    fs::remove_file(set.join("shard-000001.tar")).unwrap();
    let new = place.join("new");
    let told = run("pack", &[&set, &new], &[]);
    assert_eq!(told.code, 1, "a missing shard is an error unless what is damaged is left out");
    let told = run("pack", &[&set, &new], &["--on-error", "skip"]);
    assert!(
        told.stderr.contains("shard-000001.tar: a shard of this set is missing"),
        "{}",
        told.stderr
    );
    let words = "12 samples of the damaged source lost: after damage, or in missing shards";
    assert!(
        told.stdout.contains("18 samples in 1 shard") && told.stdout.contains(words),
        "{}",
        told.stdout
    );
    // A shard of another size.
    let (place, set) = packed();
    change(&set.join("shard-000002.tar"), |bytes| bytes.truncate(1024));
    let told = run("pack", &[&set, &place.join("new")], &[]);
    let line = told.line();
    assert!(told.code == 1 && line.ends_with("; add --on-error skip to pack the valid samples"), "{line}");
    let told = run("pack", &[&set, &place.join("new")], &["--on-error", "skip"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
}

#[test]
fn a_checksum_that_is_wrong_ends_a_run_that_leaves_nothing_out() {
    let (place, set) = packed();
    let shard = set.join("shard-000000.tar");
    let (key, at) = place_of(&shard, 5, "cls");
    change(&shard, |bytes| bytes[at] ^= 1);
    let told = run("pack", &[&set, &place.join("new")], &[]);
    let line = told.line();
    assert!(told.code == 1 && line.contains(&format!("{key}.cls: checksum mismatch: ")), "{line}");
    // Without checksums nobody knows.
    for number in 0..3 {
        fs::remove_file(set.join(format!("shard-{number:06}.tar.sums"))).unwrap();
    }
    assert_eq!(run("pack", &[&set, &place.join("new")], &[]).code, 0);
}

#[test]
fn an_image_that_was_never_whole_is_left_out_by_check() {
    let (source, place) = (Folder::with_images(4, 1), Folder::new());
    source.add("class-0/cut.png", &damaged(0));
    let set = place.join("set");
    assert_eq!(run("pack", &[source.path(), &set], &[]).code, 0);
    let told = run("verify", &[&set], &[]);
    let told = by_shell(&command_in(&told.stdout), &[]);
    assert!(told.code == 0 && told.stdout.contains("1 image skipped"), "{}", told.stdout);
    assert_eq!(run("verify", &[&place.join("set-rescued")], &[]).code, 0);
}

#[test]
fn a_member_behind_damage_is_read_or_it_is_told_why_not() {
    let (_place, set) = packed();
    let shard = set.join("shard-000001.tar");
    let (before, _) = place_of(&shard, 2, "png");
    let (behind, _) = place_of(&shard, 7, "png");
    let (elsewhere, _) = place_of(&set.join("shard-000002.tar"), 1, "png");
    let (_, at) = place_of(&shard, 4, "png");
    change(&shard, |bytes| bytes[at - 512..at - 400].fill(0xff));
    let read = |key: &str| spdl().arg("cat").arg(&set).arg(format!("{key}.png")).output().unwrap();
    let image = |key: &str| png(key.rsplit('/').next().unwrap().parse().unwrap());
    for key in [&before, &behind, &elsewhere] {
        assert_eq!(read(key).stdout, image(key), "{key}");
    }
    // The old index leads to other bytes than those that were written.
    let whole = fs::read(&shard).unwrap();
    change(&shard, |bytes| bytes.drain(at - 512..at).for_each(drop));
    let told = finish(read(&behind));
    assert!(told.code == 1 && told.stdout.is_empty(), "{}", told.stdout);
    fs::write(&shard, whole).unwrap();
    fs::remove_file(set.join("shard-000001.tar.idx")).unwrap();
    let told = finish(read(&behind));
    let words = "it may lie behind damage in ";
    assert!(told.code == 1 && told.line().contains(words), "{}", told.line());
    let told = by_shell(&command_in(told.line()), &[]);
    assert!(told.code == 1 && told.line().contains("shard-000001.tar"), "{}", told.stderr);
    assert_eq!(read(&before).stdout, image(&before));
    assert_eq!(read(&elsewhere).stdout, image(&elsewhere));
    // What no checksum names never was there.
    let told = finish(read("class-0/9999"));
    assert!(told.line().contains("not found in 3 archives"), "{}", told.line());
}
