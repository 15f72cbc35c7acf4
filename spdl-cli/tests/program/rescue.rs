//! Repair of a damaged set by `spdl pack`, and `spdl cat` on damaged archives.

// promise of this file: CLI3

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Folder, Run, by_shell, command_in, damaged, finish, image_name, png, spdl};

fn run(command: &str, paths: &[&Path], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(paths).args(arguments).output().unwrap())
}

/// A set of 30 images in three shards of 12, 12 and 6; its name needs quotes.
fn packed() -> (Folder, PathBuf) {
    let (source, place) = (Folder::with_images(30, 3), Folder::new());
    let set = place.join("my set");
    let result = run("pack", &[source.path(), &set], &["--shard-samples", "12"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    (place, set)
}

/// A copy of a set in another folder.
fn copied(set: &Path) -> (Folder, PathBuf) {
    let place = Folder::new();
    let copy = place.join("my set");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(set).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    (place, copy)
}

/// The key of a sample, and the offset of a field.
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

/// Kinds of damage, and the number of valid samples of 30.
const DAMAGE: [(&str, Damage, u64); 8] = [
    ("a shard is missing", |set| fs::remove_file(set.join("shard-000001.tar")).unwrap(), 18),
    (
        "a shard is truncated after its third sample",
        |set| {
            let shard = set.join("shard-000001.tar");
            let (_, at) = place_of(&shard, 3, "png");
            change(&shard, |bytes| bytes.truncate(at - 512));
        },
        // The third sample may be incomplete.
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
        "a label is changed, which decoding cannot detect",
        |set| {
            let shard = set.join("shard-000000.tar");
            let (_, at) = place_of(&shard, 5, "cls");
            change(&shard, |bytes| bytes[at] ^= 1);
        },
        29,
    ),
    (
        "an unlisted archive",
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
fn the_advised_pack_command_repairs_a_damaged_set() {
    let (_place, valid) = packed();
    for (what, damage, whole) in DAMAGE {
        let (_copies, set) = copied(&valid);
        damage(&set);
        let result = run("verify", &[&set], &[]);
        assert_eq!(result.code, 1, "{what}: {}", result.stdout);
        let command = command_in(&result.stdout);
        assert!(command.contains("my set-rescued'"), "{command}");
        let result = by_shell(&format!("{command} --json"), &[]);
        assert_eq!(result.code, 0, "{what}: {}", result.stderr);
        let json: Value = serde_json::from_str(&result.stdout).unwrap();
        let [samples, skipped, lost] =
            ["samples", "skipped", "lost"].map(|name| json[name].as_u64().unwrap());
        assert_eq!(samples, whole, "{what}: {json}");
        assert_eq!(samples + skipped + lost, 30, "{what}: {json}");
        assert_eq!(json["classes"], 3, "{what}");
        let rescued = set.with_file_name("my set-rescued");
        let result = run("verify", &[&rescued], &[]);
        assert!(
            result.code == 0 && result.stdout.contains("all valid"),
            "{what}: {}",
            result.stdout
        );
        // Each image is unchanged. `verify` has compared the checksums of all; one is compared here too.
        for (at, line) in run("ls", &[&rescued], &["--samples"]).stdout.lines().enumerate() {
            let number: u32 = line.rsplit('/').next().unwrap().parse().unwrap();
            assert_eq!(line, image_name(number, 3).trim_end_matches(".png"));
            if at != 7 {
                continue;
            }
            let image = spdl().arg("cat").arg(&rescued).arg(format!("{line}.png")).output();
            assert_eq!(image.unwrap().stdout, png(number), "{what}");
        }
    }
}

#[test]
fn lost_samples_are_counted() {
    let (place, set) = packed();
    fs::remove_file(set.join("shard-000001.tar")).unwrap();
    let new = place.join("new");
    let result = run("pack", &[&set, &new], &[]);
    assert_eq!(result.code, 1, "a missing shard is an error without skip");
    let result = run("pack", &[&set, &new], &["--on-error", "skip"]);
    assert!(
        result.stderr.contains("shard-000001.tar: a shard of this data set is missing"),
        "{}",
        result.stderr
    );
    let words =
        "12 samples of the damaged source lost: after damage in a shard, or in missing shards";
    assert!(
        result.stdout.contains("18 samples in 1 shard") && result.stdout.contains(words),
        "{}",
        result.stdout
    );
    // A shard with a wrong size.
    let (place, set) = packed();
    change(&set.join("shard-000002.tar"), |bytes| bytes.truncate(1024));
    let result = run("pack", &[&set, &place.join("new")], &[]);
    let line = result.line();
    assert!(
        result.code == 1 && line.ends_with("; add --on-error skip to pack the valid samples"),
        "{line}"
    );
    let result = run("pack", &[&set, &place.join("new")], &["--on-error", "skip"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
}

#[test]
fn a_wrong_checksum_ends_a_run_without_skip() {
    let (place, set) = packed();
    let shard = set.join("shard-000000.tar");
    let (key, at) = place_of(&shard, 5, "cls");
    change(&shard, |bytes| bytes[at] ^= 1);
    let result = run("pack", &[&set, &place.join("new")], &[]);
    let line = result.line();
    assert!(
        result.code == 1 && line.contains(&format!("{key}.cls: checksum mismatch: ")),
        "{line}"
    );
    // Without checksums the change is not detectable.
    for number in 0..3 {
        fs::remove_file(set.join(format!("shard-{number:06}.tar.sums"))).unwrap();
    }
    assert_eq!(run("pack", &[&set, &place.join("new")], &[]).code, 0);
}

#[test]
fn check_skips_corrupt_images() {
    let (source, place) = (Folder::with_images(4, 1), Folder::new());
    source.add("class-0/cut.png", &damaged(0));
    let set = place.join("set");
    assert_eq!(run("pack", &[source.path(), &set], &[]).code, 0);
    let result = run("verify", &[&set], &[]);
    let result = by_shell(&command_in(&result.stdout), &[]);
    assert!(result.code == 0 && result.stdout.contains("1 image skipped"), "{}", result.stdout);
    assert_eq!(run("verify", &[&place.join("set-rescued")], &[]).code, 0);
}

#[test]
fn cat_reads_members_after_damage_by_index_and_checksum() {
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
    // The old index points to changed bytes.
    let whole = fs::read(&shard).unwrap();
    change(&shard, |bytes| bytes.drain(at - 512..at).for_each(drop));
    let result = finish(read(&behind));
    assert!(result.code == 1 && result.stdout.is_empty(), "{}", result.stdout);
    fs::write(&shard, whole).unwrap();
    fs::remove_file(set.join("shard-000001.tar.idx")).unwrap();
    let result = finish(read(&behind));
    let words = "not found, but ";
    assert!(result.code == 1 && result.line().contains(words), "{}", result.line());
    let result = by_shell(&command_in(result.line()), &[]);
    assert!(result.code == 1 && result.line().contains("shard-000001.tar"), "{}", result.stderr);
    assert_eq!(read(&before).stdout, image(&before));
    assert_eq!(read(&elsewhere).stdout, image(&elsewhere));
    // A member without a checksum never existed.
    let result = finish(read("class-0/9999"));
    assert!(result.line().contains("not found in 3 archives"), "{}", result.line());
}
