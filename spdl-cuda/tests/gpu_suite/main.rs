//! The program of `cargo xtask gpu` on a stub driver: the processes that it runs, and its output.

// promise of this file: DEV5
#![cfg(all(feature = "images", unix))]
#![expect(clippy::print_stdout, reason = "prints why a test is skipped")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

// Modules of the example, included for their unit tests.
#[path = "../../examples/gpu/comparison.rs"]
#[allow(dead_code, reason = "included for its tests")]
mod comparison;
#[path = "../common/jpegs_with_pixels.rs"]
mod jpegs_with_pixels;
mod library_stubs;
#[path = "../../examples/gpu/lines.rs"]
#[allow(dead_code, reason = "included for its tests")]
mod lines;
#[path = "../../examples/gpu/machine.rs"]
#[allow(dead_code, reason = "included for its tests")]
mod machine;
mod pack;
#[path = "../common/stub_library.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod stub_library;
mod tests_one_by_one;
#[path = "../common/video_commands.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod video_commands;
#[path = "../common/videos.rs"]
#[allow(dead_code, reason = "measurements use the other items")]
mod videos;

/// The item of the example that `comparison` uses.
mod samples {
    pub(crate) const WORKLOAD: &str = "decode, resize to 224 and normalise";
}

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use pack::{Pack, ends, of_kind};
use serde_json::Value;

#[test]
fn without_a_device_the_program_is_skipped_unless_a_device_is_required() {
    let Some(pack) = Pack::new() else { return };
    let run = |require: Option<&str>| {
        let mut command = pack.command(&["--tiny"]);
        command.env("CUDA_VISIBLE_DEVICES", "");
        require.map(|value| command.env("SPDL_REQUIRE_GPU", value));
        command.output().unwrap()
    };
    let skipped = run(None);
    let text = String::from_utf8_lossy(&skipped.stdout).into_owned();
    assert_eq!(skipped.status.code(), Some(0), "{skipped:?}");
    assert!(
        text.starts_with("SKIPPED: no GPU: ") && text.contains("CUDA_VISIBLE_DEVICES"),
        "{text}"
    );
    let failed = run(Some("1"));
    let text = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(text.starts_with("error: a GPU is required: "), "{text}");
    assert!(!pack.path("results").exists());
}

#[test]
fn invalid_arguments_are_errors() {
    let Some(pack) = Pack::new() else { return };
    for (words, expected) in [
        (&["--only", "g1,g9"][..], "unknown measurement \"g9\": expected tests, g1, g2"),
        (&["--minutes", "0"][..], "invalid value for --minutes: expected a number above 0"),
        (&["--minutes"][..], "missing value for --minutes"),
        (&["--fast"][..], "unknown argument \"--fast\""),
    ] {
        let output = pack.run(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.starts_with(&format!("error: {expected}")), "{text}");
    }
}

#[test]
fn measurements_complete_and_their_promises_hold() {
    let Some(pack) = Pack::new() else { return };
    let output =
        pack.run(&["--tiny", "--only", "g1,g2,g7,g8", "--minutes", "3", "--python", "none"]);
    let lines = pack.lines();
    assert_eq!(
        ends(&lines),
        [
            ("g1", "own", "done"),
            ("g1", "copies.py", "unsupported"),
            ("g2", "own", "done"),
            ("g7", "own", "done"),
            ("g8", "own", "done"),
        ],
        "{}",
        fs::read_to_string(pack.path("results/log.txt")).unwrap()
    );
    assert_eq!(lines[0]["kind"], "run");
    assert_eq!(
        (&lines[0]["device"], &lines[0]["commit"]),
        (&"Stub".into(), &"0123456789ab".into())
    );
    let promises = of_kind(&lines, "promise");
    for promise in ["G1: ", "G9: ", "G10: ", "G11: ", "G12: lost", "the memory of a killed"] {
        let starts = |line: &&&Value| line["promise"].as_str().unwrap().starts_with(promise);
        assert!(promises.iter().any(|line| starts(&line)), "{promise}");
    }
    for line in &promises {
        assert_eq!(line["holds"], true, "{line}");
    }
    let figures = of_kind(&lines, "figure");
    for case in ["to device, 64 KiB, CudaDevice", "to host, 4 KiB, pageable, 1 stream"] {
        assert!(figures.iter().any(|line| line["case"] == case), "{case}");
    }
    // The first case is the check of the check.
    let control = figures.iter().find(|line| line["name"] == "corrupted").unwrap();
    assert!(control["case"].as_str().unwrap().starts_with("unordered copies"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = fs::read_to_string(pack.path("results/table.md")).unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(&format!("{table}\n")));
    assert!(table.contains("## g8\n") && table.ends_with("\n0 failures\n"), "{table}");
}

#[test]
fn measurements_without_their_libraries_are_unsupported() {
    let Some(pack) = Pack::new() else { return };
    let output = pack.run(&["--tiny", "--only", "tests,g3,g4,g5", "--minutes", "1"]);
    let lines = pack.lines();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(of_kind(&lines, "figure").is_empty() && of_kind(&lines, "promise").is_empty());
    assert!(ends(&lines).contains(&("tests", "tests", "unsupported")));
    let unsupported = of_kind(&lines, "unsupported");
    assert!(unsupported.iter().any(|line| line["measurement"] == "g3"
        && line["reason"].as_str().unwrap().contains("nvidia-nvjpeg")));
    assert!(unsupported.iter().any(|line| line["measurement"] == "g5"));
}

#[test]
fn an_invalid_line_fails_its_measurement_and_the_other_lines_stay() {
    let Some(pack) = Pack::new() else { return };
    fs::write(
        pack.path("python/training.py"),
        "echo '{\"kind\": \"note\", \"text\": \"before\"}'\necho Traceback\n\
         echo '{\"kind\": \"note\", \"text\": \"after\"}'\n",
    )
    .unwrap();
    let output = pack.run(&["--only", "g4", "--python", &pack.python()]);
    let lines = pack.lines();
    let notes: Vec<_> = of_kind(&lines, "note").iter().map(|line| line["text"].clone()).collect();
    assert_eq!(notes, ["before", "after"]);
    assert_eq!(ends(&lines), [("g4", "training.py", "failed")]);
    let end = of_kind(&lines, "end")[0];
    assert!(end["reason"].as_str().unwrap().contains("Traceback"), "{end}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn each_part_receives_its_share_of_the_remaining_time() {
    let Some(pack) = Pack::new() else { return };
    // Prints the value of `--seconds` as a figure.
    let script = "echo \"{\\\"kind\\\": \\\"figure\\\", \\\"case\\\": \\\"a\\\", \\\"name\\\": \
                  \\\"time\\\", \\\"value\\\": $4, \\\"unit\\\": \\\"s\\\"}\"\n";
    for name in ["jpeg.py", "training.py"] {
        fs::write(pack.path("python").join(name), script).unwrap();
    }
    pack.run(&["--tiny", "--only", "g3,g4", "--minutes", "10", "--python", &pack.python()]);
    let lines = pack.lines();
    let found: Vec<f64> =
        of_kind(&lines, "figure").iter().map(|line| line["value"].as_f64().unwrap()).collect();
    // The weights are 3, 2 and 6. The first part ends immediately, so the others share its time.
    let expected = [600.0 * 2.0 / 8.0 * 0.85, 600.0 * 0.85];
    assert_eq!(found.len(), 2, "{lines:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 20.0, "{found} is not near {expected}");
    }
}

#[test]
fn a_hanging_part_is_killed_at_the_end_of_its_share() {
    let Some(pack) = Pack::new() else { return };
    fs::write(
        pack.path("python/training.py"),
        "echo '{\"kind\": \"note\", \"text\": \"before\"}'\nexec sleep 60\n",
    )
    .unwrap();
    let start = Instant::now();
    let output = pack.run(&["--only", "g4", "--minutes", "0.03", "--python", &pack.python()]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let lines = pack.lines();
    assert_eq!(of_kind(&lines, "note").len(), 1);
    assert_eq!(ends(&lines), [("g4", "training.py", "out of time")]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_results_of_a_killed_run_are_kept() {
    let Some(pack) = Pack::new() else { return };
    fs::write(
        pack.path("python/training.py"),
        "echo '{\"kind\": \"figure\", \"case\": \"a\", \"name\": \"rate\", \"value\": 7.5, \
         \"unit\": \"images/s\"}'\nexec sleep 60\n",
    )
    .unwrap();
    let mut child = pack
        .command(&["--only", "g4", "--python", &pack.python()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines();
    let figure = output.map(Result::unwrap).find(|line| line.contains("7.5"));
    assert!(figure.is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = pack.lines();
    assert_eq!(of_kind(&lines, "figure").len(), 1);
    // A truncated last line is ignored.
    let file = pack.path("results/results.jsonl");
    let text = fs::read_to_string(&file).unwrap() + "{\"kind\": \"fig";
    fs::write(&file, text).unwrap();
    let table = pack.run(&["table", &file.display().to_string()]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("| a | rate | 7.500 | images/s |"), "{table}");
}
