//! `spdl pack`: the output, and that interruptions do not change it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::common::{Folder, Run, damaged, encode, finish, image_name, png, spdl};

fn run(command: &str, paths: &[&Path], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(paths).args(arguments).output().unwrap())
}

fn pack(source: &Folder, shards: &Path, arguments: &[&str]) -> Run {
    run("pack", &[source.path(), shards], arguments)
}

/// All files of a folder except indexes, which contain times.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| path.extension().is_none_or(|ending| ending != "idx"));
    entries.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}

/// Runs another program; `None` if it is not installed.
fn other(program: &str, arguments: &[&Path]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn pack_copies_images_with_their_classes() {
    let (source, shards) = (Folder::with_images(20, 3), Folder::new());
    let json = pack(&source, &shards.join("set"), &["--json"]).json();
    assert_eq!((&json["samples"], &json["shards"]), (&20.into(), &1.into()));
    assert_eq!((&json["unchanged"], &json["encoded"]), (&20.into(), &0.into()));
    for number in 0..20 {
        let name = image_name(number, 3);
        let image = spdl().arg("cat").arg(shards.join("set")).arg(&name).output().unwrap();
        assert_eq!(image.stdout, png(number), "{name}");
        let key = name.trim_end_matches(".png");
        let class = run("cat", &[&shards.join("set")], &[key, "--field", "cls"]);
        assert_eq!(class.stdout, (number % 3).to_string());
    }
    let manifest: Value =
        serde_json::from_slice(&fs::read(shards.join("set/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["plan"]["classes"], serde_json::json!(["class-0", "class-1", "class-2"]));
    let again = pack(&source, &shards.join("set"), &[]);
    assert!(again.stdout.contains("already complete"), "{}", again.stdout);
}

// promise: DATA8
#[test]
fn the_output_does_not_depend_on_the_number_of_threads() {
    let source = Folder::with_images(60, 2);
    let mut expected = None;
    for threads in ["1", "2", "8"] {
        let shards = Folder::new();
        let options =
            ["--threads", threads, "--shuffle", "3", "--max-side", "32", "--shard-size", "20kB"];
        assert_eq!(pack(&source, shards.path(), &options).code, 0);
        let found = files(shards.path());
        assert!(found.len() > 6, "{} files", found.len());
        assert!(expected.get_or_insert_with(|| found.clone()) == &found, "{threads} threads");
    }
}

#[test]
fn max_side_reduces_only_larger_images() {
    let source = Folder::new();
    source.add("small.png", &png(1));
    source.add("large.png", &encode(200, 100, &[90; 200 * 100 * 3]));
    for (options, field, size) in [
        (&["--max-side", "50"][..], "jpg", (50, 25)),
        (&["--max-side", "50", "--format", "keep"], "png", (50, 25)),
        (&["--max-side", "50", "--format", "webp"], "webp", (50, 25)),
        (&["--max-side", "200"], "png", (200, 100)),
    ] {
        let shards = Folder::new();
        assert_eq!(pack(&source, shards.path(), options).code, 0);
        let archive = shards.join("shard-000000.tar");
        let listed = run("ls", &[&archive], &["--json"]).stdout;
        let large: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
        assert!(large["fields"].get(field).is_some(), "{options:?}: {listed}");
        let stat = run("stat", &[shards.path()], &["--json"]).json();
        assert_eq!(stat["width"]["max"], f64::from(size.0), "{options:?}");
        if !options.contains(&"webp") {
            let small = spdl().arg("cat").arg(shards.path()).arg("small.png").output().unwrap();
            assert_eq!(small.stdout, png(1));
        }
        assert_eq!(run("verify", &[shards.path()], &[]).code, 0);
    }
}

// promise: DATA6
#[test]
fn tar_and_python_read_the_shards() {
    let (source, shards) = (Folder::new(), Folder::new());
    let long = format!("{}/{}.png", "l".repeat(120), "n".repeat(150));
    let names = [
        "a b.png",
        "größe/猫.png",
        "new\nline/1.png",
        "back\\slash.png",
        &long,
        "-dash.png",
        "*?.png",
    ];
    for (number, name) in (0..).zip(names) {
        // Two levels deep, so that all images are in one class.
        source.add(Path::new("class").join(name), &png(number));
    }
    assert_eq!(pack(&source, shards.path(), &[]).code, 0);
    let archive = shards.join("shard-000000.tar");
    let verbose = [Path::new("-tvf"), &archive];
    match other("tar", &verbose) {
        Some(listed) => {
            assert_eq!(listed.lines().count(), 2 * names.len());
            assert!(listed.lines().all(|line| line.starts_with("-rw-r--r-- 0/0 ")), "{listed}");
        }
        None => println!("SKIPPED: tar is not installed"),
    }
    let script = "\
import hashlib, json, sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    print(json.dumps([[m.name, hashlib.sha256(archive.extractfile(m).read()).hexdigest()] for m in archive]))
";
    let path = shards.join("list.py");
    fs::write(&path, script).unwrap();
    let python = std::env::var("SPDL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let Some(result) = other(&python, &[&path, &archive]) else {
        println!("SKIPPED: python3 is not installed");
        return;
    };
    let members: Vec<(String, String)> = serde_json::from_str(&result).unwrap();
    let hash = |bytes: &[u8]| {
        let copy = shards.join("copy");
        fs::write(&copy, bytes).unwrap();
        other("sha256sum", &[Path::new("--"), &copy]).map(|line| line[..64].to_owned())
    };
    let hashes: BTreeMap<_, _> = members.into_iter().collect();
    for (number, name) in (0..).zip(names) {
        let found = hashes.get(&format!("class/{name}"));
        if let Some(expected) = hash(&png(number)) {
            assert_eq!(found, Some(&expected), "{name}");
        }
    }
}

#[cfg(unix)]
#[test]
fn names_may_contain_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let (source, shards) = (Folder::new(), Folder::new());
    let short = std::ffi::OsStr::from_bytes(b"caf\xe9.png");
    let long = [&b"\xff".repeat(140)[..], b".png"].concat();
    let long = std::ffi::OsStr::from_bytes(&long);
    source.add(short, &png(1));
    source.add(long, &png(2));
    assert_eq!(pack(&source, shards.path(), &[]).code, 0);
    for (name, number) in [(short, 1), (long, 2)] {
        let image = spdl().arg("cat").arg(shards.path()).arg(name).output().unwrap();
        assert_eq!(image.stdout, png(number));
    }
    let archive = shards.join("shard-000000.tar");
    if let Some(listed) = other("tar", &[Path::new("-tf"), &archive]) {
        assert!(listed.lines().any(|line| line == "caf\\351.png"), "{listed}");
        assert!(
            listed.lines().any(|line| line == format!("{}.png", "\\377".repeat(140))),
            "{listed}"
        );
    }
    assert_eq!(run("verify", &[shards.path()], &[]).code, 0);
}

#[test]
fn corrupt_images_end_the_run_or_are_skipped() {
    let (source, shards) = (Folder::with_images(8, 1), Folder::new());
    for number in 1..3 {
        source.add(format!("class-0/bad-{number}.png"), &damaged(number));
    }
    let run = pack(&source, &shards.join("set"), &[]);
    assert_eq!(run.code, 1);
    assert!(
        run.line().contains("cannot pack an image")
            && run.line().contains("bad-1.png")
            && run
                .line()
                .ends_with("repair the image or add --on-error skip, and run the command again"),
        "{}",
        run.line()
    );
    // The same set continues with another policy.
    let json = pack(&source, &shards.join("set"), &["--on-error", "skip", "--json"]).json();
    assert_eq!((&json["samples"], &json["skipped"]), (&8.into(), &2.into()));
    assert_eq!(json["skipped_samples"][0]["key"], "class-0/bad-1.png");
    // `pack` and `bench` use the same words for skipped images.
    let words = "used      8 of 10 images, 2 skipped\n";
    let skip = ["--on-error", "skip"];
    let packed = pack(&source, &shards.join("result"), &skip).stdout;
    let measured = self::run("bench", &[source.path()], &skip).stdout;
    assert!(packed.contains(words) && measured.contains(words), "{packed}{measured}");
    let empty = Folder::new();
    empty.add("x.png", &damaged(1));
    let run = pack(&empty, &shards.join("none"), &["--on-error", "skip"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("all 1 images failed"), "{}", run.stderr);
}

#[test]
fn other_options_or_images_require_overwrite() {
    let (source, shards) = (Folder::with_images(8, 1), Folder::new());
    let set = shards.join("set");
    assert_eq!(pack(&source, &set, &[]).code, 0);
    let before = files(&set);
    let run = pack(&source, &set, &["--shuffle", "1"]);
    assert_eq!(run.code, 1);
    let words = [&*set.to_string_lossy(), "without --shuffle, now with 1", "--overwrite"];
    assert!(words.iter().all(|words| run.line().contains(words)), "{}", run.line());
    source.add("class-0/more.png", &png(77));
    assert!(pack(&source, &set, &[]).line().contains("from 8 images, now there are 9"));
    assert_eq!(files(&set), before);
    assert_eq!(pack(&source, &set, &["--overwrite"]).code, 0);
    assert_ne!(files(&set), before);
    shards.add("other/notes.txt", b"mine");
    let run = pack(&source, &shards.join("other"), &["--overwrite"]);
    assert!(run.code == 1 && run.line().contains("notes.txt"), "{}", run.line());
    assert_eq!(pack(&source, &set, &["--quality", "50"]).code, 2);
}

#[test]
fn the_mismatch_error_names_the_options() {
    let (source, shards) = (Folder::with_images(4, 1), Folder::new());
    let (plain, small) = (shards.join("plain"), shards.join("small"));
    assert_eq!(pack(&source, &plain, &[]).code, 0);
    let options = ["--max-side", "32", "--quality", "70"];
    assert_eq!(pack(&source, &small, &options).code, 0);
    for (set, arguments, differs) in [
        (&plain, &["--max-side", "512"][..], "without --max-side, now with 512"),
        (&plain, &["--format", "png"], "without --format, now with png"),
        (&plain, &["--name", "train"], "with --name shard, now train"),
        (&plain, &["--shard-size", "1MB"], "with --shard-size 256000000, now 1000000"),
        (&plain, &["--shard-samples", "2"], "without --shard-samples, now with 2"),
        (&small, &["--max-side", "32"], "with --quality 70, now without it"),
        (&small, &["--max-side", "40", "--quality", "70"], "with --max-side 32, now 40"),
        (&small, &[], "with --max-side 32, now without it; with --quality 70, now without it"),
    ] {
        let run = pack(&source, set, arguments);
        let expected = format!(
            "spdl: the set in {} was packed {differs}; choose another folder, or add --overwrite",
            set.display()
        );
        assert_eq!((run.code, run.line()), (1, &*expected), "{arguments:?}");
    }
}

#[test]
fn invalid_options_fail_before_anything_is_read() {
    let (source, place) = (Folder::with_images(4, 2), Folder::new());
    let set = place.join("set");
    for name in ["a/b", "../x", "", ".x"] {
        let run = pack(&source, &set, &["--name", name]);
        assert_eq!(run.code, 2, "{name:?}: {}", run.line());
        assert!(run.line().starts_with("spdl: invalid shard name"), "{}", run.line());
    }
    for format in ["webp", "png"] {
        let run = pack(&source, &set, &["--format", format, "--quality", "50"]);
        assert!(run.code == 2 && run.line().contains("--quality"), "{}", run.line());
    }
    for address in ["s3://bucket/set", "gs://b/x", "https://user:secret@host/x", "file://h/x"] {
        let run = pack(&source, Path::new(address), &[]);
        assert!(run.code == 2 && run.line().contains("must be a local folder"), "{}", run.line());
        assert!(!run.line().contains("secret"), "{}", run.line());
    }
    assert!(fs::read_dir(place.path()).unwrap().next().is_none(), "nothing was written");
    for inside in ["", "shards", "class-0", "new/../shards"] {
        let run = pack(&source, &source.join(inside), &[]);
        assert!(run.code == 2 && run.line().contains("is inside"), "{}", run.line());
    }
    assert_eq!(fs::read_dir(source.path()).unwrap().count(), 2, "nothing was written");
    assert!(!Path::new("s3:").exists());
    let beside = source.path().with_extension("shards");
    assert_eq!(pack(&source, &beside, &[]).code, 0, "a folder beside it");
    fs::remove_dir_all(beside).unwrap();
}

#[test]
fn the_summary_mentions_images_that_were_not_decoded() {
    let (source, place) = (Folder::with_images(4, 2), Folder::new());
    let result = pack(&source, &place.join("plain"), &[]).stdout;
    let words = format!("`spdl verify {}`", place.join("plain").display());
    assert!(
        result.contains(&words)
            && result.contains("only the headers of copied images were checked"),
        "{result}"
    );
    let result = pack(&source, &place.join("jpeg"), &["--format", "jpeg"]).stdout;
    assert!(!result.contains("spdl verify"), "{result}");
}

// promise: DATA8
#[cfg(unix)]
#[test]
fn a_killed_pack_resumes_to_the_same_bytes() {
    let source = Folder::with_images(120, 3);
    let options = ["--shuffle", "5", "--max-side", "36", "--shard-size", "30kB"];
    let whole = Folder::new();
    let start = Instant::now();
    assert_eq!(pack(&source, whole.path(), &options).code, 0);
    let took = start.elapsed();
    let expected = files(whole.path());
    let kills = std::env::var("SPDL_RESUME_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let (kills, mut killed, mut resumed) = (u32::min(kills, 100), 0, 0);
    // Kills at times spread over the run; on a busy machine some are too late.
    for attempt in 0..3 * kills + 20 {
        if killed >= kills && resumed > 0 {
            break;
        }
        let shards = Folder::new();
        let mut child = spdl()
            .arg("pack")
            .args([source.path(), shards.path()])
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(took.mul_f64(f64::from(attempt * 7 % 23 + 1) / 26.0));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        let json = pack(&source, shards.path(), &[&options[..], &["--json"]].concat()).json();
        resumed += u32::from(json["resumed"] != 0);
        assert_eq!(files(shards.path()), expected, "attempt {attempt}");
    }
    assert!(killed >= kills, "too few runs were killed: {killed}");
    assert!(resumed > 0, "no run resumed from finished shards");
}

// promise: DATA8
#[cfg(unix)]
#[test]
fn after_a_full_disk_pack_resumes_from_finished_shards() {
    let (source, whole, shards) = (Folder::with_images(60, 2), Folder::new(), Folder::new());
    let options = ["--shard-size", "60kB"];
    assert_eq!(pack(&source, whole.path(), &options).code, 0);
    // No file may be larger than 32 blocks of 1 KiB, so the first shard does not fit.
    let limited = |blocks: u32, shards: &Path| {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash"]).arg(env!("CARGO_BIN_EXE_spdl")).arg("pack");
        let run = command.args([source.path(), shards]).args(options).output().unwrap();
        finish(run)
    };
    let run = limited(32, shards.path());
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.line().contains("cannot write shard"), "{}", run.line());
    assert!(run.line().contains("; run the same command again"), "{}", run.line());
    let left: Vec<_> = files(shards.path()).into_keys().collect();
    assert_eq!(left, [PathBuf::from("manifest.journal")], "no partial file is left");
    let result = self::run("verify", &[shards.path()], &[]);
    assert!(result.code == 1 && result.line().contains("incomplete"), "{}", result.line());
    assert_eq!(pack(&source, shards.path(), &options).code, 0);
    assert_eq!(files(shards.path()), files(whole.path()));
}

#[test]
fn pack_writes_only_into_the_output_folder() {
    let (place, source) = (Folder::new(), Folder::with_images(6, 1));
    let before = fs::read_dir(source.join("class-0")).unwrap().count();
    assert_eq!(pack(&source, &place.join("a/b/set"), &[]).code, 0);
    let found: Vec<_> =
        fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(found, ["a"]);
    assert_eq!(fs::read_dir(place.join("a/b")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(source.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(source.join("class-0")).unwrap().count(), before);
    for name in ["../x", "/x", "", ".x", "a/b"] {
        let run = pack(&source, &place.join("other"), &["--name", name]);
        assert_ne!(run.code, 0, "{name}");
        assert!(!place.join("x-000000.tar").exists());
    }
}

/// A list of two images with masks, and an empty cell in the last row.
fn list_of_masks() -> Folder {
    let source = Folder::new();
    for number in 0..2 {
        source.add(format!("data/images/{number}.png"), &png(number));
        source.add(format!("data/masks/{number}.png"), &png(9));
    }
    source.add("data/images/2.png", &png(2));
    source.add(
        "data/list.csv",
        b"path,mask,caption,label\nimages/0.png,masks/0.png,a cat,0\nimages/1.png,masks/1.png,a dog,1\n\
          images/2.png,,,1\n",
    );
    source
}

#[test]
fn columns_of_paths_are_packed_as_files_if_named() {
    let (source, shards) = (list_of_masks(), Folder::new());
    let (list, set) = (source.join("data/list.csv"), shards.join("set"));
    let result = run("pack", &[&list, &set], &["--file-fields", "mask"]);
    assert_eq!((result.code, &*result.stderr.replace('\r', "")), (0, ""));
    let member = |name: &str| spdl().arg("cat").arg(&set).arg(name).output().unwrap().stdout;
    assert_eq!(member("images/0.png"), png(0));
    assert_eq!(member("images/1.mask.png"), png(9));
    assert_eq!(member("images/1.caption.txt"), b"a dog");
    let manifest: Value =
        serde_json::from_slice(&fs::read(set.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["fields"]["mask.png"]["samples"], 2);
    // The option determines the shards.
    let other = run("pack", &[&list, &set], &[]);
    let words = "with --file-fields mask, now without it";
    assert!(other.code != 0 && other.stderr.contains(words), "{}", other.stderr);
}

#[test]
fn a_column_of_existing_paths_causes_a_warning() {
    let (source, shards) = (list_of_masks(), Folder::new());
    let list = source.join("data/list.csv");
    let result = run("pack", &[&list, &shards.join("set")], &["--json"]);
    let words = "the column mask holds paths of existing files; the paths are packed as text, but not \
                 the files; to pack the files, add --file-fields mask";
    assert!(result.code == 0 && result.line().contains(words), "{}", result.stderr);
    let result =
        run("pack", &[&list, &shards.join("captions")], &["--json", "--fields", "caption"]);
    assert_eq!((result.code, &*result.stderr), (0, ""));
    // A text that names no file: all texts of the first rows must be paths.
    source.add(
        "data/list.csv",
        b"path,mask,label\nimages/0.png,masks/0.png,0\nimages/1.png,none,1\n",
    );
    let result = run("pack", &[&list, &shards.join("other")], &["--json"]);
    assert_eq!((result.code, &*result.stderr), (0, ""));
    let result = run("pack", &[source.path(), &shards.join("folder")], &["--file-fields", "mask"]);
    let words = "--file-fields applies to lists only (.csv, .jsonl)";
    assert!(result.code == 2 && result.stderr.contains(words), "{}", result.stderr);
    let result = run("pack", &[&list, &shards.join("absent")], &["--file-fields", "masks"]);
    let words = "--file-fields \"masks\": no sample has this field";
    assert!(result.code == 2 && result.stderr.contains(words), "{}", result.stderr);
}

#[test]
fn files_beside_images_cause_a_warning() {
    let (source, shards) = (Folder::new(), Folder::new());
    for number in 0..3 {
        source.add(format!("pairs/{number}.png"), &png(number));
        source.add(format!("pairs/{number}.txt"), b"a cat");
        source.add(format!("pairs/.{number}.txt"), b"hidden");
    }
    source.add("pairs/0.caption.json", b"{}");
    source.add("pairs/README.md", b"no sample");
    let result = pack(&source, &shards.join("set"), &["--json"]);
    let words = "4 files beside images are left out (1 .json, 3 .txt); to pack them, write a list with \
                 a column for each file of a sample, and name these columns";
    assert!(result.code == 0 && result.line().contains(words), "{}", result.stderr);
}
