//! `spdl profile` and `spdl tune`.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{Folder, Run, bench, finish, spdl};

fn profile(folder: &Folder, arguments: &[&str]) -> Run {
    let mut command = spdl();
    command.arg("profile").arg(folder.path()).args(["--size", "24", "--batch", "8"]);
    finish(command.args(arguments).output().unwrap())
}

/// Runs `spdl profile` with a step of 60 ms, which the loader keeps up with. On a busy machine, other programs may
/// delay some steps; the profile is then made again.
fn profile_of_a_long_step(folder: &Folder, arguments: &[&str], not_starved: &str) -> Run {
    let make = || profile(folder, &[&["--step-time", "60ms"], arguments].concat());
    let mut run = make();
    for _ in 0..2 {
        if !run.stdout.contains(not_starved) {
            run = make();
        }
    }
    run
}

/// Sends lines to `spdl tune`, and returns its responses.
fn tune(folder: &Folder, lines: &[u8]) -> (Vec<Value>, Run) {
    let mut command = spdl();
    command.arg("tune").arg(folder.path()).args(["--size", "24", "--batch", "8", "--json"]);
    let pipe = || Stdio::piped();
    let mut child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines = lines.to_vec();
    let writer = std::thread::spawn(move || drop(input.write_all(&lines)));
    let run = finish(child.wait_with_output().unwrap());
    writer.join().unwrap();
    let responses = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (responses, run)
}

#[test]
fn a_long_step_is_not_starved_and_a_short_step_is() {
    let folder = Folder::with_images(40, 2);
    let limits = ["--max-seconds", "1", "--json"];
    let json = profile_of_a_long_step(&folder, &limits, "\"starved\":false").json();
    assert_eq!(
        (&json["starved"], json["headspace"].as_f64().unwrap() < 0.05),
        (&json!(false), true)
    );
    assert!(json["step_s"].as_f64().unwrap() >= 0.06);
    assert_eq!(json["samples_per_batch"], 8.0);
    let names = ["source", "fetch", "decode"];
    let stages = json["stages"].as_array().unwrap();
    assert_eq!(
        stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect::<Vec<_>>(),
        names
    );
    assert!(stages[2]["ms_per_sample"].as_f64().unwrap() > 0.0);
    let slowest = json["slowest"].as_array().unwrap();
    assert!((1..=10).contains(&slowest.len()), "{slowest:?}");
    for slow in slowest {
        assert!(slow["key"].as_str().unwrap().contains("class-"), "{slow}");
        assert!(slow["time_s"].as_f64().unwrap() > 0.0 && slow["bytes"].is_u64(), "{slow}");
        assert!(
            ["size", "latency", "cpu", "work"].contains(&slow["cause"].as_str().unwrap()),
            "{slow}"
        );
    }
    // The loader needs longer than 0.1 ms for a batch of 8 images.
    let json = profile(&folder, &[&["--step-time", "0.1ms"], &limits[..]].concat()).json();
    assert_eq!(json["starved"], true, "{json:?}");
    let (headspace, gain) = (json["headspace"].as_f64().unwrap(), json["gain"].as_f64().unwrap());
    assert!((gain - (1.0 / (1.0 - headspace) - 1.0)).abs() < 1e-9);
}

#[test]
fn the_text_of_a_profile_is_a_few_sentences() {
    let folder = Folder::with_images(24, 2);
    let run = profile_of_a_long_step(&folder, &["--max-seconds", "0.5"], "not starved");
    assert_eq!(run.code, 0, "{}", run.stderr);
    for part in ["The training would run at ", "not starved", "Per image: "] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    let run = profile(&folder, &["--max-seconds", "0.5"]);
    assert!(run.stdout.contains("It keeps up with training steps"), "{}", run.stdout);
}

#[test]
fn a_tuned_run_delivers_the_same_batches_and_freezes_its_settings() {
    let folder = Folder::with_images(40, 2);
    let file = folder.path().join("settings.json");
    let file = file.to_str().unwrap();
    let run = |options: &[&str]| {
        let run = bench(
            folder.path(),
            &[&["--json", "--size", "24", "--threads", "2"], options].concat(),
        );
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.json()
    };
    let plain = run(&[]);
    let tuned = run(&["--tune", "--freeze", file]);
    let settings: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!((&settings["threads"], settings["stages"]["fetch"].is_object()), (&json!(2), true));
    let changed =
        std::fs::read_to_string(file).unwrap().replace("\"threads\": 2", "\"threads\": 3");
    std::fs::write(file, changed).unwrap();
    let frozen = run(&[&format!("--tune={file}")]);
    assert_eq!(frozen["decisions"], json!([]));
    assert_eq!([&tuned["checksum"], &frozen["checksum"]], [&plain["checksum"]; 2]);
    let text = bench(folder.path(), &["--size", "24", &format!("--tune={file}")]);
    assert!(text.stdout.contains("3 threads"), "{}", text.stdout);
    let missing = bench(folder.path(), &["--tune=none.json"]);
    assert!(missing.code == 1 && missing.stderr.contains("none.json"), "{}", missing.stderr);
}

#[test]
fn options_that_need_whole_epochs_are_refused() {
    let folder = Folder::with_images(1, 1);
    for option in [&["--epochs", "2"][..], &["--report", "a.html"], &["--save-state", "a"]] {
        let run = profile(&folder, option);
        assert_eq!(run.code, 2, "{option:?}");
        assert!(run.stderr.contains(option[0]), "{}", run.stderr);
    }
    for command in ["profile", "tune"] {
        let help = finish(spdl().args([command, "--help"]).output().unwrap()).stdout;
        assert!(help.contains("<DATA>") && help.contains("--threads"), "{help}");
        assert!(!help.contains("--save-state") && !help.contains("--report"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

// feature: U01
#[test]
fn a_program_describes_sets_and_measures() {
    let folder = Folder::with_images(40, 2);
    let lines = r#"{"command": "describe", "id": "a"}
{"command": "set", "settings": {"threads": 2, "prefetch": 4, "in_flight": 3, "decode_concurrency": 1}}

{"command": "measure", "seconds": 0.3, "rounds": 3}
{"command": "set", "settings": {"prefetch": null}}
{"command": "measure", "batches": 12, "rounds": 4, "step_s": 0.001}
{"command": "quit"}
{"command": "describe"}
"#;
    let (responses, run) = tune(&folder, lines.as_bytes());
    assert_eq!((run.code, responses.len()), (0, 6), "{} {}", run.stdout, run.stderr);
    assert!(responses.iter().all(|response| response["ok"] == true), "{}", run.stdout);
    let described = &responses[0];
    assert_eq!((&described["id"], &described["samples"]), (&json!("a"), &json!(40)));
    for setting in described["settings"].as_array().unwrap() {
        let value = |key: &str| setting[key].as_u64().unwrap();
        assert!(value("min") >= 1 && value("min") < value("max"), "{setting}");
    }
    assert_eq!(
        responses[1]["settings"],
        json!({ "threads": 2, "decode_concurrency": 1, "in_flight": 3, "prefetch": 4 })
    );
    let rate = &responses[2]["samples_per_s"];
    let figure = |key: &str| rate[key].as_f64().unwrap();
    assert!(
        0.0 < figure("q1") && figure("q1") <= figure("median") && figure("median") <= figure("q3")
    );
    assert_eq!(rate["rounds"].as_array().unwrap().len(), 3);
    assert_eq!(responses[2]["settings"], responses[1]["settings"]);
    assert_eq!(responses[3]["settings"]["prefetch"], Value::Null);
    assert_eq!((&responses[4]["batches"], &responses[4]["samples"]), (&json!(12), &json!(96)));
    assert!(responses[4]["verdict"].is_string() && responses[4]["diagnosis"]["limit"].is_object());
}

#[test]
fn invalid_lines_are_answered_with_typed_errors() {
    let folder = Folder::with_images(8, 1);
    let mut lines =
        b"nonsense\n{\"command\": \"set\", \"settings\": {\"threads\": 0}, \"id\": 3}\n\xff\n"
            .to_vec();
    lines.extend(vec![b'['; 5 << 20]);
    lines.extend(b"\n{\"command\": \"describe\"}");
    let (responses, run) = tune(&folder, &lines);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let kinds: Vec<_> =
        responses.iter().map(|response| response["error"]["kind"].as_str()).collect();
    let invalid = Some("invalid-json");
    assert_eq!(kinds, [invalid, Some("out-of-range"), invalid, invalid, None]);
    assert_eq!((&responses[1]["ok"], &responses[1]["id"]), (&json!(false), &json!(3)));
}

#[test]
fn a_corrupt_image_fails_the_measurement_and_not_the_program() {
    let folder = Folder::with_images(8, 1);
    folder.add("class-0/broken.png", b"no image");
    let lines = "{\"command\": \"measure\", \"seconds\": 0.2}\n{\"command\": \"describe\"}\n";
    let (responses, run) = tune(&folder, lines.as_bytes());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(responses[0]["error"]["kind"], "failed");
    assert!(responses[0]["error"]["message"].as_str().unwrap().contains("broken.png"));
    assert_eq!(responses[1]["ok"], true);
}

#[test]
fn each_response_is_written_before_the_next_request() {
    let folder = Folder::with_images(8, 1);
    let mut command = spdl();
    command.arg("tune").arg(folder.path()).arg("--json");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for number in 0..3 {
        writeln!(input, "{{\"command\": \"describe\", \"id\": {number}}}").unwrap();
        let response: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(response["id"], number);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_json_the_command_names_the_option() {
    let folder = Folder::with_images(1, 1);
    let run = finish(spdl().arg("tune").arg(folder.path()).output().unwrap());
    assert_eq!(run.code, 2);
    assert!(run.line().contains("add --json"), "{}", run.stderr);
}
