//! The tests on a device, which the program runs in separate processes.

// promise of this file: DEV5

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pack::{Pack, ends, of_kind};

/// Writes a test program with the tests `a`, `b::c` and `d`, which run these shell commands.
fn test_program(pack: &Pack, [a, b, d]: [&str; 3]) {
    let text = format!(
        "#!/bin/sh\ncase \"$1\" in\n--list) printf 'a: test\\nb::c: test\\nd: test\\n';;\n\
         a) {a};;\nb::c) {b};;\nd) {d};;\nesac\n"
    );
    pack.executable("tests/gpu", &text);
}

/// The name of each test of a run, and whether it passed.
fn tests_of(lines: &[Value]) -> Vec<(&str, bool)> {
    let tests = of_kind(lines, "test").into_iter();
    tests.map(|line| (line["name"].as_str().unwrap(), line["passed"] == true)).collect()
}

#[test]
fn a_crashed_test_does_not_stop_the_others() {
    let Some(pack) = Pack::new() else { return };
    let prints = "echo \"$SPDL_REQUIRE_GPU $*\"; echo 'test d ... SKIPPED: no engine'";
    test_program(&pack, ["true", "kill -SEGV $$", prints]);
    let output = pack.run(&["--only", "tests"]);
    let lines = pack.lines();
    assert_eq!(tests_of(&lines), [("a", true), ("b::c", false), ("d", true)]);
    let reason = of_kind(&lines, "test")[1]["reason"].as_str().unwrap();
    assert!(reason.contains("signal: 11"), "{reason}");
    assert_eq!(ends(&lines), [("tests", "tests", "failed")]);
    assert_eq!(output.status.code(), Some(1));
    let log = fs::read_to_string(pack.path("results/log.txt")).unwrap();
    assert!(log.contains("\n1 d --exact --nocapture\n"), "{log}");
    let skipped = of_kind(&lines, "unsupported");
    assert_eq!((&skipped[0]["case"], &skipped[0]["reason"]), (&"d".into(), &"no engine".into()));
    let table = fs::read_to_string(pack.path("results/table.md")).unwrap();
    assert!(table.contains("2 of 3 tests passed"), "{table}");
}

#[test]
fn a_hanging_test_is_killed_and_the_next_ones_run() {
    let Some(pack) = Pack::new() else { return };
    test_program(&pack, ["exec sleep 60", "true", "false"]);
    let start = Instant::now();
    pack.run(&["--only", "tests", "--minutes", "0.05"]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let lines = pack.lines();
    assert_eq!(tests_of(&lines), [("a", false), ("b::c", true), ("d", false)]);
    let reasons = of_kind(&lines, "test").into_iter().map(|line| line["reason"].clone());
    let starts = ["out of time: ", "", "failed: "];
    for (reason, start) in reasons.zip(starts) {
        assert!(reason.as_str().unwrap().starts_with(start), "{reason}");
    }
}

#[test]
fn a_test_program_without_tests_fails() {
    let Some(pack) = Pack::new() else { return };
    for text in ["#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 3\n"] {
        pack.executable("tests/gpu", text);
        let output = pack.run(&["--only", "tests"]);
        assert_eq!(ends(&pack.lines()), [("tests", "tests", "failed")], "{text}");
        assert_eq!(output.status.code(), Some(1));
    }
}
