//! What messages tell to run is run as it stands there.

// promise of this file: CLI3, CLI2

use std::fs;
use std::path::Path;

use crate::common::{Folder, Run, by_shell, command_in, damaged, finish, png, spdl};

fn run(command: &str, paths: &[&Path], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(paths).args(arguments).output().unwrap())
}

/// 20 images, of which the one at `bad` is none.
fn images(bad: u32) -> Folder {
    let folder = Folder::new();
    for number in 0..20 {
        let image = if number == bad { damaged(1) } else { png(number) };
        folder.add(format!("my photos/cat/{number:02}.png"), &image);
    }
    folder
}

#[test]
fn a_run_that_finished_no_shard_binds_no_other_to_its_options() {
    let folder = images(3);
    let (source, set) = (folder.join("my photos"), folder.join("set"));
    let told = run("pack", &[&source, &set], &["--max-side", "16"]);
    assert_eq!(told.code, 1, "{}", told.stdout);
    assert!(set.join("manifest.journal").exists());
    // Without the image it is another data set, and these are other options.
    fs::remove_file(source.join("cat/03.png")).unwrap();
    let told = run("pack", &[&source, &set], &["--name", "train", "--shuffle", "7", "--json"]);
    assert_eq!(told.json()["samples"], 19);
    assert_eq!(run("verify", &[&set], &[]).code, 0);
}

#[test]
fn an_image_that_is_mended_or_left_out_lets_the_same_command_go_on() {
    for skips in [false, true] {
        let folder = images(13);
        let (source, set) = (folder.join("my photos"), folder.join("set"));
        let options = ["--shard-samples", "6", "--json"];
        let told = run("pack", &[&source, &set], &options);
        let words = "repair it or add --on-error skip, and run the command again";
        assert!(told.code == 1 && told.line().ends_with(words), "{}", told.line());
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
fn a_set_of_other_options_is_written_to_another_folder_or_over_it() {
    let folder = images(99);
    let (source, set) = (folder.join("my photos"), folder.join("set"));
    assert_eq!(run("pack", &[&source, &set], &[]).code, 0);
    let told = run("pack", &[&source, &set], &["--shuffle", "1"]);
    assert!(told.line().ends_with("choose another folder, or add --overwrite"), "{}", told.line());
    assert_eq!(run("pack", &[&source, &folder.join("other")], &["--shuffle", "1"]).code, 0);
    assert_eq!(run("pack", &[&source, &set], &["--shuffle", "1", "--overwrite"]).code, 0);
    // A set that lacks a shard.
    fs::remove_file(set.join("shard-000000.tar")).unwrap();
    let told = run("pack", &[&source, &set], &["--shuffle", "1"]);
    assert!(told.line().ends_with("; add --overwrite to replace the set"), "{}", told.line());
    assert_eq!(run("pack", &[&source, &set], &["--shuffle", "1", "--overwrite"]).code, 0);
    assert_eq!(run("verify", &[&set], &[]).code, 0);
    // Where --overwrite does not help, it is not told.
    folder.add("mine/notes.txt", b"mine");
    let told = run("pack", &[&source, &folder.join("mine")], &[]);
    assert!(told.line().ends_with("; choose another folder"), "{}", told.line());
}

#[test]
fn a_field_that_is_named_as_told_is_the_image() {
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
    let told = run("pack", &[&data, &set], &[]);
    let words = "no field is known to be an image (fields: picture); set --image-field";
    assert_eq!((told.code, told.line()), (2, &*format!("spdl: {words}")));
    assert!(!set.exists(), "nothing is begun");
    let told = run("pack", &[&data, &set], &["--image-field", "picture"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
}

#[test]
fn what_was_not_decoded_is_by_the_command_that_is_told() {
    let folder = images(99);
    // Its header is whole.
    folder.add("my photos/cat/03.png", &damaged(0));
    let (source, set) = (folder.join("my photos"), folder.join("it's $HOME"));
    let told = run("pack", &[&source, &set], &[]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let verified = by_shell(&command_in(&told.stdout.replace('\n', " ")), &[]);
    assert!(
        verified.code == 1 && verified.line().contains("1 of 40 members"),
        "{}",
        verified.stderr
    );
    // With --check it is found at once, and nothing has to be told.
    let told = run("pack", &[&source, &folder.join("checked")], &["--check"]);
    assert!(told.code == 1 && told.line().contains("03.png"), "{}", told.line());
    let told = run("pack", &[&source, &folder.join("checked")], &["--check", "--on-error", "skip"]);
    assert!(told.code == 0 && !told.stdout.contains("`spdl"), "{}", told.stdout);
    assert_eq!(run("verify", &[&folder.join("checked")], &[]).code, 0);
}

#[test]
fn parts_taken_for_classes_are_told_as_the_shell_takes_them() {
    let folder = Folder::new();
    for part in ["train", "val"] {
        folder.add(format!("my photos/{part}/cat/1.png"), &png(1));
    }
    let told = run("ls", &[&folder.join("my photos")], &[]);
    let given = told.line().rsplit_once(", give ").unwrap().1;
    assert!(given.ends_with("my photos/train'"), "{given}");
    let told = by_shell(&format!("spdl ls {given}"), &[]);
    assert_eq!((told.code, told.stdout.lines().count()), (0, 1), "{}", told.stderr);
}
