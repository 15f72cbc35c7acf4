//! Runs the selected measurements. Each of their programs is a separate process with a share of the
//! time. Results are written as they arrive.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spdl_cuda::CudaDevice;

use crate::{Arguments, comparison, lines, machine, table, tests_one_by_one};

/// The measurements, in the order in which they run.
pub(crate) const NAMES: [&str; 9] = ["tests", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8"];

/// A process may use this fraction of its time limit to measure. The remaining time is for its
/// start and exit.
const WORKING_SHARE: f64 = 0.85;

/// A program of a measurement.
#[derive(Clone, Copy)]
enum Part {
    /// The test program, in the folder of this program.
    Tests,
    /// This program.
    Measurement,
    /// A Python script in the folder of this program.
    Script(&'static str),
}

/// The programs of each measurement. A program may use a share of the remaining time that is
/// proportional to its weight.
const PARTS: [(&str, f64, Part); 12] = [
    ("tests", 2.0, Part::Tests),
    ("g1", 2.0, Part::Measurement),
    // The first import of PyTorch may read from a slow disk.
    ("g1", 2.0, Part::Script("copies.py")),
    ("g2", 3.0, Part::Measurement),
    ("g3", 3.0, Part::Measurement),
    ("g3", 2.0, Part::Script("jpeg.py")),
    ("g4", 6.0, Part::Script("training.py")),
    ("g5", 1.5, Part::Measurement),
    ("g5", 0.5, Part::Script("video.py")),
    ("g6", 1.0, Part::Measurement),
    ("g7", 2.0, Part::Measurement),
    ("g8", 1.0, Part::Measurement),
];

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error) if env::var_os("SPDL_REQUIRE_GPU").is_some() => {
            eprintln!("error: a GPU is required: {}", error.report());
            return ExitCode::FAILURE;
        }
        Err(error) => {
            println!("SKIPPED: no GPU: {}", error.report());
            return ExitCode::SUCCESS;
        }
    };
    match Suite::start(arguments).and_then(|mut suite| {
        suite.add(machine::describe(&device, &suite.folder))?;
        drop(device);
        suite.run_parts()?;
        suite.conclude()
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) struct Suite<'a> {
    arguments: &'a Arguments,
    /// This program.
    program: PathBuf,
    /// The folder of the pack.
    pub(crate) folder: PathBuf,
    out: PathBuf,
    results: File,
    pub(crate) log: File,
    lines: Vec<Value>,
}

impl<'a> Suite<'a> {
    fn start(arguments: &'a Arguments) -> Result<Suite<'a>, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let folder = program.parent().unwrap_or(Path::new(".")).to_owned();
        let out = arguments.out.clone().unwrap_or_else(|| folder.join("results"));
        let cannot_create = |path: &Path, error: std::io::Error| {
            format!("cannot create {:?}: {error}", path.display().to_string())
        };
        fs::create_dir_all(&out).map_err(|error| cannot_create(&out, error))?;
        let create = |name: &str| {
            let path = out.join(name);
            File::create(&path).map_err(|error| cannot_create(&path, error))
        };
        let (results, log) = (create("results.jsonl")?, create("log.txt")?);
        Ok(Suite { arguments, program, folder, out, results, log, lines: Vec::new() })
    }

    /// Writes a line to disk and shows it.
    pub(crate) fn add(&mut self, line: Value) -> Result<(), String> {
        writeln!(self.results, "{line}")
            .and_then(|()| self.results.sync_data())
            .map_err(|error| format!("cannot write results: {error}"))?;
        show(&line.to_string());
        self.lines.push(line);
        Ok(())
    }

    fn run_parts(&mut self) -> Result<(), String> {
        let only = &self.arguments.only;
        let chosen: Vec<_> = PARTS
            .into_iter()
            .filter(|(name, ..)| only.is_empty() || only.iter().any(|chosen| chosen == name))
            .collect();
        let deadline = Instant::now() + Duration::from_secs_f64(60.0 * self.arguments.minutes);
        for (at, (name, weight, part)) in chosen.iter().enumerate() {
            let left: f64 = chosen[at..].iter().map(|(_, weight, _)| weight).sum();
            let time = deadline.saturating_duration_since(Instant::now());
            let share = if left > 0.0 { time.mul_f64(weight / left) } else { time };
            self.run_part(name, *part, share)?;
        }
        if self.arguments.size.is_tiny() {
            return Ok(());
        }
        let lines = comparison::compare_with_torchvision(&self.lines);
        lines.into_iter().try_for_each(|line| self.add(line))
    }

    fn run_part(&mut self, name: &str, part: Part, share: Duration) -> Result<(), String> {
        let start = Instant::now();
        let program = match part {
            Part::Tests => "tests",
            Part::Measurement => "own",
            Part::Script(script) => script,
        };
        let (outcome, reason) = match part {
            Part::Tests => tests_one_by_one::run(self, name, start + share)?,
            _ => match self.command(name, part, share) {
                Ok(command) => {
                    self.watch(command, start + share, |line| lines::parse(line, name).map(Some))?
                }
                Err(reason) => ("unsupported", reason),
            },
        };
        self.add(json!({
            "kind": "end",
            "measurement": name,
            "program": program,
            "outcome": outcome,
            "reason": reason,
            "seconds": (start.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        }))
    }

    /// The command of a part, or the reason why the part cannot run.
    fn command(&self, name: &str, part: Part, share: Duration) -> Result<Command, String> {
        let seconds = format!("{:.1}", share.mul_f64(WORKING_SHARE).as_secs_f64());
        let size = self.arguments.size;
        let mut command = match part {
            Part::Measurement => {
                let mut command = Command::new(&self.program);
                command.args(["measure", name, &seconds, size.word()]);
                command
            }
            Part::Script(script) => {
                let script = self.folder.join("python").join(script);
                if !script.is_file() {
                    return Err(format!("{:?} not found", script.display().to_string()));
                }
                let mut command = Command::new(&self.arguments.python);
                command.arg("-B").arg(script).args(["--seconds", &seconds, "--size", size.word()]);
                command.arg("--images").arg(self.folder.join("images"));
                command.arg("--videos").arg(self.folder.join("videos"));
                command
            }
            Part::Tests => return Err("no single command runs all tests".to_owned()),
        };
        self.prepare(&mut command);
        Ok(command)
    }

    /// Sets the environment: the packed libraries and packages, and `SPDL_REQUIRE_GPU`.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command.env("SPDL_REQUIRE_GPU", "1");
        let site = self.folder.join("site");
        if !site.is_dir() {
            return;
        }
        let nvjpeg = site.join("nvidia/cu13/lib/libnvjpeg.so.13");
        if nvjpeg.is_file() && env::var_os("SPDL_NVJPEG").is_none() {
            command.env("SPDL_NVJPEG", nvjpeg);
        }
        // After the packed packages, so that packages of the machine are also found.
        let before = env::var_os("PYTHONPATH").filter(|paths| !paths.is_empty());
        let paths = before.iter().flat_map(env::split_paths);
        if let Ok(paths) = env::join_paths(std::iter::once(site).chain(paths)) {
            command.env("PYTHONPATH", paths);
        }
    }

    /// Runs a command and adds the lines that `parse` returns. Kills the process at the deadline.
    ///
    /// Returns the outcome and its reason.
    pub(crate) fn watch(
        &mut self,
        mut command: Command,
        deadline: Instant,
        mut parse: impl FnMut(&str) -> Result<Option<Value>, String>,
    ) -> Result<(&'static str, String), String> {
        let _ = writeln!(self.log, "==== {command:?}");
        let log = self.log.try_clone().map_err(|error| error.to_string())?;
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let program = command.get_program().display();
                return Ok(("unsupported", format!("cannot run {program}: {error}")));
            }
        };
        let output = read_lines(&mut child);
        let mut invalid = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match output.recv_timeout(left) {
                Ok(line) => match parse(&line) {
                    Ok(Some(line)) => self.add(line)?,
                    Ok(None) => {}
                    Err(error) => invalid = invalid.or(Some(error)),
                },
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(("out of time", "killed at the end of its time limit".to_owned()));
                }
            }
        }
        let status = wait_until(&mut child, deadline);
        Ok(match (status, invalid) {
            (None, _) => ("out of time", "killed at the end of its time limit".to_owned()),
            (Some(_), Some(invalid)) => ("failed", invalid),
            (Some(status), None) if status.success() => ("done", String::new()),
            (Some(status), None) => ("failed", format!("{status}; see log.txt")),
        })
    }

    /// Prints and writes the table. Returns whether there are no failures.
    fn conclude(self) -> Result<bool, String> {
        let text = table::markdown(&self.lines);
        show(&format!("\n{text}"));
        let path = self.out.join("table.md");
        fs::write(&path, &text)
            .map_err(|error| format!("cannot write {:?}: {error}", path.display().to_string()))?;
        Ok(!self.lines.iter().any(is_failure))
    }
}

/// Prints to standard output. A closed pipe does not stop the run.
fn show(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Whether a line reports a failure.
pub(crate) fn is_failure(line: &Value) -> bool {
    match line["kind"].as_str() {
        Some("test") => line["passed"] == false,
        Some("promise") => line["holds"] == false,
        Some("end") => line["outcome"] == "failed" || line["outcome"] == "out of time",
        _ => false,
    }
}

/// The lines of the standard output of a process. The channel closes at the end of the output.
fn read_lines(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

/// Waits for the end of a process. At the deadline, kills it and returns `None`.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}
