//! A child process that decodes files, and its watchdog.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::tools::command;

/// Outcome of a file in one decoder, in order of severity. The most severe outcome of all requests
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Ok,
    Truncated,
    Corrupt,
    Unsupported,
    LimitExceeded,
    /// Contradicting results, or an invalid-argument error although the arguments are valid.
    Inconsistent,
    /// A panic that was caught.
    Panic,
    /// The process exceeded its memory limit.
    OverLimit,
    /// The request exceeded its time limit.
    Hang,
    /// The process died for another reason.
    Abort,
}

impl Outcome {
    pub(crate) const ALL: [Outcome; 10] = [
        Outcome::Ok,
        Outcome::Truncated,
        Outcome::Corrupt,
        Outcome::Unsupported,
        Outcome::LimitExceeded,
        Outcome::Inconsistent,
        Outcome::Panic,
        Outcome::OverLimit,
        Outcome::Hang,
        Outcome::Abort,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Truncated => "truncated",
            Outcome::Corrupt => "corrupt",
            Outcome::Unsupported => "unsupported",
            Outcome::LimitExceeded => "limit-exceeded",
            Outcome::Inconsistent => "inconsistent",
            Outcome::Panic => "panic",
            Outcome::OverLimit => "over-limit",
            Outcome::Hang => "hang",
            Outcome::Abort => "abort",
        }
    }

    /// Whether this outcome is a failure.
    pub(crate) fn is_failure(self) -> bool {
        self >= Outcome::Inconsistent
    }

    fn ends_process(self) -> bool {
        self >= Outcome::OverLimit
    }
}

/// Result of a decoder on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) decoder: String,
    pub(crate) outcome: Outcome,
    /// The request that had this outcome.
    pub(crate) request: String,
    pub(crate) message: String,
}

/// The program of the child processes, its limits, and the folder for its error output.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    pub(crate) program: PathBuf,
    pub(crate) memory_bytes: u64,
    /// Whether the address space is limited. AddressSanitizer reserves more than any limit.
    pub(crate) limits_address_space: bool,
    /// Time limit of one request. The limit applies to CPU time if the system reports it, so that a
    /// busy machine causes no timeouts.
    pub(crate) time: Duration,
    /// Folder for the files with the standard error of the child processes.
    pub(crate) folder: PathBuf,
}

/// Ratio of the wall-clock limit to the CPU limit. The wall-clock limit stops requests that hang
/// without using the CPU.
const WALL_FACTOR: u32 = 6;

/// A child process, restarted after each crash, hang or exceeded limit.
pub(crate) struct Worker {
    allowance: Allowance,
    errors: PathBuf,
    child: Option<Running>,
}

struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    pub(crate) fn new(allowance: &Allowance, number: usize) -> Self {
        let errors = allowance.folder.join(format!("worker-{number}.stderr"));
        Worker { allowance: allowance.clone(), errors, child: None }
    }

    /// Decodes `file` with the decoders named in `decoders`, separated by commas. If `decoders` is
    /// empty, uses all decoders that recognize the file.
    pub(crate) fn judge(&mut self, file: &[u8], decoders: &str) -> Result<Vec<Verdict>> {
        let verdicts = self.judge_once(file, decoders)?;
        let ended = verdicts.iter().any(|verdict| verdict.outcome.ends_process());
        let may_be_history = verdicts
            .iter()
            .any(|verdict| matches!(verdict.outcome, Outcome::OverLimit | Outcome::Hang));
        // Earlier files may have fragmented the memory, or the machine was busy: repeat in a new
        // process.
        if ended && may_be_history { self.judge_once(file, decoders) } else { Ok(verdicts) }
    }

    fn judge_once(&mut self, file: &[u8], decoders: &str) -> Result<Vec<Verdict>> {
        let mut running = match self.child.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let mut verdicts = Verdicts::default();
        // If the child has exited already, the code below detects that.
        let sent = running.send(file, decoders);
        let mut since = Instant::now();
        let mut cpu_since = cpu_time(running.child.id());
        let outcome = loop {
            match running.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    if line == "done" {
                        self.child = Some(running);
                        return Ok(verdicts.finish());
                    }
                    verdicts.take(&line);
                    since = Instant::now();
                    cpu_since = cpu_time(running.child.id());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let cpu = cpu_time(running.child.id()).zip(cpu_since);
                    let used = cpu.map_or(since.elapsed(), |(now, then)| now.saturating_sub(then));
                    let time = self.allowance.time;
                    if used >= time || since.elapsed() >= time * WALL_FACTOR {
                        break Some(Outcome::Hang);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        let (outcome, message) = match outcome {
            Some(hang) => {
                running.child.kill()?;
                running.child.wait()?;
                (hang, format!("not ended after {} s", self.allowance.time.as_secs()))
            }
            None => self.cause_of_death(running)?,
        };
        if verdicts.current.is_none() {
            sent.context("cannot write to the child process")?;
        }
        verdicts.end(outcome, &message);
        Ok(verdicts.finish())
    }

    fn start(&self) -> Result<Running> {
        let errors = File::create(&self.errors)
            .with_context(|| format!("cannot create {}", self.errors.display()))?;
        let mut child = command(&self.allowance.program);
        child.arg(self.allowance.memory_bytes.to_string());
        if !self.allowance.limits_address_space {
            child.arg("unlimited");
        }
        Running::start(&mut child, errors)
    }

    /// Outcome of a process that has exited.
    fn cause_of_death(&self, mut running: Running) -> Result<(Outcome, String)> {
        let status = running.child.wait()?;
        let text = fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        // Rust's messages on failed allocations.
        let out_of_memory = text
            .lines()
            .find(|line| line.contains("memory allocation of") && line.contains("failed"));
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let outcome = if out_of_memory.is_some() { Outcome::OverLimit } else { Outcome::Abort };
        Ok((outcome, format!("{status}: {}", out_of_memory.or(last).unwrap_or_default())))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut running) = self.child.take() {
            // Without further input the child exits; killing it loses no results.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        let _ = fs::remove_file(&self.errors);
    }
}

impl Running {
    fn start(command: &mut Command, errors: File) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let input = child.stdin.take().context("the child process has no standard input")?;
        let output = child.stdout.take().context("the child process has no standard output")?;
        let (sender, lines) = channel();
        thread::spawn(move || pass_on(BufReader::new(output), &sender));
        Ok(Running { child, input, lines })
    }

    fn send(&mut self, file: &[u8], decoders: &str) -> std::io::Result<()> {
        self.input.write_all(&(decoders.len() as u32).to_le_bytes())?;
        self.input.write_all(decoders.as_bytes())?;
        self.input.write_all(&(file.len() as u64).to_le_bytes())?;
        self.input.write_all(file)?;
        self.input.flush()
    }
}

fn pass_on(output: impl BufRead, sender: &Sender<String>) {
    for line in output.lines() {
        let Ok(line) = line else { return };
        if sender.send(line).is_err() {
            return;
        }
    }
}

/// The responses of a child so far.
#[derive(Default)]
struct Verdicts {
    all: Vec<Verdict>,
    /// The current decoder and request.
    current: Option<(String, String)>,
}

impl Verdicts {
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["begin", decoder, request] => {
                self.current = Some((decoder.to_owned(), request.to_owned()));
            }
            ["end", kind, message] => {
                let outcome = match kind {
                    "ok" => Outcome::Ok,
                    "truncated" => Outcome::Truncated,
                    "corrupt" => Outcome::Corrupt,
                    "unsupported" => Outcome::Unsupported,
                    "limit-exceeded" => Outcome::LimitExceeded,
                    "panicked" => Outcome::Panic,
                    _ => Outcome::Inconsistent,
                };
                self.end(outcome, message);
            }
            _ => self.end(
                Outcome::Inconsistent,
                &format!("unexpected output of the child process: {line}"),
            ),
        }
    }

    /// Ends the current request with this outcome.
    fn end(&mut self, outcome: Outcome, message: &str) {
        let (decoder, request) = self.current.take().unwrap_or_default();
        let verdict = Verdict { decoder, outcome, request, message: message.to_owned() };
        match self.all.last_mut().filter(|last| last.decoder == verdict.decoder) {
            None => self.all.push(verdict),
            // If requests fail, the most severe failure counts. If no request fails, the request
            // `decode` counts: decoding a part of a file may succeed although decoding the whole
            // file does not.
            Some(last) if verdict.outcome.is_failure() && verdict.outcome > last.outcome => {
                *last = verdict;
            }
            Some(last) if verdict.request == "decode" && !last.outcome.is_failure() => {
                *last = verdict;
            }
            Some(_) => {}
        }
    }

    fn finish(self) -> Vec<Verdict> {
        self.all
    }
}

/// The CPU time that a process has used, from `/proc`; see proc(5).
fn cpu_time(process: u32) -> Option<Duration> {
    /// The kernel reports units of 1/100 s.
    const TICKS_PER_SECOND: u64 = 100;
    let stat =
        fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    Some(Duration::from_millis(ticks.iter().sum::<u64>() * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(script: &str, folder: &Path) -> Worker {
        let (text, program) = (folder.join("text"), folder.join("child"));
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Another process writes the program: a descriptor that this process has open for writing
        // may be inherited by the children of other tests, and then the program cannot be run.
        let install = Command::new("install").args(["-m", "755"]).arg(&text).arg(&program).status();
        assert!(install.unwrap().success());
        let time = Duration::from_millis(300);
        let folder = folder.to_owned();
        Worker::new(
            &Allowance { program, memory_bytes: 1 << 30, limits_address_space: true, time, folder },
            0,
        )
    }

    fn judge(script: &str) -> Vec<(Outcome, String)> {
        let folder = tempfile::tempdir().unwrap();
        let verdicts = worker(script, folder.path()).judge(b"file", "").unwrap();
        verdicts.into_iter().map(|verdict| (verdict.outcome, verdict.request)).collect()
    }

    #[test]
    fn the_worst_failure_of_a_decoder_counts_before_a_complete_decode() {
        let script = r"printf 'begin\tpng\tinspect\nend\tok\t\n'
printf 'begin\tpng\tdecode\nend\tcorrupt\tbad\nbegin\tpng\tregion\nend\tok\t\n'
printf 'begin\tgif\tdecode\nend\tok\t\nbegin\tgif\tfill\nend\tpanicked\toh\n'
echo done; cat > /dev/null";
        let expected =
            [(Outcome::Corrupt, "decode".to_owned()), (Outcome::Panic, "fill".to_owned())];
        assert_eq!(judge(script), expected);
    }

    #[test]
    fn crashed_and_hanging_children_are_distinguished() {
        let begin = r"printf 'begin\tpng\tdecode\n'";
        let cases = [
            ("kill -SEGV $$", Outcome::Abort),
            ("echo 'memory allocation of 77 bytes failed' >&2; kill -ABRT $$", Outcome::OverLimit),
            ("while true; do :; done", Outcome::Hang),
            ("exec sleep 60", Outcome::Hang),
        ];
        for (end, outcome) in cases {
            let expected = [(outcome, "decode".to_owned())];
            assert_eq!(judge(&format!("{begin}; {end}")), expected, "{end}");
        }
    }

    #[test]
    fn after_a_crash_the_next_file_gets_a_new_child() {
        let folder = tempfile::tempdir().unwrap();
        // The first process exits immediately.
        let script = r#"mark="$0.mark"
printf 'begin\tpng\tdecode\n'
if [ ! -e "$mark" ]; then touch "$mark"; kill -SEGV $$; fi
printf 'end\tok\t\ndone\n'; cat > /dev/null"#;
        let mut worker = worker(script, folder.path());
        assert_eq!(worker.judge(b"1", "").unwrap()[0].outcome, Outcome::Abort);
        assert_eq!(worker.judge(b"2", "").unwrap()[0].outcome, Outcome::Ok);
    }
}
