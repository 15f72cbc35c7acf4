//! `spdl plan`: given and measured costs, and the commands of the guide.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Folder, Run, by_shell, finish, spdl};

fn plan(arguments: &[&str]) -> Run {
    finish(spdl().arg("plan").args(arguments).output().unwrap())
}

fn json(arguments: &[&str]) -> Value {
    plan(&[&["--json"], arguments].concat()).json().into()
}

#[test]
fn the_json_object_has_the_documented_keys() {
    let object = json(&["--step-ms", "87", "--batch", "128", "--sample-bytes", "62.5kB"]);
    let help = plan(&["--help"]).stdout;
    let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "workload",
            "total",
            "host",
            "host_memory_bytes",
            "dataset_bytes",
            "epoch_s",
            "host_cache_bytes",
            "needed_cache_share",
            "needed_cache_bytes",
            "shards",
            "bytes_per_core_s",
            "uses",
            "reached_samples_per_s",
            "limited_by",
            "verdict",
            "sensitivity"
        ]
    );
    assert!(keys.iter().all(|key| help.contains(*key)), "{help}");
    assert_eq!(object["limited_by"], "training-step");
    assert_eq!(object["total"]["cores"], Value::Null);
    assert_eq!(object["workload"]["step_s"], 0.087);
    let variations = object["sensitivity"].as_array().unwrap();
    assert_eq!(variations[0]["change"], "half the step time");
    let rate = |of: &Value| of["total"]["samples_per_s"].as_f64().unwrap();
    assert!((rate(&variations[0]) / rate(&object) - 2.0).abs() < 1e-9);
}

#[test]
fn a_throughput_is_equal_to_its_step_time() {
    let by = |option: &[&str]| {
        let more = ["--batch", "100", "--devices", "4", "--sample-bytes", "1kB"];
        json(&[option, &more].concat())["total"]["samples_per_s"].as_f64().unwrap()
    };
    assert!((by(&["--step-ms", "50"]) - 8_000.0).abs() < 1e-6);
    assert!((by(&["--samples-per-s", "8000"]) - 8_000.0).abs() < 1e-6);
}

#[test]
fn the_costs_of_a_sample_are_measured_with_the_options_of_bench() {
    let folder = Folder::with_images(50, 3);
    let path = folder.path().to_str().unwrap();
    let bench = ["--", path, "--size", "24", "--epochs", "2"];
    let measured = |before: &[&str]| {
        let step = ["--step-ms", "10", "--batch", "8"];
        json(&[&step, before, &bench].concat())["workload"].clone()
    };
    let workload = measured(&[]);
    let files = fs::read_dir(folder.path()).unwrap();
    let files = files.flat_map(|class| fs::read_dir(class.unwrap().path()).unwrap());
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(workload["samples"], 50);
    // A sample in memory is a little larger than its file.
    let measured_bytes = workload["sample_bytes"].as_u64().unwrap();
    assert!((bytes / 50..bytes / 50 + 100).contains(&measured_bytes), "{workload}");
    assert_eq!(workload["decoded_bytes"], 3 * 24 * 24 + 8);
    let seconds = |key: &str| workload[key].as_f64().unwrap();
    assert!((1e-6..1.0).contains(&seconds("cpu_s")), "{workload}");
    assert!((1e-9..1.0).contains(&seconds("latency_s")), "{workload}");
    // Given values replace measured ones.
    let given = measured(&["--sample-bytes", "7kB", "--cpu-ms", "3", "--latency-ms", "20"]);
    assert_eq!(given["sample_bytes"], 7_000);
    assert_eq!((&given["cpu_s"], &given["latency_s"]), (&0.003.into(), &0.02.into()));
}

#[test]
fn missing_and_invalid_inputs_are_explained_in_one_line() {
    for (arguments, words) in [
        (&["--batch", "8"][..], "--step-ms"),
        (&["--step-ms", "10"], "--sample-bytes"),
        (&["--step-ms", "0", "--sample-bytes", "1kB"], "a number above 0"),
        (&["--step-ms", "9", "--sample-bytes", "1kB", "--cache-share", "2"], "from 0 to 1"),
        (&["--step-ms", "9", "--", "photos", "--no-option"], "options of `spdl bench`"),
    ] {
        let run = plan(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(run.stderr.contains(words), "{arguments:?}: {}", run.stderr);
    }
    let run = plan(&["--step-ms", "9", "--", "no/such/folder"]);
    assert_eq!(run.code, 1);
    assert!(run.line().contains("no/such/folder"), "{}", run.stderr);
}

#[test]
fn the_help_of_plan_teaches() {
    let help = plan(&["--help"]).stdout;
    for words in ["Examples:", "Little's law", "What to measure:", "Exit codes:"] {
        assert!(help.contains(words), "{words}");
    }
    let long = help.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long, None);
}

/// Each command in the guide prints what the guide shows.
#[test]
fn the_commands_of_the_guide_print_what_it_shows() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides/sizing-a-cluster.md");
    let guide = fs::read_to_string(guide).unwrap();
    let mut checked = 0;
    for part in guide.split("```sh\n").skip(1) {
        let (command, rest) = part.split_once("```").unwrap();
        let Some(rest) = rest.trim_start().strip_prefix("```text\n") else { continue };
        let shown = rest.split("```").next().unwrap();
        let run = by_shell(command, &[]);
        assert_eq!((run.code, run.stdout.as_str()), (0, shown), "{command}\n{}", run.stderr);
        checked += 1;
    }
    assert!(checked >= 4, "{checked} commands");
}
