//! `spdl ls`, `cat`, `verify` and `stat` on shards, archives and folders.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// The output of `spdl verify --json` for a damaged set.
fn bad(path: &Path) -> Value {
    let run = run("verify", path, &["--json"]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.line().contains("verification failed"), "{}", run.line());
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["sound"], false);
    json
}

/// Text without line breaks.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Key, offset and size of the image of sample `number`.
fn place_of(shard: &Path, number: usize) -> (String, usize, usize) {
    place_of_field(shard, number, "png")
}

/// Key, offset and size of a field of sample `number`.
fn place_of_field(shard: &Path, number: usize, field: &str) -> (String, usize, usize) {
    let listed = run("ls", shard, &["--json"]).stdout;
    let sample: Value = serde_json::from_str(listed.lines().nth(number).unwrap()).unwrap();
    let field = &sample["fields"][field];
    let number = |name: &str| field[name].as_u64().unwrap() as usize;
    (sample["key"].as_str().unwrap().to_owned(), number("offset"), number("bytes"))
}

#[test]
fn verify_finds_a_flipped_byte_and_its_member() {
    let (_place, shards) = packed();
    assert_eq!(run("verify", &shards, &[]).code, 0);
    let shard = shards.join("shard-000001.tar");
    let (key, offset, bytes) = place_of(&shard, 7);
    for at in [offset, offset + bytes / 2, offset + bytes - 1] {
        flip(&shard, at);
        let result = bad(&shards);
        assert_eq!(result["bad_total"], 1, "{result}");
        let first = &result["bad"][0];
        assert_eq!(first["shard"], "shard-000001.tar");
        assert_eq!(
            (&first["key"], &first["offset"]),
            (&format!("{key}.png").into(), &offset.into())
        );
        flip(&shard, at);
    }
    let result = run("verify", &shards, &["--json"]).json();
    assert_eq!((&result["members"], &result["checksums"]), (&60.into(), &60.into()));
    assert_eq!((&result["images"], &result["archives"]), (&30.into(), &3.into()));
}

#[test]
fn verify_finds_damage_in_headers_padding_and_checksum_files() {
    let (_place, shards) = packed();
    let shard = shards.join("shard-000000.tar");
    let (key, offset, bytes) = place_of(&shard, 3);
    let name = format!("{key}.png");
    let len = fs::metadata(&shard).unwrap().len() as usize;
    let padding = offset + bytes.next_multiple_of(512) - 1;
    assert!(padding >= offset + bytes, "the image has no padding");
    for (at, expected, words) in [
        // In the header of the image: its name.
        (offset - 512, Some(name.as_str()), "following members could not be checked"),
        (padding, None, "a header or padding is damaged"),
        (len - 1, None, ""),
    ] {
        flip(&shard, at);
        let result = bad(&shards);
        assert_eq!(result["bad_total"], 1, "{at}: {result}");
        let first = &result["bad"][0];
        assert_eq!(first["key"].as_str(), expected, "{at}: {result}");
        assert!(first["reason"].as_str().unwrap().contains(words), "{at}: {result}");
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
    let result = bad(&shards);
    assert_eq!(
        (&result["bad"][0]["kind"], &result["archives"]),
        (&"not-found".into(), &2.into()),
        "{result}"
    );
    fs::write(&shard, whole).unwrap();
    assert_eq!(run("verify", &shards, &[]).code, 0);
}

#[test]
fn verify_finds_a_corrupt_packed_image() {
    let (source, place) = (Folder::with_images(3, 1), Folder::new());
    // The header is valid, so the image is packed.
    source.add("class-0/cut.png", &damaged(0));
    let shards = place.join("set");
    let mut command = spdl();
    assert_eq!(
        finish(command.arg("pack").args([source.path(), &shards]).output().unwrap()).code,
        0
    );
    let result = bad(&shards);
    assert_eq!(
        (&result["bad"][0]["key"], &result["bad_total"]),
        (&"class-0/cut.png".into(), &1.into())
    );
    // The folder has the same defect.
    let result = bad(source.path());
    assert!(result["bad"][0]["key"].as_str().unwrap().ends_with("class-0/cut.png"));
    // Images that cannot be decoded are defects, and are not counted as decoded.
    assert_eq!((&result["images"], &result["archives"]), (&3.into(), &0.into()));
    let text = run("verify", source.path(), &[]).stdout;
    assert!(text.contains("3 images decoded, 1 defect\n"), "{text}");
    assert!(text.contains("to pack the valid samples as a new set"), "{text}");
}

#[test]
fn archives_of_other_programs_are_supported() {
    let (source, place) = (Folder::with_images(4, 2), Folder::new());
    let archive = place.join("other.tar");
    let tar =
        Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(source.path()).arg(".").status();
    if !tar.is_ok_and(|status| status.success()) {
        println!("SKIPPED: tar is not installed");
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
    let result = run("verify", &archive, &["--json"]).json();
    assert_eq!((&result["images"], &result["checksums"]), (&4.into(), &0.into()));
    assert_eq!((&result["sound"], &result["without_checksums"]), (&true.into(), &1.into()));
    let result = run("verify", &archive, &[]);
    let words = "all images are valid; there are no checksums (other.tar.sums is missing)";
    assert!(result.code == 0 && unwrapped(&result.stdout).contains(words), "{}", result.stdout);
    assert!(!result.stdout.contains("all valid"), "{}", result.stdout);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "no index was written");
}

#[test]
fn missing_members_and_paths_are_errors() {
    let (_place, shards) = packed();
    let key = image_name(4, 3);
    let key = key.trim_end_matches(".png");
    let result = run("cat", &shards, &[key]);
    assert!(result.code == 1 && result.line().contains("the fields png, cls"), "{}", result.line());
    let result = run("cat", &shards, &["no/such.png"]);
    assert!(
        result.code == 1 && result.line().contains("not found in 3 archives"),
        "{}",
        result.line()
    );
    let result = run("ls", &shards.join("missing"), &[]);
    assert!(result.code == 1 && result.line().contains("missing"), "{}", result.line());
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
fn stat_gives_the_same_statistics_for_folder_and_shards() {
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
fn the_html_page_of_stat_is_self_contained() {
    let source = Folder::with_images(60, 2);
    source.add("class-1/<b>&\"'.png", &png(99));
    let page = source.join("page.html");
    let result = run("stat", source.path(), &["--html", page.to_str().unwrap()]);
    assert_eq!(result.code, 0, "{}", result.stderr);
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
fn an_incomplete_set_is_an_error() {
    let (_place, shards) = packed();
    let mut journal = fs::File::create(shards.join("manifest.journal")).unwrap();
    journal.write_all(b"x").unwrap();
    for command in ["ls", "verify", "stat"] {
        let result = run(command, &shards, &[]);
        assert!(result.code == 1 && result.line().contains("incomplete"), "{}", result.line());
    }
}

#[test]
fn checksums_beside_archives_are_compared_without_a_manifest() {
    let (_place, shards) = packed();
    let archives = [0, 1, 2].map(|number| shards.join(format!("shard-{number:06}.tar")));
    // Decoders cannot detect a changed class.
    let (key, offset, _) = place_of_field(&archives[1], 3, "cls");
    let name = format!("{key}.cls");
    let whole = run("verify", &archives[1], &["--json"]).json();
    assert_eq!((&whole["checksums"], &whole["without_checksums"]), (&24.into(), &0.into()));
    assert!(run("verify", &archives[1], &[]).stdout.contains("all valid"));
    flip(&archives[1], offset);
    let result = bad(&archives[1]);
    assert_eq!(
        (&result["bad_total"], &result["bad"][0]["key"]),
        (&1.into(), &name.as_str().into())
    );
    // Several archives, and a folder without manifest.
    let several = finish(spdl().arg("verify").args(&archives).output().unwrap());
    assert_eq!(several.code, 1, "{}", several.stdout);
    fs::remove_file(shards.join("manifest.json")).unwrap();
    assert_eq!(bad(&shards)["bad"][0]["key"], name);
    // An unreadable checksum file is a defect, unlike a missing one.
    let sums = shards.join("shard-000001.tar.sums");
    fs::write(&sums, "no checksums\n").unwrap();
    let result = bad(&archives[1]);
    let reason = result["bad"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("shard-000001.tar.sums"), "{result}");
    assert_eq!(result["without_checksums"], 0);
    // Without a checksum file, the others are compared, and the archive is named.
    fs::remove_file(&sums).unwrap();
    let result = run("verify", &shards, &[]);
    let words = "1 archive has no checksums (shard-000001.tar.sums is missing)";
    assert!(result.code == 0 && unwrapped(&result.stdout).contains(words), "{}", result.stdout);
    assert_eq!(run("verify", &shards, &["--json"]).json()["checksums"], 36);
}

#[test]
fn the_error_line_of_verify_summarises_the_defects() {
    let (_place, shards) = packed();
    let archives = [0, 1, 2].map(|number| shards.join(format!("shard-{number:06}.tar")));
    let (_, offset, _) = place_of(&archives[2], 0);
    flip(&archives[2], offset + 40);
    for paths in [&archives[..], std::slice::from_ref(&shards)] {
        let result = finish(spdl().arg("verify").args(paths).output().unwrap());
        let words =
            "verification failed: 1 of 60 members in 3 archives is invalid (shard-000002.tar)";
        assert!(result.code == 1 && result.line().contains(words), "{}", result.line());
    }
    // The members of a missing shard do not count as valid.
    flip(&archives[2], offset + 40);
    fs::remove_file(&archives[0]).unwrap();
    let result = run("verify", &shards, &[]);
    assert!(
        result.line().contains("1 of 3 archives is invalid (shard-000000.tar)"),
        "{}",
        result.line()
    );
    let images = Folder::with_images(3, 1);
    images.add("class-0/bad.png", &damaged(1));
    let result = run("verify", images.path(), &[]);
    let words = "1 of 4 images is invalid (";
    assert!(
        result.line().contains(words) && result.line().contains("bad.png"),
        "{}",
        result.line()
    );
}

#[test]
fn archives_missing_in_the_manifest_are_defects() {
    let (_place, shards) = packed();
    fs::copy(shards.join("shard-000000.tar"), shards.join("stray.tar")).unwrap();
    let result = bad(&shards);
    assert_eq!(
        (&result["bad_total"], &result["bad"][0]["shard"]),
        (&1.into(), &"stray.tar".into())
    );
    assert_eq!((&result["archives"], &result["members"]), (&3.into(), &60.into()));
    let result = run("verify", &shards, &[]);
    assert!(result.line().contains("1 of 4 archives is invalid (stray.tar)"), "{}", result.line());
    // `ls` ignores the archive.
    let listed = run("ls", &shards, &[]).stdout;
    assert!(!listed.contains("stray"), "{listed}");
}

/// The unreadable members in text, JSON and HTML of `spdl stat`.
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
fn stat_lists_unreadable_members_and_fails() {
    let images = Folder::with_images(5, 1);
    for number in 0..25 {
        images.add(format!("class-0/bad-{number:02}.png"), b"This is not an image.\n");
    }
    let (result, line) = unreadable(images.path(), 20);
    assert_eq!((&result["unreadable"], &result["samples"]), (&25.into(), &30.into()));
    assert!(line.contains("25 of 30 images cannot be read ("), "{line}");
    assert!(line.contains("bad-00.png") && line.contains("and 22 more"), "{line}");

    let (_place, shards) = packed();
    fs::remove_file(shards.join("shard-000001.tar")).unwrap();
    let (result, line) = unreadable(&shards, 20);
    assert_eq!((&result["unreadable"], &result["samples"]), (&1.into(), &18.into()));
    assert_eq!(result["unreadable_members"][0]["kind"], "not-found");
    assert!(line.contains("1 of 3 archives cannot be read (shard-000001.tar)"), "{line}");

    let place = Folder::new();
    place.add("notes.tar", b"This is not an archive.\n");
    let (result, line) = unreadable(&place.join("notes.tar"), 20);
    assert_eq!((&result["unreadable"], &result["samples"]), (&1.into(), &0.into()));
    assert!(line.contains("notes.tar"), "{line}");
    assert_eq!(run("stat", &shards.join("shard-000000.tar"), &[]).code, 0);
}

#[test]
fn help_names_the_argument_data() {
    for command in ["ls", "cat", "verify", "stat"] {
        let help = finish(spdl().args([command, "--help"]).output().unwrap()).stdout;
        assert!(help.contains("<DATA>") && !help.contains("DST"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

#[test]
fn verify_uses_the_manifest_in_the_folder_of_an_archive() {
    let (_place, shards) = packed();
    let shard = shards.join("shard-000001.tar");
    let whole = "compared with manifest.json: size and checksum of each archive";
    for (path, archives) in [(&shards, 3), (&shard, 1)] {
        let json = run("verify", path, &["--json"]).json();
        assert_eq!((&json["archives"], &json["by_manifest"]), (&archives.into(), &archives.into()));
        assert!(run("verify", path, &[]).stdout.contains(whole));
    }
    // A bit outside of all members.
    let last = fs::metadata(&shard).unwrap().len() as usize - 1;
    flip(&shard, last);
    assert_eq!(bad(&shard)["bad_total"], 1);
    flip(&shard, last);
    fs::copy(&shard, shards.join("stray.tar")).unwrap();
    let both = [&shard, &shards.join("stray.tar")];
    let result = finish(spdl().arg("verify").args(both).output().unwrap());
    let words = "compared with manifest.json: size and checksum of 1 of 2 archives";
    assert!(result.code == 0 && result.stdout.contains(words), "{}", result.stdout);
    // A file of another program may have this name.
    fs::write(shards.join("manifest.json"), "{}").unwrap();
    let result = run("verify", &shard, &[]);
    assert!(
        result.line().contains("ignoring \"") && result.line().contains("manifest.json\": "),
        "{}",
        result.line()
    );
    let none = "no manifest.json was found";
    assert!(result.code == 0 && result.stdout.contains(none), "{}", result.stdout);
}

/// Runs `spdl verify` in a terminal; `None` if `script` is not available.
fn at_a_terminal(path: &Path) -> Option<String> {
    let line = "stty cols 100 rows 30; \"$SPDL_PROGRAM\" verify \"$SPDL_DATA\"";
    let mut script = Command::new("script");
    script.args(["-qec", line, "/dev/null"]).env("TERM", "xterm").env("SPDL_DATA", path);
    let output = script.env("SPDL_PROGRAM", env!("CARGO_BIN_EXE_spdl")).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn verify_shows_a_progress_bar_on_a_terminal() {
    let (_place, shards) = packed();
    let images = Folder::with_images(30, 3);
    let archive = shards.join("shard-000001.tar");
    for (path, rate) in [(&*shards, "B/s"), (&archive, "B/s"), (images.path(), "images/s")] {
        let Some(result) = at_a_terminal(path) else {
            println!("SKIPPED: script is not installed");
            return;
        };
        assert!(result.contains(rate) && result.contains(" left"), "{result}");
    }
    // Without a terminal there is no progress bar.
    assert!(run("verify", &shards, &[]).stderr.is_empty());
}

// promise: R16
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_blocks_is_an_error_with_its_name() {
    let Some(library) = faulty_libc() else { return };
    // Reads below this folder never end. I/O threads read the images, because they are large.
    let folder = Folder::new();
    for number in 0..3 {
        let mut image = png(number);
        image.resize(300_000, 0);
        folder.add(format!("blocked/images/{number}.png"), &image);
    }
    folder.add("blocked/k.tar", &[0; 4096]);
    let (images, archive) = (folder.join("blocked/images"), folder.join("blocked/k.tar"));
    let runs = [
        ("bench", &images, ".png"),
        ("verify", &images, ".png"),
        ("bench", &archive, "k.tar"),
        ("verify", &archive, "k.tar"),
        ("stat", &archive, "k.tar"),
    ];
    std::thread::scope(|scope| {
        for (command, path, name) in runs {
            let library = &library;
            scope.spawn(move || {
                let mut program = spdl();
                program.arg(command).arg(path).env("LD_PRELOAD", library);
                // The time limit of 60 s ends after 0.6 s.
                program.env("SPDL_CLOCK_FACTOR", "100");
                let run = ended_within(Duration::from_secs(30), program)
                    .unwrap_or_else(|| panic!("{command} {path:?} hangs"));
                let shown = format!("{command} {path:?}: {}{}", run.stdout, run.stderr);
                assert_eq!(run.code, 1, "{shown}");
                assert!(shown.contains(name) && shown.contains("no progress"), "{shown}");
            });
        }
    });
}

/// Runs a program; `None` if it is still running after this time.
fn ended_within(limit: Duration, mut program: Command) -> Option<Run> {
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(finish(child.wait_with_output().unwrap()))
}

/// Compiles the library whose functions fail or block, of the tests of `spdl-io`.
#[expect(clippy::print_stdout, reason = "the reason of a skipped test")]
fn faulty_libc() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../spdl-io/tests/machine/faulty_libc.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("faulty_libc-{}.so", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]);
    let Ok(output) = compiler.output() else {
        println!("SKIPPED: no C compiler found");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(library)
}
