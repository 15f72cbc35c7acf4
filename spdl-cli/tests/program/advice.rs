//! Commands that messages advise are executed verbatim.

// promise of this file: CLI2

use std::fs;
use std::path::Path;

use crate::common::{Folder, Run, by_shell, command_in, damaged, finish, png, spdl};

fn run(command: &str, paths: &[&Path], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(paths).args(arguments).output().unwrap())
}

/// A folder of 20 images; the one with the number `bad` is corrupt.
fn images(bad: u32) -> Folder {
    let folder = Folder::new();
    for number in 0..20 {
        let image = if number == bad { damaged(1) } else { png(number) };
        folder.add(format!("my photos/cat/{number:02}.png"), &image);
    }
    folder
}

#[test]
fn other_options_are_accepted_until_a_shard_is_finished() {
    let folder = images(3);
    let (source, set) = (folder.join("my photos"), folder.join("set"));
    let result = run("pack", &[&source, &set], &["--max-side", "16"]);
    assert_eq!(result.code, 1, "{}", result.stdout);
    assert!(set.join("manifest.journal").exists());
    // Another data set (one image fewer) and other options.
    fs::remove_file(source.join("cat/03.png")).unwrap();
    let result = run("pack", &[&source, &set], &["--name", "train", "--shuffle", "7", "--json"]);
    assert_eq!(result.json()["samples"], 19);
    assert_eq!(run("verify", &[&set], &[]).code, 0);
}

// promise: CLI3
#[test]
fn a_failed_pack_resumes_after_repair_or_with_skip() {
    for skips in [false, true] {
        let folder = images(13);
        let (source, set) = (folder.join("my photos"), folder.join("set"));
        let options = ["--shard-samples", "6", "--json"];
        let result = run("pack", &[&source, &set], &options);
        let words = "repair the image or add --on-error skip, and run the command again";
        assert!(result.code == 1 && result.line().ends_with(words), "{}", result.line());
        let json = if skips {
            run("pack", &[&source, &set], &[&options[..], &["--on-error", "skip"]].concat()).json()
        } else {
            folder.add("my photos/cat/13.png", &png(13));
            run("pack", &[&source, &set], &options).json()
        };
        assert_eq!((&json["resumed"], &json["skipped"]), (&12.into(), &u64::from(skips).into()));
    }
}

#[test]
fn a_set_with_other_options_needs_another_folder_or_overwrite() {
    let folder = images(99);
    let (source, set) = (folder.join("my photos"), folder.join("set"));
    assert_eq!(run("pack", &[&source, &set], &[]).code, 0);
    let result = run("pack", &[&source, &set], &["--shuffle", "1"]);
    assert!(
        result.line().ends_with("choose another folder, or add --overwrite"),
        "{}",
        result.line()
    );
    assert_eq!(run("pack", &[&source, &folder.join("other")], &["--shuffle", "1"]).code, 0);
    assert_eq!(run("pack", &[&source, &set], &["--shuffle", "1", "--overwrite"]).code, 0);
    // A set with a missing shard.
    fs::remove_file(set.join("shard-000000.tar")).unwrap();
    let result = run("pack", &[&source, &set], &["--shuffle", "1"]);
    assert!(result.line().ends_with("; add --overwrite to replace the set"), "{}", result.line());
    assert_eq!(run("pack", &[&source, &set], &["--shuffle", "1", "--overwrite"]).code, 0);
    assert_eq!(run("verify", &[&set], &[]).code, 0);
    // The error does not mention --overwrite if it would not help.
    folder.add("mine/notes.txt", b"mine");
    let result = run("pack", &[&source, &folder.join("mine")], &[]);
    assert!(result.line().ends_with("; choose another folder"), "{}", result.line());
}

#[test]
fn the_error_for_a_missing_image_field_names_the_option() {
    let folder = Folder::new();
    let (set, data) = (folder.join("set"), folder.join("a.tar"));
    let plan = spdl_io::shards::ShardPlan::new("a");
    let place = folder.join("made");
    let spdl_io::shards::Opened::Writing(mut writer) =
        spdl_io::shards::ShardWriter::open(&place, &plan).unwrap()
    else {
        panic!("a new folder")
    };
    writer.add(0, b"1", &[("picture", &png(1))]).unwrap();
    writer.finish(1).unwrap();
    fs::copy(place.join("a-000000.tar"), &data).unwrap();
    let result = run("pack", &[&data, &set], &[]);
    let words = "cannot determine which field is the image (fields: picture); set --image-field";
    assert_eq!((result.code, result.line()), (2, &*format!("spdl: {words}")));
    assert!(!set.exists(), "nothing is begun");
    let result = run("pack", &[&data, &set], &["--image-field", "picture"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
}

#[test]
fn the_advised_verify_command_finds_corrupt_images() {
    let folder = images(99);
    // Its header is valid.
    folder.add("my photos/cat/03.png", &damaged(0));
    let (source, set) = (folder.join("my photos"), folder.join("it's $HOME"));
    let result = run("pack", &[&source, &set], &[]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let verified = by_shell(&command_in(&result.stdout.replace('\n', " ")), &[]);
    assert!(
        verified.code == 1 && verified.line().contains("1 of 40 members"),
        "{}",
        verified.stderr
    );
    // With --check, pack itself finds the image.
    let result = run("pack", &[&source, &folder.join("checked")], &["--check"]);
    assert!(result.code == 1 && result.line().contains("03.png"), "{}", result.line());
    let result =
        run("pack", &[&source, &folder.join("checked")], &["--check", "--on-error", "skip"]);
    assert!(result.code == 0 && !result.stdout.contains("`spdl"), "{}", result.stdout);
    assert_eq!(run("verify", &[&folder.join("checked")], &[]).code, 0);
}

#[test]
fn the_warning_about_splits_quotes_paths_for_the_shell() {
    let folder = Folder::new();
    for part in ["train", "val"] {
        folder.add(format!("my photos/{part}/cat/1.png"), &png(1));
    }
    let result = run("ls", &[&folder.join("my photos")], &[]);
    let given = result.line().rsplit_once(", open ").unwrap().1;
    assert!(given.ends_with("my photos/train'"), "{given}");
    let result = by_shell(&format!("spdl ls {given}"), &[]);
    assert_eq!((result.code, result.stdout.lines().count()), (0, 1), "{}", result.stderr);
}

#[test]
fn a_file_above_the_limit_names_the_option_that_raises_it() {
    let folder = images(99);
    let source = folder.join("my photos");
    for command in ["bench", "pack"] {
        let set = folder.join("packed");
        let paths: Vec<&Path> =
            [&*source].into_iter().chain((command == "pack").then_some(&*set)).collect();
        let result = run(command, &paths, &["--max-file-size", "10"]);
        assert_eq!(result.code, 1, "{}", result.stdout);
        assert!(result.line().contains("at most 10 are allowed"), "{}", result.line());
        assert!(result.line().contains("raise --max-file-size"), "{}", result.line());
        let result = run(command, &paths, &["--max-file-size", "1MB"]);
        assert_eq!(result.code, 0, "{}", result.stderr);
    }
}
