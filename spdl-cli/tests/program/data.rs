//! `spdl ls`, `cat`, `verify` and `stat`: what they tell of shards, archives and folders.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Folder, Run, damaged, finish, image_name, png, spdl};

fn run(command: &str, path: &Path, arguments: &[&str]) -> Run {
    finish(spdl().arg(command).arg(path).args(arguments).output().unwrap())
}

/// A set of 30 images in three classes, in several shards.
fn packed() -> (Folder, PathBuf) {
    let (source, place) = (Folder::with_images(30, 3), Folder::new());
    let shards = place.join("set");
    let mut command = spdl();
    command.arg("pack").args([source.path(), &shards]).args(["--shard-samples", "12"]);
    assert_eq!(finish(command.output().unwrap()).code, 0);
    (place, shards)
}

/// What `spdl verify --json` tells of a set that is not sound.
fn bad(path: &Path) -> Value {
    let run = run("verify", path, &["--json"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.line().contains("verification failed"), "{}", run.line());
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["sound"], false);
    json
}

/// A text whose lines were broken to fit.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Where the data of the image of sample `number` of a shard lie.
fn place_of(shard: &Path, number: usize) -> (String, usize, usize) {
    place_of_field(shard, number, "png")
}

/// The key of a sample, and where the data of a field of it lie.
fn place_of_field(shard: &Path, number: usize, field: &str) -> (String, usize, usize) {
    let listed = run("ls", shard, &["--json"]).stdout;
    let sample: Value = serde_json::from_str(listed.lines().nth(number).unwrap()).unwrap();
    let field = &sample["fields"][field];
    let number = |name: &str| field[name].as_u64().unwrap() as usize;
    (sample["key"].as_str().unwrap().to_owned(), number("offset"), number("bytes"))
}

#[test]
fn one_flipped_byte_is_found_with_the_key_of_its_sample() {
    let (_place, shards) = packed();
    assert_eq!(run("verify", &shards, &[]).code, 0);
    let shard = shards.join("shard-000001.tar");
    let (key, offset, bytes) = place_of(&shard, 7);
    for at in [offset, offset + bytes / 2, offset + bytes - 1] {
        flip(&shard, at);
        let told = bad(&shards);
        assert_eq!(told["bad_total"], 1, "{told}");
        let first = &told["bad"][0];
        assert_eq!(first["shard"], "shard-000001.tar");
        assert_eq!(
            (&first["key"], &first["offset"]),
            (&format!("{key}.png").into(), &offset.into())
        );
        flip(&shard, at);
    }
    let told = run("verify", &shards, &["--json"]).json();
    assert_eq!((&told["members"], &told["checksums"]), (&60.into(), &60.into()));
    assert_eq!((&told["images"], &told["archives"]), (&30.into(), &3.into()));
}

#[test]
fn damage_anywhere_in_a_shard_or_beside_it_is_found() {
    let (_place, shards) = packed();
    let shard = shards.join("shard-000000.tar");
    let (key, offset, bytes) = place_of(&shard, 3);
    let name = format!("{key}.png");
    let len = fs::metadata(&shard).unwrap().len() as usize;
    let padding = offset + bytes.next_multiple_of(512) - 1;
    assert!(padding >= offset + bytes, "the image fills its blocks");
    for (at, expected, words) in [
        // In the header of the image: its name.
        (offset - 512, Some(name.as_str()), "following members could not be checked"),
        (padding, None, "a header or padding is damaged"),
        (len - 1, None, ""),
    ] {
        flip(&shard, at);
        let told = bad(&shards);
        assert_eq!(told["bad_total"], 1, "{at}: {told}");
        let first = &told["bad"][0];
        assert_eq!(first["key"].as_str(), expected, "{at}: {told}");
        assert!(first["reason"].as_str().unwrap().contains(words), "{at}: {told}");
        flip(&shard, at);
    }
    let sums = shards.join("shard-000000.tar.sums");
    flip(&sums, 40);
    assert_eq!(bad(&shards)["bad"][0]["shard"], "shard-000000.tar");
    flip(&sums, 40);
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..len / 2]).unwrap();
    assert!(bad(&shards)["bad_total"].as_u64() >= Some(1));
    fs::remove_file(&shard).unwrap();
    let told = bad(&shards);
    assert_eq!(
        (&told["bad"][0]["kind"], &told["archives"]),
        (&"not-found".into(), &2.into()),
        "{told}"
    );
    fs::write(&shard, whole).unwrap();
    assert_eq!(run("verify", &shards, &[]).code, 0);
}

#[test]
fn a_packed_image_that_cannot_be_decoded_is_found() {
    let (source, place) = (Folder::with_images(3, 1), Folder::new());
    // Its header is whole, so it is packed as it is.
    source.add("class-0/cut.png", &damaged(0));
    let shards = place.join("set");
    let mut command = spdl();
    assert_eq!(
        finish(command.arg("pack").args([source.path(), &shards]).output().unwrap()).code,
        0
    );
    let told = bad(&shards);
    assert_eq!(
        (&told["bad"][0]["key"], &told["bad_total"]),
        (&"class-0/cut.png".into(), &1.into())
    );
    // In the folder, too.
    let told = bad(source.path());
    assert!(told["bad"][0]["key"].as_str().unwrap().ends_with("class-0/cut.png"));
    assert_eq!((&told["images"], &told["archives"]), (&4.into(), &0.into()));
}

#[test]
fn archives_of_others_are_listed_read_and_verified() {
    let (source, place) = (Folder::with_images(4, 2), Folder::new());
    let archive = place.join("other.tar");
    let tar =
        Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(source.path()).arg(".").status();
    if !tar.is_ok_and(|status| status.success()) {
        println!("SKIPPED: tar is not there");
        return;
    }
    let keys = run("ls", &archive, &[]).stdout;
    assert_eq!(keys.lines().count(), 4);
    assert!(keys.contains("./class-1/0003"), "{keys}");
    let shard = run("ls", place.path(), &[]).stdout;
    assert!(shard.starts_with("other.tar  4 samples  "), "{shard}");
    let name = format!("./{}", image_name(2, 2));
    let image = spdl().arg("cat").args([&archive]).arg(&name).output().unwrap();
    assert_eq!(image.stdout, png(2));
    let told = run("verify", &archive, &["--json"]).json();
    assert_eq!((&told["images"], &told["checksums"]), (&4.into(), &0.into()));
    assert_eq!((&told["sound"], &told["without_checksums"]), (&true.into(), &1.into()));
    let told = run("verify", &archive, &[]);
    let words =
        "all images are valid; there are no checksums (other.tar.sums is missing)";
    assert!(told.code == 0 && unwrapped(&told.stdout).contains(words), "{}", told.stdout);
    assert!(!told.stdout.contains("all valid"), "{}", told.stdout);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "no index was written");
}

#[test]
fn what_is_not_there_is_told() {
    let (_place, shards) = packed();
    let key = image_name(4, 3);
    let key = key.trim_end_matches(".png");
    let told = run("cat", &shards, &[key]);
    assert!(told.code == 1 && told.line().contains("the fields png, cls"), "{}", told.line());
    let told = run("cat", &shards, &["no/such.png"]);
    assert!(
        told.code == 1 && told.line().contains("not found in 3 archives"),
        "{}",
        told.line()
    );
    let told = run("ls", &shards.join("missing"), &[]);
    assert!(told.code == 1 && told.line().contains("missing"), "{}", told.line());
}

#[test]
fn shards_and_samples_are_listed() {
    let (_place, shards) = packed();
    let listed = run("ls", &shards, &["--long"]).stdout;
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 4, "{listed}");
    assert!(
        lines[0].starts_with("shard-000000.tar  12 samples  ") && lines[0].contains("xxh3-128 ")
    );
    assert!(lines[3].starts_with("3 shards, 30 samples, "), "{listed}");
    let samples = run("ls", &shards, &["--samples"]).stdout;
    assert_eq!(samples.lines().count(), 30);
    let long = run("ls", &shards.join("shard-000002.tar"), &["--long"]).stdout;
    assert_eq!(long.lines().count(), 6 * 3, "{long}");
    assert!(long.contains("  .cls  1 bytes at "), "{long}");
}

#[test]
fn a_data_set_is_told_in_numbers_packed_or_not() {
    let source = Folder::with_images(30, 3);
    let (_place, shards) = packed();
    let of_shards = run("stat", &shards, &["--json"]).json();
    let of_folder = run("stat", source.path(), &["--json"]).json();
    for key in ["samples", "formats", "width", "height", "image_bytes", "classes"] {
        assert_eq!(of_shards[key], of_folder[key], "{key}");
    }
    assert_eq!(of_shards["fields"]["cls"]["members"], 30);
    assert_eq!(of_shards["classes"][2]["name"], "class-2");
    assert_eq!(
        (&of_shards["width"]["min"], &of_shards["width"]["max"]),
        (&40.0.into(), &46.0.into())
    );
    let text = run("stat", &shards, &[]).stdout;
    for words in ["samples       30", "png", "class-1", "p50"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn the_page_of_a_data_set_needs_nothing_beside_it() {
    let source = Folder::with_images(60, 2);
    source.add("class-1/<b>&\"'.png", &png(99));
    let page = source.join("page.html");
    let told = run("stat", source.path(), &["--html", page.to_str().unwrap()]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let text = fs::read_to_string(&page).unwrap();
    let xml = text.replacen("<!DOCTYPE html>", "", 1);
    let document = roxmltree::Document::parse(&xml).unwrap();
    let images: Vec<_> = document.descendants().filter(|node| node.has_tag_name("img")).collect();
    assert_eq!(images.len(), 48);
    let sources = images.iter().map(|image| image.attribute("src").unwrap());
    assert!(sources.clone().all(|source| source.starts_with("data:image/jpeg;base64,/9j/")));
    assert_eq!(document.descendants().filter(|node| node.tag_name().name() == "svg").count(), 4);
    assert!(!text.contains("http://") || text.matches("http://").count() == 4, "only names of SVG");
    assert!(!text.contains("https://"));
}

#[test]
fn a_set_that_is_not_complete_is_told_as_such() {
    let (_place, shards) = packed();
    let mut journal = fs::File::create(shards.join("manifest.journal")).unwrap();
    journal.write_all(b"x").unwrap();
    for command in ["ls", "verify", "stat"] {
        let told = run(command, &shards, &[]);
        assert!(told.code == 1 && told.line().contains("incomplete"), "{}", told.line());
    }
}

#[test]
fn checksums_beside_archives_are_compared_without_a_manifest() {
    let (_place, shards) = packed();
    let archives = [0, 1, 2].map(|number| shards.join(format!("shard-{number:06}.tar")));
    // No decoder sees that a class has changed.
    let (key, offset, _) = place_of_field(&archives[1], 3, "cls");
    let name = format!("{key}.cls");
    let whole = run("verify", &archives[1], &["--json"]).json();
    assert_eq!((&whole["checksums"], &whole["without_checksums"]), (&24.into(), &0.into()));
    assert!(run("verify", &archives[1], &[]).stdout.contains("all valid"));
    flip(&archives[1], offset);
    let told = bad(&archives[1]);
    assert_eq!((&told["bad_total"], &told["bad"][0]["key"]), (&1.into(), &name.as_str().into()));
    // Several, and a folder whose manifest is lost.
    let several = finish(spdl().arg("verify").args(&archives).output().unwrap());
    assert_eq!(several.code, 1, "{}", several.stdout);
    fs::remove_file(shards.join("manifest.json")).unwrap();
    assert_eq!(bad(&shards)["bad"][0]["key"], name);
    // Checksums that cannot be read are not taken for none.
    let sums = shards.join("shard-000001.tar.sums");
    fs::write(&sums, "no checksums\n").unwrap();
    let told = bad(&archives[1]);
    let reason = told["bad"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("shard-000001.tar.sums"), "{told}");
    assert_eq!(told["without_checksums"], 0);
    // Without any, the rest is compared, and it is told of which archive nothing more is known.
    fs::remove_file(&sums).unwrap();
    let told = run("verify", &shards, &[]);
    let words = "1 archive has no checksums (shard-000001.tar.sums is missing)";
    assert!(told.code == 0 && unwrapped(&told.stdout).contains(words), "{}", told.stdout);
    assert_eq!(run("verify", &shards, &["--json"]).json()["checksums"], 36);
}

#[test]
fn the_last_line_of_verify_names_what_is_bad() {
    let (_place, shards) = packed();
    let archives = [0, 1, 2].map(|number| shards.join(format!("shard-{number:06}.tar")));
    let (_, offset, _) = place_of(&archives[2], 0);
    flip(&archives[2], offset + 40);
    for paths in [&archives[..], std::slice::from_ref(&shards)] {
        let told = finish(spdl().arg("verify").args(paths).output().unwrap());
        let words = "verification failed: 1 of 60 members in 3 archives is invalid (shard-000002.tar)";
        assert!(told.code == 1 && told.line().contains(words), "{}", told.line());
    }
    // A missing shard: its members are not counted as sound ones.
    flip(&archives[2], offset + 40);
    fs::remove_file(&archives[0]).unwrap();
    let told = run("verify", &shards, &[]);
    assert!(told.line().contains("1 of 3 archives is invalid (shard-000000.tar)"), "{}", told.line());
    let images = Folder::with_images(3, 1);
    images.add("class-0/bad.png", &damaged(1));
    let told = run("verify", images.path(), &[]);
    let words = "1 of 4 images is invalid (";
    assert!(told.line().contains(words) && told.line().contains("bad.png"), "{}", told.line());
}

#[test]
fn archives_that_a_manifest_does_not_name_are_bad() {
    let (_place, shards) = packed();
    fs::copy(shards.join("shard-000000.tar"), shards.join("stray.tar")).unwrap();
    let told = bad(&shards);
    assert_eq!((&told["bad_total"], &told["bad"][0]["shard"]), (&1.into(), &"stray.tar".into()));
    assert_eq!((&told["archives"], &told["members"]), (&3.into(), &60.into()));
    let told = run("verify", &shards, &[]);
    assert!(told.line().contains("1 of 4 archives is invalid (stray.tar)"), "{}", told.line());
    // What reads the set leaves it alone.
    let listed = run("ls", &shards, &[]).stdout;
    assert!(!listed.contains("stray"), "{listed}");
}

/// What `spdl stat` tells of what it cannot read, in all three ways.
fn unreadable(path: &Path, most: usize) -> (Value, String) {
    let place = Folder::new();
    let page = place.join("page.html");
    let text = run("stat", path, &["--html", page.to_str().unwrap()]);
    let json = run("stat", path, &["--json"]);
    assert_eq!((text.code, json.code), (1, 1), "{}", text.stdout);
    assert_eq!(text.line(), json.line());
    assert!(text.line().contains("cannot be read ("), "{}", text.line());
    let object: Value = serde_json::from_str(&json.stdout).unwrap();
    let listed = object["unreadable_members"].as_array().unwrap();
    assert_eq!(listed.len() as u64, object["unreadable"].as_u64().unwrap());
    let page = fs::read_to_string(&page).unwrap();
    roxmltree::Document::parse(&page.replacen("<!DOCTYPE html>", "", 1)).unwrap();
    for (number, bad) in listed.iter().enumerate() {
        let name = bad["key"].as_str().or(bad["shard"].as_str()).unwrap();
        assert!(!bad["reason"].as_str().unwrap().is_empty());
        assert_eq!(text.stdout.contains(name), number < most, "{name}: {}", text.stdout);
        assert!(page.contains(name), "{name} on the page");
    }
    (object, text.line().to_owned())
}

#[test]
fn what_stat_cannot_read_is_named_and_fails() {
    let images = Folder::with_images(5, 1);
    for number in 0..25 {
        images.add(format!("class-0/bad-{number:02}.png"), b"This is not an image.\n");
    }
    let (told, line) = unreadable(images.path(), 20);
    assert_eq!((&told["unreadable"], &told["samples"]), (&25.into(), &30.into()));
    assert!(line.contains("25 of 30 images cannot be read ("), "{line}");
    assert!(line.contains("bad-00.png") && line.contains("and 22 more"), "{line}");

    let (_place, shards) = packed();
    fs::remove_file(shards.join("shard-000001.tar")).unwrap();
    let (told, line) = unreadable(&shards, 20);
    assert_eq!((&told["unreadable"], &told["samples"]), (&1.into(), &18.into()));
    assert_eq!(told["unreadable_members"][0]["kind"], "not-found");
    assert!(line.contains("1 of 3 archives cannot be read (shard-000001.tar)"), "{line}");

    let place = Folder::new();
    place.add("notes.tar", b"This is not an archive.\n");
    let (told, line) = unreadable(&place.join("notes.tar"), 20);
    assert_eq!((&told["unreadable"], &told["samples"]), (&1.into(), &0.into()));
    assert!(line.contains("notes.tar"), "{line}");
    assert_eq!(run("stat", &shards.join("shard-000000.tar"), &[]).code, 0);
}

#[test]
fn what_is_looked_at_is_called_data() {
    for command in ["ls", "cat", "verify", "stat"] {
        let help = finish(spdl().args([command, "--help"]).output().unwrap()).stdout;
        assert!(help.contains("<DATA>") && !help.contains("DST"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

#[test]
fn what_a_manifest_says_is_compared_wherever_it_lies_beside_an_archive() {
    let (_place, shards) = packed();
    let shard = shards.join("shard-000001.tar");
    let whole = "compared with manifest.json: size and checksum of each archive";
    for (path, archives) in [(&shards, 3), (&shard, 1)] {
        let json = run("verify", path, &["--json"]).json();
        assert_eq!((&json["archives"], &json["by_manifest"]), (&archives.into(), &archives.into()));
        assert!(run("verify", path, &[]).stdout.contains(whole));
    }
    // A bit that no member needs.
    let last = fs::metadata(&shard).unwrap().len() as usize - 1;
    flip(&shard, last);
    assert_eq!(bad(&shard)["bad_total"], 1);
    flip(&shard, last);
    fs::copy(&shard, shards.join("stray.tar")).unwrap();
    let both = [&shard, &shards.join("stray.tar")];
    let told = finish(spdl().arg("verify").args(both).output().unwrap());
    let words = "compared with manifest.json: size and checksum of 1 of 2 archives";
    assert!(told.code == 0 && told.stdout.contains(words), "{}", told.stdout);
    // Others call files so, too.
    fs::write(shards.join("manifest.json"), "{}").unwrap();
    let told = run("verify", &shard, &[]);
    assert!(told.line().contains("ignoring \"") && told.line().contains("manifest.json\": "), "{}", told.line());
    let none = "no manifest.json was found";
    assert!(told.code == 0 && told.stdout.contains(none), "{}", told.stdout);
}

/// Runs `spdl verify` at a terminal; `None` where none can be had.
fn at_a_terminal(path: &Path) -> Option<String> {
    let line = "stty cols 100 rows 30; \"$SPDL_PROGRAM\" verify \"$SPDL_DATA\"";
    let mut script = Command::new("script");
    script.args(["-qec", line, "/dev/null"]).env("TERM", "xterm").env("SPDL_DATA", path);
    let output = script.env("SPDL_PROGRAM", env!("CARGO_BIN_EXE_spdl")).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn verify_shows_how_far_it_is() {
    let (_place, shards) = packed();
    let images = Folder::with_images(30, 3);
    let archive = shards.join("shard-000001.tar");
    for (path, rate) in [(&*shards, "B/s"), (&archive, "B/s"), (images.path(), "images/s")] {
        let Some(told) = at_a_terminal(path) else {
            println!("SKIPPED: script is not there");
            return;
        };
        assert!(told.contains(rate) && told.contains(" left"), "{told}");
    }
    // What programs read has no bar in it.
    assert!(run("verify", &shards, &[]).stderr.is_empty());
}
