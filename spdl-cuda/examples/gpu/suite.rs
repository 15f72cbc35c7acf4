//! All measurements, each as a process of its own with its share of the time. What they say is written
//! down at once.

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

/// A process is told that it has so much of its share: the rest is for starting and ending it.
const TOLD_SHARE: f64 = 0.85;

/// What a measurement consists of.
#[derive(Clone, Copy)]
enum Part {
    /// The tests, a program beside this one.
    Tests,
    /// This program.
    Own,
    /// A script beside this program.
    Script(&'static str),
}

/// Each measurement's parts, and their weights among all that run.
const PARTS: [(&str, f64, Part); 12] = [
    ("tests", 2.0, Part::Tests),
    ("g1", 2.0, Part::Own),
    // The first to import PyTorch, which a machine may have to read from a slow disk.
    ("g1", 2.0, Part::Script("copies.py")),
    ("g2", 3.0, Part::Own),
    ("g3", 3.0, Part::Own),
    ("g3", 2.0, Part::Script("jpeg.py")),
    ("g4", 6.0, Part::Script("training.py")),
    ("g5", 1.5, Part::Own),
    ("g5", 0.5, Part::Script("video.py")),
    ("g6", 1.0, Part::Own),
    ("g7", 2.0, Part::Own),
    ("g8", 1.0, Part::Own),
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
    /// What it needs, and was packed with it, is there.
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
        fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let create = |name: &str| {
            let path = out.join(name);
            File::create(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let (results, log) = (create("results.jsonl")?, create("log.txt")?);
        Ok(Suite { arguments, program, folder, out, results, log, lines: Vec::new() })
    }

    /// Writes a line down, so that it is there whatever comes next.
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
        comparison::beside_torchvision(&self.lines).into_iter().try_for_each(|line| self.add(line))
    }

    fn run_part(&mut self, name: &str, part: Part, share: Duration) -> Result<(), String> {
        let start = Instant::now();
        let program = match part {
            Part::Tests => "tests",
            Part::Own => "own",
            Part::Script(script) => script,
        };
        let (outcome, reason) = match part {
            Part::Tests => tests_one_by_one::run(self, name, start + share)?,
            _ => match self.command(name, part, share) {
                Ok(command) => {
                    self.watch(command, start + share, |line| lines::checked(line, name).map(Some))?
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

    /// What runs a part; else why it cannot be run.
    fn command(&self, name: &str, part: Part, share: Duration) -> Result<Command, String> {
        let seconds = format!("{:.1}", share.mul_f64(TOLD_SHARE).as_secs_f64());
        let size = self.arguments.size;
        let mut command = match part {
            Part::Own => {
                let mut command = Command::new(&self.program);
                command.args(["measure", name, &seconds, size.word()]);
                command
            }
            Part::Script(script) => {
                let script = self.folder.join("python").join(script);
                if !script.is_file() {
                    return Err(format!("{} is not there", script.display()));
                }
                let mut command = Command::new(&self.arguments.python);
                command.arg("-B").arg(script).args(["--seconds", &seconds, "--size", size.word()]);
                command.arg("--images").arg(self.folder.join("images"));
                command.arg("--videos").arg(self.folder.join("videos"));
                command
            }
            Part::Tests => return Err("tests run one by one".to_owned()),
        };
        self.prepare(&mut command);
        Ok(command)
    }

    /// Where a process finds what was packed, and that a device is required.
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
        // What the machine's own packages are found by stays.
        let before = env::var_os("PYTHONPATH").filter(|paths| !paths.is_empty());
        let paths = before.iter().flat_map(env::split_paths);
        if let Ok(paths) = env::join_paths(std::iter::once(site).chain(paths)) {
            command.env("PYTHONPATH", paths);
        }
    }

    /// Runs it until it ends, or the deadline ends it: what is understood of its lines is written down.
    /// What became of it, and why.
    pub(crate) fn watch(
        &mut self,
        mut command: Command,
        deadline: Instant,
        mut understood: impl FnMut(&str) -> Result<Option<Value>, String>,
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
        let said = listen(&mut child);
        let mut wrong = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match said.recv_timeout(left) {
                Ok(line) => match understood(&line) {
                    Ok(Some(line)) => self.add(line)?,
                    Ok(None) => {}
                    Err(error) => wrong = wrong.or(Some(error)),
                },
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(("out of time", "it was killed at the end of its share".to_owned()));
                }
            }
        }
        let status = end(&mut child, deadline);
        Ok(match (status, wrong) {
            (None, _) => ("out of time", "it was killed at the end of its share".to_owned()),
            (Some(_), Some(wrong)) => ("failed", wrong),
            (Some(status), None) if status.success() => ("done", String::new()),
            (Some(status), None) => ("failed", format!("{status}; see log.txt")),
        })
    }

    /// The table, printed and written; whether all went well.
    fn conclude(self) -> Result<bool, String> {
        let text = table::of(&self.lines);
        show(&format!("\n{text}"));
        let path = self.out.join("table.md");
        fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(!self.lines.iter().any(is_failure))
    }
}

/// For who looks on. That nobody does any more is no reason to stop.
fn show(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Whether a line says that something is wrong.
pub(crate) fn is_failure(line: &Value) -> bool {
    match line["kind"].as_str() {
        Some("test") => line["passed"] == false,
        Some("promise") => line["holds"] == false,
        Some("end") => line["outcome"] == "failed" || line["outcome"] == "out of time",
        _ => false,
    }
}

/// The lines of a process as they come; closed when it says nothing more.
fn listen(child: &mut Child) -> Receiver<String> {
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

/// Waits for the end of a process; `None` where the deadline came first.
fn end(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
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
