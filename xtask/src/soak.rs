//! `cargo xtask soak`: tests that find more errors the longer they run.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use crate::feature_checks::{self, Selection};
use crate::steps::{self, Counts, Step, Tally, cargo_test, finish_tests, model_tests};
use crate::tools::{Output, Workspace, command};
use crate::{corpus, fuzz, test, wheel};

/// Run longer versions of tests: more pipeline cycles, thread schedules, random cases, fuzzing and
/// network faults.
///
/// One round runs all steps. Tests with random inputs use new random numbers in each round. With
/// --minutes, rounds repeat until the time is over or a round has a failed step. The first round is
/// always completed; in later rounds, the running step is completed when the time is over. The
/// output of each step is kept in target/xtask-logs/soak-STEP.log; if the step fails, the end of
/// that log is printed. The last line is the total: `N passed, N failed, N skipped`.
///
/// These environment variables replace the default lengths: SPDL_CYCLES, SPDL_SIGINTS, SPDL_KILLS,
/// SPDL_RESUME_KILLS, SPDL_ADDRESS_LIMITS, SPDL_SCHEDULES, PROPTEST_CASES, SPDL_MEMORY_SECONDS,
/// SPDL_SOAK_SECONDS, SPDL_FAULT_SECONDS, SPDL_SUITE_RUNS. SPDL_FAULT_SEED sets the first seed.
/// SPDL_CHECK_TIMES=0 checks the times of process ends only if the machine is idle.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask soak                        one round, before a release
  cargo xtask soak --minutes 480          rounds for 8 hours
  cargo xtask soak --only cycles          only this step
  cargo xtask soak --list
  SPDL_CYCLES=100000 cargo test -p spdl-core --release --test cycles     by hand")]
pub(crate) struct SoakArguments {
    /// Repeat rounds until this many minutes have passed or a round has a failed step; 0: one round
    #[arg(long, value_name = "N", default_value_t = 0)]
    minutes: u64,
    /// Run only these steps; --list prints their names
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// List the steps, and run none
    #[arg(long)]
    list: bool,
}

const STEPS: [Step; 22] = [
    Step { name: "programs", about: "install build tools if missing", run: test::programs },
    Step { name: "cycles", about: "start and stop 10,000 pipelines in every way", run: cycles },
    Step {
        name: "shuttle",
        about: "whole pipelines under 1,000,000 thread schedules",
        run: shuttle,
    },
    Step { name: "properties", about: "property tests, 20,000 cases each", run: properties },
    Step { name: "memory", about: "a slow consumer and mixed sizes for 60 s", run: memory },
    Step {
        name: "corpus",
        about: "decode all files of the corpora, and 20 damaged copies of each",
        run: corpus::soak,
    },
    Step {
        name: "corpus-address",
        about: "the step corpus with AddressSanitizer",
        run: corpus::soak_with_address_sanitizer,
    },
    Step {
        name: "fuzz",
        about: "each target for 60 s, with AddressSanitizer and all formats",
        run: fuzz::soak,
    },
    Step {
        name: "test-default",
        about: "unit tests, doc tests and the program with default features",
        run: test::test_default,
    },
    Step {
        name: "features",
        about: "compile with each feature alone, each pair, and all features but one",
        run: features,
    },
    Step {
        name: "python",
        about: "drop 10,000 Python pipelines; send Ctrl-C 200 times; kill over 2,000 processes",
        run: python,
    },
    Step {
        name: "suite",
        about: "the whole Python suite 20 times, alone and in concurrent processes in turn",
        run: suite,
    },
    Step {
        name: "python-other",
        about: "the Python tests with the wheel of maturin, on another version of Python if installed",
        run: test::python_by_maturin,
    },
    Step {
        name: "frameworks",
        about: "the tests with PyTorch, torchvision, Lightning and Accelerate, which pip installs (5 GB)",
        run: frameworks,
    },
    Step {
        name: "ffmpeg",
        about: "the release wheel's FFmpeg beside PyAV, OpenCV and the system's FFmpeg",
        run: ffmpeg,
    },
    Step {
        name: "resume",
        about: "kill runs 1,000 times, damage their state files, and resume",
        run: resume,
    },
    Step {
        name: "limits",
        about: "run the program under 179 limits on the address space",
        run: limits,
    },
    Step {
        name: "fault-grid",
        about: "epochs of three kinds of data sets under 51 faults at three rates",
        run: fault_grid,
    },
    Step {
        name: "epochs",
        about: "decode whole and damaged images, with network faults, for 30 minutes",
        run: epochs,
    },
    Step {
        name: "deny",
        about: "licences, sources and duplicates of dependencies",
        run: test::deny,
    },
    Step {
        name: "advisories",
        about: "known vulnerabilities of dependencies",
        run: test::install_and_check_advisories,
    },
    Step { name: "faults", about: "mixed network faults for 30 minutes", run: faults },
];

/// Time limit of a step other than `suite`.
const STEP_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Time limit of the step `suite`, whose runs take about ten minutes each.
const SUITE_LIMIT: Duration = Duration::from_secs(12 * 60 * 60);

pub(crate) fn run(workspace: &Workspace, arguments: &SoakArguments) -> Result<ExitCode> {
    if arguments.list {
        steps::list(&STEPS);
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = steps::choose(&STEPS, &arguments.only)?;
    let start = Instant::now();
    let duration = Duration::from_secs(arguments.minutes.saturating_mul(60));
    let mut tally = Tally::default();
    for round in 1_u64.. {
        if arguments.minutes > 0 {
            println!(
                "round {round}, {:.0} min after the start",
                start.elapsed().as_secs_f64() / 60.0
            );
        }
        for step in &chosen {
            let limit = if step.name == "suite" { SUITE_LIMIT } else { STEP_LIMIT };
            tally.run(workspace, step, &format!("soak-{}", step.name), limit)?;
            if round > 1 && start.elapsed() >= duration {
                break;
            }
        }
        if tally.has_failed() || start.elapsed() >= duration {
            break;
        }
    }
    Ok(tally.conclude())
}

/// The length of a test: the value of an environment variable, or else a default.
fn length(output: &mut Output, name: &str, default: &str) -> String {
    let value = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    output.say(&format!("with {name}={value}"));
    value
}

/// Runs an optimised integration test of `spdl-core`; an environment variable sets its length.
fn core_test(
    workspace: &Workspace,
    output: &mut Output,
    test: &str,
    variable: (&str, &str),
) -> Result<Counts> {
    let (name, default) = variable;
    let value = length(output, name, default);
    cargo_test(workspace, output, 1, |cargo| {
        cargo
            .args(["-p", "spdl-core", "--release", "--all-features", "--test", test])
            .env(name, value)
    })
}

fn cycles(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    core_test(workspace, output, "cycles", ("SPDL_CYCLES", "10000"))
}

fn shuttle(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let schedules = length(output, "SPDL_SCHEDULES", "1000000");
    model_tests(workspace, output, "shuttle", "bench", 1, |tests| {
        tests.env("SPDL_SCHEDULES", schedules)
    })
}

/// Runs all tests of `spdl-core`, because property tests cannot be selected by name.
fn properties(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let cases = length(output, "PROPTEST_CASES", "20000");
    cargo_test(workspace, output, 1, |cargo| {
        cargo
            .args(["-p", "spdl-core", "--release", "--all-features", "--lib", "--tests"])
            .env("PROPTEST_CASES", cases)
    })
}

fn memory(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    core_test(workspace, output, "memory", ("SPDL_MEMORY_SECONDS", "60"))
}

fn python(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    /// Kills are per test case: 51 cases of victim, start method, and function or moment; and eight
    /// times as many for each of two start methods, before runs that resume; and each
    /// case of loaders, which also resume with other numbers of ranks.
    ///
    /// With `SPDL_CHECK_TIMES=1`, the median time of process ends is also checked on a busy machine.
    const LENGTHS: [(&str, &str); 4] = [
        ("SPDL_CYCLES", "10000"),
        ("SPDL_SIGINTS", "200"),
        ("SPDL_KILLS", "20"),
        ("SPDL_CHECK_TIMES", "1"),
    ];
    let venv = wheel::install_for_tests(workspace, output)?;
    let mut tests = command(venv.python());
    tests.args([
        "-m",
        "pytest",
        "-rfEs",
        "-p",
        "no:cacheprovider",
        "spdl-python/tests/test_soak.py",
        "spdl-python/tests/test_process_end.py",
        "spdl-python/tests/test_loader_kills.py",
    ]);
    tests.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&workspace.root);
    for (name, default) in LENGTHS {
        tests.env(name, length(output, name, default));
    }
    let (status, text) = output.run_and_read(&mut tests)?;
    finish_tests(output, Counts::of_pytest(&text), 2, status)
}

fn frameworks(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    test::with_frameworks(workspace, output, true)
}

/// Repeats the Python suite: a test that fails once in 20 runs depends on timing or on the tests before it.
fn suite(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let runs = length(output, "SPDL_SUITE_RUNS", "20");
    let runs: usize = runs.parse().with_context(|| format!("SPDL_SUITE_RUNS={runs}"))?;
    let venv = wheel::install_for_tests(workspace, output)?;
    let mut counts = Counts::default();
    for run in 1..=runs {
        let processes = if run % 2 == 1 { test::PYTEST_PROCESSES } else { 1 };
        output.say(&format!("run {run} of {runs}, with {processes} processes"));
        let of_run = test::python_suite(workspace, output, &venv, processes)?;
        counts.notes.push(format!(
            "run {run}, {processes} processes: {} passed, {} failed, {} skipped",
            of_run.passed, of_run.failed, of_run.skipped
        ));
        counts.add(of_run);
    }
    Ok(counts)
}

/// Minimum number of orders of four libraries.
const ORDERS: u64 = 24;

fn ffmpeg(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let venv = wheel::install(workspace, output, "venv-ffmpeg-test", false)?;
    venv.install(output, &["pytest", "av", "opencv-python-headless", "pillow"])?;
    let mut tests = command(venv.python());
    tests.args(["-m", "pytest", "-rfEs", "-p", "no:cacheprovider"]);
    tests.arg("spdl-python/tests/test_ffmpeg_library.py");
    // The other tests of `spdl_rs.io` use the FFmpeg of the system, which has all formats.
    tests.args(["spdl-python/tests/test_media_encoding.py", "-k", "test_ffmpeg_library or i08"]);
    tests.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&workspace.root);
    let (status, text) = output.run_and_read(&mut tests)?;
    finish_tests(output, Counts::of_pytest(&text), ORDERS, status)
}

fn features(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let mut counts = Counts::default();
    for selection in [Selection::EachAlone, Selection::Pairs, Selection::AllButOne] {
        counts.add(feature_checks::check(workspace, output, selection)?);
    }
    Ok(counts)
}

fn resume(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let kills = length(output, "SPDL_RESUME_KILLS", "1000");
    // Three tests: of states of runs, and of packing.
    cargo_test(workspace, output, 3, |cargo| {
        cargo
            .args(["-p", "spdl-cli", "--release", "--test", "program", "killed_"])
            .env("SPDL_RESUME_KILLS", kills)
    })
}

fn limits(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let count = length(output, "SPDL_ADDRESS_LIMITS", "179");
    cargo_test(workspace, output, 1, |cargo| {
        cargo
            .args(["-p", "spdl-cli", "--release", "--test", "program", "limits::"])
            .env("SPDL_ADDRESS_LIMITS", count)
    })
}

fn fault_grid(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    cargo_test(workspace, output, 1, |cargo| {
        cargo
            .args(["-p", "spdl-io", "--release", "--all-features", "--test", "stores"])
            .arg("fault_grid::")
            .env("SPDL_FAULT_GRID", "full")
    })
}

/// Decodes epochs of images, sounds and videos, and checks that memory, threads and open files do not
/// grow.
fn epochs(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    crate::ffmpeg::require_system_ffmpeg(output)?;
    let seconds = length(output, "SPDL_SOAK_SECONDS", "1800");
    cargo_test(workspace, output, 1, |cargo| {
        cargo
            .args(["-p", "spdl-cli", "--release", "--features", "http,ffmpeg", "--test", "soak"])
            .env("SPDL_SOAK_SECONDS", seconds)
    })
}

/// Injects network faults into `spdl-io`; the test prints its seed each minute.
fn faults(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let name = "SPDL_FAULT_SECONDS";
    let value = length(output, name, "1800");
    cargo_test(workspace, output, 1, |cargo| {
        cargo
            .args(["-p", "spdl-io", "--release", "--all-features", "--test", "stores", "soak::"])
            .env(name, value)
    })
}
