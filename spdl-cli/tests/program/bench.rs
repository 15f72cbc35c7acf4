//! `spdl bench`: output, exit codes, and reproducibility.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use crate::common::{Folder, bench, damaged, encode, finish, flat_png, image_name, png, spdl};
use serde_json::Value;

const KEYS: [&str; 29] = [
    "images",
    "seconds",
    "images_per_s",
    "frames_per_s",
    "audio_s_per_s",
    "cpu_s_per_1000",
    "peak_rss_bytes",
    "memory",
    "first_batch_ms",
    "epoch_starts_s",
    "epoch_images_per_s",
    "verdict",
    "diagnosis",
    "decisions",
    "data_readiness",
    "dropped",
    "resumed",
    "total",
    "complete",
    "left_out",
    "partial",
    "stages",
    "labelled",
    "step_ms",
    "steps",
    "kind",
    "cache",
    "checksum",
    "arguments",
];

#[test]
fn the_json_object_has_the_documented_keys_and_valid_values() {
    let folder = Folder::with_images(50, 3);
    let run = bench(folder.path(), &["--json", "--epochs", "2"]);
    assert_eq!(run.stdout.lines().count(), 1);
    assert_eq!(run.stderr, "");
    let json = run.json();
    assert_eq!(json.keys().collect::<Vec<_>>(), KEYS);

    assert_eq!(json["images"], 100);
    let number = |key: &str| json[key].as_f64().unwrap();
    assert!(number("seconds") > 0.0);
    let rate = 100.0 / number("seconds");
    assert!((number("images_per_s") / rate - 1.0).abs() < 1e-6);
    assert!(number("cpu_s_per_1000") > 0.0);
    assert!((1e6..1e9).contains(&number("peak_rss_bytes")));
    assert!(number("first_batch_ms") > 0.0);
    assert!(number("first_batch_ms") <= number("seconds") * 1e3);
    let starts: Vec<f64> =
        json["epoch_starts_s"].as_array().unwrap().iter().map(|at| at.as_f64().unwrap()).collect();
    assert_eq!(starts.len(), 2);
    assert!((starts[0] * 1e3 - number("first_batch_ms")).abs() < 1e-6, "{starts:?}");
    assert!(starts[0] < starts[1] && starts[1] < number("seconds"), "{starts:?}");
    assert!((0.0..=1.0).contains(&number("data_readiness")));
    let verdict = json["verdict"].as_str().unwrap();
    assert!(verdict.ends_with('.'), "{verdict}");
    assert!(json["diagnosis"]["limit"]["kind"].is_string(), "{json:?}");
    assert!(json["diagnosis"]["helps"].is_array(), "{json:?}");
    assert_eq!(json["dropped"], Value::Array(vec![]));
    assert_eq!(json["partial"], Value::Null);
    let checksum = json["checksum"].as_str().unwrap();
    assert!(checksum.len() == 32 && checksum.bytes().all(|digit| digit.is_ascii_hexdigit()));

    let stages = json["stages"].as_array().unwrap();
    let names: Vec<_> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["source", "fetch", "decode"]);
    for stage in stages {
        assert_eq!(stage["items"], 100);
        assert_eq!(stage["failures"], 0);
        assert_eq!(stage["fill_rate"], Value::Null);
        assert!(stage["busy_s"].as_f64().unwrap() > 0.0);
        assert!((0.0..=1.0).contains(&stage["busy_share"].as_f64().unwrap()));
        let service = &stage["service_ms"];
        let [p50, p99] = ["p50", "p99"].map(|quantile| service[quantile].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99);
        assert!(stage["queue"]["capacity"].as_u64().unwrap() > 0);
    }
}

fn checksum(folder: &Folder, arguments: &[&str]) -> String {
    let json = bench(folder.path(), &[&["--json", "--epochs", "2"], arguments].concat()).json();
    json["checksum"].as_str().unwrap().to_owned()
}

#[test]
fn the_same_seed_gives_the_same_bytes_for_any_number_of_threads() {
    let folder = Folder::with_images(70, 4);
    for mode in ["eval", "train"] {
        for layout in ["nhwc-u8", "nchw-f32"] {
            let with = |more: &[&str]| {
                checksum(&folder, &[&["--mode", mode, "--layout", layout], more].concat())
            };
            let one = with(&["--threads", "1"]);
            assert_eq!(with(&["--threads", "2"]), one, "{mode} {layout}");
            assert_eq!(with(&["--threads", "8"]), one, "{mode} {layout}");
            // The checksum does not depend on the batch size.
            assert_eq!(with(&["--batch", "7"]), one, "{mode} {layout}");
            let other_seed = with(&["--seed", "1"]);
            assert_eq!(other_seed != one, mode == "train", "{mode} {layout}");
        }
    }
}

#[test]
fn the_seed_determines_order_and_crops() {
    // A single image has one order; crops of a flat image look the same.
    let only_crops = Folder::with_images(1, 1);
    let only_order = Folder::new();
    for number in 0..30 {
        only_order.add(format!("class/{number:02}.png"), &flat_png(number));
    }
    for folder in [only_crops, only_order] {
        let [zero, one] = ["0", "1"].map(|seed| {
            let run = |mode| checksum(&folder, &["--mode", mode, "--seed", seed]);
            assert_ne!(run("train"), run("eval"));
            run("train")
        });
        assert_ne!(zero, one);
    }
}

#[test]
fn the_checksum_depends_on_mode_layout_size_pixels_and_labels() {
    let folder = Folder::with_images(20, 2);
    let plain = checksum(&folder, &[]);
    for other in [["--mode", "train"], ["--layout", "nchw-f32"], ["--size", "25"]] {
        assert_ne!(checksum(&folder, &other), plain, "{other:?}");
    }
    // The same images in the same order with other labels.
    let split = |first_of_b: u32| {
        let folder = Folder::new();
        for number in 0..20 {
            let class = if number < first_of_b { "a" } else { "b" };
            folder.add(format!("{class}/{number:04}.png"), &png(number));
        }
        checksum(&folder, &[])
    };
    assert_eq!(split(5), split(5));
    assert_ne!(split(5), split(6));
}

#[test]
fn no_checksum_leaves_the_other_results_unchanged() {
    let folder = Folder::with_images(20, 2);
    let run = bench(folder.path(), &["--json", "--no-checksum"]);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&json["images"], &json["checksum"]), (&Value::from(20), &Value::Null));
    let run = bench(folder.path(), &["--no-checksum"]);
    assert!(run.code == 0 && !run.stdout.contains("checksum"), "{}", run.stdout);
}

/// 200 images, every tenth of them corrupt, in four ways.
fn folder_with_damage() -> (Folder, Vec<String>) {
    let folder = Folder::with_images(200, 5);
    let names: Vec<_> = (0..20).map(|number| image_name(number * 10, 5)).collect();
    for (number, name) in (0..).zip(&names) {
        // The extension of another format must not matter.
        fs::remove_file(folder.join(name)).unwrap();
        folder.add(name.replace(".png", ".jpg"), &damaged(number));
    }
    (folder, names.iter().map(|name| name.replace(".png", ".jpg")).collect())
}

#[test]
fn skip_delivers_valid_images_and_lists_corrupt_files() {
    let (folder, mut damaged) = folder_with_damage();
    for threads in ["1", "2", "8"] {
        let arguments = ["--json", "--on-error", "skip", "--threads", threads];
        let run = bench(folder.path(), &arguments);
        assert_eq!(run.stderr, "");
        let json = run.json();
        assert_eq!(json["images"], 180);
        let dropped = json["dropped"].as_array().unwrap();
        let mut names: Vec<_> = dropped
            .iter()
            .map(|dropped| {
                assert_eq!(
                    dropped.as_object().unwrap().keys().collect::<Vec<_>>(),
                    ["key", "reason"]
                );
                assert!(dropped["reason"].as_str().unwrap().len() > 10, "{dropped}");
                let key = dropped["key"].as_str().unwrap();
                key.strip_prefix(folder.path().to_str().unwrap()).unwrap()[1..].to_owned()
            })
            .collect();
        names.sort();
        damaged.sort();
        assert_eq!(names, damaged);
        let decode = &json["stages"][2];
        assert_eq!((&decode["items"], &decode["failures"]), (&200.into(), &20.into()));
        // 180 = 11 · 16 + 4: all batches but the last are full.
        assert_eq!(decode["queue"]["items"], 12);
    }
}

#[test]
fn truncated_images_are_delivered_with_on_truncated_partial() {
    let (folder, _) = folder_with_damage();
    let run = |on_truncated| {
        let arguments = ["--json", "--on-error", "skip", "--on-truncated", on_truncated];
        bench(folder.path(), &arguments).json()
    };
    // 5 of the 20 corrupt files are truncated images; the others are not images.
    let (strict, partial) = (run("error"), run("partial"));
    assert_eq!((&strict["images"], &strict["partial"]), (&180.into(), &Value::Null));
    assert_eq!((&partial["images"], &partial["partial"]), (&185.into(), &5.into()));
    assert_eq!(partial["dropped"].as_array().unwrap().len(), 15);
    assert_ne!(strict["checksum"], partial["checksum"]);

    let arguments = ["--on-error", "skip", "--on-truncated", "partial"];
    let text = bench(folder.path(), &arguments).stdout;
    assert!(text.lines().any(|line| line == "partial         5"), "{text}");
    let text = bench(folder.path(), &["--on-error", "skip"]).stdout;
    assert!(!text.lines().any(|line| line.starts_with("partial")), "{text}");
}

#[test]
fn the_text_lists_each_corrupt_file_once() {
    let (folder, damaged) = folder_with_damage();
    let run = bench(folder.path(), &["--on-error", "skip", "--epochs", "3"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("60 images dropped, from 20 files:"), "{}", run.stdout);
    let lines: Vec<_> = run.stdout.lines().collect();
    for name in damaged {
        let named = |line: &&&str| line.ends_with(&format!("/{name} (3 times)"));
        assert_eq!(lines.iter().filter(named).count(), 1, "{name} in {}", run.stdout);
    }
}

// promise: R9
#[test]
fn more_skipped_images_than_allowed_end_the_run() {
    let (folder, _) = folder_with_damage();
    let run = |most, epochs| {
        let arguments = ["--on-error", "skip", "--max-skipped", most, "--epochs", epochs];
        bench(folder.path(), &arguments)
    };
    assert_eq!(run("20", "1").code, 0);
    assert_eq!(run("10%", "6").code, 0);
    assert_eq!(run("all", "6").code, 0);
    let ended = run("19", "1");
    assert_eq!(ended.code, 1);
    assert!(ended.line().contains("more than 19 items failed"), "{}", ended.line());
    assert!(ended.line().ends_with("; to skip more, raise --max-skipped"), "{}", ended.line());
    // A share is checked at the end of a small data set, if it is given.
    let ended = run("2%", "1");
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    let reason = "items failed; the failure policy (on_error) allows 2 %; first failures: ";
    assert!(ended.line().contains(reason), "{}", ended.line());
    assert_eq!(bench(folder.path(), &["--on-error", "skip"]).code, 0, "too few images to judge");
    // By default, at most 1 % after 1,000 images.
    let arguments = ["--on-error", "skip", "--epochs", "6"];
    let ended = bench(folder.path(), &arguments);
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    assert!(ended.line().contains("the failure policy (on_error) allows 1 %"), "{}", ended.line());
}

#[test]
fn the_text_limits_the_list_of_corrupt_files() {
    let folder = Folder::with_images(10, 1);
    for number in 0..60 {
        folder.add(format!("class-0/bad-{number}.jpg"), b"");
    }
    let text = bench(folder.path(), &["--on-error", "skip"]).stdout;
    assert_eq!(text.matches("bad-").count(), 50);
    assert!(text.contains("and 10 more"), "{text}");
    let json = bench(folder.path(), &["--on-error", "skip", "--json"]).json();
    assert_eq!(json["dropped"].as_array().unwrap().len(), 60);
}

#[test]
fn raise_stops_at_the_first_corrupt_file() {
    for number in 0..4 {
        let folder = Folder::with_images(40, 2);
        folder.add("class-0/0001-bad.jpg", &damaged(number));
        for json in [&["--json"][..], &[]] {
            let run = bench(folder.path(), json);
            assert_eq!(run.code, 1);
            assert_eq!(run.stdout, "");
            let line = run.line();
            assert!(line.starts_with("spdl: decode failed: "), "{line}");
            assert!(line.contains("class-0/0001-bad.jpg: "), "{line}");
        }
    }
}

#[test]
fn the_error_names_an_unreadable_file() {
    let folder = Folder::with_images(10, 1);
    // Root ignores permissions, but a dangling link fails for every user.
    std::os::unix::fs::symlink("nowhere", folder.join("class-0/broken.jpg")).unwrap();
    let run = bench(folder.path(), &[]);
    assert_eq!(run.code, 1);
    assert!(run.line().starts_with("spdl: fetch failed: "), "{}", run.line());
    assert!(run.line().contains("class-0/broken.jpg"), "{}", run.line());
    let json = bench(folder.path(), &["--on-error", "skip", "--json"]).json();
    assert_eq!(json["images"], 10);
    assert!(json["dropped"][0]["reason"].as_str().unwrap().starts_with("not-found: "));
}

// promise: R9
#[test]
fn a_run_without_valid_images_fails() {
    let folder = Folder::new();
    for number in 0..4 {
        folder.add(format!("class/{number}.jpg"), &damaged(number));
    }
    let run = bench(folder.path(), &["--on-error", "skip"]);
    assert_eq!(run.code, 1);
    assert!(run.line().contains("all 4 images failed"), "{}", run.line());
    assert!(run.stdout.contains("4 images dropped:"), "{}", run.stdout);
    let run = bench(folder.path(), &["--on-error", "skip", "--epochs", "2"]);
    assert_eq!(run.code, 1);
    let expected = "epoch 0 delivered no sample, and 4 samples failed; first failure: ";
    assert!(run.line().contains(expected), "{}", run.line());
    assert!(run.line().contains("class/0.jpg"), "{}", run.line());
}

#[test]
fn a_folder_without_images_is_an_error() {
    let folder = Folder::new();
    folder.add("empty/.hidden.jpg", b"");
    folder.add("texts/a/readme.txt", b"nothing to see");
    folder.add("file.jpg", &png(0));
    for (path, reason) in [
        ("missing", "file or folder does not exist"),
        ("empty", "no images found"),
        ("texts", "no images found"),
        ("file.jpg", "not a folder"),
    ] {
        for json in [&["--json"][..], &[]] {
            let run = bench(&folder.join(path), json);
            assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{path}");
            let line = run.line();
            assert!(line.starts_with("spdl: cannot open the data set: "), "{line}");
            assert!(line.contains(path) && line.contains(reason), "{line}");
        }
    }
}

#[test]
fn an_invalid_command_line_exits_with_2() {
    let folder = Folder::with_images(2, 1);
    let path = folder.path().to_str().unwrap();
    let mistakes: [&[&str]; 15] = [
        &[],
        &["bench"],
        &["train", path],
        &["bench", path, "--size", "0"],
        &["bench", path, "--size", "16385"],
        &["bench", path, "--size", "large"],
        &["bench", path, "--batch", "0"],
        &["bench", path, "--batch", "-1"],
        &["bench", path, "--batch", "99999999999999999999"],
        &["bench", path, "--epochs", "0"],
        &["bench", path, "--threads", "0"],
        &["bench", path, "--mode", "test"],
        &["bench", path, "--layout", "nchw-i8"],
        &["bench", path, "--on-error", "ignore"],
        &["bench", path, "--seed", "1.5"],
    ];
    for arguments in mistakes {
        let run = finish(spdl().args(arguments).output().unwrap());
        assert_eq!(run.code, 2, "{arguments:?}");
        assert_eq!(run.stdout, "", "{arguments:?}");
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    }
}

#[test]
fn batches_larger_than_the_memory_are_an_error() {
    let folder = Folder::with_images(300, 1);
    let sizes = ["--size", "16384", "--batch", "1048576", "--layout", "nchw-f32"];
    let run = finish(spdl().arg("bench").arg(folder.path()).args(sizes).output().unwrap());
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.line().contains("a batch of 300 images takes"), "{}", run.line());
}

#[test]
fn the_memory_budget_limits_prefetch_of_large_files() {
    const SIDE: u32 = 1500;
    const FILE_BYTES: usize = 8 << 20;
    let folder = Folder::new();
    let mut image = encode(SIDE, SIDE, &vec![7; (SIDE * SIDE * 3) as usize]);
    // Zeros after an image are ignored. Decoding takes much longer than reading.
    image.resize(FILE_BYTES, 0);
    folder.add("00.png", &image);
    for number in 1..40 {
        let other = folder.join(format!("{number:02}.png"));
        fs::hard_link(folder.join("00.png"), other).unwrap();
    }
    let json = bench(folder.path(), &["--json", "--threads", "1"]).json();
    assert_eq!(json["images"], 40);
    // The queue has 16 slots, but two of these files already have 16 MiB.
    let queue = &json["stages"][1]["queue"];
    assert_eq!((&json["stages"][1]["name"], &queue["capacity"]), (&"fetch".into(), &16.into()));
    assert!(queue["mean"].as_f64().unwrap() < 6.0, "{queue}");
}

#[test]
fn help_teaches() {
    for (arguments, words) in [
        (&["--help"][..], &["Examples:", "spdl bench", "Exit codes:"][..]),
        (&["bench", "--help"], &["Examples:", "[default: 224]", "Exit codes:"]),
        (&["bench", "--help"], &KEYS),
    ] {
        let run = finish(spdl().args(arguments).output().unwrap());
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        for word in words {
            assert!(run.stdout.contains(word), "{word} is missing in {}", run.stdout);
        }
        for line in run.stdout.lines() {
            assert!(line.chars().count() <= 100, "too long: {line}");
        }
    }
    let version = finish(spdl().arg("--version").output().unwrap());
    assert_eq!(version.stdout, format!("spdl {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_text_has_the_rate_of_each_epoch() {
    let folder = Folder::with_images(40, 2);
    let line = |epochs: &str| {
        let run = bench(folder.path(), &["--epochs", epochs]);
        run.stdout.lines().find(|line| line.starts_with("each epoch")).map(str::to_owned)
    };
    assert_eq!(line("1"), None);
    let line = line("3").unwrap();
    let rates: Vec<f64> = line
        .split_whitespace()
        .skip(2)
        .map(|rate| rate.replace(',', "").parse().unwrap())
        .collect();
    assert!(rates.len() == 3 && rates.iter().all(|rate| *rate > 0.0), "{line}");
}

#[test]
fn the_text_has_all_parts_and_no_long_lines() {
    let folder = Folder::with_images(50, 3);
    let run = bench(folder.path(), &["--epochs", "2", "--threads", "2"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "no progress bar without a terminal");
    for part in [
        "50 images in 3 classes",
        "images/s",
        "CPU s / 1,000",
        "CPU used",
        "peak RSS",
        "first batch",
        "data readiness",
        "\nsource",
        "\nfetch",
        "\ndecode",
        "queue after",
        "checksum",
    ] {
        assert!(run.stdout.contains(part), "{part:?} is missing in {}", run.stdout);
    }
    assert!(!run.stdout.contains('\x1b'), "escape sequences in the output");
    for line in run.stdout.lines() {
        assert!(line.chars().count() <= 100, "too long: {line}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = Folder::with_images(20, 1);
    for arguments in [&["--json"][..], &[]] {
        let mut command = spdl();
        command.arg("bench").arg(folder.path()).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    }
}

#[test]
fn a_failed_write_to_standard_output_is_an_error() {
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        println!("SKIPPED: no /dev/full");
        return;
    };
    let folder = Folder::with_images(4, 1);
    let mut command = spdl();
    command.arg("bench").arg(folder.path()).arg("--json");
    let run = finish(command.stdout(full).stderr(Stdio::piped()).output().unwrap());
    assert_eq!(run.code, 1);
    assert!(run.line().starts_with("spdl: cannot write the result: "), "{}", run.line());
}

#[test]
fn images_outside_class_folders_cause_a_warning() {
    let folder = Folder::with_images(4, 1);
    folder.add("stray.png", &png(0));
    let run = bench(folder.path(), &["--json"]);
    assert!(run.line().starts_with("spdl: warning: "), "{}", run.stderr);
    assert_eq!(run.json()["images"], 4);
}

/// Each thread needs decoder memory and one more batch.
#[cfg(target_os = "linux")]
#[test]
fn memory_grows_by_one_batch_and_one_decoder_per_thread() {
    let folder = Folder::new();
    let image = encode(640, 480, &[40, 90, 200].repeat(640 * 480));
    for number in 0..256 {
        folder.add(image_name(number, 2), &image);
    }
    let peak = |threads: u64| {
        let threads = threads.to_string();
        let json = bench(folder.path(), &["--json", "--epochs", "2", "--threads", &threads]).json();
        json["peak_rss_bytes"].as_u64().unwrap()
    };
    let (few, many) = (peak(2), peak(32));
    let batch = 32 * 224 * 224 * 3;
    let own = 2 * 640 * 480 * 4 + batch;
    println!("2 threads: {few} bytes, 32 threads: {many} bytes");
    assert!(many < few + 30 * own, "{few} bytes with 2 threads, {many} with 32");
}

#[test]
fn step_ms_counts_the_steps_that_waited() {
    let folder = Folder::with_images(40, 2);
    let options = ["--step-ms", "300", "--epochs", "2"];
    let json = bench(folder.path(), &[&options[..], &["--json"]].concat()).json();
    let steps = &json["steps"];
    // Three batches per epoch; the first step always waits.
    assert_eq!((&json["step_ms"], &steps["steps"]), (&300.into(), &5.into()));
    assert!(steps["waited"].as_u64() < Some(5), "{steps}");
    assert!(json["seconds"].as_f64() >= Some(5.0 * 0.3), "{}", json["seconds"]);
    let text = bench(folder.path(), &options).stdout;
    let line = text.lines().find(|line| line.starts_with("steps waited    ")).unwrap();
    assert!(line.contains(" of 5 ("), "{line}");
    let without = bench(folder.path(), &["--json"]).json();
    assert!(without["steps"].is_null() && without["step_ms"].is_null());
    assert_eq!(without["labelled"], 40);
}

#[test]
fn images_without_classes_are_accepted() {
    let folder = Folder::new();
    for number in 0..10 {
        folder.add(format!("flat/{number}.png"), &png(number));
    }
    let (flat, set) = (folder.join("flat"), folder.join("set"));
    let packed = finish(spdl().arg("pack").args([&flat, &set]).output().unwrap());
    assert_eq!(packed.code, 0, "{}", packed.stderr);
    for data in [&flat, &set] {
        let text = bench(data, &[]).stdout;
        assert!(text.contains("labels          none: no image has a class"), "{text}");
        let json = bench(data, &["--json"]).json();
        assert_eq!((&json["images"], &json["labelled"]), (&10.into(), &0.into()));
        let listed = finish(spdl().arg("ls").arg(data).arg("--samples").output().unwrap());
        assert_eq!((listed.code, listed.stdout.lines().count()), (0, 10));
        let output = finish(spdl().arg("stat").arg(data).output().unwrap());
        assert!(
            output.code == 0 && output.stdout.contains("no sample has a class"),
            "{}",
            output.stdout
        );
    }
}
